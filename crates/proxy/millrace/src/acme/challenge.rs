//! The challenges by which an authority verifies a name: tls-alpn-01 (RFC 8737), which the workers
//! serve, and http-01 (RFC 8555 section 8.3), which the HTTP listener serves.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use instant_acme::{ChallengeType, KeyAuthorization};
use millrace_proxy::SharedState;
use millrace_tls::Certificate;
use rcgen::{CertificateParams, CustomExtension, DistinguishedName, KeyPair};

use crate::threads::lock;

/// The path of a challenge, before its token.
const HTTP_PATH: &str = "/.well-known/acme-challenge/";

/// The responses to the challenges http-01 that are in progress, by their tokens.
#[derive(Default)]
pub(crate) struct HttpChallenges(Mutex<HashMap<String, String>>);

impl HttpChallenges {
    /// Returns the content of a path, if it is that of a challenge in progress.
    pub(super) fn content(&self, path: &str) -> Option<String> {
        lock(&self.0).get(path.strip_prefix(HTTP_PATH)?).cloned()
    }
}

/// A challenge that is served until this is dropped.
pub(super) struct ActiveChallenge {
    shared: Arc<SharedState>,
    http: Arc<HttpChallenges>,
    name: String,
    token: String,
    kind: ChallengeType,
}

impl ActiveChallenge {
    /// Begins to serve a challenge for a name.
    ///
    /// # Errors
    /// If no certificate can be created.
    pub(super) fn begin(
        shared: &Arc<SharedState>,
        http: &Arc<HttpChallenges>,
        name: &str,
        token: &str,
        kind: &ChallengeType,
        authorization: &KeyAuthorization,
    ) -> Result<Self, String> {
        let (shared, http, name) = (Arc::clone(shared), Arc::clone(http), name.to_owned());
        let (token, kind) = (token.to_owned(), kind.clone());
        match kind {
            ChallengeType::Http01 => {
                lock(&http.0).insert(token.clone(), authorization.as_str().to_owned());
            }
            _ => {
                let certificate = certificate(&shared, &name, authorization.digest().as_ref())?;
                shared.challenges.set(&name, certificate);
            }
        }
        Ok(Self { shared, http, name, token, kind })
    }

    #[cfg(test)]
    pub(super) fn for_test() -> Self {
        let shared = SharedState::new(1, "test".to_owned(), None, None, |_| {}, None);
        let (name, token) = ("a.test".to_owned(), "a".to_owned());
        Self { shared, http: Arc::default(), name, token, kind: ChallengeType::Http01 }
    }

    /// Returns whether this is the challenge of the name with this token.
    pub(super) fn is(&self, name: &str, token: &str) -> bool {
        self.name == name && self.token == token
    }
}

impl Drop for ActiveChallenge {
    fn drop(&mut self) {
        match self.kind {
            ChallengeType::Http01 => _ = lock(&self.http.0).remove(&self.token),
            _ => self.shared.challenges.remove(&self.name),
        }
    }
}

/// Creates the certificate for tls-alpn-01: self-signed, for the name alone, with the
/// digest in a critical extension.
fn certificate(shared: &SharedState, name: &str, digest: &[u8]) -> Result<Certificate, String> {
    let failed = |error: rcgen::Error| format!("cannot create a challenge certificate: {error}");
    let mut params = CertificateParams::new([name.to_owned()]).map_err(failed)?;
    params.distinguished_name = DistinguishedName::new();
    params.custom_extensions = vec![CustomExtension::new_acme_identifier(digest)];
    let key = KeyPair::generate().map_err(failed)?;
    let chain = params.self_signed(&key).map_err(failed)?;
    let (chain, key) = (chain.pem(), key.serialize_pem());
    Certificate::without_match(chain.as_bytes(), key.as_bytes(), &shared.tls_provider)
        .map_err(|error| format!("the challenge certificate {error}"))
}
