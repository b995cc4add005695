//! Sockets of both families, with bounded waits.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::Duration;

use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};

/// The listener of an origin.
pub(super) enum OriginListener {
    Tcp(TcpListener),
    Unix(UnixListener),
    /// Bound, so that no other program takes the port, but not listening.
    Refusing(#[allow(dead_code, reason = "held open, never used")] OwnedFd, SocketAddr),
}

/// Returns a TCP port of 127.0.0.1 that refuses connections.
pub(super) fn refusing() -> io::Result<OriginListener> {
    let (family, flags) = (AddressFamily::INET, SocketFlags::CLOEXEC);
    let socket = rustix::net::socket_with(family, SocketType::STREAM, flags, None)?;
    rustix::net::bind(&socket, &SocketAddr::from(([127, 0, 0, 1], 0)))?;
    let address = rustix::net::getsockname(&socket)?;
    let address = SocketAddr::try_from(address).map_err(|_| ErrorKind::AddrNotAvailable)?;
    Ok(OriginListener::Refusing(socket, address))
}

impl OriginListener {
    /// Returns the address as in a command line: `HOST:PORT`, or `unix:PATH`.
    pub(super) fn address(&self) -> String {
        match self {
            Self::Tcp(listener) => {
                listener.local_addr().map_or_else(|_| String::new(), |it| it.to_string())
            }
            Self::Unix(listener) => {
                let address = listener.local_addr().ok();
                let path = address.as_ref().and_then(|address| address.as_pathname());
                path.map_or_else(String::new, |path| format!("unix:{}", path.display()))
            }
            Self::Refusing(_, address) => address.to_string(),
        }
    }

    /// Accepts a connection. If none is waiting, sleeps for `wait` and returns `None`.
    pub(super) fn accept(&self, wait: Duration) -> Option<Stream> {
        let accepted = match self {
            Self::Tcp(listener) => {
                listener.set_nonblocking(true).ok();
                listener.accept().ok().map(|(stream, _)| Stream::Tcp(stream))
            }
            Self::Unix(listener) => {
                listener.set_nonblocking(true).ok();
                listener.accept().ok().map(|(stream, _)| Stream::Unix(stream))
            }
            Self::Refusing(..) => None,
        };
        if accepted.is_none() {
            std::thread::sleep(wait);
        }
        accepted.inspect(Stream::make_blocking)
    }
}

/// A connection.
pub(super) enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
    Closed,
}

impl Stream {
    /// Connects to an address as the program prints it.
    pub(super) fn connect(address: &str) -> io::Result<Self> {
        match address.strip_prefix("unix:") {
            Some(path) => UnixStream::connect(path).map(Self::Unix),
            None => TcpStream::connect(address).map(Self::Tcp),
        }
    }

    fn make_blocking(&self) {
        match self {
            Self::Tcp(stream) => stream.set_nonblocking(false).ok(),
            Self::Unix(stream) => stream.set_nonblocking(false).ok(),
            Self::Closed => None,
        };
    }

    /// Returns the bytes that come within `wait`: an empty vector at the end, `None` if nothing
    /// comes.
    pub(super) fn read(&mut self, wait: Duration) -> io::Result<Option<Vec<u8>>> {
        let mut bytes = vec![0; 64 * 1024];
        let result = match self {
            Self::Tcp(stream) => {
                stream.set_read_timeout(Some(wait))?;
                stream.read(&mut bytes)
            }
            Self::Unix(stream) => {
                stream.set_read_timeout(Some(wait))?;
                stream.read(&mut bytes)
            }
            Self::Closed => Ok(0),
        };
        match result {
            Ok(count) => {
                bytes.truncate(count);
                Ok(Some(bytes))
            }
            Err(error) if is_timeout(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Returns how many bytes were accepted within `wait`, possibly none.
    pub(super) fn write(&mut self, bytes: &[u8], wait: Duration) -> io::Result<usize> {
        let result = match self {
            Self::Tcp(stream) => {
                stream.set_write_timeout(Some(wait))?;
                stream.write(bytes)
            }
            Self::Unix(stream) => {
                stream.set_write_timeout(Some(wait))?;
                stream.write(bytes)
            }
            Self::Closed => Err(ErrorKind::BrokenPipe.into()),
        };
        match result {
            Err(error) if is_timeout(&error) => Ok(0),
            other => other,
        }
    }

    /// Half-closes. The next step detects a peer that has already left.
    pub(super) fn finish(&self) {
        match self {
            Self::Tcp(stream) => stream.shutdown(Shutdown::Write).ok(),
            Self::Unix(stream) => stream.shutdown(Shutdown::Write).ok(),
            Self::Closed => None,
        };
    }

    /// Closes.
    pub(super) fn close(&mut self) {
        *self = Self::Closed;
    }

    /// Resets the connection. A Unix socket is just closed.
    pub(super) fn reset(&mut self) {
        if let Self::Tcp(stream) = self {
            // An error is ignored here: the close is then orderly, and the next expectation fails.
            let _ = sockopt::set_socket_linger(stream, Some(Duration::ZERO));
        }
        self.close();
    }
}

fn is_timeout(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted)
}
