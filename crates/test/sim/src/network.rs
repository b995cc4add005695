//! Events between sockets: connecting, segments, ends, resets, datagrams.

use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use millrace_engine::{Address, Error};

use crate::connection::Connection;
use crate::descriptor::{Object, OperationDirection, Owner};
use crate::kernel::{Kernel, KernelEvent};

/// The time for which a real kernel tries to connect by default (tcp(7), tcp_syn_retries).
const CONNECT_TIMEOUT: Duration = Duration::from_secs(127);
/// The time after which a lost SYN is retransmitted (RFC 6298 section 2.1).
const SYN_RETRANSMIT_DELAY: Duration = Duration::from_secs(1);
/// The most datagrams in a socket. Further ones are dropped.
const INBOX_MAX: usize = 64;

impl Kernel {
    /// Opens a listener. Port 0 is replaced by a free one. Several listeners may share an address,
    /// as with SO_REUSEPORT; each connection goes to one of them.
    pub(crate) fn listen(&mut self, owner: Owner, address: &Address) -> (u32, Address) {
        let address = match address {
            Address::Tcp(address) if address.port() == 0 => {
                Address::Tcp(SocketAddr::new(address.ip(), self.free_port()))
            }
            other => other.clone(),
        };
        let object = Object::Listener { address: address.clone(), backlog: VecDeque::new() };
        (self.open(owner, object), address)
    }

    /// Begins to connect. The outcome in the descriptor's object is not valid before
    /// [`Connection::established`] is set.
    pub(crate) fn connect(
        &mut self,
        owner: Owner,
        address: &Address,
        from: Option<SocketAddr>,
    ) -> u32 {
        if let Address::Udp(peer) = address {
            return self.open_datagram(owner, None, Some(*peer));
        }
        let mut connection =
            Connection { unix: matches!(address, Address::Unix(_)), ..Connection::default() };
        if let Address::Tcp(to) = address {
            let source = SocketAddr::new(loopback(to.ip()), self.free_port());
            connection.sides[0].address = Some(from.unwrap_or(source));
            connection.sides[1].address = Some(*to);
        }
        if self.random.chance(self.plan.streams.reset) {
            connection.reset_after = Some(self.random.length(200) as u64);
        }
        if self.random.chance(self.plan.vanish) {
            connection.vanish_after = Some(self.random.length(50) as u64);
        }
        for side in &mut connection.sides {
            if self.random.chance(self.plan.streams.stall) {
                side.out.stall_after = Some(self.random.length(10_000) as u64);
            }
        }
        let index = self.connections.len();
        let number = self.open(owner, Object::Stream { connection: index, side: 0, outcome: None });
        connection.sides[0].descriptor = Some(number);
        self.connections.push(connection);
        let mut delay = self.segment_delay();
        if owner != Owner::Actor && self.random.chance(self.plan.connect_fault) {
            let fault = self.random.choose(&[
                Error::Refused,
                Error::Unreachable,
                Error::TimedOut,
                Error::OutOfMemory,
            ]);
            self.set_outcome(number, Some(Err(fault)));
            self.count_trouble("failed connect");
            delay = if fault == Error::TimedOut { CONNECT_TIMEOUT } else { delay };
        }
        if owner != Owner::Actor && self.random.chance(self.plan.syn_loss) {
            delay += SYN_RETRANSMIT_DELAY;
            self.count_trouble("late connect");
        }
        self.name_owner(index, 0, owner);
        let wanted = address.clone();
        self.trace_note("connect", &format!("fd={number} to {wanted} for {owner:?}"));
        self.targets.insert(index, wanted);
        self.schedule_after(delay, KernelEvent::Connect { connection: index });
        number
    }

