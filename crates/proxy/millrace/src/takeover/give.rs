//! The running process's side of a takeover, on the thread of the admin connection that asks.

use std::io::{Error, ErrorKind, Result};
use std::sync::mpsc::channel;
use std::time::Duration;

use millrace_sys::DESCRIPTORS_PER_MESSAGE_MAX;

use super::frame::Kind;
use super::{Line, SOCKETS_MAX, START, STEP};
use crate::errands::{Desk, Errand};
use crate::inherited::fds;
use crate::print;

/// Offers everything over `line`, waits until the new process listens, and then leaves `line` to
/// the supervisor, who ends it. Whatever goes wrong before that is said, and changes nothing; then
/// it gives false.
pub(crate) fn give(mut line: Line, desk: &Desk) -> bool {
    let process = line.peer().map_or(0, |peer| peer.process_id);
    print::error(&format!("process {process} takes over"));
    match offer(&line, desk).and_then(|()| wait_until_ready(&mut line)) {
        Ok(()) => {
            desk.ask(Errand::HandOver(line));
            true
        }
        Err(error) => {
            print::error(&format!(
                "process {process} has not taken over: {error}; this one goes on"
            ));
            let why = error.to_string();
            let _ = line.send(Kind::Refused, &why.as_bytes()[..why.len().min(200)], &[], STEP);
            false
        }
    }
}

fn offer(line: &Line, desk: &Desk) -> Result<()> {
    let (sender, offers) = channel();
    desk.ask(Errand::Offer(sender));
    let offer = offers.recv_timeout(STEP);
    let offer = offer.map_err(|_| Error::other("the process is draining, or busy"))??;
    let count = offer.clients.len() + offer.admin.len();
    if count > SOCKETS_MAX {
        return Err(Error::other(format!("{count} sockets are too many; at most {SOCKETS_MAX}")));
    }
    for (sockets, own, borrowed) in [
        (offer.clients, Kind::Clients, Kind::ClientsBorrowed),
        (offer.admin, Kind::Admin, Kind::AdminBorrowed),
    ] {
        let (of_others, of_ours): (Vec<_>, Vec<_>) =
            sockets.into_iter().partition(|socket| socket.borrowed);
        for (kind, sockets) in [(own, of_ours), (borrowed, of_others)] {
            for part in sockets.chunks(DESCRIPTORS_PER_MESSAGE_MAX) {
                line.send(kind, b"", &fds(part), STEP)?;
            }
        }
    }
    let watchdog_us = offer.manager.watchdog.as_micros().to_string();
    let manager = [watchdog_us.as_bytes(), b" ", &offer.manager.notify].concat();
    line.send(Kind::Manager, &manager, &[], STEP)?;
    line.send(Kind::Offered, count.to_string().as_bytes(), &[], STEP)
}

fn wait_until_ready(line: &mut Line) -> Result<()> {
    match line.receive(START)? {
        Some(frame) if frame.kind == Kind::Ready => Ok(()),
        Some(frame) => {
            let said = format!("it said {:?} before it was ready", frame.kind);
            Err(Error::new(ErrorKind::InvalidData, said))
        }
        None => Err(Error::new(ErrorKind::UnexpectedEof, "it has ended")),
    }
}

impl Line {
    /// Tells the new process that all is its own now. It hears nothing more but the end.
    ///
    /// # Errors
    /// When it is gone.
    pub(crate) fn yours(&self) -> Result<()> {
        // It is waiting for just this word, so it takes no time.
        self.send(Kind::Yours, b"", &[], Duration::from_secs(1))
    }
}
