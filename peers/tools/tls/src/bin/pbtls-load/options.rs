//! The command line. Options have the same names as those of `pbload`.

use std::path::PathBuf;
use std::str::FromStr;

use pbtls::provider::GROUPS;
use rustls::crypto::SupportedKxGroup;

pub const HELP: &str = "\
pbtls-load: load generator for HTTP/1.1 over TLS 1.3 on 127.0.0.1, one thread with epoll.
  -p PORT  -u PATH  -c CONNECTIONS  -d SECONDS  [-r RATE]  [-N MAX_REQUESTS]
  -a FILE         the certificate that the server has to present (PEM)
  [-k]            new connection per request (Connection: close), with a full handshake
  [-t]            with -k: handshakes resume sessions by the tickets of earlier connections; the
                  first ones, by -E, are full
  [-g GROUP]      group of the key exchange: x25519 (default), p256 or x25519mlkem768
  [-T HOST:PORT]  CONNECT HOST:PORT first, in plain text, and TLS through the tunnel
  [-n LEN]        expected Content-Length (each response is checked: status 200 and this length)
  [-B]            a browser's header section of about 700 bytes instead of three short fields
  [-U]            a different URL for each request: a query with a counter that starts at the time
  [-V]            compare every body byte with the stream that pborigin sends
  [-S]            stdin drives phases: before each, print \"warm\" on stderr and wait for a line
                  (\"\" or \"RATE SECONDS [ACTIVE [BYTES [SPIN]]]\") as pbload does
  [-E]            first make one request on every connection, then start (idle keep-alive set-up)
  [-e BYTES]      with -E: the header section of those first requests has about this many bytes
  [-R]            resets its connections at the end, so that none stays in TIME_WAIT
-r 0 (default): closed loop, every connection always has one outstanding request.
-r N: open loop, request i is due at start+i/N, from which its latency counts.
A connection and its handshake belong to the request for which they are made. One JSON line on
stdout a phase, as pbload prints it, with the handshakes (`full`, `resumed`) of the phase.";

/// The command line.
pub struct Options {
    pub port: u16,
    pub path: String,
    pub connections: usize,
    pub seconds: f64,
    pub rate: f64,
    pub requests_max: u64,
    pub certificate: PathBuf,
    pub closes: bool,
    pub resumes: bool,
    pub group: &'static dyn SupportedKxGroup,
    pub tunnel: Option<String>,
    pub length: Option<usize>,
    pub is_browser: bool,
    pub has_unique_urls: bool,
    pub verifies: bool,
    pub is_driven: bool,
    pub sets_up: bool,
    pub set_up_bytes: usize,
    pub resets: bool,
}

impl Options {
    /// Parses the words after the name of the program.
    ///
    /// # Errors
    ///
    /// The first thing that is wrong, in words.
    pub fn parse(words: impl Iterator<Item = String>) -> Result<Self, String> {
        let mut found = Self {
            port: 0,
            path: "/n/8k".into(),
            connections: 64,
            seconds: 2.0,
            rate: 0.0,
            requests_max: u64::MAX,
            certificate: PathBuf::new(),
            closes: false,
            resumes: false,
            group: GROUPS[0].1,
            tunnel: None,
            length: None,
            is_browser: false,
            has_unique_urls: false,
            verifies: false,
            is_driven: false,
            sets_up: false,
            set_up_bytes: 0,
            resets: false,
        };
        let mut words = words;
        while let Some(word) = words.next() {
            found.set(&word, &mut words)?;
        }
        found.check()?;
        Ok(found)
    }

    fn set(&mut self, word: &str, rest: &mut impl Iterator<Item = String>) -> Result<(), String> {
        match word {
            "-p" => self.port = value(word, rest)?,
            "-u" => self.path = value(word, rest)?,
            "-c" => self.connections = value(word, rest)?,
            "-d" => self.seconds = value(word, rest)?,
            "-r" => self.rate = value(word, rest)?,
            "-N" => self.requests_max = value(word, rest)?,
            "-a" => self.certificate = value(word, rest)?,
            "-g" => self.group = group(&value::<String>(word, rest)?)?,
            "-T" => self.tunnel = Some(value(word, rest)?),
            "-n" => self.length = Some(value(word, rest)?),
            "-e" => self.set_up_bytes = value(word, rest)?,
            "-k" => self.closes = true,
            "-t" => self.resumes = true,
            "-B" => self.is_browser = true,
            "-U" => self.has_unique_urls = true,
            "-V" => self.verifies = true,
            "-S" => self.is_driven = true,
            "-E" => self.sets_up = true,
            "-R" => self.resets = true,
            _ => return Err(format!("unknown option \"{word}\" (expected: those of --help)")),
        }
        Ok(())
    }

    fn check(&self) -> Result<(), String> {
        if self.port == 0 || self.connections == 0 || self.certificate.as_os_str().is_empty() {
            return Err("-p, -a or -c is missing (expected: -p PORT -a FILE, -c above 0)".into());
        }
        if !self.path.starts_with('/') {
            return Err(format!("invalid -u \"{}\" (expected: a path)", self.path));
        }
        if self.resumes && !(self.closes && self.sets_up) {
            return Err("-t without -k or -E (expected: all three)".into());
        }
        Ok(())
    }
}

fn value<T: FromStr>(option: &str, rest: &mut impl Iterator<Item = String>) -> Result<T, String> {
    let word = rest.next().ok_or_else(|| format!("{option}: the value is missing"))?;
    word.parse().map_err(|_| format!("invalid {option} \"{word}\" (expected: see --help)"))
}

fn group(name: &str) -> Result<&'static dyn SupportedKxGroup, String> {
    let names = GROUPS.map(|(name, _)| name).join(", ");
    GROUPS
        .iter()
        .find(|(known, _)| *known == name)
        .map(|(_, group)| *group)
        .ok_or_else(|| format!("unknown group \"{name}\" (expected: {names})"))
}
