//! The thread that makes blocks ready, so that no worker has to.

use std::io;
use std::sync::PoisonError;
use std::thread::JoinHandle;
use std::time::Duration;

use crate::slab::{Slab, Tended};

/// How long nothing is tried after the kernel had no memory.
const PAUSE: Duration = Duration::from_millis(100);

/// A thread that tends to a slab ([`Slab::tend`]) as long as this lives. It sleeps while enough
/// blocks are ready, and is woken when one was taken. A slab has one at a time.
#[derive(Debug)]
pub struct Helper {
    slab: Slab,
    thread: Option<JoinHandle<()>>,
}

impl Helper {
    /// Starts it.
    ///
    /// # Errors
    /// When there can be no further thread.
    pub fn start(slab: &Slab) -> io::Result<Self> {
        slab.blocks().ending = false;
        let tended = slab.clone();
        let thread = std::thread::Builder::new().name("iolite".into());
        let thread = thread.spawn(move || work(&tended))?;
        Ok(Self { slab: slab.clone(), thread: Some(thread) })
    }
}

fn work(slab: &Slab) {
    loop {
        let mut blocks = slab.blocks();
        while !blocks.ending && !blocks.has_task() {
            let waited = slab.shared().work.wait(blocks);
            blocks = waited.expect("nobody panics who holds this lock");
        }
        if blocks.ending {
            return;
        }
        drop(blocks);
        if let Tended::Failed(_) = slab.tend() {
            let blocks = slab.blocks();
            // Woken or not: what a wake would bring is looked at in any case.
            drop(slab.shared().work.wait_timeout(blocks, PAUSE));
        }
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        // Also when a panic poisoned the lock: the thread must not outlive this.
        let blocks = self.slab.shared().blocks.lock();
        blocks.unwrap_or_else(PoisonError::into_inner).ending = true;
        self.slab.shared().work.notify_all();
        if let Some(thread) = self.thread.take() {
            // It panics only where another thread did so before, which told its own story.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kind::Kind;
    use crate::limits::BLOCK_BYTES;

    #[test]
    #[cfg_attr(miri, ignore = "files in memory")]
    fn blocks_are_made_ready_while_others_are_taken() {
        let slab = Slab::new(32 * BLOCK_BYTES).unwrap();
        let helper = Helper::start(&slab).unwrap();
        let mut held = Vec::new();
        while held.len() < 32 {
            // The kernel or the scheduler may be slow, so a refusal is no failure.
            if let Ok(buffer) = slab.allocate(Kind::Referred, BLOCK_BYTES..=BLOCK_BYTES, 0) {
                held.push(buffer);
            } else {
                std::thread::yield_now();
            }
        }
        assert_eq!(slab.counters().live, slab.counters().capacity);
        drop(helper);
        drop(held);
        assert_eq!(slab.counters().ready_blocks, 32);
    }
}
