//! Channels: aggregates that pass between two processes, in order.

mod error;
mod options;
mod page;
mod receiving;
mod sending;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use millrace_sys::{Errno, PacketEvents};

pub use crate::channel::error::{ChannelError, PeerFault};
pub use crate::channel::options::{ChannelOptions, Received};

use crate::aggregate::Aggregate;
use crate::channel::page::{OwnPage, PeerPage, RingSize, WaitFor, Waiting};
use crate::channel::receiving::{Content, Next, Packet, Receiving};
use crate::channel::sending::{Sending, SharedPool};
use crate::error::Error;
use crate::limits::{BYTES_PER_PACKET_MAX, PACKETS_PER_CALL, RING_BYTES_MAX, RING_FRAMES_MAX};
use crate::packet::{FRAME_BYTES, Frame, FrameKind};
use crate::pool::Pool;
use crate::pool::joined::JoinedPool;
use crate::pool::ledger::{PeerLedger, ledger_words};
use crate::pool::members::{MemberState, Peer};
use crate::pool::words::{PeerWords, WORD_BYTES};

/// A connection to another process, which passes aggregates in both directions without copying
/// them where that is possible:
///
/// * Slices of a [`Pool`] whose member the other process is are passed by reference.
/// * Slices of sealed files ([`SealedMemory`](crate::SealedMemory)) are passed by their descriptor,
///   which travels once.
/// * Others are copied. They are never readable in place, because the memory that they are in may
///   contain other bytes.
///
/// Each direction keeps its order, and has room for a limited number of parts: a sender waits. The
/// other process may be hostile. Calls return an error for each of its mistakes, and no received
/// byte changes later, except in a pool that was joined.
#[derive(Debug)]
pub struct Channel {
    options: ChannelOptions,
    peer: Arc<Peer>,
    own: OwnPage,
    /// Set when the peer's first packet has arrived.
    other: Option<PeerPage>,
    sending: Sending,
    receiving: Receiving,
    /// The number of received frames in `own`.
    passed: u64,
    /// The other process has closed the channel, or has ended. There may be more to receive.
    is_gone: bool,
    /// The other side makes the socket readable for frames in its ring, and for room in this one.
    waits_by_packet: bool,
    /// The last wait of the other side that was ended, for frames and for room.
    woken: [Option<u64>; 2],
    /// The last call that read packets has left some.
    has_more_packets: bool,
    /// The other side is woken only by [`Channel::wake`].
    delays_wakes: bool,
    /// Whether the other side has to be woken for frames and for room.
    delayed: [bool; 2],
    /// The calls that send or receive an aggregate, for [`Channel::look_at_socket`].
    calls: usize,
    error: Option<ChannelError>,
    /// The last pool of the other process that was not joined.
    invitation: Option<Frame>,
    /// The room for one packet.
    packet: Vec<u8>,
    /// The generation of the process that uses this side. A child of fork(2) only closes its
    /// descriptors.
    process: u64,
}

/// The longest wait by futex(2), which does not notice that the other process has ended.
const WAIT_MAX: Duration = Duration::from_millis(100);

impl Channel {
    /// Begins a channel on a Unix packet socket (SOCK_SEQPACKET), whose other end belongs to the
    /// other process. Returns without waiting for it.
    ///
    /// # Errors
    /// [`ChannelError::Memory`], [`ChannelError::Kernel`].
    ///
    /// # Panics
    /// If `ring_frames` is above [`RING_FRAMES_MAX`], or `ring_bytes` above [`RING_BYTES_MAX`].
    pub fn new(socket: OwnedFd, options: ChannelOptions) -> Result<Self, ChannelError> {
        assert!(options.ring_frames <= RING_FRAMES_MAX && options.ring_bytes <= RING_BYTES_MAX);
        let ring = match options.ring_frames {
            0 => RingSize { frames: 0, words: 0 },
            frames => RingSize { frames, words: options.ring_bytes / WORD_BYTES },
        };
        let own = OwnPage::new(ring)?;
        let process = millrace_sys::open_process(std::process::id())
            .map_err(|error| ChannelError::Kernel("pidfd_open", error))?;
        let (first_unit, number) = (ring.frames as u32, ring.words as u32);
        let hello = Frame { first_unit, number, ..Frame::new(FrameKind::Hello) };
        let files = [own.words.file(), process.as_fd()];
        millrace_sys::send_packet(socket.as_fd(), &[&hello.to_bytes()], &files)
            .map_err(|error| ChannelError::Kernel("sendmsg", error))?;
        Ok(Self {
            options,
            peer: Arc::new(Peer { socket, process: OnceLock::new() }),
            own,
            other: None,
            sending: Sending::default(),
            receiving: Receiving::default(),
            passed: 0,
            is_gone: false,
            waits_by_packet: false,
            woken: [None; 2],
            has_more_packets: false,
            delays_wakes: false,
            delayed: [false; 2],
            calls: 0,
            error: None,
            invitation: None,
            packet: vec![0; FRAME_BYTES + BYTES_PER_PACKET_MAX],
            process: millrace_sys::process_generation(),
        })
    }

