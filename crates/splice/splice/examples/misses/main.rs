//! `misses ADDRESS spliced|copied`: a forward proxy in which every request is a miss, as in the
//! paper's figures. It moves bodies by this crate (`spliced`) or by read and write (`copied`).
//!
//! The proxy forwards GET with a target in absolute form, over persistent connections on both
//! sides. It stores responses with `Cache-Control: public`. With `spliced`, it reads them by
//! KeepCopy (16 KB `min2read`, 64 KB `max2cache`, AutoRelease). With `copied`, it receives them
//! into the store and sends them from there. The program implements only the HTTP that the load
//! generator and the origin of the bench use. Any other input closes the connection.

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

/// Bytes of a copied body that are received at a time.
const COPY_BYTES: usize = 256 * 1024;
const STORE_BYTES: usize = 64 << 20;
const EVENTS: usize = 256;

/// Tokens of the poller: these two, then client and origin connections alternately.
const LISTENER: u64 = 0;
const SPLICER: u64 = 1;

/// The event that a client waits for.
enum MissState {
    /// The next request.
    Idle,
    /// A response header.
    AwaitsResponse,
    /// The end of a spliced body.
    Spliced,
    /// The next bytes of a copied body.
    Copied(Copied),
}

struct Client {
    connection: Connection,
    state: MissState,
    /// The origin connection of its exchange, an index into `Proxy::origins`.
    origin: usize,
}

struct Origin {
    connection: Connection,
    address: SocketAddr,
    /// The client of its exchange; `None` while the connection is idle.
    client: Option<usize>,
}

struct Proxy {
    is_splicing: bool,
    poller: Poller,
    listener: TcpListener,
    splicer: Splicer<Linux<Connection>>,
    /// The client of each transfer.
    bodies: HashMap<Handle, usize>,
    clients: Vec<Option<Client>>,
    origins: Vec<Option<Origin>>,
    /// Idle origin connections.
    idle_origins: HashMap<SocketAddr, Vec<usize>>,
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
            idle_origins: HashMap::new(),
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

    /// Handles an event. Closes the client if that fails.
    fn handle_readiness(&mut self, token: u64, readiness: Readiness) {
        let (number, side) = ((token as usize - 2) / 2, token % 2);
        let client = if side == 0 {
            number
        } else {
            match self.origins[number].as_ref().map(|origin| origin.client) {
                Some(Some(client)) => client,
                Some(None) if readiness.is_readable() => return self.check_idle_origin(number),
                _ => return,
            }
        };
        let Some(state) = self.clients[client].as_ref().map(|client| &client.state) else { return };
        let result = match (state, side) {
            (MissState::Idle, 0) if readiness.is_readable() => self.send_request(client),
            (MissState::AwaitsResponse, 1) if readiness.is_readable() => {
                self.start_response(client)
            }
            (MissState::Copied(_), _) => self.copy(client),
            _ => Ok(()),
        };
        if result.is_err() {
            self.end(client);
        }
    }

    /// Closes an idle origin connection that has ended or received bytes. Does nothing if the event
    /// is left over from a response whose bytes were already received.
    fn check_idle_origin(&mut self, number: usize) {
        let Some(origin) = &self.origins[number] else { return };
        let result = (&*origin.connection).read(&mut self.buffer[..1]);
        if result.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock) {
            return;
        }
        self.idle_origins.entry(origin.address).or_default().retain(|&other| other != number);
        self.origins[number] = None;
    }
}

/// Sets the options of a connection.
fn prepare(stream: TcpStream) -> io::Result<Connection> {
    stream.set_nonblocking(true)?;
    stream.set_nodelay(true)?;
    Ok(Rc::new(stream))
}

/// Inserts a value into a free slot and returns its index.
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
