//! Opens the listening sockets for clients and keeps them open while the process accepts clients.
//!
//! This module and the worker that accepts from a socket each hold a descriptor of it, so that the
//! replacement of a panicked worker finds the connections in its queue. When a listener leaves the
//! configuration or the process drains, this module closes its descriptor first. The socket then
//! ends when the worker has accepted what was queued.

use std::collections::HashSet;
use std::fs::File;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

use millrace_config::{Config, ListenAddress, Listener};
use millrace_sys::Errno;

use crate::inherited_sockets::{InheritedSockets, ListeningSocket, SocketPurpose, distribute};
use crate::program_error::ProgramError;

/// Permissions of a Unix socket file: any user who can reach its folder may connect.
const UNIX_MODE: u32 = 0o666;
/// Time that workers may keep a socket of a removed listener. They close it when no connection
/// arrived for a tenth of a second, or after one second.
pub(crate) const REMOVED_CLOSE_MAX: Duration = Duration::from_secs(2);
/// Time after the start in which an address that is in use is tried again. It may belong to a
/// process that was killed: the kernel closes listeners watched by io_uring only after that process
/// has exited, when the service manager may already have started this one. With thousands of
/// connections that takes tens of milliseconds; this value covers a hundred thousand.
const KILLED_CLOSE_MAX: Duration = Duration::from_secs(2);
/// Interval between attempts to listen on an address that may become free.
pub(crate) const RETRY_INTERVAL: Duration = Duration::from_millis(20);

/// Sockets with the numbers of their listeners.
pub(crate) type Sockets = Vec<(u16, OwnedFd)>;

/// The listeners of the process, each with a socket for each worker.
pub(crate) struct Listeners {
    workers: usize,
    /// The start of the process; `None` after the first configuration is open.
    start: Option<Instant>,
    /// Inherited sockets that are not used yet.
    inherited: InheritedSockets,
    open: Vec<OpenListener>,
    /// The address for each number assigned so far, and the count of earlier listeners with the
    /// same address: with port 0 there may be several.
    numbers: Vec<(ListenAddress, usize)>,
    /// Removed addresses, also those of acme-http, and when they were removed.
    removed: Vec<(ListenAddress, Instant)>,
    /// The addresses of acme-http, which other sockets of this process have.
    acme_http: Vec<SocketAddr>,
}

struct OpenListener {
    number: u16,
    /// With the port that the kernel chose.
    address: ListenAddress,
    /// For each worker at least one.
    sockets: Vec<Vec<OwnedFd>>,
    /// Whether a service manager keeps the sockets open and owns the file.
    borrowed: bool,
    /// Whether this process removes the file of a Unix socket.
    owns_file: bool,
}

/// A prepared change from one configuration to another.
pub(crate) struct ListenerChange {
    opened: Vec<OpenListener>,
    /// The numbers of the listeners to remove.
    removed: Vec<u16>,
    /// For each worker the duplicates of the opened sockets.
    of_workers: Vec<Sockets>,
}

impl ListenerChange {
    /// Returns the new listening addresses.
    pub(crate) fn opened(&self) -> impl Iterator<Item = &ListenAddress> {
        self.opened.iter().map(|open| &open.address)
    }

    /// Removes the files of the opened sockets, and drops the change.
    pub(crate) fn undo(self) {
        self.opened.iter().for_each(OpenListener::remove_file);
    }
}

impl Listeners {
    /// Creates an empty set for `workers`. The first change uses the `inherited` sockets before it
    /// opens any.
    pub(crate) fn new(workers: usize, inherited: InheritedSockets) -> Self {
        Self {
            workers,
            start: Some(Instant::now()),
            inherited,
            open: Vec::new(),
            numbers: Vec::new(),
            removed: Vec::new(),
            acme_http: Vec::new(),
        }
    }

    /// Closes the inherited sockets whose addresses are not configured.
    ///
    /// # Errors
    /// If one belongs to a service manager: clients may connect to it.
    pub(crate) fn close_unused_inherited(&mut self) -> Result<(), ProgramError> {
        std::mem::take(&mut self.inherited).check_unused()
    }

    /// Sets whether this process owns the files of Unix sockets and removes them at its end. It
    /// must not own them while another process may continue with them. It never owns the files of a
    /// service manager.
    pub(crate) fn set_file_ownership(&mut self, owned: bool) {
        for open in &mut self.open {
            open.owns_file = owned && !open.borrowed;
        }
    }

