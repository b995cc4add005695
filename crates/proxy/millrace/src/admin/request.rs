//! Reads the head of a request to the admin address. Stricter than it need be: whoever asks is a
//! program like curl or Prometheus, a browser, or an attacker.

/// Why a head is no request.
pub(super) type Wrong = &'static str;

/// What of a head the admin address goes by.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(super) struct Request<'a> {
    pub(super) method: &'a str,
    /// The target without its query.
    pub(super) path: &'a str,
    /// What follows the `?`; empty where there is none.
    pub(super) query: &'a str,
    /// `None`: an HTTP/1.0 client that sends none.
    pub(super) host: Option<&'a str>,
    pub(super) authorization: Option<&'a str>,
    pub(super) origin: Option<&'a str>,
    pub(super) sec_fetch_site: Option<&'a str>,
    pub(super) upgrade: Option<&'a str>,
    /// A body follows.
    pub(super) has_body: bool,
}

impl<'a> Request<'a> {
    /// Reads a head that ends with its empty line.
    ///
    /// # Errors
    /// What is wrong with it, as a sentence without its end.
    pub(super) fn read(head: &'a [u8]) -> Result<Self, Wrong> {
        let text = std::str::from_utf8(head).map_err(|_| "the head is not UTF-8")?;
        let mut lines = text.strip_suffix("\r\n\r\n").ok_or("the head has no end")?.split("\r\n");
        let mut words = lines.next().unwrap_or_default().split(' ');
        let (Some(method), Some(target), Some(version), None) =
            (words.next(), words.next(), words.next(), words.next())
        else {
            return Err("not an HTTP/1 request");
        };
        if !matches!(version, "HTTP/1.0" | "HTTP/1.1") || !target.starts_with('/') {
            return Err("not an HTTP/1 request for a path");
        }
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let mut request = Self { method, path, query, ..Self::default() };
        for line in lines {
            request.take(line)?;
        }
        // RFC 9112 section 3.2: a message of HTTP/1.1 without Host is refused.
        if request.host.is_none() && version == "HTTP/1.1" {
            return Err("there is no Host");
        }
        Ok(request)
    }

    fn take(&mut self, line: &'a str) -> Result<(), Wrong> {
        let (name, value) = line.split_once(':').ok_or("a line has no colon")?;
        let value = value.trim_matches([' ', '\t']);
        let is_token =
            |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
        if name.is_empty() || !name.bytes().all(is_token) {
            return Err("a field has no name");
        }
        if value.chars().any(|character| character.is_control() && character != '\t') {
            return Err("a field holds control characters");
        }
        let field = match name.to_ascii_lowercase().as_str() {
            "host" => &mut self.host,
            "authorization" => &mut self.authorization,
            "origin" => &mut self.origin,
            "sec-fetch-site" => &mut self.sec_fetch_site,
            "upgrade" => &mut self.upgrade,
            "content-length" => {
                self.has_body |= value != "0";
                return Ok(());
            }
            "transfer-encoding" => {
                self.has_body = true;
                return Ok(());
            }
            _ => return Ok(()),
        };
        match field.replace(value) {
            None => Ok(()),
            Some(_) => Err("a field is there twice"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_are_read_or_refused() {
        let head =
            b"POST /drain?x HTTP/1.1\r\nHOST: \ta:1 \r\nauthorization:Bearer x\r\nX:\r\n\r\n";
        let request = Request::read(head).unwrap();
        assert_eq!((request.method, request.path, request.has_body), ("POST", "/drain", false));
        assert_eq!(request.query, "x");
        assert_eq!((request.host, request.authorization), (Some("a:1"), Some("Bearer x")));
        assert_eq!(Request::read(b"GET / HTTP/1.0\r\n\r\n").unwrap().host, None);
        for body in ["Content-Length: 1", "Transfer-Encoding: chunked"] {
            let head = format!("GET / HTTP/1.1\r\nHost: a\r\n{body}\r\n\r\n");
            assert!(Request::read(head.as_bytes()).unwrap().has_body);
        }
        for wrong in [
            "nonsense",
            "GET / HTTP/2.0\r\nHost: a",
            "GET http://a/ HTTP/1.1\r\nHost: a",
            "GET / HTTP/1.1",
            "GET / HTTP/1.1\r\nHost: a\r\nHost: b",
            "GET / HTTP/1.1\r\nHost: a\r\nOrigin: a\r\nOrigin: b",
            "GET / HTTP/1.1\r\nHost : a",
            "GET / HTTP/1.1\r\nHost: a\r\n folded",
            "GET / HTTP/1.1\r\nHost: a\nX: b",
            "GET / HTTP/1.1\r\nHost: a\r\n: b",
            "GET  / HTTP/1.1\r\nHost: a",
        ] {
            assert!(Request::read(format!("{wrong}\r\n\r\n").as_bytes()).is_err(), "{wrong}");
        }
        assert!(Request::read(b"GET / HTTP/1.0\r\nX: \xff\r\n\r\n").is_err());
    }
}
