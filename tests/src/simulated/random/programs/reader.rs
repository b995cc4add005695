//! A strict reader of FastCGI requests: it accepts only the records that a web server has to send,
//! and returns a request in the parts of [`MessageReader`].

use super::wire::{BEGIN_REQUEST, PARAMS, STDIN};
use crate::simulated::random::reader::{MessageReader, Part};
use crate::strict::{Field, Framing, Message, StartLine};

/// The reader of an origin's connection, by its protocol.
pub(in super::super) enum RequestReader {
    Http(MessageReader),
    Records(RecordReader),
}

impl RequestReader {
    /// Adds received bytes.
    pub(in super::super) fn add(&mut self, bytes: &[u8]) {
        match self {
            Self::Http(reader) => reader.add(bytes),
            Self::Records(reader) => reader.bytes.extend_from_slice(bytes),
        }
    }

    /// Returns the unread bytes.
    pub(in super::super) fn rest(&self) -> &[u8] {
        match self {
            Self::Http(reader) => reader.rest(),
            Self::Records(reader) => &reader.bytes,
        }
    }

    /// Takes unread bytes.
    pub(in super::super) fn take(&mut self, count: usize) -> Vec<u8> {
        match self {
            Self::Http(reader) => reader.take(count),
            Self::Records(reader) => reader.bytes.drain(..count).collect(),
        }
    }

    /// Returns all further bytes as payload, because they are not HTTP.
    pub(in super::super) fn raw(&mut self) {
        match self {
            Self::Http(reader) => reader.raw(),
            Self::Records(_) => unreachable!("programs have no tunnels"),
        }
    }

    /// Returns whether the reader is between two requests.
    pub(in super::super) fn is_between(&self) -> bool {
        match self {
            Self::Http(reader) => reader.is_between(),
            Self::Records(reader) => reader.state == RecordState::Begin && reader.bytes.is_empty(),
        }
    }

    /// Returns the next part, if it has arrived.
    pub(in super::super) fn next(&mut self) -> Result<Option<Part>, String> {
        match self {
            Self::Http(reader) => reader.next(None),
            Self::Records(reader) => reader.next(),
        }
    }
}

/// Received records, and the state of their parsing.
#[derive(Default)]
pub(in super::super) struct RecordReader {
    state: RecordState,
    bytes: Vec<u8>,
    /// The content of the PARAMS records.
    params: Vec<u8>,
    /// The bytes of the body that have not arrived.
    body_left: u64,
}

/// The record that has to arrive next.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
enum RecordState {
    #[default]
    Begin,
    Params,
    Stdin,
    /// The end of the request is to be returned.
    Over,
}

impl RecordReader {
    fn next(&mut self) -> Result<Option<Part>, String> {
        loop {
            if self.state == RecordState::Over {
                self.state = RecordState::Begin;
                return Ok(Some(Part::End));
            }
            let Some((record_type, content)) = self.take_record()? else { return Ok(None) };
            match (self.state, record_type) {
                // A responder, whose connection stays open.
                (RecordState::Begin, BEGIN_REQUEST) if content == [0, 1, 1, 0, 0, 0, 0, 0] => {
                    self.params.clear();
                    self.state = RecordState::Params;
                }
                (RecordState::Params, PARAMS) if !content.is_empty() => {
                    self.params.extend_from_slice(&content);
                }
                (RecordState::Params, PARAMS) => {
                    self.state = RecordState::Stdin;
                    return self.head().map(Some);
                }
                (RecordState::Stdin, STDIN) if content.is_empty() => {
                    if self.body_left > 0 {
                        return Err(format!("STDIN ends {} bytes early", self.body_left));
                    }
                    self.state = RecordState::Over;
                }
                (RecordState::Stdin, STDIN) => {
                    let left = self.body_left.checked_sub(content.len() as u64);
                    self.body_left = left.ok_or("more STDIN than CONTENT_LENGTH")?;
                    return Ok(Some(Part::Body(content)));
                }
                (state, _) => return Err(format!("a record {record_type} in {state:?}")),
            }
        }
    }

    /// Takes the type and the content of a record that has arrived whole.
    fn take_record(&mut self) -> Result<Option<(u8, Vec<u8>)>, String> {
        let Some((header, _)) = self.bytes.split_first_chunk::<8>() else { return Ok(None) };
        let [version, record_type, id1, id0, length1, length0, padding, _] = *header;
        if (version, id1, id0) != (1, 0, 1) {
            return Err(format!("a record header {header:?}"));
        }
        let end = 8 + usize::from(u16::from_be_bytes([length1, length0]));
        if self.bytes.len() < end + usize::from(padding) {
            return Ok(None);
        }
        let content = self.bytes[8..end].to_vec();
        self.bytes.drain(..end + usize::from(padding));
        Ok(Some((record_type, content)))
    }

