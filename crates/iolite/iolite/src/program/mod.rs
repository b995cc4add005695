//! Persistent programs that respond to requests of a server, over channels.
//!
//! ```text
//!   server                                        program
//!   ProgramConnection::connect ───────────────>  ProgramListener
//!     try_send      id, variables, body ──────>    receive
//!     try_receive   <─── id, header, body          respond
//! ```
//!
//! A connection carries any number of requests at a time, and responses in any order. The variables
//! and the header are text whose meaning this crate does not know. Bodies are aggregates: the
//! program reads that of a request where the server has put it, and the server sends that of a
//! response from the sealed file that the program has filled.
//!
//! The server does not trust the program; the program trusts the server.

mod connection;
mod interrupter;
mod listener;
mod message;

pub use connection::{ProgramConnection, ProgramOptions, ProgramResponse};
pub use interrupter::Interrupter;
pub use listener::{ProgramListener, ProgramRequest};
