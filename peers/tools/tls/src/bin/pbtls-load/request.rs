//! The requests of the load, and the check of each response.

use pbtls::stream::{field, hash, head_length, says_close, stream};

use crate::options::Options;

/// Bytes of a response header section at most.
const HEAD_MAX: usize = 16384;

/// Writes requests.
pub struct Requests {
    path: String,
    fields: String,
    has_unique_urls: bool,
    next: u64,
}

impl Requests {
    /// With `next` as the number of the first URL.
    pub fn new(options: &Options, head_bytes: usize, next: u64) -> Self {
        Self {
            path: options.path.clone(),
            fields: fields(options, head_bytes),
            has_unique_urls: options.has_unique_urls,
            next,
        }
    }

    /// Drops the fields that fill the header section.
    pub fn end_set_up(&mut self, options: &Options) {
        self.fields = fields(options, 0);
    }

    /// Replaces the text after the last slash of the path.
    pub fn set_size(&mut self, bytes: usize) {
        let at = self.path.rfind('/').map_or(0, |at| at + 1);
        self.path.truncate(at);
        self.path.push_str(&bytes.to_string());
    }

    /// Writes the next request into `into`. Returns the hash of its target.
    pub fn write(&mut self, into: &mut Vec<u8>) -> u64 {
        into.clear();
        into.extend_from_slice(b"GET ");
        into.extend_from_slice(self.path.as_bytes());
        if self.has_unique_urls {
            into.extend_from_slice(format!("?id={:016x}", self.next).as_bytes());
        }
        self.next += 1;
        let hash = hash(&into[4..]);
        into.extend_from_slice(self.fields.as_bytes());
        hash
    }
}

/// Returns what follows the request target. A browser's fields are those that Chrome sends for a
/// picture.
fn fields(options: &Options, head_bytes: usize) -> String {
    let host = options.tunnel.as_deref().unwrap_or("bench.test");
    let mut text = format!(" HTTP/1.1\r\nHost: {host}\r\n");
    if options.is_browser {
        text += "User-Agent: Mozilla/5.0 (Windows NT 10.0; Win64; x64) AppleWebKit/537.36 \
                 (KHTML, like Gecko) Chrome/126.0.0.0 Safari/537.36\r\n\
                 Accept: image/avif,image/webp,image/apng,image/svg+xml,image/*,*/*;q=0.8\r\n\
                 Accept-Encoding: gzip, deflate, br, zstd\r\n\
                 Accept-Language: en-GB,en;q=0.9,de;q=0.8\r\n";
        text += &format!(
            "Referer: https://{host}/articles/2026/01/a-walk-along-the-river.html\r\n\
             sec-ch-ua: \"Not/A)Brand\";v=\"8\", \"Chromium\";v=\"126\", \
             \"Google Chrome\";v=\"126\"\r\n"
        );
        text += "sec-ch-ua-mobile: ?0\r\nsec-ch-ua-platform: \"Windows\"\r\n\
                 Sec-Fetch-Dest: image\r\nSec-Fetch-Mode: no-cors\r\n\
                 Sec-Fetch-Site: same-origin\r\n\
                 Cookie: sid=f3b2c9d07a6e41d58c1b; consent=1; _ga=GA1.1.1234567890.1700000000\r\n";
    } else {
        text += "User-Agent: pbload\r\nAccept: */*\r\n";
    }
    if options.closes {
        text += "Connection: close\r\n";
    }
    // Fields of 1 KB fill the header section, which every server accepts by default.
    for number in 0.. {
        let left = head_bytes.saturating_sub(text.len() + 32);
        if left == 0 {
            break;
        }
        text += &format!("X-Fill-{:02}: {:0width$}\r\n", number % 100, 0, width = left.min(1000));
    }
    text + "\r\n"
}

/// The checks of every response.
#[derive(Clone, Copy)]
pub struct Expected {
    pub length: Option<usize>,
    /// The connection may close after the response.
    pub closes: bool,
    /// Every byte of the body is compared.
    pub verifies: bool,
}

