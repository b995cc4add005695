//! Listening sockets that were open before this process was: of the process that it succeeds, or of
//! the service manager that started it.

use std::collections::{BTreeSet, HashSet};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use millrace_config::{Config, ListenAddress};
use millrace_sys::BoundAddress;

use crate::console;
use crate::program_error::ProgramError;

/// A listening socket, and who removes its file if it has one.
pub(crate) struct ListeningSocket {
    pub(crate) fd: OwnedFd,
    /// Somebody outside, a service manager, keeps it open and owns its file.
    pub(crate) borrowed: bool,
}

impl ListeningSocket {
    /// One that this process opened.
    pub(crate) fn own(fd: OwnedFd) -> Self {
        Self { fd, borrowed: false }
    }

    /// Another descriptor of the same socket.
    pub(crate) fn try_clone(&self) -> std::io::Result<Self> {
        Ok(Self { fd: self.fd.try_clone()?, borrowed: self.borrowed })
    }
}

/// What a socket was for, where that is known.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum SocketPurpose {
    /// Clients.
    Clients,
    /// An admin address.
    Admin,
    /// Whatever is configured at its address.
    Any,
}

/// Sockets that nobody has taken yet.
#[derive(Default)]
pub(crate) struct InheritedSockets {
    sockets: Vec<(SocketPurpose, ListenAddress, ListeningSocket)>,
    /// Every address that the configuration names: port 0 does not stand for one of these.
    configured: HashSet<ListenAddress>,
}

impl InheritedSockets {
    /// None yet, for a process of this configuration.
    pub(crate) fn new(config: &Config) -> Self {
        let listeners = config.listeners.iter().map(|listener| &listener.address);
        let named = listeners.chain(&config.admin).cloned().collect();
        Self { sockets: Vec::new(), configured: named }
    }

    /// Adds what `from` (in words) gave.
    ///
    /// # Errors
    /// When it is nothing that can be listened on.
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
                return Err(refused(format!("nothing can be configured to listen on @{name}")));
            }
            Ok(None) => return Err(refused("it is not a stream socket that listens".to_owned())),
            Err(error) => return Err(refused(std::io::Error::from(error).to_string())),
        };
        millrace_sys::prepare_listener(socket.fd.as_fd())
            .map_err(|error| refused(std::io::Error::from(error).to_string()))?;
        self.sockets.push((purpose, address, socket));
        Ok(())
    }

    /// The sockets that listen at `address`, several where the port was shared by SO_REUSEPORT; and
    /// where that is, which `address` need not say of port 0: it takes whatever port there is that
    /// the configuration does not name. Empty if there are none.
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

    /// What is left once everything that is configured is open. Of a running process it is closed,
    /// which that one drains; of a service manager it is a mistake, for clients may connect there.
    ///
    /// # Errors
    /// The first such mistake.
    pub(crate) fn check_unused(&self) -> Result<(), ProgramError> {
        // Each worker may have had a socket of its own at one address.
        let mut unused = BTreeSet::new();
        for (purpose, address) in self.left() {
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

    /// Where sockets listen that were not taken.
    fn left(&self) -> impl Iterator<Item = (SocketPurpose, &ListenAddress)> {
        self.sockets.iter().map(|(purpose, address, _)| (*purpose, address))
    }
}

/// The sockets of one address for each of `workers`. None is left out, for there may be clients in
/// the queue behind it: with fewer workers than sockets, a worker gets several; with more, several
/// workers share one. Further sockets are not opened: if the takeover fails, their queues are lost.
///
/// # Errors
/// When a descriptor cannot be had.
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

/// Borrowed descriptors of sockets.
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
    fn sockets_are_found_by_their_address_and_port_0_takes_what_nobody_names() {
        let (named, one) = listen("127.0.0.1:0");
        let (other, two) = listen("127.0.0.1:0");
        let words = format!("forward --workers 1 --listen 127.0.0.1:0 --listen {named}");
        let config = config::from_arguments(words.split(' ')).unwrap();
        let mut inherited = InheritedSockets::new(&config);
        inherited.add(SocketPurpose::Clients, ListeningSocket::own(one), "a test").unwrap();
        inherited.add(SocketPurpose::Clients, ListeningSocket::own(two), "a test").unwrap();
        let any = ListenAddress::Tcp("127.0.0.1:0".parse().unwrap());
        assert!(inherited.take(SocketPurpose::Admin, &any).1.is_empty());
        let (found, sockets) = inherited.take(SocketPurpose::Clients, &any);
        assert_eq!((found, sockets.len()), (other, 1));
        assert!(inherited.take(SocketPurpose::Clients, &any).1.is_empty());
        assert_eq!(inherited.left().collect::<Vec<_>>(), [(SocketPurpose::Clients, &named)]);
        assert_eq!(inherited.take(SocketPurpose::Clients, &named).1.len(), 1);
        let (pair, _other) = std::os::unix::net::UnixStream::pair().unwrap();
        assert!(
            inherited.add(SocketPurpose::Any, ListeningSocket::own(pair.into()), "a test").is_err()
        );
    }

    #[test]
    fn no_socket_is_left_out_and_no_worker_goes_without() {
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
