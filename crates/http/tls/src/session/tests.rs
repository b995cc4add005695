use std::time::Duration;

use super::*;
use crate::{
    Aead, Certificate, ClientHello, ClientOptions, ClientSettings, Clock, Peek, Provider, Roots,
    ServerName, ServerOptions, ServerSettings, TicketKeys, UnknownName, Versions, peek,
};

/// A client and a server, and the bytes on their way.
struct Pair {
    client: Session,
    server: Session,
    to_client: Vec<u8>,
    to_server: Vec<u8>,
    /// The plaintext that each side has received.
    at_client: Vec<u8>,
    at_server: Vec<u8>,
}

impl Pair {
    fn new(aead: Aead, versions: Versions) -> Self {
        let (provider, clock) = (Provider::new(aead), Clock::default());
        let made = rcgen::generate_simple_self_signed(["example.org".to_owned()]).unwrap();
        let pem = made.cert.pem();
        let key = made.signing_key.serialize_pem();
        let certificate = Certificate::from_pem(pem.as_bytes(), key.as_bytes(), &provider).unwrap();
        assert_eq!(certificate.names(), ["example.org"]);
        clock.set(certificate.not_before() + Duration::from_secs(1));
        let options = ServerOptions {
            certificates: vec![certificate],
            versions,
            unknown_name: UnknownName::Refuse,
            alpn: vec![b"http/1.1".to_vec()],
            client_certificates: None,
        };
        let settings = ServerSettings::new(options, &provider, &clock).unwrap();
        let mut keys = TicketKeys::default();
        keys.rotate(&provider).unwrap();
        settings.set_ticket_keys(&keys, "web");
        let roots = Some(Roots::from_pem(pem.as_bytes()).unwrap());
        let options = ClientOptions { roots, certificate: None, alpn: vec![b"http/1.1".to_vec()] };
        let client = ClientSettings::new(options, &provider, &clock).unwrap();
        let mut client = client.connect(ServerName::parse("example.org").unwrap()).unwrap();
        let mut to_server = Vec::new();
        client.flush(&mut to_server).unwrap();
        let Peek::Hello(hello) = peek(&to_server) else { panic!("a ClientHello") };
        assert_eq!(hello.server_name.as_deref(), Some("example.org"));
        assert_eq!(hello.alpn, [b"http/1.1"]);
        assert_eq!(peek(&to_server[..to_server.len() - 1]), Peek::Incomplete);
        let unknown = settings.accept(&ClientHello::default()).unwrap_err();
        assert_eq!(unknown.kind, TlsErrorKind::UnknownName);
        let server = settings.accept(&hello).unwrap();
        let [to_client, at_client, at_server] = [const { Vec::new() }; 3];
        Self { client, server, to_client, to_server, at_client, at_server }
    }

    /// Delivers all bytes, at most `size` at a time, until both sides are quiet.
    fn exchange(&mut self, size: usize) -> Result<(), TlsError> {
        while !(self.to_server.is_empty() && self.to_client.is_empty()) {
            let bytes = std::mem::take(&mut self.to_server);
            deliver(&mut self.server, bytes, size, &mut self.at_server, &mut self.to_client)?;
            let bytes = std::mem::take(&mut self.to_client);
            deliver(&mut self.client, bytes, size, &mut self.at_client, &mut self.to_server)?;
        }
        Ok(())
    }
}

fn deliver(
    session: &mut Session,
    mut bytes: Vec<u8>,
    size: usize,
    received: &mut Vec<u8>,
    output: &mut Vec<u8>,
) -> Result<(), TlsError> {
    let mut plaintext = vec![0; size + RECORD_BYTES + 261];
    for piece in bytes.chunks_mut(size) {
        let count = session.open(piece, &mut plaintext, output)?;
        received.extend_from_slice(&plaintext[..count]);
    }
    Ok(())
}

