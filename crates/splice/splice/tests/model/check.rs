//! What must be so, whatever happened.

use millrace_splice::{DirectionResult, End, Error, Side, SpliceMode};

use crate::model_run::{ModelPeer, ModelRun, ModelTransfer};

impl ModelRun {
    /// While it goes on: what is forwarded and not read has its bound.
    pub(crate) fn check_bounds(&self, transfer: &ModelTransfer) {
        let (Some(handle), Some(keep)) = (transfer.handle, transfer.keep) else { return };
        if let Ok([forwarded, _]) = self.splicer.forwarded_bytes(handle) {
            let read = transfer.read.len() as u64;
            assert!(forwarded <= read + keep.max2cache as u64, "max2cache");
            let client = transfer.peers[1].connection;
            let is_gone = self.world.borrow().connections[client].is_aborted;
            assert!(read <= forwarded || is_gone, "nothing is read before it went on");
        }
    }

    /// When nothing moves any more.
    pub(crate) fn check(mut self) {
        for index in 0..self.transfers.len() {
            self.release(index);
            // The release may have written on.
            self.collect_all(index);
            let transfer = &self.transfers[index];
            self.check_end(transfer);
            self.check_application(transfer);
            self.check_way(transfer, 0);
            self.check_way(transfer, 1);
        }
        let (open, free) = self.splicer.pipes();
        assert_eq!((self.splicer.transfers(), free), (0, open), "nobody holds a pipe");
        assert_eq!(self.world.borrow().pipes(), (open, 0), "and all are empty");
        assert!(!self.world.borrow().is_watched(), "what was released is watched by nobody");
        drop(self.splicer);
        assert_eq!(self.world.borrow().pipes(), (0, 0));
    }

    /// Whatever was begun has ended, and been released by its end or is now.
    fn release(&mut self, index: usize) {
        let transfer = &mut self.transfers[index];
        let Some(handle) = transfer.handle.filter(|_| transfer.released.is_none()) else { return };
        let (end, forwarded) = transfer.ended.expect("whatever is not broken off ends");
        match self.splicer.unsplice(handle) {
            Err(error) => assert!(error == Error::Stale && transfer.auto_release),
            Ok(released) => {
                assert!(!transfer.auto_release && released.end == Some(end));
                let counts = [0, 1].map(|way| released.directions[way].forwarded);
                // What was written on meanwhile is forwarded too.
                assert!(counts[0] >= forwarded[0] && counts[1] >= forwarded[1]);
                assert!(end.error().is_some() || counts == forwarded);
                transfer.released = Some(released);
            }
        }
    }

    fn check_end(&self, transfer: &ModelTransfer) {
        let Some((end, forwarded)) = transfer.ended else { return };
        let world = self.world.borrow();
        let [fd0, fd1] = [0, 1].map(|side| &world.connections[transfer.peers[side].connection]);
        match (end, transfer.kind) {
            (End::Limit, SpliceMode::Unidirectional { limit }) => {
                assert!(limit == Some(forwarded[0]));
            }
            (End::Closed, SpliceMode::Unidirectional { limit }) => {
                assert!(fd0.is_ended && fd0.incoming.is_empty());
                assert_eq!(transfer.peers[0].sent as u64, forwarded[0]);
                assert!(limit.is_none_or(|limit| forwarded[0] < limit));
            }
            (End::Closed, SpliceMode::Bidirectional) => {
                assert!(fd0.is_ended && fd0.is_shut && fd1.is_ended && fd1.is_shut);
                let sent = [0, 1].map(|side| transfer.peers[side].sent as u64);
                assert_eq!(sent, forwarded);
            }
            (End::Aborted { side: Side::Fd0, .. }, _) => assert!(fd0.is_aborted),
            (End::Aborted { side: Side::Fd1, .. }, _) => assert!(fd1.is_aborted),
            (End::Limit | End::Failed(_), _) => panic!("{end:?}"),
        }
        if transfer.kind != SpliceMode::Bidirectional {
            assert!(!fd0.is_shut && !fd1.is_shut, "close is not forwarded");
        }
    }

    /// What is not the transfer's is the application's, untouched.
    fn check_application(&self, transfer: &ModelTransfer) {
        if transfer.kind == SpliceMode::Bidirectional {
            return;
        }
        let [source, client] = &transfer.peers;
        let mut requests = transfer.requests.clone();
        requests.extend(&self.world.borrow().connections[client.connection].incoming);
        assert!(requests == client.stream(0, client.sent));
        assert!(source.got.iter().all(|&byte| byte == b'x'));
        if !self.world.borrow().connections[source.connection].is_aborted {
            assert_eq!(source.got.len(), transfer.written);
        }
    }

    /// Every byte of one way went on, was kept, is given back, or waits for the application.
    fn check_way(&self, transfer: &ModelTransfer, way: usize) {
        if way == 1 && transfer.kind != SpliceMode::Bidirectional {
            return;
        }
        let [from, to] = [&transfer.peers[way], &transfer.peers[1 - way]];
        let world = self.world.borrow();
        let taken = from.sent - world.connections[from.connection].incoming.len();
        let is_sink_aborted = world.connections[to.connection].is_aborted;
        let first: &[u8] = if way == 0 { &transfer.first } else { b"" };
        let keep = transfer.keep.is_some();
        match &transfer.released {
            Some(released) => {
                let direction = &released.directions[way];
                check_released(direction, from, first);
                let sent = first.len() - direction.prefix_unsent;
                let forwarded = direction.forwarded as usize;
                check_sent(to, from, &first[..sent], forwarded, is_sink_aborted);
                let kept = [&transfer.read[..], &direction.kept[..]].concat();
                let all = if is_sink_aborted { kept.len().max(forwarded) } else { forwarded };
                assert!(!keep || kept == from.stream(0, all), "kept is what was forwarded");
                let unsent = direction.unsent.len() - direction.prefix_unsent;
                let all = if keep { all.max(forwarded + unsent) } else { forwarded + unsent };
                assert_eq!(all, taken, "nothing is lost");
            }
            None => {
                let (end, forwarded) = transfer.ended.expect("it ended, or was released");
                let is_lost = matches!(end, End::Aborted { .. });
                check_sent(to, from, first, forwarded[way] as usize, is_lost || is_sink_aborted);
                assert!(is_lost || forwarded[way] as usize == taken);
                assert!(!keep || transfer.read == from.stream(0, taken), "all was read");
            }
        }
    }
}

fn check_released(way: &DirectionResult, from: &ModelPeer, first: &[u8]) {
    let (first_unsent, payload) = way.unsent.split_at(way.prefix_unsent);
    assert!(first.ends_with(first_unsent));
    let forwarded = way.forwarded as usize;
    assert!(payload == from.stream(forwarded, forwarded + payload.len()));
}

/// The peer got what was sent, or the beginning of it if something was aborted.
fn check_sent(to: &ModelPeer, from: &ModelPeer, first: &[u8], forwarded: usize, is_aborted: bool) {
    let sent = [first, &from.stream(0, forwarded)].concat();
    if is_aborted {
        assert!(sent.starts_with(&to.got));
    } else {
        assert!(to.got == sent, "{} of {} bytes", to.got.len(), sent.len());
    }
}
