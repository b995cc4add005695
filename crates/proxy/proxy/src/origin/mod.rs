//! The origin side: which server a request goes to, and the connections to it.

mod connection;
mod dial;
mod health;
mod health_sync;
pub(crate) mod outage;
mod pick;
mod pinned;
mod pool;
mod queue;
mod retry_budget;
mod rules;
pub mod shared_health;
pub(crate) mod side;
mod state;
mod transaction;
mod verdict;

pub(crate) use connection::{OriginConn, Use};
pub(crate) use dial::{Attempt, Dial, abandon, handle_connected, handle_deadline};
pub(crate) use dial::{race as dial, unix as dial_unix};
pub(crate) use health::{Change, EjectRules, Ejection, Health, News, Trial};
pub(crate) use pick::{Probing, pick};
pub(crate) use pinned::{Bound, binds, client_left, note_kept, owner, write_header};
pub(crate) use pool::Origins;
pub(crate) use queue::{give_up_lines, overflow, serve_lines};
pub(crate) use retry_budget::{Budget, Share};
pub(crate) use rules::{Rules, RulesId};
pub(crate) use state::{OriginId, Place};
pub(crate) use transaction::{INTERIM_MAX, Phase, Transaction};
pub(crate) use verdict::{leave, note_answer, note_failure};
