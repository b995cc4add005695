//! TLS for one connection at a time, over rustls, without I/O.
//!
//! A [`Session`] is the TLS state of one connection, as server or as client. It opens received
//! records in place and seals bytes into a buffer of its caller. A [`ServerSettings`] accepts
//! connections with the [`Certificate`]s of a service, a [`ClientSettings`] opens them. The crate
//! has no sockets, no clock and no randomness of its own: the owner passes a [`Provider`] and sets
//! the [`Clock`]. No other crate of the program names rustls.
#![forbid(unsafe_code)]

mod certificate;
mod certificate_table;
mod client;
mod client_certificate;
mod clock;
#[cfg(any(test, feature = "deterministic"))]
mod deterministic;
mod error;
#[cfg(any(test, feature = "deterministic"))]
mod fuzz;
mod hello;
mod name_map;
mod pem;
mod provider;
mod roots;
mod second_hello;
mod server;
mod server_verifier;
mod session;
#[cfg(test)]
mod test_support;
mod ticket;

pub use certificate::Certificate;
pub use certificate_table::UnknownName;
pub use client::{ClientOptions, ClientSettings, ServerName};
pub use client_certificate::{ClientCertificateMode, ClientCertificates, RevocationLists};
pub use clock::Clock;
pub use error::{CertificateError, TlsError, TlsErrorKind};
#[cfg(any(test, feature = "deterministic"))]
pub use fuzz::{fuzz_client_hello, fuzz_open};
pub use hello::{ClientHello, HELLO_BYTES_MAX, Peek, Sniffed, peek, sniff};
pub use provider::{Aead, Provider};
pub use roots::Roots;
pub use second_hello::{AfterHello, after_hello, sniff_second};
pub use server::{NameSettings, ServerOptions, ServerSettings, Versions};
pub use session::{Handshake, SEALED_OVERHEAD, Session};
pub use ticket::{TICKET_KEYS_MAX, TICKET_LIFETIME, TicketKeyError, TicketKeys};
