//! The link to the daemon: one connection, which is opened again after it was lost.

use std::io::Write;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use crate::service::connection::{DaemonConnection, Loss};
use crate::service::message::{Refusal, Request, Response};

/// The link to a daemon that may not run, or may end.
#[derive(Debug)]
pub(super) struct DaemonLink {
    /// `None`: there is no daemon.
    path: Option<PathBuf>,
    state: Mutex<LinkState>,
}

#[derive(Debug)]
struct LinkState {
    /// The generation of the process that has opened the connection.
    process: u64,
    connection: Option<DaemonConnection>,
    /// When the daemon is tried next.
    retry_at: Option<Instant>,
    has_reported_loss: bool,
}

/// The time before the daemon is tried again.
const RETRY_AFTER: Duration = Duration::from_secs(1);
/// The time before a daemon is tried again that has not responded.
const RETRY_AFTER_SILENCE: Duration = Duration::from_secs(60);

impl DaemonLink {
    pub(super) fn new(path: Option<&Path>) -> Self {
        Self { path: path.map(Path::to_owned), state: Mutex::new(LinkState::new()) }
    }

    /// Returns whether there may be a daemon.
    pub(super) fn has_path(&self) -> bool {
        self.path.is_some()
    }

    /// Returns whether a request would be sent now: the daemon is connected, or is tried again.
    pub(super) fn may_respond(&self) -> bool {
        let Ok(state) = self.state.try_lock() else { return true };
        let is_due = state.retry_at.is_none_or(|at| Instant::now() >= at);
        self.has_path() && (state.connection.is_some() || is_due)
    }

    /// Sends a request, and waits for the response that `accept` recognizes. Other threads wait
    /// meanwhile.
    ///
    /// # Errors
    /// The refusal of the daemon; `None` without a daemon.
    pub(super) fn request<T>(
        &self,
        request: Request,
        files: &[BorrowedFd<'_>],
        accept: impl FnOnce(Response, Vec<OwnedFd>) -> Option<T>,
    ) -> Result<T, Option<Refusal>> {
        let path = self.path.as_deref().ok_or(None)?;
        let mut state = self.state();
        let connection = state.connect(path)?;
        match connection.request(request, files) {
            Ok((Response::Refused(refusal), _)) => Err(Some(refusal)),
            Ok((response, memory)) => accept(response, memory).ok_or_else(|| {
                state.lose(Loss::Failed("iolited has sent another response".to_owned()))
            }),
            Err(loss) => Err(state.lose(loss)),
        }
    }

    /// Ends the connection, whose daemon has sent something wrong.
    pub(super) fn lose(&self, reason: String) {
        self.state().lose(Loss::Failed(reason));
    }

    fn state(&self) -> MutexGuard<'_, LinkState> {
        let mut state = self.state.lock().expect("no holder of this lock panics");
        if state.process != millrace_sys::process_generation() {
            // The connection of the parent is not shared.
            *state = LinkState::new();
        }
        state
    }
}

impl LinkState {
    fn new() -> Self {
        let process = millrace_sys::process_generation();
        Self { process, connection: None, retry_at: None, has_reported_loss: false }
    }

    /// Returns the connection, which it opens if there is none.
    fn connect(&mut self, path: &Path) -> Result<&mut DaemonConnection, Option<Refusal>> {
        if self.connection.is_none() {
            if self.retry_at.is_some_and(|at| Instant::now() < at) {
                return Err(None);
            }
            match DaemonConnection::open(path) {
                Ok(connection) => self.connection = Some(connection),
                Err(loss) => return Err(self.lose(loss)),
            }
        }
        self.connection.as_mut().ok_or(None)
    }

    /// Ends the connection, and reports that once if it is a failure. Returns the refusal if it is
    /// one.
    fn lose(&mut self, loss: Loss) -> Option<Refusal> {
        self.connection = None;
        let after = if let Loss::Silent = loss { RETRY_AFTER_SILENCE } else { RETRY_AFTER };
        self.retry_at = Some(Instant::now() + after);
        let reason = match loss {
            Loss::NotThere => return None,
            Loss::Refused(refusal) => return Some(refusal),
            Loss::Silent => "iolited does not respond".to_owned(),
            Loss::Failed(reason) => reason,
        };
        if !std::mem::replace(&mut self.has_reported_loss, true) {
            // The program goes on if nothing reads its standard error.
            let _ = writeln!(
                std::io::stderr(),
                "iolite: files are copied by the kernel from now on: {reason}"
            );
        }
        None
    }
}
