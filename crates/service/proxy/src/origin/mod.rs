//! The origin side: which server a request goes to, and the connections to it.

mod dial;
mod pick;
mod pool;
mod rules;
mod transaction;
mod waiting;

pub(crate) use dial::{Attempt, Dial, abandon, handle_connected, handle_deadline};
pub(crate) use dial::{race as dial, unix as dial_unix};
pub(crate) use pick::pick;
pub(crate) use pool::{OriginConn, OriginId, Origins, Place, Use};
pub(crate) use rules::{Rules, RulesId};
pub(crate) use transaction::{INTERIM_MAX, Phase, Transaction};
pub(crate) use waiting::{Waiting, give_up_waiting, serve_waiting, wait_for_room};
