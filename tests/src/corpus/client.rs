//! One client connection.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::thread;
use std::time::Duration;

use rustix::net::sockopt::set_socket_linger;

use super::literal::{Step, escaped};
use super::origin::Origin;
use super::timeouts::{PATIENCE, PAUSE, TRICKLE};
use crate::strict::{self, Message, RequestContext};

/// A client with the bytes that it has received and not yet parsed.
pub struct Client {
    /// `None` after a reset.
    stream: Option<TcpStream>,
    received: Vec<u8>,
    ended: bool,
}

/// How the bytes of a literal are split into segments.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pace {
    /// As the literal specifies.
    Whole,
    /// The first bytes one by one, so that every token is split.
    EveryByte,
}

impl Client {
    /// Connects.
    ///
    /// # Errors
    /// Returns the error of the system if the program does not accept.
    pub fn connect(address: SocketAddr) -> Result<Self, String> {
        let stream = TcpStream::connect_timeout(&address, PATIENCE)
            .map_err(|error| format!("the program does not accept: {error}"))?;
        let set = |result: std::io::Result<()>| result.map_err(|error| error.to_string());
        set(stream.set_nodelay(true))?;
        set(stream.set_read_timeout(Some(PATIENCE)))?;
        set(stream.set_write_timeout(Some(PATIENCE)))?;
        Ok(Self { stream: Some(stream), received: Vec::new(), ended: false })
    }

    /// Performs the steps of a literal. It is not an error if the program no longer reads: its
    /// response is checked later.
    ///
    /// # Errors
    /// Returns an error if an awaited response does not come, or if the origin falls behind.
    pub fn send(&mut self, steps: &[Step], pace: Pace, origin: &Origin) -> Result<(), String> {
        let mut waits = 0;
        let connects =
            matches!(steps.first(), Some(Step::Bytes(it)) if it.starts_with(b"CONNECT "));
        let first = RequestContext::with(if connects { "CONNECT" } else { "GET" });
        for step in steps {
            match step {
                Step::Bytes(bytes) if pace == Pace::EveryByte => self.trickle(bytes),
                Step::Bytes(bytes) => drop(self.write(bytes)),
                Step::Pause => thread::sleep(PAUSE),
                Step::Wait => {
                    waits += 1;
                    self.wait(waits, &first)?;
                    origin.catch_up()?;
                }
                Step::End => self.finish(),
                Step::Reset => self.reset(),
                Step::Body | Step::Close => {}
            }
        }
        Ok(())
    }

    /// Closes without lingering, which sends a RST.
    fn reset(&mut self) {
        if let Some(stream) = self.stream.take() {
            let _ = set_socket_linger(&stream, Some(Duration::ZERO));
        }
        self.received.clear();
        self.ended = true;
    }

    /// Sends one byte per segment. After the first bytes, which contain all tokens, it sends the
    /// rest at once.
    fn trickle(&mut self, bytes: &[u8]) {
        const ALONE: usize = 400;
        let (alone, rest) = bytes.split_at(bytes.len().min(ALONE));
        for byte in alone.chunks(1) {
            if self.write(byte).is_err() {
                return;
            }
            thread::sleep(TRICKLE);
        }
        let _ = self.write(rest);
    }

    /// Waits until `count` responses have come since the beginning, including interim ones.
    fn wait(&mut self, count: usize, first: &RequestContext) -> Result<(), String> {
        let later = RequestContext::with("GET");
        loop {
            let mut at = 0;
            let mut found = 0;
            while let Ok(Some(message)) = strict::response(
                &self.received[at..],
                if found == 0 { first } else { &later },
                self.ended,
            ) {
                at += message.bytes;
                found += 1;
                if found == count {
                    return Ok(());
                }
            }
            if !self.read()? {
                return Err(format!(
                    "no response to wait for; received: {}",
                    escaped(&self.received)
                ));
            }
        }
    }

    /// Takes the next response, including interim ones.
    ///
    /// # Errors
    /// Returns an error if the response is ambiguous or incomplete.
    pub fn next_response(&mut self, request: &RequestContext) -> Result<Message, String> {
        loop {
            match strict::response(&self.received, request, self.ended) {
                Ok(Some(message)) => {
                    self.received.drain(..message.bytes);
                    return Ok(message);
                }
                Ok(None) if self.ended => {
                    let got = escaped(&self.received);
                    return Err(format!("the connection ended inside a response: {got}"));
                }
                Ok(None) => drop(self.read()?),
                Err(ambiguity) => {
                    let got = escaped(&self.received);
                    return Err(format!(
                        "an AMBIGUOUS response at the client ({ambiguity}): {got}"
                    ));
                }
            }
        }
    }

    /// Waits for `length` bytes, or the end, and takes them.
    ///
    /// # Errors
    /// Returns an error if neither comes.
    pub fn bytes(&mut self, length: usize) -> Result<Vec<u8>, String> {
        while self.received.len() < length && self.read()? {}
        let length = length.min(self.received.len());
        Ok(self.received.drain(..length).collect())
    }

    /// Ends the stream to the program.
    pub fn finish(&mut self) {
        if let Some(stream) = &self.stream {
            let _ = stream.shutdown(Shutdown::Write);
        }
    }

    /// Takes everything up to the end of the connection. A reset is an end too.
    ///
    /// # Errors
    /// Returns an error if the end does not come.
    pub fn rest(&mut self) -> Result<Vec<u8>, String> {
        while self.read()? {}
        Ok(std::mem::take(&mut self.received))
    }

    fn write(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        self.stream.as_mut().map_or(Ok(()), |stream| stream.write_all(bytes))
    }

    /// Reads once. Returns whether the connection continues.
    fn read(&mut self) -> Result<bool, String> {
        let mut chunk = [0; 65536];
        let Some(stream) = &mut self.stream else { return Ok(false) };
        match stream.read(&mut chunk) {
            Ok(0) => self.ended = true,
            Ok(length) => self.received.extend_from_slice(&chunk[..length]),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                let got = escaped(&self.received);
                return Err(format!("neither bytes nor an end within {PATIENCE:?}; got: {got}"));
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(_) => self.ended = true,
        }
        Ok(!self.ended)
    }
}
