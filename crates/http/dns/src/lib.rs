//! From names to addresses, without ever blocking.
//!
//! [`Names`] knows the hosts file and asks the name servers, both families at once; lookups of one
//! name are one, and what was found stays for as long as the zone says. It has no sockets: it says
//! by [`Order`] what is to be done with them, and is told by [`Event`] what became of that. It
//! never judges an address and never connects to one: [`Race`] says in which order to.
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
pub use message::fuzz_answer;
pub use operations::{SocketEvent, SocketOperation};
pub use resolver::{DnsResolver, ResolverLimits};
pub use resolver_config::ResolverConfig;
