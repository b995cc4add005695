//! A simulated kernel, network and clock, with faults, all from one seed.
//!
//! A [`World`] is single-threaded, knows no real time and asks nothing of the system: the same
//! seed gives the same run, always. [`Sim`] is its [`Engine`](millrace_engine::Engine): a worker
//! written for the trait runs in it unchanged. Clients, origins and name servers are [`Actor`]s
//! that use the world directly. [`run`] drives both.
//!
//! The world is a strict reader of the engine's contract: what a caller must not do panics here
//! with the reason, and [`World::leaks`] says what it forgot. What it may not rely on is taken
//! from it: completions come in any order and late, reads and writes are short, buffers tiny.
//!
//! It models what a proxy can observe of Linux' sockets: streams with bounded buffers at both
//! ends, segments cut anywhere, ends and resets, the close with unread data that becomes a reset,
//! refused and lost connections, peers that vanish, pipes, connected datagrams, what the kernel runs
//! out of, workers that are not scheduled, a clock that leaps. It does not model congestion, urgent
//! data, or the cost of anything.
//!
//! In hostile worlds one rule of the contract is broken on purpose: a descriptor that was closed
//! may still complete what it had outstanding. That is what the generations of tokens are for.
//!
//! [`World::plant`] gives its engines a bug on purpose, for the test of the tests.
#![forbid(unsafe_code)]

mod connection;
mod descriptor;
mod drive;
mod engine;
mod event_log;
mod fault;
mod faulty;
mod kernel;
mod network;
mod operation;
mod plan;
mod random;
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
