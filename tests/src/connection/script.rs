//! The events of a connection, as bytes: a format that a fuzzer can change anywhere and that a
//! person can still read.
//!
//! The first byte chooses the role and the world (see [`Script::parse`]). The other bytes are the
//! bytes of the client, with marks between them. A mark is the byte 0xF5, which no message needs,
//! and an ASCII character.
//!
//! | character | meaning |
//! | --- | --- |
//! | `o` | the origin's next response begins; each request at the origin takes one, in order |
//! | `c` | the client continues |
//! | `\|` | the bytes before are read before the bytes after it are sent |
//! | `e` | the current side ends: the client its stream, the origin its connection |
//! | `r` | the current side resets its connection |
//! | `h` | in a response: the bytes after it wait for the end of the request |
//!
//! A response begins when its request is complete. A response with `h` begins when the header of
//! its request has arrived. If any other byte follows 0xF5, both bytes are sent.

use crate::corpus::case::Case;
use crate::corpus::literal::{Role, Step, Substitutions, fill};

/// The address of the origin.
pub const HOST: &str = "127.0.0.1:8000";
/// The address of the proxy.
pub const OWN: &str = "127.0.0.1:8001";

const MARK: u8 = 0xf5;

/// Limit of a script in bytes. Longer scripts test nothing that shorter ones do not.
const BYTES_MAX: usize = 8192;

/// If the script requests that bytes are sent one by one, the limit of these bytes between two
/// marks. The rest is sent at once.
const ALONE_MAX: usize = 200;

/// One action on a socket.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum SocketAction {
    /// Send these bytes, then pause so that the other side reads them.
    Send(Vec<u8>),
    /// Wait for the end of the request.
    Body,
    /// End the stream, or, at an origin, the connection.
    End,
    /// Reset the connection.
    Reset,
}

/// The connection to play.
#[derive(Clone, Debug)]
pub(super) struct Script {
    pub(super) role: Role,
    /// Whether the world splits and delays bytes.
    pub(super) has_faults: bool,
    /// The seed of the world.
    pub(super) seed: u64,
    pub(super) client: Vec<SocketAction>,
    pub(super) responses: Vec<Vec<SocketAction>>,
}

impl Script {
    /// Parses arbitrary bytes. In the first byte, bit 0 selects a forward proxy, bit 1 sends every
    /// byte separately, and bit 2 selects a world that splits and delays, whose seed is in the
    /// other bits.
    pub(super) fn parse(data: &[u8]) -> Self {
        let (flags, rest) = data.split_first().map_or((0, data), |(flags, rest)| (*flags, rest));
        let rest = &rest[..rest.len().min(BYTES_MAX)];
        let mut script = Self {
            role: if flags & 1 == 0 { Role::Boost } else { Role::Forward },
            has_faults: flags & 4 != 0,
            seed: u64::from(flags >> 3),
            client: Vec::new(),
            responses: Vec::new(),
        };
        let mut to_client = true;
        let mut sent_bytes = Vec::new();
        let mut bytes = rest.iter();
        while let Some(byte) = bytes.next() {
            let mark = if *byte == MARK { bytes.next() } else { None };
            let action = match mark {
                Some(b'o' | b'c' | b'|') => None,
                Some(b'e') => Some(SocketAction::End),
                Some(b'r') => Some(SocketAction::Reset),
                Some(b'h') if !to_client => Some(SocketAction::Body),
                other => {
                    sent_bytes.push(*byte);
                    sent_bytes.extend(other);
                    continue;
                }
            };
            script.push_bytes(to_client, &mut sent_bytes, flags & 2 != 0);
            script.actions(to_client).extend(action);
            match mark {
                Some(b'o') => {
                    script.responses.push(Vec::new());
                    to_client = false;
                }
                Some(b'c') => to_client = true,
                _ => {}
            }
        }
        script.push_bytes(to_client, &mut sent_bytes, flags & 2 != 0);
        script
    }

    fn actions(&mut self, to_client: bool) -> &mut Vec<SocketAction> {
        match self.responses.last_mut() {
            Some(response) if !to_client => response,
            _ => &mut self.client,
        }
    }

    fn push_bytes(&mut self, to_client: bool, sent_bytes: &mut Vec<u8>, alone: bool) {
        let sent_bytes = std::mem::take(sent_bytes);
        let (singles, rest) =
            sent_bytes.split_at(if alone { sent_bytes.len().min(ALONE_MAX) } else { 0 });
        let actions = self.actions(to_client);
        actions.extend(singles.chunks(1).map(|byte| SocketAction::Send(byte.to_owned())));
        if !rest.is_empty() {
            actions.push(SocketAction::Send(rest.to_owned()));
        }
    }
}

/// Returns all bytes that are sent. There are none after an end.
pub(super) fn sent_bytes(actions: &[SocketAction]) -> Vec<u8> {
    let mut all = Vec::new();
    for action in actions {
        match action {
            SocketAction::Send(bytes) => all.extend_from_slice(bytes),
            SocketAction::Body => {}
            SocketAction::End | SocketAction::Reset => break,
        }
    }
    all
}

/// Converts a case of the hostile corpus to a script for [`super::fuzz_connection`], or returns
/// `None` if it is too long. `cut` sends every byte separately.
pub fn encode_case(case: &Case, role: Role, cut: bool) -> Option<Vec<u8>> {
    let substitutions = Substitutions {
        host: HOST.to_owned(),
        role,
        own: OWN.to_owned(),
        via: "millrace".to_owned(),
    };
    let mut script = vec![u8::from(role == Role::Forward) | u8::from(cut) << 1];
    let mut write = |steps: &[Step]| {
        for step in steps {
            let mark = match step {
                Step::Bytes(bytes) => {
                    script.extend_from_slice(bytes);
                    continue;
                }
                Step::Pause | Step::Wait => b'|',
                Step::End | Step::Close => b'e',
                Step::Reset => b'r',
                Step::Body => b'h',
            };
            script.extend([MARK, mark]);
        }
    };
    write(&fill(&case.sent, &substitutions, true).ok()?.steps);
    for sent_bytes in &case.responses {
        write(&[Step::Bytes(vec![MARK, b'o'])]);
        write(&fill(sent_bytes, &substitutions, false).ok()?.steps);
    }
    (script.len() <= BYTES_MAX).then_some(script)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_split_the_bytes() {
        let script = Script::parse(b"\x04GE\xf5|T\xf5oHTTP\xf5h/1\xf5e\xf5c /\xf5x\xf5e");
        let push_bytes = |bytes: &[u8]| SocketAction::Send(bytes.to_owned());
        assert!(script.has_faults && script.role == Role::Boost);
        assert_eq!(
            script.client,
            [push_bytes(b"GE"), push_bytes(b"T"), push_bytes(b" /\xf5x"), SocketAction::End]
        );
        assert_eq!(
            script.responses,
            [vec![push_bytes(b"HTTP"), SocketAction::Body, push_bytes(b"/1"), SocketAction::End]]
        );
        assert_eq!(sent_bytes(&script.client), b"GET /\xf5x");
        assert_eq!(sent_bytes(&Script::parse(b"\0a\xf5eb").client), b"a");
        let script = Script::parse(b"\x03ab");
        assert_eq!(script.client, [push_bytes(b"a"), push_bytes(b"b")]);
        assert!(Script::parse(b"").client.is_empty());
    }
}
