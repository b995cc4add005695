//! Fuzz functions, which check properties that hold for any bytes from the network.

use std::cell::OnceCell;
use std::time::Duration;

use crate::{
    Certificate, ClientOptions, ClientSettings, Clock, HELLO_BYTES_MAX, Peek, Provider, Roots,
    SEALED_OVERHEAD, ServerName, ServerOptions, ServerSettings, Session, Sniffed, TlsErrorKind,
    Versions, peek, sniff,
};

/// Checks that a ClientHello is read in the same way however it arrives, and that a session takes
/// what was read.
///
/// # Panics
/// Panics if a property does not hold.
pub fn fuzz_client_hello(data: &[u8]) {
    let whole = peek(data);
    for end in (0..data.len()).step_by(data.len() / 64 + 1) {
        match peek(&data[..end]) {
            Peek::Incomplete => {}
            found @ Peek::Hello(_) => assert_eq!(found, whole),
            Peek::Failed { .. } => assert!(matches!(whole, Peek::Failed { .. })),
        }
    }
    match sniff(data) {
        Sniffed::Hello(hello) => assert_eq!(whole, Peek::Hello(hello)),
        Sniffed::Incomplete => assert_eq!(whole, Peek::Incomplete),
        Sniffed::Unreadable => assert!(matches!(whole, Peek::Failed { .. })),
        Sniffed::Other => assert!(!matches!(whole, Peek::Hello(_))),
    }
    match whole {
        Peek::Incomplete => assert!(data.len() < HELLO_BYTES_MAX),
        Peek::Failed { error, alert } => {
            let is_http = data[0].is_ascii_uppercase();
            assert_eq!(error.kind == TlsErrorKind::PlainHttp, is_http);
            assert!(alert.is_empty() || alert[0] == ALERT_RECORD && alert.len() == 7);
        }
        Peek::Hello(hello) => {
            assert!(hello.alpn.iter().all(|name| (1..256).contains(&name.len())));
            if let Some(name) = &hello.server_name {
                assert!((1..256).contains(&name.len()) && !name.ends_with('.'));
                assert_eq!(*name, name.to_ascii_lowercase());
            }
            let settings = Fixture::with(|fixture| fixture.server[0].clone());
            let mut session = settings.accept(&hello).expect("unknown names are served");
            let mut output = Vec::new();
            let mut bytes = data.to_vec();
            let opened = session.open(&mut bytes, &mut vec![0; data.len()], &mut output);
            assert!(matches!(opened, Ok(0) | Err(_)), "nothing was sealed");
            assert!(session.handshake().is_none() || session.is_handshaking());
        }
    }
}

/// Checks that a session yields only the bytes that its peer has sealed, in order, and holds a
/// bounded number of bytes. `data` is a sequence of steps: sealed bytes arrive cut, changed, or
/// with other bytes between them.
///
/// # Panics
/// Panics if a property does not hold.
pub fn fuzz_open(data: &[u8]) {
    let Some((&kind, steps)) = data.split_first() else { return };
    // Each session begins the random sequence anew, so that a finding repeats.
    let _ = Provider::deterministic(SEED);
    let mut wire = Wire::new(usize::from(kind & 1), kind & 2 != 0);
    if kind & 4 != 0 {
        wire.finish_handshake();
    }
    let mut rest = steps;
    while let Some((&[step, size], after)) = rest.split_first_chunk::<2>() {
        rest = after;
        match step % 8 {
            0 | 1 => wire.deliver(usize::from(size) + 1),
            2 => wire.respond(usize::from(size)),
            3 => wire.deliver(usize::MAX),
            4 => wire.seal(usize::from(size) * usize::from(step)),
            5 => wire.change(size, step >> 3),
            6 => {
                let (inserted, after) = rest.split_at(usize::from(size).min(rest.len()));
                wire.insert(inserted);
                rest = after;
            }
            _ => wire.peer_closes(),
        }
    }
    wire.finish();
}

/// A session under test, its honest peer, and the bytes on their way to the session.
struct Wire {
    session: Session,
    peer: Session,
    to_session: Vec<u8>,
    to_peer: Vec<u8>,
    /// Bytes that the peer sealed, and bytes that the session opened.
    sealed: Vec<u8>,
    opened: Vec<u8>,
    /// The number of bytes that the session sealed for the peer, and that the peer opened.
    responded: usize,
    received: usize,
    /// Whether other bytes than those of the peer have been put on the wire.
    is_changed: bool,
    has_failed: bool,
    has_peer_closed: bool,
}

