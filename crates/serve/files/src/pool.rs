//! Threads for calls that wait for a disk.

use std::collections::VecDeque;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

type Job = Box<dyn FnOnce() + Send>;

/// Threads with one bounded queue. A disk that does not respond occupies the threads, then fills
/// the queue; from then on jobs are refused, and no caller ever waits. A thread is started when a
/// job finds none idle.
#[derive(Debug)]
pub struct Pool {
    queue: Arc<PoolQueue>,
    threads_max: usize,
}

/// The queue is full: the server is overloaded, and a retry later is safe.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PoolFull;

impl fmt::Display for PoolFull {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("too many files wait for a disk")
    }
}

impl std::error::Error for PoolFull {}

struct PoolQueue {
    state: Mutex<PoolState>,
    has_work: Condvar,
    jobs_max: usize,
}

#[derive(Default)]
struct PoolState {
    jobs: VecDeque<Job>,
    /// The number of threads that wait for a job.
    idle: usize,
    threads: Vec<JoinHandle<()>>,
    is_closed: bool,
}

impl Pool {
    /// Creates a pool of at most `threads_max` threads, with a queue of at most `jobs_max` jobs.
    /// With 0 threads, [`Pool::run_once`] does all work.
    pub fn new(threads_max: usize, jobs_max: usize) -> Self {
        let queue = PoolQueue { state: Mutex::default(), has_work: Condvar::new(), jobs_max };
        Self { queue: Arc::new(queue), threads_max }
    }

    /// Queues a job. A job that panics is lost; its thread continues.
    ///
    /// # Errors
    /// [`PoolFull`], also if the first thread cannot be started; the job is dropped.
    pub fn run(&self, job: Box<dyn FnOnce() + Send>) -> Result<(), PoolFull> {
        let mut state = self.queue.lock();
        if state.jobs.len() >= self.queue.jobs_max {
            return Err(PoolFull);
        }
        let started = state.threads.len();
        if state.idle <= state.jobs.len() && started < self.threads_max {
            let queue = self.queue.clone();
            let builder = std::thread::Builder::new().name(format!("files-{started}"));
            match builder.spawn(move || while queue.run_next(true) {}) {
                Ok(thread) => state.threads.push(thread),
                Err(_) if started == 0 => return Err(PoolFull),
                // The others do the work.
                Err(_) => {}
            }
        }
        state.jobs.push_back(job);
        drop(state);
        self.queue.has_work.notify_one();
        Ok(())
    }

    /// Does the oldest job in this thread. Returns `false` if there is none.
    pub fn run_once(&self) -> bool {
        self.queue.run_next(false)
    }

    /// Returns the number of jobs that wait for a thread.
    pub fn queued(&self) -> usize {
        self.queue.lock().jobs.len()
    }
}

impl Drop for Pool {
    /// Drops the queued jobs, and waits for those that run.
    fn drop(&mut self) {
        let (jobs, threads) = {
            let mut state = self.queue.lock();
            state.is_closed = true;
            (std::mem::take(&mut state.jobs), std::mem::take(&mut state.threads))
        };
        self.queue.has_work.notify_all();
        drop(jobs);
        for thread in threads {
            // The threads do not panic.
            let _ = thread.join();
        }
    }
}

impl PoolQueue {
    fn lock(&self) -> MutexGuard<'_, PoolState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does the oldest job. Returns `false` if there is none, or, if it waits for one, if the pool
    /// is closed.
    fn run_next(&self, waits: bool) -> bool {
        let mut state = self.lock();
        let job = loop {
            match state.jobs.pop_front() {
                Some(job) => break job,
                None if !waits || state.is_closed => return false,
                None => {
                    state.idle += 1;
                    let waited = self.has_work.wait(state);
                    state = waited.unwrap_or_else(PoisonError::into_inner);
                    state.idle -= 1;
                }
            }
        };
        drop(state);
        // The panic hook has reported it.
        let _ = catch_unwind(AssertUnwindSafe(job));
        true
    }
}

impl fmt::Debug for PoolQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PoolQueue").field("jobs_max", &self.jobs_max).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn a_full_queue_refuses_and_a_panic_ends_no_thread() {
        let pool = Pool::new(1, 2);
        let (started, is_started) = mpsc::channel();
        let (release, is_released) = mpsc::channel::<()>();
        pool.run(Box::new(move || {
            started.send(()).unwrap();
            is_released.recv().unwrap();
            panic!("of a test");
        }))
        .unwrap();
        is_started.recv().unwrap();
        let (done, is_done) = mpsc::channel();
        for number in 0..2 {
            let done = done.clone();
            pool.run(Box::new(move || done.send(number).unwrap())).unwrap();
        }
        assert_eq!((pool.run(Box::new(|| unreachable!())), pool.queued()), (Err(PoolFull), 2));
        release.send(()).unwrap();
        assert_eq!((is_done.recv(), is_done.recv()), (Ok(0), Ok(1)));
    }

    #[test]
    fn a_dropped_pool_drops_queued_jobs_and_waits_for_the_others() {
        let pool = Pool::new(2, 9);
        let (count, at_end) = (Arc::new(()), Arc::new(Mutex::new(0)));
        for _ in 0..9 {
            let (count, at_end) = (count.clone(), at_end.clone());
            let _ = pool.run(Box::new(move || {
                let _count = count;
                *at_end.lock().unwrap() += 1;
            }));
        }
        drop(pool);
        assert_eq!(Arc::strong_count(&count), 1, "each job has run or was dropped");
        assert!(*at_end.lock().unwrap() <= 9);
    }

    #[test]
    fn without_threads_the_caller_does_the_work() {
        let pool = Pool::new(0, 1);
        assert!(!pool.run_once());
        let (done, is_done) = mpsc::channel();
        pool.run(Box::new(move || done.send(()).unwrap())).unwrap();
        assert!(is_done.try_recv().is_err());
        assert!(pool.run_once() && is_done.recv().is_ok() && !pool.run_once());
    }
}