    /// Returns the environment as the header of a request.
    fn head(&mut self) -> Result<Part, String> {
        let variables = variables(&self.params)?;
        let find = |name: &str| {
            let mut values = variables.iter().filter(|(other, _)| other == name);
            match (values.next(), values.next()) {
                (Some((_, value)), None) => Ok(String::from_utf8_lossy(value).into_owned()),
                (None, _) => Err(format!("{name} is not set")),
                _ => Err(format!("{name} is set twice")),
            }
        };
        let (method, target) = (find("REQUEST_METHOD")?, find("REQUEST_URI")?);
        let named = find("SCRIPT_NAME")? + &find("PATH_INFO")?;
        if target.split('?').next() != Some(&named) || find("GATEWAY_INTERFACE")? != "CGI/1.1" {
            return Err(format!("the program {named} for {target}"));
        }
        if variables.iter().any(|(name, _)| name == "HTTP_PROXY") {
            return Err("HTTP_PROXY is set".to_owned());
        }
        let length = find("CONTENT_LENGTH").unwrap_or_default();
        self.body_left = match &length[..] {
            "" => 0,
            length => length.parse().map_err(|_| format!("CONTENT_LENGTH {length}"))?,
        };
        let fields = variables.into_iter().filter_map(|(name, value)| {
            let name = name.strip_prefix("HTTP_")?.replace('_', "-");
            Some(Field { name, value })
        });
        Ok(Part::Head(Message {
            start: StartLine::Request { method, target },
            fields: fields.collect(),
            framing: Framing::Length(self.body_left),
            body: Vec::new(),
            trailers: Vec::new(),
            bytes: self.params.len(),
        }))
    }
}

/// Returns the names and values of an environment.
fn variables(mut params: &[u8]) -> Result<Vec<(String, Vec<u8>)>, String> {
    let mut variables = Vec::new();
    while !params.is_empty() {
        let mut lengths = [0; 2];
        for length in &mut lengths {
            let (bytes, taken) = match *params {
                [short @ 0..128, ..] => (u32::from(short), 1),
                [a, b, c, d, ..] => (u32::from_be_bytes([a & 127, b, c, d]), 4),
                _ => return Err("a length is cut".to_owned()),
            };
            (*length, params) = (bytes as usize, &params[taken..]);
        }
        let name = params.split_off(..lengths[0]).ok_or("a name is cut")?;
        let value = params.split_off(..lengths[1]).ok_or("a value is cut")?;
        variables.push((String::from_utf8_lossy(name).into_owned(), value.to_vec()));
    }
    Ok(variables)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_read_strictly() {
        let begin = [1, 1, 0, 1, 0, 8, 0, 0, 0, 1, 1, 0, 0, 0, 0, 0];
        let mut params = Vec::new();
        for (name, value) in [
            ("REQUEST_METHOD", "PUT"),
            ("REQUEST_URI", "/a/r/1?b"),
            ("SCRIPT_NAME", "/a"),
            ("PATH_INFO", "/r/1"),
            ("GATEWAY_INTERFACE", "CGI/1.1"),
            ("CONTENT_LENGTH", "3"),
            ("HTTP_X_ID", "1"),
        ] {
            params.extend([name.len() as u8, value.len() as u8]);
            params.extend_from_slice(format!("{name}{value}").as_bytes());
        }
        let record = |kind: u8, content: &[u8]| {
            [&[1, kind, 0, 1, 0, content.len() as u8, 0, 0], content].concat()
        };
        let read = |body: &[&[u8]]| {
            let mut bytes = [&begin[..], &record(PARAMS, &params), &record(PARAMS, b"")].concat();
            body.iter().for_each(|part| bytes.extend(record(STDIN, part)));
            let (mut reader, mut text) = (RecordReader::default(), String::new());
            for byte in bytes {
                reader.bytes.push(byte);
                while let Some(part) = reader.next()? {
                    match part {
                        Part::Head(message) => {
                            text += &format!("{} {}[", message.method(), message.target());
                            assert!(message.fields[0].is("x-id"));
                        }
                        Part::Body(bytes) => text += &String::from_utf8_lossy(&bytes),
                        Part::End => text += "]",
                    }
                }
            }
            Ok::<_, String>(text)
        };
        assert_eq!(read(&[b"ab", b"c", b""]), Ok("PUT /a/r/1?b[abc]".to_owned()));
        assert!(read(&[b"ab", b""]).is_err() && read(&[b"abcd"]).is_err());
        assert!(read(&[b"abc", b"", b"d"]).is_err());
    }
}
