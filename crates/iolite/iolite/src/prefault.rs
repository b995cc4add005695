//! The thread that populates blocks ahead of use, so that no worker has to.

use std::io;
use std::sync::PoisonError;
use std::thread::JoinHandle;
use std::time::Duration;

use crate::slab::{PrefaultOutcome, Slab};

/// The pause after the kernel had no memory.
const RETRY_PAUSE: Duration = Duration::from_millis(100);

/// A thread that calls [`Slab::prefault`] as long as this value lives. It sleeps while enough
/// blocks are ready, and is woken when one is taken. A slab has at most one such thread.
#[derive(Debug)]
pub struct PrefaultThread {
    slab: Slab,
    thread: Option<JoinHandle<()>>,
}

impl PrefaultThread {
    /// Starts the thread.
    ///
    /// # Errors
    /// If no thread can be created.
    pub fn start(slab: &Slab) -> io::Result<Self> {
        slab.blocks().is_stopping = false;
        let prefaulted = slab.clone();
        let thread = std::thread::Builder::new().name("iolite".into());
        let thread = thread.spawn(move || prefault_loop(&prefaulted))?;
        Ok(Self { slab: slab.clone(), thread: Some(thread) })
    }
}

fn prefault_loop(slab: &Slab) {
    loop {
        let mut blocks = slab.blocks();
        while !blocks.is_stopping && !blocks.has_task() {
            blocks.is_awaited = true;
            let waited = slab.shared().prefault_needed.wait(blocks);
            blocks = waited.expect("no holder of this lock panics");
            blocks.is_awaited = false;
        }
        if blocks.is_stopping {
            return;
        }
        drop(blocks);
        if let PrefaultOutcome::Failed(_) = slab.prefault() {
            let blocks = slab.blocks();
            // It does not matter why the wait ended: the loop checks everything again.
            drop(slab.shared().prefault_needed.wait_timeout(blocks, RETRY_PAUSE));
        }
    }
}

impl Drop for PrefaultThread {
    fn drop(&mut self) {
        // Also if a panic poisoned the lock: the thread must not outlive this value.
        let blocks = self.slab.shared().blocks.lock();
        blocks.unwrap_or_else(PoisonError::into_inner).is_stopping = true;
        self.slab.shared().prefault_needed.notify_all();
        if let Some(thread) = self.thread.take() {
            // The thread panics only if another one panicked before and was reported.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::BLOCK_BYTES;
    use crate::memory_kind::MemoryKind;

    #[test]
    #[cfg_attr(miri, ignore = "files in memory")]
    fn blocks_are_populated_while_others_are_allocated() {
        let slab = Slab::new(32 * BLOCK_BYTES).unwrap();
        let thread = PrefaultThread::start(&slab).unwrap();
        let mut held = Vec::new();
        while held.len() < 32 {
            // The kernel or the scheduler may be slow, so an error is no failure here.
            if let Ok(buffer) = slab.allocate(MemoryKind::ZeroCopy, BLOCK_BYTES..=BLOCK_BYTES, 0) {
                held.push(buffer);
            } else {
                std::thread::yield_now();
            }
        }
        assert_eq!(slab.stats().live, slab.stats().capacity);
        drop(thread);
        drop(held);
        assert_eq!(slab.stats().ready_blocks, 32);
    }
}
