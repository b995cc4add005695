//! The certificate of a client in the fields of RFC 9440.

/// A verified certificate of a client, in the form in which a gateway passes it to an origin.
///
/// The origin cannot check it, so received fields of these names are never forwarded.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ClientCertificate {
    /// The value of `Client-Cert` (RFC 9440 section 2.2): the client's own certificate.
    pub certificate: Box<[u8]>,
    /// The value of `Client-Cert-Chain` (RFC 9440 section 2.3): the certificates between it and a
    /// trust anchor; `None` if there are none.
    pub chain: Option<Box<[u8]>>,
    /// A digest of each value, as text. Cache keys have these, to stay short.
    pub digests: [Box<[u8]>; 2],
}
