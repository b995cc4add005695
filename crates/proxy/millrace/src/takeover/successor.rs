//! The new process's side of a takeover.

use std::io::{Error, ErrorKind, Read, Result, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::mpsc;
use std::time::Duration;

use millrace_config::{Config, ConfigError, ListenAddress};
use millrace_http1::{HeadScan, HeaderWriter, Http1Header, ResponseHead};

use super::frame::{Frame, FrameKind};
use super::offer::TicketOffer;
use super::{PATH, PROTOCOL, SOCKETS_MAX, STEP_TIMEOUT, TakeoverChannel};
use crate::admin::is_trusted;
use crate::console;
use crate::http::HEAD_LIMITS;
use crate::inherited_sockets::{InheritedSockets, ListeningSocket, SocketPurpose};
use crate::program_error::ProgramError;
use crate::supervisor_requests::{SupervisorHandle, SupervisorRequest};
use crate::systemd::NotifyConfig;
use crate::threads::spawn;

/// Limit of the refusal text that is read.
const REFUSAL_BYTES_MAX: u64 = 4096;

/// A takeover in progress.
pub(crate) struct Takeover {
    channel: TakeoverChannel,
    /// The notification settings of the running process.
    pub(crate) manager: NotifyConfig,
    /// The keys of session tickets of the running process.
    pub(crate) tickets: Option<TicketOffer>,
}

impl Takeover {
    /// Requests the sockets of the process that listens on the configured admin Unix socket and
    /// adds them to `inherited`.
    ///
    /// # Errors
    /// If no process listens there or it refuses. That process continues unchanged.
    pub(crate) fn begin(
        config: &Config,
        inherited: &mut InheritedSockets,
    ) -> std::result::Result<Self, ProgramError> {
        let path = config.admin.iter().find_map(|admin| match &admin.address {
            ListenAddress::Unix(path) => Some(path),
            ListenAddress::Tcp(_) => None,
        });
        let path = path.ok_or_else(|| {
            let wrong = "no admin Unix socket to find the running process";
            let allowed = "admin unix:PATH, the same for both processes";
            ConfigError::rule("--upgrade", wrong, allowed)
        })?;
        let what = format!("cannot take over from the process at unix:{}", path.display());
        let failed = |error: Error| ProgramError::system(&what, error);
        let mut takeover = connect(path).map_err(failed)?;
        let mut count = 0;
        loop {
            let frame = takeover.receive_frame().map_err(failed)?;
            let (purpose, borrowed) = match frame.kind {
                FrameKind::Clients => (SocketPurpose::Clients, false),
                FrameKind::ClientsBorrowed => (SocketPurpose::Clients, true),
                FrameKind::Admin => (SocketPurpose::Admin, false),
                FrameKind::AdminBorrowed => (SocketPurpose::Admin, true),
                FrameKind::NotifyConfig => {
                    takeover.manager =
                        parse_notify_config(&frame.text).ok_or_else(|| failed(malformed()))?;
                    continue;
                }
                FrameKind::TicketKeys => {
                    let offer = TicketOffer::from_bytes(&frame.text);
                    takeover.tickets = Some(offer.ok_or_else(|| failed(malformed()))?);
                    continue;
                }
                FrameKind::OfferEnd if frame.text == count.to_string().as_bytes() => {
                    return Ok(takeover);
                }
                _ => return Err(failed(malformed())),
            };
            count += frame.descriptors.len();
            if count > SOCKETS_MAX {
                return Err(failed(malformed()));
            }
            for fd in frame.descriptors {
                let socket = ListeningSocket { fd, borrowed };
                inherited.add(purpose, socket, "a socket of the running process")?;
            }
        }
    }

    /// Reports that the workers listen, and waits until the running process stops accepting. Then a
    /// thread waits until that process has closed its sockets, and requests the supervisor to poll
    /// them again. The thread is started first, so that nothing can fail after the running process
    /// was notified.
    ///
    /// # Errors
    /// If the running process continues. In that case this process must not serve.
    pub(crate) fn finish(
        mut self,
        supervisor: SupervisorHandle,
    ) -> std::result::Result<(), ProgramError> {
        let failed = |error: Error| ProgramError::System(format!("the takeover failed: {error}"));
        let (sender, channels) = mpsc::channel::<TakeoverChannel>();
        spawn("predecessor", move || {
            if let Ok(mut channel) = channels.recv() {
                channel.wait_for_end();
                supervisor.send(SupervisorRequest::Repoll);
            }
        })?;
        match self.channel.send(FrameKind::Ready, b"", &[], STEP_TIMEOUT) {
            // EPIPE: the peer died or refused. `receive` finds out which: a refusal is its last
            // frame.
            Err(error) if error.kind() != ErrorKind::BrokenPipe => return Err(failed(error)),
            _ => {}
        }
        match self.channel.receive(STEP_TIMEOUT) {
            Ok(Some(frame)) if frame.kind == FrameKind::HandedOver => {}
            // A predecessor that refuses sends a frame. Without one it has died, so only this
            // process can serve.
            Ok(None) => console::log("the previous process ended before it had drained"),
            Ok(Some(frame)) => return Err(failed(refusal(&frame))),
            Err(error) => return Err(failed(error)),
        }
        sender.send(self.channel).expect("the thread waits for the channel");
        Ok(())
    }

    fn receive_frame(&mut self) -> Result<Frame> {
        match self.channel.receive(STEP_TIMEOUT)? {
            Some(frame) if frame.kind == FrameKind::Refused => Err(refusal(&frame)),
            Some(frame) => Ok(frame),
            None => Err(Error::new(ErrorKind::UnexpectedEof, "it has ended")),
        }
    }
}

/// Sends the request and reads the header of the response.
fn connect(path: &Path) -> Result<Takeover> {
    let mut stream = UnixStream::connect(path)?;
    stream.set_read_timeout(Some(STEP_TIMEOUT))?;
    stream.set_write_timeout(Some(STEP_TIMEOUT))?;
    let channel = TakeoverChannel::new(stream.try_clone()?);
    if !channel.peer().is_some_and(is_trusted) {
        return Err(Error::other("it runs as another user (expected: the same user or root)"));
    }
    let mut request = Vec::new();
    let mut header = Http1Header::new(&mut request);
    header.request(b"POST", PATH.as_bytes(), |host| host.extend_from_slice(b"millrace"));
    header.upgrade([PROTOCOL.as_bytes()].into_iter());
    header.end();
    stream.write_all(&request)?;
    let (mut head, mut scan) = (ResponseHead::default(), HeadScan::default());
    let mut received = Vec::new();
    // One byte at a time: descriptors follow the header, and a longer read would lose them.
    while head.parse(&received, &mut scan, &HEAD_LIMITS).map_err(|_| malformed())?.is_none() {
        let mut byte = [0];
        stream.read_exact(&mut byte)?;
        received.push(byte[0]);
    }
    if head.status() == 101 {
        return Ok(Takeover { channel, manager: NotifyConfig::default(), tickets: None });
    }
    let mut message = String::new();
    let _ = stream.take(REFUSAL_BYTES_MAX).read_to_string(&mut message);
    let text: String = message.chars().filter(|character| !character.is_control()).collect();
    Err(Error::other(format!("it responded {}: {text}", head.status())))
}

fn refusal(frame: &Frame) -> Error {
    let message = String::from_utf8_lossy(&frame.text).escape_debug().to_string();
    match frame.kind {
        FrameKind::Refused => Error::other(format!("the running process refuses: {message}")),
        _ => malformed(),
    }
}

fn malformed() -> Error {
    Error::new(ErrorKind::InvalidData, "it sent a message that this version does not support")
}

/// Parses the text of [`FrameKind::NotifyConfig`].
fn parse_notify_config(text: &[u8]) -> Option<NotifyConfig> {
    let space = text.iter().position(|byte| *byte == b' ')?;
    let watchdog_us = std::str::from_utf8(&text[..space]).ok()?.parse().ok()?;
    Some(NotifyConfig {
        notify: text[space + 1..].to_vec(),
        watchdog: Duration::from_micros(watchdog_us),
    })
}
