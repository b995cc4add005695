//! Connections between two clients.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::thread;

use iolite::Aggregate;
use iolite::service::FileClient;

use crate::common::{Daemon, pattern, sealed};

/// The bytes after which both ends of a connection are paired by the next call.
pub(crate) const PAIRING_BYTES: usize = 40_000;

/// A connected socket of one of the families.
#[derive(Debug)]
pub(crate) enum Socket {
    Unix(UnixStream),
    Tcp(TcpStream),
}

/// The families of connections.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Family {
    Unix,
    Tcp4,
    Tcp6,
}

pub(crate) const FAMILIES: [Family; 3] = [Family::Unix, Family::Tcp4, Family::Tcp6];

impl Family {
    pub(crate) fn connect(self) -> (Socket, Socket) {
        let address = match self {
            Self::Unix => {
                let (one, other) = UnixStream::pair().expect("sockets");
                return (Socket::Unix(one), Socket::Unix(other));
            }
            Self::Tcp4 => "127.0.0.1:0",
            Self::Tcp6 => "[::1]:0",
        };
        let listener = TcpListener::bind(address).expect("a socket");
        let address = listener.local_addr().expect("an address");
        let one = TcpStream::connect(address).expect("a connection");
        let other = listener.accept().expect("a connection").0;
        (Socket::Tcp(one), Socket::Tcp(other))
    }
}

impl Socket {
    pub(crate) fn shutdown(&self, how: Shutdown) {
        match self {
            Self::Unix(socket) => socket.shutdown(how),
            Self::Tcp(socket) => socket.shutdown(how),
        }
        .expect("a connection");
    }

    /// Writes by write(2), as another program does.
    pub(crate) fn write_by_kernel(&self, bytes: &[u8]) {
        match self {
            Self::Unix(socket) => (&*socket).write_all(bytes),
            Self::Tcp(socket) => (&*socket).write_all(bytes),
        }
        .expect("written");
    }

    /// Reads by read(2) until the end.
    pub(crate) fn read_by_kernel(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        match self {
            Self::Unix(socket) => (&*socket).read_to_end(&mut bytes),
            Self::Tcp(socket) => (&*socket).read_to_end(&mut bytes),
        }
        .expect("bytes");
        bytes
    }

    pub(crate) fn duplicate(&self) -> OwnedFd {
        self.as_fd().try_clone_to_owned().expect("dup")
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Unix(socket) => socket.as_fd(),
            Self::Tcp(socket) => socket.as_fd(),
        }
    }
}

/// Writes all bytes from memory of the client.
pub(crate) fn write_all(client: &FileClient, socket: &Socket, mut bytes: &[u8]) {
    while !bytes.is_empty() {
        let mut buffer = client.allocate(socket.as_fd(), bytes.len()).expect("memory");
        let count = buffer.write(bytes);
        let slice = Aggregate::from(buffer.freeze());
        assert_eq!(client.write(socket.as_fd(), &slice), Ok(count as u64));
        bytes = &bytes[count..];
    }
}

/// Reads until the end of the connection.
pub(crate) fn read_all(client: &FileClient, socket: &Socket) -> Vec<u8> {
    let mut all = Vec::new();
    loop {
        let bytes = client.read(socket.as_fd(), 300_000).expect("bytes");
        if bytes.is_empty() {
            return all;
        }
        all.extend(bytes.to_vec());
    }
}

/// Reads this many bytes.
pub(crate) fn read_exactly(client: &FileClient, socket: &Socket, length: usize) -> Vec<u8> {
    let mut all = Vec::new();
    while all.len() < length {
        let bytes = client.read(socket.as_fd(), (length - all.len()) as u64).expect("bytes");
        assert!(!bytes.is_empty(), "the end after {} of {length} bytes", all.len());
        all.extend(bytes.to_vec());
    }
    all
}

/// Pairs both ends in one direction, and returns them with their clients: the reader is the first
/// one.
pub(crate) fn paired(daemon: &Daemon, family: Family) -> (FileClient, Socket, FileClient, Socket) {
    paired_over(daemon, family.connect())
}

/// Likewise, with the ends of a connection.
pub(crate) fn paired_over(
    daemon: &Daemon,
    (from, to): (Socket, Socket),
) -> (FileClient, Socket, FileClient, Socket) {
    let (reader, writer) = (daemon.client(), daemon.client());
    let bytes = pattern(PAIRING_BYTES, 1);
    write_all(&writer, &to, &bytes);
    assert!(read_exactly(&reader, &from, bytes.len()) == bytes);
    // The reader waits once, so the writer knows that it is there.
    thread::scope(|scope| {
        let read = scope.spawn(|| {
            while reader.stats().passed == 0 {
                read_exactly(&reader, &from, 1);
            }
        });
        while !read.is_finished() {
            if writer.stats().passed == 0 {
                write_all(&writer, &to, b"x");
            }
            thread::yield_now();
        }
    });
    assert_eq!((reader.stats().passed, writer.stats().passed), (1, 1), "{from:?}");
    (reader, from, writer, to)
}

/// Moves bytes over two sockets by two clients, and asserts that all were copied.
pub(crate) fn assert_carries_bytes(daemon: &Daemon, to: &impl AsFd, from: &impl AsFd) {
    let (reader, writer) = (daemon.client(), daemon.client());
    for round in 0..20 {
        let bytes = pattern(10_000, round);
        assert_eq!(writer.write(to.as_fd(), &sealed(&bytes)), Ok(10_000));
        let mut received = Vec::new();
        while received.len() < bytes.len() {
            received.extend(reader.read(from.as_fd(), 10_000).expect("bytes").to_vec());
        }
        assert!(received == bytes);
    }
    assert_eq!((reader.stats().passed, writer.stats().passed), (0, 0));
}
