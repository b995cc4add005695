//! The supervisor's part in a takeover.

use std::sync::Arc;
use std::time::Instant;

use millrace_proxy::WorkerMessage;

use super::succession::Succession;
use super::{DRAIN_POLL_INTERVAL, Running};
use crate::console;
use crate::takeover::{Offer, TakeoverChannel};

impl Running {
    /// Notifies the watchdog of the service manager if it is time and every worker has replied.
    pub(super) fn feed_watchdog(&mut self) {
        let Succession { systemd, watchdog, .. } = &mut self.succession;
        if let Some(watchdog) = watchdog {
            let send_heartbeats = || self.active_config.try_send_all(|| WorkerMessage::Heartbeat);
            watchdog.check(systemd, &self.shared.counters, send_heartbeats);
        }
    }

    /// Returns whether a successor is taking over.
    pub(super) fn is_upgrading(&self) -> bool {
        self.admin.as_ref().is_some_and(|admin| admin.is_upgrading())
    }

    /// Requests draining. It starts at once, or after the current takeover: draining before its end
    /// would leave the successor without sockets.
    pub(super) fn request_drain(&mut self) {
        if !self.succession.is_ending && self.is_upgrading() {
            console::log("draining will start when the takeover ends");
        }
        self.succession.is_ending = true;
        if let Some(admin) = &self.admin {
            admin.refuse_takeovers();
        }
    }

    /// Duplicates what a successor takes over.
    pub(super) fn offer(&self) -> std::io::Result<Offer> {
        let Succession { admin_listeners, systemd, .. } = &self.succession;
        let clients = self.active_config.duplicate_sockets()?;
        Ok(Offer {
            clients,
            admin: admin_listeners.duplicate_sockets()?,
            notify: systemd.config().clone(),
            tickets: self.tickets.offer(&self.shared),
        })
    }

    /// Hands everything over to the process at the other end of `channel`, which serves already.
    /// Returns the deadline for the workers' end, or `None` if that process is gone. In that case
    /// this process continues to serve.
    pub(super) fn hand_over(&mut self, channel: TakeoverChannel) -> Option<Instant> {
        let process = channel.peer().map_or(0, |peer| peer.process_id);
        self.succession.admin_listeners.stop_accepting();
        self.succession.systemd.set_main_process(process);
        if let Err(error) = channel.send_handed_over() {
            console::log(&format!(
                "takeover failed: process {process} is gone: {error}; this process continues"
            ));
            self.resume_serving();
            return None;
        }
        console::log(&format!("draining: process {process} has taken over"));
        self.stop_acme();
        if let Some(admin) = &self.admin {
            admin.set_draining();
        }
        let Succession { admin_listeners, successor, systemd, watchdog, .. } = &mut self.succession;
        systemd.disable();
        *watchdog = None;
        admin_listeners.close();
        *successor = Some(channel);
        self.active_config.hand_off();
        // The successor waits for the disks.
        self.disks.release();
        Some(self.drain_deadline())
    }

    /// Resumes serving after the successor ended during the takeover.
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

    /// Closes the channel to the successor when no worker listens any more. The successor then
    /// polls the sockets again.
    pub(super) fn release_successor(&mut self) {
        if self.shared.counters.iter().all(|worker| worker.listeners.get() == 0) {
            self.succession.successor = None;
        }
    }

    /// Takes ownership of the inherited socket files: no other process will use them.
    pub(super) fn take_file_ownership(&mut self) {
        self.active_config.take_file_ownership();
        self.succession.admin_listeners.take_file_ownership();
    }

    /// Undoes a start whose takeover failed. The predecessor continues and owns all socket files
    /// except those of sockets opened here.
    pub(super) fn abort_start(&mut self) {
        self.active_config.abort_takeover();
        let mut deadline = self.drain_deadline();
        while !self.poll_drained(&mut deadline) {
            std::thread::sleep(DRAIN_POLL_INTERVAL);
        }
        self.close_files();
    }
}