    /// Duplicates each socket for a successor.
    ///
    /// # Errors
    /// If no descriptor is free.
    pub(crate) fn duplicate_sockets(&self) -> std::io::Result<Vec<ListeningSocket>> {
        let (mut copies, mut seen) = (Vec::new(), HashSet::new());
        for open in &self.open {
            for socket in open.sockets.iter().flatten() {
                // Workers may share a socket.
                let file = File::from(socket.try_clone()?);
                if seen.insert(file.metadata()?.ino()) {
                    copies.push(ListeningSocket { fd: file.into(), borrowed: open.borrowed });
                }
            }
        }
        Ok(copies)
    }

    /// Opens the addresses that are not open yet, and sets the number and the actual address of
    /// each listener. Nothing else changes before [`Listeners::commit`]; [`ListenerChange::undo`]
    /// reverts it.
    ///
    /// # Errors
    /// The first address that cannot be opened, and why.
    pub(crate) fn prepare(
        &mut self,
        listeners: &mut [Listener],
    ) -> Result<ListenerChange, ProgramError> {
        let mut change = ListenerChange {
            opened: Vec::new(),
            removed: Vec::new(),
            of_workers: (0..self.workers).map(|_| Vec::new()).collect(),
        };
        for place in 0..listeners.len() {
            let before = &listeners[..place];
            // The listeners before this one have their numbers and actual addresses already.
            let numbers = before.iter().map(|listener| listener.number).collect::<Vec<_>>();
            if let Err(error) = self.open_one(&mut listeners[place], &numbers, &mut change) {
                change.undo();
                return Err(error);
            }
        }
        let is_left =
            |open: &&OpenListener| listeners.iter().all(|other| other.number != open.number);
        change.removed = self.open.iter().filter(is_left).map(|open| open.number).collect();
        Ok(change)
    }

    fn open_one(
        &mut self,
        listener: &mut Listener,
        taken: &[u16],
        change: &mut ListenerChange,
    ) -> Result<(), ProgramError> {
        listener.number = self.number(&listener.address, taken)?;
        if let Some(open) = self.open.iter().find(|open| open.number == listener.number) {
            listener.address = open.address.clone();
            return Ok(());
        }
        let refused = |error| listen_error(&listener.address, error);
        let number = listener.number;
        let open = match self.take_inherited(number, &listener.address).map_err(refused)? {
            Some(open) => open,
            None => {
                let opened = self.open_sockets(&listener.address);
                let opened = opened.map_err(|error| self.open_error(&listener.address, error))?;
                let sockets = opened.0.into_iter().map(|socket| vec![socket]).collect();
                OpenListener {
                    number,
                    address: opened.1,
                    sockets,
                    borrowed: false,
                    owns_file: true,
                }
            }
        };
        change.opened.push(open);
        let open = change.opened.last().expect("pushed just now");
        for (of_worker, sockets) in change.of_workers.iter_mut().zip(&open.sockets) {
            for socket in sockets {
                of_worker.push((open.number, duplicate(socket).map_err(refused)?));
            }
        }
        listener.address = open.address.clone();
        Ok(())
    }

    /// Creates a listener from inherited sockets, if there are any at its address.
    fn take_inherited(
        &mut self,
        number: u16,
        address: &ListenAddress,
    ) -> Result<Option<OpenListener>, Errno> {
        let (address, sockets) = self.inherited.take(SocketPurpose::Clients, address);
        if sockets.is_empty() {
            return Ok(None);
        }
        let borrowed = sockets.iter().any(|socket| socket.borrowed);
        let fds = sockets.into_iter().map(|socket| socket.fd).collect();
        let sockets = distribute(fds, self.workers).map_err(errno)?;
        Ok(Some(OpenListener { number, address, sockets, borrowed, owns_file: false }))
    }

    /// Returns the number of a listener at `address`. `taken` are the numbers of the listeners
    /// before it in the configuration. Several listeners may have the same address with port 0; the
    /// nth of them always gets the same number.
    fn number(&mut self, address: &ListenAddress, taken: &[u16]) -> Result<u16, ProgramError> {
        let is_same = |number: &&u16| self.numbers[**number as usize].0 == *address;
        let key = (address.clone(), taken.iter().filter(is_same).count());
        if let Some(number) = self.numbers.iter().position(|known| *known == key) {
            return Ok(number as u16);
        }
        if self.numbers.len() >= usize::from(u16::MAX) {
            let text = format!(
                "cannot listen on {address}: too many different addresses since the start; restart the process"
            );
            return Err(ProgramError::System(text));
        }
        self.numbers.push(key);
        Ok((self.numbers.len() - 1) as u16)
    }

