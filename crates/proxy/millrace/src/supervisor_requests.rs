//! Requests of other threads to the supervisor, which alone owns the workers and listeners. The
//! supervisor waits for signals, so each request is announced by SIGUSR2 from this process to
//! itself.

use std::io;
use std::sync::mpsc::{Receiver, Sender, channel};

use crate::takeover::{Offer, TakeoverChannel};

/// A request to the supervisor.
pub(crate) enum SupervisorRequest {
    /// Drain, as after SIGTERM.
    Drain,
    /// Reload the configuration file and reply with its number, or with the reason of the refusal.
    Reload(Sender<Result<u64, String>>),
    /// Put the ordered certificates in force and reply like a reload.
    InstallCertificates(Sender<Result<u64, String>>),
    /// Reply with what a successor would take over.
    CollectOffer(Sender<io::Result<Offer>>),
    /// Hand everything over to the successor at the other end, which serves already.
    HandOver(TakeoverChannel),
    /// Poll the listeners again: another process with the same sockets has ended, and connections
    /// may wait in their queues.
    Repoll,
}

/// The sending end of the requests. Clones lead to the same supervisor.
#[derive(Clone)]
pub(crate) struct SupervisorHandle {
    requests: Sender<SupervisorRequest>,
    wake: fn(),
}

impl SupervisorHandle {
    /// Sends a request. It is dropped if the supervisor has ended.
    pub(crate) fn send(&self, request: SupervisorRequest) {
        if self.requests.send(request).is_ok() {
            (self.wake)();
        }
    }
}

/// The receiving end of the requests.
pub(crate) struct SupervisorRequests(Receiver<SupervisorRequest>);

impl SupervisorRequests {
    /// Creates both ends. `wake` interrupts the supervisor's wait.
    pub(crate) fn new(wake: fn()) -> (SupervisorHandle, Self) {
        let (requests, receiver) = channel();
        (SupervisorHandle { requests, wake }, Self(receiver))
    }

    /// Returns the next request, if there is one.
    pub(crate) fn next(&self) -> Option<SupervisorRequest> {
        self.0.try_recv().ok()
    }
}
