//! What must be so in the end, and what was seen on the way there.

use millrace_engine::Engine;
use millrace_sim::Faults;

use super::peer::{Peer, Stream};
use super::play::{Asked, Worker};
use crate::request::{End, Side};

/// How many transfers were of a kind: one that never shows is not tested.
#[derive(Default, Debug)]
pub(super) struct Seen {
    pub(super) whole: u64,
    /// With a copy that was read to its end.
    kept: u64,
    /// With a copy that was read to its end after the destination aborted.
    went_on: u64,
    /// Unspliced, and gone on with by hand to the end.
    by_hand: u64,
    /// Unspliced when bytes that were taken had not been forwarded.
    handed_some: u64,
    /// Unspliced when a copy was kept.
    unspliced_kept: u64,
}

impl Seen {
    /// Whether so many transfers were of each kind.
    pub(super) fn has_all(&self) -> bool {
        let Self { whole, kept, went_on, by_hand, handed_some, unspliced_kept } = *self;
        [whole, kept, went_on, by_hand, handed_some, unspliced_kept].iter().all(|&count| count > 0)
    }
}

/// Checks a transfer that is over. What is hostile may lose what was sent and not received.
pub(super) fn check<E: Engine, S: Stream>(
    asked: &Asked,
    worker: &Worker<E>,
    peers: [&Peer<S>; 2],
    faults: Faults,
    seen: &mut Seen,
) {
    assert!(asked.is_bidirectional || peers[0].got == 0, "nothing goes back");
    for way in 0..worker.ways.len() {
        check_bounds(asked, worker, peers, way);
        check_end(asked, worker, peers, way, seen);
        if worker.is_whole() {
            check_arrival(asked, worker, peers, way, faults);
        }
    }
    let is_kept = worker.ways[0].kept.is_some();
    let is_whole = worker.is_whole();
    seen.whole += u64::from(is_whole);
    seen.kept += u64::from(is_kept && is_whole && worker.hands.is_empty());
    seen.by_hand += u64::from(is_whole && !worker.hands.is_empty());
    seen.handed_some += u64::from(worker.hands.iter().any(|hand| hand.was_handed_some));
    seen.unspliced_kept += u64::from(is_kept && !worker.hands.is_empty());
}

/// However it ended: nobody got what was not sent, and what was got is right (each peer, and who
/// reads a copy, has compared it), so it is a beginning of what was sent.
fn check_bounds<E: Engine, S: Stream>(
    asked: &Asked,
    worker: &Worker<E>,
    peers: [&Peer<S>; 2],
    index: usize,
) {
    let (way, [from, to]) = (&worker.ways[index], [peers[index], peers[1 - index]]);
    let sent = from.sent as u64;
    let forwarded = way.flow.forwarded;
    let taken = worker.hands.get(index).map_or(way.flow.taken, |hand| hand.taken as u64);
    assert!(forwarded <= way.flow.taken && taken <= sent, "nothing comes from nowhere");
    let is_unspliced = !worker.hands.is_empty();
    assert!(is_unspliced || asked.limit.is_none_or(|limit| index > 0 || taken <= limit));
    assert!(to.got <= first(asked, index) + from.sent, "nobody gets what was not sent");
    if let Some(kept) = &way.kept {
        let most = if way.flow.is_sink_gone() { way.flow.taken } else { forwarded };
        assert!(kept.read as u64 <= most, "what is kept was forwarded, or cannot be");
    }
}

fn check_end<E: Engine, S: Stream>(
    asked: &Asked,
    worker: &Worker<E>,
    peers: [&Peer<S>; 2],
    index: usize,
    seen: &mut Seen,
) {
    let (way, sent) = (&worker.ways[index], peers[index].sent);
    let forwarded = way.flow.forwarded;
    let read = way.kept.as_ref().map(|kept| kept.read as u64);
    match worker.ends[index] {
        Some(End::Limit) => assert_eq!(asked.limit, Some(forwarded)),
        // Where the other way broke, its error may have been told there: here it looks like an end.
        Some(End::Closed) if worker.is_whole() => assert_eq!(sent as u64, forwarded),
        // It went on for the application alone.
        Some(End::Aborted { side: Side::Fd1, .. }) if index == 0 && !way.is_source_broken => {
            let payload = asked.limit.map_or(sent as u64, |limit| limit.min(sent as u64));
            assert!(read.is_none_or(|read| read == payload), "the application got all of it");
            seen.went_on += u64::from(read.is_some());
        }
        _ => {}
    }
    if worker.ends[index].is_some_and(|end| end.error().is_none()) {
        assert!(read.is_none_or(|read| read == forwarded), "what was forwarded was kept");
    }
    if let Some(hand) = worker.hands.get(index).filter(|hand| hand.is_over && !hand.was_over) {
        assert_eq!(hand.taken, sent, "the transfer and the application got all of it");
    }
}

/// Of what did not break: all that went on came. Where no peer vanishes, and nothing stops for
/// longer than is played, it comes in time; elsewhere, if the end of the stream did.
fn check_arrival<E: Engine, S: Stream>(
    asked: &Asked,
    worker: &Worker<E>,
    peers: [&Peer<S>; 2],
    index: usize,
    faults: Faults,
) {
    let (way, to) = (&worker.ways[index], peers[1 - index]);
    let hand = worker.hands.get(index);
    if to.is_broken || way.flow.is_sink_gone() || (faults == Faults::Hostile && !to.is_at_end) {
        return;
    }
    let payload = hand.map_or(way.flow.forwarded as usize, |hand| hand.taken);
    assert_eq!(to.got, first(asked, index) + payload, "all that was sent came");
}

fn first(asked: &Asked, way: usize) -> usize {
    if way == 0 { asked.first.len() } else { 0 }
}
