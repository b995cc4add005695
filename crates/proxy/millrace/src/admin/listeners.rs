//! The listening sockets of the admin addresses. They are opened before the workers start. One
//! thread accepts, and a takeover stops it before the successor starts to accept.

use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;

use millrace_config::{AdminAddress, ListenAddress};
use millrace_sys::{Errno, EventFd, Events, Poller};

use super::Admin;
use crate::http::Connection;
use crate::inherited_sockets::{InheritedSockets, ListeningSocket, SocketPurpose};
use crate::program_error::ProgramError;
use crate::threads::spawn;
use crate::{console, listeners};

/// Permissions of a Unix socket file: only its owner and root may connect. Requests for private
/// pages or changes also require that the connecting process has the same user or is root.
const UNIX_MODE: u32 = 0o600;
/// Time between attempts to accept while the process has no free descriptor.
const ACCEPT_PAUSE_MS: u32 = 100;
/// Connections accepted in a row before the thread checks for the stop event.
const ACCEPTED_MAX: u32 = 64;

/// The poller token of the descriptor that ends the thread. The tokens of listeners are indices.
const STOP: u64 = u64::MAX;

/// The open admin addresses.
#[derive(Default)]
pub(crate) struct AdminListeners {
    listeners: Arc<Vec<AdminListener>>,
    /// Socket files to remove at the end.
    files: Vec<PathBuf>,
    /// Files of inherited sockets. Until the takeover is complete, the predecessor may continue to
    /// use them.
    inherited: Vec<PathBuf>,
    thread: Option<AdminThread>,
}

struct AdminListener {
    address: AdminAddress,
    socket: ListeningSocket,
}

/// The accepting thread, with the channel that starts it and the event that ends it.
struct AdminThread {
    thread: JoinHandle<()>,
    begin: Sender<()>,
    stop: EventFd,
}

impl AdminListeners {
    /// Opens all `addresses` that are not `inherited`, and replaces port 0 by the port that the
    /// kernel chose.
    ///
    /// # Errors
    /// The first address that cannot be opened, and why.
    pub(crate) fn open(
        addresses: &mut [AdminAddress],
        inherited: &mut InheritedSockets,
    ) -> Result<Self, ProgramError> {
        let mut opened = Self::default();
        let mut listeners = Vec::new();
        for admin in addresses {
            let address = &mut admin.address;
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
            listeners.push(AdminListener { address: admin.clone(), socket });
        }
        opened.listeners = Arc::new(listeners);
        Ok(opened)
    }

    /// Takes ownership of the inherited socket files, so that they are removed at the end.
    pub(crate) fn take_file_ownership(&mut self) {
        self.files.append(&mut self.inherited);
    }

    /// Duplicates each socket for a successor.
    ///
    /// # Errors
    /// If no descriptor is free.
    pub(crate) fn duplicate_sockets(&self) -> std::io::Result<Vec<ListeningSocket>> {
        self.listeners.iter().map(|listener| listener.socket.try_clone()).collect()
    }

    /// Starts the thread, which accepts after [`AdminListeners::serve`].
    ///
    /// # Errors
    /// If the thread or a descriptor cannot be created.
    pub(crate) fn prepare(&mut self, admin: Arc<Admin>) -> Result<(), ProgramError> {
        if self.listeners.is_empty() {
            return Ok(());
        }
        let failed =
            |error: Errno| ProgramError::system("cannot poll for admin connections", error);
        let poller = Poller::new().map_err(failed)?;
        let stop = EventFd::new().map_err(failed)?;
        poller.add_listener(stop.as_fd(), STOP).map_err(failed)?;
        let (begin, start) = channel();
        let listeners = Arc::clone(&self.listeners);
        let thread = spawn("admin", move || {
            if start.recv().is_ok() {
                accept_connections(&poller, &listeners, &admin);
            }
        })?;
        self.thread = Some(AdminThread { thread, begin, stop });
        Ok(())
    }

    /// Starts accepting.
    pub(crate) fn serve(&self) {
        if let Some(thread) = &self.thread {
            thread.begin.send(()).expect("a thread that panics ends the process");
        }
    }

    /// Stops accepting. New connections wait in the queues for the successor.
    pub(crate) fn stop_accepting(&mut self) {
        if let Some(AdminThread { thread, begin, stop }) = self.thread.take() {
            drop(begin);
            stop.signal();
            thread.join().expect("a thread that panics ends the process");
        }
    }

    /// Closes the sockets. Their queues and files belong to the successor.
    pub(crate) fn close(&mut self) {
        self.stop_accepting();
        self.listeners = Arc::default();
        self.files.clear();
    }
}

impl Drop for AdminListeners {
    fn drop(&mut self) {
        for file in &self.files {
            // An error means that the file is gone already.
            let _ = std::fs::remove_file(file);
        }
    }
}

/// Accepts connections until the stop event.
fn accept_connections(poller: &Poller, listeners: &[AdminListener], admin: &Arc<Admin>) {
    for (listener, index) in listeners.iter().zip(0..) {
        if let Err(error) = poller.add_listener(listener.socket.fd.as_fd(), index) {
            let error = std::io::Error::from(error);
            console::log(&format!(
                "cannot accept admin connections at {}: {error}",
                listener.address
            ));
        }
    }
    let mut events = Events::new(listeners.len() + 1);
    let mut wait_ms_max = None;
    loop {
        // EINTR only ends the wait early.
        let _ = poller.wait(&mut events, wait_ms_max);
        if events.any(|(token, _)| token == STOP) {
            return;
        }
        // The poller is edge-triggered, so a listener with waiting connections causes no further
        // event. Every listener is tried, and tried again after a pause if a connection may be
        // left.
        let unfinished = listeners.iter().filter(|listener| !listener.accept_all(admin)).count();
        wait_ms_max = (unfinished > 0).then_some(ACCEPT_PAUSE_MS);
    }
}

impl AdminListener {
    /// Accepts up to `ACCEPTED_MAX` waiting connections. Returns false if one may be left.
    fn accept_all(&self, admin: &Arc<Admin>) -> bool {
        for _ in 0..ACCEPTED_MAX {
            match millrace_sys::accept(self.socket.fd.as_fd()) {
                Ok((socket, _)) => {
                    let is_unix = matches!(self.address.address, ListenAddress::Unix(_));
                    if let Ok(connection) = Connection::new(socket, is_unix) {
                        admin.handle_connection(connection, self.address.tls);
                    }
                }
                Err(Errno::AGAIN) => return true,
                // The client closed the connection before it was accepted.
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
