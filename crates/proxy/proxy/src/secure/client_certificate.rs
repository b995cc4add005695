//! The verified certificate of a client, and its form for origins, cache keys and the access log.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use millrace_engine::{Charge, Engine};
use millrace_http1::ClientCertificate;
use sha2::{Digest, Sha256};

/// The verified certificate of the client of a connection. The connection and its exchanges share
/// it: a refresh may outlive the connection.
#[derive(Debug)]
pub(crate) struct VerifiedClient {
    pub(crate) fields: ClientCertificate,
    _charge: Charge,
}

impl VerifiedClient {
    /// Creates the form of a verified chain, whose first certificate is that of the client; `None`
    /// if the chain is empty. It is charged to the budget of the worker.
    pub(crate) fn new<E: Engine>(chain: &[&[u8]], engine: &E) -> Option<Self> {
        let (own, issuers) = chain.split_first()?;
        let chain = (!issuers.is_empty()).then(|| encode(issuers));
        let digests = [fingerprint(&[own]), fingerprint(issuers)];
        let fields = ClientCertificate { certificate: encode(&[own]), chain, digests };
        let chain_bytes = fields.chain.as_ref().map_or(0, |chain| chain.len());
        let digest_bytes: usize = fields.digests.iter().map(|digest| digest.len()).sum();
        let bytes = fields.certificate.len() + chain_bytes + digest_bytes;
        Some(Self { fields, _charge: engine.budget().charge(bytes) })
    }

    /// Returns the SHA-256 fingerprint of the certificate, in lower-case hexadecimal.
    pub(crate) fn fingerprint(&self) -> &[u8] {
        &self.fields.digests[0]
    }
}

/// Returns a list of byte sequences (RFC 9651 sections 3.1 and 3.3.5).
fn encode(certificates: &[&[u8]]) -> Box<[u8]> {
    let members = certificates.iter().map(|der| format!(":{}:", BASE64_STANDARD.encode(der)));
    members.collect::<Vec<_>>().join(", ").into_bytes().into()
}

/// Returns the SHA-256 digest of certificates, one after the other, in hexadecimal. DER has its own
/// length, so another division of the same bytes is no chain of certificates.
fn fingerprint(certificates: &[&[u8]]) -> Box<[u8]> {
    let mut hash = Sha256::new();
    certificates.iter().for_each(|der| hash.update(der));
    let digit = |half: u8| b"0123456789abcdef"[usize::from(half)];
    let bytes = hash.finalize();
    bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn certificates_are_byte_sequences_rfc_9440_section_2_1() {
        assert_eq!(&*encode(&[b"a"]), b":YQ==:");
        assert_eq!(&*encode(&[b"a", &[0xfb, 0xff, 0xfe]]), b":YQ==:, :+//+:");
    }

    #[test]
    fn a_fingerprint_is_sha_256() {
        let expected = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(&*fingerprint(&[b"a", b"bc"]), expected.as_bytes());
    }
}
