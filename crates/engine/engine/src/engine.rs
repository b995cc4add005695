//! The trait that a worker is generic over, and the data that crosses it.

use std::fmt;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crate::{Budget, Buffer, Error, Instant, SharedBytes, Token};

/// A descriptor as its engine knows it. Neither copied nor cloned: whoever holds it ends it by
/// [`Engine::close`] or [`Engine::reset`]. What an engine makes of the number is its own affair.
#[derive(Debug, PartialEq, Eq)]
pub struct Fd(pub u32);

/// Where to connect to.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Address {
    /// TCP.
    Tcp(SocketAddr),
    /// UDP, connected: datagrams of this one peer. A receive brings one datagram.
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

/// What TCP has found out about the way to a peer, so far.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PathEstimate {
    /// The smoothed round-trip time, at least 1.
    pub rtt_us: u32,
    /// The congestion window, in segments, at least 1.
    pub window: u32,
}

/// Which direction of a connection ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ShutdownHow {
    /// Nothing more will be sent: the peer reads the end of the stream.
    Write,
    /// Both directions.
    Both,
}

/// An operation that ended, given to the one whose token it carries.
#[derive(Debug)]
pub struct Completion {
    /// As it was when the operation was queued; its owner may be gone since (see [`Token`]).
    pub token: Token,
    /// Which operation it was and how it ended.
    pub event: CompletionEvent,
}

/// How an operation ended.
#[derive(Debug)]
pub enum CompletionEvent {
    /// One connection of an armed listener, with the client's address (`None`: a Unix socket).
    /// After an error the listener is no longer armed.
    Accepted(Result<(Fd, Option<SocketAddr>), Error>),
    /// The connection is there, or will not be. The descriptor has to be closed in both cases.
    Connected(Result<(), Error>),
    /// At least one byte; an empty buffer is the end of the stream, and never the break that a
    /// failed send has told or is about to tell. To be recycled in any case.
    Received(Result<Buffer, Error>),
    /// Every byte of every part was taken by the kernel; or none or some were, and no more can be.
    Sent(Result<(), Error>),
    /// So many bytes moved, at least one; zero is the end of the source.
    Spliced(Result<usize, Error>),
    /// What [`Engine::poll_readable`] waited for may be there: bytes, an end, or an error.
    Readable,
    /// Somebody used the engine's waker: mailboxes are to be read.
    Woken,
}

/// Completions over one kernel, real or simulated.
///
/// Rules that every engine keeps, and that callers rely on:
/// * An operation is queued by a call that never blocks and never runs its caller's code; its one
///   completion comes from [`Engine::next_completion`], in no order promised between descriptors.
/// * Where the kernel took every byte of a send before a receive of the same descriptor was
///   announced, [`CompletionEvent::Sent`] comes before [`CompletionEvent::Received`]. So a response that is received
///   while a send is outstanding began before the end of the request was sent.
/// * At most one operation is outstanding for a descriptor and direction (receiving: `recv`,
///   `watch`, `splice` from it, `accept`; sending: `connect`, `send`, `splice` and `splice_after`
///   into it). A second one is the caller's bug and panics.
/// * Every buffer that the kernel reads or writes belongs to the engine, never to a caller.
/// * After `close`, `reset` or `detach` no completion for the descriptor is given any more, and
///   whatever it had outstanding is ended in the right order by the engine: a number is reused
///   only when the kernel has forgotten the old one.
/// * While the budget is exhausted nothing is received; receives that are ready wait for it in the
///   order in which they became ready. Everything else goes on.
pub trait Engine {
    /// A descriptor on its way to another worker's engine.
    type DetachedFd: Send + 'static;
    /// Ends another worker's wait.
    type Waker: Wake;

