//! Frames: the messages between the two processes of a channel, in a ring or as packets.

/// The bytes of a frame, in a packet; the same as 4 words of a ring.
pub(crate) const FRAME_BYTES: usize = 32;
pub(crate) const FRAME_WORDS: usize = 4;

/// A frame. The meaning of its numbers depends on the kind.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Frame {
    pub(crate) kind: FrameKind,
    /// The aggregate ends with this frame.
    pub(crate) is_last: bool,
    /// The number of units of the extent.
    pub(crate) units: u16,
    /// The sender's number of a pool or a file.
    pub(crate) number: u32,
    /// The first unit of the extent; a slot; or a number of slots or frames.
    pub(crate) first_unit: u32,
    /// The version of the block.
    pub(crate) version: u32,
    /// The offset of the slice in the extent or file, in bytes.
    pub(crate) start: u32,
    /// The length of the slice in bytes.
    pub(crate) length: u32,
    pub(crate) generation: u64,
}

/// The kinds of frames. The numbers are part of the protocol.
#[repr(u8)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum FrameKind {
    /// Part of an aggregate: a slice of a pool.
    Reference = 1,
    /// Part of an aggregate: the bytes follow in the packet.
    Bytes = 2,
    /// Part of an aggregate: a range of a sealed file. The packet has the file if it is new to the
    /// receiver, or is not kept.
    File = 3,
    /// An aggregate of no bytes.
    Empty = 4,
    /// A file that the receiver can forget; no part of an aggregate.
    Forget = 5,
    /// Text that precedes an aggregate: bytes, as for `Bytes`.
    Text = 6,
    /// In a ring: the next frame is in a packet.
    InPacket = 7,
    /// The first packet: the number of frames in the sender's ring (0: none). Files: the sender's
    /// page, and its process.
    Hello = 16,
    /// An invitation to a pool with a number of slots.
    Pool = 17,
    /// The member has joined. File: the ledger.
    Ledger = 18,
    /// A version of the block in a slot. File: the block.
    Block = 19,
    /// That version of a slot's block is not used any more.
    Retired = 20,
    /// A pool has ended: nothing refers to it any more.
    PoolEnded = 21,
    /// The sender has put something into its ring.
    Wake = 22,
}

impl FrameKind {
    fn of(number: u8) -> Option<Self> {
        Some(match number {
            1 => Self::Reference,
            2 => Self::Bytes,
            3 => Self::File,
            4 => Self::Empty,
            5 => Self::Forget,
            6 => Self::Text,
            7 => Self::InPacket,
            16 => Self::Hello,
            17 => Self::Pool,
            18 => Self::Ledger,
            19 => Self::Block,
            20 => Self::Retired,
            21 => Self::PoolEnded,
            22 => Self::Wake,
            _ => return None,
        })
    }

    /// Returns whether frames of this kind keep their order.
    pub(crate) fn is_data(self) -> bool {
        (self as u8) < Self::InPacket as u8
    }
}

impl Frame {
    pub(crate) fn new(kind: FrameKind) -> Self {
        Self {
            kind,
            is_last: false,
            units: 0,
            number: 0,
            first_unit: 0,
            version: 0,
            start: 0,
            length: 0,
            generation: 0,
        }
    }

    pub(crate) fn to_words(self) -> [u64; FRAME_WORDS] {
        let kind = self.kind as u32 | u32::from(self.is_last) << 8 | u32::from(self.units) << 16;
        let pair = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
        [
            pair(kind, self.number),
            pair(self.first_unit, self.version),
            pair(self.start, self.length),
            self.generation,
        ]
    }

    /// Returns `None` for words that are no frame.
    pub(crate) fn from_words(words: [u64; FRAME_WORDS]) -> Option<Self> {
        let [first, block, range, generation] = words;
        let kind = FrameKind::of(first as u8)?;
        let is_last = match first >> 8 & 0xff {
            0 => false,
            1 => true,
            _ => return None,
        };
        Some(Self {
            kind,
            is_last,
            units: (first >> 16) as u16,
            number: (first >> 32) as u32,
            first_unit: block as u32,
            version: (block >> 32) as u32,
            start: range as u32,
            length: (range >> 32) as u32,
            generation,
        })
    }

    pub(crate) fn to_bytes(self) -> [u8; FRAME_BYTES] {
        let mut bytes = [0; FRAME_BYTES];
        for (place, word) in bytes.chunks_exact_mut(8).zip(self.to_words()) {
            place.copy_from_slice(&word.to_ne_bytes());
        }
        bytes
    }

    pub(crate) fn from_bytes(bytes: &[u8; FRAME_BYTES]) -> Option<Self> {
        let mut words = [0; FRAME_WORDS];
        for (word, place) in words.iter_mut().zip(bytes.chunks_exact(8)) {
            *word = u64::from_ne_bytes(place.try_into().expect("8 bytes"));
        }
        Self::from_words(words)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_decoded_as_they_were_encoded() {
        let kinds: Vec<FrameKind> = (0..=u8::MAX).filter_map(FrameKind::of).collect();
        assert_eq!(kinds.len(), 14);
        for kind in kinds {
            let frame = Frame {
                kind,
                is_last: true,
                units: 512,
                number: 7,
                first_unit: u32::MAX,
                version: 5,
                start: 3,
                length: u32::MAX - 1,
                generation: 1 << 60,
            };
            assert_eq!(Frame::from_bytes(&frame.to_bytes()), Some(frame));
            assert_eq!(Frame::from_words(frame.to_words()), Some(frame));
        }
        assert_eq!(Frame::from_bytes(&[0; FRAME_BYTES]), None);
        assert_eq!(Frame::from_words([FrameKind::Bytes as u64 | 2 << 8, 0, 0, 0]), None);
    }
}
