//! Why a session failed.

use std::error::Error;
use std::fmt;

use rustls::{AlertDescription, PeerIncompatible};

macro_rules! kinds {
    ($($(#[doc = $doc:literal])+ $name:ident = $word:literal;)*) => {
        /// The kind of a failure, which the access log and the metrics name.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        pub enum TlsErrorKind {
            $($(#[doc = $doc])+ $name,)*
        }

        impl TlsErrorKind {
            /// Every kind, in the order of the table.
            pub const ALL: &'static [Self] = &[$(Self::$name),*];

            /// Returns the word for the access log and the metrics.
            pub const fn word(self) -> &'static str {
                match self { $(Self::$name => $word,)* }
            }
        }
    };
}

kinds! {
    /// The bytes are not TLS, but the beginning of an HTTP request.
    PlainHttp = "tls-plain-http";
    /// The bytes break the grammar or the order of TLS messages.
    Malformed = "tls-malformed";
    /// The ClientHello is larger than [`HELLO_BYTES_MAX`](crate::HELLO_BYTES_MAX).
    HelloTooLarge = "tls-hello-too-large";
    /// No version, cipher suite, group or application protocol is common to both sides.
    Incompatible = "tls-incompatible";
    /// The client named no name for which there is a certificate.
    UnknownName = "tls-unknown-name";
    /// A record was not sealed with the keys of the session.
    BadRecord = "tls-bad-record";
    /// The certificate of the peer is missing or not trusted, or the peer does not trust ours.
    Certificate = "tls-certificate";
    /// The peer reported a failure by an alert.
    Alert = "tls-alert";
    /// The handshake was not complete in time. The owner of the session notices this.
    TimedOut = "tls-timed-out";
    /// The peer ended the connection during the handshake. The owner of the session notices this.
    Closed = "tls-closed";
    /// The session cannot go on for a reason of this side, such as used-up keys.
    Internal = "tls-internal";
}

/// A failure of a session. Bytes for the peer, such as an alert, may still have to be sent.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TlsError {
    /// The kind.
    pub kind: TlsErrorKind,
    /// The description of the failure, in the words of rustls.
    pub detail: String,
}

impl TlsError {
    pub(crate) fn new(kind: TlsErrorKind, detail: impl fmt::Display) -> Self {
        Self { kind, detail: detail.to_string() }
    }
}

impl fmt::Display for TlsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.detail)
    }
}

impl Error for TlsError {}

impl From<rustls::Error> for TlsError {
    fn from(error: rustls::Error) -> Self {
        use rustls::Error as Rustls;
        let kind = match &error {
            Rustls::PeerIncompatible(
                PeerIncompatible::NoCertificateRequestSignatureSchemesInCommon,
            )
            | Rustls::NoCertificatesPresented
            | Rustls::InvalidCertificate(_)
            | Rustls::InvalidCertRevocationList(_)
            | Rustls::AlertReceived(
                AlertDescription::UnknownCA
                | AlertDescription::BadCertificate
                | AlertDescription::CertificateExpired
                | AlertDescription::CertificateUnknown
                | AlertDescription::CertificateRequired
                | AlertDescription::CertificateRevoked
                | AlertDescription::UnsupportedCertificate,
            ) => TlsErrorKind::Certificate,
            Rustls::PeerIncompatible(_) | Rustls::NoApplicationProtocol => {
                TlsErrorKind::Incompatible
            }
            Rustls::AlertReceived(_) => TlsErrorKind::Alert,
            Rustls::DecryptError => TlsErrorKind::BadRecord,
            Rustls::InappropriateMessage { .. }
            | Rustls::InappropriateHandshakeMessage { .. }
            | Rustls::InvalidMessage(_)
            | Rustls::PeerMisbehaved(_)
            | Rustls::PeerSentOversizedRecord => TlsErrorKind::Malformed,
            _ => TlsErrorKind::Internal,
        };
        Self::new(kind, error)
    }
}
