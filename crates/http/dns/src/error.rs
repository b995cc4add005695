//! Why a name gives no addresses, and what a lookup gives.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

/// Why a name gives no addresses. In the order in which a later one outweighs an earlier one when
/// several things were tried.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum NameError {
    /// It cannot be a host name. The client's fault.
    Invalid,
    /// No such name exists.
    NotFound,
    /// The name exists and has no address.
    NoAddress,
    /// The name servers failed, refused, or could not be reached. May be better soon.
    ServerFailed,
    /// No name server answered in time. May be better soon.
    TimedOut,
    /// Ours: too many lookups are under way, or no descriptor is left. Sound to retry.
    Overloaded,
}

impl fmt::Display for NameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Invalid => "not a host name",
            Self::NotFound => "no such name",
            Self::NoAddress => "the name has no address",
            Self::ServerFailed => "the name servers failed",
            Self::TimedOut => "no name server answered in time",
            Self::Overloaded => "too many lookups are under way",
        })
    }
}

/// What came of a lookup: addresses, at least one, in the order to try them, or why there is none.
pub type LookupResult = Result<Arc<[IpAddr]>, NameError>;
