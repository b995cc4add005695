//! The server of a run, and the connections to it.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

/// The settings of a run, besides its plan.
#[derive(Clone, Debug)]
pub struct LoadSettings {
    /// The server, and the requests to it.
    pub target: LoadTarget,
    /// Source addresses that connections use in turn; the kernel chooses one if there is none. An
    /// address has up to 28,000 ports by default.
    pub sources: Vec<IpAddr>,
    /// Which connections are used again.
    pub reuse: ConnectionReuse,
    /// The time after the last planned request in which responses may still arrive.
    pub drain: Duration,
}

/// Which connections are used again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ConnectionReuse {
    /// None, with HTTP/1.0.
    Http10,
    /// None, with HTTP/1.1 and `Connection: close`.
    Close,
    /// Each user keeps up to this many idle connections. A request never waits for a connection.
    PerUser(usize),
    /// At most this many connections are open. If all are busy, a request waits in a queue, and the
    /// wait is a part of its latency. For plans with one user.
    Pool(usize),
}

/// A server, and the form of requests to it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LoadTarget {
    /// The address of the server.
    pub address: SocketAddr,
    path: String,
    /// Complete field lines.
    fields: String,
    has_host: bool,
}

impl LoadTarget {
    /// Parses a URL with an address instead of a name, such as `http://127.0.0.1:80/files`.
    ///
    /// # Errors
    /// One line that names the URL and what is allowed.
    pub fn parse(url: &str) -> Result<Self, String> {
        let wrong = || format!("{url:?} is no URL of a server (expected: {URL_ALLOWED})");
        let rest = url.strip_prefix("http://").ok_or_else(wrong)?;
        let (authority, path) = rest.split_at(rest.find('/').ok_or_else(wrong)?);
        let address = authority.parse().map_err(|_| wrong())?;
        if path.bytes().any(|byte| !byte.is_ascii_graphic()) {
            return Err(wrong());
        }
        Ok(Self { address, path: path.to_owned(), fields: String::new(), has_host: false })
    }

    /// Adds a field to each request. A `Host` replaces that of the URL.
    ///
    /// # Errors
    /// One line that names the field and what is allowed.
    pub fn add_field(&mut self, line: &str) -> Result<(), String> {
        let wrong = || format!("{line:?} is no field (expected: NAME: VALUE)");
        let (name, value) = line.split_once(':').ok_or_else(wrong)?;
        let is_token = |byte: u8| byte.is_ascii_graphic() && byte != b':';
        if name.is_empty() || !name.bytes().all(is_token) || value.bytes().any(is_control) {
            return Err(wrong());
        }
        self.has_host |= name.eq_ignore_ascii_case("host");
        self.fields += &format!("{name}: {}\r\n", value.trim());
        Ok(())
    }

    /// Returns the part of a request before the number of its file.
    pub(super) fn request_start(&self, file: Option<u32>) -> String {
        let path = if file.is_some() { self.path.trim_end_matches('/') } else { &self.path };
        format!("GET {path}{}", if file.is_some() { "/" } else { "" })
    }

    /// Returns the part of a request after the number of its file.
    pub(super) fn request_end(&self, reuse: ConnectionReuse) -> String {
        let version = if reuse == ConnectionReuse::Http10 { "1.0" } else { "1.1" };
        let mut end = format!(" HTTP/{version}\r\n");
        if !self.has_host {
            end += &format!("Host: {}\r\n", self.address);
        }
        end += &self.fields;
        if reuse == ConnectionReuse::Close {
            end += "Connection: close\r\n";
        }
        end + "\r\n"
    }
}

fn is_control(byte: u8) -> bool {
    byte.is_ascii_control() && byte != b'\t'
}

/// The form of URLs, for errors and help.
pub const URL_ALLOWED: &str = "http://ADDRESS:PORT/PATH";

#[cfg(test)]
mod tests {
    use super::*;

    fn request(target: &LoadTarget, file: Option<u32>, reuse: ConnectionReuse) -> String {
        let number = file.map(|file| file.to_string()).unwrap_or_default();
        target.request_start(file) + &number + &target.request_end(reuse)
    }

    #[test]
    fn requests_have_the_path_and_the_fields() {
        let mut target = LoadTarget::parse("http://[::1]:8080/files/").unwrap();
        assert_eq!(
            request(&target, Some(7), ConnectionReuse::Http10),
            "GET /files/7 HTTP/1.0\r\nHost: [::1]:8080\r\n\r\n"
        );
        target.add_field("Accept:  a/b ").unwrap();
        assert_eq!(
            request(&target, None, ConnectionReuse::Pool(1)),
            "GET /files/ HTTP/1.1\r\nHost: [::1]:8080\r\nAccept: a/b\r\n\r\n"
        );
        target.add_field("host: x").unwrap();
        assert_eq!(
            request(&target, Some(0), ConnectionReuse::Close),
            "GET /files/0 HTTP/1.1\r\nAccept: a/b\r\nhost: x\r\nConnection: close\r\n\r\n"
        );
    }

    #[test]
    fn an_error_names_the_wrong_text() {
        for url in ["", "127.0.0.1:80/", "http://127.0.0.1/", "http://name:80/", "http://[::1]:80"]
        {
            let error = LoadTarget::parse(url).unwrap_err();
            assert_eq!(error, format!("{url:?} is no URL of a server (expected: {URL_ALLOWED})"));
        }
        let mut target = LoadTarget::parse("http://127.0.0.1:80/").unwrap();
        for line in ["x", ": x", "a b: x", "a: b\r\nc: d"] {
            let error = target.add_field(line).unwrap_err();
            assert_eq!(error, format!("{line:?} is no field (expected: NAME: VALUE)"));
        }
    }
}
