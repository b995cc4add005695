//! What the supervisor does when a successor takes over.

use std::sync::Arc;
use std::time::Instant;

use millrace_proxy::WorkerMessage;

use super::succession::Succession;
use super::{DRAIN_LOOK, Running};
use crate::print;
use crate::takeover::{Line, Offer};

impl Running {
    /// Gives the service manager a sign of life if it is time and every worker turns.
    pub(super) fn show_life(&mut self) {
        let Succession { systemd, watchdog, .. } = &mut self.succession;
        if let Some(watchdog) = watchdog {
            let ask = || self.force.remind(|| WorkerMessage::Heartbeat);
            watchdog.look(systemd, &self.shared.counters, ask);
        }
    }

    /// Whether a successor is taking over.
    pub(super) fn is_upgrading(&self) -> bool {
        self.admin.as_ref().is_some_and(|admin| admin.is_upgrading())
    }

    /// Has the process drain: at once, or after a takeover that is under way. To drain before it
    /// is done would leave the new process without sockets, and nobody would serve.
    pub(super) fn end_soon(&mut self) {
        if !self.succession.ending && self.is_upgrading() {
            print::error("draining begins when the takeover has ended");
        }
        self.succession.ending = true;
        if let Some(admin) = &self.admin {
            admin.refuse_takeovers();
        }
    }

    /// What a successor takes over.
    pub(super) fn offer(&self) -> std::io::Result<Offer> {
        let Succession { admin_listeners, systemd, .. } = &self.succession;
        let clients = self.force.copies()?;
        Ok(Offer { clients, admin: admin_listeners.copies()?, manager: systemd.given().clone() })
    }

    /// Leaves everything to the process at the other end of `line`, which serves already. Gives the
    /// time by which the workers should have ended, or `None` if that process is gone: then nothing
    /// has happened.
    pub(super) fn hand_over(&mut self, line: Line) -> Option<Instant> {
        let process = line.peer().map_or(0, |peer| peer.process);
        self.succession.admin_listeners.leave();
        self.succession.systemd.main_process(process);
        if let Err(error) = line.yours() {
            print::error(&format!("process {process} is gone: {error}; this one goes on"));
            self.go_on();
            return None;
        }
        print::error(&format!("draining: process {process} has taken over"));
        if let Some(admin) = &self.admin {
            admin.set_draining();
        }
        let Succession { admin_listeners, successor, systemd, watchdog, .. } = &mut self.succession;
        systemd.fall_silent();
        *watchdog = None;
        admin_listeners.close();
        *successor = Some(line);
        self.force.cede();
        // It waits for them.
        self.disks.leave();
        Some(self.drain_deadline())
    }

    /// Takes back what was left to a successor that is gone.
    fn go_on(&mut self) {
        self.succession.systemd.ready("serving");
        if let Some(admin) = &self.admin {
            admin.takeover_failed();
            let admin_listeners = &mut self.succession.admin_listeners;
            match admin_listeners.prepare(Arc::clone(admin)) {
                Ok(()) => admin_listeners.serve(),
                Err(failure) => print::error(&failure.to_string()),
            }
        }
        self.force.remind(|| WorkerMessage::RepollListeners);
    }

    /// Tells the successor once no worker listens any more: it then looks behind the sockets.
    pub(super) fn release_successor(&mut self) {
        if self.shared.counters.iter().all(|worker| worker.listeners.get() == 0) {
            self.succession.successor = None;
        }
    }

    /// Nobody else goes on with what was inherited.
    pub(super) fn own_files(&mut self) {
        self.force.own_files();
        self.succession.admin_listeners.own_files();
    }

    /// Ends what a takeover that failed has begun: the process that was to be succeeded goes on,
    /// and owns every file but those of sockets that were opened here.
    pub(super) fn give_up(&mut self) {
        self.force.abandon();
        let mut deadline = self.drain_deadline();
        while !self.has_drained(&mut deadline) {
            std::thread::sleep(DRAIN_LOOK);
        }
        self.close_files();
    }
}
