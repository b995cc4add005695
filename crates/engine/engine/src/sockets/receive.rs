//! The receiving direction: connections accepted, bytes received.

use std::os::fd::AsFd;

use millrace_sys::{self as sys, Errno};

use super::descriptor::{Receiving, Role};
use super::queue::{Direction, Ready};
use super::{Sockets, Watch, completion, data_of};
use crate::limits::ACCEPTS_MAX;
use crate::{Buffer, Completion, Error, Event, Fd, Key, Token};

impl<W: Watch> Sockets<W> {
    pub(super) fn begin_receive(&mut self, fd: &Fd, max: usize, token: Token) {
        assert!((1..=Buffer::SIZE).contains(&max), "a receive fits one buffer");
        let (key, descriptor) = self.open(fd);
        assert!(matches!(descriptor.role, Role::Stream | Role::Datagram));
        descriptor.begin_receiving(Receiving::Receive { max: max as u32, token });
        if descriptor.readable {
            self.enqueue(key, Direction::Receiving);
        }
    }

    pub(super) fn begin_watch(&mut self, fd: &Fd, token: Token) {
        let (key, descriptor) = self.open(fd);
        assert_eq!(descriptor.role, Role::Stream, "streams are watched");
        descriptor.begin_receiving(Receiving::Watch { token });
        if descriptor.readable {
            self.enqueue(key, Direction::Receiving);
        }
    }

    pub(super) fn begin_accept(&mut self, listener: &Fd, token: Token) {
        let turn = self.turn;
        let (key, descriptor) = self.open(listener);
        assert_eq!(descriptor.role, Role::Listener);
        descriptor.begin_receiving(Receiving::Accept { token, turn, count: 0 });
        let fd = self.descriptors.get(key).expect("it was found").fd.as_fd();
        self.watch.add_listener(fd, data_of(key)).expect("a listener can be waited for");
        // Connections may wait already: the first try is now, and not at the next edge.
        self.enqueue(key, Direction::Receiving);
    }

    /// Ends the watch of a listener, so that others who wait for it get its edges.
    pub(super) fn disarm(&mut self, key: Key) {
        let Some(descriptor) = self.descriptors.get_mut(key) else { return };
        assert_eq!(descriptor.role, Role::Listener);
        if matches!(descriptor.receiving, Receiving::Accept { .. }) {
            descriptor.receiving = Receiving::Idle;
            self.watch.remove(descriptor.fd.as_fd(), data_of(key));
        }
    }

    /// Runs the operation of a descriptor that may find something.
    pub(super) fn run_receiving(&mut self, key: Key) -> Option<Completion> {
        let may_receive = !self.budget.is_exhausted();
        let gathers = self.gathers();
        let descriptor = self.descriptors.get_mut(key)?;
        descriptor.receive_queued = false;
        descriptor.parked = false;
        match descriptor.receiving {
            Receiving::Receive { .. } if !may_receive => {
                descriptor.receive_queued = true;
                descriptor.parked = true;
                self.counters.parked_receives += 1;
                self.queue.parked.push_back(Ready { key, direction: Direction::Receiving });
                None
            }
            Receiving::Receive { .. } if gathers && descriptor.role == Role::Stream => {
                descriptor.receive_queued = true;
                self.batch.receives.push(key);
                None
            }
            Receiving::Receive { max, token } => self.receive(key, max as usize, token),
            Receiving::Accept { token, turn, count } => {
                let count = if turn == self.turn { count } else { 0 };
                self.accept_one(key, token, count)
            }
            Receiving::Splice { pipe, max, token } => self.splice_in(key, pipe, max, token),
            Receiving::Watch { token } => {
                descriptor.receiving = Receiving::Idle;
                completion(token, Event::Readable)
            }
            Receiving::Idle | Receiving::Emptied { .. } => None,
        }
    }

    fn receive(&mut self, key: Key, max: usize, token: Token) -> Option<Completion> {
        let mut buffer = self.stock.pop().unwrap_or_default();
        let descriptor = self.descriptors.get_mut(key)?;
        let result = sys::receive(descriptor.fd.as_fd(), &mut buffer.block()[..max]);
        self.learn_received(key, max, &result);
        self.give_received(key, token, buffer, result)
    }

