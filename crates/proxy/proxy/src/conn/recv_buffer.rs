//! The receive buffer of a connection. The engine lends received bytes for the turn in which they
//! arrive. They are copied into memory of the connection only if they are needed longer.

use millrace_engine::{Buffer, Engine, HeldBytes};

/// Unread bytes. The buffer of an idle connection is `Empty` and owns no memory.
#[derive(Debug, Default)]
pub(crate) enum RecvBuffer {
    #[default]
    Empty,
    /// A buffer of the engine, of which the first `read` bytes are consumed; `read <=
    /// buffer.len()`. It never outlives the handling of one completion: see [`RecvBuffer::settle`].
    Lent { buffer: Buffer, read: usize },
    /// At least one unread byte in memory of the connection.
    Held(HeldBytes),
}

impl RecvBuffer {
    #[inline(always)]
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

    /// Returns whether a buffer of the engine has to be returned.
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

    /// Accepts a buffer that the engine lent. Its bytes are appended to those still unread.
    pub(crate) fn accept(&mut self, buffer: Buffer, engine: &mut impl Engine) {
        match self {
            Self::Held(held) => {
                held.append(&buffer);
                engine.recycle(buffer);
            }
            Self::Lent { .. } => {
                unreachable!("a completion lends one buffer, which is settled after it")
            }
            Self::Empty => *self = Self::Lent { buffer, read: 0 },
        }
    }

    /// Returns a lent buffer to the engine, after copying its unread bytes. Called at the end of
    /// the handling of the completion that lent it.
    pub(crate) fn settle(&mut self, engine: &mut impl Engine) {
        match std::mem::take(self) {
            Self::Lent { buffer, read } => {
                if read < buffer.len() {
                    *self = Self::Held(HeldBytes::copy(engine.budget(), &[&buffer[read..]]));
                }
                engine.recycle(buffer);
            }
            kept @ (Self::Held(_) | Self::Empty) => *self = kept,
        }
    }

    /// Discards all unread bytes.
    pub(crate) fn clear(&mut self, engine: &mut impl Engine) {
        if let Self::Lent { buffer, .. } = std::mem::take(self) {
            engine.recycle(buffer);
        }
    }
}
