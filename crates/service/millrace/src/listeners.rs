//! Opens what clients connect to, before any worker runs.

use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use millrace_proxy::config::{ListenAddress, Listener};
use millrace_sys::Errno;

use crate::failure::Failure;

/// Permissions of a Unix socket's file: whoever can reach its folder may connect.
const UNIX_MODE: u32 = 0o666;

/// Open listeners: for each one of the configuration, a socket for each worker.
pub(crate) struct Listeners {
    /// Of each worker: (index of the listener in the configuration, its socket).
    pub(crate) of_workers: Vec<Vec<(usize, OwnedFd)>>,
    /// Where each listens, with the port that the kernel picked for port 0.
    pub(crate) addresses: Vec<ListenAddress>,
}

impl Listeners {
    /// Opens all of them for so many workers.
    ///
    /// # Errors
    /// The first address that cannot be listened on, and why.
    pub(crate) fn open(listeners: &[Listener], workers: usize) -> Result<Self, Failure> {
        let mut opened =
            Self { of_workers: (0..workers).map(|_| Vec::new()).collect(), addresses: Vec::new() };
        for (index, listener) in listeners.iter().enumerate() {
            let sockets = opened.open_one(&listener.address, workers).map_err(|error| {
                // What was opened so far has no user yet, but its files would stay behind.
                opened.remove_files();
                refused(&listener.address, error)
            })?;
            for (of_worker, socket) in opened.of_workers.iter_mut().zip(sockets) {
                of_worker.push((index, socket));
            }
        }
        Ok(opened)
    }

    fn open_one(&mut self, address: &ListenAddress, workers: usize) -> Result<Vec<OwnedFd>, Errno> {
        match address {
            ListenAddress::Tcp(address) => {
                let (sockets, bound) = open_tcp(*address, workers)?;
                self.addresses.push(ListenAddress::Tcp(bound));
                Ok(sockets)
            }
            ListenAddress::Unix(path) => {
                let sockets = open_unix(path, workers)?;
                self.addresses.push(address.clone());
                Ok(sockets)
            }
        }
    }

    /// The files of Unix sockets.
    pub(crate) fn files(&self) -> Vec<PathBuf> {
        let path = |address: &ListenAddress| match address {
            ListenAddress::Unix(path) => Some(path.clone()),
            ListenAddress::Tcp(_) => None,
        };
        self.addresses.iter().filter_map(path).collect()
    }

    fn remove_files(&self) {
        remove(&self.files());
    }
}

/// Removes the files of Unix sockets; one that is already gone is as good.
pub(crate) fn remove(files: &[PathBuf]) {
    for file in files {
        let _ = std::fs::remove_file(file);
    }
}

/// One socket a worker, at one port: the kernel spreads the clients (SO_REUSEPORT).
fn open_tcp(address: SocketAddr, workers: usize) -> Result<(Vec<OwnedFd>, SocketAddr), Errno> {
    let is_shared = workers > 1;
    if is_shared && address.port() != 0 {
        // Two processes of one user could share the port unawares, and split its clients. A socket
        // that does not share finds out whether anybody is there.
        drop(millrace_sys::listen_tcp(address, false)?);
    }
    let first = millrace_sys::listen_tcp(address, is_shared)?;
    let bound = millrace_sys::local_address(first.as_fd())?.unwrap_or(address);
    let mut sockets = vec![first];
    while sockets.len() < workers {
        sockets.push(millrace_sys::listen_tcp(bound, true)?);
    }
    Ok((sockets, bound))
}

/// One socket that all workers share: Unix sockets have no SO_REUSEPORT.
fn open_unix(path: &Path, workers: usize) -> Result<Vec<OwnedFd>, Errno> {
    let first = millrace_sys::listen_unix(path, UNIX_MODE)?;
    let mut sockets = vec![first];
    while sockets.len() < workers {
        let copy = sockets[0].try_clone();
        sockets.push(copy.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?);
    }
    Ok(sockets)
}

/// The failure of an address, told so that it can be mended.
pub(crate) fn refused(address: &impl std::fmt::Display, error: Errno) -> Failure {
    let word = match error {
        Errno::ADDRINUSE => "somebody else listens there".to_owned(),
        Errno::ACCESS => "not permitted (ports below 1024 need CAP_NET_BIND_SERVICE)".to_owned(),
        Errno::ADDRNOTAVAIL => "this machine has no such address".to_owned(),
        Errno::NOENT => "its folder does not exist".to_owned(),
        _ => std::io::Error::from(error).to_string(),
    };
    Failure::Machine(format!("cannot listen on {address}: {word}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listener(address: &str) -> Listener {
        let words = ["forward", "--listen", address];
        millrace_proxy::config::from_arguments(words).unwrap().listeners.remove(0)
    }

    #[test]
    fn every_worker_has_a_socket_at_the_port_that_was_picked() {
        let opened = Listeners::open(&[listener("127.0.0.1:0")], 3).unwrap();
        let ListenAddress::Tcp(picked) = opened.addresses[0] else { panic!("TCP was asked for") };
        for sockets in &opened.of_workers {
            let [(0, socket)] = sockets.as_slice() else { panic!("one socket each") };
            assert_eq!(millrace_sys::local_address(socket.as_fd()).unwrap(), Some(picked));
        }
        for workers in [1, 2] {
            let taken = Listeners::open(&[listener(&picked.to_string())], workers);
            let message = taken.err().unwrap().to_string();
            assert_eq!(message, format!("cannot listen on {picked}: somebody else listens there"));
        }
    }

    #[test]
    fn a_failed_start_leaves_no_socket_file() {
        let file = std::env::temp_dir().join(format!("millrace-{}.sock", std::process::id()));
        let unix = listener(&format!("unix:{}", file.display()));
        let nowhere = listener("unix:/nowhere/to/be/found");
        assert!(Listeners::open(&[unix.clone(), nowhere], 2).is_err());
        assert!(!file.exists());
        let opened = Listeners::open(&[unix], 2).unwrap();
        assert_eq!((opened.files(), opened.of_workers.len()), (vec![file.clone()], 2));
        opened.remove_files();
        assert!(!file.exists());
    }
}
