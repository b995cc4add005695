//! The trait over which a worker is generic, and the types of its arguments and results.

use std::fmt;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crate::{Budget, Buffer, Error, FileRead, Instant, SharedBytes, Token};

/// A descriptor of an [`Engine`]. The number indexes the engine's own table and has no meaning
/// outside the engine. The type is neither `Copy` nor `Clone`: its owner finally passes it to
/// [`Engine::close`], [`Engine::reset`] or [`Engine::detach`].
#[derive(Debug, PartialEq, Eq)]
pub struct Fd(pub u32);

/// The address of a peer to connect to.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Address {
    /// TCP.
    Tcp(SocketAddr),
    /// A connected UDP socket, which exchanges datagrams with this peer only. One receive returns
    /// one datagram.
    Udp(SocketAddr),
    /// A Unix stream socket by its path.
    Unix(Arc<Path>),
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) | Self::Udp(address) => write!(f, "{address}"),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// The kernel's current TCP estimates for the path to a peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PathEstimate {
    /// The smoothed round-trip time, at least 1.
    pub rtt_us: u32,
    /// The congestion window, in segments, at least 1.
    pub window: u32,
}

/// The directions that [`Engine::shutdown`] ends, as in shutdown(2).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ShutdownHow {
    /// The receiving direction. Receives find the end of the stream after the bytes that have
    /// already arrived.
    Read,
    /// The sending direction. The peer reads the end of the stream.
    Write,
    /// Both directions.
    Both,
}

/// The result of one operation.
#[derive(Debug)]
pub struct Completion {
    /// The token with which the operation was queued. Its owner may be gone by now (see [`Token`]).
    pub token: Token,
    /// The operation, and its result.
    pub event: CompletionEvent,
}

/// The kind of an operation, and its result.
#[derive(Debug)]
pub enum CompletionEvent {
    /// A listener accepted one connection, whose client has this address (`None` on a Unix socket).
    /// After an error the listener no longer accepts.
    Accepted(Result<(Fd, Option<SocketAddr>), Error>),
    /// The connection is established, or the attempt failed. The caller owns the descriptor and has
    /// to close it, even after a failure.
    Connected(Result<(), Error>),
    /// A receive returned at least one byte, or an empty buffer at the end of the stream. The
    /// caller recycles the buffer in both cases. If a connection breaks, the kernel reports the
    /// error to one operation only, and later receives find the end of the stream. If that
    /// operation is a send whose completion has not been returned yet, the receive returns an error
    /// too. So the caller never mistakes a broken stream for a complete one.
    Received(Result<Buffer, Error>),
    /// The kernel has taken every byte of the send. After an error it has taken some of the bytes
    /// or none, and will take no more.
    Sent(Result<(), Error>),
    /// The splice moved this number of bytes; 0 at the end of the source.
    Spliced(Result<usize, Error>),
    /// The descriptor of [`Engine::poll_readable`] may have bytes, the end of the stream, or an
    /// error.
    Readable,
    /// A thread used the engine's waker. The worker reads its mailboxes.
    Woken,
}

/// Asynchronous I/O over one kernel, real or simulated.
///
/// A worker queues operations and calls [`Engine::submit_and_wait`] once a turn. It then handles
/// the completions of the turn, one at a time, from [`Engine::next_completion`]. Every engine keeps
/// these rules, and callers rely on them:
///
/// * A call that queues an operation never blocks and runs no callback. Each operation completes
///   exactly once, through [`Engine::next_completion`], except `accept`, which completes once for
///   each connection. The order of completions of different descriptors is not specified.
/// * The kernel may take the last byte of a send, and then report that bytes have arrived on the
///   same descriptor. In this case [`CompletionEvent::Sent`] comes before
///   [`CompletionEvent::Received`]. So if a response is received while the send of its request is
///   outstanding, the peer began to respond before the kernel had taken the whole request.
/// * At most one operation is outstanding for each descriptor and direction. The receiving
///   operations are `recv`, `poll_readable` and `accept`, and `splice` and `send_then_splice` from
///   the descriptor. The sending operations are `connect`, `send`, `send_shared` and `send_file`,
///   and `splice` and `send_then_splice` into the descriptor. A second operation is a bug of the
///   caller and panics.
/// * Every buffer that an outstanding operation reads or writes belongs to the engine, never to the
///   caller.
/// * After `close`, `reset` or `detach` no completion of the descriptor follows: the engine ends
///   the outstanding operations. A new descriptor may have the same number at once, and no event of
///   the old one reaches it.
/// * While the budget is exhausted the engine receives nothing into its buffers. Receives that are
///   ready wait in the order in which they became ready. All other operations continue.
pub trait Engine {
    /// A descriptor on its way from one engine to another.
    type DetachedFd: Send + 'static;
    /// The handle with which other threads end this engine's wait.
    type Waker: Wake;

