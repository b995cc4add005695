//! The TLS state of one connection.

use std::sync::Arc;
use std::time::Duration;

use rustls::client::UnbufferedClientConnection;
use rustls::pki_types::UnixTime;
use rustls::server::UnbufferedServerConnection;
use rustls::server::danger::ClientCertVerifier;
use rustls::unbuffered::{ConnectionState, EncodeError, EncryptError, UnbufferedStatus};
use rustls::{CommonState, HandshakeKind, ProtocolVersion};

use crate::client_certificate::{ClientCertificateMode, needed_chain};
use crate::error::{TlsError, TlsErrorKind};
use crate::hello::HELLO_BYTES_MAX;

/// The TLS state of one connection, as server or as client.
///
/// The owner passes received bytes to [`Session::open`] and bytes to be sent to [`Session::seal`].
/// Both append to an output whose bytes the owner sends in order. A failed session opens and seals
/// nothing more, and the output of the failing call ends with an alert.
pub struct Session {
    connection: RustlsConnection,
    /// Received bytes that are not processed yet: the beginning of a record, or whole records with
    /// the beginning of a handshake message.
    held: Vec<u8>,
    /// Where the last, incomplete record in `held` begins; `record_start <= held.len()`.
    record_start: usize,
    has_peer_closed: bool,
    /// The end of the stream to the peer was announced. Nothing follows it.
    has_closed: bool,
    /// Why the session has failed. Rustls must not see bytes after that.
    failure: Option<TlsError>,
    /// How the handshake requests a certificate from the client; `None` if it does not.
    requested: Option<Requested>,
    /// The certificate of this side may have an RSA key.
    may_sign_by_rsa: bool,
}

/// The request for a certificate of the client.
pub(crate) struct Requested {
    pub(crate) mode: ClientCertificateMode,
    pub(crate) verifier: Arc<dyn ClientCertVerifier>,
}

/// Both are large, and boxed so that a session moves cheaply.
enum RustlsConnection {
    Server(Box<UnbufferedServerConnection>),
    Client(Box<UnbufferedClientConnection>),
}

impl RustlsConnection {
    fn common(&self) -> &CommonState {
        match self {
            Self::Server(connection) => connection,
            Self::Client(connection) => connection,
        }
    }
}

/// The properties of a session that its handshake agreed on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Handshake {
    /// `TLSv1.2` or `TLSv1.3`.
    pub version: &'static str,
    /// The name of the cipher suite, as IANA registers it.
    pub cipher: &'static str,
    /// Whether an earlier session was resumed.
    pub is_resumed: bool,
}

/// How many bytes a sealed record is longer than its plaintext, at most: the header, an explicit
/// nonce (TLS 1.2), the type of the content (TLS 1.3), and the tag.
pub const SEALED_OVERHEAD: usize = 5 + 8 + 1 + 16;

/// The names that rustls gives to suites, and those that IANA registers.
const CIPHER_NAMES: [(&str, &str); 3] = [
    ("TLS13_AES_128_GCM_SHA256", "TLS_AES_128_GCM_SHA256"),
    ("TLS13_AES_256_GCM_SHA384", "TLS_AES_256_GCM_SHA384"),
    ("TLS13_CHACHA20_POLY1305_SHA256", "TLS_CHACHA20_POLY1305_SHA256"),
];

/// The most plaintext in one record (RFC 8446 section 5.1).
const RECORD_BYTES: usize = 16 * 1024;
/// The most received bytes that wait for the rest of a handshake message. A certificate chain is
/// the longest message.
const HELD_BYTES_MAX: usize = 80 * 1024;
/// The same for a server that requests no certificate: a ClientHello, such as the one after a
/// HelloRetryRequest, and a part of the next record.
const HELD_BYTES_MAX_WITHOUT_CERTIFICATE: usize = HELLO_BYTES_MAX + 5 + RECORD_BYTES + 2048;
/// The bytes before the content of a record: type, version, and length.
const HEADER_BYTES: usize = 5;

impl Session {
    pub(crate) fn server(
        connection: UnbufferedServerConnection,
        requested: Option<Requested>,
        may_sign_by_rsa: bool,
    ) -> Self {
        let session = Self::new(RustlsConnection::Server(Box::new(connection)));
        Self { requested, may_sign_by_rsa, ..session }
    }

