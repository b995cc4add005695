//! Tokens, which name the object that queued an operation. A stale token is recognised by its
//! generation.

use std::fmt;

/// The kind of object that a token names. The worker dispatches on it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum TokenKind {
    /// A listening socket. The slot is its index in the configuration.
    Listener = 1,
    /// A client connection.
    Client = 2,
    /// An origin connection.
    Origin = 3,
    /// The socket of a name lookup.
    Name = 4,
    /// One attempt to connect to a candidate address.
    Dial = 5,
    /// The worker itself, with slot 0. Completions of the engine's waker carry it.
    Worker = 6,
    /// An exchange. Wake-ups carry it.
    Exchange = 7,
    /// A body that is received into the cache.
    Fill = 8,
    /// A connection to a program.
    Program = 9,
}

/// An object's kind, slot and generation. A completion is stale if its generation differs from the
/// slot's current one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token(u64);

impl Token {
    /// The largest slot that a token can name.
    pub const SLOT_MAX: u32 = (1 << 24) - 1;

    /// Creates a token for `slot` of the table of `kind`.
    ///
    /// # Panics
    /// Panics if `slot` is above [`Token::SLOT_MAX`]. A [`Table`](crate::Table) has no such slot.
    pub const fn new(kind: TokenKind, slot: u32, generation: u32) -> Self {
        assert!(slot <= Self::SLOT_MAX);
        Self((kind as u64) << 56 | (slot as u64) << 32 | generation as u64)
    }

    /// Returns the kind, which selects the table.
    pub const fn kind(self) -> TokenKind {
        match (self.0 >> 56) as u8 {
            1 => TokenKind::Listener,
            2 => TokenKind::Client,
            3 => TokenKind::Origin,
            4 => TokenKind::Name,
            5 => TokenKind::Dial,
            6 => TokenKind::Worker,
            7 => TokenKind::Exchange,
            8 => TokenKind::Fill,
            9 => TokenKind::Program,
            _ => panic!("only Token::new creates tokens"),
        }
    }

    /// Returns the index in the table that [`Token::kind`] selects.
    pub const fn slot(self) -> u32 {
        (self.0 >> 32) as u32 & Self::SLOT_MAX
    }

    /// Returns the generation, which distinguishes successive objects in one slot.
    pub const fn generation(self) -> u32 {
        self.0 as u32
    }

    /// Returns the token as an opaque number.
    pub const fn to_bits(self) -> u64 {
        self.0
    }

    /// Restores a token from the result of [`Token::to_bits`].
    pub const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}:{}.{}", self.kind(), self.slot(), self.generation())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_returns_its_parts() {
        use TokenKind::{Client, Dial, Exchange, Fill, Listener, Name, Origin, Program, Worker};
        for kind in [Listener, Client, Origin, Name, Dial, Worker, Exchange, Fill, Program] {
            for (slot, generation) in [(0, 0), (7, u32::MAX), (Token::SLOT_MAX, 1)] {
                let token = Token::from_bits(Token::new(kind, slot, generation).to_bits());
                assert_eq!(
                    (token.kind(), token.slot(), token.generation()),
                    (kind, slot, generation)
                );
            }
        }
    }
}
