//! What every real engine keeps, over real sockets. Each file is compiled for each engine.

mod accept;
mod budget;
pub(crate) mod common;
mod connect;
mod share;
mod splice;
mod stream;
mod succession;
mod take;
mod turn;
mod workers;
