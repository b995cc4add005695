//! A DNS resolver that performs no I/O and never blocks.
//!
//! [`DnsResolver`] knows the hosts file and queries name servers, for both address families at
//! once. Concurrent lookups of one name are combined, and results are cached for the time that the
//! zone permits. The resolver has no sockets: it returns each [`SocketOperation`] to its caller,
//! which reports the result as a [`SocketEvent`]. It neither checks whether an address is allowed
//! nor connects to it; [`Race`] determines the order of connection attempts.
#![forbid(unsafe_code)]

mod cache;
mod error;
mod happy_eyeballs;
mod lookup;
mod message;
mod name;
mod operations;
mod query_task;
mod resolver;
mod resolver_config;

pub use error::{LookupResult, NameError};
pub use happy_eyeballs::{NextAttempt, Race};
pub use message::fuzz_dns_response;
pub use operations::{SocketEvent, SocketOperation};
pub use resolver::{DnsResolver, ResolverLimits};
pub use resolver_config::ResolverConfig;
