//! How much of a message's body is still to come: what bytes belong to it, and where its payload is
//! in them.

use std::ops::Range;

use millrace_http1::{ChunkError, ChunkedDecoder, Framing};

/// How much of a message is still to come, by its framing (RFC 9112 section 6).
#[derive(Debug, Default)]
pub(crate) enum BodyProgress {
    /// All of it was seen.
    #[default]
    Complete,
    /// So many bytes, at least one.
    Length(u64),
    Chunked(ChunkedDecoder),
    /// Until the source ends its stream: such a body, or a tunnel.
    UntilClose,
}

impl BodyProgress {
    /// All of a body that arrives so.
    pub(crate) fn new(framing: Framing) -> Self {
        match framing {
            Framing::None | Framing::Length(0) => Self::Complete,
            Framing::Length(length) => Self::Length(length),
            Framing::Chunked => Self::Chunked(ChunkedDecoder::default()),
            Framing::UntilClose => Self::UntilClose,
        }
    }

    /// Takes what of `bytes` belongs to the message: how many bytes, and where among them its
    /// payload is now.
    pub(crate) fn advance(
        &mut self,
        bytes: &mut [u8],
    ) -> Result<(usize, Range<usize>), ChunkError> {
        Ok(match self {
            Self::Complete => (0, 0..0),
            Self::Length(rest) => {
                let count = bytes.len().min(usize::try_from(*rest).unwrap_or(usize::MAX));
                *rest -= count as u64;
                (count, 0..count)
            }
            Self::Chunked(decoder) => {
                let step = decoder.decode(bytes)?;
                (step.consumed, step.payload)
            }
            Self::UntilClose => (bytes.len(), 0..bytes.len()),
        })
    }

    /// Payload that is certain to come next; `None`: until the source ends.
    pub(crate) fn certain_payload(&self) -> Option<u64> {
        match self {
            Self::Complete => Some(0),
            Self::Length(rest) => Some(*rest),
            Self::Chunked(decoder) => Some(decoder.data_left()),
            Self::UntilClose => None,
        }
    }

    /// All bytes that are still to come, where their number is known; 0 where it is not.
    pub(crate) fn expected_bytes(&self) -> u64 {
        match self {
            Self::Length(rest) => *rest,
            Self::Complete | Self::Chunked(_) | Self::UntilClose => 0,
        }
    }

    /// Payload went through a pipe; not more than is certain to come.
    pub(crate) fn skip(&mut self, count: u64) {
        match self {
            Self::Length(rest) => *rest -= count,
            Self::Chunked(decoder) => decoder.skip(count),
            Self::UntilClose => {}
            Self::Complete => assert_eq!(count, 0, "nothing is asked for after the end"),
        }
    }

    pub(crate) fn is_complete(&self) -> bool {
        match self {
            Self::Complete | Self::Length(0) => true,
            Self::Length(_) | Self::UntilClose => false,
            Self::Chunked(decoder) => decoder.is_finished(),
        }
    }

    /// Whether the body breaks its framing behind what was taken.
    pub(crate) fn is_malformed(&self) -> bool {
        matches!(self, Self::Chunked(decoder) if decoder.is_malformed())
    }

    pub(crate) fn trailers(&self) -> &[u8] {
        match self {
            Self::Chunked(decoder) => decoder.trailers(),
            _ => &[],
        }
    }
}
