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
    /// The sender's number of a pool or a file.
    pub(crate) number: u32,
    pub(crate) offset: u64,
    pub(crate) length: u32,
    /// The bytes of the extent in front of the slice.
    pub(crate) before: u32,
    pub(crate) generation: u64,
}

/// The kinds of frames. The numbers are part of the protocol.
#[repr(u8)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum FrameKind {
    /// Part of an aggregate: a slice of a pool. `offset` is that of its extent.
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
    /// In a ring: the next frame is in a packet.
    InPacket = 6,
    /// The first packet: `offset` is the number of frames in the sender's ring (0: none). Files:
    /// the sender's page, and its process.
    Hello = 16,
    /// An invitation to a pool of `length` slots. File: the table.
    Pool = 17,
    /// The member has joined. File: the ledger.
    Ledger = 18,
    /// A block of a pool: slot `offset` has version `generation`. File: the block.
    Block = 19,
    /// That version of a slot's block is not used any more.
    Retired = 20,
    /// The sender has put something into its ring.
    Wake = 21,
}

impl FrameKind {
    const ALL: [Self; 12] = [
        Self::Reference,
        Self::Bytes,
        Self::File,
        Self::Empty,
        Self::Forget,
        Self::InPacket,
        Self::Hello,
        Self::Pool,
        Self::Ledger,
        Self::Block,
        Self::Retired,
        Self::Wake,
    ];

    /// Returns whether frames of this kind keep their order.
    pub(crate) fn is_data(self) -> bool {
        (self as u8) < Self::InPacket as u8
    }
}

impl Frame {
    pub(crate) fn new(kind: FrameKind) -> Self {
        Self { kind, is_last: false, number: 0, offset: 0, length: 0, before: 0, generation: 0 }
    }

    pub(crate) fn to_words(self) -> [u64; FRAME_WORDS] {
        let kind = self.kind as u64 | u64::from(self.is_last) << 8;
        [
            kind | u64::from(self.number) << 32,
            self.offset,
            u64::from(self.length) | u64::from(self.before) << 32,
            self.generation,
        ]
    }

    /// Returns `None` for words that are no frame.
    pub(crate) fn from_words(words: [u64; FRAME_WORDS]) -> Option<Self> {
        let [first, offset, lengths, generation] = words;
        let kind = FrameKind::ALL.into_iter().find(|kind| *kind as u64 == first & 0xff)?;
        let is_last = match first >> 8 & 0x00ff_ffff {
            0 => false,
            1 => true,
            _ => return None,
        };
        Some(Self {
            kind,
            is_last,
            number: (first >> 32) as u32,
            offset,
            length: lengths as u32,
            before: (lengths >> 32) as u32,
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
        for kind in FrameKind::ALL {
            let frame = Frame {
                kind,
                is_last: true,
                number: 7,
                offset: u64::MAX - 1,
                length: u32::MAX,
                before: 3,
                generation: 1 << 60,
            };
            assert_eq!(Frame::from_bytes(&frame.to_bytes()), Some(frame));
            assert_eq!(Frame::from_words(frame.to_words()), Some(frame));
        }
        assert_eq!(Frame::from_bytes(&[0; FRAME_BYTES]), None);
        assert_eq!(Frame::from_words([FrameKind::Bytes as u64 | 2 << 8, 0, 0, 0]), None);
    }
}
