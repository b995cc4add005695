//! The ClientHello, read before a session exists: the name that the client asks for, and the
//! protocols that it speaks.

use rustls::server::Acceptor;

use crate::error::{TlsError, TlsErrorKind};

/// The most bytes of a ClientHello, with the headers of its records.
pub const HELLO_BYTES_MAX: usize = 16 * 1024;

/// The parts of a ClientHello that decide which settings a session gets.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct ClientHello {
    /// The name of the server (SNI) in lower case, without a dot at the end. With an encrypted
    /// ClientHello (ECH) the outer name.
    pub server_name: Option<String>,
    /// The application protocols (ALPN), in the client's order of preference.
    pub alpn: Vec<Vec<u8>>,
}

/// The result of [`peek`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Peek {
    /// The ClientHello is not complete.
    Incomplete,
    /// The ClientHello.
    Hello(ClientHello),
    /// The bytes cannot become a ClientHello that is served. `alert` has the bytes with which the
    /// client is informed; empty if it speaks no TLS.
    Failed {
        /// The reason.
        error: TlsError,
        /// An alert record, or nothing.
        alert: Vec<u8>,
    },
}

/// Reads the ClientHello at the beginning of `bytes`, the bytes that the client has sent so far.
pub fn peek(bytes: &[u8]) -> Peek {
    let begins_record = bytes.first().is_none_or(|first| *first == HANDSHAKE_RECORD);
    if !begins_record {
        let is_http = bytes[0].is_ascii_uppercase();
        let kind = if is_http { TlsErrorKind::PlainHttp } else { TlsErrorKind::Malformed };
        let error = TlsError::new(kind, "the connection does not begin with a TLS handshake");
        return Peek::Failed { error, alert: Vec::new() };
    }
    let mut acceptor = Acceptor::default();
    let mut rest = &bytes[..bytes.len().min(HELLO_BYTES_MAX)];
    loop {
        if let Err(error) = acceptor.read_tls(&mut rest) {
            return failed(TlsError::new(TlsErrorKind::Malformed, error));
        }
        match acceptor.accept() {
            Ok(Some(accepted)) => {
                let hello = accepted.client_hello();
                let name = hello.server_name().map(normal_name);
                let alpn = hello.alpn().map(|names| names.map(<[u8]>::to_vec).collect());
                return Peek::Hello(ClientHello {
                    server_name: name,
                    alpn: alpn.unwrap_or_default(),
                });
            }
            Ok(None) if !rest.is_empty() => {}
            Ok(None) if bytes.len() >= HELLO_BYTES_MAX => {
                let detail = format!("the ClientHello has more than {HELLO_BYTES_MAX} bytes");
                return failed(TlsError::new(TlsErrorKind::HelloTooLarge, detail));
            }
            Ok(None) => return Peek::Incomplete,
            Err((error, mut alert)) => {
                let mut bytes = Vec::new();
                alert.write_all(&mut bytes).expect("a vector takes every byte");
                return Peek::Failed { error: error.into(), alert: bytes };
            }
        }
    }
}

fn failed(error: TlsError) -> Peek {
    Peek::Failed { error, alert: Vec::new() }
}

/// Returns a name in lower case, without a dot at the end.
pub(crate) fn normal_name(name: &str) -> String {
    name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase()
}

/// The first byte of a record with a handshake message (RFC 8446 section 5.1).
const HANDSHAKE_RECORD: u8 = 22;
