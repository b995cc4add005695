//! The literals of a case: bytes in a readable form, and the marks between them.

use std::ops::Range;

/// The command of the program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// `millrace boost`: targets are in origin-form.
    Boost,
    /// `millrace forward`: targets are in absolute-form.
    Forward,
}

/// The values of the placeholders.
#[derive(Clone, Debug)]
pub struct Substitutions {
    /// The origin's address and port.
    pub host: String,
    /// The role, which decides what `{/path}` becomes in the client's bytes.
    pub role: Role,
    /// The program's own address and port.
    pub own: String,
    /// The program's pseudonym in Via.
    pub via: String,
}

/// One action on a connection.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Step {
    /// Send these bytes in one write.
    Bytes(Vec<u8>),
    /// Pause, so that the other side reads the preceding bytes first.
    Pause,
    /// A client waits for one more response, which may be interim.
    Wait,
    /// A client ends its stream.
    End,
    /// A client resets its connection and leaves.
    Reset,
    /// An origin waits for the end of the request. It sends the bytes before this step as soon as
    /// the request header has arrived.
    Body,
    /// An origin closes the connection.
    Close,
}

/// A literal with its placeholders replaced.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Literal {
    /// The actions, in order; no two neighbours are both `Bytes`.
    pub steps: Vec<Step>,
    /// The ranges of the joined bytes that contain the origin's or the program's address.
    pub fixed: Vec<Range<usize>>,
    length: usize,
}

impl Literal {
    /// Returns a literal that consists only of bytes.
    pub fn of(bytes: Vec<u8>) -> Self {
        let length = bytes.len();
        Self { steps: vec![Step::Bytes(bytes)], fixed: Vec::new(), length }
    }

    /// Returns all bytes, without the marks between them.
    pub fn bytes(&self) -> Vec<u8> {
        let mut all = Vec::with_capacity(self.length);
        for step in &self.steps {
            if let Step::Bytes(bytes) = step {
                all.extend_from_slice(bytes);
            }
        }
        all
    }

    fn push(&mut self, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        self.length += bytes.len();
        match self.steps.last_mut() {
            Some(Step::Bytes(last)) => last.extend_from_slice(bytes),
            _ => self.steps.push(Step::Bytes(bytes.to_owned())),
        }
    }

    fn push_fixed(&mut self, bytes: &[u8]) {
        self.fixed.push(self.length..self.length + bytes.len());
        self.push(bytes);
    }
}

/// Replaces the placeholders in a block of lines. Each line ends in CR LF unless its last character
/// is a backslash.
///
/// With `sent`, the lines are those of a client: for a forward proxy, `{/path}` becomes
/// absolute-form.
///
/// # Errors
/// Returns the mark or escape that is unknown.
pub fn fill(
    lines: &[String],
    substitutions: &Substitutions,
    sent: bool,
) -> Result<Literal, String> {
    let mut literal = Literal::default();
    for line in lines {
        let slashes = line.len() - line.trim_end_matches('\\').len();
        let open = slashes % 2 == 1;
        let text = &line[..line.len() - usize::from(open)];
        fill_line(text, substitutions, sent, &mut literal)?;
        if !open {
            literal.push(b"\r\n");
        }
    }
    Ok(literal)
}

fn fill_line(
    text: &str,
    substitutions: &Substitutions,
    sent: bool,
    to: &mut Literal,
) -> Result<(), String> {
    let mut rest = text;
    while let Some(at) = rest.find(['\\', '{']) {
        to.push(&rest.as_bytes()[..at]);
        rest = &rest[at..];
        if rest.starts_with('\\') {
            let (byte, length) = escape(rest)?;
            to.push(&[byte]);
            rest = &rest[length..];
        } else {
            let end = closing(rest).ok_or_else(|| format!("no }} after {rest}"))?;
            mark(&rest[1..end], substitutions, sent, to)?;
            rest = &rest[end + 1..];
        }
    }
    to.push(rest.as_bytes());
    Ok(())
}

/// Returns the position of the brace that closes the first one of `text`.
fn closing(text: &str) -> Option<usize> {
    let bytes = text.as_bytes();
    (1..bytes.len()).find(|at| bytes[*at] == b'}' && bytes[*at - 1] != b'\\')
}

