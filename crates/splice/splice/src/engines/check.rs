//! The checks after a transfer, and the kinds of transfers that were covered.

use millrace_engine::Engine;
use millrace_sim::Faults;

use super::peer::{PeerStream, StreamPeer};
use super::transfer_driver::{TransferDriver, TransferSpec};
use crate::request::{End, Side};

/// The number of transfers of each kind, to prove that the seeds cover all kinds.
#[derive(Default, Debug)]
pub(super) struct Coverage {
    pub(super) whole: u64,
    /// With a copy that was read to its end.
    kept: u64,
    /// With a copy that was read to its end after the destination aborted.
    copied_after_abort: u64,
    /// Unspliced, and then forwarded by the application to the end.
    unspliced: u64,
    /// Unspliced while payload was taken and not forwarded.
    had_unsent: u64,
    /// Unspliced with a copy.
    unspliced_kept: u64,
}

impl Coverage {
    /// Returns whether each kind occurred.
    pub(super) fn has_all(&self) -> bool {
        let Self { whole, kept, copied_after_abort, unspliced, had_unsent, unspliced_kept } = *self;
        [whole, kept, copied_after_abort, unspliced, had_unsent, unspliced_kept]
            .iter()
            .all(|&count| count > 0)
    }
}

/// Checks a transfer after its end. Hostile faults may lose bytes that were sent and not received.
pub(super) fn check<E: Engine, S: PeerStream>(
    spec: &TransferSpec,
    worker: &TransferDriver<E>,
    peers: [&StreamPeer<S>; 2],
    faults: Faults,
    coverage: &mut Coverage,
) {
    assert!(spec.is_bidirectional || peers[0].got == 0, "the destination sends nothing");
    for direction in 0..worker.directions.len() {
        check_bounds(spec, worker, peers, direction);
        check_end(spec, worker, peers, direction, coverage);
        if worker.is_whole() {
            check_arrival(spec, worker, peers, direction, faults);
        }
    }
    let is_kept = worker.directions[0].kept.is_some();
    let is_whole = worker.is_whole();
    coverage.whole += u64::from(is_whole);
    coverage.kept += u64::from(is_kept && is_whole && worker.manual.is_empty());
    coverage.unspliced += u64::from(is_whole && !worker.manual.is_empty());
    coverage.had_unsent +=
        u64::from(worker.manual.iter().any(|manual_direction| manual_direction.had_unsent));
    coverage.unspliced_kept += u64::from(is_kept && !worker.manual.is_empty());
}

/// Checks bounds that hold for every end: no peer received bytes that were not sent. Peers and
/// readers of copies compare the bytes themselves.
fn check_bounds<E: Engine, S: PeerStream>(
    spec: &TransferSpec,
    worker: &TransferDriver<E>,
    peers: [&StreamPeer<S>; 2],
    index: usize,
) {
    let (direction, [from, to]) = (&worker.directions[index], [peers[index], peers[1 - index]]);
    let sent = from.sent as u64;
    let forwarded = direction.state.forwarded;
    let taken = worker
        .manual
        .get(index)
        .map_or(direction.state.taken, |manual_direction| manual_direction.taken as u64);
    assert!(forwarded <= direction.state.taken && taken <= sent, "no more is taken than was sent");
    let is_unspliced = !worker.manual.is_empty();
    assert!(is_unspliced || spec.limit.is_none_or(|limit| index > 0 || taken <= limit));
    assert!(to.got <= prefix(spec, index) + from.sent, "a peer gets no more than was sent");
    if let Some(kept) = &direction.kept {
        let most = if direction.state.is_sink_failed() { direction.state.taken } else { forwarded };
        assert!(
            kept.read as u64 <= most,
            "the copy has only payload that was forwarded or cannot be"
        );
    }
}

fn check_end<E: Engine, S: PeerStream>(
    spec: &TransferSpec,
    worker: &TransferDriver<E>,
    peers: [&StreamPeer<S>; 2],
    index: usize,
    coverage: &mut Coverage,
) {
    let (direction, sent) = (&worker.directions[index], peers[index].sent);
    let forwarded = direction.state.forwarded;
    let read = direction.kept.as_ref().map(|kept| kept.read as u64);
    match worker.ends[index] {
        Some(End::Limit) => assert_eq!(spec.limit, Some(forwarded)),
        // If the other direction failed, it may have consumed the error of the connection. Then
        // this direction sees a normal end.
        Some(End::Closed) if worker.is_whole() => assert_eq!(sent as u64, forwarded),
        // The transfer continued for the application alone.
        Some(End::Aborted { side: Side::Fd1, .. }) if index == 0 && !direction.is_source_broken => {
            let payload = spec.limit.map_or(sent as u64, |limit| limit.min(sent as u64));
            assert!(
                read.is_none_or(|read| read == payload),
                "the application got the whole payload"
            );
            coverage.copied_after_abort += u64::from(read.is_some());
        }
        _ => {}
    }
    if worker.ends[index].is_some_and(|end| end.error().is_none()) {
        assert!(read.is_none_or(|read| read == forwarded), "the copy is the forwarded payload");
    }
    if let Some(manual_direction) = worker
        .manual
        .get(index)
        .filter(|manual_direction| manual_direction.is_over && !manual_direction.was_over)
    {
        assert_eq!(manual_direction.taken, sent, "all bytes were taken");
    }
}

/// Checks that all forwarded bytes arrived at a peer that did not fail. With hostile faults, only
/// if the peer also received the end of the stream.
fn check_arrival<E: Engine, S: PeerStream>(
    spec: &TransferSpec,
    worker: &TransferDriver<E>,
    peers: [&StreamPeer<S>; 2],
    index: usize,
    faults: Faults,
) {
    let (direction, to) = (&worker.directions[index], peers[1 - index]);
    let manual_direction = worker.manual.get(index);
    if to.is_broken
        || direction.state.is_sink_failed()
        || (faults == Faults::Hostile && !to.is_at_end)
    {
        return;
    }
    let payload = manual_direction
        .map_or(direction.state.forwarded as usize, |manual_direction| manual_direction.taken);
    assert_eq!(to.got, prefix(spec, index) + payload, "all forwarded bytes arrived");
}

fn prefix(spec: &TransferSpec, direction: usize) -> usize {
    if direction == 0 { spec.prefix.len() } else { 0 }
}