    /// Returns the socket, which is readable when the other process has sent something. A ring
    /// makes it readable only after [`Channel::prepare_to_wait`].
    pub fn socket(&self) -> BorrowedFd<'_> {
        self.peer.socket.as_fd()
    }

    /// Returns whether the other side has begun. Its first packet is read if it has arrived.
    ///
    /// # Errors
    /// As [`Channel::send`].
    pub(crate) fn find_peer(&mut self) -> Result<bool, ChannelError> {
        if self.other.is_none() {
            self.read_packets()?;
        }
        Ok(self.other.is_some())
    }

    /// Returns whether the other process has ended. It is not known before its first packet.
    pub(crate) fn peer_has_ended(&self) -> bool {
        self.peer.has_ended()
    }

    /// Returns the options. The slab may be replaced.
    pub(crate) fn options(&mut self) -> &mut ChannelOptions {
        &mut self.options
    }

    /// Joins the pools of the other process from now on, also the last one that it has made before.
    ///
    /// # Errors
    /// As [`Channel::receive`].
    pub(crate) fn join_pools(&mut self) -> Result<(), ChannelError> {
        self.options.joins_pools = true;
        let joined = self.invitation.take().map_or(Ok(()), |frame| self.join(frame));
        self.check(joined)
    }

    /// Publishes a number for the other side, whose meaning belongs to the users of the channel.
    pub(crate) fn set_stream(&self, number: u64) {
        self.own.set_stream(number);
    }

    /// Returns the number that the other side has published; 0 before.
    pub(crate) fn stream(&self) -> u64 {
        self.other.as_ref().map_or(0, PeerPage::stream)
    }

    /// Publishes how many bytes of aggregates this side has returned to its program.
    pub(crate) fn set_returned(&self, bytes: u64) {
        self.own.set_returned(bytes);
    }

    /// Returns the number of bytes that the other side has returned to its program, as it says.
    pub(crate) fn returned(&self) -> u64 {
        self.other.as_ref().map_or(0, PeerPage::returned)
    }

    /// Returns whether the other side has announced a frame in its ring, or packets were left in
    /// the socket.
    pub(crate) fn has_frame(&self) -> bool {
        self.receiving.has_frame(self.other.as_ref()) || self.has_more_packets
    }

    /// Returns how many of the first bytes of an aggregate have room now, after a text of
    /// `text_bytes`.
    ///
    /// # Errors
    /// As [`Channel::send`].
    pub(crate) fn room_for(
        &mut self,
        text_bytes: usize,
        aggregate: &Aggregate,
    ) -> Result<u64, ChannelError> {
        Ok(match self.check_room()? {
            true => self.sending.room_for(&self.own, text_bytes, aggregate),
            false => 0,
        })
    }

    /// Returns whether nothing of an aggregate waits for room.
    pub(crate) fn is_flushed(&self) -> bool {
        self.sending.is_flushed()
    }

    /// Returns the number of files of pools of the other process that were mapped here.
    pub fn maps(&self) -> u64 {
        self.receiving.pools.iter().map(|(_, pool)| pool.maps()).sum()
    }

    /// Sends an aggregate, and waits until there is room for it.
    ///
    /// # Errors
    /// [`ChannelError::Closed`] if the other process has ended or closed the channel.
    pub fn send(&mut self, aggregate: &Aggregate) -> Result<(), ChannelError> {
        self.send_after_text(|_| {}, aggregate)
    }

    /// Sends an aggregate like [`Channel::send`], after text as in
    /// [`Channel::try_send_after_text`].
    ///
    /// # Errors
    /// As [`Channel::send`].
    pub fn send_after_text(
        &mut self,
        write: impl Fn(&mut Vec<u8>),
        aggregate: &Aggregate,
    ) -> Result<(), ChannelError> {
        while !self.try_send_after_text(&write, aggregate)? {
            self.wait(WaitFor::Room)?;
        }
        while !self.sending.is_flushed() {
            self.wait(WaitFor::Room)?;
            self.flush()?;
        }
        Ok(())
    }

    /// Begins to send an aggregate if there is room for one: if an earlier one was sent as a whole,
    /// and fewer bytes than `in_flight_max` are under way. Returns whether it was taken. Then
    /// [`Channel::flush`] sends what has no room yet.
    ///
    /// # Errors
    /// As [`Channel::send`].
    pub fn try_send(&mut self, aggregate: &Aggregate) -> Result<bool, ChannelError> {
        self.try_send_after_text(|_| {}, aggregate)
    }

    /// Begins to send an aggregate like [`Channel::try_send`], after the text that `write` appends
    /// to an empty buffer. Text is always copied, at less cost than a slice.
    ///
    /// # Errors
    /// As [`Channel::send`].
    pub fn try_send_after_text(
        &mut self,
        write: impl FnOnce(&mut Vec<u8>),
        aggregate: &Aggregate,
    ) -> Result<bool, ChannelError> {
        if !self.check_room()? {
            return Ok(false);
        }
        if self.is_gone {
            return self.check(Err(ChannelError::Closed));
        }
        if !self.waits_by_packet {
            self.look_at_socket()?;
        }
        self.sending.text.clear();
        write(&mut self.sending.text);
        let enqueued = self.sending.enqueue(aggregate, self.options.copied_max);
        // Nothing was sent, so the channel can be used on.
        enqueued?;
        self.send_frames()?;
        Ok(true)
    }

    /// Returns whether [`Channel::try_send`] takes an aggregate now.
    ///
    /// # Errors
    /// As [`Channel::send`].
    pub fn check_room(&mut self) -> Result<bool, ChannelError> {
        self.flush()?;
        Ok(self.sending.has_room(self.options.in_flight_max))
    }

    /// Sends what is left of an aggregate, and returns whether nothing is left.
    ///
    /// # Errors
    /// As [`Channel::send`].
    pub fn flush(&mut self) -> Result<bool, ChannelError> {
        self.check_error()?;
        self.pass_received();
        let is_invited = |of: &SharedPool| of.membership.state() == MemberState::Invited;
        let needs_packets = || self.other.is_none() || self.sending.pools.iter().any(is_invited);
        // A packet that ends a wait is left to the call that receives.
        if !self.waits_by_packet && needs_packets() {
            self.read_packets()?;
        }
        if let Some(page) = &self.other {
            let released = self.sending.release_passed(page);
            self.check(released)?;
        }
        if !self.sending.is_flushed() {
            if self.is_gone {
                return self.check(Err(ChannelError::Closed));
            }
            self.send_frames()?;
        }
        Ok(self.sending.is_flushed())
    }

    fn send_frames(&mut self) -> Result<(), ChannelError> {
        let sent = self.sending.flush(&self.own, &self.peer);
        if self.check(sent)? {
            self.notify(WaitFor::Frames);
        }
        Ok(())
    }

    /// Receives the next aggregate, and waits for it. Returns `None` at the end. The other process
    /// holds what this one has received until the next call of a method.
    ///
    /// # Errors
    /// [`ChannelError`] has the reasons.
    pub fn receive(&mut self) -> Result<Option<Aggregate>, ChannelError> {
        loop {
            match self.try_receive()? {
                Received::Aggregate(aggregate) => return Ok(Some(aggregate)),
                Received::Ended => return Ok(None),
                Received::Nothing => self.wait(WaitFor::Frames)?,
            }
        }
    }

    /// Returns the text before the aggregate that was received last. It is complete only if that
    /// call has returned the aggregate.
    pub fn text(&self) -> &[u8] {
        &self.receiving.text
    }

    /// Returns whether the end of that text is missing, because it was longer than `text_max`.
    pub fn text_is_cut(&self) -> bool {
        self.receiving.text_is_cut
    }

    /// Receives the next aggregate if it is there.
    ///
    /// # Errors
    /// As [`Channel::receive`].
    pub fn try_receive(&mut self) -> Result<Received, ChannelError> {
        self.check_error()?;
        self.end_wait();
        self.pass_received();
        self.look_at_socket()?;
        loop {
            if let Some(packet) = self.next_frame()? {
                if let Some(received) = self.add(packet)? {
                    return Ok(received);
                }
            } else if self.receiving.has_ended {
                let is_cut = self.receiving.is_cut(self.other.as_ref());
                return if is_cut { Err(ChannelError::Closed) } else { Ok(Received::Ended) };
            } else {
                // The rest of an aggregate may wait for room.
                self.pass_received();
                return Ok(Received::Nothing);
            }
        }
    }

    /// Takes the next frame, and reads packets if there is none.
    fn next_frame(&mut self) -> Result<Option<Packet>, ChannelError> {
        let next = self.receiving.next(self.other.as_ref());
        if let Next::Frame(packet) = self.check(next)? {
            return Ok(Some(packet));
        }
        self.read_packets()?;
        let next = self.receiving.next(self.other.as_ref());
        match self.check(next)? {
            Next::Frame(packet) => return Ok(Some(packet)),
            Next::Nothing => return Ok(None),
            Next::NeedsPacket => {}
        }
        // The ring has announced it meanwhile. The packet was sent before.
        let is_all = self.read_packets()?;
        let next = self.receiving.next(self.other.as_ref());
        match self.check(next)? {
            Next::Frame(packet) => Ok(Some(packet)),
            _ if self.receiving.has_ended || !is_all => Ok(None),
            _ => self.check(Err(PeerFault::Packets.into())),
        }
    }

    /// Lets the other process make the socket readable when it sends something through its ring, or
    /// when there is room for an aggregate that [`Channel::try_send`] has not taken, or only in
    /// part. Returns whether that is so already. Call this last before waiting, after all other
    /// calls.
    ///
    /// # Errors
    /// As [`Channel::receive`].
    pub fn prepare_to_wait(&mut self) -> Result<bool, ChannelError> {
        self.end_wait();
        self.waits_by_packet = true;
        self.own.set_waiting(WaitFor::Frames, Waiting::Packet);
        let needs_room = !self.sending.has_room(self.options.in_flight_max);
        if needs_room {
            self.own.set_waiting(WaitFor::Room, Waiting::Packet);
        }
        let has_room = needs_room && self.check_room()?;
        self.check_error()?;
        Ok(self.has_frame() || has_room || self.receiving.has_ended || self.is_gone)
    }

    /// Does not wake the other process any more before [`Channel::wake`]. So one wake is enough for
    /// several aggregates.
    pub fn delay_wakes(&mut self) {
        self.delays_wakes = true;
    }

    /// Wakes the other process if it waits for something that was sent or received here since the
    /// last call.
    pub fn wake(&mut self) {
        for event in [WaitFor::Frames, WaitFor::Room] {
            if std::mem::take(&mut self.delayed[event as usize]) {
                self.wake_for(event);
            }
        }
    }

    /// Ends a wait for packets, if there was one.
    fn end_wait(&mut self) {
        if std::mem::take(&mut self.waits_by_packet) {
            self.own.set_waiting(WaitFor::Frames, Waiting::No);
            self.own.set_waiting(WaitFor::Room, Waiting::No);
        }
    }

    /// Waits until the other process has received everything, and closes the channel. Without this,
    /// it may not receive the slices of pools that are still under way.
    ///
    /// # Errors
    /// As [`Channel::send`].
    pub fn close(mut self) -> Result<(), ChannelError> {
        loop {
            let has_ended = self.is_gone;
            if self.flush()? && self.sending.is_passed() {
                return Ok(());
            }
            if has_ended {
                return Err(ChannelError::Closed);
            }
            self.wait(WaitFor::Room)?;
        }
    }

    /// Adds a frame to the aggregate that is being received. A reference may be to a block that is
    /// announced in a packet.
    fn add(&mut self, packet: Packet) -> Result<Option<Received>, ChannelError> {
        let frame = packet.frame;
        let mut added = self.receiving.add(packet, self.other.as_ref(), &self.options);
        if let Err(ChannelError::Peer(PeerFault::Block)) = added {
            self.read_packets()?;
            let again = Packet { frame, content: Content::InRing };
            added = self.receiving.add(again, self.other.as_ref(), &self.options);
        }
        match added {
            Err(ChannelError::Peer(PeerFault::Block)) if self.receiving.has_ended => {
                // The other process has closed the channel too early.
                self.check(Err(ChannelError::Closed))
            }
            Err(error @ ChannelError::NoMemory(_)) => Err(error),
            added => self.check(added),
        }
    }

    /// Lets the other side know what was received before. The next call does this, too.
    pub(crate) fn pass_received(&mut self) {
        let position = self.receiving.settle();
        if position != self.passed {
            self.passed = position;
            self.own.set_passed(position);
            self.notify(WaitFor::Room);
        }
    }

    /// Wakes the other side if it waits, now or with the next [`Channel::wake`].
    fn notify(&mut self, event: WaitFor) {
        if self.delays_wakes {
            self.delayed[event as usize] = true;
        } else {
            self.wake_for(event);
        }
    }

    /// Wakes the other side if it waits, once for each wait.
    fn wake_for(&mut self, event: WaitFor) {
        let waiting = self.other.as_ref().map(|page| page.waiting(event));
        let wait = waiting.map(|(_, wait)| wait);
        if wait.is_some() && wait == std::mem::replace(&mut self.woken[event as usize], wait) {
            return;
        }
        // Before its first packet has arrived, it may wait in any way.
        let waits_by = |way| waiting.is_none_or(|(by, _)| by == way);
        if waits_by(Waiting::Futex) {
            self.own.wake(event);
        }
        if waits_by(Waiting::Packet) {
            // A socket without room is readable for the other side.
            self.peer.send(Frame::new(FrameKind::Wake), &[]);
        }
    }

    /// Waits for the other side, for some time.
    fn wait(&mut self, wait_for: WaitFor) -> Result<(), ChannelError> {
        self.wake();
        let uses_socket = match wait_for {
            WaitFor::Frames => self.other.as_ref().is_none_or(|page| page.ring.frames == 0),
            WaitFor::Room => {
                self.other.is_none() || (self.own.ring.frames == 0 && !self.sending.is_flushed())
            }
        };
        if uses_socket {
            let events = match wait_for {
                WaitFor::Room if self.other.is_some() => PacketEvents::Writable,
                _ => PacketEvents::Readable,
            };
            let waited = self.peer.wait(events, WAIT_MAX.as_millis() as u32);
            let is_gone = waited.map_err(|error| ChannelError::Kernel("poll", error))?;
            return if is_gone { self.notice_end() } else { Ok(()) };
        }
        self.own.set_waiting(wait_for, Waiting::Futex);
        let page = self.other.as_ref().expect("its page was checked");
        let seen = match wait_for {
            WaitFor::Frames => self.receiving.position(),
            WaitFor::Room => self.sending.passed(),
        };
        page.wait(wait_for, seen, WAIT_MAX);
        let is_same = page.is_same(wait_for, seen);
        self.own.set_waiting(wait_for, Waiting::No);
        if is_same {
            let waited = self.peer.wait(PacketEvents::None, 0);
            if waited.map_err(|error| ChannelError::Kernel("poll", error))? {
                return self.notice_end();
            }
        }
        if wait_for == WaitFor::Room {
            self.read_packets()?;
        }
        Ok(())
    }

    /// Notices that the other process has closed the channel or has ended. A child of it may keep
    /// the socket open. Packets that it has sent before are still received.
    fn notice_end(&mut self) -> Result<(), ChannelError> {
        self.is_gone = true;
        if self.read_packets()? && self.receiving.packets.is_empty() {
            self.receiving.has_ended = true;
        }
        Ok(())
    }

    /// Reads packets now and then, while all frames come through the ring: they may be about pools.
    fn look_at_socket(&mut self) -> Result<(), ChannelError> {
        self.calls += 1;
        if self.calls.is_multiple_of(PACKETS_PER_CALL) {
            self.read_packets()?;
        }
        Ok(())
    }

    /// Reads packets that have arrived, but a limited number. Returns whether these are all.
    fn read_packets(&mut self) -> Result<bool, ChannelError> {
        let is_all = self.read_some_packets()?;
        self.has_more_packets = !is_all && !self.receiving.has_packets();
        Ok(is_all)
    }

    fn read_some_packets(&mut self) -> Result<bool, ChannelError> {
        for _ in 0..PACKETS_PER_CALL {
            let waiting = self.receiving.packets.len();
            match self.other.as_ref().map_or(0, |page| page.ring.frames) {
                // The rest waits in the socket.
                0 if waiting > 0 => return Ok(false),
                ring_frames if ring_frames > 0 && waiting > ring_frames => {
                    return self.check(Err(PeerFault::Packets.into()));
                }
                _ => {}
            }
            if self.receiving.has_ended {
                return Ok(true);
            }
            let mut files = Vec::new();
            let socket = self.peer.socket.as_fd();
            match millrace_sys::receive_packet(socket, &mut self.packet, &mut files) {
                Ok(0) => {
                    self.is_gone = true;
                    self.receiving.has_ended = true;
                }
                // It has not received everything; packets of it may be left.
                Err(Errno::CONNRESET) => self.is_gone = true,
                Ok(length) => {
                    let taken = self.take_packet(length, files);
                    self.check(taken)?;
                }
                Err(Errno::AGAIN) => return Ok(true),
                Err(Errno::MSGSIZE) => return self.check(Err(PeerFault::Descriptors.into())),
                Err(error) => return self.check(Err(ChannelError::Kernel("recvmsg", error))),
            }
        }
        Ok(false)
    }

    fn take_packet(&mut self, length: usize, files: Vec<OwnedFd>) -> Result<(), ChannelError> {
        let (header, bytes) =
            self.packet[..length].split_first_chunk::<FRAME_BYTES>().ok_or(PeerFault::Frame)?;
        let frame = Frame::from_bytes(header).ok_or(PeerFault::Frame)?;
        if self.other.is_none() && !matches!(frame.kind, FrameKind::Hello) {
            return Err(PeerFault::Frame.into());
        }
        if frame.kind.is_data() {
            let mut files = files.into_iter();
            let content = match (files.next(), files.next()) {
                (None, _) => Content::Bytes(bytes.to_vec()),
                (Some(file), None) if frame.kind == FrameKind::File => Content::File(file),
                _ => return Err(PeerFault::Descriptors.into()),
            };
            self.receiving.packets.push_back(Packet { frame, content });
            return Ok(());
        }
        self.take_control(frame, files)
    }

    /// Handles a packet that is no part of an aggregate.
    fn take_control(&mut self, frame: Frame, files: Vec<OwnedFd>) -> Result<(), ChannelError> {
        let mut files = files.into_iter();
        let mut file = || files.next().ok_or(PeerFault::Descriptors);
        match frame.kind {
            FrameKind::Hello => {
                let (page, process) = (file()?, file()?);
                let (frames, words) = (frame.first_unit as usize, frame.number as usize);
                let is_valid = frames <= RING_FRAMES_MAX && words <= RING_BYTES_MAX / WORD_BYTES;
                if self.other.is_some() || !is_valid {
                    return Err(PeerFault::Frame.into());
                }
                if !millrace_sys::is_process(process.as_fd()).unwrap_or(false) {
                    return Err(PeerFault::Descriptors.into());
                }
                self.other = Some(PeerPage::accept(&page, RingSize { frames, words })?);
                let _ = self.peer.process.set(process);
            }
            FrameKind::Pool if self.options.joins_pools => self.join(frame)?,
            FrameKind::Pool => self.invitation = Some(frame),
            FrameKind::Ledger => {
                let words = file()?;
                let mut pools = self.sending.pools.iter();
                let pool = pools.find(|of| of.number == frame.number);
                let Some(pool) = pool.and_then(|of| of.pool.upgrade()) else {
                    // It has ended meanwhile.
                    return Ok(());
                };
                let slots = pool.slots();
                let words = PeerWords::accept(&words, ledger_words(slots))?;
                if !pool.join(&self.peer, PeerLedger { words, slots }) {
                    return Err(PeerFault::Pool.into());
                }
            }
            FrameKind::Block | FrameKind::Retired => {
                let pool = self.receiving.pools.iter().find(|(of, _)| *of == frame.number);
                let (_, pool) = pool.ok_or(PeerFault::Pool)?;
                let slot = Some(frame.first_unit as usize).filter(|slot| *slot < pool.slots());
                let slot = slot.ok_or(PeerFault::Frame)?;
                match frame.kind {
                    FrameKind::Block => pool.add_block(slot, frame.version, file()?)?,
                    _ => pool.retire_block(slot, frame.version),
                }
            }
            FrameKind::PoolEnded => {
                self.receiving.pools.retain(|(number, _)| *number != frame.number);
                self.invitation.take_if(|pool| pool.number == frame.number);
            }
            FrameKind::Wake => {}
            _ => return Err(PeerFault::Frame.into()),
        }
        Ok(())
    }

    /// Joins a pool of the peer.
    fn join(&mut self, frame: Frame) -> Result<(), ChannelError> {
        if self.receiving.pools.iter().any(|(number, _)| *number == frame.number) {
            return Err(PeerFault::Pool.into());
        }
        let pool = JoinedPool::new(frame.first_unit as usize)?.ok_or(PeerFault::Frame)?;
        let joined = Frame { number: frame.number, ..Frame::new(FrameKind::Ledger) };
        if !self.peer.send(joined, &[pool.ledger_file()]) {
            // The owner goes on without this member.
            return Ok(());
        }
        self.receiving.pools.push((frame.number, pool));
        Ok(())
    }

    fn check_error(&self) -> Result<(), ChannelError> {
        self.error.map_or(Ok(()), Err)
    }

    /// Keeps an error, so that all later calls return it.
    fn check<T>(&mut self, result: Result<T, ChannelError>) -> Result<T, ChannelError> {
        if let Err(error) = &result {
            self.error = Some(*error);
        }
        result
    }
}