    /// Returns the time at which the wait of this turn ended.
    fn now(&self) -> Instant;
    /// Reads the clock. Use it for measurements only: decisions within a turn use [`Engine::now`].
    fn read_clock(&self) -> Instant;
    /// Returns the time of day at which the wait of this turn ended, as a duration since 1970.
    fn time_of_day(&self) -> Duration;
    /// Returns a random number: unpredictable in a real engine, derived from the seed in the
    /// simulator.
    fn random(&mut self) -> u64;
    /// Returns the budget for bytes that the worker holds longer than a turn.
    fn budget(&self) -> &Budget;
    /// Returns a handle with which other threads end this engine's wait.
    fn waker(&self) -> Self::Waker;

    /// Begins a turn. Submits the queued operations, waits until one completes or `deadline` passes
    /// (`None`: no deadline), and reads the clock.
    fn submit_and_wait(&mut self, deadline: Option<Instant>);
    /// Returns the next completion of this turn, or `None` at the end of the turn. An operation
    /// queued during the turn may complete in the same turn. An engine bounds the number of
    /// completions in a turn, so that it looks for new events often enough.
    fn next_completion(&mut self) -> Option<Completion>;
    /// Returns a lent buffer to the engine. Every buffer goes back before the next turn begins.
    fn recycle(&mut self, buffer: Buffer);

    /// Takes ownership of a listener, or of a connection that another engine detached.
    fn adopt(&mut self, detached: Self::DetachedFd) -> Result<Fd, Error>;
    /// Takes ownership of a socket that was opened elsewhere, only for [`Engine::poll_readable`]
    /// and [`Engine::close`]. After [`CompletionEvent::Readable`] its owner receives everything,
    /// before it polls again. The simulator, which has no real sockets, refuses it.
    fn adopt_socket(&mut self, socket: OwnedFd) -> Result<Fd, Error>;
    /// Releases a connection, so that another engine can adopt it. No operation may be outstanding,
    /// except a receive for which [`Engine::is_recv_ready`] is false. If it is true, the engine may
    /// already have taken bytes from the kernel, and they would be lost.
    fn detach(&mut self, fd: Fd) -> Self::DetachedFd;

    /// Starts accepting on a listener. Each connection is one completion, until an error or
    /// [`Engine::cancel_accept`]. Accepted connections are non-blocking and have TCP_NODELAY set.
    fn accept(&mut self, listener: &Fd, token: Token);
    /// Stops accepting on a listener. Connections that were accepted before still complete.
    fn cancel_accept(&mut self, listener: &Fd);
    /// Opens a connection. Unless the call returns an error, [`CompletionEvent::Connected`]
    /// follows.
    fn connect(&mut self, address: &Address, token: Token) -> Result<Fd, Error>;
    /// Receives up to `max` bytes (`1 <= max <= Buffer::SIZE`) into a buffer of the engine, once
    /// there are any.
    fn recv(&mut self, fd: &Fd, max: usize, token: Token);
    /// Returns whether the outstanding receive may complete without waiting. This is so once the
    /// kernel has announced bytes, the end of the stream, or an error, until a receive finds
    /// nothing left. It is also so for the first receive from an accepted or adopted connection.
    /// The function makes no system call, so bytes that have just arrived are not seen.
    fn is_recv_ready(&self, fd: &Fd) -> bool;
    /// Sends every byte of `parts`, in order. The bytes are read before the call returns. Bytes
    /// that the kernel does not take at once are copied. A copy that outlives the turn is charged
    /// to the budget.
    fn send(&mut self, fd: &Fd, parts: &[&[u8]], token: Token);
    /// Sends every byte of `parts`, in order, and then every byte of `shared`, to a stream. The
    /// bytes of `parts` are read before the call returns; those that the kernel does not take at
    /// once are held as for [`Engine::send`]. The bytes of `shared` are sent by reference if they
    /// are in a file (sendfile(2)); those that the kernel does not take at once are held through
    /// [`SharedBytes::clone_box`], without a copy and without a charge.
    ///
    /// # Panics
    /// May panic if `parts` has 16 elements or more.
    fn send_shared(&mut self, fd: &Fd, parts: &[&[u8]], shared: &dyn SharedBytes, token: Token);
    /// Sends every byte of `parts`, in order, and then `count` bytes (at least 1) of a file from
    /// offset `at`, to a stream (sendfile(2)). The bytes of `parts` are handled as for
    /// [`Engine::send_shared`]. The bytes of the file are read when the connection has room for
    /// them, which may wait for a disk. They are neither copied nor charged, and the file is held
    /// until the operation ends. If the file has fewer bytes by then, or cannot be read, the send
    /// ends with an error for which [`Error::is_of_file`] is true.
    fn send_file(
        &mut self,
        fd: &Fd,
        parts: &[&[u8]],
        file: &Arc<dyn FileRead>,
        at: u64,
        count: usize,
        token: Token,
    );
    /// Returns the number of bytes of the outstanding send that the kernel has not taken yet; 0 if
    /// no send is outstanding. Deadlines that depend on progress use it.
    fn unsent_bytes(&self, fd: &Fd) -> usize;
    /// Returns the number of bytes that the kernel has taken and the peer's kernel has not
    /// acknowledged. A reset would lose them. Makes a system call.
    fn unacknowledged_bytes(&self, fd: &Fd) -> usize;
    /// Sets the congestion control of a connection, or of the connections that a listener accepts
    /// from now on. Unix sockets have none. If the kernel refuses the name, the old setting stays,
    /// and no error is returned: the setting affects speed only, and configured names are tried
    /// when the process starts.
    fn set_congestion(&mut self, fd: &Fd, name: &str);
    /// Returns the local address of a connection (getsockname(2)); `None` for a Unix socket, or if
    /// the address is no longer known. Makes a system call.
    fn local_address(&self, fd: &Fd) -> Option<SocketAddr>;
    /// Returns the kernel's estimates for the path to the peer if they are known without a system
    /// call.
    fn path_estimate(&self, _fd: &Fd) -> Option<PathEstimate> {
        None
    }
    /// Shuts down one direction or both. No operation may be outstanding in them.
    fn shutdown(&mut self, fd: &Fd, how: ShutdownHow);
    /// Closes a descriptor. Bytes that the kernel has taken still reach the peer, unless bytes from
    /// the peer are unread. The peer is notified by the end of the next [`Engine::submit_and_wait`]
    /// at the latest.
    fn close(&mut self, fd: Fd);
    /// Closes a connection with a reset, so that the peer cannot mistake what it has received for
    /// the whole message. The peer is notified as for [`Engine::close`].
    fn reset(&mut self, fd: Fd);

