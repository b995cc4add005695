//! Why a session failed, or a certificate cannot be used.

use std::error::Error;
use std::fmt;
use std::time::Duration;

use rustls::pki_types::UnixTime;
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
    /// The certificate of the peer is not valid, or the peer does not accept ours.
    Certificate = "tls-certificate";
    /// The client has presented no certificate, which its handshake requires.
    CertificateMissing = "tls-certificate-missing";
    /// A revocation list names the certificate of the peer, or that of one of its issuers.
    CertificateRevoked = "tls-certificate-revoked";
    /// No revocation list that has not expired covers the certificate of the peer.
    RevocationUnknown = "tls-revocation-unknown";
    /// The certificate of the peer has expired or is not valid yet.
    CertificateTime = "tls-certificate-time";
    /// No trusted authority has issued the certificate of the peer.
    UnknownIssuer = "tls-unknown-issuer";
    /// The certificate of the server is for other names.
    WrongName = "tls-wrong-name";
    /// The peer reported a failure by an alert.
    Alert = "tls-alert";
    /// The handshake was not complete in time. The owner of the session notices this.
    TimedOut = "tls-timed-out";
    /// The peer ended the connection during the handshake. The owner of the session notices this.
    Closed = "tls-closed";
    /// The connection was closed during the handshake because capacity ran out. The owner of the
    /// session notices this.
    Shed = "tls-shed";
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
            Rustls::InvalidCertificate(reason) => return of_certificate(reason),
            Rustls::PeerIncompatible(
                PeerIncompatible::NoCertificateRequestSignatureSchemesInCommon,
            )
            | Rustls::InvalidCertRevocationList(_) => TlsErrorKind::Certificate,
            Rustls::NoCertificatesPresented => TlsErrorKind::CertificateMissing,
            Rustls::AlertReceived(alert) => return of_alert(*alert),
            Rustls::PeerIncompatible(_) | Rustls::NoApplicationProtocol => {
                TlsErrorKind::Incompatible
            }
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

/// Returns the text of a number of whole days.
pub(crate) fn days_text(duration: Duration) -> String {
    match duration.as_secs() / 86_400 {
        1 => "1 day".to_owned(),
        count => format!("{count} days"),
    }
}

/// Returns the error of a certificate of the peer.
fn of_certificate(reason: &rustls::CertificateError) -> TlsError {
    use rustls::CertificateError as Reason;
    let days = |from: UnixTime, to: UnixTime| {
        days_text(Duration::from_secs(to.as_secs().saturating_sub(from.as_secs())))
    };
    let (kind, detail) = match reason {
        Reason::ExpiredContext { time, not_after } => {
            let days = days(*not_after, *time);
            (TlsErrorKind::CertificateTime, format!("the certificate expired {days} ago"))
        }
        Reason::NotValidYetContext { time, not_before } => {
            let days = days(*time, *not_before);
            let detail = format!("the certificate is not valid before {days} from now");
            (TlsErrorKind::CertificateTime, detail)
        }
        Reason::UnknownIssuer => {
            let detail = "no trusted authority has issued the certificate, or the peer did not \
                          send the intermediate certificates";
            (TlsErrorKind::UnknownIssuer, detail.to_owned())
        }
        Reason::NotValidForNameContext { expected, presented } => {
            let (expected, names) = (expected.to_str(), listed(presented));
            let detail = format!("the certificate is not valid for {expected} but for {names}");
            (TlsErrorKind::WrongName, detail)
        }
        Reason::BadSignature => {
            let detail = "the signature of the certificate does not fit the key of its issuer";
            (TlsErrorKind::Certificate, detail.to_owned())
        }
        Reason::Revoked => {
            (TlsErrorKind::CertificateRevoked, "the certificate is revoked".to_owned())
        }
        Reason::ExpiredRevocationListContext { time, next_update } => {
            let days = days(*next_update, *time);
            let detail = format!("the revocation list of the issuer expired {days} ago");
            (TlsErrorKind::RevocationUnknown, detail)
        }
        Reason::UnknownRevocationStatus => {
            let detail = "there is no revocation list of the certificate's issuer";
            (TlsErrorKind::RevocationUnknown, detail.to_owned())
        }
        // Only the verifier of clients' certificates returns this.
        Reason::ApplicationVerificationFailure => {
            (TlsErrorKind::Certificate, "the certificate chain is too long".to_owned())
        }
        reason => (TlsErrorKind::Certificate, format!("the certificate is not valid: {reason}")),
    };
    TlsError::new(kind, detail)
}

/// Returns the first names of a certificate as a text.
fn listed(names: &[String]) -> String {
    // The verifier names them as DnsName("NAME") or IpAddress(ADDRESS), with escapes.
    let plain = |name: &String| {
        let inner = name.split_once('(').and_then(|(_, rest)| rest.strip_suffix(')'));
        inner.unwrap_or(name).trim_matches('"').to_owned()
    };
    let mut listed = names.iter().take(NAMES_LISTED_MAX).map(plain).collect::<Vec<_>>().join(", ");
    if listed.is_empty() {
        listed.push_str("no name");
    } else if names.len() > NAMES_LISTED_MAX {
        listed.push_str(", ...");
    }
    listed
}

/// The most names of a certificate in a message.
const NAMES_LISTED_MAX: usize = 4;

/// Returns the error that the peer has reported.
fn of_alert(alert: AlertDescription) -> TlsError {
    use AlertDescription as Alert;
    let kind = match alert {
        Alert::UnknownCA
        | Alert::BadCertificate
        | Alert::CertificateExpired
        | Alert::CertificateUnknown
        | Alert::CertificateRequired
        | Alert::CertificateRevoked
        | Alert::UnsupportedCertificate => TlsErrorKind::Certificate,
        _ => TlsErrorKind::Alert,
    };
    let detail = match alert {
        Alert::CertificateRequired => "the peer requires a certificate",
        Alert::UnknownCA => "the peer does not trust the issuer of the certificate",
        Alert::CertificateExpired => "the peer reports that the certificate has expired",
        Alert::UnrecognisedName => "the peer has no certificate for this name",
        alert => return TlsError::new(kind, rustls::Error::AlertReceived(alert)),
    };
    TlsError::new(kind, detail)
}

/// Why a chain or its key cannot be used. The message completes a sentence that names the file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum CertificateError {
    /// The fault is in the file of the chain.
    Chain(String),
    /// The fault is in the file of the key.
    Key(String),
    /// The key is not that of the certificate.
    Mismatch,
}

impl fmt::Display for CertificateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Chain(problem) | Self::Key(problem) => problem,
            Self::Mismatch => "is not the key of the certificate",
        })
    }
}

impl Error for CertificateError {}