impl Wire {
    /// Begins a handshake. The session under test is the client or the server.
    fn new(versions: usize, is_client: bool) -> Self {
        let (mut client, server, hello) = Fixture::with(|fixture| {
            let mut client = fixture.client.connect(fixture.name.clone()).expect("randomness");
            let mut hello = Vec::new();
            client.flush(&mut hello).expect("a ClientHello");
            let Peek::Hello(found) = peek(&hello) else { panic!("a ClientHello") };
            (client, fixture.server[versions].accept(&found).expect("a certificate"), hello)
        });
        let (mut to_session, mut to_peer) = (hello, Vec::new());
        let (session, peer) = if is_client {
            let mut server = server;
            let mut hello = std::mem::take(&mut to_session);
            let opened = server.open(&mut hello, &mut vec![0; BUFFER_BYTES], &mut to_session);
            assert_eq!(opened, Ok(0));
            (client, server)
        } else {
            client.flush(&mut to_peer).expect("the client has nothing to send");
            (server, client)
        };
        let [sealed, opened] = [const { Vec::new() }; 2];
        Self {
            session,
            peer,
            to_session,
            to_peer,
            sealed,
            opened,
            responded: 0,
            received: 0,
            is_changed: false,
            has_failed: false,
            has_peer_closed: false,
        }
    }

    fn finish_handshake(&mut self) {
        while !self.to_session.is_empty() {
            self.deliver(usize::MAX);
        }
        assert!(!self.session.is_handshaking() && !self.peer.is_handshaking());
    }

    /// Delivers at most `count` bytes to the session, and its response to the peer.
    fn deliver(&mut self, count: usize) {
        let mut bytes: Vec<u8> = self
            .to_session
            .drain(..count.min(self.to_session.len()).min(PIECE_BYTES_MAX))
            .collect();
        let mut plaintext = vec![0; bytes.len() + self.session.held_bytes()];
        match self.session.open(&mut bytes, &mut plaintext, &mut self.to_peer) {
            Ok(count) => {
                assert!(!self.has_failed, "a failed session opens nothing");
                self.opened.extend_from_slice(&plaintext[..count]);
                self.has_failed = self.session.failure().is_some();
                assert!(self.is_changed || !self.has_failed);
            }
            Err(error) => {
                assert!(self.is_changed, "{error}");
                self.has_failed = true;
                let sealed = self.session.seal(&[b"more"], &mut Vec::new(), &mut Vec::new());
                assert!(sealed.is_err(), "a failed session seals nothing");
            }
        }
        assert!(self.sealed.starts_with(&self.opened), "only sealed bytes, in order");
        assert!(self.session.held_bytes() <= HELD_CAPACITY_MAX);
        let mut bytes = std::mem::take(&mut self.to_peer);
        let mut plaintext = vec![0; bytes.len() + BUFFER_BYTES];
        // A peer whose session failed gets an alert.
        let taken = self.peer.open(&mut bytes, &mut plaintext, &mut self.to_session);
        assert!(self.is_changed || taken.is_ok());
        self.received += taken.unwrap_or(0);
        assert!(self.has_failed || self.received == self.responded);
    }

    /// Lets the session seal `count` bytes. It may hold a part of a record.
    fn respond(&mut self, count: usize) {
        if self.session.seal(&[&vec![0; count]], &mut Vec::new(), &mut self.to_peer).is_ok() {
            self.responded += count;
        }
    }

    /// Lets the peer seal `count` bytes, unless it has announced that it sends nothing more.
    fn seal(&mut self, count: usize) {
        if self.has_peer_closed {
            return;
        }
        let bytes: Vec<u8> = (self.sealed.len()..).take(count).map(|at| at as u8).collect();
        let start = self.to_session.len();
        if self.peer.seal(&[&bytes], &mut Vec::new(), &mut self.to_session).is_ok() {
            assert!(self.to_session.len() - start >= count, "{SEALED_OVERHEAD} more per record");
            self.sealed.extend_from_slice(&bytes);
        }
    }

    /// Changes a byte on the way to the session.
    fn change(&mut self, place: u8, bits: u8) {
        let length = self.to_session.len();
        if let Some(byte) = self.to_session.get_mut(usize::from(place) * length / 256) {
            *byte ^= bits | 1;
            self.is_changed = true;
        }
    }

    /// Inserts bytes that the session receives next.
    fn insert(&mut self, bytes: &[u8]) {
        self.is_changed |= !bytes.is_empty();
        self.to_session.splice(..0, bytes.iter().copied());
    }

    fn peer_closes(&mut self) {
        self.has_peer_closed = !self.peer.is_handshaking();
        self.peer.close(&mut self.to_session);
    }

    /// Delivers everything. Without changes on the way, every sealed byte has been opened.
    fn finish(mut self) {
        while !self.to_session.is_empty() {
            self.deliver(usize::MAX);
        }
        if !self.is_changed {
            assert!(self.opened == self.sealed, "all bytes arrive");
            assert!(!self.session.is_handshaking());
            assert_eq!(self.session.handshake(), self.peer.handshake());
            assert_eq!(self.session.held_bytes(), 0, "an idle session holds no bytes");
        }
    }
}

