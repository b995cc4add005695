//! A simulated kernel, network and clock with faults, all derived from one seed.
//!
//! A [`World`] is single-threaded, does not use real time, and makes no system calls: the same seed
//! always produces the same run. [`SimEngine`] is its [`Engine`](millrace_engine::Engine), and runs
//! a worker written for that trait unchanged. Clients, origins and name servers are [`Actor`]s,
//! which use the world directly. [`run`] drives both.
//!
//! The world enforces the engine's contract. It panics with the reason if a caller breaks it, and
//! [`World::leaks`] lists what a caller did not release. Except in worlds of [`Faults::None`], it
//! also withholds everything that a caller may not rely on: completions are late and in any order,
//! reads and writes are short, and buffers are tiny.
//!
//! The world models what a proxy can observe of Linux sockets: streams with bounded buffers at both
//! ends, segments cut anywhere, ends and resets, a close with unread data that becomes a reset,
//! refused and lost connections, peers that vanish, pipes, connected datagram sockets, exhausted
//! kernel resources, workers that are not scheduled, and a clock that jumps. It does not model
//! congestion, urgent data, or the cost of anything.
//!
//! Hostile worlds break one rule of the contract on purpose: an operation of a closed descriptor
//! may still complete. The generations of tokens exist for that case.
//!
//! [`World::plant_fault`] gives engines a bug on purpose, to test the tests.
#![forbid(unsafe_code)]

mod connection;
mod descriptor;
mod drive;
mod engine;
mod event_log;
mod fault;
mod fault_effects;
mod kernel;
mod network;
mod operation;
mod plan;
mod random;
mod secured;
mod send_source;
mod stale;
mod trace;
mod trouble;
mod world;

pub use drive::{Actor, RunOutcome, SimWorker, run};
pub use engine::{SimDetached, SimEngine, SimWaker};
pub use fault::EngineFault;
pub use plan::{Faults, ShortagePlan, StreamPlan, WorldPlan};
pub use random::SeededRandom;
pub use trace::Trace;
pub use world::{ActorSocket, ReadResult, World};