    fn open_sockets(
        &self,
        address: &ListenAddress,
    ) -> Result<(Vec<OwnedFd>, ListenAddress), Errno> {
        let removed = self.removed.iter().find(|(removed, _)| removed == address);
        let free_at = match removed {
            Some((_, when)) => Some(*when + REMOVED_CLOSE_MAX),
            None => self.start.map(|start| start + KILLED_CLOSE_MAX),
        };
        let may_be_free = || free_at.is_some_and(|free_at| Instant::now() < free_at);
        loop {
            let opened = match address {
                ListenAddress::Tcp(address) => open_tcp(*address, self.workers),
                ListenAddress::Unix(path) => {
                    open_unix(path, self.workers).map(|sockets| (sockets, address.clone()))
                }
            };
            match opened {
                // A worker of this process may still hold the socket; or see KILLED_CLOSE_MAX.
                Err(Errno::ADDRINUSE) if may_be_free() => std::thread::sleep(RETRY_INTERVAL),
                opened => return opened,
            }
        }
    }

    /// Returns the error of an address that cannot be opened. Names an address of acme-http that
    /// has its port.
    fn open_error(&self, address: &ListenAddress, error: Errno) -> ProgramError {
        let has_port = |it: &&SocketAddr| tcp_port(address) == Some(it.port());
        let refused = listen_error(address, error);
        match self.acme_http.iter().find(has_port) {
            Some(acme_http) if error == Errno::ADDRINUSE => ProgramError::System(format!(
                "{refused}; acme-http {acme_http} has this port (expected: acme-http off by an \
                 earlier reload)"
            )),
            _ => refused,
        }
    }

    /// Sets the addresses of acme-http in a configuration that is put in force. The sockets of
    /// former ones are closed soon, like those of removed listeners.
    pub(crate) fn set_acme_http(&mut self, config: &Config) {
        let services = config.services.iter();
        let addresses = services.filter_map(|service| service.tls.as_ref()?.acme.as_ref()?.http);
        let former = std::mem::replace(&mut self.acme_http, addresses.collect());
        let left = former.into_iter().filter(|address| !self.acme_http.contains(address));
        let now = Instant::now();
        self.removed.extend(left.map(|address| (ListenAddress::Tcp(address), now)));
    }

    /// Applies a prepared change and closes the removed listeners. Returns the new sockets of each
    /// worker and the removed addresses.
    pub(crate) fn commit(&mut self, change: ListenerChange) -> (Vec<Sockets>, Vec<ListenAddress>) {
        let now = Instant::now();
        self.start = None;
        self.removed.retain(|(_, when)| when.elapsed() < REMOVED_CLOSE_MAX);
        let is_removed = |open: &mut OpenListener| change.removed.contains(&open.number);
        let mut addresses = Vec::new();
        for open in self.open.extract_if(.., is_removed) {
            // Removed now, because a successor may listen on the same path later.
            open.remove_file();
            self.removed.push((open.address.clone(), now));
            addresses.push(open.address);
        }
        self.open.extend(change.opened);
        (change.of_workers, addresses)
    }

    /// Duplicates a worker's sockets for its replacement.
    ///
    /// # Errors
    /// If no descriptor is free.
    pub(crate) fn duplicate_for_worker(&self, worker: usize) -> Result<Sockets, Errno> {
        let of_worker = |open: &OpenListener| {
            let copies = open.sockets[worker].iter().map(duplicate);
            copies.map(|copy| Ok((open.number, copy?))).collect::<Vec<_>>()
        };
        self.open.iter().flat_map(of_worker).collect()
    }

    /// Closes all sockets of this module and removes their files. The workers hold the last
    /// descriptors.
    pub(crate) fn close_all(&mut self) {
        for open in std::mem::take(&mut self.open) {
            // Removed now, because a successor may listen on the same path later.
            open.remove_file();
        }
    }
}

impl OpenListener {
    /// Removes the file of a Unix socket that this process owns. A missing file is not an error.
    fn remove_file(&self) {
        if let (ListenAddress::Unix(path), true) = (&self.address, self.owns_file) {
            let _ = std::fs::remove_file(path);
        }
    }
}

fn duplicate(socket: &OwnedFd) -> Result<OwnedFd, Errno> {
    socket.try_clone().map_err(errno)
}

fn errno(error: std::io::Error) -> Errno {
    Errno::from_io_error(&error).unwrap_or(Errno::IO)
}

