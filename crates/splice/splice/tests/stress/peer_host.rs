//! Where peers are: here or, for `scripts/lossy.py`, in network namespaces of their own.

use std::fs::File;
use std::io;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::sync::mpsc;

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// Where the peers of one side are.
pub(crate) struct PeerHost {
    /// Our address as they see it.
    pub(crate) address: IpAddr,
    /// The thread that connects from there.
    there: Option<NamespaceThread>,
}

struct NamespaceThread {
    asked: mpsc::Sender<SocketAddr>,
    connected: mpsc::Receiver<io::Result<TcpStream>>,
}

impl PeerHost {
    /// The place of a `name`, ORIGIN or CLIENT: the namespace whose file is ORIGIN_NAMESPACE, from
    /// which we are ORIGIN_SIDE; this one if there is no such variable.
    pub(crate) fn of(name: &str) -> Self {
        let Ok(namespace) = std::env::var(format!("{name}_NAMESPACE")) else {
            return Self { address: IpAddr::from([127, 0, 0, 1]), there: None };
        };
        let address = std::env::var(format!("{name}_SIDE")).expect("it goes with the namespace");
        let there = Some(NamespaceThread::enter(&namespace).expect("root may"));
        Self { address: address.parse().expect("an address"), there }
    }

    /// A connection from there.
    pub(crate) fn connect(&self, address: SocketAddr) -> io::Result<TcpStream> {
        let Some(there) = &self.there else { return TcpStream::connect(address) };
        there.asked.send(address).expect("the thread waits");
        there.connected.recv().expect("the thread answers")
    }
}

impl NamespaceThread {
    /// A thread in a namespace: sockets belong to that in which they were made.
    fn enter(namespace: &str) -> io::Result<Self> {
        let namespace = File::open(namespace)?;
        let (asked, questions) = mpsc::channel();
        let (answers, connected) = mpsc::channel();
        let (entered, is_there) = mpsc::channel();
        std::thread::spawn(move || {
            let kind = Some(LinkNameSpaceType::Network);
            move_into_link_name_space(namespace.as_fd(), kind).expect("root may");
            drop(namespace);
            entered.send(()).expect("somebody waits");
            for address in questions {
                let _ = answers.send(TcpStream::connect::<SocketAddr>(address));
            }
        });
        // Descriptors are counted from now on.
        is_there.recv().expect("the thread gets there");
        Ok(Self { asked, connected })
    }
}