    /// Ends an attempt to connect, at a listener or with an error.
    pub(crate) fn connect_ends(&mut self, index: usize) {
        let target = self.targets.remove(&index).expect("set when connecting began");
        let Some(number) = self.connections[index].sides[0].descriptor else {
            return;
        };
        let fault = match &self.descriptor(number).object {
            Object::Stream { outcome, .. } => *outcome,
            _ => None,
        };
        let outcome = fault.unwrap_or_else(|| self.arrive(index, &target));
        self.set_outcome(number, Some(outcome));
        if let Err(error) = outcome {
            self.connections[index].sides[0].reset = true;
            self.log_event(index, 0, &format!("cannot connect ({error}) to"), &[]);
            self.trace_note("not connected", &format!("fd={number}: {error}"));
        } else {
            self.log_event(index, 0, "is connected to", &[]);
            self.record("connected", number, 0, None);
        }
        self.connections[index].established = true;
        self.notify(number, OperationDirection::Send);
        self.notify(number, OperationDirection::Receive);
    }

    /// Puts a connection into the backlog of one of its target's listeners.
    fn arrive(&mut self, index: usize, target: &Address) -> Result<(), Error> {
        let listeners: Vec<u32> = self
            .descriptors
            .iter()
            .filter(|(_, descriptor)| match &descriptor.object {
                Object::Listener { address, .. } => serves(address, target),
                _ => false,
            })
            .map(|(number, _)| *number)
            .collect();
        if listeners.is_empty() {
            return Err(Error::Refused);
        }
        // SO_REUSEPORT distributes connections by a hash of their addresses, not by load.
        let skewed = listeners.len() > 1 && self.random.chance(self.plan.skew);
        let listener = if skewed { listeners[0] } else { self.random.choose(&listeners) };
        if skewed {
            self.count_trouble("skewed accepts");
        }
        if let Object::Listener { backlog, .. } = &mut self.descriptor(listener).object {
            backlog.push_back(index);
        }
        self.notify(listener, OperationDirection::Receive);
        Ok(())
    }

    /// Takes the oldest connection from a listener's backlog.
    pub(crate) fn take_from_backlog(
        &mut self,
        listener: u32,
        owner: Owner,
    ) -> Option<(u32, Option<SocketAddr>)> {
        let Object::Listener { backlog, .. } = &mut self.descriptor(listener).object else {
            panic!("accept on descriptor {listener}, which is no listener");
        };
        let connection = backlog.pop_front()?;
        let number =
            self.open(owner, Object::Stream { connection, side: 1, outcome: Some(Ok(())) });
        self.connections[connection].sides[1].descriptor = Some(number);
        let peer = self.connections[connection].sides[0].address;
        self.name_owner(connection, 1, owner);
        self.log_event(connection, 1, "accepts", &[]);
        self.record("accepted", number, connection, None);
        Some((number, peer))
    }

    /// Takes bytes from a sender: as many as there is room for, or fewer.
    pub(crate) fn write(&mut self, number: u32, bytes: &[u8]) -> Result<usize, Error> {
        let (index, side) = self.stream_of(number);
        self.connections[index].take_write_error(side)?;
        let out = &self.connections[index].sides[side].out;
        let capacity = self.plan.streams.capacity(self.plan.streams.send_capacity, out.carried);
        let mut count = capacity.saturating_sub(out.sent.len()).min(bytes.len());
        if self.random.chance(self.plan.short) {
            count = self.random.below(count as u64 + 1) as usize;
        }
        self.connections[index].sides[side].out.sent.extend(&bytes[..count]);
        if count > 0 {
            self.log_event(index, side, "→", &bytes[..count]);
            self.trace.carry(&bytes[..count]);
            self.secured.check(index, side, &bytes[..count]);
            self.record_engine_output(number, index, &bytes[..count]);
        }
        self.send_segment(index, side);
        Ok(count)
    }

    fn record_engine_output(&mut self, number: u32, index: usize, bytes: &[u8]) {
        let descriptor = &self.descriptors[&number];
        let opened = matches!(descriptor.object, Object::Stream { side: 0, .. });
        if let (Some(output), true) = (&mut self.engine_output, opened)
            && descriptor.owner != Owner::Actor
        {
            output.entry(index).or_default().extend_from_slice(bytes);
        }
    }

