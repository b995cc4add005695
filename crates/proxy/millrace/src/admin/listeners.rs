//! The admin addresses' listening sockets: opened before anything runs, answered by one thread, and
//! left to a successor at one moment.

use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;

use millrace_config::ListenAddress;
use millrace_sys::{Errno, EventFd, Events, Poller};

use super::Admin;
use crate::http::Connection;
use crate::inherited_sockets::{InheritedSockets, ListeningSocket, SocketPurpose};
use crate::program_error::ProgramError;
use crate::threads::spawn;
use crate::{console, listeners};

/// Permissions of a Unix socket's file: whoever may connect may read the configuration, and is
/// asked who it is before it changes anything.
const UNIX_MODE: u32 = 0o600;
/// Between two tries to accept when the process is out of descriptors.
const ACCEPT_PAUSE_MS: u32 = 100;
/// Connections that are taken in before the thread looks whether it is to end.
const ACCEPTED_MAX: u32 = 64;

/// What the thread's poller calls the descriptor that ends it; listeners go by their index.
const STOP: u64 = u64::MAX;

/// Open admin addresses.
#[derive(Default)]
pub(crate) struct AdminListeners {
    listeners: Arc<Vec<AdminListener>>,
    /// Files of Unix sockets that are removed at the end.
    files: Vec<PathBuf>,
    /// Those of inherited sockets: another process may yet go on with them.
    inherited: Vec<PathBuf>,
    thread: Option<AdminThread>,
}

struct AdminListener {
    address: ListenAddress,
    socket: ListeningSocket,
}

/// The thread that answers, what has it begin, and what ends it.
struct AdminThread {
    thread: JoinHandle<()>,
    begin: Sender<()>,
    leave: EventFd,
}

impl AdminListeners {
    /// Opens all of `addresses`, but for those that are `inherited`, and writes the ports that the
    /// kernel picked into them.
    ///
    /// # Errors
    /// The first address that cannot be listened on, and why.
    pub(crate) fn open(
        addresses: &mut [ListenAddress],
        inherited: &mut InheritedSockets,
    ) -> Result<Self, ProgramError> {
        let mut opened = Self::default();
        let mut listeners = Vec::new();
        for address in addresses {
            let (at, mut sockets) = inherited.take(SocketPurpose::Admin, address);
            *address = at;
            let (socket, files) = match sockets.pop() {
                Some(socket) => (socket, &mut opened.inherited),
                None => {
                    let fd = open_one(address);
                    let fd = fd.map_err(|error| listeners::listen_error(&*address, error))?;
                    (ListeningSocket::own(fd), &mut opened.files)
                }
            };
            if let (ListenAddress::Unix(path), false) = (&*address, socket.borrowed) {
                files.push(path.clone());
            }
            listeners.push(AdminListener { address: address.clone(), socket });
        }
        opened.listeners = Arc::new(listeners);
        Ok(opened)
    }

    /// Nobody else goes on with what was inherited: its files are removed at the end, too.
    pub(crate) fn own_files(&mut self) {
        self.files.append(&mut self.inherited);
    }

    /// Each socket once more, for a successor.
    ///
    /// # Errors
    /// When a descriptor cannot be had.
    pub(crate) fn duplicate_sockets(&self) -> std::io::Result<Vec<ListeningSocket>> {
        self.listeners.iter().map(|listener| listener.socket.try_clone()).collect()
    }

    /// Starts the thread that serves connections once [`AdminListeners::serve`] is called.
    ///
    /// # Errors
    /// When there is no thread or descriptor for that.
    pub(crate) fn prepare(&mut self, admin: Arc<Admin>) -> Result<(), ProgramError> {
        if self.listeners.is_empty() {
            return Ok(());
        }
        let failed =
            |error: Errno| ProgramError::system("cannot wait for admin connections", error);
        let poller = Poller::new().map_err(failed)?;
        let leave = EventFd::new().map_err(failed)?;
        poller.add_listener(leave.as_fd(), STOP).map_err(failed)?;
        let (begin, start) = channel();
        let listeners = Arc::clone(&self.listeners);
        let thread = spawn("admin", move || {
            if start.recv().is_ok() {
                accept_connections(&poller, &listeners, &admin);
            }
        })?;
        self.thread = Some(AdminThread { thread, begin, leave });
        Ok(())
    }

    /// Answers whoever comes, until they are left.
    pub(crate) fn serve(&self) {
        if let Some(thread) = &self.thread {
            thread.begin.send(()).expect("a thread that panics ends the process");
        }
    }

    /// Leaves whoever comes from now on to a successor.
    pub(crate) fn leave(&mut self) {
        if let Some(AdminThread { thread, begin, leave }) = self.thread.take() {
            drop(begin);
            leave.signal();
            thread.join().expect("a thread that panics ends the process");
        }
    }

    /// Closes the sockets; what waits there, and the files, is the successor's.
    pub(crate) fn close(&mut self) {
        self.leave();
        self.listeners = Arc::default();
        self.files.clear();
    }
}

impl Drop for AdminListeners {
    fn drop(&mut self) {
        for file in &self.files {
            // One that is already gone is as good.
            let _ = std::fs::remove_file(file);
        }
    }
}

/// Takes connections in until it is told to leave.
fn accept_connections(poller: &Poller, listeners: &[AdminListener], admin: &Arc<Admin>) {
    for (listener, index) in listeners.iter().zip(0..) {
        if let Err(error) = poller.add_listener(listener.socket.fd.as_fd(), index) {
            let error = std::io::Error::from(error);
            console::log(&format!("admin at {}: nobody is answered: {error}", listener.address));
        }
    }
    let mut events = Events::new(listeners.len() + 1);
    let mut wait_ms_max = None;
    loop {
        // EINTR is a wait that ends early.
        let _ = poller.wait(&mut events, wait_ms_max);
        if events.any(|(token, _)| token == STOP) {
            return;
        }
        // Readiness is told only once, so all are tried, and tried again after an error.
        let stuck = listeners.iter().filter(|listener| !listener.accept_all(admin)).count();
        wait_ms_max = (stuck > 0).then_some(ACCEPT_PAUSE_MS);
    }
}

impl AdminListener {
    /// Takes in the connections that wait, up to `ACCEPTED_MAX`. False: one may be left.
    fn accept_all(&self, admin: &Arc<Admin>) -> bool {
        for _ in 0..ACCEPTED_MAX {
            match millrace_sys::accept(self.socket.fd.as_fd()) {
                Ok((socket, _)) => {
                    let is_unix = matches!(self.address, ListenAddress::Unix(_));
                    if let Ok(connection) = Connection::new(socket, is_unix) {
                        admin.handle_connection(connection);
                    }
                }
                Err(Errno::AGAIN) => return true,
                // It broke before it was taken in.
                Err(Errno::CONNABORTED) => {}
                Err(_) => return false,
            }
        }
        false
    }
}

fn open_one(address: &mut ListenAddress) -> Result<OwnedFd, Errno> {
    match address {
        ListenAddress::Tcp(address) => {
            let socket = millrace_sys::listen_tcp(*address, false)?;
            *address = millrace_sys::local_address(socket.as_fd())?.unwrap_or(*address);
            Ok(socket)
        }
        ListenAddress::Unix(path) => millrace_sys::listen_unix(path, UNIX_MODE),
    }
}
