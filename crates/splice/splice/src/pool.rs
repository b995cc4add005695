//! Pipes of a worker or a splicer: opened as they are needed, kept for the next transfer, bounded.
//! Whoever has a pool opens and closes them.

use crate::limits::REFUSALS_AFTER_FAILURE;

/// Empty pipes, and how many there may be.
#[derive(Debug)]
pub(crate) struct PipePool<P> {
    /// The one that was used last, whose memory is likely still in the CPU's cache, is the last.
    free: Vec<P>,
    /// Pipes that are open, in use or not; `free.len() <= open <= max`.
    open: usize,
    max: usize,
    /// The fewest that were free at a time since [`Pool::shed`] was called; `spare <= free.len()`.
    unused_min: usize,
    /// Requests left that are refused without asking the kernel.
    refusals: u32,
}

impl<P> PipePool<P> {
    /// None yet, and at most `max`.
    pub(crate) const fn new(max: usize) -> Self {
        Self { free: Vec::new(), open: 0, max, unused_min: 0, refusals: 0 }
    }

    /// An empty pipe, of those that are kept or by `open`; `None` when all are in use, or the
    /// kernel gives no further one.
    pub(crate) fn acquire<E>(&mut self, open: impl FnOnce() -> Result<P, E>) -> Option<P> {
        if let Some(pipe) = self.free.pop() {
            self.unused_min = self.unused_min.min(self.free.len());
            return Some(pipe);
        }
        if self.open == self.max {
            return None;
        }
        if self.refusals > 0 {
            self.refusals -= 1;
            return None;
        }
        let opened = open().ok();
        self.open += usize::from(opened.is_some());
        self.refusals = if opened.is_some() { 0 } else { REFUSALS_AFTER_FAILURE };
        opened
    }

    /// Takes back a pipe that is empty.
    pub(crate) fn release(&mut self, pipe: P) {
        self.free.push(pipe);
    }

    /// One that was taken is closed instead of given back.
    pub(crate) fn note_closed(&mut self) {
        self.open -= 1;
    }

    /// An eighth of the pipes that nobody needed since this was called last, to be closed: what a
    /// burst opened goes back to the kernel in time.
    pub(crate) fn trim(&mut self) -> Vec<P> {
        let shed: Vec<P> = self.free.drain(..self.unused_min.div_ceil(8)).collect();
        self.open -= shed.len();
        self.unused_min = self.free.len();
        shed
    }

    /// All that are not in use, to be closed.
    pub(crate) fn take_free(&mut self) -> Vec<P> {
        self.open -= self.free.len();
        self.unused_min = 0;
        std::mem::take(&mut self.free)
    }

    /// Pipes that are open.
    pub(crate) fn open(&self) -> usize {
        self.open
    }

    /// Of these, the ones that no transfer holds.
    pub(crate) fn free(&self) -> usize {
        self.free.len()
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpStream;

    use super::*;
    use crate::kernel::{Linux, LinuxPipe, SystemCalls};

    #[test]
    fn pipes_are_shared_bounded_and_given_back_when_nobody_needs_them() {
        let mut kernel: Linux<TcpStream> = Linux::new().unwrap();
        let mut pool: PipePool<LinuxPipe> = PipePool::new(20);
        let taken: Vec<_> = std::iter::from_fn(|| pool.acquire(|| kernel.pipe())).collect();
        assert_eq!((taken.len(), pool.open(), pool.free()), (20, 20, 0));
        taken.into_iter().for_each(|pipe| pool.release(pipe));
        pool.trim();
        assert_eq!(pool.open(), 20, "all were needed since");
        let kept = pool.acquire(|| kernel.pipe()).unwrap();
        pool.trim();
        assert_eq!(pool.open(), 17, "nineteen were not");
        for _ in 0..20 {
            pool.trim();
        }
        assert_eq!((pool.open(), pool.free()), (1, 0), "what is in use stays");
        pool.release(kept);
    }
}
