//! The origin side: which server a request goes to, and the connections to it.

mod attempt;
pub(crate) mod close;
mod connection;
pub(crate) mod dial;
mod follow;
pub(crate) mod h1;
mod health;
mod health_sync;
pub(crate) mod outage;
mod pick;
pub(crate) mod pinned;
mod place;
mod pool;
pub(crate) mod queue;
mod retry_budget;
mod rules;
pub mod shared_health;
pub(crate) mod side;
mod state;
mod transaction;
pub(crate) mod verdict;

pub(crate) use attempt::{Attempt, Dial};
pub(crate) use connection::{OriginConn, OriginUse, User};
pub(crate) use health::{Change, Ejection, Health, News, Trial};
pub(crate) use pick::{Probing, pick};
pub(crate) use place::{OriginId, Place};
pub(crate) use pool::Origins;
pub(crate) use retry_budget::{Budget, Share};
pub(crate) use rules::{Rules, RulesId};
pub(crate) use transaction::{INTERIM_MAX, Phase, Transaction};
