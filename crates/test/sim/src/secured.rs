//! The check that no secured connection carries plaintext.

use std::collections::BTreeMap;

/// A part of every header, request or response, which must not be seen outside of a record.
const PLAINTEXT: &[u8] = b"HTTP/1.";

/// The connections that must carry records only.
#[derive(Debug, Default)]
pub(crate) struct SecuredConnections {
    /// For each connection and direction, the last bytes, in which the plaintext may begin.
    tails: BTreeMap<usize, [Vec<u8>; 2]>,
    /// The first connection that carried plaintext, and the side that sent it.
    found: Option<(usize, usize)>,
}

impl SecuredConnections {
    /// Adds a connection. `sent` has what each side has sent so far.
    pub(crate) fn add(&mut self, connection: usize, sent: [&[u8]; 2]) {
        self.tails.insert(connection, Default::default());
        for (side, bytes) in sent.into_iter().enumerate() {
            self.check(connection, side, bytes);
        }
    }

    /// Checks bytes that a side of a connection sends.
    pub(crate) fn check(&mut self, connection: usize, side: usize, bytes: &[u8]) {
        let Some(tails) = self.tails.get_mut(&connection) else { return };
        let tail = &mut tails[side];
        tail.extend_from_slice(bytes);
        if tail.windows(PLAINTEXT.len()).any(|window| window == PLAINTEXT) {
            self.found.get_or_insert((connection, side));
        }
        tail.drain(..tail.len().saturating_sub(PLAINTEXT.len() - 1));
    }

    /// Returns the first connection that carried plaintext, and the side that sent it.
    pub(crate) fn found(&self) -> Option<(usize, usize)> {
        self.found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plaintext_is_found_however_it_is_cut() {
        let mut secured = SecuredConnections::default();
        secured.check(1, 0, b"HTTP/1.1 200");
        secured.add(2, [b"GET / HT", b""]);
        secured.check(2, 1, b"TP/1.1");
        assert_eq!(secured.found(), None, "a plain connection, and the other direction");
        secured.check(2, 0, b"TP/1");
        secured.check(2, 0, b".1");
        assert_eq!(secured.found(), Some((2, 0)));
    }
}
