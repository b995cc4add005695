//! A bounded pool of pipes for a worker or a splicer. Pipes are opened on demand and reused. The
//! owner of the pool opens and closes them.

use crate::limits::REFUSALS_AFTER_FAILURE;

/// Free pipes, and the number of open ones.
#[derive(Debug)]
pub(crate) struct PipePool<P> {
    /// The pipe used last is at the end: its memory is most likely still in the CPU cache.
    free: Vec<P>,
    /// Open pipes, free or in use; `free.len() <= open <= max`.
    open: usize,
    max: usize,
    /// The fewest free pipes since the last [`PipePool::trim`]; `unused_min <= free.len()`.
    unused_min: usize,
    /// Requests that are still refused without a system call.
    refusals: u32,
}

impl<P> PipePool<P> {
    /// Creates an empty pool of at most `max` pipes.
    pub(crate) const fn new(max: usize) -> Self {
        Self { free: Vec::new(), open: 0, max, unused_min: 0, refusals: 0 }
    }

    /// Returns a free pipe, or one from `open`; `None` if all are in use or the kernel refuses
    /// another.
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

    /// Returns an empty pipe to the pool.
    pub(crate) fn release(&mut self, pipe: P) {
        self.free.push(pipe);
    }

    /// Records that an acquired pipe was closed instead of released.
    pub(crate) fn note_closed(&mut self) {
        self.open -= 1;
    }

    /// Removes an eighth of the pipes that were not used since the last call, so that the kernel
    /// gets back the pipes that a burst opened. The caller closes them.
    pub(crate) fn trim(&mut self) -> Vec<P> {
        let shed: Vec<P> = self.free.drain(..self.unused_min.div_ceil(8)).collect();
        self.open -= shed.len();
        self.unused_min = self.free.len();
        shed
    }

    /// Removes all free pipes, for the caller to close.
    pub(crate) fn take_free(&mut self) -> Vec<P> {
        self.open -= self.free.len();
        self.unused_min = 0;
        std::mem::take(&mut self.free)
    }

    /// Returns the number of open pipes.
    pub(crate) fn open(&self) -> usize {
        self.open
    }

    /// Returns the number of open pipes that are free.
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
    fn pipes_are_reused_bounded_and_closed_when_unused() {
        let mut kernel: Linux<TcpStream> = Linux::new().unwrap();
        let mut pool: PipePool<LinuxPipe> = PipePool::new(20);
        let taken: Vec<_> = std::iter::from_fn(|| pool.acquire(|| kernel.pipe())).collect();
        assert_eq!((taken.len(), pool.open(), pool.free()), (20, 20, 0));
        taken.into_iter().for_each(|pipe| pool.release(pipe));
        pool.trim();
        assert_eq!(pool.open(), 20, "all were in use");
        let kept = pool.acquire(|| kernel.pipe()).unwrap();
        pool.trim();
        assert_eq!(pool.open(), 17, "nineteen were unused");
        for _ in 0..20 {
            pool.trim();
        }
        assert_eq!((pool.open(), pool.free()), (1, 0), "pipes in use stay open");
        pool.release(kept);
    }
}