    /// Returns whether the send buffer has room, or the next write reports an error of the
    /// connection. A short write may still take nothing.
    pub(crate) fn is_writable(&self, index: usize, side: usize) -> bool {
        let own = &self.connections[index].sides[side];
        let capacity = self.plan.streams.capacity(self.plan.streams.send_capacity, own.out.carried);
        own.error.is_some() || own.reset || own.out.sent.len() < capacity
    }

    /// Passes up to `max` arrived bytes to `take`, in up to two parts, and removes them.
    pub(crate) fn read(
        &mut self,
        number: u32,
        max: usize,
        take: &mut dyn FnMut(&[u8]),
    ) -> Option<Result<usize, Error>> {
        let (index, side) = self.stream_of(number);
        let mut readable = self.connections[index].take_read_result(side);
        if let Some(Ok(arrived @ 1..)) = &mut readable {
            *arrived = (*arrived).min(max);
            if self.random.chance(self.plan.short) {
                *arrived = self.random.length(*arrived);
            }
            move_front(&mut self.connections[index].incoming(side).arrived, *arrived, take);
            self.send_segment(index, 1 - side);
        }
        readable
    }

    /// Ends the stream that a side sends. The peer reads the end after all bytes.
    pub(crate) fn finish(&mut self, index: usize, side: usize) {
        self.log_event(index, side, "ends its stream to", &[]);
        self.end_stream(index, side);
    }

    fn end_stream(&mut self, index: usize, side: usize) {
        self.connections[index].sides[side].out.finished = true;
        self.send_segment(index, side);
    }

    /// Closes a side. With unread bytes, the close of a TCP connection becomes a reset (RFC 2525
    /// section 2.17, and Linux).
    pub(crate) fn close_side(&mut self, index: usize, side: usize, abort: bool) {
        let connection = &mut self.connections[index];
        let unread = !connection.incoming(side).arrived.is_empty();
        let resets = (abort || unread) && !connection.unix;
        self.log_event(
            index,
            side,
            if resets { "resets" } else { "closes its connection to" },
            &[],
        );
        let connection = &mut self.connections[index];
        let own = &mut connection.sides[side];
        (own.closed, own.descriptor) = (true, None);
        if resets {
            connection.sides[side].reset = true;
            connection.sides[side].out.sent.clear();
            self.send_reset(index, 1 - side);
        } else {
            self.end_stream(index, side);
        }
    }

    /// Draws the delay of the next segment.
    fn segment_delay(&mut self) -> Duration {
        let delay = self.plan.streams.segment_delay(&mut self.random);
        if delay > Duration::from_nanos(self.plan.streams.delay_ns) {
            self.count_trouble("late segment");
        }
        delay
    }

    /// Sends a reset to `side`.
    fn send_reset(&mut self, index: usize, side: usize) {
        if self.connections[index].vanished.is_some() {
            return;
        }
        let delay = self.segment_delay();
        self.schedule_after(delay, KernelEvent::Reset { connection: index, side });
    }

    /// Handles the arrival of a reset at `side`.
    pub(crate) fn reset_arrives(&mut self, index: usize, side: usize) {
        self.log_event(index, side, "receives a reset from", &[]);
        self.connections[index].receive_reset(side);
        if let Some(number) = self.connections[index].sides[side].descriptor {
            self.record("reset", number, 0, None);
            self.notify(number, OperationDirection::Receive);
            self.notify(number, OperationDirection::Send);
        }
    }