    /// The clock as it stood when this turn began.
    fn now(&self) -> Instant;
    /// The clock as it stands at the call, which reads it. For measurements alone: decisions of a
    /// turn go by [`Engine::now`].
    fn read_clock(&self) -> Instant;
    /// The time of day, since 1970, as it stood when this turn began.
    fn time_of_day(&self) -> Duration;
    /// A random number: unpredictable in a real engine, from the seed in the simulator.
    fn random(&mut self) -> u64;
    /// The bytes that this engine's worker may hold.
    fn budget(&self) -> &Budget;
    /// A handle by which other threads end this engine's wait.
    fn waker(&self) -> Self::Waker;

    /// Begins a turn: submits what was queued, waits for at least one completion or until
    /// `deadline` (`None`: for ever), and reads the clock.
    fn submit_and_wait(&mut self, deadline: Option<Instant>);
    /// The next completion of this turn; `None` ends it. Operations queued meanwhile may complete
    /// in the same turn, but an engine bounds how many it gives before it looks at the kernel
    /// again.
    fn next_completion(&mut self) -> Option<Completion>;
    /// Takes a lent buffer back.
    fn recycle(&mut self, buffer: Buffer);

    /// Takes over a descriptor: a listener, or a connection from another worker.
    fn adopt(&mut self, detached: Self::DetachedFd) -> Result<Fd, Error>;
    /// Gives up a connection that has nothing outstanding but perhaps a receive for which nothing
    /// is announced ([`Engine::is_recv_ready`]): its bytes may be taken already.
    fn detach(&mut self, fd: Fd) -> Self::DetachedFd;

    /// Arms a listener: every connection gives a completion until [`Engine::cancel_accept`] or an
    /// error. Connections arrive non-blocking, with TCP_NODELAY.
    fn accept(&mut self, listener: &Fd, token: Token);
    /// Disarms a listener. Connections accepted before still come.
    fn cancel_accept(&mut self, listener: &Fd);
    /// Opens a connection; [`CompletionEvent::Connected`] follows unless an error is returned at once.
    fn connect(&mut self, address: &Address, token: Token) -> Result<Fd, Error>;
    /// Receives up to `max` bytes (`1 <= max <= Buffer::SIZE`).
    fn recv(&mut self, fd: &Fd, max: usize, token: Token);
    /// Whether it is known already that the outstanding receive will end: bytes, an end or an error
    /// were announced, and their completion is not given yet. Costs no system call, so what has
    /// only just arrived is not seen.
    fn is_recv_ready(&self, fd: &Fd) -> bool;
    /// Sends every byte of `parts`, in order. They are read before the call returns; what the
    /// kernel does not take at once is held by the engine, charged to the budget.
    fn send(&mut self, fd: &Fd, parts: &[&[u8]], token: Token);
    /// Sends every byte of `parts`, in order, and then those of `shared`, by reference where they
    /// are in a file: the engine copies nothing of them, and what the kernel does not take at once
    /// is held without charge, by a value of [`SharedBytes::clone_box`]. `parts` are read before the call
    /// returns. Streams only.
    ///
    /// # Panics
    /// When there are 16 parts or more.
    fn send_shared(&mut self, fd: &Fd, parts: &[&[u8]], shared: &dyn SharedBytes, token: Token);
    /// Bytes of the outstanding send that the kernel has not taken; 0 when none is outstanding.
    /// For deadlines that follow progress.
    fn unsent_bytes(&self, fd: &Fd) -> usize;
    /// Bytes that the kernel took, and the peer's kernel has not acknowledged; a reset would lose
    /// them. Costs a system call.
    fn unacknowledged_bytes(&self, fd: &Fd) -> usize;
    /// Sets the congestion control of a connection, or of a listener for those that it accepts from
    /// then on. What has none (a Unix socket), or a name that the kernel refuses, leaves all as it
    /// was: it is a matter of speed alone, and names are tried when the process starts.
    fn set_congestion(&mut self, fd: &Fd, name: &str);
    /// The address that an accepted connection was opened to; `None`: that of a Unix socket, or it
    /// is not known any more. Costs a system call.
    fn local_address(&self, fd: &Fd) -> Option<SocketAddr>;
    /// What is known of the way to a connection's peer without a system call; `None`: nothing.
    fn path_estimate(&self, _fd: &Fd) -> Option<PathEstimate> {
        None
    }
    /// Ends a direction; nothing may be outstanding in it.
    fn shutdown(&mut self, fd: &Fd, how: ShutdownHow);
    /// Closes. Bytes that the kernel took still reach the peer, unless bytes from it are unread.
    /// The peer is told by the end of the next turn's wait at the latest; likewise for `reset`.
    fn close(&mut self, fd: Fd);
    /// Closes at once with a reset, so that the peer cannot take what it got for the whole.
    fn reset(&mut self, fd: Fd);

