//! The contract of real engines, over real sockets. Each file is compiled for each engine.

mod accept;
mod budget;
pub(crate) mod common;
mod connect;
mod replacement;
mod send_file;
mod send_shared;
mod splice;
mod stream;
mod try_recv_into;
mod turn;
mod workers;
