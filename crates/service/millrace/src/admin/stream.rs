//! A connection to an admin address, TCP or Unix, with one deadline for all that happens on it.

use std::io::{ErrorKind, Read, Result, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use super::guard::Asked;
use crate::takeover::Line;

/// A connection. Every read and write fails once its deadline is over.
#[derive(Debug)]
pub(crate) struct Stream {
    transport: Transport,
    deadline: Instant,
}

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
        Ok(Self { transport, deadline: Instant::now() })
    }

    /// What comes after `deadline` fails.
    pub(crate) fn set_deadline(&mut self, deadline: Instant) {
        self.deadline = deadline;
    }

    /// Who asks.
    pub(super) fn asked(&self) -> Result<Asked> {
        match &self.transport {
            Transport::Tcp(stream) => Ok(Asked::Tcp(stream.local_addr()?)),
            Transport::Unix(stream) => Ok(Asked::Unix(millrace_sys::peer(stream.as_fd()).ok())),
        }
    }

    pub(crate) fn read(&mut self, bytes: &mut [u8]) -> Result<usize> {
        let left = Some(self.left()?);
        match &mut self.transport {
            Transport::Tcp(stream) => {
                stream.set_read_timeout(left)?;
                stream.read(bytes)
            }
            Transport::Unix(stream) => {
                stream.set_read_timeout(left)?;
                stream.read(bytes)
            }
        }
    }

    pub(crate) fn write_all(&mut self, bytes: &[u8]) -> Result<()> {
        let mut sent = 0;
        while sent < bytes.len() {
            let left = Some(self.left()?);
            sent += match &mut self.transport {
                Transport::Tcp(stream) => {
                    stream.set_write_timeout(left)?;
                    stream.write(&bytes[sent..])?
                }
                Transport::Unix(stream) => {
                    stream.set_write_timeout(left)?;
                    stream.write(&bytes[sent..])?
                }
            };
        }
        Ok(())
    }

    /// The same connection for a takeover.
    ///
    /// # Errors
    /// When it is no Unix socket.
    pub(super) fn into_line(self) -> Result<Line> {
        match self.transport {
            Transport::Unix(stream) => Ok(Line::new(stream)),
            Transport::Tcp(_) => Err(ErrorKind::Unsupported.into()),
        }
    }

    /// Ends the answer, and reads up to `bytes_max` of what the other side still sends: closing
    /// over unread bytes would reset the connection, and the answer with it.
    pub(super) fn end(mut self, bytes_max: usize) -> Result<()> {
        match &self.transport {
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

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.transport {
            Transport::Tcp(stream) => stream.as_fd(),
            Transport::Unix(stream) => stream.as_fd(),
        }
    }
}
