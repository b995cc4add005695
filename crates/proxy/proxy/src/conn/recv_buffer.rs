//! Received bytes that a connection has not consumed yet: lent by the engine during the turn in
//! which they came, copied into memory of the connection's own only if they must stay longer.

use millrace_engine::{Buffer, Engine, Held};

/// Unread bytes. An idle connection's is `Empty` and owns no memory.
#[derive(Debug, Default)]
pub(crate) enum RecvBuffer {
    #[default]
    Empty,
    /// The engine's buffer, of which the first `read` bytes are consumed; `read <= buffer.len()`.
    /// Never outlives the handling of one completion: see [`RecvBuffer::settle`].
    Lent { buffer: Buffer, read: usize },
    /// At least one byte is unread.
    Held(Held),
}

impl RecvBuffer {
    #[inline]
    pub(crate) fn bytes(&self) -> &[u8] {
        match self {
            Self::Empty => &[],
            Self::Lent { buffer, read } => &buffer[*read..],
            Self::Held(held) => held,
        }
    }

    #[inline]
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        match self {
            Self::Empty => &mut [],
            Self::Lent { buffer, read } => &mut buffer[*read..],
            Self::Held(held) => held,
        }
    }

    /// Whether the engine's buffer is to be returned.
    #[inline]
    pub(crate) fn is_lent(&self) -> bool {
        matches!(self, Self::Lent { .. })
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.bytes().is_empty()
    }

    #[inline]
    pub(crate) fn consume(&mut self, count: usize) {
        match self {
            Self::Empty => assert_eq!(count, 0),
            Self::Lent { buffer, read } => {
                assert!(count <= buffer.len() - *read);
                *read += count;
            }
            Self::Held(held) => {
                held.consume(count);
                if held.is_empty() {
                    *self = Self::Empty;
                }
            }
        }
    }

    /// Takes a buffer that the engine lent; its bytes come after those that are still unread.
    pub(crate) fn accept(&mut self, buffer: Buffer, engine: &mut impl Engine) {
        match self {
            Self::Held(held) => {
                held.append(&buffer);
                engine.recycle(buffer);
            }
            Self::Lent { .. } => unreachable!("one completion lends one buffer, settled after it"),
            Self::Empty => *self = Self::Lent { buffer, read: 0 },
        }
    }

    /// Gives a lent buffer back, after copying what is unread of it. Called when the handling of
    /// the completion that lent it is over.
    pub(crate) fn settle(&mut self, engine: &mut impl Engine) {
        match std::mem::take(self) {
            Self::Lent { buffer, read } => {
                if read < buffer.len() {
                    *self = Self::Held(Held::copy(engine.budget(), &[&buffer[read..]]));
                }
                engine.recycle(buffer);
            }
            kept @ (Self::Held(_) | Self::Empty) => *self = kept,
        }
    }

    /// Forgets everything unread.
    pub(crate) fn clear(&mut self, engine: &mut impl Engine) {
        if let Self::Lent { buffer, .. } = std::mem::take(self) {
            engine.recycle(buffer);
        }
    }
}
