//! Which origin of a route a request goes to.

use crate::config::Balance;
use crate::origin::{OriginId, Origins};

/// Picks one of `candidates` (at least one). `turn` counts the picks of the route. A further try
/// (`tried`: the origin that failed) takes another one where there is one.
pub(crate) fn pick(
    origins: &Origins,
    candidates: &[OriginId],
    balance: Balance,
    turn: &mut usize,
    tried: Option<OriginId>,
) -> OriginId {
    let first = *turn % candidates.len();
    *turn = turn.wrapping_add(1);
    let in_turn = candidates[first..].iter().chain(&candidates[..first]).copied();
    let others = in_turn.filter(|&id| Some(id) != tried);
    let picked = match balance {
        Balance::RoundRobin => others.into_iter().next(),
        Balance::LeastOutstanding => others.min_by_key(|&id| origins.outstanding(id)),
    };
    picked.unwrap_or(candidates[first])
}
