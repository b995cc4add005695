//! What the supervisor does when a successor takes over.

use std::sync::Arc;
use std::time::Instant;

use millrace_proxy::WorkerMessage;

use super::succession::Succession;
use super::{DRAIN_POLL_INTERVAL, Running};
use crate::console;
use crate::takeover::{Offer, TakeoverChannel};

impl Running {
    /// Gives the service manager a sign of life if it is time and every worker turns.
    pub(super) fn feed_watchdog(&mut self) {
        let Succession { systemd, watchdog, .. } = &mut self.succession;
        if let Some(watchdog) = watchdog {
            let ask = || self.active_config.try_send_all(|| WorkerMessage::Heartbeat);
            watchdog.check(systemd, &self.shared.counters, ask);
        }
    }

    /// Whether a successor is taking over.
    pub(super) fn is_upgrading(&self) -> bool {
        self.admin.as_ref().is_some_and(|admin| admin.is_upgrading())
    }

    /// Has the process drain: at once, or after a takeover that is under way. To drain before it
    /// is done would leave the new process without sockets, and nobody would serve.
    pub(super) fn request_drain(&mut self) {
        if !self.succession.is_ending && self.is_upgrading() {
            console::log("draining begins when the takeover has ended");
        }
        self.succession.is_ending = true;
        if let Some(admin) = &self.admin {
            admin.refuse_takeovers();
        }
    }

    /// What a successor takes over.
    pub(super) fn offer(&self) -> std::io::Result<Offer> {
        let Succession { admin_listeners, systemd, .. } = &self.succession;
        let clients = self.active_config.duplicate_sockets()?;
        Ok(Offer {
            clients,
            admin: admin_listeners.duplicate_sockets()?,
            notify: systemd.config().clone(),
        })
    }

    /// Leaves everything to the process at the other end of `line`, which serves already. Gives the
    /// time by which the workers should have ended, or `None` if that process is gone: then nothing
    /// has happened.
    pub(super) fn hand_over(&mut self, channel: TakeoverChannel) -> Option<Instant> {
        let process = channel.peer().map_or(0, |peer| peer.process_id);
        self.succession.admin_listeners.leave();
        self.succession.systemd.set_main_process(process);
        if let Err(error) = channel.send_handed_over() {
            console::log(&format!("process {process} is gone: {error}; this one goes on"));
            self.resume_serving();
            return None;
        }
        console::log(&format!("draining: process {process} has taken over"));
        if let Some(admin) = &self.admin {
            admin.set_draining();
        }
        let Succession { admin_listeners, successor, systemd, watchdog, .. } = &mut self.succession;
        systemd.disable();
        *watchdog = None;
        admin_listeners.close();
        *successor = Some(channel);
        self.active_config.hand_off();
        // It waits for them.
        self.disks.release();
        Some(self.drain_deadline())
    }

    /// Takes back what was left to a successor that is gone.
    fn resume_serving(&mut self) {
        self.succession.systemd.ready("serving");
        if let Some(admin) = &self.admin {
            admin.handle_takeover_failure();
            let admin_listeners = &mut self.succession.admin_listeners;
            match admin_listeners.prepare(Arc::clone(admin)) {
                Ok(()) => admin_listeners.serve(),
                Err(error) => console::log(&error.to_string()),
            }
        }
        self.active_config.try_send_all(|| WorkerMessage::RepollListeners);
    }

    /// Tells the successor once no worker listens any more: it then looks behind the sockets.
    pub(super) fn release_successor(&mut self) {
        if self.shared.counters.iter().all(|worker| worker.listeners.get() == 0) {
            self.succession.successor = None;
        }
    }

    /// Nobody else goes on with what was inherited.
    pub(super) fn take_file_ownership(&mut self) {
        self.active_config.take_file_ownership();
        self.succession.admin_listeners.own_files();
    }

    /// Ends what a takeover that failed has begun: the process that was to be succeeded goes on,
    /// and owns every file but those of sockets that were opened here.
    pub(super) fn abort_start(&mut self) {
        self.active_config.abort_takeover();
        let mut deadline = self.drain_deadline();
        while !self.poll_drained(&mut deadline) {
            std::thread::sleep(DRAIN_POLL_INTERVAL);
        }
        self.close_files();
    }
}
