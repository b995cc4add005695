//! The proxy: what happens to a request between a client's socket and an origin's, stage by stage.
//! `exchange/stage.rs` has the table of stages and is read first.
//!
//! The crate is generic over the engine and calls no kernel itself: the same code serves clients
//! and runs in the simulator.
#![forbid(unsafe_code)]

mod admission;
pub mod auth;
mod cached;
pub mod congestion;
mod conn;
mod core;
pub mod counters;
mod exchange;
mod names;
mod origin;
mod overload;
mod shared;
mod snapshot;
mod stage;
mod transfer;
mod worker;

pub use cached::DIRECT_BYTES;
pub use exchange::{access_log, reason};
pub use origin::shared_health;
pub use overload::per_client::Client;
pub use shared::Shared;
pub use transfer::stats;
pub use worker::message::{HandoverGuard, WorkerMessage};
pub use worker::salvage::Salvage;
pub use worker::{Setup, Worker, pipes_max};
