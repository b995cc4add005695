//! The system calls that transfers need, and their implementation for Linux. Tests implement them
//! by a model.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use millrace_sys::{Errno, EventFd, Events, Poller, Shutdown, TcpState, Timer};

use crate::limits::{EVENTS_PER_CALL, PIPE_BYTES, PIPE_BYTES_MIN};

/// The result of a call: a value, or the error number of the kernel (errno(3)); EAGAIN if the call
/// would wait.
pub type Result<T> = std::result::Result<T, Errno>;

/// Returns whether the kernel lacked memory for a call. The call did nothing, and the connection is
/// unharmed. No readiness event reports that memory is available again.
pub(crate) fn is_shortage(error: Errno) -> bool {
    matches!(error, Errno::NOBUFS | Errno::NOMEM)
}

/// The system calls that move the bytes of a transfer. Only [`SystemCalls::wait`] waits. After
/// ENOBUFS or ENOMEM no byte has moved, and the splicer repeats the call after a pause.
pub trait SystemCalls {
    /// A connection.
    type Socket;
    /// Both ends of a pipe. Dropping the value closes it.
    type Pipe;

    /// Opens a pipe, of [`PIPE_BYTES`] if memory allows.
    ///
    /// # Errors
    /// EMFILE, ENFILE; ENOMEM if the pipe would be too small to be useful.
    fn pipe(&mut self) -> Result<Self::Pipe>;
    /// Moves up to `max` received bytes of a connection into a pipe (splice(2)). 0 means the end of
    /// the stream or a byte that cannot be spliced; a receive shows which.
    ///
    /// # Errors
    /// EAGAIN, also if urgent data hides the bytes behind it ([`SocketEvent::urgent`]); those of
    /// recv(2).
    fn splice_in(&mut self, from: &Self::Socket, into: &Self::Pipe, max: usize) -> Result<usize>;
    /// Moves up to `max` bytes of a pipe to a connection (splice(2)).
    ///
    /// # Errors
    /// EAGAIN; those of send(2).
    fn splice_out(&mut self, from: &Self::Pipe, into: &Self::Socket, max: usize) -> Result<usize>;
    /// Duplicates up to `max` bytes at the start of a pipe at the end of another (tee(2)).
    ///
    /// # Errors
    /// EAGAIN if the other pipe has no room.
    fn tee(&mut self, from: &Self::Pipe, into: &Self::Pipe, max: usize) -> Result<usize>;
    /// Moves up to `max` bytes of a pipe into another (splice(2)).
    ///
    /// # Errors
    /// As for [`SystemCalls::tee`].
    fn splice_between(&mut self, from: &Self::Pipe, into: &Self::Pipe, max: usize)
    -> Result<usize>;
    /// Reads bytes from a pipe.
    ///
    /// # Errors
    /// EAGAIN if the pipe is empty.
    fn read_pipe(&mut self, from: &Self::Pipe, bytes: &mut [u8]) -> Result<usize>;
    /// Receives from a connection. 0 is the end of the stream.
    ///
    /// # Errors
    /// EAGAIN; those of recv(2).
    fn receive(&mut self, from: &Self::Socket, bytes: &mut [u8]) -> Result<usize>;
    /// Like [`SystemCalls::receive`], but leaves the bytes in the socket.
    ///
    /// # Errors
    /// As for [`SystemCalls::receive`].
    fn peek(&mut self, from: &Self::Socket, bytes: &mut [u8]) -> Result<usize>;
    /// Removes up to `room.len()` received bytes from a connection.
    ///
    /// # Errors
    /// As for [`SystemCalls::receive`], but not for lack of memory: the call copies nothing.
    fn discard(&mut self, from: &Self::Socket, room: &mut [u8]) -> Result<usize>;
    /// Sends to a connection. `more` announces that other bytes follow immediately.
    ///
    /// # Errors
    /// EAGAIN; those of send(2).
    fn send(&mut self, into: &Self::Socket, bytes: &[u8], more: bool) -> Result<usize>;
    /// Shuts down the write side of a connection.
    ///
    /// # Errors
    /// ENOTCONN if the connection was aborted.
    fn shutdown_write(&mut self, socket: &Self::Socket) -> Result<()>;
    /// Returns the state of a connection.
    ///
    /// # Errors
    /// EBADF; ENOTSOCK; others if the socket is not TCP.
    fn tcp_state(&self, socket: &Self::Socket) -> Result<TcpState>;
    /// Returns whether the descriptor is non-blocking.
    ///
    /// # Errors
    /// EBADF.
    fn is_nonblocking(&self, socket: &Self::Socket) -> Result<bool>;
    /// Returns and clears the pending error of a connection.
    fn take_error(&mut self, socket: &Self::Socket) -> Option<Errno>;
    /// Returns a number that no other open connection has.
    fn socket_id(&self, socket: &Self::Socket) -> u64;

