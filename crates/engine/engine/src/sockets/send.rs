//! The sending direction: connections opened, bytes sent.

use std::os::fd::AsFd;

use millrace_sys::{self as sys, Errno};

use super::descriptor::{Descriptor, Receiving, Role, Sending};
use super::queue::Direction;
use super::{Counters, Sockets, Watch, completion};
use crate::limits::{BATCH_MAX, BATCHED_SEND_MAX};
use crate::{Address, Completion, Error, Event, Fd, Held, Key, Token};

impl<W: Watch> Sockets<W> {
    /// What is wrong with the address itself, or with us, is said at once; what is wrong with the
    /// way to it or with the peer comes as a completion, whether it is known already or not.
    pub(super) fn begin_connect(&mut self, address: &Address, token: Token) -> Result<Fd, Error> {
        let (opened, role) = match address {
            Address::Tcp(address) => (sys::connect_tcp(*address), Role::Stream),
            Address::Udp(address) => (sys::connect_udp(*address), Role::Datagram),
            Address::Unix(path) => (sys::connect_unix(path), Role::Stream),
        };
        let (fd, connected) = opened.map_err(Error::of)?;
        let mut descriptor = Descriptor::new(fd, role);
        descriptor.sending = match connected {
            Ok(false) => Sending::Connect { token },
            Ok(true) => Sending::Connected { token, result: Ok(()) },
            // A Unix listener whose backlog is full: nothing tells when it has room again.
            Err(Errno::AGAIN) => Sending::Connected { token, result: Err(Error::Refused) },
            Err(error) => Sending::Connected { token, result: Err(Error::of(error)) },
        };
        descriptor.writable = connected == Ok(true);
        let ended = matches!(descriptor.sending, Sending::Connected { .. });
        // Registered only now: a socket that is not even connecting would be reported as ended.
        let fd = self.register(descriptor)?;
        if ended {
            let (key, _) = self.open(&fd);
            self.enqueue(key, Direction::Sending);
        }
        Ok(fd)
    }

    pub(super) fn begin_send(&mut self, fd: &Fd, parts: &[&[u8]], token: Token) {
        let total = parts.iter().map(|part| part.len()).sum();
        let key = self.open(fd).0;
        let gathers = self.gathers() && self.batch.sends.len() < BATCH_MAX;
        let Some(descriptor) = self.descriptors.get_mut(key) else { return };
        assert!(matches!(descriptor.role, Role::Stream | Role::Datagram));
        descriptor.begin_sending(Sending::Idle);
        if gathers
            && descriptor.writable
            && descriptor.role == Role::Stream
            && (1..=BATCHED_SEND_MAX).contains(&total)
        {
            descriptor.sending = Sending::Batched { token, length: total as u32 };
            return self.batch.add_send(key, parts);
        }
        let sent = send_parts(descriptor, parts, false, &mut self.counters);
        let taken = sent.unwrap_or(0);
        self.moved += taken;
        self.counters.bytes_sent += taken as u64;
        if sent.is_ok() && taken < total {
            descriptor.lack_room(&mut self.watch);
            let rest = Box::new(hold(&self.budget, parts, taken));
            descriptor.sending = Sending::Send { token, rest };
            self.counters.short_sends += 1;
            return;
        }
        descriptor.sending = Sending::Sent { token, result: ended(sent) };
        self.enqueue(key, Direction::Sending);
    }

    /// Gives what ended already, or goes on with the operation of a descriptor that may have room.
    pub(super) fn run_sending(&mut self, key: Key) -> Option<Completion> {
        let descriptor = self.descriptors.get_mut(key)?;
        descriptor.send_queued = false;
        match descriptor.sending {
            Sending::Sent { token, result } => {
                descriptor.sending = Sending::Idle;
                completion(token, Event::Sent(result))
            }
            Sending::Spliced { token, result } => {
                descriptor.sending = Sending::Idle;
                completion(token, Event::Spliced(result.map(|count| count as usize)))
            }
            Sending::Connected { token, result } => {
                descriptor.sending = Sending::Idle;
                completion(token, Event::Connected(result))
            }
            Sending::Connect { token } => {
                let result = sys::take_error(descriptor.fd.as_fd()).map_err(Error::of);
                descriptor.sending = Sending::Idle;
                descriptor.writable = result.is_ok();
                completion(token, Event::Connected(result))
            }
            Sending::Send { token, .. } => {
                let result = self.send_rest(key, false)?;
                completion(token, Event::Sent(result))
            }
            Sending::SendShared { .. } => self.send_shared_rest(key),
            Sending::SpliceAfter { pipe, token, ref before } => {
                let max = before.max;
                match self.send_rest(key, true)? {
                    Ok(()) => {
                        self.descriptors.get_mut(key)?.sending =
                            Sending::Splice { pipe, max, token };
                        self.splice_out(key, pipe, max, token)
                    }
                    Err(error) => {
                        self.at(pipe).receiving = Receiving::Idle;
                        completion(token, Event::Spliced(Err(error)))
                    }
                }
            }
            Sending::Splice { pipe, max, token } => self.splice_out(key, pipe, max, token),
            Sending::Idle | Sending::Filled { .. } | Sending::Batched { .. } => None,
        }
    }

