//! epoll and the sockets on 127.0.0.1.

use std::io;
use std::mem::MaybeUninit;
use std::net::{Ipv4Addr, SocketAddrV4, TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};

use rustix::event::{Timespec, epoll};
use rustix::net::{SocketFlags, sockopt};

pub use rustix::event::epoll::EventFlags;

const EVENTS: usize = 512;
const BACKLOG: i32 = 4096;

/// An epoll instance. The token of an event is the one given to `add`.
pub struct Poll {
    epoll: OwnedFd,
    ready: Vec<(u64, EventFlags)>,
}

impl Poll {
    /// # Errors
    ///
    /// The kernel refuses another descriptor.
    pub fn new() -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        Ok(Self { epoll, ready: Vec::with_capacity(EVENTS) })
    }

    /// Registers a descriptor. Closing it removes it.
    ///
    /// # Errors
    ///
    /// Those of epoll_ctl(2).
    pub fn add(&self, fd: impl AsFd, token: u64, flags: EventFlags) -> io::Result<()> {
        Ok(epoll::add(&self.epoll, fd, epoll::EventData::new_u64(token), flags)?)
    }

    /// Changes what is waited for.
    ///
    /// # Errors
    ///
    /// Those of epoll_ctl(2).
    pub fn modify(&self, fd: impl AsFd, token: u64, flags: EventFlags) -> io::Result<()> {
        Ok(epoll::modify(&self.epoll, fd, epoll::EventData::new_u64(token), flags)?)
    }

    /// Waits up to `wait_ns`, or without a limit, and returns the tokens and events.
    ///
    /// # Errors
    ///
    /// Those of epoll_wait(2), but not EINTR.
    pub fn wait(&mut self, wait_ns: Option<u64>) -> io::Result<Vec<(u64, EventFlags)>> {
        let limit = wait_ns.map(|ns| Timespec {
            tv_sec: i64::try_from(ns / 1_000_000_000).unwrap_or(i64::MAX),
            tv_nsec: i64::try_from(ns % 1_000_000_000).unwrap_or(0),
        });
        let mut events = [MaybeUninit::uninit(); EVENTS];
        let mut ready = std::mem::take(&mut self.ready);
        ready.clear();
        match epoll::wait(&self.epoll, &mut events, limit.as_ref()) {
            Ok((events, _)) => {
                ready.extend(events.iter().map(|event| (event.data.u64(), event.flags)));
            }
            Err(error) if error == rustix::io::Errno::INTR => {}
            Err(error) => return Err(error.into()),
        }
        Ok(ready)
    }

    /// Takes the list of events back, so that the next `wait` allocates none.
    pub fn recycle(&mut self, ready: Vec<(u64, EventFlags)>) {
        self.ready = ready;
    }
}

/// Returns a listener on a port of 127.0.0.1. Accepted sockets inherit TCP_NODELAY.
///
/// # Errors
///
/// The port is in use.
pub fn listen(port: u16) -> io::Result<TcpListener> {
    use rustix::net::{AddressFamily, SocketType, bind, listen, socket_with};
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::INET, SocketType::STREAM, flags, None)?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    sockopt::set_tcp_nodelay(&socket, true)?;
    bind(&socket, &SocketAddrV4::new(Ipv4Addr::LOCALHOST, port))?;
    listen(&socket, BACKLOG)?;
    Ok(socket.into())
}

/// Returns the next connection that waits, or none.
///
/// # Errors
///
/// Those of accept4(2).
pub fn accept(listener: &TcpListener) -> io::Result<Option<TcpStream>> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    match rustix::net::accept_with(listener, flags) {
        Ok(socket) => Ok(Some(socket.into())),
        Err(error) if error == rustix::io::Errno::AGAIN => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Connects to a port of 127.0.0.1. The socket does not block from then on.
///
/// # Errors
///
/// Those of connect(2).
pub fn connect(port: u16) -> io::Result<TcpStream> {
    let socket = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
    socket.set_nodelay(true)?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}
