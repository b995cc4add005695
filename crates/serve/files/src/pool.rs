//! Threads for calls that wait for a disk, and for compression.

use std::collections::VecDeque;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

type Job = Box<dyn FnOnce() + Send>;

/// Threads with a bounded queue for each kind of job. A disk that does not respond occupies the
/// threads, then fills the queue; from then on jobs are refused, and no caller ever waits. A thread
/// is started when a job finds none idle.
///
/// Compression computes for much longer than most calls wait. So jobs of I/O always come first, and
/// at most half of the threads, but at least one, compress at a time.
#[derive(Debug)]
pub struct Pool {
    queue: Arc<PoolQueue>,
    threads_max: usize,
}

/// The kind of a job of a [`Pool`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum JobKind {
    /// Calls that may wait for a disk. They come before all compression.
    Io,
    /// Compression, for which a thread needs long.
    Compression,
}

/// The queue is full: the server is overloaded, and a retry later is safe.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PoolFull;

impl fmt::Display for PoolFull {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("too much work waits for the threads that read files")
    }
}

impl std::error::Error for PoolFull {}

struct PoolQueue {
    state: Mutex<PoolState>,
    /// Notified once for each queued job. A thread that ends a compression needs no notice: it
    /// looks for the next one itself.
    has_work: Condvar,
    io_max: usize,
    compressions_max: usize,
    /// The most threads that compress at a time.
    compressing_max: usize,
}

#[derive(Default)]
struct PoolState {
    io: VecDeque<Job>,
    compressions: VecDeque<Job>,
    /// The number of threads that compress, at most `compressing_max`.
    compressing: usize,
    /// The number of threads that wait for a job.
    idle: usize,
    threads: Vec<JoinHandle<()>>,
    is_closed: bool,
}

impl Pool {
    /// Creates a pool of at most `threads_max` threads, with at most `io_max` queued jobs of I/O
    /// and `compressions_max` queued compressions. With 0 threads, [`Pool::run_once`] does all
    /// work.
    pub fn new(threads_max: usize, io_max: usize, compressions_max: usize) -> Self {
        let queue = PoolQueue {
            state: Mutex::default(),
            has_work: Condvar::new(),
            io_max,
            compressions_max,
            compressing_max: (threads_max / 2).max(1),
        };
        Self { queue: Arc::new(queue), threads_max }
    }

    /// Queues a job. A job that panics is lost; its thread continues.
    ///
    /// # Errors
    /// [`PoolFull`], also if the first thread cannot be started; the job is dropped.
    pub fn run(&self, kind: JobKind, job: Box<dyn FnOnce() + Send>) -> Result<(), PoolFull> {
        let mut state = self.queue.lock();
        let (mut io, mut compressions) = (state.io.len(), state.compressions.len());
        let (queued, most) = match kind {
            JobKind::Io => (&mut io, self.queue.io_max),
            JobKind::Compression => (&mut compressions, self.queue.compressions_max),
        };
        if *queued >= most {
            return Err(PoolFull);
        }
        *queued += 1;
        // Other compressions wait for the end of those that run.
        let startable = io + compressions.min(self.queue.compressing_max - state.compressing);
        let started = state.threads.len();
        if state.idle < startable && started < self.threads_max {
            let queue = self.queue.clone();
            let builder = std::thread::Builder::new().name(format!("files-{started}"));
            match builder.spawn(move || while queue.run_next(true) {}) {
                Ok(thread) => state.threads.push(thread),
                Err(_) if started == 0 => return Err(PoolFull),
                // The others do the work.
                Err(_) => {}
            }
        }
        match kind {
            JobKind::Io => state.io.push_back(job),
            JobKind::Compression => state.compressions.push_back(job),
        }
        drop(state);
        self.queue.has_work.notify_one();
        Ok(())
    }

    /// Does the next job in this thread. Returns `false` if there is none.
    pub fn run_once(&self) -> bool {
        self.queue.run_next(false)
    }

    /// Returns the number of jobs that wait for a thread.
    pub fn queued(&self) -> usize {
        let state = self.queue.lock();
        state.io.len() + state.compressions.len()
    }
}

