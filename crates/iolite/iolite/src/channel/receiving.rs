//! The receiving half of a channel: frames become aggregates.

use std::collections::{BTreeMap, VecDeque};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use crate::account::Account;
use crate::aggregate::Aggregate;
use crate::channel::error::{ChannelError, PeerFault};
use crate::channel::options::{ChannelOptions, Received};
use crate::channel::page::PeerPage;
use crate::channel::sending::ONCE;
use crate::error::AllocError;
use crate::extent::{Extent, Source};
use crate::free_list::Allocation;
use crate::limits::{
    BYTES_PER_PACKET_MAX, FILES_PER_CHANNEL_MAX, KEPT_FILE_BYTES_MAX, PARTS_PER_AGGREGATE_MAX,
};
use crate::memory_kind::MemoryKind;
use crate::packet::{Frame, FrameKind};
use crate::pool::joined::{BadReference, JoinedPool};
use crate::sealed::SealedMemory;
use crate::slab::Slab;
use crate::slice::Slice;

/// A data frame, and what came with it.
#[derive(Debug)]
pub(super) struct Packet {
    pub(super) frame: Frame,
    pub(super) content: Content,
}

#[derive(Debug)]
pub(super) enum Content {
    /// It came through the ring, which has its bytes.
    InRing,
    /// The bytes of a packet.
    Bytes(Vec<u8>),
    File(OwnedFd),
}

#[derive(Debug, Default)]
pub(super) struct Receiving {
    /// Pools of the peer that this process has joined, by the peer's numbers.
    pub(super) pools: Vec<(u32, JoinedPool)>,
    /// Data packets, in order.
    pub(super) packets: VecDeque<Packet>,
    /// The text before the aggregate that is being received, or was received last.
    pub(super) text: Vec<u8>,
    /// Whether the end of that text is missing, because it was longer than `text_max`.
    pub(super) text_is_cut: bool,
    /// The aggregate that is being received.
    partial: Aggregate,
    parts: usize,
    /// The bytes of it that were copied into the slab.
    copied: u64,
    /// The files that the peer has let this side forget since the last aggregate.
    forgotten: usize,
    /// The number of data frames that were received.
    position: u64,
    /// The extents of frames that are not passed yet: their pools and first units.
    received: Vec<(JoinedPool, usize)>,
    /// Files that the peer has passed, by their numbers.
    files: [Option<Slice>; FILES_PER_CHANNEL_MAX],
    /// No more packets come.
    pub(super) has_ended: bool,
}

/// Returns the bytes that are charged for the file of a packet, if it has one.
fn charge_of(packet: &Packet) -> u64 {
    let Content::File(file) = &packet.content else { return 0 };
    SealedMemory::charge_of(file.as_fd()).unwrap_or(0)
}

/// Appends the bytes of a frame to a text, up to `text_max` bytes of it. Returns whether the rest
/// is missing.
fn add_text(
    packet: &Packet,
    page: Option<&PeerPage>,
    text: &mut Vec<u8>,
    text_max: usize,
) -> Result<bool, PeerFault> {
    let Frame { start: word, length, .. } = packet.frame;
    let (word, length, before) = (word as usize, length as usize, text.len());
    let kept = length.min(text_max.saturating_sub(before));
    match &packet.content {
        Content::Bytes(bytes) if bytes.len() == length => text.extend_from_slice(&bytes[..kept]),
        Content::InRing => {
            let page = page.filter(|page| page.has_bytes(word, length)).ok_or(PeerFault::Frame)?;
            text.resize(before + kept, 0);
            page.read_bytes(word, &mut text[before..]);
        }
        _ => return Err(PeerFault::Frame),
    }
    Ok(kept < length)
}

/// Copies the bytes of a frame into a slab.
fn copy(packet: &Packet, page: Option<&PeerPage>, slab: &Slab) -> Result<Aggregate, ChannelError> {
    let Frame { start: word, length, .. } = packet.frame;
    let (word, length) = (word as usize, length as usize);
    let copied = match &packet.content {
        Content::Bytes(bytes) if bytes.len() == length => Aggregate::from_bytes(bytes, slab),
        Content::InRing if (1..=BYTES_PER_PACKET_MAX).contains(&length) => {
            let page = page.filter(|page| page.has_bytes(word, length)).ok_or(PeerFault::Frame)?;
            let allocate = || slab.allocate(MemoryKind::Copied, length..=length, 0);
            slab.with_ready_block(allocate).map(|mut buffer| {
                page.read_bytes(word, &mut buffer.unfilled()[..length]);
                buffer.advance(length);
                buffer.freeze().into()
            })
        }
        _ => return Err(PeerFault::Frame.into()),
    };
    copied.map_err(ChannelError::NoMemory)
}

