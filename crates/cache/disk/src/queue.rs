//! The queue before a disk.
//!
//! Squid's diskd has two marks, and so has this: above the first, what can be left out is, stores
//! and hits of the disk; above the second, those who ask for what cannot be left out wait.

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

/// What is written, in the order of the queue.
#[derive(Debug)]
pub(super) enum WriteJob {
    /// `replaces`: there is, or may be, one with the same id on the disk.
    Store {
        answer: Box<StoredResponse>,
        number: u64,
        replaces: bool,
    },
    Update {
        id: ResponseId,
        meta: [u8; META_BYTES],
        head: std::sync::Arc<[u8]>,
    },
    Purge(PurgeJob),
    /// `disks`: how many there are.
    List {
        cursor: Cursor,
        disks: usize,
        requester: WaiterId,
    },
}

/// A purge; with somebody who wants to know, it is durable before he is told.
#[derive(Debug)]
pub(super) struct PurgeJob {
    pub(super) target: PurgeTarget,
    pub(super) is_soft: bool,
    pub(super) waiter: Option<std::sync::Arc<PurgeWaiter>>,
}

/// Who is told when the last disk is through with a purge.
#[derive(Debug)]
pub(super) struct PurgeWaiter {
    pub(super) requester: WaiterId,
    /// Disks that are not through, and whether all that are had no trouble.
    pub(super) remaining: Mutex<(usize, bool)>,
}

/// How long a queue may become.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QueueMarks {
    /// Jobs in the queue above which stores and hits are left out.
    pub skip: usize,
    /// Jobs in the queue above which purges wait.
    pub wait: usize,
    /// Bytes of answers that wait to be stored, above which further ones are left out.
    pub skip_bytes: u64,
}

impl Default for QueueMarks {
    /// The first two are those of diskd.
    fn default() -> Self {
        Self { skip: 64, wait: 72, skip_bytes: 64 << 20 }
    }
}

/// How disks are worked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DiskOptions {
    /// How long their queues may become.
    pub marks: QueueMarks,
    /// Threads that read, for each disk, besides the one that writes. 0: no threads at all, and
    /// [`Disks::work`](crate::Disks::work) does everything; then nothing waits either.
    pub readers: usize,
}

impl Default for DiskOptions {
    fn default() -> Self {
        Self { marks: QueueMarks::default(), readers: 2 }
    }
}

#[derive(Debug, Default)]
pub(super) struct JobQueue {
    inner: Mutex<QueueState>,
    to_write: Condvar,
    to_read: Condvar,
    has_room: Condvar,
    marks: QueueMarks,
    /// Nobody but the caller works: to wait for room would be for ever.
    is_threadless: bool,
}

#[derive(Debug, Default)]
struct QueueState {
    writes: VecDeque<WriteJob>,
    reads: VecDeque<FetchTask>,
    /// Of answers in `writes`.
    bytes: u64,
    /// The last number that a store got.
    last_store_number: u64,
    /// Somebody waited for room in vain.
    is_stuck: bool,
    is_closed: bool,
}

/// What there is to write.
#[derive(Debug)]
pub(super) enum NextJob<T> {
    Job(T),
    /// Nothing for now.
    Empty,
    /// Nothing, and there will never be.
    Closed,
}

impl JobQueue {
    pub(super) fn new(marks: QueueMarks, is_driven: bool) -> Self {
        Self { marks, is_threadless: is_driven, ..Self::default() }
    }

    fn lock(&self) -> MutexGuard<'_, QueueState> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether what is in it is the last.
    pub(super) fn is_closing(&self) -> bool {
        self.lock().is_closed
    }

    /// Whether nothing is to be done and nothing will be.
    pub(super) fn is_drained(&self) -> bool {
        let inner = self.lock();
        inner.is_closed && inner.writes.is_empty()
    }

    /// Jobs in it.
    pub(super) fn len(&self) -> usize {
        self.lock().len()
    }

    /// Whether something of so many bytes that can be left out is to be.
    pub(super) fn must_skip(&self, bytes: u64) -> bool {
        let inner = self.lock();
        inner.is_closed
            || inner.len() >= self.marks.skip
            || inner.bytes.saturating_add(bytes) > self.marks.skip_bytes.max(bytes)
    }

