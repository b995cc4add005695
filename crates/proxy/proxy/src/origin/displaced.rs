//! Displaced requests: those that were sent on a connection behind others, and get no response
//! there. They are sent once more (docs/design/offload.md).

use std::collections::VecDeque;

use millrace_engine::{Engine, Key, TokenKind};

use crate::core::Core;
use crate::origin::Phase;

/// Displaces the followers of a connection from `exchange` on, or all. The connection serves no
/// request after the remaining ones.
pub(super) fn displace_from<E: Engine>(core: &mut Core<E>, slot: Key, exchange: Option<Key>) {
    let connection = core.origins.connections.get_mut(slot);
    let uses = &mut connection.expect("a connection is open while it has followers").uses;
    if !uses.has_followers() {
        return;
    }
    let cut = uses.cut(exchange);
    uses.is_cut = true;
    let others = cut.into_iter().filter(|&other| Some(other) != exchange).collect();
    displace(core, others);
}

/// Makes exchanges that have lost their places send their requests again.
pub(super) fn displace<E: Engine>(core: &mut Core<E>, followers: VecDeque<Key>) {
    core.counters.origin_requests_displaced.add(followers.len() as u64);
    for key in followers {
        let transaction = &mut core.exchange(key).transaction;
        (transaction.place, transaction.phase) = (None, Phase::Displaced);
        core.wakes.local.push_back(key.token(TokenKind::Exchange));
    }
}
