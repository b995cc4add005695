//! The admin addresses' listening sockets: opened before anything runs, and answered by one thread.

use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use millrace_proxy::config::ListenAddress;
use millrace_sys::{Errno, Events, Poller};

use super::stream::Stream;
use super::{Admin, spawn};
use crate::failure::Failure;
use crate::listeners::refused;

/// Permissions of a Unix socket's file: whoever may connect may read the configuration, and is
/// asked who it is before it changes anything.
const UNIX_MODE: u32 = 0o600;
/// Between two tries to accept when the process is out of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Open admin addresses.
#[derive(Default)]
pub(crate) struct Doors(Vec<Door>);

struct Door {
    address: ListenAddress,
    socket: OwnedFd,
}

impl Doors {
    /// Opens all of `addresses`, and writes the ports that the kernel picked into them.
    ///
    /// # Errors
    /// The first address that cannot be listened on, and why.
    pub(crate) fn open(addresses: &mut [ListenAddress]) -> Result<Self, Failure> {
        let mut doors = Self::default();
        for address in addresses {
            let socket = open_one(address).map_err(|error| {
                // What was opened so far has no user yet, but its files would stay behind.
                crate::listeners::remove(&doors.files());
                refused(&*address, error)
            })?;
            doors.0.push(Door { address: address.clone(), socket });
        }
        Ok(doors)
    }

    /// The files of Unix sockets.
    pub(crate) fn files(&self) -> Vec<PathBuf> {
        let path = |door: &Door| match &door.address {
            ListenAddress::Unix(path) => Some(path.clone()),
            ListenAddress::Tcp(_) => None,
        };
        self.0.iter().filter_map(path).collect()
    }

    /// Answers whoever comes, on a thread that lives until the process ends.
    ///
    /// # Errors
    /// When there is no thread or descriptor for that.
    pub(crate) fn attend(self, admin: Arc<Admin>) -> Result<(), Failure> {
        let failed = |error: &dyn std::fmt::Display| {
            Failure::Machine(format!("no thread for the admin address: {error}"))
        };
        let poller = Poller::new().map_err(|error| failed(&error))?;
        for (door, index) in self.0.iter().zip(0..) {
            poller.add_listener(door.socket.as_fd(), index).map_err(|error| failed(&error))?;
        }
        let accept = move || {
            let mut events = Events::new(self.0.len().max(1));
            loop {
                // EINTR is a wait that ends early.
                let _ = poller.wait(&mut events, None);
                for index in 0..events.len() {
                    self.0[events.get(index).0 as usize].accept_all(&admin);
                }
            }
        };
        spawn("admin", accept).map_err(|error| failed(&error))
    }
}

impl Door {
    /// Takes in every connection that waits: readiness is told only once.
    fn accept_all(&self, admin: &Arc<Admin>) {
        loop {
            match millrace_sys::accept(self.socket.as_fd()) {
                Ok((socket, _)) => {
                    let is_unix = matches!(self.address, ListenAddress::Unix(_));
                    if let Ok(stream) = Stream::new(socket, is_unix) {
                        admin.take(stream);
                    }
                }
                Err(Errno::AGAIN) => return,
                Err(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM) => {
                    std::thread::sleep(ACCEPT_PAUSE);
                }
                // The connection broke before it was taken in (accept(2), "Error handling").
                Err(_) => {}
            }
        }
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
