//! What other threads ask of the supervising one, which alone holds the workers and listeners. It
//! waits for signals, so an errand comes with one: SIGUSR2, from this process to itself.

use std::io;
use std::sync::mpsc::{Receiver, Sender, channel};

use crate::takeover::{Line, Offer};

/// Something for the supervisor to do.
pub(crate) enum Errand {
    /// As at SIGTERM.
    Drain,
    /// Apply the configuration's file anew: the number of the snapshot in force, or why not.
    Reload(Sender<Result<u64, String>>),
    /// Say what a successor would take over.
    Offer(Sender<io::Result<Offer>>),
    /// The successor at the other end serves: leave everything to it.
    HandOver(Line),
    /// Somebody who had the same listeners is gone: look behind them.
    Rearm,
}

/// Where errands are given. Copies lead to the same supervisor.
#[derive(Clone)]
pub(crate) struct Desk {
    errands: Sender<Errand>,
    wake: fn(),
}

impl Desk {
    /// Gives an errand; nobody does it any more once the supervisor has ended.
    pub(crate) fn ask(&self, errand: Errand) {
        if self.errands.send(errand).is_ok() {
            (self.wake)();
        }
    }
}

/// What was asked for and is not done.
pub(crate) struct Errands(Receiver<Errand>);

impl Errands {
    /// Both ends. `wake` ends the supervisor's wait.
    pub(crate) fn new(wake: fn()) -> (Desk, Self) {
        let (errands, receiver) = channel();
        (Desk { errands, wake }, Self(receiver))
    }

    /// The next one.
    pub(crate) fn next(&self) -> Option<Errand> {
        self.0.try_recv().ok()
    }
}
