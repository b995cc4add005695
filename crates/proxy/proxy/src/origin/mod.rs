//! The origin side: which server a request goes to, and the connections to it.

mod bound;
mod budget;
mod connection;
mod dial;
mod health;
mod known;
mod line;
mod notes;
mod pick;
mod pool;
mod rules;
mod transaction;
mod verdict;
mod waiting;

pub(crate) use bound::{Bound, binds, client_left, note_kept, owner, write_header};
pub(crate) use budget::{Budget, Share};
pub(crate) use connection::{OriginConn, Use};
pub(crate) use dial::{Attempt, Dial, abandon, handle_connected, handle_deadline};
pub(crate) use dial::{race as dial, unix as dial_unix};
pub(crate) use health::{Change, EjectRules, Ejection, Health, News, Trial};
pub(crate) use known::{OriginId, Place};
pub(crate) use line::{give_up_lines, overflow, serve_lines};
pub(crate) use pick::{Probing, pick};
pub(crate) use pool::Origins;
pub(crate) use rules::{Rules, RulesId};
pub(crate) use transaction::{INTERIM_MAX, Phase, Transaction};
pub(crate) use verdict::{leave, note_answer, note_failure};
pub(crate) use waiting::{Waiter, Waiting, Want, give_up_waiting, serve_waiting, wait_for_room};
