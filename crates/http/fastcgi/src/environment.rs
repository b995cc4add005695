//! The environment of a request (RFC 3875 section 4.1): its meta-variables, and a variable for each
//! header field.

use millrace_http1::format::write_number;
use millrace_http1::path::split_query;
use millrace_http1::{FieldRun, Framing, HeaderWriter, Version};

/// The variable with the number of the folder that has the program of a request. It is for the
/// launcher of CGI programs (`crates/serve/cgi`), and no program gets it. SCRIPT_NAME is then the
/// path of the route, PATH_INFO the rest.
pub const CGI_FOLDER_VARIABLE: &str = "MILLRACE_CGI_FOLDER";

/// Whether a program receives the field `Authorization`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum AuthorizationFor {
    /// A FastCGI program, which often verifies the credentials itself.
    Program,
    /// RFC 3875 section 9.2: the environment of a process may be visible to other users.
    #[default]
    NoProgram,
}

/// The environment of one request: a [`HeaderWriter`] that turns the header of a request into
/// variables. The writer of the header sets the remaining variables with [`Environment::set`].
///
/// Fields with the same name become one variable, whose value is the list of their values (RFC 3875
/// section 4.1.18). Left out are
///
/// * fields whose names have other bytes than `A-Z`, `a-z`, `0-9` and `-`: a program could not tell
///   `A_B` from `A-B`, and some take `A.B` for it too;
/// * `Proxy`: many programs take HTTP_PROXY for the address of a proxy.
#[derive(Debug, Default)]
pub struct Environment {
    /// All names and values. A value may be in several pieces.
    text: Vec<u8>,
    variables: Vec<Variable>,
    /// The values of repeated fields after the first one, with their separators.
    more: Vec<MoreValue>,
    authorization: AuthorizationFor,
    /// The value of REQUEST_URI, if it is not that of the request.
    client_target: Option<TextRange>,
}

#[derive(Clone, Copy, Debug)]
struct Variable {
    name: TextRange,
    value: TextRange,
    /// The first and the last of its values in `more`.
    more: Option<(usize, usize)>,
}

#[derive(Clone, Copy, Debug)]
struct MoreValue {
    value: TextRange,
    next: Option<usize>,
}

/// A range of [`Environment::text`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct TextRange {
    start: usize,
    end: usize,
}

impl Environment {
    /// Creates an environment without variables.
    pub fn new(authorization: AuthorizationFor) -> Self {
        Self { authorization, ..Self::default() }
    }

    /// Removes all variables, for another request. The memory is kept.
    pub fn restart(&mut self, authorization: AuthorizationFor) {
        self.text.clear();
        self.variables.clear();
        self.more.clear();
        (self.authorization, self.client_target) = (authorization, None);
    }

    /// Has REQUEST_URI name this path and query in place of those of the request, which a local
    /// redirect has changed. Called before the request is written.
    pub fn set_client_target(&mut self, path_and_query: &[u8]) {
        self.client_target = Some(self.push(path_and_query));
    }

    /// Sets a variable, which must not be set yet. `name` has no `=`, and neither has a NUL.
    pub fn set(&mut self, name: &[u8], value: &[u8]) {
        self.set_with(name, |text| text.extend_from_slice(value));
    }

    /// Sets a variable like [`Environment::set`], to the value that `write` appends.
    pub fn set_with(&mut self, name: &[u8], write: impl FnOnce(&mut Vec<u8>)) {
        let name = self.push(name);
        write(&mut self.text);
        let value = TextRange { start: name.end, end: self.text.len() };
        self.variables.push(Variable { name, value, more: None });
    }

    /// Returns the value of a variable, in pieces; `None` if it is not set.
    pub fn get(&self, name: &[u8]) -> Option<impl Iterator<Item = &[u8]> + Clone> {
        self.variables().find(|(other, _)| *other == name).map(|(_, value)| value)
    }

    /// Returns the names and values, each value in pieces.
    pub fn variables(&self) -> impl Iterator<Item = (&[u8], impl Iterator<Item = &[u8]> + Clone)> {
        self.variables.iter().map(|variable| {
            let first = self.text_of(variable.value);
            let next = |at: &usize| self.more[*at].next;
            let more = std::iter::successors(variable.more.map(|(first, _)| first), next);
            let more = more.map(|at| self.text_of(self.more[at].value));
            (self.text_of(variable.name), std::iter::once(first).chain(more))
        })
    }

    fn text_of(&self, range: TextRange) -> &[u8] {
        &self.text[range.start..range.end]
    }

    fn push(&mut self, bytes: &[u8]) -> TextRange {
        let start = self.text.len();
        self.text.extend_from_slice(bytes);
        TextRange { start, end: self.text.len() }
    }