    /// Reports each later change of a connection, and its present state, by [`SystemCalls::wait`].
    ///
    /// # Errors
    /// ENOMEM, ENOSPC.
    fn watch(&mut self, socket: &Self::Socket, token: u64) -> Result<()>;
    /// Stops the reports of a connection, if there are any. A change that was found before may
    /// still be reported.
    fn unwatch(&mut self, socket: &Self::Socket);
    /// Waits at most `wait_ms_max` (`None`: without limit) and appends the changes to `found`.
    ///
    /// # Errors
    /// None is expected. EINTR is not an error.
    fn wait(&mut self, wait_ms_max: Option<u32>, found: &mut Vec<SocketEvent>) -> Result<()>;
    /// Makes the next wait return at once, and the descriptor of the splicer readable until then.
    fn wake(&mut self);
    /// Starts a pause of `ms` milliseconds (at least 1). The end of the pause ends the current or
    /// next wait. No other pause is running.
    fn start_pause(&mut self, ms: u32);
    /// Returns whether a wait found the end of the pause, and clears that.
    fn take_pause_end(&mut self) -> bool;
}

/// A change of a watched connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SocketEvent {
    /// The token under which the connection is watched.
    pub token: u64,
    /// A receive would not wait.
    pub readable: bool,
    /// Urgent data has arrived. A receive may find bytes behind it that a splice does not.
    pub urgent: bool,
    /// A send would not wait.
    pub writable: bool,
    /// The connection has a pending error.
    pub failed: bool,
    /// The connection is closed in both directions.
    pub hung_up: bool,
}

/// The epoll tokens of the waker and of the pause timer.
const WAKE: u64 = u64::MAX;
const PAUSE_END: u64 = u64::MAX - 1;

/// The kernel that runs this program. The program must ignore SIGPIPE, as Rust programs do by
/// default, because splice(2) has no flag against it.
pub struct Linux<S> {
    poller: Poller,
    events: Events,
    waker: EventFd,
    /// The waker was signalled, and no wait has found it yet.
    is_awake: bool,
    timer: Timer,
    pause_ended: bool,
    sockets: std::marker::PhantomData<fn(&S)>,
}

impl<S: AsFd> Linux<S> {
    /// Creates an epoll instance that watches no connection.
    ///
    /// # Errors
    /// EMFILE, ENFILE, ENOMEM.
    pub fn new() -> Result<Self> {
        let (poller, waker, timer) = (Poller::new()?, EventFd::new()?, Timer::new()?);
        poller.add_listener(waker.as_fd(), WAKE)?;
        poller.add_listener(timer.as_fd(), PAUSE_END)?;
        Ok(Self {
            poller,
            events: Events::new(EVENTS_PER_CALL),
            waker,
            is_awake: false,
            timer,
            pause_ended: false,
            sockets: std::marker::PhantomData,
        })
    }

    /// Returns a descriptor that is readable (poll(2)) when a wait would return, with one edge for
    /// each change (EPOLLET).
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.poller.as_fd()
    }
}

/// A pipe of [`Linux`].
#[derive(Debug)]
pub struct LinuxPipe {
    out: OwnedFd,
    into: OwnedFd,
}

impl<S: AsFd> SystemCalls for Linux<S> {
    type Socket = S;
    type Pipe = LinuxPipe;