/// The next data frame, or why there is none.
pub(super) enum Next {
    Frame(Packet),
    /// A packet has to be read first.
    NeedsPacket,
    Nothing,
}

impl Receiving {
    /// Takes the next frame from the ring of the peer, or from its packets if it has no ring.
    pub(super) fn next(&mut self, page: Option<&PeerPage>) -> Result<Next, ChannelError> {
        let Some(page) = page.filter(|page| page.ring.frames > 0) else {
            return Ok(self.packets.pop_front().map_or(Next::Nothing, Next::Frame));
        };
        let waiting = page.tail().checked_sub(self.position).ok_or(PeerFault::Positions)?;
        if waiting > page.ring.frames as u64 {
            return Err(PeerFault::Positions.into());
        }
        if waiting == 0 {
            return Ok(Next::Nothing);
        }
        let frame = page.frame(self.position).ok_or(PeerFault::Frame)?;
        if frame.kind == FrameKind::InPacket {
            return Ok(self.packets.pop_front().map_or(Next::NeedsPacket, Next::Frame));
        }
        Ok(Next::Frame(Packet { frame, content: Content::InRing }))
    }

    /// Returns whether the end of the channel would cut an aggregate.
    pub(super) fn is_cut(&self, page: Option<&PeerPage>) -> bool {
        self.parts > 0 || self.has_frame(page)
    }

    pub(super) fn position(&self) -> u64 {
        self.position
    }

    /// Returns whether there are data packets that wait for their turn.
    pub(super) fn has_packets(&self) -> bool {
        !self.packets.is_empty()
    }

    /// Returns whether a frame has arrived.
    pub(super) fn has_frame(&self, page: Option<&PeerPage>) -> bool {
        let ring = page.filter(|page| page.ring.frames > 0);
        ring.map_or(!self.packets.is_empty(), |ring| ring.tail() != self.position)
    }

    /// Adds a frame to the aggregate. Returns the aggregate if it is complete, and `None` if more
    /// frames follow.
    pub(super) fn add(
        &mut self,
        packet: Packet,
        page: Option<&PeerPage>,
        options: &ChannelOptions,
    ) -> Result<Option<Received>, ChannelError> {
        let is_last = packet.frame.is_last;
        if self.parts == PARTS_PER_AGGREGATE_MAX {
            return Err(PeerFault::Parts.into());
        }
        if self.parts == 0 {
            self.text.clear();
            self.text_is_cut = false;
        }
        match packet.frame.kind {
            FrameKind::Reference => {
                let slice = self.find(packet.frame)?;
                self.partial.append(slice);
            }
            FrameKind::File => {
                let (account, charge) = (&options.account, charge_of(&packet));
                if account.held() + charge > account.bytes_max() && self.can_fit(charge, account) {
                    // It has to wait until others are dropped.
                    self.packets.push_front(packet);
                    return Err(ChannelError::NoMemory(AllocError::Full));
                }
                let slice = self.find_file(packet, options)?;
                self.partial.append(slice);
            }
            FrameKind::Bytes => self.add_bytes(packet, page, &options.slab)?,
            FrameKind::Text if self.partial.is_empty() => {
                self.text_is_cut |= add_text(&packet, page, &mut self.text, options.text_max)?;
            }
            FrameKind::Empty if is_last && self.parts == 0 => {}
            FrameKind::Forget if !is_last => {
                let kept = self.files.get_mut(packet.frame.number as usize);
                *kept.ok_or(PeerFault::File)? = None;
                self.position += 1;
                self.forgotten += 1;
                return match self.forgotten > 2 * FILES_PER_CHANNEL_MAX {
                    true => Err(PeerFault::File.into()),
                    false => Ok(None),
                };
            }
            _ => return Err(PeerFault::Frame.into()),
        }
        self.position += 1;
        self.parts += 1;
        if !is_last {
            return Ok(None);
        }
        (self.parts, self.forgotten, self.copied) = (0, 0, 0);
        Ok(Some(Received::Aggregate(std::mem::take(&mut self.partial))))
    }