/// A response as far as it has arrived.
#[derive(Default)]
pub struct Response {
    /// A header section that arrived in parts.
    head: Vec<u8>,
    /// Of the body, once the header section is complete; 0 <= have <= length.
    length: Option<usize>,
    have: usize,
}

impl Response {
    /// Forgets the response before the next request.
    pub fn reset(&mut self) {
        self.head.clear();
        self.length = None;
        self.have = 0;
    }

    pub fn is_complete(&self) -> bool {
        self.length == Some(self.have)
    }

    /// Takes the next bytes.
    ///
    /// # Errors
    ///
    /// The bytes are wrong; the text names the reason.
    pub fn take(&mut self, bytes: &[u8], expected: Expected) -> Result<(), &'static str> {
        if self.length.is_some() {
            return self.take_body(bytes, expected);
        }
        if self.head.is_empty()
            && let Some(end) = head_length(bytes)
        {
            self.length = Some(body_length(&bytes[..end], expected)?);
            return self.take_body(&bytes[end..], expected);
        }
        self.head.extend_from_slice(bytes);
        let Some(end) = head_length(&self.head) else {
            return if self.head.len() > HEAD_MAX { Err("head too long") } else { Ok(()) };
        };
        self.length = Some(body_length(&self.head[..end], expected)?);
        let body = self.head.split_off(end);
        self.take_body(&body, expected)
    }

    fn take_body(&mut self, bytes: &[u8], expected: Expected) -> Result<(), &'static str> {
        let end = self.have + bytes.len();
        if self.length.is_none_or(|length| end > length) {
            return Err("too long");
        }
        if expected.verifies && bytes != &stream()[self.have..end] {
            return Err("wrong bytes");
        }
        self.have = end;
        Ok(())
    }
}

/// Checks a header section and returns the length of the body.
fn body_length(head: &[u8], expected: Expected) -> Result<usize, &'static str> {
    if head.get(9..12) != Some(b"200") {
        return Err("status");
    }
    let length = field(head, b"content-length").ok_or("no content-length")?;
    let length = std::str::from_utf8(length).ok().and_then(|text| text.parse().ok());
    let length = length.ok_or("content-length")?;
    if expected.length.is_some_and(|due| due != length) {
        return Err("length");
    }
    if !expected.closes && says_close(head) {
        return Err("closed by the server");
    }
    Ok(length)
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXPECTED: Expected = Expected { length: Some(8), closes: false, verifies: true };

    fn response(status: &str, length: usize, body: &[u8]) -> Vec<u8> {
        let head = format!("HTTP/1.1 {status}\r\nContent-Length: {length}\r\n\r\n");
        [head.as_bytes(), body].concat()
    }

    #[test]
    fn a_response_cut_anywhere_is_taken() {
        let bytes = response("200 OK", 8, &stream()[..8]);
        for cut in 0..bytes.len() {
            let mut found = Response::default();
            found.take(&bytes[..cut], EXPECTED).expect("the first part is right");
            assert!(!found.is_complete());
            found.take(&bytes[cut..], EXPECTED).expect("the second part is right");
            assert!(found.is_complete());
        }
    }

    #[test]
    fn wrong_responses_are_errors() {
        let body = &stream()[..8];
        let cases = [
            (response("404 Not Found", 8, body), "status"),
            (response("200 OK", 9, body), "length"),
            (response("200 OK", 8, b"another "), "wrong bytes"),
            (response("200 OK", 8, &stream()[..9]), "too long"),
            (b"HTTP/1.1 200 OK\r\n\r\n".to_vec(), "no content-length"),
            (
                b"HTTP/1.1 200 OK\r\nContent-Length: 8\r\nConnection: close\r\n\r\n".to_vec(),
                "closed by the server",
            ),
        ];
        for (bytes, error) in cases {
            assert_eq!(Response::default().take(&bytes, EXPECTED), Err(error));
        }
    }
}