    /// Sends what is held; nothing is outstanding any more when it gives how that ended. `more`:
    /// the bytes of a pipe follow at once.
    fn send_rest(&mut self, key: Key, more: bool) -> Option<Result<(), Error>> {
        let descriptor = self.descriptors.get_mut(key)?;
        let rest = match &mut descriptor.sending {
            Sending::Send { rest, .. } => &mut **rest,
            Sending::SpliceAfter { before, .. } => &mut before.rest,
            _ => return None,
        };
        self.counters.sends += 1;
        let result = match sys::send(descriptor.fd.as_fd(), &[&*rest], more) {
            Ok(taken) => {
                self.moved += taken;
                self.counters.bytes_sent += taken as u64;
                rest.consume(taken);
                if !rest.is_empty() {
                    descriptor.lack_room(&mut self.watch);
                    return None;
                }
                Ok(())
            }
            Err(Errno::AGAIN) => {
                descriptor.lack_room(&mut self.watch);
                self.counters.would_block += 1;
                return None;
            }
            Err(error) => Err(Error::of(error)),
        };
        descriptor.sending = Sending::Idle;
        Some(result)
    }

    pub(super) fn bytes_unsent(&self, fd: &Fd) -> usize {
        match self.look(fd).map(|descriptor| &descriptor.sending) {
            Some(Sending::Send { rest, .. }) => rest.len(),
            Some(Sending::Batched { length, .. }) => *length as usize,
            Some(Sending::SpliceAfter { before, .. }) => before.rest.len(),
            Some(Sending::SendShared { rest, .. }) => rest.len(),
            _ => 0,
        }
    }
}

impl<W: Watch> Sockets<W> {
    /// Sends what a turn has gathered for the descriptor at `key`, which is about to be closed:
    /// what was asked for before is done before.
    pub(super) fn send_batched_now(&mut self, key: Key) {
        let Some(index) = self.batch.sends.iter().position(|(of, _)| *of == key) else { return };
        let (_, bytes) = self.batch.sends.remove(index);
        if let Some(descriptor) = self.descriptors.get_mut(key) {
            self.counters.sends += 1;
            let _ = sys::send(descriptor.fd.as_fd(), &[&bytes], false);
            descriptor.sending = Sending::Idle;
        }
        self.batch.spare.push(bytes);
    }
}

/// Sends as much of `parts` as the kernel takes, and gives how many bytes: none while there is no
/// room. A stream that takes less than it is given is full, and its next room is an edge. `more`:
/// something follows the parts at once.
pub(super) fn send_parts(
    descriptor: &Descriptor,
    parts: &[&[u8]],
    more: bool,
    counters: &mut Counters,
) -> Result<usize, Errno> {
    // Often there is no head: that is no call.
    if !descriptor.writable || parts.iter().all(|part| part.is_empty()) {
        return Ok(0);
    }
    let mut groups = parts.chunks(sys::PARTS_MAX).peekable();
    let mut taken = 0;
    while let Some(group) = groups.next() {
        let more = more || groups.peek().is_some();
        assert!(!more || descriptor.role == Role::Stream, "a datagram is sent by one call");
        counters.sends += 1;
        match sys::send(descriptor.fd.as_fd(), group, more) {
            Ok(count) => {
                taken += count;
                if count < group.iter().map(|part| part.len()).sum() {
                    break;
                }
            }
            Err(Errno::AGAIN) => {
                counters.would_block += 1;
                break;
            }
            Err(error) => return Err(error),
        }
    }
    Ok(taken)
}

/// How a send ended, whatever it gave.
pub(super) fn ended<T>(result: Result<T, Errno>) -> Result<(), Error> {
    result.map(|_| ()).map_err(Error::of)
}

/// Copies what comes after the first `taken` bytes of `parts`.
pub(super) fn hold(budget: &crate::Budget, parts: &[&[u8]], mut taken: usize) -> Held {
    let mut rests = Vec::with_capacity(parts.len());
    for part in parts {
        let skipped = taken.min(part.len());
        taken -= skipped;
        rests.push(&part[skipped..]);
    }
    Held::copy(budget, &rests)
}