    /// Adds the variable of a field. The value is the end of the text, from `value_start` on.
    fn add_field(&mut self, name: &[u8], value_start: usize) {
        let value = TextRange { start: value_start, end: self.text.len() };
        let prefix_start = self.text.len();
        self.text.extend_from_slice(b"HTTP_");
        let start = self.text.len();
        self.text.extend(name.iter().map(|&byte| VARIABLE_BYTES[usize::from(byte)]));
        let own = &self.text[start..];
        if !self.receives(own) {
            // The value stays in the text, since a later one may copy from it.
            self.text.truncate(prefix_start);
            return;
        }
        let name_start = if own == b"CONTENT_TYPE" { start } else { prefix_start };
        let own = TextRange { start: name_start, end: self.text.len() };
        let is_same = |other: &Variable| self.text_of(other.name) == self.text_of(own);
        let Some(at) = self.variables.iter().position(is_same) else {
            self.variables.push(Variable { name: own, value, more: None });
            return;
        };
        self.text.truncate(prefix_start);
        let is_cookie = name.eq_ignore_ascii_case(b"cookie");
        // RFC 9113 section 8.2.3: cookies are not a list of members.
        let separator = self.push(if is_cookie { b"; " } else { b", " });
        for value in [separator, value] {
            let new = self.more.len();
            self.more.push(MoreValue { value, next: None });
            let more = &mut self.variables[at].more;
            match more {
                Some((_, last)) => self.more[std::mem::replace(last, new)].next = Some(new),
                None => *more = Some((new, new)),
            }
        }
    }

    /// Returns whether a field becomes a variable, by its name in [`VARIABLE_BYTES`].
    fn receives(&self, name: &[u8]) -> bool {
        match name {
            // The framing sets the length.
            b"PROXY" | b"CONTENT_LENGTH" => false,
            b"AUTHORIZATION" | b"PROXY_AUTHORIZATION" => {
                self.authorization == AuthorizationFor::Program
            }
            _ => !name.contains(&0),
        }
    }
}

/// The byte of a variable's name for each byte of a field's name; 0 for those that no name of a
/// variable may come from.
const VARIABLE_BYTES: [u8; 256] = {
    let mut bytes = [0; 256];
    let mut byte: u8 = 0;
    while byte < 128 {
        bytes[byte as usize] = match byte {
            b'-' => b'_',
            b'0'..=b'9' | b'A'..=b'Z' | b'a'..=b'z' => byte.to_ascii_uppercase(),
            _ => 0,
        };
        byte += 1;
    }
    bytes
};

impl HeaderWriter for Environment {
    /// Sets REQUEST_METHOD, REQUEST_URI, QUERY_STRING and HTTP_HOST.
    fn request(&mut self, method: &[u8], path: &[u8], authority: impl FnOnce(&mut Vec<u8>)) {
        self.set(b"REQUEST_METHOD", method);
        match self.client_target {
            Some(value) => {
                let name = self.push(b"REQUEST_URI");
                self.variables.push(Variable { name, value, more: None });
            }
            None => self.set(b"REQUEST_URI", path),
        }
        let query = split_query(path).1;
        self.set(b"QUERY_STRING", query.get(1..).unwrap_or_default());
        self.field_with(b"Host", authority);
    }

    fn response(&mut self, _status: u16, _reason: &[u8]) {
        unreachable!("an environment describes a request");
    }

    fn field(&mut self, name: &[u8], value: &[u8]) {
        self.field_with(name, |text| text.extend_from_slice(value));
    }

    fn number(&mut self, name: &[u8], number: u64) {
        self.field_with(name, |text| write_number(text, number));
    }

    fn field_with<T>(&mut self, name: &[u8], write: impl FnOnce(&mut Vec<u8>) -> T) -> T {
        let start = self.text.len();
        let result = write(&mut self.text);
        self.add_field(name, start);
        result
    }

    fn field_run(&mut self, run: FieldRun<'_>) {
        for (name, value) in run.fields() {
            self.field(name, value);
        }
    }

    /// Sets CONTENT_LENGTH: empty without a body, as most servers do. The body of a request must
    /// have a known length.
    fn framing(&mut self, framing: Framing, chunked: bool) {
        assert!(!chunked, "a program receives no chunks");
        self.set_with(b"CONTENT_LENGTH", |text| {
            if let Framing::Length(bytes) = framing {
                write_number(text, bytes);
            }
        });
    }

    /// Connections are not the program's.
    fn persistence(&mut self, _peer: Version, _persistent: bool) {}