    fn pipe(&mut self) -> Result<LinuxPipe> {
        match millrace_sys::pipe(PIPE_BYTES)? {
            (_, _, capacity) if capacity < PIPE_BYTES_MIN => Err(Errno::NOMEM),
            (out, into, _) => Ok(LinuxPipe { out, into }),
        }
    }

    fn splice_in(&mut self, from: &S, into: &LinuxPipe, max: usize) -> Result<usize> {
        millrace_sys::splice(from.as_fd(), into.into.as_fd(), max)
    }

    fn splice_out(&mut self, from: &LinuxPipe, into: &S, max: usize) -> Result<usize> {
        millrace_sys::splice(from.out.as_fd(), into.as_fd(), max)
    }

    fn tee(&mut self, from: &LinuxPipe, into: &LinuxPipe, max: usize) -> Result<usize> {
        millrace_sys::tee(from.out.as_fd(), into.into.as_fd(), max)
    }

    fn splice_between(&mut self, from: &LinuxPipe, into: &LinuxPipe, max: usize) -> Result<usize> {
        millrace_sys::splice(from.out.as_fd(), into.into.as_fd(), max)
    }

    fn read_pipe(&mut self, from: &LinuxPipe, bytes: &mut [u8]) -> Result<usize> {
        millrace_sys::read_pipe(from.out.as_fd(), bytes)
    }

    fn receive(&mut self, from: &S, bytes: &mut [u8]) -> Result<usize> {
        millrace_sys::receive(from.as_fd(), bytes)
    }

    fn peek(&mut self, from: &S, bytes: &mut [u8]) -> Result<usize> {
        millrace_sys::peek(from.as_fd(), bytes)
    }

    fn discard(&mut self, from: &S, room: &mut [u8]) -> Result<usize> {
        millrace_sys::discard(from.as_fd(), room)
    }

    fn send(&mut self, into: &S, bytes: &[u8], more: bool) -> Result<usize> {
        millrace_sys::send(into.as_fd(), &[bytes], more)
    }

    fn shutdown_write(&mut self, socket: &S) -> Result<()> {
        millrace_sys::shutdown(socket.as_fd(), Shutdown::Write)
    }

    fn tcp_state(&self, socket: &S) -> Result<TcpState> {
        millrace_sys::tcp_state(socket.as_fd())
    }

    fn is_nonblocking(&self, socket: &S) -> Result<bool> {
        millrace_sys::is_nonblocking(socket.as_fd())
    }

    fn take_error(&mut self, socket: &S) -> Option<Errno> {
        millrace_sys::take_error(socket.as_fd()).err()
    }

    fn socket_id(&self, socket: &S) -> u64 {
        socket.as_fd().as_raw_fd() as u64
    }

    fn watch(&mut self, socket: &S, token: u64) -> Result<()> {
        self.poller.add_connection(socket.as_fd(), token)
    }

    fn unwatch(&mut self, socket: &S) {
        // The descriptor is not registered if adding it failed, or if it was closed too early.
        let _ = self.poller.delete(socket.as_fd());
    }

    fn wait(&mut self, wait_ms_max: Option<u32>, found: &mut Vec<SocketEvent>) -> Result<()> {
        match self.poller.wait(&mut self.events, wait_ms_max) {
            Err(Errno::INTR) => return Ok(()),
            other => other?,
        }
        for (token, readiness) in &mut self.events {
            match token {
                WAKE => self.is_awake = false,
                PAUSE_END => self.pause_ended = true,
                token => found.push(SocketEvent {
                    token,
                    readable: readiness.is_readable(),
                    urgent: readiness.has_urgent_data(),
                    writable: readiness.is_writable(),
                    failed: readiness.has_error(),
                    hung_up: readiness.is_hung_up(),
                }),
            }
        }
        // Events that did not fit need another edge for a caller that watches this descriptor with
        // EPOLLET.
        if self.events.is_full() {
            self.is_awake = true;
            self.waker.signal();
        }
        Ok(())
    }

    fn wake(&mut self) {
        if !std::mem::replace(&mut self.is_awake, true) {
            self.waker.signal();
        }
    }

    fn start_pause(&mut self, ms: u32) {
        self.timer.set(ms);
    }

    fn take_pause_end(&mut self) -> bool {
        std::mem::take(&mut self.pause_ended)
    }
}
