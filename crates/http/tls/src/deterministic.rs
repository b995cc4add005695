//! Cryptography that repeats byte for byte, for tests. It keeps no secrets.
//!
//! Records are sealed with real ciphers and keys are derived with real hashes, so that a changed
//! byte is detected as in the program. Randomness comes from a seed. The key exchange has no
//! secrecy: its messages contain its result.

use std::cell::Cell;
use std::sync::Arc;

use rustls::crypto::{
    ActiveKeyExchange, CryptoProvider, GetRandomFailed, SecureRandom, SharedSecret,
    SupportedKxGroup, aws_lc_rs,
};
use rustls::ffdhe_groups::FfdheGroup;
use rustls::{Error, NamedGroup, PeerMisbehaved};

use crate::provider::{Aead, Provider};

thread_local! {
    /// The state of this thread's random sequence. Rustls requires a source that outlives every
    /// provider, so it cannot be a part of one.
    static STATE: Cell<u64> = const { Cell::new(0) };
}

impl Provider {
    /// Creates a provider without secrecy, and begins the random sequence of this thread with
    /// `seed`. The sequence is common to all such providers that the thread uses. Certificates
    /// need keys whose signatures repeat, such as Ed25519 keys.
    pub fn deterministic(seed: u64) -> Self {
        STATE.set(seed);
        let real = Self::new(Aead::fastest());
        Self::of(CryptoProvider {
            cipher_suites: real.crypto().cipher_suites.clone(),
            kx_groups: vec![&PublicExchange],
            secure_random: &Sequence,
            ..aws_lc_rs::default_provider()
        })
    }

    /// Returns the provider in the form that rustls takes, for a peer that does not use this crate.
    pub fn rustls(&self) -> Arc<CryptoProvider> {
        self.crypto().clone()
    }
}

/// The random sequence of a thread.
#[derive(Debug)]
struct Sequence;

impl SecureRandom for Sequence {
    fn fill(&self, bytes: &mut [u8]) -> Result<(), GetRandomFailed> {
        for piece in bytes.chunks_mut(8) {
            // splitmix64 (Steele, Lea and Flood 2014): each state occurs once in 2^64 steps.
            let state = STATE.get().wrapping_add(0x9e37_79b9_7f4a_7c15);
            STATE.set(state);
            let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            let mixed = mixed ^ (mixed >> 31);
            piece.copy_from_slice(&mixed.to_le_bytes()[..piece.len()]);
        }
        Ok(())
    }
}

/// The bytes of a share of the key exchange, and of its result.
const SHARE_BYTES: usize = 32;

/// A key exchange whose result is the exclusive or of both shares.
#[derive(Debug)]
struct PublicExchange;

impl SupportedKxGroup for PublicExchange {
    fn start(&self) -> Result<Box<dyn ActiveKeyExchange>, Error> {
        let mut share = [0; SHARE_BYTES];
        Sequence.fill(&mut share)?;
        Ok(Box::new(Share(share)))
    }

    fn ffdhe_group(&self) -> Option<FfdheGroup<'static>> {
        None
    }

    fn name(&self) -> NamedGroup {
        // The first number for private use (RFC 8446 section 4.2.7).
        NamedGroup::Unknown(0xfe00)
    }
}

/// The share of one side.
struct Share([u8; SHARE_BYTES]);

impl ActiveKeyExchange for Share {
    fn complete(self: Box<Self>, peer: &[u8]) -> Result<SharedSecret, Error> {
        let peer: &[u8; SHARE_BYTES] =
            peer.try_into().map_err(|_| Error::from(PeerMisbehaved::InvalidKeyShare))?;
        let mut secret = self.0;
        secret.iter_mut().zip(peer).for_each(|(own, other)| *own ^= other);
        Ok(SharedSecret::from(&secret[..]))
    }

    fn pub_key(&self) -> &[u8] {
        &self.0
    }

    fn ffdhe_group(&self) -> Option<FfdheGroup<'static>> {
        None
    }

    fn group(&self) -> NamedGroup {
        PublicExchange.name()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use rcgen::{CertificateParams, KeyPair, PKCS_ED25519};
    use rustls::pki_types::PrivatePkcs8KeyDer;

    use crate::{
        Certificate, ClientOptions, ClientSettings, Clock, Peek, Provider, Roots, ServerName,
        ServerOptions, ServerSettings, Session, UnknownName, Versions, peek,
    };

    /// An Ed25519 key of which each byte is 1, as PKCS#8 (RFC 8410 section 7).
    fn certificate() -> (String, String) {
        let mut key = vec![0x30, 0x2e, 2, 1, 0, 0x30, 5, 6, 3, 0x2b, 0x65, 0x70, 4, 0x22, 4, 0x20];
        key.extend([1; 32]);
        let key = PrivatePkcs8KeyDer::from(key);
        let key = KeyPair::from_pkcs8_der_and_sign_algo(&key, &PKCS_ED25519).unwrap();
        let params = CertificateParams::new(["example.org".to_owned()]).unwrap();
        (params.self_signed(&key).unwrap().pem(), key.serialize_pem())
    }

    /// Returns everything that both sides send, in order.
    fn conversation(seed: u64, versions: Versions) -> Vec<u8> {
        let (provider, clock) = (Provider::deterministic(seed), Clock::default());
        let (chain, key) = certificate();
        let certificate =
            Certificate::from_pem(chain.as_bytes(), key.as_bytes(), &provider).unwrap();
        clock.set(certificate.not_before() + Duration::from_secs(1));
        let options = ServerOptions {
            certificates: vec![certificate],
            versions,
            unknown_name: UnknownName::Refuse,
            ..ServerOptions::default()
        };
        let settings = ServerSettings::new(options, &provider, &clock).unwrap();
        let roots = Some(Roots::from_pem(chain.as_bytes()).unwrap());
        let client = ClientOptions { roots, certificate: None, alpn: Vec::new() };
        let client = ClientSettings::new(client, &provider, &clock).unwrap();
        let mut client = client.connect(ServerName::parse("example.org").unwrap()).unwrap();
        let (mut to_server, mut sent) = (Vec::new(), Vec::new());
        client.flush(&mut to_server).unwrap();
        let Peek::Hello(hello) = peek(&to_server) else { panic!("a ClientHello") };
        let mut server = settings.accept(&hello).unwrap();
        while server.is_handshaking() || client.is_handshaking() {
            let to_client = deliver(&mut server, &mut to_server, &mut sent);
            to_server = deliver(&mut client, &mut to_client.clone(), &mut sent);
        }
        let mut sealed = Vec::new();
        server.seal(&[b"a response"], &mut Vec::new(), &mut sealed).unwrap();
        sent.extend_from_slice(&sealed);
        sent
    }

    fn deliver(to: &mut Session, bytes: &mut [u8], sent: &mut Vec<u8>) -> Vec<u8> {
        sent.extend_from_slice(bytes);
        let mut output = Vec::new();
        to.open(bytes, &mut vec![0; 64 * 1024], &mut output).unwrap();
        output
    }

    #[test]
    fn a_seed_repeats_byte_for_byte() {
        for versions in [Versions::Only12, Versions::Only13] {
            let first = conversation(7, versions);
            assert!(first.len() > 500, "certificates were sent");
            assert_eq!(first, conversation(7, versions));
            assert_ne!(first, conversation(8, versions));
        }
    }
}
