//! The parts that `pbtls-load` and `pbtls-floor` share: rustls over sockets that do not block.

#![forbid(unsafe_code)]

pub mod link;
pub mod poll;
pub mod provider;
pub mod stream;