    /// Notes what a receive of up to `max` bytes says about those that follow.
    pub(super) fn learn_received(&mut self, key: Key, max: usize, result: &sys::Result<usize>) {
        self.counters.receives += 1;
        let Some(descriptor) = self.descriptors.get_mut(key) else { return };
        match result {
            Ok(count) => {
                // A stream that gave less than was asked for has no more, and its next bytes are
                // an edge (epoll(7), questions and answers, 9).
                let emptied = *count < max && descriptor.role == Role::Stream;
                descriptor.readable = !emptied || descriptor.to_be_drained;
            }
            Err(Errno::AGAIN) => {
                descriptor.readable = false;
                descriptor.to_be_drained = false;
                self.counters.would_block += 1;
            }
            Err(_) => {}
        }
    }

    /// The completion of a receive that is over, unless it found nothing.
    pub(super) fn give_received(
        &mut self,
        key: Key,
        token: Token,
        mut buffer: Buffer,
        result: sys::Result<usize>,
    ) -> Option<Completion> {
        let descriptor = self.descriptors.get_mut(key)?;
        let received = match result {
            // An empty datagram is neither bytes nor an end: the next one is what is asked for.
            Ok(0) if descriptor.role == Role::Datagram => {
                self.put_back(buffer);
                self.enqueue(key, Direction::Receiving);
                return None;
            }
            Err(Errno::AGAIN) => {
                self.put_back(buffer);
                return None;
            }
            // The send that failed took the socket's pending error with it (socket(7), SO_ERROR),
            // so that the break now reads like an end; and its completion may be queued behind
            // this.
            Ok(0) if descriptor.send_failed() => Err(Error::Reset),
            result => result.map_err(Error::of),
        };
        descriptor.receiving = Receiving::Idle;
        let received = match received {
            Ok(count) => {
                buffer.set_filled(count);
                self.lent += 1;
                self.moved += count;
                Ok(buffer)
            }
            Err(error) => {
                self.put_back(buffer);
                Err(error)
            }
        };
        completion(token, Event::Received(received))
    }

    /// What the stream has now, into memory of the caller's.
    pub(super) fn take_now(
        &mut self,
        from: &Fd,
        memory: &mut [u8],
    ) -> Option<Result<usize, Error>> {
        assert!(!memory.is_empty(), "a receive of nothing would look like an end");
        let (key, source) = self.open(from);
        assert_eq!(source.role, Role::Stream, "bytes are taken of a stream");
        assert!(matches!(source.receiving, Receiving::Idle), "one receiving operation at a time");
        if !source.readable {
            return None;
        }
        let result = sys::receive(source.fd.as_fd(), memory);
        self.learn_received(key, memory.len(), &result);
        match result {
            Err(Errno::AGAIN) => None,
            // As in `give_received`.
            Ok(0) if self.open(from).1.send_failed() => Some(Err(Error::Reset)),
            Ok(count) => {
                self.moved += count;
                Some(Ok(count))
            }
            Err(error) => Some(Err(Error::of(error))),
        }
    }

    /// Accepts one connection; the listener then queues behind everything else that is ready.
    fn accept_one(&mut self, key: Key, token: Token, count: u32) -> Option<Completion> {
        let turn = self.turn;
        let descriptor = self.descriptors.get_mut(key)?;
        if count >= ACCEPTS_MAX {
            descriptor.receive_queued = true;
            self.queue.deferred.push(Ready { key, direction: Direction::Receiving });
            return None;
        }
        let accepted = sys::accept(descriptor.fd.as_fd());
        descriptor.receiving = Receiving::Accept { token, turn, count: count + 1 };
        let result = match accepted {
            Ok((connection, peer)) => self.register_ready(connection).map(|fd| (fd, peer)),
            Err(Errno::AGAIN) => {
                descriptor.readable = false;
                self.counters.would_block += 1;
                return None;
            }
            Err(error) if died_waiting(error) => {
                self.enqueue(key, Direction::Receiving);
                return None;
            }
            Err(error) => Err(Error::of(error)),
        };
        if result.is_ok() {
            self.enqueue(key, Direction::Receiving);
        } else {
            self.disarm(key);
        }
        completion(token, Event::Accepted(result))
    }
}

/// Whether accept(2) failed because of the one connection that it took out of the backlog: Linux
/// passes errors that are pending on the new socket ("Error handling" there).
fn died_waiting(error: Errno) -> bool {
    [
        Errno::CONNABORTED,
        Errno::NETDOWN,
        Errno::PROTO,
        Errno::NOPROTOOPT,
        Errno::HOSTDOWN,
        Errno::NONET,
        Errno::HOSTUNREACH,
        Errno::NETUNREACH,
        Errno::TIMEDOUT,
        Errno::PERM,
    ]
    .contains(&error)
}
