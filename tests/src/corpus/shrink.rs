//! Shrinks a failing mutant while it fails in the same way.

use super::literal::Role;
use super::templates::Mutant;

/// Maximum number of attempts.
const TRIES_MAX: usize = 400;

/// Returns the smallest mutant found that still `fails`.
pub fn shrink(mutant: &Mutant, role: Role, mut fails: impl FnMut(&Mutant) -> bool) -> Mutant {
    let mut best = mutant.clone();
    let mut tries = 0;
    let mut keeps = |candidate: &Mutant, best: &mut Mutant| {
        tries += 1;
        let smaller = tries <= TRIES_MAX && candidate.may_run(role) && fails(candidate);
        if smaller {
            best.clone_from(candidate);
        }
        smaller
    };
    for plainer in [
        Mutant { cuts: Vec::new(), ..best.clone() },
        Mutant { cuts: Vec::new(), response: None, ..best.clone() },
    ] {
        keeps(&plainer, &mut best);
    }
    // On both sides, remove halves, then quarters, down to single bytes.
    for of_origin in [true, false] {
        let length = |mutant: &Mutant| bytes(mutant, of_origin).len();
        let mut part = length(&best) / 2;
        while part > 0 {
            let mut at = 0;
            while at < length(&best) {
                let mut candidate = best.clone();
                let end = (at + part).min(length(&best));
                match (&mut candidate.response, of_origin) {
                    (Some(response), true) => drop(response.drain(at..end)),
                    _ => drop(candidate.sent.drain(at..end)),
                }
                if !keeps(&candidate, &mut best) {
                    at += part;
                }
            }
            part /= 2;
        }
    }
    best
}

fn bytes(mutant: &Mutant, of_origin: bool) -> &[u8] {
    if of_origin { mutant.response.as_deref().unwrap_or_default() } else { &mutant.sent }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn irrelevant_parts_are_removed() {
        let mutant = Mutant {
            name: "a".to_owned(),
            sent: b"GET / HTTP/1.1\r\nHost: a\r\nX: bad one\r\n\r\n".to_vec(),
            response: Some(b"HTTP/1.1 200 OK\r\n\r\n".to_vec()),
            target: "/".to_owned(),
            cuts: vec![10, 500],
        };
        let fails = |mutant: &Mutant| mutant.sent.windows(3).any(|three| three == b"bad");
        let shrunk = shrink(&mutant, Role::Boost, fails);
        assert_eq!(
            (&shrunk.sent[..], shrunk.response, shrunk.cuts),
            (&b"bad"[..], None, Vec::new())
        );
    }
}
