//! The result of a lookup, and the reasons why a name has no addresses.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

/// The reason why a lookup returned no addresses. If several candidates or families failed, the
/// reason that comes later in this order is reported. One exception: if one family has `NotFound`
/// and the other `NoAddress`, `NotFound` is reported, which is valid for both families.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum NameError {
    /// The text is not a valid host name. The client caused the error.
    Invalid,
    /// The name does not exist (NXDOMAIN).
    NotFound,
    /// The name exists but has no address.
    NoAddress,
    /// The name servers failed, refused the query, or could not be reached. A retry may succeed.
    ServerFailed,
    /// No name server answered in time. A retry may succeed.
    TimedOut,
    /// Caused by this program: too many lookups are in progress, or no descriptor is left. A retry
    /// may succeed.
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
            Self::Overloaded => "too many lookups are in progress",
        })
    }
}

/// The result of a lookup: at least one address, in the order in which to try them, or the reason
/// why there is none.
pub type LookupResult = Result<Arc<[IpAddr]>, NameError>;
