//! The sending half of a channel: aggregates become frames.

use std::collections::VecDeque;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Weak};

use millrace_sys::Errno;

use crate::aggregate::Aggregate;
use crate::channel::error::{ChannelError, PeerFault};
use crate::channel::page::{OwnPage, PeerPage};
use crate::error::Error;
use crate::extent::Source;
use crate::limits::{
    BYTES_PER_PACKET_MAX, FILES_PER_CHANNEL_MAX, KEPT_FILE_BYTES_MAX, PARTS_SENT_MAX,
    ZERO_COPY_UNIT,
};
use crate::packet::{Frame, FrameKind};
use crate::pool::members::{MemberState, Membership, Peer};
use crate::pool::words::WORD_BYTES;
use crate::pool::{Pool, WeakPool, unit_of};
use crate::sealed::{SealedMemory, UnsealedMemory};
use crate::slice::Slice;

#[derive(Debug, Default)]
pub(super) struct Sending {
    /// The pools of this process that the peer is a member of.
    pub(super) pools: Vec<SharedPool>,
    /// Frames of the aggregate that is being sent.
    outgoing: VecDeque<Outgoing>,
    /// The text before that aggregate.
    pub(super) text: Vec<u8>,
    /// Slices and bytes that the peer has not passed yet, with the positions after their frames.
    in_flight: VecDeque<(u64, InFlight)>,
    pub(super) in_flight_bytes: u64,
    /// The number of data frames that were sent.
    position: u64,
    byte_ring: ByteRing,
    /// The number of frames of these that the peer has passed, when it was last read.
    passed: u64,
    /// The files that the peer keeps, by their numbers.
    files: [Weak<SealedMemory>; FILES_PER_CHANNEL_MAX],
    /// The number that the next file gets.
    next_file: usize,
}

/// A pool of this process that the peer is a member of.
#[derive(Debug)]
pub(super) struct SharedPool {
    pub(super) number: u32,
    pub(super) pool: WeakPool,
    pub(super) membership: Arc<Membership>,
}

/// A frame, and what it needs.
#[derive(Debug)]
struct Outgoing {
    frame: Frame,
    needs: Needs,
}

/// A part of a frame that the peer may still read.
#[derive(Debug)]
enum InFlight {
    Slice(Slice),
    /// This many words of the ring.
    Words(usize),
}

#[derive(Debug)]
enum Needs {
    Nothing,
    /// The slice is held until the peer has passed the frame.
    Held(Slice),
    /// The bytes are in the ring or in the packet.
    Copied(Slice),
    /// Likewise, a range of the text.
    Text(Range<usize>),
    /// The file travels with the packet.
    File(Arc<SealedMemory>),
}