    pub(crate) fn client(connection: UnbufferedClientConnection) -> Self {
        Self::new(RustlsConnection::Client(Box::new(connection)))
    }

    fn new(connection: RustlsConnection) -> Self {
        Self {
            connection,
            held: Vec::new(),
            record_start: 0,
            has_peer_closed: false,
            has_closed: false,
            failure: None,
            requested: None,
            may_sign_by_rsa: false,
        }
    }

    /// Returns whether the handshake is in progress.
    pub fn is_handshaking(&self) -> bool {
        self.common().is_handshaking()
    }

    /// Returns whether the next flight of the client probably costs an RSA signature, which takes
    /// several times as long as the other steps of a handshake.
    pub fn signs_by_rsa(&self) -> bool {
        // Rustls notes the kind of the handshake with the ServerHello, and the first one for a
        // HelloRetryRequest.
        let has_signed = matches!(
            self.common().handshake_kind(),
            Some(HandshakeKind::Full | HandshakeKind::Resumed)
        );
        self.may_sign_by_rsa && !has_signed && self.is_handshaking()
    }

    /// Returns whether the peer has announced that it sends nothing more (close_notify).
    pub fn has_peer_closed(&self) -> bool {
        self.has_peer_closed
    }

    /// Returns why the session has failed; `None` if it has not.
    pub fn failure(&self) -> Option<&TlsError> {
        self.failure.as_ref()
    }

    /// Returns how many received bytes the session holds until more arrive.
    pub fn held_bytes(&self) -> usize {
        self.held.capacity()
    }

    /// Returns the properties that the handshake agreed on; `None` while it is in progress.
    pub fn handshake(&self) -> Option<Handshake> {
        let common = self.common();
        let suite = common.negotiated_cipher_suite()?;
        let version = match common.protocol_version()? {
            ProtocolVersion::TLSv1_2 => "TLSv1.2",
            ProtocolVersion::TLSv1_3 => "TLSv1.3",
            _ => return None,
        };
        let is_resumed = common.handshake_kind()? == HandshakeKind::Resumed;
        let name = suite.suite().as_str()?;
        // Rustls marks the suites of TLS 1.3, whose registered names do not differ.
        let cipher =
            CIPHER_NAMES.iter().find(|(rustls, _)| *rustls == name).map_or(name, |it| it.1);
        Some(Handshake { version, cipher, is_resumed })
    }

    /// Returns the application protocol (ALPN) that both sides agreed on, if any.
    pub fn alpn(&self) -> Option<&[u8]> {
        self.common().alpn_protocol()
    }

    /// Returns how the handshake requests a certificate from the client; `None` if it does not, or
    /// if this is the client's side.
    pub fn client_certificates(&self) -> Option<ClientCertificateMode> {
        self.requested.as_ref().map(|requested| requested.mode)
    }

    /// Returns the certificates of the peer as DER, its own first, as it sent them. Those of a
    /// client are verified. Empty if it has none, or while the handshake is in progress.
    pub fn peer_certificates(&self) -> impl Iterator<Item = &[u8]> {
        let complete = Some(self.common()).filter(|common| !common.is_handshaking());
        let chain = complete.and_then(CommonState::peer_certificates).unwrap_or_default();
        chain.iter().map(AsRef::as_ref)
    }

    /// Returns the verified chain of the client as DER: its own certificate, and those between it
    /// and a root, each issued by the next. Empty if the client has presented none, or while the
    /// handshake is in progress. `time_of_day` is that of the verification, since 1970.
    ///
    /// Certificates that the verification did not need are left out: nothing vouches for them.
    /// Verifies the chain again, so the caller keeps the result.
    pub fn client_chain(&self, time_of_day: Duration) -> Vec<&[u8]> {
        let complete = Some(self.common()).filter(|common| !common.is_handshaking());
        let sent = complete.and_then(CommonState::peer_certificates).unwrap_or_default();
        let Some(requested) = &self.requested else { return Vec::new() };
        let now = UnixTime::since_unix_epoch(time_of_day);
        needed_chain(&*requested.verifier, sent, now)
    }

    fn common(&self) -> &CommonState {
        self.connection.common()
    }

