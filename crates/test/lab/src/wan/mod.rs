//! An emulated wide area network between two network namespaces.
//!
//! Each namespace gets a TUN device. Packets that one sends arrive at the other after the delay of
//! their connection, at its rate, or never. Unlike tc-netem(8), each connection has a queue of its
//! own: the bottleneck of a client is its own link.
//!
//! ```text
//!   clients: wan0 ──> Carrier ──> Emulator::arrive ──> departures by time ──> servers: wan0
//! ```
//!
//! The emulator ([`emulator`]) decides about packets; it reads no clock and makes no system call.
//! The rest moves them.

pub mod carrier;
pub mod connection;
pub mod emulator;
pub mod link;
pub mod settings;