/// Settings that the inputs of a thread share.
struct Fixture {
    /// For TLS 1.2 and for TLS 1.3.
    server: [ServerSettings; 2],
    client: ClientSettings,
    name: ServerName,
}

impl Fixture {
    fn new() -> Self {
        let provider = Provider::deterministic(SEED);
        let clock = Clock::default();
        clock.set(TIME_OF_DAY);
        let certificate =
            Certificate::from_pem(CHAIN, KEY, &provider).expect("the chain fits the key");
        let server = [Versions::Only12, Versions::Only13].map(|versions| {
            let certificates = vec![certificate.clone()];
            let options = ServerOptions { certificates, versions, ..ServerOptions::default() };
            ServerSettings::new(options, &provider, &clock).expect("suites for each version")
        });
        let roots = Some(Roots::from_pem(CHAIN).expect("the chain is a root"));
        let options = ClientOptions { roots, certificate: None, alpn: Vec::new() };
        let client = ClientSettings::new(options, &provider, &clock).expect("suites");
        let name = ServerName::parse("example.org").expect("a name");
        Self { server, client, name }
    }

    fn with<R>(use_it: impl FnOnce(&Self) -> R) -> R {
        thread_local!(static FIXTURE: OnceCell<Fixture> = const { OnceCell::new() });
        FIXTURE.with(|fixture| use_it(fixture.get_or_init(Self::new)))
    }
}

const SEED: u64 = 1;
/// A time in 2033, when the certificate is valid.
const TIME_OF_DAY: Duration = Duration::from_secs(2_000_000_000);
/// The first byte of a record with an alert (RFC 8446 section 5.1).
const ALERT_RECORD: u8 = 21;
/// The most bytes that a session receives at once, as from the buffer of an engine.
const PIECE_BYTES_MAX: usize = 64 * 1024;
/// The bytes of a whole flight of a handshake.
const BUFFER_BYTES: usize = 128 * 1024;
/// The largest capacity of held bytes: twice a handshake message that is just too long for the
/// session, and a record whose length is the largest number.
const HELD_CAPACITY_MAX: usize = 2 * (80 * 1024 + 5 + 65_535);

/// A certificate with an Ed25519 key, whose signatures repeat, for example.org until 2126.
const CHAIN: &[u8] = b"\
-----BEGIN CERTIFICATE-----
MIIBSTCB/KADAgECAhRXhU6uJAE+BW2phngsCbA/Gd/dBTAFBgMrZXAwDzENMAsG
A1UEAwwEZnV6ejAgFw0yNjExMjYxMzAyNDZaGA8yMTI2MTEwMjEzMDI0NlowDzEN
MAsGA1UEAwwEZnV6ejAqMAUGAytlcAMhAI4x2mpwwIdnDR+oHyoJfzG9IOUiHWc8
UE38BVoDKEGQo2gwZjAdBgNVHQ4EFgQUKa0BYBeabOHwkmRDvW3d8fDB57QwHwYD
VR0jBBgwFoAUKa0BYBeabOHwkmRDvW3d8fDB57QwFgYDVR0RBA8wDYILZXhhbXBs
ZS5vcmcwDAYDVR0TAQH/BAIwADAFBgMrZXADQQD9ln/G1Be4+IcoRy1N5YuawC4Q
D+YKvc43vKUr+rcGC6ECPIirRuTh2UTcfx6cxQAQMa2hVRuMkSdq1ozJBLcA
-----END CERTIFICATE-----
";
const KEY: &[u8] = b"\
-----BEGIN PRIVATE KEY-----
MC4CAQAwBQYDK2VwBCIEIGzq0KtpeWGM5tiGinrHFE+ygO2tjuRAJyZPEfol+Rjp
-----END PRIVATE KEY-----
";

#[cfg(test)]
mod tests {
    use millrace_http1::corpus::{Random, mutate_bytes, run};

    use super::*;

    #[test]
    fn the_corpus_of_client_hellos_is_read_the_same_in_pieces() {
        run("client_hello", 100, mutate_bytes, fuzz_client_hello);
    }

    #[test]
    fn the_corpus_of_steps_opens_only_sealed_bytes() {
        run("open", 100, mutate_bytes, fuzz_open);
    }

    #[test]
    fn random_steps_open_only_sealed_bytes() {
        let mut random = Random::from_clock();
        for _ in 0..300 {
            let data: Vec<u8> = (0..random.below(80)).map(|_| random.below(256) as u8).collect();
            println!("{data:?}");
            fuzz_open(&data);
        }
    }
}