#[test]
fn bytes_arrive_whole_however_they_are_cut() {
    let aeads = [Aead::AwsLc, Aead::Ring];
    let versions = [(Versions::Only12, "TLSv1.2"), (Versions::From12, "TLSv1.3")];
    for (aead, (versions, name)) in aeads.into_iter().flat_map(|it| versions.map(|of| (it, of))) {
        for size in [1, 7, 4096, 48 * 1024] {
            let mut pair = Pair::new(aead, versions);
            pair.exchange(size).unwrap();
            let handshake = pair.server.handshake().unwrap();
            assert_eq!((handshake.version, handshake.is_resumed), (name, false));
            assert!(handshake.cipher.ends_with("_AES_128_GCM_SHA256"));
            assert_eq!(pair.server.alpn(), Some(&b"http/1.1"[..]));
            assert_eq!(pair.client.handshake(), Some(handshake));
            let body: Vec<u8> = (0..100_000u32).map(|byte| byte as u8).collect();
            let (parts, mut scratch) = ([&b"header "[..], &body, b"", b" end"], Vec::new());
            pair.server.seal(&parts, &mut scratch, &mut pair.to_client).unwrap();
            let records = body.len().div_ceil(RECORD_BYTES);
            assert!(pair.to_client.len() < body.len() + 20 + records * SEALED_OVERHEAD);
            pair.client.seal(&[b"request"], &mut scratch, &mut pair.to_server).unwrap();
            pair.exchange(size).unwrap();
            assert!(pair.at_client == parts.concat(), "{aead} {name} {size}");
            assert_eq!(pair.at_server, b"request");
            assert_eq!(pair.server.held_bytes(), 0, "an idle session holds no bytes");
            pair.client.close(&mut pair.to_server);
            pair.exchange(size).unwrap();
            assert!(pair.server.has_peer_closed() && !pair.client.has_peer_closed());
        }
    }
}

#[test]
fn bytes_may_come_with_the_end_of_the_handshake() {
    for versions in [Versions::Only12, Versions::Only13] {
        let mut pair = Pair::new(Aead::fastest(), versions);
        while pair.client.is_handshaking() {
            let bytes = std::mem::take(&mut pair.to_server);
            let output = &mut pair.to_client;
            deliver(&mut pair.server, bytes, 4096, &mut pair.at_server, output).unwrap();
            let bytes = std::mem::take(&mut pair.to_client);
            let output = &mut pair.to_server;
            deliver(&mut pair.client, bytes, 4096, &mut pair.at_client, output).unwrap();
        }
        pair.client.seal(&[b"request"], &mut Vec::new(), &mut pair.to_server).unwrap();
        pair.exchange(4096).unwrap();
        pair.server.seal(&[b"response"], &mut Vec::new(), &mut pair.to_client).unwrap();
        pair.exchange(4096).unwrap();
        assert_eq!((&pair.at_server[..], &pair.at_client[..]), (&b"request"[..], &b"response"[..]));
    }
}

#[test]
fn a_key_update_is_answered_before_the_next_bytes() {
    let mut pair = Pair::new(Aead::fastest(), Versions::Only13);
    pair.exchange(4096).unwrap();
    for _ in 0..2 {
        let RustlsConnection::Client(client) = &mut pair.client.connection else {
            panic!("the client")
        };
        let state = client.process_tls_records(&mut []).state;
        let Ok(ConnectionState::WriteTraffic(traffic)) = state else { panic!("complete") };
        traffic.refresh_traffic_keys().unwrap();
        pair.client.flush(&mut pair.to_server).unwrap();
        pair.exchange(4096).unwrap();
        pair.server.seal(&[b"after it "], &mut Vec::new(), &mut pair.to_client).unwrap();
        pair.exchange(4096).unwrap();
    }
    assert_eq!(pair.at_client, b"after it after it ");
}

#[test]
fn a_changed_byte_is_an_error_and_no_plaintext() {
    let mut pair = Pair::new(Aead::fastest(), Versions::From12);
    pair.exchange(4096).unwrap();
    pair.client.seal(&[b"secret"], &mut Vec::new(), &mut pair.to_server).unwrap();
    let last = pair.to_server.len() - 1;
    pair.to_server[last] ^= 1;
    let error = pair.exchange(4096).unwrap_err();
    assert_eq!(error.kind, TlsErrorKind::BadRecord);
    assert_eq!(pair.at_server, b"");
    assert!(!pair.to_client.is_empty(), "an alert");
    let sealed = pair.server.seal(&[b"more"], &mut Vec::new(), &mut Vec::new());
    assert!(sealed.is_err(), "a failed session seals nothing");
}