/// Opens one socket per worker on the same port. The kernel distributes clients (SO_REUSEPORT).
fn open_tcp(address: SocketAddr, workers: usize) -> Result<(Vec<OwnedFd>, ListenAddress), Errno> {
    let is_shared = workers > 1;
    if is_shared && address.port() != 0 {
        // Two processes of one user could share the port by accident and split its clients. A
        // socket without SO_REUSEPORT detects another process.
        drop(millrace_sys::listen_tcp(address, false)?);
    }
    let first = millrace_sys::listen_tcp(address, is_shared)?;
    let bound = millrace_sys::local_address(first.as_fd())?.unwrap_or(address);
    let mut sockets = vec![first];
    while sockets.len() < workers {
        sockets.push(millrace_sys::listen_tcp(bound, true)?);
    }
    Ok((sockets, ListenAddress::Tcp(bound)))
}

/// Opens one socket for all workers: Unix sockets have no SO_REUSEPORT.
fn open_unix(path: &Path, workers: usize) -> Result<Vec<OwnedFd>, Errno> {
    let first = millrace_sys::listen_unix(path, UNIX_MODE)?;
    let mut sockets = vec![first];
    while sockets.len() < workers {
        sockets.push(duplicate(&sockets[0])?);
    }
    Ok(sockets)
}

/// Returns the error of an address that cannot be opened.
pub(crate) fn listen_error(address: &impl std::fmt::Display, error: Errno) -> ProgramError {
    let reason = match error {
        Errno::ADDRINUSE => "address already in use".to_owned(),
        Errno::ACCESS => "not permitted (ports below 1024 need CAP_NET_BIND_SERVICE)".to_owned(),
        Errno::ADDRNOTAVAIL => "this machine has no such address".to_owned(),
        Errno::NOENT => "its folder does not exist".to_owned(),
        _ => std::io::Error::from(error).to_string(),
    };
    ProgramError::System(format!("cannot listen on {address}: {reason}"))
}

/// Returns whether a configuration has a listener with a port.
pub(crate) fn has_port(config: &Config, port: u16) -> bool {
    config.listeners.iter().any(|listener| tcp_port(&listener.address) == Some(port))
}

