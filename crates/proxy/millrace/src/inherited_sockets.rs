//! Listening sockets inherited from the predecessor or from the service manager.

use std::collections::{BTreeSet, HashSet};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use millrace_config::{Config, ListenAddress};
use millrace_sys::BoundAddress;

use crate::console;
use crate::program_error::ProgramError;

/// A listening socket.
pub(crate) struct ListeningSocket {
    pub(crate) fd: OwnedFd,
    /// Whether a service manager keeps the socket open and owns its file.
    pub(crate) borrowed: bool,
}

impl ListeningSocket {
    /// Wraps a socket that this process opened.
    pub(crate) fn own(fd: OwnedFd) -> Self {
        Self { fd, borrowed: false }
    }

    /// Duplicates the descriptor of the socket.
    pub(crate) fn try_clone(&self) -> std::io::Result<Self> {
        Ok(Self { fd: self.fd.try_clone()?, borrowed: self.borrowed })
    }
}

/// The purpose of an inherited socket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum SocketPurpose {
    /// It accepts clients.
    Clients,
    /// It is an admin address.
    Admin,
    /// The configuration decides: the socket serves what is configured at its address.
    Any,
}

/// Inherited sockets that are not used yet.
#[derive(Default)]
pub(crate) struct InheritedSockets {
    sockets: Vec<(SocketPurpose, ListenAddress, ListeningSocket)>,
    /// Every configured address. A configured port 0 matches a socket with any port, except the
    /// sockets at these addresses.
    configured: HashSet<ListenAddress>,
}

impl InheritedSockets {
    /// Creates an empty set for a process with this configuration.
    pub(crate) fn new(config: &Config) -> Self {
        let listeners = config.listeners.iter().map(|listener| &listener.address);
        let admin = config.admin.iter().map(|admin| &admin.address);
        let named = listeners.chain(admin).cloned().collect();
        Self { sockets: Vec::new(), configured: named }
    }

    /// Adds a socket. `from` describes its source in an error.
    ///
    /// # Errors
    /// If it is not a listening stream socket whose address can be configured.
    pub(crate) fn add(
        &mut self,
        purpose: SocketPurpose,
        socket: ListeningSocket,
        from: &str,
    ) -> Result<(), ProgramError> {
        let refused = |why: String| ProgramError::System(format!("{from}: {why}"));
        let address = match millrace_sys::listening_address(socket.fd.as_fd()) {
            Ok(Some(BoundAddress::Tcp(address))) => ListenAddress::Tcp(address),
            Ok(Some(BoundAddress::Unix(path))) => ListenAddress::Unix(path),
            Ok(Some(BoundAddress::Abstract(name))) => {
                let name = String::from_utf8_lossy(&name).escape_debug().to_string();
                return Err(refused(format!(
                    "abstract Unix socket @{name} (expected: a TCP socket or a Unix socket with a path)"
                )));
            }
            Ok(None) => return Err(refused("not a listening stream socket".to_owned())),
            Err(error) => return Err(refused(std::io::Error::from(error).to_string())),
        };
        millrace_sys::prepare_listener(socket.fd.as_fd())
            .map_err(|error| refused(std::io::Error::from(error).to_string()))?;
        self.sockets.push((purpose, address, socket));
        Ok(())
    }

    /// Takes the sockets at `address`. There are several if workers shared a port by SO_REUSEPORT.
    /// Returns the address as well: port 0 matches any port that is not configured. The list is
    /// empty if there is no socket.
    pub(crate) fn take(
        &mut self,
        purpose: SocketPurpose,
        address: &ListenAddress,
    ) -> (ListenAddress, Vec<ListeningSocket>) {
        let is_for = |of: SocketPurpose| of == purpose || of == SocketPurpose::Any;
        let is_like = |at: &ListenAddress| match (address, at) {
            (ListenAddress::Tcp(wanted), ListenAddress::Tcp(at)) => {
                wanted.port() == 0 && wanted.ip() == at.ip()
            }
            _ => false,
        };
        let mut any = self.sockets.iter().filter(|(of, at, _)| {
            is_for(*of) && (at == address || (is_like(at) && !self.configured.contains(at)))
        });
        let Some(found) = any.next().map(|(_, at, _)| at.clone()) else {
            return (address.clone(), Vec::new());
        };
        let is_it = |entry: &mut (SocketPurpose, ListenAddress, ListeningSocket)| {
            is_for(entry.0) && entry.1 == found
        };
        let sockets = self.sockets.extract_if(.., is_it).map(|(_, _, socket)| socket).collect();
        (found, sockets)
    }

