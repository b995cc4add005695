//! What transfers ask of a kernel, and Linux as one: in tests a model is another.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use millrace_sys::{Errno, EventFd, Events, Poller, Shutdown, TcpState, Timer};

use crate::limits::{EVENTS_PER_CALL, PIPE_BYTES, PIPE_BYTES_MIN};

/// What a call gives: a value, or the kernel's error number (errno(3)); EAGAIN where it would wait.
pub type Result<T> = std::result::Result<T, Errno>;

/// Whether the kernel had no memory for a call: nothing was done, and that says nothing of the
/// connection. No wait would find that there is memory again.
pub(crate) fn is_shortage(error: Errno) -> bool {
    matches!(error, Errno::NOBUFS | Errno::NOMEM)
}

/// The calls that move a transfer. None of them waits but [`Kernel::wait`]. Where one that moves
/// bytes gives ENOBUFS or ENOMEM, nothing has moved, and it is tried again after a pause.
pub trait SystemCalls {
    /// A connection.
    type Socket;
    /// A pipe, both ends. Dropping it closes it.
    type Pipe;

    /// An empty pipe, for [`PIPE_BYTES`] if there is memory.
    ///
    /// # Errors
    /// EMFILE, ENFILE; ENOMEM if one that is worth while cannot be had.
    fn pipe(&mut self) -> Result<Self::Pipe>;
    /// Moves up to `max` bytes that have come into a pipe (splice(2)). 0: there is no more, or not
    /// in this way; a receive tells.
    ///
    /// # Errors
    /// EAGAIN, also where urgent data hides what is behind it ([`Found::urgent`]); those of recv(2).
    fn splice_in(&mut self, from: &Self::Socket, into: &Self::Pipe, max: usize) -> Result<usize>;
    /// Moves up to `max` bytes of a pipe to a connection (splice(2)).
    ///
    /// # Errors
    /// EAGAIN; those of send(2).
    fn splice_out(&mut self, from: &Self::Pipe, into: &Self::Socket, max: usize) -> Result<usize>;
    /// Repeats up to `max` bytes at the beginning of a pipe behind those of another (tee(2)).
    ///
    /// # Errors
    /// EAGAIN when the other has no room.
    fn tee(&mut self, from: &Self::Pipe, into: &Self::Pipe, max: usize) -> Result<usize>;
    /// Moves up to `max` bytes of a pipe into another (splice(2)).
    ///
    /// # Errors
    /// As [`Kernel::tee`].
    fn splice_between(&mut self, from: &Self::Pipe, into: &Self::Pipe, max: usize)
    -> Result<usize>;
    /// Takes bytes out of a pipe, which has some.
    ///
    /// # Errors
    /// EAGAIN if it has none.
    fn read_pipe(&mut self, from: &Self::Pipe, bytes: &mut [u8]) -> Result<usize>;
    /// Receives; 0 is the end of the stream.
    ///
    /// # Errors
    /// EAGAIN; those of recv(2).
    fn receive(&mut self, from: &Self::Socket, bytes: &mut [u8]) -> Result<usize>;
    /// As [`Kernel::receive`], but the bytes stay where they are.
    ///
    /// # Errors
    /// As [`Kernel::receive`].
    fn peek(&mut self, from: &Self::Socket, bytes: &mut [u8]) -> Result<usize>;
    /// Takes as many bytes as `room` is long, which have come, off a connection.
    ///
    /// # Errors
    /// As [`Kernel::receive`], but no want of memory: it copies nothing, and takes none.
    fn discard(&mut self, from: &Self::Socket, room: &mut [u8]) -> Result<usize>;
    /// Sends; `more`: other bytes follow at once.
    ///
    /// # Errors
    /// EAGAIN; those of send(2).
    fn send(&mut self, into: &Self::Socket, bytes: &[u8], more: bool) -> Result<usize>;
    /// Shuts the write side of a connection.
    ///
    /// # Errors
    /// ENOTCONN if it was aborted.
    fn shutdown_write(&mut self, socket: &Self::Socket) -> Result<()>;
    /// The state of a connection.
    ///
    /// # Errors
    /// EBADF or ENOTSOCK if it is no socket; others say that it is none of TCP.
    fn tcp_state(&self, socket: &Self::Socket) -> Result<TcpState>;
    /// Whether calls on the descriptor never wait.
    ///
    /// # Errors
    /// EBADF.
    fn is_nonblocking(&self, socket: &Self::Socket) -> Result<bool>;
    /// The error that a connection has to tell, which is told once.
    fn take_error(&mut self, socket: &Self::Socket) -> Option<Errno>;
    /// A number that no other open connection has.
    fn socket_id(&self, socket: &Self::Socket) -> u64;

    /// Has [`Kernel::wait`] find each change of a connection from now on, and what it is now.
    ///
    /// # Errors
    /// ENOMEM, ENOSPC.
    fn watch(&mut self, socket: &Self::Socket, token: u64) -> Result<()>;
    /// Ends that, if it was so. What was found before may still be given.
    fn unwatch(&mut self, socket: &Self::Socket);
    /// Finds what changed, for which it waits at most `wait_ms_max` (`None`: for ever).
    ///
    /// # Errors
    /// None that is to be expected; EINTR is no error.
    fn wait(&mut self, wait_ms_max: Option<u32>, found: &mut Vec<SocketEvent>) -> Result<()>;
    /// Ends the wait that is under way, or the next one.
    fn wake(&mut self);
    /// Begins a pause of `ms` (at least 1), which ends a wait when it is over. No other one goes on.
    fn start_pause(&mut self, ms: u32);
    /// Whether a wait found that the pause is over; said once.
    fn take_pause_end(&mut self) -> bool;
}

/// A change of a connection that was watched.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SocketEvent {
    /// The number that it is watched under.
    pub token: u64,
    /// A receive would not wait.
    pub readable: bool,
    /// Urgent data is there, and perhaps bytes behind it, which a receive finds and no fill.
    pub urgent: bool,
    /// A send would not wait.
    pub writable: bool,
    /// It has an error to tell.
    pub failed: bool,
    /// It is closed in both directions.
    pub hung_up: bool,
}

/// The tokens of [`Kernel::wake`] and of [`Kernel::pause`] within this kernel.
const WAKE: u64 = u64::MAX;
const PAUSE_END: u64 = u64::MAX - 1;

/// The kernel that runs this program. SIGPIPE has to be ignored, as in Rust programs it is from
/// their start: splice(2) has no flag that says so.
pub struct Linux<S> {
    poller: Poller,
    events: Events,
    waker: EventFd,
    /// The waker was used, and no wait has found that.
    is_awake: bool,
    timer: Timer,
    has_paused: bool,
    sockets: std::marker::PhantomData<fn(&S)>,
}

impl<S: AsFd> Linux<S> {
    /// An epoll instance of its own, and nothing watched.
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
            has_paused: false,
            sockets: std::marker::PhantomData,
        })
    }

    /// Readable (poll(2)) when a wait would find something, and once more for each change (EPOLLET).
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
        // There is none if registering failed, or if the descriptor was closed against the rules.
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
                PAUSE_END => self.has_paused = true,
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
        // What did not fit is another change for whoever waits for edges of this descriptor.
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
        std::mem::take(&mut self.has_paused)
    }
}
