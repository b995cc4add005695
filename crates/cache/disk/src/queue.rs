//! The queue before a disk.
//!
//! Squid's diskd has two marks, and so has this: above the first, what can be left out is, stores
//! and hits of the disk; above the second, those who ask for what cannot be left out wait.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use millrace_body::Waiter;
use millrace_http_cache::META_BYTES;

use super::fetching::Fetching;
use super::limits::JOBS_MAX;
use super::message::{Answer, Cursor};
use super::rules::Subject;
use crate::format::Id;

/// What is written, in the order of the queue.
#[derive(Debug)]
pub(super) enum Job {
    /// `replaces`: there is, or may be, one with the same id on the disk.
    Store {
        answer: Box<Answer>,
        number: u64,
        replaces: bool,
    },
    Update {
        id: Id,
        meta: [u8; META_BYTES],
        head: std::sync::Arc<[u8]>,
    },
    Purge(PurgeJob),
    /// `disks`: how many there are.
    List {
        cursor: Cursor,
        disks: usize,
        asker: Waiter,
    },
}

/// A purge; with somebody who wants to know, it is durable before he is told.
#[derive(Debug)]
pub(super) struct PurgeJob {
    pub(super) subject: Subject,
    pub(super) is_soft: bool,
    pub(super) asker: Option<std::sync::Arc<PurgeAsker>>,
}

/// Who is told when the last disk is through with a purge.
#[derive(Debug)]
pub(super) struct PurgeAsker {
    pub(super) asker: Waiter,
    /// Disks that are not through, and whether all that are had no trouble.
    pub(super) rest: Mutex<(usize, bool)>,
}

/// How long a queue may become.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Marks {
    /// Jobs in the queue above which stores and hits are left out.
    pub skip: usize,
    /// Jobs in the queue above which purges wait.
    pub wait: usize,
    /// Bytes of answers that wait to be stored, above which further ones are left out.
    pub skip_bytes: u64,
}

impl Default for Marks {
    /// The first two are those of diskd.
    fn default() -> Self {
        Self { skip: 64, wait: 72, skip_bytes: 64 << 20 }
    }
}

/// How disks are worked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Options {
    /// How long their queues may become.
    pub marks: Marks,
    /// Threads that read, for each disk, besides the one that writes. 0: no threads at all, and
    /// [`Disks::work`](crate::Disks::work) does everything; then nothing waits either.
    pub readers: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self { marks: Marks::default(), readers: 2 }
    }
}

#[derive(Debug, Default)]
pub(super) struct Queue {
    inner: Mutex<Inner>,
    to_write: Condvar,
    to_read: Condvar,
    room: Condvar,
    marks: Marks,
    /// Nobody but the caller works: to wait for room would be for ever.
    is_driven: bool,
}

#[derive(Debug, Default)]
struct Inner {
    writes: VecDeque<Job>,
    reads: VecDeque<Fetching>,
    /// Of answers in `writes`.
    bytes: u64,
    /// The last number that a store got.
    number: u64,
    /// Somebody waited for room in vain.
    is_stuck: bool,
    ends: bool,
}

/// What there is to write.
#[derive(Debug)]
pub(super) enum Next<T> {
    Job(T),
    /// Nothing for now.
    Nothing,
    /// Nothing, and there will never be.
    End,
}