    /// Sends the next segment of `side`: bytes if there is room for them, or the end of the stream.
    /// Does nothing while another segment is in flight.
    fn send_segment(&mut self, index: usize, side: usize) {
        if self.connections[index].vanished.is_some() {
            return self.resend(index);
        }
        let receiver = &self.connections[index].sides[1 - side];
        let discards = receiver.closed || receiver.reset;
        let own = &mut self.connections[index].sides[side];
        if own.reset {
            return;
        }
        let out = &mut own.out;
        let capacity = self.plan.streams.capacity(self.plan.streams.receive_capacity, out.carried);
        let room = discards || out.arrived.len() < capacity;
        let something = !out.sent.is_empty() && room;
        let end = out.sent.is_empty() && out.finished && !out.finish_arrived;
        if out.moving || !(something || end) {
            return;
        }
        out.moving = true;
        let mut delay = self.segment_delay();
        let out = &mut self.connections[index].sides[side].out;
        if out.stall_after.is_some_and(|after| out.carried >= after) {
            out.stall_after = None;
            delay += Duration::from_millis(self.random.between(1, 300_000));
            self.count_trouble("stall");
        }
        self.schedule_after(delay, KernelEvent::Segment { connection: index, side });
    }

    /// Handles the arrival of the segment from `side` that was in flight.
    pub(crate) fn segment_arrives(&mut self, index: usize, side: usize) {
        if self.connections[index].vanished.is_some() {
            return;
        }
        let receiver = &self.connections[index].sides[1 - side];
        let receiver_was_reset = receiver.reset;
        let discards = receiver.closed || receiver_was_reset;
        let own = &mut self.connections[index].sides[side];
        let out = &mut own.out;
        out.moving = false;
        if own.reset {
            return;
        }
        if discards && !out.sent.is_empty() {
            // The bytes are for a closed socket. The sender is reset, and what the closed side had
            // not sent is lost.
            out.sent.clear();
            let receiver = &mut self.connections[index].sides[1 - side];
            receiver.reset = true;
            receiver.out.sent.clear();
            self.send_reset(index, side);
            return;
        }
        if receiver_was_reset {
            // After a reset, an end must not arrive either: the stream would look complete.
            return;
        }
        let capacity = self.plan.streams.capacity(self.plan.streams.receive_capacity, out.carried);
        let room = capacity.saturating_sub(out.arrived.len());
        let segment = self.plan.streams.segment_max(out.carried).min(room).min(out.sent.len());
        let mut count = segment;
        if segment > 1 && self.random.chance(self.plan.short) {
            count = self.random.length(segment);
        }
        move_front(&mut out.sent, count, &mut |bytes| out.arrived.extend(bytes));
        out.carried += count as u64;
        let joined = count == 0 || self.random.chance(500);
        if out.finished && out.sent.is_empty() && joined {
            out.finish_arrived = true;
        }
        let ends = out.finish_arrived;
        let numbers = [side, 1 - side].map(|side| self.connections[index].sides[side].descriptor);
        if let Some(sender) = numbers[0] {
            self.notify(sender, OperationDirection::Send);
        }
        if let Some(receiver) = numbers[1] {
            self.record(if ends { "end arrives" } else { "arrives" }, receiver, count, None);
            self.notify(receiver, OperationDirection::Receive);
        }
        self.send_segment(index, side);
        self.maybe_break(index);
        self.maybe_vanish(index);
    }

    /// Counts a segment, and resets the connection if the seed planned that for now.
    fn maybe_break(&mut self, index: usize) {
        match &mut self.connections[index].reset_after {
            Some(0) => {
                self.connections[index].reset_after = None;
                self.trace_note("broken", &format!("connection {index}"));
                self.count_trouble("reset");
                let first = self.random.below(2) as usize;
                self.reset_arrives(index, first);
                self.send_reset(index, 1 - first);
            }
            Some(after) => *after -= 1,
            None => {}
        }
    }