    /// A program cannot switch protocols.
    fn upgrade<'p>(&mut self, _protocols: impl Iterator<Item = &'p [u8]>) {}

    /// A program sends no trailers.
    fn accepts_trailers(&mut self) {}

    fn end(&mut self) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(environment: &Environment, name: &str) -> Option<String> {
        let value = environment.get(name.as_bytes())?;
        Some(String::from_utf8(value.flatten().copied().collect()).unwrap())
    }

    fn with_fields(authorization: AuthorizationFor, fields: &[(&str, &str)]) -> Environment {
        let mut environment = Environment::new(authorization);
        environment.request(b"GET", b"/a?b=c?d", |host| host.extend_from_slice(b"a.test"));
        for (name, value) in fields {
            environment.field(name.as_bytes(), value.as_bytes());
        }
        environment
    }

    #[test]
    fn fields_become_variables() {
        let environment = with_fields(
            AuthorizationFor::Program,
            &[("X-a-B", "1"), ("Content-Type", "text/x"), ("Authorization", "Basic eA==")],
        );
        for (name, expected) in [
            ("REQUEST_METHOD", "GET"),
            ("REQUEST_URI", "/a?b=c?d"),
            ("QUERY_STRING", "b=c?d"),
            ("HTTP_HOST", "a.test"),
            ("HTTP_X_A_B", "1"),
            ("CONTENT_TYPE", "text/x"),
            ("HTTP_AUTHORIZATION", "Basic eA=="),
        ] {
            assert_eq!(value(&environment, name).as_deref(), Some(expected), "{name}");
        }
        assert_eq!(value(&environment, "HTTP_CONTENT_TYPE"), None);
    }

    #[test]
    fn dangerous_fields_are_left_out() {
        let fields = [
            ("Proxy", "http://evil.test"),
            ("X_Forwarded_For", "10.0.0.1"),
            ("Content-Length", "3"),
            ("Authorization", "Basic eA=="),
            ("Proxy-Authorization", "Basic eA=="),
        ];
        let environment = with_fields(AuthorizationFor::NoProgram, &fields);
        let names: Vec<_> = environment.variables().map(|(name, _)| name.to_vec()).collect();
        assert_eq!(names, [&b"REQUEST_METHOD"[..], b"REQUEST_URI", b"QUERY_STRING", b"HTTP_HOST"]);
    }

    #[test]
    fn repeated_fields_become_lists() {
        let environment = with_fields(
            AuthorizationFor::Program,
            &[
                ("Accept", "a"),
                ("Cookie", "a=1"),
                ("accept", "b"),
                ("Cookie", "b=2"),
                ("ACCEPT", ""),
            ],
        );
        assert_eq!(value(&environment, "HTTP_ACCEPT").as_deref(), Some("a, b, "));
        assert_eq!(value(&environment, "HTTP_COOKIE").as_deref(), Some("a=1; b=2"));
    }

    #[test]
    fn values_may_copy_from_earlier_ones() {
        let mut environment = Environment::new(AuthorizationFor::Program);
        let at = environment.field_with(b"A_B", |text| {
            text.extend_from_slice(b"10.0.0.1");
            text.len() - 8..text.len()
        });
        environment.field_with(b"Forwarded", |text| {
            text.extend_from_slice(b"for=");
            text.extend_from_within(at);
        });
        assert_eq!(value(&environment, "HTTP_FORWARDED").as_deref(), Some("for=10.0.0.1"));
        assert_eq!(environment.variables().count(), 1);
    }

    #[test]
    fn nothing_of_an_earlier_request_is_left() {
        let fields = [("A", "1"), ("A", "2"), ("Cookie", "a=1"), ("Authorization", "Basic eA==")];
        let mut environment = with_fields(AuthorizationFor::Program, &fields);
        environment.set_client_target(b"/other");
        environment.restart(AuthorizationFor::NoProgram);
        environment.request(b"GET", b"/b", |host| host.extend_from_slice(b"b.test"));
        environment.field(b"Authorization", b"Basic eA==");
        environment.field(b"B", b"3");
        let found: Vec<_> = environment.variables().map(|(name, _)| name.to_vec()).collect();
        let expected = ["REQUEST_METHOD", "REQUEST_URI", "QUERY_STRING", "HTTP_HOST", "HTTP_B"];
        assert_eq!(found, expected.map(|name| name.as_bytes().to_vec()));
        assert_eq!(value(&environment, "REQUEST_URI").as_deref(), Some("/b"));
        assert_eq!(value(&environment, "HTTP_B").as_deref(), Some("3"));
    }

    #[test]
    fn the_length_of_a_body_is_set_only_with_a_body() {
        for (framing, expected) in [(Framing::None, ""), (Framing::Length(12), "12")] {
            let mut environment = Environment::new(AuthorizationFor::Program);
            environment.framing(framing, false);
            assert_eq!(value(&environment, "CONTENT_LENGTH").as_deref(), Some(expected));
        }
    }
}