impl Queue {
    pub(super) fn new(marks: Marks, is_driven: bool) -> Self {
        Self { marks, is_driven, ..Self::default() }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether what is in it is the last.
    pub(super) fn is_ending(&self) -> bool {
        self.lock().ends
    }

    /// Whether nothing is to be done and nothing will be.
    pub(super) fn has_ended(&self) -> bool {
        let inner = self.lock();
        inner.ends && inner.writes.is_empty()
    }

    /// Jobs in it.
    pub(super) fn len(&self) -> usize {
        self.lock().len()
    }

    /// Whether something of so many bytes that can be left out is to be.
    pub(super) fn is_above_skip(&self, bytes: u64) -> bool {
        let inner = self.lock();
        inner.ends
            || inner.len() >= self.marks.skip
            || inner.bytes.saturating_add(bytes) > self.marks.skip_bytes.max(bytes)
    }

    /// Waits until the queue is below the second mark, `most` at most; gives whether there was need
    /// to. A disk that lets somebody wait for so long is stuck: nobody waits for it any more before
    /// it is below that mark again.
    pub(super) fn wait_for_room(&self, most: Duration) -> bool {
        let inner = self.lock();
        let waits = |inner: &Inner| inner.len() >= self.marks.wait && !inner.is_stuck;
        let is_above = waits(&inner);
        if is_above && !self.is_driven && !inner.ends {
            let waited = self.room.wait_timeout_while(inner, most, |it| waits(it) && !it.ends);
            let (mut inner, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
            inner.is_stuck |= timeout.timed_out();
        }
        is_above
    }

    /// Whether there are so many jobs that no further purge has a place of its own; if so, whether
    /// the last of them is about everything.
    pub(super) fn is_flooded(&self) -> Option<bool> {
        let inner = self.lock();
        let is_about_all = |job: &Job| matches!(job, Job::Purge(purge) if purge.is_about_all());
        (inner.writes.len() >= JOBS_MAX).then(|| inner.writes.back().is_some_and(is_about_all))
    }

    /// Another number for a store.
    pub(super) fn number(&self) -> u64 {
        let mut inner = self.lock();
        inner.number += 1;
        inner.number
    }

    pub(super) fn write(&self, job: Job) {
        let mut inner = self.lock();
        if let Job::Store { answer, .. } = &job {
            inner.bytes += answer.bytes();
        }
        inner.writes.push_back(job);
        self.to_write.notify_one();
    }

    pub(super) fn read(&self, fetching: Fetching) {
        let mut inner = self.lock();
        inner.reads.push_back(fetching);
        self.to_read.notify_one();
    }

    /// The next job for the writer; waits for it, `wait` at most.
    pub(super) fn next_write(&self, wait: Option<Duration>) -> Next<Job> {
        let mut inner = self.lock();
        if let Some(wait) = wait
            && inner.writes.is_empty()
            && !inner.ends
        {
            let waited = self.to_write.wait_timeout(inner, wait);
            inner = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        let Some(job) = inner.writes.pop_front() else {
            return if inner.ends { Next::End } else { Next::Nothing };
        };
        if let Job::Store { answer, .. } = &job {
            inner.bytes -= answer.bytes();
        }
        inner.is_stuck &= inner.len() >= self.marks.wait;
        self.room.notify_all();
        Next::Job(job)
    }

    /// The next job, if it is a purge: many are written at once.
    pub(super) fn next_purge(&self) -> Option<PurgeJob> {
        let mut inner = self.lock();
        match inner.writes.pop_front() {
            Some(Job::Purge(purge)) => {
                self.room.notify_all();
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
    pub(super) fn next_read(&self, waits: bool) -> Next<Fetching> {
        let mut inner = self.lock();
        loop {
            if inner.ends {
                return Next::End;
            }
            if let Some(fetching) = inner.reads.pop_front() {
                self.room.notify_all();
                return Next::Job(fetching);
            }
            if !waits {
                return Next::Nothing;
            }
            inner = self.to_read.wait(inner).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// What is to be written still is; fetches that are not over are given back.
    #[must_use = "somebody waits for what is fetched"]
    pub(super) fn end(&self) -> Vec<Fetching> {
        let mut inner = self.lock();
        inner.ends = true;
        let reads = std::mem::take(&mut inner.reads);
        drop(inner);
        self.to_write.notify_all();
        self.to_read.notify_all();
        self.room.notify_all();
        reads.into()
    }
}

impl Inner {
    fn len(&self) -> usize {
        self.writes.len() + self.reads.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn purge() -> Job {
        let subject = crate::Subject::All;
        Job::Purge(PurgeJob { subject, is_soft: false, asker: None })
    }

    #[test]
    fn nobody_waits_twice_for_a_disk_that_is_stuck() {
        let marks = Marks { skip: 1, wait: 2, skip_bytes: 1 };
        let queue = Queue::new(marks, false);
        queue.write(purge());
        assert!(!queue.wait_for_room(Duration::MAX), "there is room");
        queue.write(purge());
        assert!(queue.wait_for_room(Duration::ZERO));
        assert!(!queue.wait_for_room(Duration::MAX), "it would be for ever");
        queue.write(purge());
        for _ in 0..2 {
            assert!(matches!(queue.next_write(None), Next::Job(_)));
        }
        queue.write(purge());
        assert!(queue.wait_for_room(Duration::ZERO), "it went on meanwhile");
    }
}
