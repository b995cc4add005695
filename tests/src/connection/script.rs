//! What happens on a connection, as bytes: a form that a fuzzer can change anywhere and that a
//! person can still read.
//!
//! The first byte chooses the role and the world (see [`Script::parse`]). What follows is what the
//! client sends, with marks in it: the byte 0xF5, which no message needs, and a letter.
//!
//! | letter | means |
//! | --- | --- |
//! | `o` | the origin's next answer begins; each request at the origin takes one, in order |
//! | `c` | the client goes on |
//! | `\|` | what stands before is read before what follows is sent |
//! | `e` | whose turn it is ends its side: the client its stream, the origin its connection |
//! | `r` | whose turn it is resets its connection |
//! | `h` | in an answer: what stands before is said at the request's head, the rest at its end |
//!
//! Before another byte the mark means both bytes.

use crate::corpus::case::Case;
use crate::corpus::literal::{Role, Step, Substitutions, fill};

/// Where the origin listens.
pub const HOST: &str = "127.0.0.1:8000";
/// Where the proxy listens.
pub const OWN: &str = "127.0.0.1:8001";

const MARK: u8 = 0xf5;

/// Bytes of a script; what is longer tells nothing that a shorter one would not.
const BYTES_MAX: usize = 8192;

/// Bytes that are sent alone where a script is cut everywhere; the rest goes at once.
const ALONE_MAX: usize = 200;

/// One thing to do at a socket.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Act {
    /// Send these bytes and let them be read.
    Say(Vec<u8>),
    /// Wait for the request's end.
    Body,
    /// End the stream, or an origin its connection.
    End,
    /// Reset the connection.
    Reset,
}

/// A connection to be played.
#[derive(Clone, Debug)]
pub(super) struct Script {
    pub(super) role: Role,
    /// Whether the world cuts and delays.
    pub(super) unkind: bool,
    /// Of the world.
    pub(super) seed: u64,
    pub(super) client: Vec<Act>,
    pub(super) answers: Vec<Vec<Act>>,
}

impl Script {
    /// Reads any bytes. Of the first one bit 0 means a forward proxy, bit 1 every byte alone, bit 2
    /// a world that cuts and delays, whose seed the other bits are.
    pub(super) fn parse(data: &[u8]) -> Self {
        let (flags, rest) = data.split_first().map_or((0, data), |(flags, rest)| (*flags, rest));
        let rest = &rest[..rest.len().min(BYTES_MAX)];
        let mut script = Self {
            role: if flags & 1 == 0 { Role::Boost } else { Role::Forward },
            unkind: flags & 4 != 0,
            seed: u64::from(flags >> 3),
            client: Vec::new(),
            answers: Vec::new(),
        };
        let mut to_client = true;
        let mut said = Vec::new();
        let mut bytes = rest.iter();
        while let Some(byte) = bytes.next() {
            let mark = if *byte == MARK { bytes.next() } else { None };
            let act = match mark {
                Some(b'o' | b'c' | b'|') => None,
                Some(b'e') => Some(Act::End),
                Some(b'r') => Some(Act::Reset),
                Some(b'h') if !to_client => Some(Act::Body),
                other => {
                    said.push(*byte);
                    said.extend(other);
                    continue;
                }
            };
            script.say(to_client, &mut said, flags & 2 != 0);
            script.acts(to_client).extend(act);
            match mark {
                Some(b'o') => {
                    script.answers.push(Vec::new());
                    to_client = false;
                }
                Some(b'c') => to_client = true,
                _ => {}
            }
        }
        script.say(to_client, &mut said, flags & 2 != 0);
        script
    }

    fn acts(&mut self, to_client: bool) -> &mut Vec<Act> {
        match self.answers.last_mut() {
            Some(answer) if !to_client => answer,
            _ => &mut self.client,
        }
    }

    fn say(&mut self, to_client: bool, said: &mut Vec<u8>, alone: bool) {
        let said = std::mem::take(said);
        let (singles, rest) = said.split_at(if alone { said.len().min(ALONE_MAX) } else { 0 });
        let acts = self.acts(to_client);
        acts.extend(singles.chunks(1).map(|byte| Act::Say(byte.to_owned())));
        if !rest.is_empty() {
            acts.push(Act::Say(rest.to_owned()));
        }
    }
}

/// All bytes that are said: nothing is after an end.
pub(super) fn said(acts: &[Act]) -> Vec<u8> {
    let mut all = Vec::new();
    for act in acts {
        match act {
            Act::Say(bytes) => all.extend_from_slice(bytes),
            Act::Body => {}
            Act::End | Act::Reset => break,
        }
    }
    all
}

/// A case of the hostile corpus as a script for [`super::fuzz_connection`]; `None` if it is too
/// long. `cut` says whether every byte comes alone.
pub fn of_case(case: &Case, role: Role, cut: bool) -> Option<Vec<u8>> {
    let place = Substitutions {
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
    write(&fill(&case.sent, &place, true).ok()?.steps);
    for said in &case.said {
        write(&[Step::Bytes(vec![MARK, b'o'])]);
        write(&fill(said, &place, false).ok()?.steps);
    }
    (script.len() <= BYTES_MAX).then_some(script)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_part_what_is_said() {
        let script = Script::parse(b"\x04GE\xf5|T\xf5oHTTP\xf5h/1\xf5e\xf5c /\xf5x\xf5e");
        let say = |bytes: &[u8]| Act::Say(bytes.to_owned());
        assert!(script.unkind && script.role == Role::Boost);
        assert_eq!(script.client, [say(b"GE"), say(b"T"), say(b" /\xf5x"), Act::End]);
        assert_eq!(script.answers, [vec![say(b"HTTP"), Act::Body, say(b"/1"), Act::End]]);
        assert_eq!(said(&script.client), b"GET /\xf5x");
        assert_eq!(said(&Script::parse(b"\0a\xf5eb").client), b"a");
        let script = Script::parse(b"\x03ab");
        assert_eq!(script.client, [say(b"a"), say(b"b")]);
        assert!(Script::parse(b"").client.is_empty());
    }
}
