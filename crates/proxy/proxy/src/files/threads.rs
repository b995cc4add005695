//! Threads that wait for disks in place of the workers.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use millrace_files::{Errno, JobKind, Pool, PoolFull};
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
            let _ = connected.pool.run(JobKind::Io, Box::new(move || drop(value)));
        }
    }

    /// Has a thread do `work`, and then wakes the waiter. If the [`PendingWork`] is dropped before
    /// a thread begins, the work is skipped.
    ///
    /// # Errors
    /// If too much work of this kind waits already, or there are no threads.
    pub(crate) fn run<T: Send + 'static>(
        &self,
        kind: JobKind,
        waiter: WaiterId,
        work: impl FnOnce() -> Result<T, Errno> + Send + 'static,
    ) -> Result<PendingWork<T>, PoolFull> {
        let Connected { pool, waker } = self.0.get().ok_or(PoolFull)?;
        let pending = PendingWork(Arc::default());
        let (result, waker) = (Arc::downgrade(&pending.0), waker.clone());
        let job = move || {
            if result.strong_count() == 0 {
                return;
            }
            // The panic hook has reported a panic.
            let done = catch_unwind(AssertUnwindSafe(work)).unwrap_or(Err(Errno::IO));
            if let Some(result) = result.upgrade() {
                *result.lock().unwrap_or_else(PoisonError::into_inner) = Some(done);
                waker.wake(waiter);
            }
        };
        pool.run(kind, Box::new(job))?;
        Ok(pending)
    }
}

/// The result of a thread's work, once there is one. An exchange that ends drops it.
#[derive(Debug)]
pub(crate) struct PendingWork<T>(Arc<Mutex<Option<Result<T, Errno>>>>);

impl<T> PendingWork<T> {
    /// Takes the result; `None` if the work is not done.
    pub(crate) fn take(&self) -> Option<Result<T, Errno>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Default)]
    struct Woken(Mutex<Vec<u64>>);

    impl Waker for Woken {
        fn wake(&self, waiter: WaiterId) {
            self.0.lock().unwrap().push(waiter.token);
        }
    }

    #[test]
    fn work_without_a_waiter_is_skipped() {
        let (threads, woken) = (FileThreads::default(), Arc::new(Woken::default()));
        threads.connect(Pool::new(0, 9, 9), woken.clone());
        let done = Arc::new(Mutex::new(Vec::new()));
        let run = |kind, token| {
            let done = done.clone();
            let work = move || {
                done.lock().unwrap().push(token);
                Ok(token)
            };
            threads.run(kind, WaiterId { worker: 0, token }, work).unwrap()
        };
        let first = run(JobKind::Compression, 1);
        drop(run(JobKind::Compression, 2));
        drop(run(JobKind::Io, 3));
        let last = run(JobKind::Io, 4);
        while threads.run_once() {}
        assert_eq!(*done.lock().unwrap(), [4, 1], "I/O first, and only what is awaited");
        assert_eq!(*woken.0.lock().unwrap(), [4, 1]);
        assert_eq!((first.take(), last.take(), last.take()), (Some(Ok(1)), Some(Ok(4)), None));
        assert_eq!(Arc::strong_count(&done), 1, "what skipped work holds is dropped");
    }

    #[test]
    fn a_result_that_nothing_awaits_any_more_is_dropped() {
        let (threads, woken) = (FileThreads::default(), Arc::new(Woken::default()));
        threads.connect(Pool::new(0, 9, 9), woken.clone());
        let (result, waiter) = (Arc::new(()), WaiterId { worker: 0, token: 1 });
        let pending = Arc::new(Mutex::new(None));
        let (given, own) = (result.clone(), pending.clone());
        let work = move || {
            // The exchange ends while a thread works for it.
            drop(own.lock().unwrap().take());
            Ok(given)
        };
        *pending.lock().unwrap() = Some(threads.run(JobKind::Io, waiter, work).unwrap());
        assert!(threads.run_once());
        assert_eq!((Arc::strong_count(&result), woken.0.lock().unwrap().len()), (1, 0));
    }
}
