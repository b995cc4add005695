//! Invariants that hold for every seed.

use millrace_splice::{DirectionResult, End, Error, Side, SpliceMode};

use crate::model_run::{ModelPeer, ModelRun, ModelTransfer};

impl ModelRun {
    /// Checks during a transfer that the kept payload stays within its bound.
    pub(crate) fn check_bounds(&self, transfer: &ModelTransfer) {
        let (Some(handle), Some(keep_copy)) = (transfer.handle, transfer.keep_copy) else { return };
        if let Ok([forwarded, _]) = self.splicer.forwarded_bytes(handle) {
            let read = transfer.read.len() as u64;
            assert!(forwarded <= read + keep_copy.max2cache as u64, "max2cache");
            let client = transfer.peers[1].connection;
            let is_gone = self.world.borrow().connections[client].is_aborted;
            assert!(read <= forwarded || is_gone, "no byte is read before it is forwarded");
        }
    }

    /// Checks everything after the last event.
    pub(crate) fn check(mut self) {
        for index in 0..self.transfers.len() {
            self.release(index);
            // The release may have sent bytes.
            self.collect_all(index);
            let transfer = &self.transfers[index];
            self.check_end(transfer);
            self.check_application(transfer);
            self.check_direction(transfer, 0);
            self.check_direction(transfer, 1);
        }
        let (open, free) = self.splicer.pipes();
        assert_eq!((self.splicer.transfers(), free), (0, open), "no transfer holds a pipe");
        assert_eq!(self.world.borrow().pipes(), (open, 0), "and all are empty");
        assert!(!self.world.borrow().is_watched(), "released connections are not watched");
        drop(self.splicer);
        assert_eq!(self.world.borrow().pipes(), (0, 0));
    }

    /// Checks that each transfer ended, and releases it unless its end did.
    fn release(&mut self, index: usize) {
        let transfer = &mut self.transfers[index];
        let Some(handle) = transfer.handle.filter(|_| transfer.released.is_none()) else { return };
        let (end, forwarded) = transfer.ended.expect("every transfer ends");
        match self.splicer.unsplice(handle) {
            Err(error) => assert!(error == Error::Stale && transfer.auto_release),
            Ok(released) => {
                assert!(!transfer.auto_release && released.end == Some(end));
                let counts = [0, 1].map(|direction| released.directions[direction].forwarded);
                // The unsplice may have forwarded more bytes.
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
        match (end, transfer.mode) {
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
        if transfer.mode != SpliceMode::Bidirectional {
            assert!(!fd0.is_shut && !fd1.is_shut, "close is not forwarded");
        }
    }

    /// Checks that the application alone got the bytes that do not belong to the transfer.
    fn check_application(&self, transfer: &ModelTransfer) {
        if transfer.mode == SpliceMode::Bidirectional {
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

    /// Checks that every byte of a direction was forwarded, kept, returned, or left in the source.
    fn check_direction(&self, transfer: &ModelTransfer, direction: usize) {
        if direction == 1 && transfer.mode != SpliceMode::Bidirectional {
            return;
        }
        let [from, to] = [&transfer.peers[direction], &transfer.peers[1 - direction]];
        let world = self.world.borrow();
        let taken = from.sent - world.connections[from.connection].incoming.len();
        let is_sink_aborted = world.connections[to.connection].is_aborted;
        let prefix: &[u8] = if direction == 0 { &transfer.prefix } else { b"" };
        let keep_copy = transfer.keep_copy.is_some();
        match &transfer.released {
            Some(released) => {
                let direction = &released.directions[direction];
                check_released(direction, from, prefix);
                let sent = prefix.len() - direction.prefix_unsent;
                let forwarded = direction.forwarded as usize;
                check_sent(to, from, &prefix[..sent], forwarded, is_sink_aborted);
                let kept = [&transfer.read[..], &direction.kept[..]].concat();
                let all = if is_sink_aborted { kept.len().max(forwarded) } else { forwarded };
                assert!(
                    !keep_copy || kept == from.stream(0, all),
                    "the copy is the forwarded payload"
                );
                let unsent = direction.unsent.len() - direction.prefix_unsent;
                let all = if keep_copy { all.max(forwarded + unsent) } else { forwarded + unsent };
                assert_eq!(all, taken, "no byte is lost");
            }
            None => {
                let (end, forwarded) = transfer.ended.expect("it ended, or was released");
                let is_lost = matches!(end, End::Aborted { .. });
                check_sent(
                    to,
                    from,
                    prefix,
                    forwarded[direction] as usize,
                    is_lost || is_sink_aborted,
                );
                assert!(is_lost || forwarded[direction] as usize == taken);
                assert!(
                    !keep_copy || transfer.read == from.stream(0, taken),
                    "the whole payload was read"
                );
            }
        }
    }
}

fn check_released(direction: &DirectionResult, from: &ModelPeer, prefix: &[u8]) {
    let (prefix_unsent, payload) = direction.unsent.split_at(direction.prefix_unsent);
    assert!(prefix.ends_with(prefix_unsent));
    let forwarded = direction.forwarded as usize;
    assert!(payload == from.stream(forwarded, forwarded + payload.len()));
}

/// Checks that the peer got the sent bytes; after an abort, a part of them from the start.
fn check_sent(to: &ModelPeer, from: &ModelPeer, prefix: &[u8], forwarded: usize, is_aborted: bool) {
    let sent = [prefix, &from.stream(0, forwarded)].concat();
    if is_aborted {
        assert!(sent.starts_with(&to.got));
    } else {
        assert!(to.got == sent, "{} of {} bytes", to.got.len(), sent.len());
    }
}