    /// Opens `received` bytes, which it overwrites. Writes the plaintext to the front of
    /// `plaintext`, and appends bytes for the peer to `output`. Returns the number of bytes of
    /// plaintext. A record that is not complete is held until the rest arrives. After
    /// [`Session::close`] nothing is appended, not even an alert.
    ///
    /// # Errors
    /// If the bytes are not acceptable. If plaintext precedes the error, it is returned first:
    /// [`Session::failure`] then has the error, and the next call fails.
    ///
    /// # Panics
    /// If `plaintext` is shorter than the received and the held bytes together.
    pub fn open(
        &mut self,
        received: &mut [u8],
        plaintext: &mut [u8],
        output: &mut Vec<u8>,
    ) -> Result<usize, TlsError> {
        self.check_alive()?;
        let begin = output.len();
        let mut sink = Sink { plaintext, written: 0, output };
        let opened = self.open_records(received, &mut sink);
        let written = sink.written;
        if self.has_closed {
            output.truncate(begin);
        }
        match opened {
            Err(error) if written == 0 => Err(error),
            _ => Ok(written),
        }
    }

    fn open_records(
        &mut self,
        mut received: &mut [u8],
        sink: &mut Sink<'_>,
    ) -> Result<(), TlsError> {
        while !self.held.is_empty() && !received.is_empty() {
            let count = self.missing().min(received.len());
            let (front, rest) = received.split_at_mut(count);
            self.held.extend_from_slice(front);
            received = rest;
            if self.missing() == HEADER_BYTES {
                self.open_held(sink)?;
            }
        }
        if !received.is_empty() {
            let consumed = self.process(Input::Received(received), sink)?;
            self.hold(&received[consumed..])?;
        }
        Ok(())
    }

    fn check_alive(&self) -> Result<(), TlsError> {
        self.failure.clone().map_or(Ok(()), Err)
    }

    fn fail(&mut self, error: TlsError) -> TlsError {
        self.failure.insert(error).clone()
    }

    /// Returns how many bytes are missing until `held` ends with a whole record; the size of a
    /// header if it does.
    fn missing(&mut self) -> usize {
        loop {
            let record = &self.held[self.record_start..];
            let Some(header) = record.first_chunk::<HEADER_BYTES>() else {
                return HEADER_BYTES - record.len();
            };
            let length = HEADER_BYTES + usize::from(u16::from_be_bytes([header[3], header[4]]));
            if record.len() < length {
                return length - record.len();
            }
            self.record_start += length;
        }
    }

    fn open_held(&mut self, sink: &mut Sink<'_>) -> Result<(), TlsError> {
        let consumed = self.process(Input::Held, sink)?;
        self.held.drain(..consumed);
        self.record_start -= consumed;
        match self.held.is_empty() {
            // An idle connection holds no memory.
            true => self.held = Vec::new(),
            false => self.check_held()?,
        }
        Ok(())
    }

    /// Holds bytes that could not be processed yet.
    fn hold(&mut self, bytes: &[u8]) -> Result<(), TlsError> {
        if !bytes.is_empty() {
            self.held = bytes.to_vec();
            self.record_start = 0;
            self.check_held()?;
        }
        Ok(())
    }

    fn check_held(&mut self) -> Result<(), TlsError> {
        let max = match (&self.connection, &self.requested) {
            (RustlsConnection::Server(_), None) => HELD_BYTES_MAX_WITHOUT_CERTIFICATE,
            _ => HELD_BYTES_MAX,
        };
        if self.held.len() <= max {
            return Ok(());
        }
        let detail = format!("a handshake message has more than {max} bytes");
        Err(self.fail(TlsError::new(TlsErrorKind::Malformed, detail)))
    }