impl Pool {
    /// Creates a pool of `bytes`, rounded down to whole blocks of 2 MB, whose `members` are the
    /// processes at the other ends of these channels. It takes memory as it is used. A member that
    /// keeps more than `quota` bytes for itself gets copies from then on.
    ///
    /// # Errors
    /// [`ChannelError::Memory`]: the size is out of bounds, or the kernel has no memory;
    /// [`ChannelError::Closed`]: a member has ended; [`ChannelError::Kernel`]: a member has taken
    /// no packet for a second.
    pub fn new(
        bytes: usize,
        quota: u64,
        members: &mut [&mut Channel],
    ) -> Result<Self, ChannelError> {
        let peers = members.iter().map(|channel| channel.peer.clone()).collect();
        let pool = Self::with_members(bytes, quota, peers)?;
        let invitation = Frame {
            number: pool.number(),
            first_unit: pool.slots() as u32,
            ..Frame::new(FrameKind::Pool)
        };
        for (channel, membership) in members.iter_mut().zip(pool.memberships()) {
            let wait_ms = WAIT_MAX.as_millis() as u32;
            channel.peer.send_when_ready(invitation, wait_ms).map_err(|error| match error {
                Errno::PIPE | Errno::CONNRESET => ChannelError::Closed,
                error => ChannelError::Kernel("sendmsg", error),
            })?;
            let pools = &mut channel.sending.pools;
            pools.retain(|of| of.pool.upgrade().is_some());
            let (number, pool) = (pool.number(), pool.downgrade());
            pools.push(SharedPool { number, pool, membership });
        }
        Ok(pool)
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        if self.process != millrace_sys::process_generation() {
            // The other side has its channel with the parent of this process.
            return;
        }
        self.pass_received();
        self.wake();
        for pool in self.sending.pools.iter().filter_map(|of| of.pool.upgrade()) {
            pool.leave(&self.peer);
        }
        let _ = millrace_sys::shutdown(self.peer.socket.as_fd(), millrace_sys::Shutdown::Both);
        // A side that is about to wait notices the end after a while.
        self.own.wake(WaitFor::Frames);
        self.own.wake(WaitFor::Room);
    }
}

/// Creates the two ends of a channel's socket.
///
/// # Errors
/// EMFILE, ENFILE.
pub fn channel_sockets() -> Result<(OwnedFd, OwnedFd), Error> {
    millrace_sys::packet_pair().map_err(|error| Error::Kernel("socketpair", error))
}
