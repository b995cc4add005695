//! How much of a message body is still to come: which bytes belong to it, and which of them are
//! payload.

use std::ops::Range;

use millrace_http1::{ChunkError, ChunkedDecoder, Framing};

/// The remaining part of a message body, by its framing (RFC 9112 section 6).
#[derive(Debug, Default)]
pub(crate) enum BodyProgress {
    /// The whole body has been received.
    #[default]
    Complete,
    /// This many bytes, at least one.
    Length(u64),
    Chunked(ChunkedDecoder),
    /// The end of the source's stream delimits the rest, as in a tunnel.
    UntilClose,
}

impl BodyProgress {
    /// Returns the progress at the beginning of a body with this framing.
    pub(crate) fn new(framing: Framing) -> Self {
        match framing {
            Framing::None | Framing::Length(0) => Self::Complete,
            Framing::Length(length) => Self::Length(length),
            Framing::Chunked => Self::Chunked(ChunkedDecoder::default()),
            Framing::UntilClose => Self::UntilClose,
        }
    }

    /// Consumes the bytes of `bytes` that belong to the body. Returns their number, and the range
    /// in which their payload is now.
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

    /// Returns the number of payload bytes that come next without framing between them. `None` if
    /// the end of the stream delimits the body.
    pub(crate) fn certain_payload(&self) -> Option<u64> {
        match self {
            Self::Complete => Some(0),
            Self::Length(rest) => Some(*rest),
            Self::Chunked(decoder) => Some(decoder.data_left()),
            Self::UntilClose => None,
        }
    }

    /// Returns the number of bytes that are still to come, or 0 if it is unknown.
    pub(crate) fn expected_bytes(&self) -> u64 {
        match self {
            Self::Length(rest) => *rest,
            Self::Complete | Self::Chunked(_) | Self::UntilClose => 0,
        }
    }

    /// Notes payload that bypassed this decoder, such as bytes in a pipe. `count` is at most
    /// `certain_payload`.
    pub(crate) fn skip(&mut self, count: u64) {
        match self {
            Self::Length(rest) => *rest -= count,
            Self::Chunked(decoder) => decoder.skip(count),
            Self::UntilClose => {}
            Self::Complete => assert_eq!(count, 0, "no byte is requested after the end"),
        }
    }

    pub(crate) fn is_complete(&self) -> bool {
        match self {
            Self::Complete | Self::Length(0) => true,
            Self::Length(_) | Self::UntilClose => false,
            Self::Chunked(decoder) => decoder.is_finished(),
        }
    }

    /// Returns whether the framing is broken after the consumed bytes.
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