    /// Processes every whole record of the input. Returns how many bytes of it were processed.
    fn process(&mut self, input: Input<'_>, sink: &mut Sink<'_>) -> Result<usize, TlsError> {
        let bytes = match input {
            Input::Received(bytes) => bytes,
            Input::Held => &mut self.held[..],
        };
        let mut consumed = 0;
        loop {
            let rest = &mut bytes[consumed..];
            let (discard, step) = match &mut self.connection {
                RustlsConnection::Server(connection) => {
                    sink.take(connection.process_tls_records(rest))
                }
                RustlsConnection::Client(connection) => {
                    sink.take(connection.process_tls_records(rest))
                }
            };
            consumed += discard;
            match step {
                Ok(Step::Continue) => {}
                // Rustls yields plaintext before it looks at the next record, so no other state
                // follows the last one, unless a message is pending or in the output.
                Ok(Step::Plaintext) => {
                    let has_message =
                        !sink.output.is_empty() || self.connection.common().wants_write();
                    if consumed == bytes.len() && !has_message {
                        return Ok(consumed);
                    }
                }
                Ok(Step::PeerClosed) => self.has_peer_closed = true,
                Ok(Step::Wait) => return Ok(consumed),
                Err(error) => {
                    self.write_alert(sink);
                    return Err(self.fail(error));
                }
            }
        }
    }

    /// Appends the alert that an error has caused, if any. Rustls yields it before it looks at any
    /// bytes. It panics if it looks at them after an error, when they no longer fit its state.
    fn write_alert(&mut self, sink: &mut Sink<'_>) {
        if !self.common().wants_write() {
            return;
        }
        let _ = match &mut self.connection {
            RustlsConnection::Server(connection) => {
                sink.take(connection.process_tls_records(&mut []))
            }
            RustlsConnection::Client(connection) => {
                sink.take(connection.process_tls_records(&mut []))
            }
        };
    }

    /// Appends bytes that the session has for the peer, such as the ClientHello of a client.
    ///
    /// # Errors
    /// If the session has failed.
    pub fn flush(&mut self, output: &mut Vec<u8>) -> Result<(), TlsError> {
        self.check_alive()?;
        let mut sink = Sink { plaintext: &mut [], written: 0, output };
        self.process(Input::Held, &mut sink).map(|_| ())
    }

    /// Seals the bytes of `parts`, in order, in as few records as possible, and appends the records
    /// to `output`. Bytes that fill a record alone are sealed from where they are; others are
    /// gathered in `scratch` first.
    ///
    /// # Errors
    /// If the handshake is in progress or the session has failed. Then nothing was appended that
    /// the peer could take for a part of the bytes.
    pub fn seal(
        &mut self,
        parts: &[&[u8]],
        scratch: &mut Vec<u8>,
        output: &mut Vec<u8>,
    ) -> Result<(), TlsError> {
        scratch.clear();
        for part in parts {
            let mut part = *part;
            if !scratch.is_empty() || part.len() < RECORD_BYTES {
                let count = part.len().min(RECORD_BYTES - scratch.len());
                let (front, rest) = part.split_at(count);
                scratch.extend_from_slice(front);
                part = rest;
                if scratch.len() < RECORD_BYTES {
                    continue;
                }
                self.encrypt(scratch, output)?;
                scratch.clear();
            }
            let whole = part.len() - part.len() % RECORD_BYTES;
            self.encrypt(&part[..whole], output)?;
            scratch.extend_from_slice(&part[whole..]);
        }
        self.encrypt(scratch, output)
    }

    /// Appends the announcement that no more bytes will follow (close_notify). Does nothing while
    /// the handshake is in progress.
    pub fn close(&mut self, output: &mut Vec<u8>) {
        // An error means that there are no keys with which the announcement could be sealed. Then
        // the connection ends without it.
        self.has_closed |= self.write(output, SEALED_OVERHEAD + 2, Write::Close).is_ok();
    }

    fn encrypt(&mut self, bytes: &[u8], output: &mut Vec<u8>) -> Result<(), TlsError> {
        if bytes.is_empty() {
            return Ok(());
        }
        let records = bytes.len().div_ceil(RECORD_BYTES);
        self.write(output, bytes.len() + records * SEALED_OVERHEAD, Write::Bytes(bytes))
    }

