//! The certificates of the challenge tls-alpn-01 (RFC 8737). The control plane sets them
//! while an order is in progress, and all workers use them.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use millrace_tls::{
    Certificate, ClientHello, Clock, Provider, ServerOptions, ServerSettings, TlsError,
};

/// The application protocol of the challenge.
const CHALLENGE_PROTOCOL: &[u8] = b"acme-tls/1";

/// The challenge certificates of a process by name, in lower case.
#[derive(Debug, Default)]
pub struct SharedChallenges(Mutex<HashMap<String, Certificate>>);

impl SharedChallenges {
    /// Sets the certificate for the challenge of a name in lower case.
    pub fn set(&self, name: &str, certificate: Certificate) {
        self.lock().insert(name.to_owned(), certificate);
    }

    /// Removes the certificate for the challenge of a name.
    pub fn remove(&self, name: &str) {
        self.lock().remove(name);
    }

    /// Returns the settings for the connection of a client that validates a challenge; `None` if it
    /// does not, or if the name has no challenge.
    ///
    /// # Errors
    /// If rustls refuses the certificate.
    pub fn settings(
        &self,
        hello: &ClientHello,
        provider: &Provider,
        clock: &Clock,
    ) -> Result<Option<ServerSettings>, TlsError> {
        // RFC 8737 section 3: the client offers this protocol and no other one.
        let [protocol] = &hello.alpn[..] else { return Ok(None) };
        if protocol != CHALLENGE_PROTOCOL {
            return Ok(None);
        }
        // Only this protocol takes the lock, and it is held for a lookup.
        let name = hello.server_name.as_deref().unwrap_or_default();
        let Some(certificate) = self.lock().get(name).cloned() else { return Ok(None) };
        let options = ServerOptions {
            certificates: vec![certificate],
            alpn: vec![CHALLENGE_PROTOCOL.to_vec()],
            ..ServerOptions::default()
        };
        ServerSettings::new(options, provider, clock).map(Some)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Certificate>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns whether a session has negotiated the protocol of the challenge. The connection is closed
/// after the handshake.
pub(crate) fn is_challenge(alpn: Option<&[u8]>) -> bool {
    alpn == Some(CHALLENGE_PROTOCOL)
}
