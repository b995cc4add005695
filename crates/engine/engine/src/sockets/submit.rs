//! Submitting what a turn has gathered, and taking what came of it.

use std::os::fd::AsFd;

use millrace_sys::{self as sys, Errno};

use super::descriptor::{Receiving, Sending};
use super::queue::{Direction, Ready};
use super::send::{ended, hold};
use super::{Sockets, Watch, data_of};
use crate::limits::{BATCH_MAX, STOCK_MAX};
use crate::{Buffer, Completion, Key};

impl<W: Watch> Sockets<W> {
    /// Whether an operation that could be done now waits for the end of the turn instead. One that
    /// has no others to go with is cheaper at once.
    pub(super) fn gathers(&self) -> bool {
        W::MOVES && !(self.batch.is_empty() && self.queue.is_empty(true))
    }

    /// Queues what was gathered for the wait that follows.
    pub(super) fn submit_batch(&mut self) {
        for (key, bytes) in self.batch.sends.drain(..) {
            if let Some(descriptor) = self.descriptors.get(key) {
                self.watch.send(descriptor.fd.as_fd(), data_of(key), bytes);
            }
        }
        let may_receive = !self.budget.is_exhausted();
        for key in self.batch.receives.drain(..) {
            let Some(descriptor) = self.descriptors.get_mut(key) else { continue };
            let Receiving::Receive { max, .. } = descriptor.receiving else { continue };
            if !may_receive {
                // It is parked when it is run again.
                self.queue.ready.push_back(Ready { key, direction: Direction::Receiving });
                continue;
            }
            let buffer = self.stock.pop().unwrap_or_default();
            self.watch.receive(descriptor.fd.as_fd(), data_of(key), buffer, max as usize);
        }
    }

    /// A receive of the batch is over.
    pub(super) fn note_received(&mut self, key: Key, buffer: Buffer, result: sys::Result<usize>) {
        let Some(descriptor) = self.descriptors.get_mut(key) else { return self.put_back(buffer) };
        let Receiving::Receive { max, .. } = descriptor.receiving else {
            unreachable!("nothing ends a receive that was submitted")
        };
        let found = result != Err(Errno::AGAIN);
        descriptor.receive_queued = found;
        self.learn_received(key, max as usize, &result);
        match found {
            true => self.batch.received.push_back((key, buffer, result)),
            false => self.put_back(buffer),
        }
    }

    /// Gives the next receive of the batch.
    pub(super) fn next_received(&mut self) -> Option<Completion> {
        while let Some((key, buffer, result)) = self.batch.received.pop_front() {
            let Some(descriptor) = self.descriptors.get_mut(key) else {
                self.put_back(buffer);
                continue;
            };
            descriptor.receive_queued = false;
            let Receiving::Receive { token, .. } = descriptor.receiving else {
                unreachable!("a receive is outstanding until it is given")
            };
            return self.give_received(key, token, buffer, result);
        }
        None
    }

    /// A send of the batch is over.
    pub(super) fn note_sent(&mut self, key: Key, bytes: Vec<u8>, result: sys::Result<usize>) {
        self.counters.sends += 1;
        if let Some(descriptor) = self.descriptors.get_mut(key)
            && let Sending::Batched { token, .. } = descriptor.sending
        {
            let taken = result.unwrap_or(0);
            self.moved += taken;
            self.counters.bytes_sent += taken as u64;
            if taken < bytes.len() && matches!(result, Ok(_) | Err(Errno::AGAIN)) {
                descriptor.lack_room(&mut self.watch);
                let rest = Box::new(hold(&self.budget, &[&bytes], taken));
                descriptor.sending = Sending::Send { token, rest };
                self.counters.short_sends += 1;
            } else {
                descriptor.sending = Sending::Sent { token, result: ended(result) };
                self.enqueue(key, Direction::Sending);
            }
        }
        if self.batch.spare.len() < BATCH_MAX {
            self.batch.spare.push(bytes);
        }
    }

    /// Keeps a buffer that was not lent.
    pub(super) fn put_back(&mut self, buffer: Buffer) {
        if self.stock.len() < STOCK_MAX {
            self.stock.push(buffer);
        }
    }
}