/// How a slice is sent.
enum SendWay<'a> {
    Reference(&'a Pool),
    File(&'a Arc<SealedMemory>),
    Bytes,
    Copy(SealedMemory),
}

impl Sending {
    pub(super) fn is_flushed(&self) -> bool {
        self.outgoing.is_empty()
    }

    /// Returns whether another aggregate can be sent.
    pub(super) fn has_room(&self, in_flight_max: u64) -> bool {
        self.is_flushed() && self.in_flight_bytes < in_flight_max
    }

    /// Returns how many of the first bytes of an aggregate the rings have room for after a text, if
    /// all copies go through them.
    pub(super) fn room_for(&self, own: &OwnPage, text_bytes: usize, aggregate: &Aggregate) -> u64 {
        let (mut bytes, all) = (self.byte_ring, own.ring.words);
        let forgotten = self.files.iter().filter(|file| is_forgotten(file)).count();
        let under_way = (self.position - self.passed) as usize + forgotten;
        let mut frames = own.ring.frames.saturating_sub(under_way);
        let mut take = |copied: usize| {
            let has_room = frames > 0 && (copied == 0 || bytes.place(copied, all).is_some());
            frames = frames.saturating_sub(1);
            has_room
        };
        let mut room = 0;
        if text_bytes > 0 && !take(text_bytes) {
            return room;
        }
        for slice in aggregate.slices().take(PARTS_SENT_MAX) {
            let is_passed = match &slice.extent.source {
                Source::Pool(pool) => self.can_pass(pool),
                Source::Sealed(file) => file.can_pass(slice.len()),
                _ => false,
            };
            let step = if is_passed { slice.len() } else { BYTES_PER_PACKET_MAX };
            for start in (0..slice.len()).step_by(step) {
                let length = step.min(slice.len() - start);
                if !take(if is_passed { 0 } else { length }) {
                    return room;
                }
                room += length as u64;
            }
        }
        room
    }

    /// Turns the text and an aggregate into frames. Slices shorter than `copied_max` are copied.
    pub(super) fn enqueue(
        &mut self,
        aggregate: &Aggregate,
        copied_max: usize,
    ) -> Result<(), ChannelError> {
        let parts = aggregate.slices().count();
        if parts > PARTS_SENT_MAX {
            return Err(ChannelError::Parts(parts));
        }
        // All copies are made first, so that a failure sends nothing.
        let ways = aggregate.slices().map(|slice| {
            Ok(match &slice.extent.source {
                Source::Pool(pool) if self.can_pass(pool) => SendWay::Reference(pool),
                Source::Sealed(file) if file.can_pass(slice.len()) => SendWay::File(file),
                _ if slice.len() < copied_max => SendWay::Bytes,
                _ => SendWay::Copy(copy_of(slice)?),
            })
        });
        let ways = ways.collect::<Result<Vec<_>, Error>>()?;
        self.forget_files();
        for start in (0..self.text.len()).step_by(BYTES_PER_PACKET_MAX) {
            let end = self.text.len().min(start + BYTES_PER_PACKET_MAX);
            let frame = Frame { length: (end - start) as u32, ..Frame::new(FrameKind::Text) };
            self.outgoing.push_back(Outgoing { frame, needs: Needs::Text(start..end) });
        }
        for (slice, way) in aggregate.slices().zip(ways) {
            match way {
                SendWay::Reference(pool) => self.add_reference(pool, slice),
                SendWay::File(file) => self.add_file(file, slice),
                SendWay::Bytes => self.add_bytes(slice),
                SendWay::Copy(copy) => self.add_copy(slice, copy),
            }
        }
        if aggregate.is_empty() && self.text.is_empty() {
            let frame = Frame::new(FrameKind::Empty);
            self.outgoing.push_back(Outgoing { frame, needs: Needs::Nothing });
        }
        self.outgoing.back_mut().expect("there is a frame").frame.is_last = true;
        Ok(())
    }

    /// Lets the peer forget the files that this process does not hold any more.
    fn forget_files(&mut self) {
        for (number, file) in self.files.iter_mut().enumerate() {
            if is_forgotten(file) {
                *file = Weak::new();
                let frame = Frame { number: number as u32, ..Frame::new(FrameKind::Forget) };
                self.outgoing.push_back(Outgoing { frame, needs: Needs::Nothing });
            }
        }
    }

    /// Returns whether the peer has joined a pool.
    fn can_pass(&self, pool: &Pool) -> bool {
        let number = pool.number();
        let is_joined = |of: &SharedPool| of.membership.state() == MemberState::Joined;
        self.pools.iter().any(|of| of.number == number && is_joined(of))
    }

    fn add_reference(&mut self, pool: &Pool, slice: &Slice) {
        let extent = &slice.extent;
        extent.set_passed();
        let allocation = extent.allocation();
        let frame = Frame {
            units: (allocation.bytes / ZERO_COPY_UNIT) as u16,
            number: pool.number(),
            first_unit: unit_of(allocation.offset) as u32,
            version: pool.version(allocation.offset),
            start: slice.start,
            length: slice.len() as u32,
            generation: extent.generation,
            ..Frame::new(FrameKind::Reference)
        };
        self.in_flight_bytes += allocation.bytes as u64;
        self.outgoing.push_back(Outgoing { frame, needs: Needs::Held(slice.clone()) });
    }

    /// Adds a slice of a sealed file. The file travels if the peer does not keep it yet. The peer
    /// keeps the last [`FILES_PER_CHANNEL_MAX`] files, but no large ones.
    fn add_file(&mut self, file: &Arc<SealedMemory>, slice: &Slice) {
        let known = self.files.iter().position(|of| std::ptr::eq(of.as_ptr(), &raw const **file));
        let number = match known {
            Some(number) => number as u32,
            None if file.file_bytes() > KEPT_FILE_BYTES_MAX as u64 => ONCE,
            None => {
                let number = self.next_file;
                self.next_file = (number + 1) % FILES_PER_CHANNEL_MAX;
                self.files[number] = Arc::downgrade(file);
                number as u32
            }
        };
        let frame = Frame {
            number,
            start: slice.start,
            length: slice.len() as u32,
            ..Frame::new(FrameKind::File)
        };
        let needs = if known.is_some() { Needs::Nothing } else { Needs::File(file.clone()) };
        self.outgoing.push_back(Outgoing { frame, needs });
    }

    fn add_bytes(&mut self, slice: &Slice) {
        let mut start = 0;
        while start < slice.len() {
            let length = (slice.len() - start).min(BYTES_PER_PACKET_MAX);
            let frame = Frame { length: length as u32, ..Frame::new(FrameKind::Bytes) };
            let part = slice.slice(start..start + length);
            self.outgoing.push_back(Outgoing { frame, needs: Needs::Copied(part) });
            start += length;
        }
    }

    /// Adds a copy in a file of its own, which the peer does not keep for later frames.
    fn add_copy(&mut self, slice: &Slice, copy: SealedMemory) {
        let frame =
            Frame { number: ONCE, length: slice.len() as u32, ..Frame::new(FrameKind::File) };
        self.outgoing.push_back(Outgoing { frame, needs: Needs::File(Arc::new(copy)) });
    }

    /// Reads what the peer has passed, and drops what only this needed.
    pub(super) fn release_passed(&mut self, page: &PeerPage) -> Result<(), ChannelError> {
        let passed = page.passed();
        if passed < self.passed || passed > self.position {
            return Err(PeerFault::Positions.into());
        }
        self.passed = passed;
        while self.in_flight.front().is_some_and(|(position, _)| *position <= passed) {
            match self.in_flight.pop_front().expect("there is a first one").1 {
                InFlight::Slice(slice) => {
                    self.in_flight_bytes -= slice.extent.allocation().bytes as u64;
                }
                InFlight::Words(count) => self.byte_ring.used -= count,
            }
        }
        Ok(())
    }

    /// Returns whether the peer has passed all frames.
    pub(super) fn is_passed(&self) -> bool {
        self.passed == self.position
    }

    /// Returns the number of frames that the peer had passed when it was last read.
    pub(super) fn passed(&self) -> u64 {
        self.passed
    }

    /// Sends as many frames as there is room for, and returns whether any was sent.
    pub(super) fn flush(&mut self, own: &OwnPage, peer: &Peer) -> Result<bool, ChannelError> {
        let before = self.position;
        while let Some(next) = self.outgoing.front() {
            let has_ring = own.ring.frames > 0;
            if has_ring && self.position - self.passed == own.ring.frames as u64 {
                break;
            }
            let place = match &next.needs {
                Needs::Nothing | Needs::Held(_) if has_ring => FramePlace::Ring,
                Needs::Copied(slice) => self.byte_ring.allocate(own, slice),
                Needs::Text(range) => self.byte_ring.allocate(own, &self.text[range.clone()]),
                _ => FramePlace::Packet,
            };
            let mut frame = next.frame;
            match place {
                FramePlace::Ring => {}
                FramePlace::Words { start, .. } => frame.start = start as u32,
                FramePlace::Packet if send_packet(next, &self.text, peer)? => {
                    frame = Frame::new(FrameKind::InPacket);
                }
                FramePlace::Packet | FramePlace::None => break,
            }
            if has_ring {
                own.write(self.position, frame);
            }
            self.position += 1;
            let sent = self.outgoing.pop_front().expect("it is the next one");
            let held = match (sent.needs, place) {
                (Needs::Held(slice), _) => InFlight::Slice(slice),
                (_, FramePlace::Words { used, .. }) => InFlight::Words(used),
                _ => continue,
            };
            self.in_flight.push_back((self.position, held));
        }
        if own.ring.frames > 0 && self.position != before {
            own.publish(self.position);
        }
        Ok(self.position != before)
    }
}

/// Returns whether this process does not hold a file any more that the peer keeps.
fn is_forgotten(file: &Weak<SealedMemory>) -> bool {
    file.strong_count() == 0 && file.as_ptr() != Weak::new().as_ptr()
}

/// Where a frame goes.
enum FramePlace {
    /// Into the ring of frames.
    Ring,
    /// Into the ring of frames, and its bytes into the ring of bytes. `used` counts skipped words
    /// before `start` too.
    Words {
        start: usize,
        used: usize,
    },
    Packet,
    /// The ring has no room yet.
    None,
}

/// The ring of the bytes of frames, in words. The bytes of a frame are contiguous.
#[derive(Clone, Copy, Debug, Default)]
struct ByteRing {
    /// Where the next bytes begin, unless they reach beyond the end.
    next: usize,
    /// The words that the peer may still read, and skipped ones between them.
    used: usize,
}

impl ByteRing {
    /// Writes bytes into the ring of this side's page, if they can be there.
    fn allocate(&mut self, own: &OwnPage, bytes: &[u8]) -> FramePlace {
        if bytes.len().div_ceil(WORD_BYTES) > own.ring.words {
            return FramePlace::Packet;
        }
        let Some((start, used)) = self.place(bytes.len(), own.ring.words) else {
            return FramePlace::None;
        };
        own.write_bytes(start, bytes);
        FramePlace::Words { start, used }
    }

    /// Takes room for bytes in a ring of `all` words. Returns the word where they begin, and the
    /// number of words that are used from now on.
    fn place(&mut self, bytes: usize, all: usize) -> Option<(usize, usize)> {
        let words = bytes.div_ceil(WORD_BYTES);
        let skipped = if self.next + words > all { all.saturating_sub(self.next) } else { 0 };
        let (start, used) = match self.used {
            0 => (0, words),
            _ => ((self.next + skipped) % all.max(1), skipped + words),
        };
        if self.used + used > all {
            return None;
        }
        self.next = start + words;
        self.used += used;
        Some((start, used))
    }
}

/// Copies a slice into a sealed file.
fn copy_of(slice: &Slice) -> Result<SealedMemory, Error> {
    let mut copy = UnsealedMemory::new(slice.len())?;
    copy.write(slice);
    copy.seal()
}

/// The number of a file that is not kept.
pub(super) const ONCE: u32 = u32::MAX;

/// Sends a frame as a packet; returns `false` if the socket has no room.
fn send_packet(next: &Outgoing, text: &[u8], peer: &Peer) -> Result<bool, ChannelError> {
    let header = next.frame.to_bytes();
    let (bytes, file): (&[u8], Option<BorrowedFd<'_>>) = match &next.needs {
        Needs::Nothing | Needs::Held(_) => (&[], None),
        Needs::Copied(slice) => (slice, None),
        Needs::Text(range) => (&text[range.clone()], None),
        Needs::File(file) => (&[], Some(file.file())),
    };
    let files: &[BorrowedFd<'_>] = file.as_slice();
    match millrace_sys::send_packet(peer.socket.as_fd(), &[&header, bytes], files) {
        Ok(()) => Ok(true),
        Err(Errno::AGAIN | Errno::TOOMANYREFS) => Ok(false),
        Err(Errno::PIPE | Errno::CONNRESET) => Err(ChannelError::Closed),
        Err(error) => Err(ChannelError::Kernel("sendmsg", error)),
    }
}