    /// Opens a datagram socket, bound to `local` or to a free port.
    pub(crate) fn open_datagram(
        &mut self,
        owner: Owner,
        local: Option<SocketAddr>,
        peer: Option<SocketAddr>,
    ) -> u32 {
        let ip = loopback(peer.map_or(IpAddr::V4(Ipv4Addr::LOCALHOST), |peer| peer.ip()));
        let local = local.unwrap_or_else(|| SocketAddr::new(ip, self.free_port()));
        self.open(owner, Object::Datagram { local, peer, inbox: VecDeque::new(), error: None })
    }

    /// Sends one datagram, which may be lost.
    pub(crate) fn send_datagram(&mut self, from: SocketAddr, to: SocketAddr, bytes: &[u8]) {
        if self.random.chance(self.plan.datagram_loss) {
            self.count_trouble("lost datagram");
            self.trace_note(
                "lost",
                &format!("datagram of {} bytes from {from} to {to}", bytes.len()),
            );
            return;
        }
        let delay = self.segment_delay();
        self.schedule_after(delay, KernelEvent::Datagram { from, to, bytes: bytes.into() });
    }

    /// Handles the arrival of a datagram. If there is no receiver, a connected sender gets an
    /// error, as by ICMP.
    pub(crate) fn datagram_arrives(&mut self, from: SocketAddr, to: SocketAddr, bytes: Box<[u8]>) {
        let find = |kernel: &Self, at: SocketAddr, other: SocketAddr| {
            kernel.descriptors.iter().find_map(|(number, descriptor)| match &descriptor.object {
                Object::Datagram { local, peer, .. } => {
                    (*local == at && peer.is_none_or(|peer| peer == other)).then_some(*number)
                }
                _ => None,
            })
        };
        let (number, arrived) = match (find(self, to, from), find(self, from, to)) {
            (Some(receiver), _) => (receiver, true),
            (None, Some(sender)) => (sender, false),
            (None, None) => return,
        };
        let length = bytes.len();
        if let Object::Datagram { inbox, error, .. } = &mut self.descriptor(number).object {
            if !arrived {
                *error = Some(Error::Refused);
            } else if inbox.len() < INBOX_MAX {
                inbox.push_back((from, bytes));
            }
        }
        self.record(if arrived { "datagram" } else { "no receiver" }, number, length, None);
        self.notify(number, OperationDirection::Receive);
    }

    /// Returns the connection and side of a stream's descriptor.
    ///
    /// # Panics
    /// Panics if the descriptor is not a stream, which is a bug of the caller.
    pub(crate) fn stream_of(&mut self, number: u32) -> (usize, usize) {
        match self.descriptor(number).object {
            Object::Stream { connection, side, .. } => (connection, side),
            _ => panic!("descriptor {number} is no connection"),
        }
    }

    fn set_outcome(&mut self, number: u32, result: Option<Result<(), Error>>) {
        if let Object::Stream { outcome, .. } = &mut self.descriptor(number).object {
            *outcome = result;
        }
    }

    fn free_port(&mut self) -> u16 {
        self.port = self.port.checked_add(1).unwrap_or(20_000);
        self.port
    }
}

/// Returns whether a listener at `address` accepts a connection to `target`.
fn serves(address: &Address, target: &Address) -> bool {
    match (address, target) {
        (Address::Tcp(address), Address::Tcp(target)) => {
            let any = address.ip().is_unspecified() && address.is_ipv4() == target.is_ipv4();
            address.port() == target.port() && (any || address.ip() == target.ip())
        }
        _ => address == target,
    }
}

fn loopback(family: IpAddr) -> IpAddr {
    match family {
        IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::LOCALHOST),
        IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::LOCALHOST),
    }
}

/// Passes the first `count` bytes to `take` in up to two parts, and removes them. Whole parts cost
/// far less than single bytes.
fn move_front(bytes: &mut VecDeque<u8>, count: usize, take: &mut dyn FnMut(&[u8])) {
    let (first, second) = bytes.as_slices();
    let first = &first[..first.len().min(count)];
    take(first);
    take(&second[..count - first.len()]);
    bytes.drain(..count);
}
