//! The pipes of a splicer: opened as they are needed, shared by its transfers, bounded.

use crate::kernel::Kernel;
use crate::limits::{FREE_PIPES_MAX, REFUSALS_KEPT};

/// Empty pipes, and how many there may be.
#[derive(Debug)]
pub(crate) struct Pool<P> {
    /// The one that was used last, whose memory is likely still in the CPU's cache, is the last;
    /// `free.len() <= FREE_PIPES_MAX`.
    free: Vec<P>,
    /// Pipes that are open, in use or not; `free.len() <= open <= max`.
    open: usize,
    max: usize,
    /// Requests left that are refused without asking the kernel.
    refusals: u32,
}

impl<P> Pool<P> {
    /// None yet, and at most `max`.
    pub(crate) fn new(max: usize) -> Self {
        Self { free: Vec::new(), open: 0, max, refusals: 0 }
    }

    /// An empty pipe; `None` when all are in use, or the kernel gives no further one.
    pub(crate) fn take<K: Kernel<Pipe = P>>(&mut self, kernel: &mut K) -> Option<P> {
        if let Some(pipe) = self.free.pop() {
            return Some(pipe);
        }
        if self.open == self.max {
            return None;
        }
        if self.refusals > 0 {
            self.refusals -= 1;
            return None;
        }
        match kernel.pipe() {
            Ok(pipe) => {
                self.open += 1;
                Some(pipe)
            }
            Err(_) => {
                self.refusals = REFUSALS_KEPT;
                None
            }
        }
    }

    /// Takes back a pipe that is empty. So many are kept open, and what a burst took beyond them
    /// goes back to the kernel.
    pub(crate) fn give(&mut self, pipe: P) {
        if self.free.len() < FREE_PIPES_MAX {
            self.free.push(pipe);
        } else {
            self.open -= 1;
        }
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
