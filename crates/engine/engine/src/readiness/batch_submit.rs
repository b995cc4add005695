//! Submitting the requests that a turn has collected, and handling their completions.

use std::os::fd::AsFd;

use millrace_sys::{self as sys, Errno};

use super::descriptor::{ReceiveOperation, SendOperation};
use super::queue::{Direction, ReadyEntry};
use super::send::{hold_unsent, send_result};
use super::{ReadinessEngine, Watch, data_of};
use crate::limits::{BATCH_MAX, SPARE_BUFFERS_MAX};
use crate::{Buffer, Completion, Key};

impl<W: Watch> ReadinessEngine<W> {
    /// Returns whether an operation that is possible now should wait for the end of the turn. If
    /// there are no others to submit it with, running it at once is cheaper.
    pub(super) fn should_batch(&self) -> bool {
        W::MOVES_BYTES && !(self.batch.is_empty() && self.queue.is_empty(true))
    }

    /// Queues the collected requests for the wait that follows.
    pub(super) fn submit_batch(&mut self) {
        for (key, bytes) in self.batch.sends.drain(..) {
            if let Some(descriptor) = self.descriptors.get(key) {
                self.watch.queue_send(descriptor.fd.as_fd(), data_of(key), bytes);
            }
        }
        let may_receive = !self.budget.is_exhausted();
        for key in self.batch.receives.drain(..) {
            let Some(descriptor) = self.descriptors.get_mut(key) else { continue };
            let ReceiveOperation::Receive { max, .. } = descriptor.receiving else { continue };
            if !may_receive {
                // The budget is exhausted: `run_receive` parks the entry.
                self.queue.ready.push_back(ReadyEntry { key, direction: Direction::Receiving });
                continue;
            }
            let buffer = self.spare_buffers.pop().unwrap_or_default();
            self.watch.queue_receive(descriptor.fd.as_fd(), data_of(key), buffer, max as usize);
        }
    }

    /// Handles a completed receive of the batch.
    pub(super) fn handle_received(&mut self, key: Key, buffer: Buffer, result: sys::Result<usize>) {
        let Some(descriptor) = self.descriptors.get_mut(key) else {
            return self.keep_spare_buffer(buffer);
        };
        let ReceiveOperation::Receive { max, .. } = descriptor.receiving else {
            unreachable!("a submitted receive stays outstanding until its completion")
        };
        let found = result != Err(Errno::AGAIN);
        descriptor.receive_queued = found;
        self.update_readable(key, max as usize, &result);
        match found {
            true => self.batch.received.push_back((key, buffer, result)),
            false => self.keep_spare_buffer(buffer),
        }
    }

    /// Returns the completion of the next receive of the batch.
    pub(super) fn next_received(&mut self) -> Option<Completion> {
        while let Some((key, buffer, result)) = self.batch.received.pop_front() {
            let Some(descriptor) = self.descriptors.get_mut(key) else {
                self.keep_spare_buffer(buffer);
                continue;
            };
            descriptor.receive_queued = false;
            let ReceiveOperation::Receive { token, .. } = descriptor.receiving else {
                unreachable!("a receive is outstanding until its completion is returned")
            };
            return self.complete_receive(key, token, buffer, result);
        }
        None
    }

    /// Handles a completed send of the batch.
    pub(super) fn handle_sent(&mut self, key: Key, bytes: Vec<u8>, result: sys::Result<usize>) {
        self.stats.sends += 1;
        if let Some(descriptor) = self.descriptors.get_mut(key)
            && let SendOperation::Batched { token, .. } = descriptor.sending
        {
            let taken = result.unwrap_or(0);
            self.bytes_moved += taken;
            self.stats.bytes_sent += taken as u64;
            if taken < bytes.len() && matches!(result, Ok(_) | Err(Errno::AGAIN)) {
                descriptor.mark_unwritable(&mut self.watch);
                let rest = Box::new(hold_unsent(&self.budget, &[&bytes], taken));
                descriptor.sending = SendOperation::Send { token, rest };
                self.stats.short_sends += 1;
            } else {
                descriptor.sending = SendOperation::Sent { token, result: send_result(result) };
                self.enqueue(key, Direction::Sending);
            }
        }
        if self.batch.spare_memory.len() < BATCH_MAX {
            self.batch.spare_memory.push(bytes);
        }
    }

    /// Keeps an unused buffer for a later receive.
    pub(super) fn keep_spare_buffer(&mut self, buffer: Buffer) {
        if self.spare_buffers.len() < SPARE_BUFFERS_MAX {
            self.spare_buffers.push(buffer);
        }
    }
}