#[test]
fn plaintext_before_a_failure_is_returned_first() {
    let mut pair = Pair::new(Aead::fastest(), Versions::From12);
    pair.exchange(4096).unwrap();
    pair.client.seal(&[b"whole"], &mut Vec::new(), &mut pair.to_server).unwrap();
    pair.client.seal(&[b"damaged"], &mut Vec::new(), &mut pair.to_server).unwrap();
    *pair.to_server.last_mut().unwrap() ^= 1;
    let (mut plaintext, mut output) = ([0; 1024], Vec::new());
    let count = pair.server.open(&mut pair.to_server, &mut plaintext, &mut output).unwrap();
    assert_eq!(&plaintext[..count], b"whole");
    assert_eq!(pair.server.failure().unwrap().kind, TlsErrorKind::BadRecord);
    let next = pair.server.open(&mut [], &mut plaintext, &mut output).unwrap_err();
    assert_eq!(next.kind, TlsErrorKind::BadRecord);
}

#[test]
fn a_server_holds_no_more_than_a_hello_and_a_record() {
    let mut server = Pair::new(Aead::fastest(), Versions::From12).server;
    // A message of 60,000 bytes in records of 4,000.
    let mut message = vec![0; 60_000];
    message[..4].copy_from_slice(&[1, 0, 0xea, 0x5c]);
    let (mut plaintext, mut output) = (vec![0; 100_000], Vec::new());
    let mut records = message.chunks(4000).map(|part| [&[22, 3, 3, 0x0f, 0xa0], part].concat());
    let error =
        records.find_map(|mut record| server.open(&mut record, &mut plaintext, &mut output).err());
    assert_eq!(error.unwrap().kind, TlsErrorKind::Malformed);
    assert!(records.len() > 3, "before the message is whole");
}

#[test]
fn nothing_follows_the_announced_end() {
    let mut pair = Pair::new(Aead::fastest(), Versions::From12);
    pair.exchange(4096).unwrap();
    pair.server.close(&mut pair.to_client);
    pair.exchange(4096).unwrap();
    pair.client.seal(&[b"more"], &mut Vec::new(), &mut pair.to_server).unwrap();
    pair.exchange(4096).unwrap();
    assert_eq!(pair.at_server, b"more", "the other direction continues");
    pair.client.seal(&[b"damaged"], &mut Vec::new(), &mut pair.to_server).unwrap();
    *pair.to_server.last_mut().unwrap() ^= 1;
    assert_eq!(pair.exchange(4096).unwrap_err().kind, TlsErrorKind::BadRecord);
    assert!(pair.to_client.is_empty());
}

#[test]
fn a_certificate_that_is_not_trusted_is_an_alert_for_the_server() {
    for versions in [Versions::Only12, Versions::From12] {
        let mut pair = Pair::new(Aead::fastest(), versions);
        let other = Pair::new(Aead::fastest(), versions);
        // The client of another pair trusts another certificate.
        pair.client = other.client;
        pair.to_server = other.to_server;
        let error = pair.exchange(64 * 1024).unwrap_err();
        assert_eq!(error.kind, TlsErrorKind::Certificate, "{error}");
        let error = pair.exchange(64 * 1024).unwrap_err();
        assert_eq!(error.kind, TlsErrorKind::Alert, "the server gets an alert: {error}");
    }
}

#[test]
fn what_is_no_client_hello_is_recognised() {
    let kind = |bytes: &[u8]| match peek(bytes) {
        Peek::Failed { error, .. } => Some(error.kind),
        _ => None,
    };
    assert_eq!(kind(b"GET / HTTP/1.1\r\n\r\n"), Some(TlsErrorKind::PlainHttp));
    assert_eq!(kind(&[0x80, 0x2e, 1]), Some(TlsErrorKind::Malformed));
    assert_eq!(kind(b""), None);
    // A ClientHello of 60,000 bytes, in records of 16,000.
    let mut large = Vec::new();
    for index in 0..4 {
        large.extend_from_slice(&[22, 3, 1, 0x3e, 0x80]);
        let header: &[u8] = if index == 0 { &[1, 0, 0xea, 0x60] } else { &[0; 4] };
        large.extend_from_slice(header);
        large.extend_from_slice(&[0; 15_996]);
    }
    assert_eq!(kind(&large), Some(TlsErrorKind::HelloTooLarge));
}
