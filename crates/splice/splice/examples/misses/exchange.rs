//! An exchange: a request, and the response up to the start of its body.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsFd;

use millrace_splice::Side;

use crate::copied::Copied;
use crate::messages::{MissRequest, OriginResponse};
use crate::{COPY_BYTES, MissState, Origin, Proxy, insert, prepare, token};

/// The size of the first receive of a response: small, so that the body stays in the kernel.
const HEAD_BYTES: usize = 4 * 1024;

impl Proxy {
    /// Receives a request and sends it to the origin.
    pub(crate) fn send_request(&mut self, number: usize) -> io::Result<()> {
        let client = self.clients[number].as_ref().ok_or(io::ErrorKind::NotFound)?;
        let count = match (&*client.connection).read(&mut self.buffer) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
            other => other?,
        };
        let request =
            MissRequest::parse(&self.buffer[..count]).ok_or(io::ErrorKind::InvalidData)?;
        let address = request.address;
        let origin = match self.idle_origins.get_mut(&address).and_then(Vec::pop) {
            Some(origin) => origin,
            None => self.dial(address)?,
        };
        if let Some(client) = &mut self.clients[number] {
            (client.state, client.origin) = (MissState::AwaitsResponse, origin);
        }
        let origin = self.origins[origin].as_mut().ok_or(io::ErrorKind::NotFound)?;
        origin.client = Some(number);
        match (&*origin.connection).write(&request.head)? {
            count if count == request.head.len() => Ok(()),
            _ => Err(io::ErrorKind::WriteZero.into()),
        }
    }

    fn dial(&mut self, address: SocketAddr) -> io::Result<usize> {
        let connection = prepare(TcpStream::connect(address)?)?;
        let origin = Origin { connection: connection.clone(), address, client: None };
        let number = insert(&mut self.origins, origin);
        self.poller.add_connection(connection.as_fd(), token(number, Side::Fd0))?;
        Ok(number)
    }

    /// Receives a response header with the first bytes of the body, and starts to move the rest.
    pub(crate) fn start_response(&mut self, number: usize) -> io::Result<()> {
        let client = self.clients[number].as_ref().ok_or(io::ErrorKind::NotFound)?;
        let origin = self.origins[client.origin].as_ref().ok_or(io::ErrorKind::NotFound)?;
        let (source, sink) = (origin.connection.clone(), client.connection.clone());
        let room = if self.is_splicing { HEAD_BYTES } else { COPY_BYTES };
        let count = match (&*source).read(&mut self.buffer[..room]) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
            other => other?,
        };
        let response =
            OriginResponse::parse(&self.buffer[..count]).ok_or(io::ErrorKind::InvalidData)?;
        let payload = response.head..count;
        let rest = response.length.checked_sub(payload.len() as u64);
        let rest = rest.ok_or(io::ErrorKind::InvalidData)?;
        if response.is_public {
            self.store.room(payload.len()).copy_from_slice(&self.buffer[payload.clone()]);
            self.store.keep(payload.len());
        }
        if rest > 0 && self.is_splicing {
            return self.splice(number, source, sink, count, rest, response.is_public);
        }
        let mut copied = Copied::new(rest, response.is_public);
        copied.send(&sink, &self.buffer[..count])?;
        self.set(number, MissState::Copied(copied));
        self.copy(number)
    }

    /// Ends a response. After a good end, both connections stay open.
    pub(crate) fn finish(&mut self, number: usize, is_good: bool) {
        let Some(client) = self.clients[number].as_mut().filter(|_| is_good) else {
            return self.end(number);
        };
        client.state = MissState::Idle;
        let origin = std::mem::replace(&mut client.origin, usize::MAX);
        if let Some(idle) = &mut self.origins[origin] {
            idle.client = None;
            self.idle_origins.entry(idle.address).or_default().push(origin);
        }
    }

    pub(crate) fn set(&mut self, number: usize, state: MissState) {
        if let Some(client) = &mut self.clients[number] {
            client.state = state;
        }
    }

    /// Closes the connection of a client and that of its exchange.
    pub(crate) fn end(&mut self, number: usize) {
        let body = self.bodies.iter().find(|&(_, &client)| client == number);
        if let Some(handle) = body.map(|(&handle, _)| handle) {
            self.bodies.remove(&handle);
            // It fails if the end has released the transfer.
            let _ = self.splicer.unsplice(handle);
        }
        if let Some(client) = self.clients[number].take()
            && client.origin != usize::MAX
        {
            self.origins[client.origin] = None;
        }
    }
}