impl Drop for Pool {
    /// Drops the queued jobs, and waits for those that run.
    fn drop(&mut self) {
        let (jobs, threads) = {
            let mut state = self.queue.lock();
            state.is_closed = true;
            let jobs = (std::mem::take(&mut state.io), std::mem::take(&mut state.compressions));
            (jobs, std::mem::take(&mut state.threads))
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

    /// Takes the next job: the oldest of I/O, then the oldest compression.
    fn take(&self, state: &mut PoolState) -> Option<(JobKind, Job)> {
        if let Some(job) = state.io.pop_front() {
            return Some((JobKind::Io, job));
        }
        if state.compressing >= self.compressing_max {
            return None;
        }
        let job = state.compressions.pop_front()?;
        state.compressing += 1;
        Some((JobKind::Compression, job))
    }

    /// Does the next job. Returns `false` if there is none, or, if it waits for one, if the pool is
    /// closed.
    fn run_next(&self, waits: bool) -> bool {
        let mut state = self.lock();
        let (kind, job) = loop {
            match self.take(&mut state) {
                Some(next) => break next,
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
        if kind == JobKind::Compression {
            self.lock().compressing -= 1;
        }
        true
    }
}

impl fmt::Debug for PoolQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let most = (self.io_max, self.compressions_max);
        f.debug_struct("PoolQueue").field("jobs_max", &most).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{self, Receiver, Sender};

    use super::JobKind::{Compression, Io};
    use super::*;

    /// Queues a job that reports its start, and ends when the returned sender sends or is dropped.
    fn block(pool: &Pool, kind: JobKind, started: &Sender<JobKind>) -> Sender<()> {
        let (release, is_released) = mpsc::channel::<()>();
        let started = started.clone();
        let job = move || {
            started.send(kind).unwrap();
            let _ = is_released.recv();
        };
        pool.run(kind, Box::new(job)).unwrap();
        release
    }

    /// Queues jobs that send their numbers, and returns the receiver.
    fn queue_numbered(pool: &Pool, kinds: &[JobKind]) -> Receiver<usize> {
        let (done, is_done) = mpsc::channel();
        for (number, kind) in kinds.iter().enumerate() {
            let done = done.clone();
            pool.run(*kind, Box::new(move || done.send(number).unwrap())).unwrap();
        }
        is_done
    }

    #[test]
    fn a_full_queue_refuses_and_a_panic_ends_no_thread() {
        let pool = Pool::new(1, 2, 1);
        let (started, is_started) = mpsc::channel();
        let (release, is_released) = mpsc::channel::<()>();
        let job = move || {
            started.send(()).unwrap();
            is_released.recv().unwrap();
            panic!("of a test");
        };
        pool.run(Io, Box::new(job)).unwrap();
        is_started.recv().unwrap();
        let is_done = queue_numbered(&pool, &[Io, Io, Compression]);
        for kind in [Io, Compression] {
            assert_eq!(pool.run(kind, Box::new(|| unreachable!())), Err(PoolFull), "{kind:?}");
        }
        assert_eq!(pool.queued(), 3);
        release.send(()).unwrap();
        assert_eq!(is_done.iter().collect::<Vec<_>>(), [0, 1, 2]);
    }

    #[test]
    fn io_comes_before_compression() {
        for threads in [0, 1] {
            let pool = Pool::new(threads, 9, 9);
            let (started, is_started) = mpsc::channel();
            let blocked = (threads > 0).then(|| block(&pool, Io, &started));
            if blocked.is_some() {
                is_started.recv().unwrap();
            }
            let is_done = queue_numbered(&pool, &[Compression, Io, Compression, Io]);
            drop(blocked);
            while threads == 0 && pool.run_once() {}
            assert_eq!(is_done.iter().collect::<Vec<_>>(), [1, 3, 0, 2], "{threads} threads");
        }
    }

    #[test]
    fn compression_occupies_half_of_the_threads() {
        for (threads, compressing) in [(1, 1), (2, 1), (3, 1), (4, 2)] {
            let pool = Pool::new(threads, 9, 9);
            let (started, is_started) = mpsc::channel();
            let mut compressions: Vec<Sender<()>> =
                (0..compressing + 2).map(|_| block(&pool, Compression, &started)).collect();
            for _ in 0..compressing {
                assert_eq!(is_started.recv(), Ok(Compression));
            }
            // The other threads serve I/O at once, each of them.
            let io: Vec<Sender<()>> =
                (compressing..threads).map(|_| block(&pool, Io, &started)).collect();
            for _ in &io {
                assert_eq!(is_started.recv(), Ok(Io), "of {threads} threads");
            }
            drop(io);
            assert_eq!(pool.queued(), 2, "compressions that wait for the end of others");
            assert_eq!(pool.queue.lock().threads.len(), threads);
            drop(compressions.drain(..1));
            assert_eq!(is_started.recv(), Ok(Compression));
            assert_eq!(pool.queued(), 1);
            drop(compressions);
            assert_eq!(is_started.recv(), Ok(Compression));
        }
    }

    #[test]
    fn a_dropped_pool_drops_queued_jobs_and_waits_for_the_others() {
        let pool = Pool::new(2, 9, 9);
        let (count, at_end) = (Arc::new(()), Arc::new(Mutex::new(0)));
        for kind in [Io, Compression].into_iter().cycle().take(18) {
            let (count, at_end) = (count.clone(), at_end.clone());
            let job = move || {
                let _count = count;
                *at_end.lock().unwrap() += 1;
            };
            let _ = pool.run(kind, Box::new(job));
        }
        drop(pool);
        assert_eq!(Arc::strong_count(&count), 1, "each job has run or was dropped");
        assert!(*at_end.lock().unwrap() <= 18);
    }

    #[test]
    fn without_threads_the_caller_does_the_work() {
        let pool = Pool::new(0, 1, 1);
        assert!(!pool.run_once());
        let is_done = queue_numbered(&pool, &[Io]);
        assert!(is_done.try_recv().is_err());
        assert!(pool.run_once() && is_done.recv().is_ok() && !pool.run_once());
    }
}