fn tcp_port(address: &ListenAddress) -> Option<u16> {
    match address {
        ListenAddress::Tcp(address) => Some(address.port()),
        ListenAddress::Unix(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listener(address: &str) -> Listener {
        let arguments = ["forward", "--listen", address];
        millrace_config::from_arguments(arguments).unwrap().listeners.remove(0)
    }

    fn none(workers: usize) -> Listeners {
        Listeners::new(workers, InheritedSockets::default())
    }

    fn all(addresses: &[&str]) -> Vec<Listener> {
        addresses.iter().map(|address| listener(address)).collect()
    }

    #[test]
    fn every_worker_has_a_socket_at_the_chosen_port() {
        let mut listeners = none(3);
        let mut requested = all(&["127.0.0.1:0"]);
        let change = listeners.prepare(&mut requested).unwrap();
        let ListenAddress::Tcp(picked) = requested[0].address else { panic!("a TCP address") };
        assert_ne!(picked.port(), 0);
        let (of_workers, _) = listeners.commit(change);
        for sockets in &of_workers {
            let [(0, socket)] = sockets.as_slice() else { panic!("one socket each") };
            assert_eq!(millrace_sys::local_address(socket.as_fd()).unwrap(), Some(picked));
        }
        for workers in [1, 2] {
            let mut late = none(workers);
            late.start = None;
            let taken = late.prepare(&mut all(&[&picked.to_string()]));
            let message = taken.err().unwrap().to_string();
            assert_eq!(message, format!("cannot listen on {picked}: address already in use"));
        }
    }

    #[test]
    fn an_address_keeps_its_number_and_its_port_for_life() {
        let mut listeners = none(2);
        let mut first = all(&["127.0.0.1:0", "[::1]:0", "127.0.0.1:0"]);
        let change = listeners.prepare(&mut first).unwrap();
        drop(listeners.commit(change));
        let mut second = all(&["[::1]:0"]);
        let change = listeners.prepare(&mut second).unwrap();
        let (opened, removed) = listeners.commit(change);
        assert_eq!((second[0].number, &second[0].address), (1, &first[1].address));
        assert!(opened.iter().all(Vec::is_empty) && removed.len() == 2);
        let mut third = all(&["[::1]:0", "127.0.0.1:0", "127.0.0.2:0"]);
        let change = listeners.prepare(&mut third).unwrap();
        let (opened, removed) = listeners.commit(change);
        let numbers = third.iter().map(|listener| listener.number);
        assert_eq!((numbers.collect::<Vec<_>>(), removed.len()), (vec![1, 0, 3], 0));
        assert!(opened.iter().all(|sockets| sockets.len() == 2));
        assert_eq!(listeners.duplicate_for_worker(1).unwrap().len(), 3);
        listeners.close_all();
        assert_eq!(listeners.duplicate_for_worker(1).unwrap().len(), 0);
    }

    #[test]
    fn an_address_comes_back_as_soon_as_our_own_socket_is_closed() {
        let mut listeners = none(1);
        let mut requested = all(&["127.0.0.1:0"]);
        let change = listeners.prepare(&mut requested).unwrap();
        let (of_workers, _) = listeners.commit(change);
        let address = requested[0].address.to_string();
        let none = listeners.prepare(&mut []).unwrap();
        drop(listeners.commit(none));
        let worker = std::thread::spawn(move || {
            std::thread::sleep(3 * RETRY_INTERVAL);
            drop(of_workers);
        });
        let change = listeners.prepare(&mut all(&[&address])).unwrap();
        assert_eq!(change.opened().count(), 1);
        worker.join().unwrap();
    }

    #[test]
    fn an_address_is_waited_for_right_after_the_start() {
        let dying = millrace_sys::listen_tcp(SocketAddr::from(([127, 0, 0, 1], 0)), true).unwrap();
        let address = millrace_sys::local_address(dying.as_fd()).unwrap().unwrap();
        let kernel = std::thread::spawn(move || {
            std::thread::sleep(3 * RETRY_INTERVAL);
            drop(dying);
        });
        let mut listeners = none(2);
        let change = listeners.prepare(&mut all(&[&address.to_string()])).unwrap();
        assert_eq!(change.opened().count(), 1);
        kernel.join().unwrap();
    }

    /// Returns a configuration with acme-http at this address, or without acme.
    fn with_acme_http(address: Option<SocketAddr>) -> Config {
        let mut words = vec!["boost".to_owned(), "--origin=http://a".to_owned()];
        if let Some(address) = address {
            words.extend(["--listen=tls://[::1]:1", "--acme=a@b"].map(String::from));
            words.extend(["--server-name=a.test".to_owned(), format!("--acme-http={address}")]);
        }
        millrace_config::from_arguments(words).unwrap()
    }

    #[test]
    fn only_its_port_in_use_names_acme_http() {
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let sockets = [(); 2].map(|()| millrace_sys::listen_tcp(any, true).unwrap());
        let [used, other] = sockets.each_ref().map(|socket| {
            millrace_sys::local_address(socket.as_fd()).unwrap().expect("an address")
        });
        let mut listeners = none(1);
        listeners.start = None;
        listeners.set_acme_http(&with_acme_http(Some(used)));
        let mut error = |address: SocketAddr| {
            let mut wanted = all(&["127.0.0.1:1"]);
            wanted[0].address = ListenAddress::Tcp(address);
            listeners.prepare(&mut wanted).err().expect("an error").to_string()
        };
        let in_use =
            format!("cannot listen on {used}: address already in use; acme-http {used} has");
        assert!(error(used).starts_with(&in_use));
        assert!(error(other).ends_with("address already in use"));
        // TEST-NET-1 (RFC 5737).
        assert!(
            error(SocketAddr::from(([192, 0, 2, 1], used.port()))).ends_with("no such address")
        );
    }

    #[test]
    fn an_address_that_acme_http_leaves_is_waited_for() {
        let socket = millrace_sys::listen_tcp(SocketAddr::from(([127, 0, 0, 1], 0)), true).unwrap();
        let address = millrace_sys::local_address(socket.as_fd()).unwrap().unwrap();
        let mut listeners = none(1);
        listeners.start = None;
        listeners.set_acme_http(&with_acme_http(Some(address)));
        listeners.set_acme_http(&with_acme_http(None));
        let thread = std::thread::spawn(move || {
            std::thread::sleep(3 * RETRY_INTERVAL);
            drop(socket);
        });
        let change = listeners.prepare(&mut all(&[&address.to_string()])).unwrap();
        assert_eq!(change.opened().count(), 1);
        thread.join().unwrap();
    }

    #[test]
    fn a_change_that_fails_leaves_no_socket_file() {
        let file = std::env::temp_dir().join(format!("millrace-{}.sock", std::process::id()));
        let unix = format!("unix:{}", file.display());
        let mut listeners = none(2);
        assert!(listeners.prepare(&mut all(&[&unix, "unix:/nowhere/to/be/found"])).is_err());
        assert!(!file.exists());
        let change = listeners.prepare(&mut all(&[&unix])).unwrap();
        assert_eq!(listeners.commit(change).0.len(), 2);
        assert!(file.exists());
        listeners.close_all();
        assert!(!file.exists());
    }
}