    /// Checks the sockets that are not used after all configured addresses are open. Logs the
    /// addresses of the predecessor on which nothing will listen. A socket of the service manager
    /// is an error, because clients may connect to it.
    ///
    /// # Errors
    /// The first unused socket of the service manager.
    pub(crate) fn check_unused(&self) -> Result<(), ProgramError> {
        // Several workers may have had a socket at the same address.
        let mut unused = BTreeSet::new();
        for (purpose, address) in self.unused_sockets() {
            if purpose == SocketPurpose::Any {
                return Err(ProgramError::System(format!(
                    "the service manager passes a socket at {address}, and nothing is configured \
                     to listen there"
                )));
            }
            unused.insert(address.to_string());
        }
        for address in unused {
            console::log(&format!("no longer listening on {address}"));
        }
        Ok(())
    }

    /// Returns the purposes and addresses of the unused sockets.
    fn unused_sockets(&self) -> impl Iterator<Item = (SocketPurpose, &ListenAddress)> {
        self.sockets.iter().map(|(purpose, address, _)| (*purpose, address))
    }
}

/// Distributes the sockets of one address over `workers`. Every socket is assigned, because clients
/// may wait in its queue: with fewer workers than sockets, a worker gets several; with more,
/// several workers share one. No further sockets are opened, because clients in their queues would
/// be lost if the takeover failed.
///
/// # Errors
/// If a descriptor cannot be duplicated.
pub(crate) fn distribute(
    sockets: Vec<OwnedFd>,
    workers: usize,
) -> std::io::Result<Vec<Vec<OwnedFd>>> {
    assert!(!sockets.is_empty() && workers > 0);
    let mut of_workers: Vec<Vec<OwnedFd>> = (0..workers).map(|_| Vec::new()).collect();
    let count = sockets.len();
    for (index, socket) in sockets.into_iter().enumerate() {
        of_workers[index % workers].push(socket);
    }
    for worker in count..workers {
        let socket = of_workers[worker % count][0].try_clone()?;
        of_workers[worker].push(socket);
    }
    Ok(of_workers)
}

/// Borrows the descriptors of sockets.
pub(crate) fn fds(sockets: &[ListeningSocket]) -> Vec<BorrowedFd<'_>> {
    sockets.iter().map(|socket| socket.fd.as_fd()).collect()
}

#[cfg(test)]
mod tests {
    use millrace_config as config;

    use super::*;

    fn listen(address: &str) -> (ListenAddress, OwnedFd) {
        let fd = millrace_sys::listen_tcp(address.parse().unwrap(), true).unwrap();
        let bound = millrace_sys::local_address(fd.as_fd()).unwrap().unwrap();
        (ListenAddress::Tcp(bound), fd)
    }

    #[test]
    fn sockets_are_found_by_address_and_port_0_takes_one_that_is_not_configured() {
        let (named, one) = listen("127.0.0.1:0");
        let (other, two) = listen("127.0.0.1:0");
        let arguments = format!("forward --workers 1 --listen 127.0.0.1:0 --listen {named}");
        let config = config::from_arguments(arguments.split(' ')).unwrap();
        let mut inherited = InheritedSockets::new(&config);
        inherited.add(SocketPurpose::Clients, ListeningSocket::own(one), "a test").unwrap();
        inherited.add(SocketPurpose::Clients, ListeningSocket::own(two), "a test").unwrap();
        let any = ListenAddress::Tcp("127.0.0.1:0".parse().unwrap());
        assert!(inherited.take(SocketPurpose::Admin, &any).1.is_empty());
        let (found, sockets) = inherited.take(SocketPurpose::Clients, &any);
        assert_eq!((found, sockets.len()), (other, 1));
        assert!(inherited.take(SocketPurpose::Clients, &any).1.is_empty());
        assert_eq!(
            inherited.unused_sockets().collect::<Vec<_>>(),
            [(SocketPurpose::Clients, &named)]
        );
        assert_eq!(inherited.take(SocketPurpose::Clients, &named).1.len(), 1);
        let (pair, _other) = std::os::unix::net::UnixStream::pair().unwrap();
        assert!(
            inherited.add(SocketPurpose::Any, ListeningSocket::own(pair.into()), "a test").is_err()
        );
    }

    #[test]
    fn every_socket_and_every_worker_is_used() {
        let counts = |sockets: usize, workers| {
            let sockets = (0..sockets).map(|_| listen("127.0.0.1:0").1).collect();
            distribute(sockets, workers).unwrap().iter().map(Vec::len).collect::<Vec<_>>()
        };
        assert_eq!(counts(5, 2), [3, 2]);
        assert_eq!(counts(2, 2), [1, 1]);
        assert_eq!(counts(1, 3), [1, 1, 1]);
        assert_eq!(counts(2, 3), [1, 1, 1]);
    }
}
