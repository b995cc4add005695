//! `misses ADDRESS spliced|copied`: the application of the paper's figures, reduced to what they
//! measure: a forward proxy that has no hits, over this crate's interface or by read and write.
//!
//! It forwards GET with a target in absolute form, over connections that are kept on both sides.
//! What is `Cache-Control: public` is stored as it passes: spliced with KeepCopy, with 16 KB
//! `min2read` and 64 KB `max2cache`, or received where it is kept and sent from there. AutoRelease
//! is set. Nothing else of HTTP is here, and nothing is checked that a load generator and an origin
//! of ours do not do: whatever is not as expected ends the connection.

mod bodies;
mod copied;
mod exchange;
mod messages;
mod store;

use std::collections::HashMap;
use std::io::{self, Read};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::rc::Rc;

use millrace_splice::{Handle, Linux, Side, Splicer, limits::PIPES_MAX};
use millrace_sys::{Events, Poller, Readiness};

use copied::Copied;
use store::Store;

type Connection = Rc<TcpStream>;

/// What is received at a time of a body that is copied.
const COPY_BYTES: usize = 256 * 1024;
const STORE_BYTES: usize = 64 << 20;
const EVENTS: usize = 256;

/// What is watched, as the number of its registration: the first two, then a client and an origin
/// connection in turn.
const LISTENER: u64 = 0;
const SPLICER: u64 = 1;

/// What a client waits for.
enum MissState {
    /// For nothing: it has not asked.
    Idle,
    /// For the head of an answer.
    MissRequest,
    /// For a body that is spliced.
    Spliced,
    /// For a body that is copied.
    Copied(Copied),
}

struct Client {
    connection: Connection,
    state: MissState,
    /// The origin connection of its exchange, in `Proxy::origins`.
    origin: usize,
}

struct Origin {
    connection: Connection,
    address: SocketAddr,
    /// The client of its exchange, if it is in one.
    client: Option<usize>,
}

struct Proxy {
    is_splicing: bool,
    poller: Poller,
    listener: TcpListener,
    splicer: Splicer<Linux<Connection>>,
    /// Whose body each transfer is.
    bodies: HashMap<Handle, usize>,
    clients: Vec<Option<Client>>,
    origins: Vec<Option<Origin>>,
    /// Origin connections that are in no exchange.
    kept: HashMap<SocketAddr, Vec<usize>>,
    buffer: Box<[u8]>,
    store: Store,
}

fn main() -> io::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (address, is_splicing) = match &arguments[..] {
        [address, how] if how == "spliced" || how == "copied" => (address, how == "spliced"),
        _ => return Err(io::Error::other("misses ADDRESS spliced|copied")),
    };
    Proxy::new(TcpListener::bind(address)?, is_splicing)?.run()
}

impl Proxy {
    fn new(listener: TcpListener, is_splicing: bool) -> io::Result<Self> {
        listener.set_nonblocking(true)?;
        let (poller, splicer) = (Poller::new()?, Splicer::new(Linux::new()?, PIPES_MAX));
        poller.add_listener(listener.as_fd(), LISTENER)?;
        poller.add_connection(splicer.fd(), SPLICER)?;
        Ok(Self {
            is_splicing,
            poller,
            listener,
            splicer,
            bodies: HashMap::new(),
            clients: Vec::new(),
            origins: Vec::new(),
            kept: HashMap::new(),
            buffer: vec![0; COPY_BYTES].into_boxed_slice(),
            store: Store::new(STORE_BYTES),
        })
    }

    fn run(mut self) -> io::Result<()> {
        let mut events = Events::new(EVENTS);
        loop {
            match self.poller.wait(&mut events, None) {
                Err(error) if error == millrace_sys::Errno::INTR => continue,
                other => other?,
            }
            for event in &mut events {
                match event {
                    (LISTENER, _) => self.accept()?,
                    (SPLICER, _) => self.forward()?,
                    (token, readiness) => self.handle_readiness(token, readiness),
                }
            }
        }
    }

    fn accept(&mut self) -> io::Result<()> {
        loop {
            let stream = match self.listener.accept() {
                Ok((stream, _)) => stream,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            };
            let connection = prepare(stream)?;
            let client = Client { connection, state: MissState::Idle, origin: usize::MAX };
            let number = insert(&mut self.clients, client);
            let client = self.clients[number].as_ref().expect("it was just put there");
            self.poller.add_connection(client.connection.as_fd(), token(number, Side::Fd1))?;
        }
    }

    /// Something became ready; what cannot be gone on with ends.
    fn handle_readiness(&mut self, token: u64, readiness: Readiness) {
        let (number, side) = ((token as usize - 2) / 2, token % 2);
        let client = if side == 0 {
            number
        } else {
            match self.origins[number].as_ref().map(|origin| origin.client) {
                Some(Some(client)) => client,
                Some(None) if readiness.is_readable() => return self.read_copies(number),
                _ => return,
            }
        };
        let Some(state) = self.clients[client].as_ref().map(|client| &client.state) else { return };
        let result = match (state, side) {
            (MissState::Idle, 0) if readiness.is_readable() => self.send_request(client),
            (MissState::MissRequest, 1) if readiness.is_readable() => self.start_response(client),
            (MissState::Copied(_), _) => self.copy(client),
            _ => Ok(()),
        };
        if result.is_err() {
            self.end(client);
        }
    }

    /// Closes an origin connection that is in no exchange, unless what became readable of it was
    /// the end of its last answer.
    fn read_copies(&mut self, number: usize) {
        let Some(origin) = &self.origins[number] else { return };
        let result = (&*origin.connection).read(&mut self.buffer[..1]);
        if result.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock) {
            return;
        }
        self.kept.entry(origin.address).or_default().retain(|&other| other != number);
        self.origins[number] = None;
    }
}

/// A connection as all are here.
fn prepare(stream: TcpStream) -> io::Result<Connection> {
    stream.set_nonblocking(true)?;
    stream.set_nodelay(true)?;
    Ok(Rc::new(stream))
}

/// Puts a value where none is; gives its number.
fn insert<T>(table: &mut Vec<Option<T>>, value: T) -> usize {
    if let Some(free) = table.iter().position(Option::is_none) {
        table[free] = Some(value);
        return free;
    }
    table.push(Some(value));
    table.len() - 1
}

fn token(number: usize, side: Side) -> u64 {
    2 + 2 * number as u64 + u64::from(side == Side::Fd0)
}