    /// Performs a write, whose result probably has at most `size` bytes.
    fn write(
        &mut self,
        output: &mut Vec<u8>,
        mut size: usize,
        write: Write<'_>,
    ) -> Result<(), TlsError> {
        self.check_alive()?;
        if self.is_handshaking() {
            return Err(TlsError::new(TlsErrorKind::Internal, "there are no keys to seal with"));
        }
        loop {
            // Pending messages of the session come first. The response to a KeyUpdate of the peer
            // becomes pending only at the first write, which then fails for lack of space.
            if self.common().wants_write() {
                self.flush(output)?;
            }
            let start = output.len();
            output.resize(start + size, 0);
            let free = &mut output[start..];
            let result = match &mut self.connection {
                RustlsConnection::Server(connection) => {
                    write.perform(connection.process_tls_records(&mut self.held), free)
                }
                RustlsConnection::Client(connection) => {
                    write.perform(connection.process_tls_records(&mut self.held), free)
                }
            };
            match result {
                Ok(written) => {
                    output.truncate(start + written);
                    return Ok(());
                }
                Err(EncryptError::InsufficientSize(needed)) if needed.required_size > size => {
                    output.truncate(start);
                    size = needed.required_size;
                }
                Err(error) => {
                    output.truncate(start);
                    return Err(self.fail(TlsError::new(TlsErrorKind::Internal, error)));
                }
            }
        }
    }
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let is_server = matches!(self.connection, RustlsConnection::Server(_));
        f.debug_struct("Session")
            .field("is_server", &is_server)
            .field("is_handshaking", &self.is_handshaking())
            .field("held", &self.held.len())
            .finish_non_exhaustive()
    }
}

/// The bytes to process.
enum Input<'a> {
    Received(&'a mut [u8]),
    /// The held bytes of the session.
    Held,
}

/// The bytes that a session writes.
enum Write<'a> {
    Bytes(&'a [u8]),
    Close,
}

impl Write<'_> {
    fn perform<Data>(
        &self,
        status: UnbufferedStatus<'_, '_, Data>,
        output: &mut [u8],
    ) -> Result<usize, EncryptError> {
        let Ok(ConnectionState::WriteTraffic(mut traffic)) = status.state else {
            return Err(EncryptError::EncryptExhausted);
        };
        match self {
            Self::Bytes(bytes) => traffic.encrypt(bytes, output),
            Self::Close => traffic.queue_close_notify(output),
        }
    }
}

/// The step after a state of rustls.
enum Step {
    Continue,
    Plaintext,
    PeerClosed,
    Wait,
}

/// The destinations of the bytes that rustls yields.
struct Sink<'a> {
    plaintext: &'a mut [u8],
    /// `written <= plaintext.len()`.
    written: usize,
    output: &'a mut Vec<u8>,
}

impl Sink<'_> {
    /// Takes the bytes that a state of rustls yields. Returns how many bytes of the input are
    /// processed.
    fn take<Data>(
        &mut self,
        status: UnbufferedStatus<'_, '_, Data>,
    ) -> (usize, Result<Step, TlsError>) {
        let mut discard = status.discard;
        let step = match status.state {
            Err(error) => Err(error.into()),
            Ok(ConnectionState::ReadTraffic(mut traffic)) => loop {
                match traffic.next_record() {
                    Some(Ok(record)) => {
                        discard += record.discard;
                        let end = self.written + record.payload.len();
                        self.plaintext[self.written..end].copy_from_slice(record.payload);
                        self.written = end;
                    }
                    Some(Err(error)) => break Err(error.into()),
                    None => break Ok(Step::Plaintext),
                }
            },
            Ok(ConnectionState::EncodeTlsData(mut data)) => {
                let start = self.output.len();
                let mut result = data.encode(&mut []);
                if let Err(EncodeError::InsufficientSize(size)) = &result {
                    self.output.resize(start + size.required_size, 0);
                    result = data.encode(&mut self.output[start..]);
                }
                match result {
                    Ok(written) => {
                        self.output.truncate(start + written);
                        Ok(Step::Continue)
                    }
                    Err(error) => Err(TlsError::new(TlsErrorKind::Internal, error)),
                }
            }
            // The owner sends the output.
            Ok(ConnectionState::TransmitTlsData(data)) => {
                data.done();
                Ok(Step::Continue)
            }
            Ok(ConnectionState::PeerClosed) => Ok(Step::PeerClosed),
            Ok(
                ConnectionState::BlockedHandshake
                | ConnectionState::WriteTraffic(_)
                | ConnectionState::Closed,
            ) => Ok(Step::Wait),
            Ok(state) => {
                let detail = format!("unexpected state {state:?}");
                Err(TlsError::new(TlsErrorKind::Internal, detail))
            }
        };
        (discard, step)
    }
}

#[cfg(test)]
mod tests;
