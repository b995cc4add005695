//! The relay: plaintext of one side is sealed for the other.

use std::io;
use std::net::TcpListener;
use std::os::fd::AsRawFd;
use std::sync::Arc;

use pbtls::link::{Buffers, Link, Received, SEND_MAX, Session};
use pbtls::poll::{EventFlags, Poll, accept, connect, listen};
use rustls::client::UnbufferedClientConnection;
use rustls::pki_types::ServerName;
use rustls::server::UnbufferedServerConnection;
use rustls::{ClientConfig, ServerConfig};

const LISTENER: u64 = u64::MAX;

/// The connections of a client and to the origin. Tokens are twice the number of the pair, and one
/// more for the side of the origin.
struct Pair {
    client: Link<UnbufferedServerConnection>,
    origin: Link<UnbufferedClientConnection>,
    client_flags: EventFlags,
    origin_flags: EventFlags,
}

struct Relay {
    poll: Poll,
    /// Buffers of the side that receives and of the side that sends.
    received: Buffers,
    sent: Buffers,
    server: Arc<ServerConfig>,
    client: Arc<ClientConfig>,
    origin_port: u16,
    /// By the descriptor of the client's connection.
    pairs: Vec<Option<Box<Pair>>>,
}

/// Relays forever.
///
/// # Errors
///
/// The port is in use.
pub fn run(
    port: u16,
    server: Arc<ServerConfig>,
    origin_port: u16,
    client: Arc<ClientConfig>,
) -> io::Result<()> {
    let listener = listen(port)?;
    let mut relay = Relay {
        poll: Poll::new()?,
        received: Buffers::default(),
        sent: Buffers::default(),
        server,
        client,
        origin_port,
        pairs: Vec::new(),
    };
    relay.poll.add(&listener, LISTENER, EventFlags::IN)?;
    loop {
        let ready = relay.poll.wait(None)?;
        for (token, events) in &ready {
            if *token == LISTENER {
                relay.accept_all(&listener);
            } else {
                relay.handle((*token / 2) as usize, *token % 2 == 1, *events);
            }
        }
        relay.poll.recycle(ready);
    }
}

impl Relay {
    fn accept_all(&mut self, listener: &TcpListener) {
        while let Ok(Some(socket)) = accept(listener) {
            let number = socket.as_raw_fd() as usize;
            let Ok(pair) = self.pair(socket) else { continue };
            if self.pairs.len() <= number {
                self.pairs.resize_with(number + 1, || None);
            }
            self.pairs[number] = Some(Box::new(pair));
            self.handle(number, false, EventFlags::IN);
        }
    }

    /// Connects to the origin and begins its handshake.
    fn pair(&mut self, socket: std::net::TcpStream) -> io::Result<Pair> {
        let token = 2 * socket.as_raw_fd() as u64;
        self.poll.add(&socket, token, EventFlags::IN)?;
        let session =
            UnbufferedServerConnection::new(Arc::clone(&self.server)).map_err(io::Error::other)?;
        let client = Link::new(socket, session);
        let socket = connect(self.origin_port)?;
        self.poll.add(&socket, token + 1, EventFlags::IN)?;
        let name = ServerName::try_from("bench.test").map_err(io::Error::other)?;
        let session = UnbufferedClientConnection::new(Arc::clone(&self.client), name)
            .map_err(io::Error::other)?;
        let mut origin = Link::new(socket, session);
        origin.begin(&mut self.sent)?;
        let (client_flags, origin_flags) = (EventFlags::IN, EventFlags::IN);
        Ok(Pair { client, origin, client_flags, origin_flags })
    }

    fn handle(&mut self, number: usize, is_origin: bool, events: EventFlags) {
        let Some(pair) = self.pairs.get_mut(number).and_then(Option::as_mut) else { return };
        let pair = pair.as_mut();
        let (received, sent) = (&mut self.received, &mut self.sent);
        let result = if events.contains(EventFlags::OUT) {
            if is_origin { pair.origin.flush() } else { pair.client.flush() }
        } else if is_origin {
            pass(&mut pair.origin, &mut pair.client, received, sent)
        } else {
            pass(&mut pair.client, &mut pair.origin, received, sent)
        };
        if result.and_then(|()| pair.wait(&self.poll, number)).is_err() {
            self.pairs[number] = None;
        }
    }
}

/// Receives from one side and sends to the other. The end of one side is an error, which ends both.
fn pass<A: Session, B: Session>(
    from: &mut Link<A>,
    to: &mut Link<B>,
    received: &mut Buffers,
    sent: &mut Buffers,
) -> io::Result<()> {
    let result = from.receive(received, |bytes| {
        bytes.chunks(SEND_MAX).try_for_each(|part| to.send(sent, part, false))
    })?;
    match result {
        Received::Some => Ok(()),
        Received::End => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

impl Pair {
    /// Waits for room on a side that is blocked, and does not receive from the other meanwhile.
    fn wait(&mut self, poll: &Poll, number: usize) -> io::Result<()> {
        let (client, origin) = (self.client.is_blocked(), self.origin.is_blocked());
        let flags = |is_blocked, is_other_blocked| match (is_blocked, is_other_blocked) {
            (true, _) => EventFlags::OUT,
            (false, true) => EventFlags::empty(),
            (false, false) => EventFlags::IN,
        };
        let (for_client, for_origin) = (flags(client, origin), flags(origin, client));
        let token = 2 * number as u64;
        if self.client_flags != for_client {
            self.client_flags = for_client;
            poll.modify(&self.client.socket, token, for_client)?;
        }
        if self.origin_flags != for_origin {
            self.origin_flags = for_origin;
            poll.modify(&self.origin.socket, token + 1, for_origin)?;
        }
        Ok(())
    }
}
