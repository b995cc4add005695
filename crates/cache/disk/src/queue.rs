//! The job queue of a disk.
//!
//! Like Squid's diskd, it has two marks. From the first one on, optional work (stores and fetches)
//! is refused. From the second one on, callers with mandatory work wait.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use millrace_body::WaiterId;
use millrace_http_cache::META_BYTES;

use super::fetch_task::FetchTask;
use super::limits::JOBS_MAX;
use super::message::{Cursor, StoredResponse};
use super::purge_rules::PurgeTarget;
use crate::format::ResponseId;

/// A job of the writer. Jobs are executed in the order of the queue.
#[derive(Debug)]
pub(super) enum WriteJob {
    /// Stores a response. `replaces` means that the disk has, or may have, one with the same id.
    Store {
        response: Box<StoredResponse>,
        number: u64,
        replaces: bool,
    },
    Update {
        id: ResponseId,
        meta: [u8; META_BYTES],
        head: std::sync::Arc<[u8]>,
    },
    Purge(PurgeJob),
    /// `disks` is the number of disks.
    List {
        cursor: Cursor,
        disks: usize,
        requester: WaiterId,
    },
}

/// A purge. If there is a waiter, the writer tries to make the purge durable before it replies.
#[derive(Debug)]
pub(super) struct PurgeJob {
    pub(super) target: PurgeTarget,
    pub(super) is_soft: bool,
    pub(super) waiter: Option<std::sync::Arc<PurgeWaiter>>,
}

/// The requester of a purge. It gets one reply, once each disk has written the purge or failed to.
#[derive(Debug)]
pub(super) struct PurgeWaiter {
    pub(super) requester: WaiterId,
    /// The number of disks that have not written the purge yet, and whether all others succeeded.
    pub(super) remaining: Mutex<(usize, bool)>,
}

/// The limits of a queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QueueMarks {
    /// The first mark: with this number of jobs or more, stores and fetches are refused.
    pub skip: usize,
    /// The second mark: with this number of jobs or more, purges wait.
    pub wait: usize,
    /// A store is refused if more bytes of responses than this would be queued. A response that is
    /// longer itself is accepted only if no other is queued. Until the writer takes it, fetches are
    /// refused too.
    pub skip_bytes: u64,
}

impl Default for QueueMarks {
    /// The first two are the values of diskd.
    fn default() -> Self {
        Self { skip: 64, wait: 72, skip_bytes: 64 << 20 }
    }
}

/// The queue marks and the threads of disks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DiskOptions {
    /// The limits of their queues.
    pub marks: QueueMarks,
    /// Number of threads per disk that read, besides the one that writes. 0: there are no threads,
    /// [`Disks::run_once`](crate::Disks::run_once) does all work, and no call waits.
    pub readers: usize,
}

impl Default for DiskOptions {
    fn default() -> Self {
        Self { marks: QueueMarks::default(), readers: 2 }
    }
}

#[derive(Debug, Default)]
pub(super) struct JobQueue {
    state: Mutex<QueueState>,
    to_write: Condvar,
    to_read: Condvar,
    has_room: Condvar,
    marks: QueueMarks,
    /// There are no threads, so waiting for room would never end.
    is_threadless: bool,
}

#[derive(Debug, Default)]
struct QueueState {
    writes: VecDeque<WriteJob>,
    reads: VecDeque<FetchTask>,
    /// Bytes of the responses in `writes`.
    bytes: u64,
    /// The number of the last store.
    last_store_number: u64,
    /// A caller waited for room until its timeout, and since then the writer has not taken a job
    /// that left the queue below the second mark.
    is_stuck: bool,
    is_closed: bool,
}

/// The next job of a queue.
#[derive(Debug)]
pub(super) enum NextJob<T> {
    Job(T),
    /// There is none now.
    Empty,
    /// There is none, and there will be none.
    Closed,
}

impl JobQueue {
    pub(super) fn new(marks: QueueMarks, is_threadless: bool) -> Self {
        Self { marks, is_threadless, ..Self::default() }
    }

    fn lock(&self) -> MutexGuard<'_, QueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns whether the queue is closed: stores and fetches are refused.
    pub(super) fn is_closing(&self) -> bool {
        self.lock().is_closed
    }

    /// Returns whether the queue is closed and everything is written.
    pub(super) fn is_drained(&self) -> bool {
        let state = self.lock();
        state.is_closed && state.writes.is_empty()
    }

    /// Returns the number of jobs.
    pub(super) fn len(&self) -> usize {
        self.lock().len()
    }

    /// Returns whether an optional job of `bytes` has to be refused.
    pub(super) fn must_skip(&self, bytes: u64) -> bool {
        let state = self.lock();
        state.is_closed
            || state.len() >= self.marks.skip
            || state.bytes.saturating_add(bytes) > self.marks.skip_bytes.max(bytes)
    }

