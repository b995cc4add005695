//! What other threads ask of the supervising one, which alone holds the workers and listeners. It
//! waits for signals, so an errand comes with one: SIGUSR2, from this process to itself.

use std::io;
use std::sync::mpsc::{Receiver, Sender, channel};

use crate::takeover::{Offer, TakeoverChannel};

/// Something for the supervisor to do.
pub(crate) enum SupervisorRequest {
    /// As at SIGTERM.
    Drain,
    /// Apply the configuration's file anew: the number of the snapshot in force, or why not.
    Reload(Sender<Result<u64, String>>),
    /// Say what a successor would take over.
    CollectOffer(Sender<io::Result<Offer>>),
    /// The successor at the other end serves: leave everything to it.
    HandOver(TakeoverChannel),
    /// Somebody who had the same listeners is gone: look behind them.
    Repoll,
}

/// Where errands are given. Copies lead to the same supervisor.
#[derive(Clone)]
pub(crate) struct SupervisorHandle {
    requests: Sender<SupervisorRequest>,
    wake: fn(),
}

impl SupervisorHandle {
    /// Gives an errand; nobody does it any more once the supervisor has ended.
    pub(crate) fn send(&self, request: SupervisorRequest) {
        if self.requests.send(request).is_ok() {
            (self.wake)();
        }
    }
}

/// What was asked for and is not done.
pub(crate) struct SupervisorRequests(Receiver<SupervisorRequest>);

impl SupervisorRequests {
    /// Both ends. `wake` ends the supervisor's wait.
    pub(crate) fn new(wake: fn()) -> (SupervisorHandle, Self) {
        let (requests, receiver) = channel();
        (SupervisorHandle { requests, wake }, Self(receiver))
    }

    /// The next one.
    pub(crate) fn next(&self) -> Option<SupervisorRequest> {
        self.0.try_recv().ok()
    }
}
