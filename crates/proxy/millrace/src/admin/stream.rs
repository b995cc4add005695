//! A connection to an admin address, TCP or Unix, with one deadline for all that happens on it.

use std::io::{ErrorKind, Read, Result, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::guard::Asked;
use crate::takeover::Line;

/// A connection. Every read and write fails once its deadline is over.
#[derive(Debug)]
pub(crate) struct Stream {
    transport: Arc<Transport>,
    deadline: Instant,
}

/// Breaks a connection off from another thread.
#[derive(Debug)]
pub(super) struct Closer(Arc<Transport>);

#[derive(Debug)]
enum Transport {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Stream {
    /// Over a connected socket, with no time left until a deadline is set.
    pub(crate) fn new(socket: OwnedFd, is_unix: bool) -> Result<Self> {
        let transport = match is_unix {
            true => {
                let stream = UnixStream::from(socket);
                stream.set_nonblocking(false)?;
                Transport::Unix(stream)
            }
            false => {
                let stream = TcpStream::from(socket);
                stream.set_nonblocking(false)?;
                Transport::Tcp(stream)
            }
        };
        Ok(Self { transport: Arc::new(transport), deadline: Instant::now() })
    }

    /// What breaks this connection off.
    pub(super) fn closer(&self) -> Closer {
        Closer(Arc::clone(&self.transport))
    }

    /// Whether it came to a Unix socket.
    pub(super) fn is_unix(&self) -> bool {
        matches!(*self.transport, Transport::Unix(_))
    }

    /// What comes after `deadline` fails.
    pub(crate) fn set_deadline(&mut self, deadline: Instant) {
        self.deadline = deadline;
    }

    /// Who asks.
    pub(super) fn asked(&self) -> Result<Asked> {
        match &*self.transport {
            Transport::Tcp(stream) => Ok(Asked::Tcp(stream.local_addr()?)),
            Transport::Unix(stream) => Ok(Asked::Unix(millrace_sys::peer(stream.as_fd()).ok())),
        }
    }

    pub(crate) fn read(&mut self, bytes: &mut [u8]) -> Result<usize> {
        let left = Some(self.left()?);
        match &*self.transport {
            Transport::Tcp(stream) => {
                stream.set_read_timeout(left)?;
                let mut stream = stream;
                stream.read(bytes)
            }
            Transport::Unix(stream) => {
                stream.set_read_timeout(left)?;
                let mut stream = stream;
                stream.read(bytes)
            }
        }
    }

    pub(crate) fn write_all(&mut self, bytes: &[u8]) -> Result<()> {
        let mut sent = 0;
        while sent < bytes.len() {
            let left = Some(self.left()?);
            sent += match &*self.transport {
                Transport::Tcp(stream) => {
                    stream.set_write_timeout(left)?;
                    let mut stream = stream;
                    stream.write(&bytes[sent..])?
                }
                Transport::Unix(stream) => {
                    stream.set_write_timeout(left)?;
                    let mut stream = stream;
                    stream.write(&bytes[sent..])?
                }
            };
        }
        Ok(())
    }

    /// The same connection for a takeover.
    ///
    /// # Errors
    /// When it is no Unix socket, or there is no descriptor for it.
    pub(super) fn into_line(self) -> Result<Line> {
        match &*self.transport {
            Transport::Unix(stream) => Ok(Line::new(stream.try_clone()?)),
            Transport::Tcp(_) => Err(ErrorKind::Unsupported.into()),
        }
    }

    /// Ends the answer, and reads up to `bytes_max` of what the other side still sends: closing
    /// over unread bytes would reset the connection, and the answer with it.
    pub(super) fn end(mut self, bytes_max: usize) -> Result<()> {
        match &*self.transport {
            Transport::Tcp(stream) => stream.shutdown(Shutdown::Write)?,
            Transport::Unix(stream) => stream.shutdown(Shutdown::Write)?,
        }
        let mut read = 0;
        while read < bytes_max {
            match self.read(&mut [0; 4096])? {
                0 => break,
                count => read += count,
            }
        }
        Ok(())
    }

    /// The time until the deadline; an error when there is none.
    fn left(&self) -> Result<Duration> {
        match self.deadline.saturating_duration_since(Instant::now()) {
            Duration::ZERO => Err(ErrorKind::TimedOut.into()),
            left => Ok(left),
        }
    }
}

impl Closer {
    /// What the other thread does next on the connection fails.
    pub(super) fn break_off(&self) {
        // One that is gone already is as good.
        let _ = match &*self.0 {
            Transport::Tcp(stream) => stream.shutdown(Shutdown::Both),
            Transport::Unix(stream) => stream.shutdown(Shutdown::Both),
        };
    }
}
