//! The proxy: what happens to a request between a client's socket and an origin's, stage by stage.
//! `flow.rs` has the table of stages and is read first.
//!
//! The crate is generic over the engine and calls no kernel itself: the same code serves clients
//! and runs in the simulator.
#![forbid(unsafe_code)]

mod accepting;
pub mod admission;
pub mod auth;
pub mod board;
mod caching;
mod client_side;
mod clients;
mod configure;
pub mod congestion;
mod conn;
pub mod counters;
mod exchange;
mod fill;
mod flow;
mod heads;
mod house;
mod input;
mod kept;
mod letter;
mod names;
mod origin;
mod origin_side;
mod outage;
mod pieces;
pub mod reason;
pub mod record;
mod refresh;
mod remains;
mod rest;
mod room;
mod snapshot;
mod snapshots;
mod stage;
pub mod tally;
mod transfer;
mod tunnel;
mod worker;

pub use clients::Client;
pub use fill::DIRECT_BYTES;
pub use letter::{HandedOver, Letter};
pub use remains::Remains;
pub use worker::{Setup, Shared, Worker, pipes_max};
