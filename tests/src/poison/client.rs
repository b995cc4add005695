//! Clients with source addresses of their own.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, SocketAddrV4, TcpStream};

use rustix::net::{AddressFamily, SocketType, bind, connect, socket};

use crate::corpus::literal::escaped;
use crate::corpus::timeouts::PATIENCE;
use crate::strict::{self, Message, RequestContext};

/// A client connection, and the bytes received but not yet parsed.
pub(super) struct Client {
    stream: TcpStream,
    received: Vec<u8>,
    has_ended: bool,
}

impl Client {
    /// Connects from this address.
    pub(super) fn connect(from: Ipv4Addr, to: SocketAddr) -> Result<Self, String> {
        let connected = || -> std::io::Result<TcpStream> {
            let socket = socket(AddressFamily::INET, SocketType::STREAM, None)?;
            bind(&socket, &SocketAddrV4::new(from, 0))?;
            connect(&socket, &to)?;
            let stream = TcpStream::from(socket);
            stream.set_nodelay(true)?;
            stream.set_read_timeout(Some(PATIENCE))?;
            stream.set_write_timeout(Some(PATIENCE))?;
            Ok(stream)
        };
        let stream = connected().map_err(|error| format!("{from} to {to}: {error}"))?;
        Ok(Self { stream, received: Vec::new(), has_ended: false })
    }

    /// Sends bytes. It is not an error if the program no longer reads: its response is checked
    /// later.
    pub(super) fn send(&mut self, bytes: &[u8]) {
        let _ = self.stream.write_all(bytes);
    }

    /// Ends the stream, and waits for the end of the connection.
    pub(super) fn finish(mut self) -> Result<(), String> {
        let _ = self.stream.shutdown(Shutdown::Write);
        while !self.has_ended {
            self.read()?;
            self.received.clear();
        }
        Ok(())
    }

    /// Returns the next final response to a request with this method, or `None` if the connection
    /// ends before its first byte.
    pub(super) fn response(&mut self, method: &str) -> Result<Option<Message>, String> {
        let context = RequestContext::with(method);
        loop {
            match strict::response(&self.received, &context, self.has_ended) {
                Ok(Some(message)) => {
                    self.received.drain(..message.bytes);
                    if !message.interim() {
                        return Ok(Some(message));
                    }
                }
                Ok(None) if self.has_ended && self.received.is_empty() => return Ok(None),
                Ok(None) if self.has_ended => {
                    let got = escaped(&self.received);
                    return Err(format!("the connection ended inside a response: {got}"));
                }
                Ok(None) => self.read()?,
                Err(ambiguity) => {
                    let got = escaped(&self.received);
                    return Err(format!("an ambiguous response ({ambiguity}): {got}"));
                }
            }
        }
    }

    fn read(&mut self) -> Result<(), String> {
        let mut chunk = [0; 16 * 1024];
        match self.stream.read(&mut chunk) {
            Ok(0) => self.has_ended = true,
            Ok(length) => self.received.extend_from_slice(&chunk[..length]),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                return Err(format!("neither bytes nor an end within {PATIENCE:?}"));
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(_) => self.has_ended = true,
        }
        Ok(())
    }
}
