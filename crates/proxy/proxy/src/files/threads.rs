//! Threads that wait for disks in place of the workers.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use millrace_files::{Errno, Pool, PoolFull};
use millrace_store::{WaiterId, Waker};

/// The threads of a process that open and read files. Without [`FileThreads::connect`], there are
/// none.
#[derive(Debug, Default)]
pub struct FileThreads(OnceLock<Connected>);

#[derive(Debug)]
struct Connected {
    pool: Pool,
    waker: Arc<dyn Waker>,
}

impl FileThreads {
    /// Sets the threads, and how they wake exchanges. Called once, before the first worker runs.
    ///
    /// # Panics
    /// If it is called twice.
    pub fn connect(&self, pool: Pool, waker: Arc<dyn Waker>) {
        let is_first = self.0.set(Connected { pool, waker }).is_ok();
        assert!(is_first, "the threads are set once");
    }

    /// Does one job in the calling thread, for a process whose pool has no threads. Returns `false`
    /// if there is none.
    pub fn run_once(&self) -> bool {
        self.0.get().is_some_and(|connected| connected.pool.run_once())
    }

    /// Has a thread drop a value, which may wait for a disk. If too much work waits, the caller
    /// drops it.
    pub fn drop_later(&self, value: impl Send + 'static) {
        if let Some(connected) = self.0.get() {
            // A full pool drops the job, and with it the value.
            let _ = connected.pool.run(Box::new(move || drop(value)));
        }
    }

    /// Has a thread do `work`, and then wakes the waiter.
    ///
    /// # Errors
    /// If too much work waits already, or there are no threads.
    pub(crate) fn run<T: Send + 'static>(
        &self,
        waiter: WaiterId,
        work: impl FnOnce() -> Result<T, Errno> + Send + 'static,
    ) -> Result<PendingWork<T>, PoolFull> {
        let Connected { pool, waker } = self.0.get().ok_or(PoolFull)?;
        let pending = PendingWork(Arc::default());
        let (result, waker) = (pending.0.clone(), waker.clone());
        pool.run(Box::new(move || {
            // The panic hook has reported a panic.
            let done = catch_unwind(AssertUnwindSafe(work)).unwrap_or(Err(Errno::IO));
            *result.lock().unwrap_or_else(PoisonError::into_inner) = Some(done);
            waker.wake(waiter);
        }))?;
        Ok(pending)
    }
}

/// The result of a thread's work, once there is one.
#[derive(Debug)]
pub(crate) struct PendingWork<T>(Arc<Mutex<Option<Result<T, Errno>>>>);

impl<T> PendingWork<T> {
    /// Takes the result; `None` if the work is not done.
    pub(crate) fn take(&self) -> Option<Result<T, Errno>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}