    /// Returns whether a file fits beside the files of the aggregate that are there already and the
    /// files that are kept. One that never fits is refused when it is accepted.
    fn can_fit(&self, charge: u64, account: &Account) -> bool {
        let file_of = |slice: &'_ Slice| match &slice.extent.source {
            Source::Sealed(file) => Some((Arc::as_ptr(file), file.charged())),
            _ => None,
        };
        let slices = self.partial.slices().chain(self.files.iter().flatten());
        let files: BTreeMap<_, u64> = slices.filter_map(file_of).collect();
        files.values().sum::<u64>() + charge <= account.bytes_max()
    }

    /// Copies the bytes of a frame to the aggregate.
    fn add_bytes(
        &mut self,
        packet: Packet,
        page: Option<&PeerPage>,
        slab: &Slab,
    ) -> Result<(), ChannelError> {
        let length = u64::from(packet.frame.length);
        // Otherwise it might wait for memory that it holds itself.
        if 2 * (self.copied + length) > slab.capacity() {
            return Err(PeerFault::Aggregate.into());
        }
        match copy(&packet, page, slab) {
            Err(error @ ChannelError::NoMemory(_)) => {
                // The next call tries again. A frame of the ring is still there.
                if !matches!(packet.content, Content::InRing) {
                    self.packets.push_front(packet);
                }
                return Err(error);
            }
            copied => self.partial.concatenate(copied?),
        }
        self.copied += length;
        Ok(())
    }

    /// Enters the extents that are still held in the ledgers of their pools. From then on the
    /// frames that were received are passed. Most extents were dropped before, and need no entry.
    pub(super) fn settle(&mut self) -> u64 {
        for (pool, unit) in self.received.drain(..) {
            pool.settle(unit);
        }
        self.position
    }

    /// Acquires a slice of a pool.
    fn find(&mut self, frame: Frame) -> Result<Slice, ChannelError> {
        let pool = self.pools.iter().find(|(number, _)| *number == frame.number);
        let (_, pool) = pool.ok_or(PeerFault::Pool)?;
        let extent = pool.acquire(frame, |offset, bytes| {
            let allocation = Allocation { offset, bytes };
            Arc::new(Extent::in_joined(pool.clone(), allocation, frame.generation))
        });
        let extent = extent.map_err(|error| match error {
            BadReference::NoBlock => PeerFault::Block.into(),
            BadReference::NoExtent => PeerFault::Extent.into(),
            BadReference::Kernel(error) => ChannelError::Kernel("mmap", error),
        })?;
        let (start, length) = (frame.start as usize, frame.length as usize);
        if length == 0 || start + length > extent.filled() {
            return Err(PeerFault::Extent.into());
        }
        self.received.push((pool.clone(), frame.first_unit as usize));
        Ok(Slice::new(extent, start, length))
    }

    /// Finds a slice of a file that the peer has passed now or before.
    fn find_file(
        &mut self,
        packet: Packet,
        options: &ChannelOptions,
    ) -> Result<Slice, ChannelError> {
        let Packet { frame, content } = packet;
        let passed = match content {
            Content::File(file) => {
                // The file that it replaces is not charged any more.
                if let Some(kept) = self.files.get_mut(frame.number as usize) {
                    *kept = None;
                }
                let file = SealedMemory::accept(file, &options.account)?;
                if frame.number != ONCE && file.len() > KEPT_FILE_BYTES_MAX {
                    return Err(PeerFault::File.into());
                }
                Some(Slice::of_file(Arc::new(file))?)
            }
            _ => None,
        };
        let whole = match (passed, self.files.get_mut(frame.number as usize)) {
            (Some(passed), Some(kept)) => kept.insert(passed).clone(),
            (Some(passed), None) if frame.number == ONCE => passed,
            (None, Some(Some(kept))) => kept.clone(),
            _ => return Err(PeerFault::File.into()),
        };
        let (start, length) = (frame.start as usize, frame.length as usize);
        if start + length > whole.len() {
            return Err(PeerFault::File.into());
        }
        Ok(whole.slice(start..start + length))
    }
}