    /// Creates a pipe and returns its reading end and its writing end.
    fn pipe(&mut self) -> Result<(Fd, Fd), Error>;
    /// Moves up to `max` bytes between a socket and a pipe, once at least one byte can be moved. A
    /// pipe may be filled only while it is empty, so the engine never has to wait for a pipe.
    fn splice(&mut self, from: &Fd, into: &Fd, max: usize, token: Token);
    /// Moves up to `max` bytes (at least 1) from a stream into an empty pipe without waiting, and
    /// returns how many. Returns `None` if there is nothing to read yet. Returns 0 at the end of
    /// the stream, and also if urgent data may come next, which no splice gets past. The next
    /// receive shows which it was. An error is returned only once. Nothing is outstanding
    /// afterwards and no completion follows. A caller can wait for a slow source with
    /// [`Engine::poll_readable`], and so needs a pipe only once there are bytes.
    fn try_splice_in(&mut self, from: &Fd, into: &Fd, max: usize) -> Option<Result<usize, Error>>;
    /// Duplicates up to `max` bytes (at least 1) from the beginning of one pipe into another, empty
    /// pipe without consuming them (tee(2)), and returns how many. It duplicates fewer bytes, or
    /// none, if the empty pipe has too few slots.
    fn tee(&mut self, from: &Fd, into: &Fd, max: usize) -> Result<usize, Error>;
    /// Reads up to `memory.len()` bytes (at least 1) from a pipe without waiting, and returns how
    /// many; 0 if the pipe is empty.
    fn read_pipe(&mut self, from: &Fd, memory: &mut [u8]) -> Result<usize, Error>;
    /// Receives up to `memory.len()` bytes (at least 1) from a stream into `memory` without
    /// waiting, and returns how many; 0 at the end of the stream. Returns `None` if there is
    /// nothing to read yet. An error is returned only once. Nothing is outstanding afterwards and
    /// no completion follows. The budget does not apply, since the bytes are in the caller's
    /// memory.
    fn try_recv_into(&mut self, from: &Fd, memory: &mut [u8]) -> Option<Result<usize, Error>>;
    /// Hints that `bytes` bytes will certainly arrive, unless the connection ends or breaks. The
    /// next receive or `poll_readable` of the descriptor may then complete a little later, with a
    /// larger part of them. Most engines ignore the hint.
    fn expect_bytes(&mut self, _fd: &Fd, _bytes: u64) {}
    /// Waits until [`Engine::recv`], [`Engine::try_splice_in`] or [`Engine::try_recv_into`] may
    /// find something, and completes with [`CompletionEvent::Readable`]. Consumes nothing. The call
    /// that follows may still find nothing.
    fn poll_readable(&mut self, fd: &Fd, token: Token);
    /// Sends every byte of `parts`, in order, and then moves up to `max` bytes from a pipe, without
    /// a small segment between the two. The operation completes as a splice. The bytes of `parts`
    /// are read before the call returns; bytes that the kernel does not take at once are held as
    /// for [`Engine::send`].
    fn send_then_splice(&mut self, parts: &[&[u8]], from: &Fd, into: &Fd, max: usize, token: Token);

    /// Appends whole records to the access log. Never blocks.
    fn log(&mut self, records: &[u8]);
}

/// The handle that causes [`CompletionEvent::Woken`].
pub trait Wake: Clone + Send + Sync + 'static {
    /// Ends the engine's current wait, or the next one if the engine is not waiting. Several wakes
    /// may be reported as one.
    fn wake(&self);
}
