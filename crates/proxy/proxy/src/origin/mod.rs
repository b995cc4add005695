//! The origin side: the choice of an origin for a request, and the connections to origins.

mod attempt;
pub(crate) mod close;
mod connection;
pub(crate) mod dial;
pub(crate) mod events;
pub(crate) mod fastcgi;
pub(crate) mod h1;
mod health;
mod health_sync;
pub(crate) mod outage;
pub(crate) mod outcome;
mod pick;
pub(crate) mod pinned;
mod pool;
pub(crate) mod process_waits;
mod program_errors;
pub(crate) mod programs;
pub(crate) mod queue;
mod reconfigure;
pub(crate) mod release;
mod retry_budget;
mod rules;
pub(crate) mod secure;
pub mod shared_health;
mod state;
mod table;
mod transaction;

pub(crate) use attempt::{ConnectAttempt, Dial};
pub(crate) use connection::{ConnectionUser, OriginConn, OriginUse};
pub(crate) use health::{Ejection, Health, HealthChange, PendingReport, PickReason};
pub(crate) use pick::{ProbeContext, pick};
pub(crate) use pool::Origins;
pub(crate) use retry_budget::{RetryBudget, RetryLimits};
pub(crate) use rules::{ConnectRules, ConnectRulesId};
pub(crate) use state::{OriginAddress, OriginId};
pub(crate) use transaction::{INTERIM_MAX, Phase, Transaction};
