//! The running process's side of a takeover. It runs on the thread of the admin connection.

use std::io::{Error, ErrorKind, Result};
use std::sync::mpsc;
use std::time::Duration;

use millrace_sys::DESCRIPTORS_PER_MESSAGE_MAX;

use super::frame::FrameKind;
use super::{SOCKETS_MAX, START_TIMEOUT, STEP_TIMEOUT, TakeoverChannel};
use crate::console;
use crate::inherited_sockets::fds;
use crate::supervisor_requests::{SupervisorHandle, SupervisorRequest};

/// Offers everything over `channel`, waits until the new process listens, and passes `channel` to
/// the supervisor, which completes the takeover. Returns false if a step failed. In that case this
/// process continues unchanged, and the new process gets the reason.
pub(crate) fn offer_takeover(mut channel: TakeoverChannel, supervisor: &SupervisorHandle) -> bool {
    let process = channel.peer().map_or(0, |peer| peer.process_id);
    console::log(&format!("process {process} is taking over"));
    match send_offer(&channel, supervisor).and_then(|()| wait_until_ready(&mut channel)) {
        Ok(()) => {
            supervisor.send(SupervisorRequest::HandOver(channel));
            true
        }
        Err(error) => {
            console::log(&format!(
                "takeover by process {process} failed: {error}; this process continues"
            ));
            let why = error.to_string();
            let _ = channel.send(
                FrameKind::Refused,
                &why.as_bytes()[..why.len().min(200)],
                &[],
                STEP_TIMEOUT,
            );
            false
        }
    }
}

fn send_offer(channel: &TakeoverChannel, supervisor: &SupervisorHandle) -> Result<()> {
    let (sender, offers) = mpsc::channel();
    supervisor.send(SupervisorRequest::CollectOffer(sender));
    let offer = offers.recv_timeout(STEP_TIMEOUT);
    let offer = offer.map_err(|_| Error::other("the process is draining or busy"))??;
    let count = offer.clients.len() + offer.admin.len();
    if count > SOCKETS_MAX {
        return Err(Error::other(format!(
            "too many sockets: {count} (expected: at most {SOCKETS_MAX})"
        )));
    }
    for (sockets, own, borrowed) in [
        (offer.clients, FrameKind::Clients, FrameKind::ClientsBorrowed),
        (offer.admin, FrameKind::Admin, FrameKind::AdminBorrowed),
    ] {
        let (of_others, of_ours): (Vec<_>, Vec<_>) =
            sockets.into_iter().partition(|socket| socket.borrowed);
        for (kind, sockets) in [(own, of_ours), (borrowed, of_others)] {
            for part in sockets.chunks(DESCRIPTORS_PER_MESSAGE_MAX) {
                channel.send(kind, b"", &fds(part), STEP_TIMEOUT)?;
            }
        }
    }
    let watchdog_us = offer.notify.watchdog.as_micros().to_string();
    let manager = [watchdog_us.as_bytes(), b" ", &offer.notify.notify].concat();
    channel.send(FrameKind::NotifyConfig, &manager, &[], STEP_TIMEOUT)?;
    channel.send(FrameKind::TicketKeys, &offer.tickets.to_bytes(), &[], STEP_TIMEOUT)?;
    channel.send(FrameKind::OfferEnd, count.to_string().as_bytes(), &[], STEP_TIMEOUT)
}

fn wait_until_ready(channel: &mut TakeoverChannel) -> Result<()> {
    match channel.receive(START_TIMEOUT)? {
        Some(frame) if frame.kind == FrameKind::Ready => Ok(()),
        Some(frame) => {
            let text = format!("unexpected frame {:?} (expected: Ready)", frame.kind);
            Err(Error::new(ErrorKind::InvalidData, text))
        }
        None => Err(Error::new(ErrorKind::UnexpectedEof, "it has ended")),
    }
}

impl TakeoverChannel {
    /// Notifies the new process that it owns everything. No other frame follows.
    ///
    /// # Errors
    /// If the process is gone.
    pub(crate) fn send_handed_over(&self) -> Result<()> {
        // The new process waits for this frame, so sending does not block.
        self.send(FrameKind::HandedOver, b"", &[], Duration::from_secs(1))
    }
}