    /// Waits until the queue is below the second mark, `most` at most; gives whether there was need
    /// to. A disk that lets somebody wait for so long is stuck: nobody waits for it any more before
    /// it is below that mark again.
    pub(super) fn wait_for_room(&self, most: Duration) -> bool {
        let inner = self.lock();
        let waits = |inner: &QueueState| inner.len() >= self.marks.wait && !inner.is_stuck;
        let is_above = waits(&inner);
        if is_above && !self.is_threadless && !inner.is_closed {
            let waited =
                self.has_room.wait_timeout_while(inner, most, |it| waits(it) && !it.is_closed);
            let (mut inner, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
            inner.is_stuck |= timeout.timed_out();
        }
        is_above
    }

    /// Whether there are so many jobs that no further purge has a place of its own; if so, whether
    /// the last of them is about everything.
    pub(super) fn overflow(&self) -> Option<bool> {
        let inner = self.lock();
        let is_about_all =
            |job: &WriteJob| matches!(job, WriteJob::Purge(purge) if purge.is_about_all());
        (inner.writes.len() >= JOBS_MAX).then(|| inner.writes.back().is_some_and(is_about_all))
    }

    /// Another number for a store.
    pub(super) fn next_store_number(&self) -> u64 {
        let mut inner = self.lock();
        inner.last_store_number += 1;
        inner.last_store_number
    }

    pub(super) fn push_write(&self, job: WriteJob) {
        let mut inner = self.lock();
        if let WriteJob::Store { answer, .. } = &job {
            inner.bytes += answer.bytes();
        }
        inner.writes.push_back(job);
        self.to_write.notify_one();
    }

    pub(super) fn push_fetch(&self, task: FetchTask) {
        let mut inner = self.lock();
        inner.reads.push_back(task);
        self.to_read.notify_one();
    }

    /// The next job for the writer; waits for it, `wait` at most.
    pub(super) fn pop_write(&self, wait: Option<Duration>) -> NextJob<WriteJob> {
        let mut inner = self.lock();
        if let Some(wait) = wait
            && inner.writes.is_empty()
            && !inner.is_closed
        {
            let waited = self.to_write.wait_timeout(inner, wait);
            inner = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        let Some(job) = inner.writes.pop_front() else {
            return if inner.is_closed { NextJob::Closed } else { NextJob::Empty };
        };
        if let WriteJob::Store { answer, .. } = &job {
            inner.bytes -= answer.bytes();
        }
        inner.is_stuck &= inner.len() >= self.marks.wait;
        self.has_room.notify_all();
        NextJob::Job(job)
    }

    /// The next job, if it is a purge: many are written at once.
    pub(super) fn pop_purge(&self) -> Option<PurgeJob> {
        let mut inner = self.lock();
        match inner.writes.pop_front() {
            Some(WriteJob::Purge(purge)) => {
                self.has_room.notify_all();
                Some(purge)
            }
            Some(other) => {
                inner.writes.push_front(other);
                None
            }
            None => None,
        }
    }

    /// The next fetch; waits for it if `waits`.
    pub(super) fn pop_fetch(&self, waits: bool) -> NextJob<FetchTask> {
        let mut inner = self.lock();
        loop {
            if inner.is_closed {
                return NextJob::Closed;
            }
            if let Some(task) = inner.reads.pop_front() {
                self.has_room.notify_all();
                return NextJob::Job(task);
            }
            if !waits {
                return NextJob::Empty;
            }
            inner = self.to_read.wait(inner).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// What is to be written still is; fetches that are not over are given back.
    #[must_use = "somebody waits for what is fetched"]
    pub(super) fn close(&self) -> Vec<FetchTask> {
        let mut inner = self.lock();
        inner.is_closed = true;
        let reads = std::mem::take(&mut inner.reads);
        drop(inner);
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
    fn nobody_waits_twice_for_a_disk_that_is_stuck() {
        let marks = QueueMarks { skip: 1, wait: 2, skip_bytes: 1 };
        let queue = JobQueue::new(marks, false);
        queue.push_write(purge());
        assert!(!queue.wait_for_room(Duration::MAX), "there is room");
        queue.push_write(purge());
        assert!(queue.wait_for_room(Duration::ZERO));
        assert!(!queue.wait_for_room(Duration::MAX), "it would be for ever");
        queue.push_write(purge());
        for _ in 0..2 {
            assert!(matches!(queue.pop_write(None), NextJob::Job(_)));
        }
        queue.push_write(purge());
        assert!(queue.wait_for_room(Duration::ZERO), "it went on meanwhile");
    }
}
