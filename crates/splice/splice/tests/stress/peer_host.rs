//! The location of peers: this namespace or, for `scripts/lossy.py`, network namespaces of their
//! own.

use std::fs::File;
use std::io;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::sync::mpsc;

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// The location of the peers of one side.
pub(crate) struct PeerHost {
    /// The address of this process as the peers see it.
    pub(crate) address: IpAddr,
    /// The thread that connects from another namespace.
    there: Option<NamespaceThread>,
}

struct NamespaceThread {
    addresses: mpsc::Sender<SocketAddr>,
    connected: mpsc::Receiver<io::Result<TcpStream>>,
}

impl PeerHost {
    /// Returns the location of the peers of `name`, which is ORIGIN or CLIENT. With
    /// ORIGIN_NAMESPACE (or CLIENT_NAMESPACE) it is that namespace, which reaches this process at
    /// ORIGIN_SIDE (or CLIENT_SIDE). Without, it is this namespace.
    pub(crate) fn of(name: &str) -> Self {
        let Ok(namespace) = std::env::var(format!("{name}_NAMESPACE")) else {
            return Self { address: IpAddr::from([127, 0, 0, 1]), there: None };
        };
        let address = std::env::var(format!("{name}_SIDE")).expect("it is set with the namespace");
        let there = Some(NamespaceThread::enter(&namespace).expect("the test runs as root"));
        Self { address: address.parse().expect("an address"), there }
    }

    /// Connects to `address` from this location.
    pub(crate) fn connect(&self, address: SocketAddr) -> io::Result<TcpStream> {
        let Some(there) = &self.there else { return TcpStream::connect(address) };
        there.addresses.send(address).expect("the thread waits");
        there.connected.recv().expect("the thread replies")
    }
}

impl NamespaceThread {
    /// Starts a thread in a namespace. A socket belongs to the namespace of the thread that creates
    /// it.
    fn enter(namespace: &str) -> io::Result<Self> {
        let namespace = File::open(namespace)?;
        let (addresses, requests) = mpsc::channel();
        let (results, connected) = mpsc::channel();
        let (entered, is_there) = mpsc::channel();
        std::thread::spawn(move || {
            let kind = Some(LinkNameSpaceType::Network);
            move_into_link_name_space(namespace.as_fd(), kind).expect("the test runs as root");
            drop(namespace);
            entered.send(()).expect("the test waits");
            for address in requests {
                let _ = results.send(TcpStream::connect::<SocketAddr>(address));
            }
        });
        // Wait until the thread has closed the namespace's file, because the test now counts open
        // descriptors.
        is_there.recv().expect("the thread gets there");
        Ok(Self { addresses, connected })
    }
}