fn mark(
    mark: &str,
    substitutions: &Substitutions,
    sent: bool,
    to: &mut Literal,
) -> Result<(), String> {
    let step = match mark {
        "|" => Step::Pause,
        "wait" => Step::Wait,
        "end" => Step::End,
        "reset" => Step::Reset,
        "body" => Step::Body,
        "close" => Step::Close,
        "host" => {
            to.push_fixed(substitutions.host.as_bytes());
            return Ok(());
        }
        "self" => {
            to.push_fixed(substitutions.own.as_bytes());
            return Ok(());
        }
        "via" => {
            to.push(substitutions.via.as_bytes());
            return Ok(());
        }
        "any" => {
            to.push(ANY.as_bytes());
            return Ok(());
        }
        path if path.starts_with('/') => {
            if sent && substitutions.role == Role::Forward {
                to.push_fixed(format!("http://{}", substitutions.host).as_bytes());
            }
            return fill_line(path, substitutions, sent, to);
        }
        repeated => {
            let (times, text) = repeated.split_once('*').ok_or(format!("unknown {{{mark}}}"))?;
            let times: usize = times.parse().map_err(|_| format!("unknown {{{mark}}}"))?;
            let mut once = Literal::default();
            fill_line(text, substitutions, sent, &mut once)?;
            to.push(&once.bytes().repeat(times));
            return Ok(());
        }
    };
    to.steps.push(step);
    Ok(())
}

/// Returns the byte of the escape at the beginning of `text`, and the length of the escape.
fn escape(text: &str) -> Result<(u8, usize), String> {
    let simple = |byte| Ok((byte, 2));
    match text.as_bytes().get(1) {
        Some(b'r') => simple(b'\r'),
        Some(b'n') => simple(b'\n'),
        Some(b't') => simple(b'\t'),
        Some(b'0') => simple(0),
        Some(byte @ (b'\\' | b'{' | b'}')) => simple(*byte),
        Some(b'x') => text
            .get(2..4)
            .and_then(|digits| u8::from_str_radix(digits, 16).ok())
            .map(|byte| (byte, 4))
            .ok_or(format!("not two hexadecimal digits: {text}")),
        _ => Err(format!("unknown escape: {text}")),
    }
}

/// Replaces the escapes in a text without marks.
///
/// # Errors
/// Returns the escape that is unknown.
pub fn unescaped(text: &str) -> Result<String, String> {
    let mut bytes = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.find('\\') {
        let (byte, length) = escape(&rest[at..])?;
        bytes.extend_from_slice(&rest.as_bytes()[..at]);
        bytes.push(byte);
        rest = &rest[at + length..];
    }
    bytes.extend_from_slice(rest.as_bytes());
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Returns bytes as a literal of one line, for error messages.
pub fn escaped(bytes: &[u8]) -> String {
    let mut text = String::new();
    for byte in bytes {
        match byte {
            b'\r' => text.push_str("\\r"),
            b'\n' => text.push_str("\\n"),
            b'\t' => text.push_str("\\t"),
            b'\\' => text.push_str("\\\\"),
            b'{' => text.push_str("\\{"),
            b'}' => text.push_str("\\}"),
            b' '..=b'~' => text.push(char::from(*byte)),
            _ => text.push_str(&format!("\\x{byte:02x}")),
        }
    }
    text
}

/// The mark in an expected value that matches one or more bytes.
pub const ANY: &str = "{any}";

#[cfg(test)]
mod tests {
    use super::*;

    fn filled(text: &str, role: Role, sent: bool) -> Literal {
        let substitutions = Substitutions {
            host: "h:1".to_owned(),
            role,
            own: "h:2".to_owned(),
            via: "millrace".to_owned(),
        };
        let lines: Vec<String> = text.split('\n').map(str::to_owned).collect();
        fill(&lines, &substitutions, sent).expect(text)
    }

    #[test]
    fn lines_end_in_cr_lf_unless_a_backslash_ends_them() {
        assert_eq!(filled("a\nb\\\nc", Role::Boost, true).bytes(), b"a\r\nbc\r\n");
        assert_eq!(filled("\\\\\\", Role::Boost, true).bytes(), b"\\");
        assert_eq!(
            filled("a\\r\\n\\t\\x00\\{{3*xy}\\", Role::Boost, true).bytes(),
            b"a\r\n\t\0{xyxyxy"
        );
    }

    #[test]
    fn targets_follow_the_role_and_addresses_are_fixed() {
        assert_eq!(filled("{/a}\\", Role::Boost, true).bytes(), b"/a");
        let literal = filled("G {/a}", Role::Forward, true);
        assert_eq!(literal.bytes(), b"G http://h:1/a\r\n");
        assert_eq!(literal.fixed.first(), Some(&(2..12)));
        assert_eq!(filled("{/a}\\", Role::Forward, false).bytes(), b"/a");
    }

    #[test]
    fn marks_split_the_bytes() {
        let literal = filled("a{|}b{wait}{end}\\", Role::Boost, true);
        let bytes = |text: &str| Step::Bytes(text.as_bytes().to_owned());
        assert_eq!(literal.steps, [bytes("a"), Step::Pause, bytes("b"), Step::Wait, Step::End]);
    }

    #[test]
    fn escaped_bytes_parse_to_themselves() {
        let bytes: Vec<u8> = (0..=255).collect();
        assert_eq!(filled(&format!("{}\\", escaped(&bytes)), Role::Boost, true).bytes(), bytes);
    }
}
