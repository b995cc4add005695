//! Proxy authentication of a forward proxy by Basic and Bearer (RFC 9110 section 11.7, RFC 7617,
//! RFC 6750), against a file of users.
//!
//! ```text
//! Unchecked ──a token, or verified before──────> Granted
//!    │ └──a password to verify──> Verifying ──match──^
//!    └──> 407, 503                   └──> 407, 503
//! ```
//!
//! A worker never computes a slow hash. It looks the credentials up in its own cache
//! (`authenticator.rs`), and a token in the file of users. If a password is not in the cache, the
//! worker sends a request to the verifier, which is a thread of the program or an actor of the
//! simulator. The exchange waits until the result arrives in the worker's mailbox, or until
//! `auth_ms` is over. Only this module reads credentials. They are not forwarded and not logged,
//! and are stored only as digests under a key that only this worker has.

mod admit;
mod authenticator;
mod challenge;
mod credentials;
mod expiring_cache;
mod password_cache;
mod verifier;

use std::sync::Arc;

pub(crate) use admit::{admit, handle_result};
pub(crate) use authenticator::Authenticator;
pub use authenticator::{VERIFY_RESULTS_MAX, VerifierHandle};
pub(crate) use challenge::write_challenges;
pub use password_cache::PasswordCache;
pub use verifier::{FairQueue, Verifier, VerifierFull, VerifyOutcome, VerifyRequest, VerifyResult};

/// The state of the authentication of a request.
#[derive(Clone, Debug, Default)]
pub(crate) enum Access {
    /// The credentials were not checked yet.
    #[default]
    Unchecked,
    /// The verifier compares the password with a hash.
    Verifying,
    /// The request is authenticated as this user.
    Granted(Arc<[u8]>),
}