    /// Waits up to `most` until the queue is below the second mark. If the wait times out, the disk
    /// is stuck: later calls return at once. They wait again once the writer takes a job that
    /// leaves the queue below the mark. Returns whether the queue had reached the mark and the disk
    /// was not stuck.
    pub(super) fn wait_for_room(&self, most: Duration) -> bool {
        let state = self.lock();
        let waits = |state: &QueueState| state.len() >= self.marks.wait && !state.is_stuck;
        let must_wait = waits(&state);
        if must_wait && !self.is_threadless && !state.is_closed {
            let waited =
                self.has_room.wait_timeout_while(state, most, |it| waits(it) && !it.is_closed);
            let (mut state, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
            state.is_stuck |= timeout.timed_out();
        }
        must_wait
    }

    /// If the queue has too many jobs for further purges, returns whether its last job purges
    /// everything; otherwise `None`.
    pub(super) fn overflow(&self) -> Option<bool> {
        let state = self.lock();
        let covers_all =
            |job: &WriteJob| matches!(job, WriteJob::Purge(purge) if purge.covers_all());
        (state.writes.len() >= JOBS_MAX).then(|| state.writes.back().is_some_and(covers_all))
    }

    /// Returns a new number for a store.
    pub(super) fn next_store_number(&self) -> u64 {
        let mut state = self.lock();
        state.last_store_number += 1;
        state.last_store_number
    }

    pub(super) fn push_write(&self, job: WriteJob) {
        let mut state = self.lock();
        if let WriteJob::Store { response, .. } = &job {
            state.bytes += response.bytes();
        }
        state.writes.push_back(job);
        self.to_write.notify_one();
    }

    pub(super) fn push_fetch(&self, task: FetchTask) {
        let mut state = self.lock();
        state.reads.push_back(task);
        self.to_read.notify_one();
    }

    /// Returns the next job for the writer, and waits up to `wait` for it.
    pub(super) fn pop_write(&self, wait: Option<Duration>) -> NextJob<WriteJob> {
        let mut state = self.lock();
        if let Some(wait) = wait
            && state.writes.is_empty()
            && !state.is_closed
        {
            let waited = self.to_write.wait_timeout(state, wait);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        let Some(job) = state.writes.pop_front() else {
            return if state.is_closed { NextJob::Closed } else { NextJob::Empty };
        };
        if let WriteJob::Store { response, .. } = &job {
            state.bytes -= response.bytes();
        }
        state.is_stuck &= state.len() >= self.marks.wait;
        self.has_room.notify_all();
        NextJob::Job(job)
    }

    /// Removes and returns the next job if it is a purge. So purges can be written in batches.
    pub(super) fn pop_purge(&self) -> Option<PurgeJob> {
        let mut state = self.lock();
        match state.writes.pop_front() {
            Some(WriteJob::Purge(purge)) => {
                self.has_room.notify_all();
                Some(purge)
            }
            Some(other) => {
                state.writes.push_front(other);
                None
            }
            None => None,
        }
    }

    /// Returns the next fetch, and waits for it if `waits`.
    pub(super) fn pop_fetch(&self, waits: bool) -> NextJob<FetchTask> {
        let mut state = self.lock();
        loop {
            if state.is_closed {
                return NextJob::Closed;
            }
            if let Some(task) = state.reads.pop_front() {
                self.has_room.notify_all();
                return NextJob::Job(task);
            }
            if !waits {
                return NextJob::Empty;
            }
            state = self.to_read.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Closes the queue: queued writes remain to be executed, and queued fetches are returned.
    #[must_use = "waiters of the fetches need a reply"]
    pub(super) fn close(&self) -> Vec<FetchTask> {
        let mut state = self.lock();
        state.is_closed = true;
        let reads = std::mem::take(&mut state.reads);
        drop(state);
        self.to_write.notify_all();
        self.to_read.notify_all();
        self.has_room.notify_all();
        reads.into()
    }
}

impl QueueState {
    fn len(&self) -> usize {
        self.writes.len() + self.reads.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn purge() -> WriteJob {
        let target = crate::PurgeTarget::All;
        WriteJob::Purge(PurgeJob { target, is_soft: false, waiter: None })
    }

    #[test]
    fn a_stuck_disk_is_waited_for_only_once() {
        let marks = QueueMarks { skip: 1, wait: 2, skip_bytes: 1 };
        let queue = JobQueue::new(marks, false);
        queue.push_write(purge());
        assert!(!queue.wait_for_room(Duration::MAX), "there is room");
        queue.push_write(purge());
        assert!(queue.wait_for_room(Duration::ZERO));
        assert!(!queue.wait_for_room(Duration::MAX), "a stuck disk is not waited for");
        queue.push_write(purge());
        for _ in 0..2 {
            assert!(matches!(queue.pop_write(None), NextJob::Job(_)));
        }
        queue.push_write(purge());
        assert!(queue.wait_for_room(Duration::ZERO), "the disk has progressed meanwhile");
    }
}
