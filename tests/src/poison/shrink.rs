//! Shrinks a failing mutant while it fails.

use super::mutant::Mutant;

/// Maximum number of attempts.
const TRIES_MAX: usize = 200;

/// Returns the smallest mutant found that still `fails`.
pub(super) fn shrink(mutant: &Mutant, mut fails: impl FnMut(&Mutant) -> bool) -> Mutant {
    let mut best = mutant.clone();
    let mut tries = 0;
    let mut is_smaller = true;
    while is_smaller {
        is_smaller = false;
        let mut at = 0;
        while let Some(candidate) = without(&best, at) {
            tries += 1;
            if tries > TRIES_MAX {
                return best;
            }
            if candidate.is_fair() && fails(&candidate) {
                best = candidate;
                is_smaller = true;
            } else {
                at += 1;
            }
        }
    }
    best
}

/// Returns the mutant without its part number `at`, or `None` beyond the last part.
fn without(mutant: &Mutant, mut at: usize) -> Option<Mutant> {
    let mut smaller = mutant.clone();
    if at < smaller.before.len() {
        smaller.before.remove(at);
        return Some(smaller);
    }
    at -= smaller.before.len();
    if at < smaller.after.len() {
        smaller.after.remove(at);
        return Some(smaller);
    }
    at -= smaller.after.len();
    if at < smaller.attack.requests.len() {
        smaller.attack.requests.remove(at);
        return Some(smaller);
    }
    at -= smaller.attack.requests.len();
    let counts = smaller.attack.requests.iter().map(|request| request.fields.len());
    for (index, count) in counts.enumerate() {
        if at < count {
            smaller.attack.requests[index].fields.remove(at);
            return Some(smaller);
        }
        at -= count;
    }
    if at < smaller.model.vary.len() {
        smaller.model.vary.remove(at);
        return Some(smaller);
    }
    at -= smaller.model.vary.len();
    let Mutant { model, attack, overlaps, .. } = &mut smaller;
    let requests = attack.requests.iter_mut();
    let of_requests = requests.flat_map(|it| [&mut it.is_old, &mut it.is_absolute]);
    let switches = [
        overlaps,
        &mut model.validates,
        &mut model.forces_https,
        &mut model.head_differs,
        &mut model.is_careless,
        &mut model.reading.backslash,
        &mut model.reading.merges,
        &mut model.reading.encoded_slash,
        &mut model.reading.removes_dots,
        &mut model.reading.merges_last,
        &mut model.reading.cuts_decoded,
    ];
    let switch = switches.into_iter().chain(of_requests).filter(|switch| **switch).nth(at)?;
    *switch = false;
    Some(smaller)
}
