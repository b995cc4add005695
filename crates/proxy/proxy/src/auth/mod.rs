//! Who may use a forward proxy: proxy authentication by Basic and Bearer (RFC 9110 section 11.7,
//! RFC 7617, RFC 6750) against a file of users.
//!
//! ```text
//! Unasked ──known──────────────────────────> Granted
//!    │ └──a password to compare──> Waiting ──verdict──^
//!    └──> 407, 503                    └──> 407, 503
//! ```
//!
//! A worker never runs a slow hash. It looks into its own memory of credentials
//! (`authenticator.rs`), and what is not there becomes a question to the verifier: a thread of the
//! program, or an actor of the simulator. The exchange waits until the verdict comes by mailbox, or
//! until `auth_ms` is over. Credentials are looked at here and nowhere else: they are neither
//! forwarded, nor logged, nor kept, except as digests under a key that only this worker has.

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

/// What is known of the one who sent a request.
#[derive(Clone, Debug, Default)]
pub(crate) enum Access {
    /// Nothing was asked yet.
    #[default]
    Unchecked,
    /// The verifier compares a password.
    Verifying,
    /// It is this user.
    Granted(Arc<[u8]>),
}