    /// A pipe: (end to read from, end to write into).
    fn pipe(&mut self) -> Result<(Fd, Fd), Error>;
    /// Moves up to `max` bytes between a socket and a pipe, once it can move at least one. A pipe
    /// is filled only when empty, and emptied before it is filled again: so the side that has to
    /// be waited for is always the socket.
    fn splice(&mut self, from: &Fd, into: &Fd, max: usize, token: Token);
    /// Moves what a stream has at once, up to `max` bytes (at least 1), into an empty pipe: how
    /// many bytes; 0 where a pipe gets no further and a receive tells why: at the stream's end, or
    /// before urgent data; or why it broke, which is told only once. `None`: there is nothing yet.
    /// Nothing is outstanding afterwards, and no completion follows: so whoever waits for a slow
    /// source holds no pipe.
    fn try_splice_in(&mut self, from: &Fd, into: &Fd, max: usize) -> Option<Result<usize, Error>>;
    /// Has an empty pipe refer to what another one has, from its beginning on, and up to `max` bytes
    /// (at least 1) of it: how many. The other pipe keeps them. Fewer, even 0, where that takes more
    /// places than the empty one has.
    fn tee(&mut self, from: &Fd, into: &Fd, max: usize) -> Result<usize, Error>;
    /// Takes what a pipe has, up to `memory.len()` bytes (at least 1): how many; 0 where it is empty.
    fn read_pipe(&mut self, from: &Fd, memory: &mut [u8]) -> Result<usize, Error>;
    /// Receives what a stream has at once, up to `memory.len()` bytes (at least 1), into memory of
    /// the caller's: how many bytes, 0 at the stream's end; or why it broke, which is told only
    /// once. `None`: there is nothing yet. Nothing is outstanding afterwards, and no completion
    /// follows; the budget is not asked, as nothing of the engine's is held.
    fn try_recv_into(&mut self, from: &Fd, memory: &mut [u8]) -> Option<Result<usize, Error>>;
    /// Says of the receive or watch that is begun next how many bytes are certain to come, if no
    /// end or break does: it need not complete before a good part of them is there, but soon. A
    /// hint, which most engines have no use for.
    fn expect_bytes(&mut self, _fd: &Fd, _bytes: u64) {}
    /// Waits, as a receive does, until a receive, [`Engine::try_splice_in`] or [`Engine::try_recv_into`] may find
    /// something, and takes
    /// nothing: [`CompletionEvent::Readable`]. It may turn out that nothing is there.
    fn poll_readable(&mut self, fd: &Fd, token: Token);
    /// Sends every byte of `parts`, in order, and then moves up to `max` bytes out of a pipe,
    /// without a small segment between the two. The completion is that of the splice. `parts` are
    /// read before the call returns; what the kernel does not take at once is held, as for a send.
    fn send_then_splice(&mut self, parts: &[&[u8]], from: &Fd, into: &Fd, max: usize, token: Token);

    /// Appends whole records to the access log; never blocks the worker.
    fn log(&mut self, records: &[u8]);
}

/// The other end of [`CompletionEvent::Woken`].
pub trait Wake: Clone + Send + Sync + 'static {
    /// Ends the engine's wait, now or, if it is not waiting, the next one. Wakes may fold together.
    fn wake(&self);
}
