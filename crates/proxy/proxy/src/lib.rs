//! The data path of the proxy: each request passes from the client's socket to an origin's through
//! a fixed sequence of stages. Start reading in `exchange/stage.rs`, which has the table of stages.
//!
//! The crate is generic over the engine and makes no system call itself. The same code serves
//! clients and runs in the simulator.
#![forbid(unsafe_code)]

mod admission;
pub mod auth;
mod cached;
mod coded;
pub mod congestion;
mod conn;
mod core;
pub mod counters;
mod exchange;
mod files;
mod names;
mod origin;
mod overload;
mod route_match;
mod secure;
mod shared;
mod snapshot;
mod stage;
mod transfer;
mod worker;

pub use cached::DIRECT_BYTES;
pub use exchange::{access_log, reason};
pub use files::{FileThreads, SharedFiles};
pub use origin::shared_health;
pub use overload::per_client::ClientPrefix;
pub use secure::challenges::SharedChallenges;
pub use secure::{client_settings, tickets::SharedTicketKeys};
pub use shared::SharedState;
pub use transfer::stats;
pub use worker::message::{HandoverGuard, WorkerMessage};
pub use worker::salvage::Salvage;
pub use worker::{Setup, Worker, pipes_max};
