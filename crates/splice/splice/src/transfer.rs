//! One transfer: two connections, a direction or two between them, and what the application was
//! told.

use millrace_sys::Errno;

use crate::direction::{Direction, Resources};
use crate::direction_state::DirectionState;
use crate::kernel::{SocketEvent, SystemCalls};
use crate::request::{End, Error, HalfClose, KeepCopy, Released, Request, Side, SpliceMode};

/// A transfer of a splicer.
pub(crate) struct Transfer<K: SystemCalls> {
    fds: [K::Socket; 2],
    /// From `fd0` to `fd1`.
    forward: Direction<K>,
    /// From `fd1` to `fd0`: of a bidirectional transfer.
    backward: Option<Direction<K>>,
    pub(crate) auto_release: bool,
    /// Whether it waits for its turn.
    pub(crate) is_queued: bool,
    /// Whether it waits for the end of a pause.
    pub(crate) is_paused: bool,
    /// Whether the application was told to read, and has not since.
    pub(crate) is_readable_reported: bool,
    /// Whether the application was told of the end.
    pub(crate) is_end_reported: bool,
}

impl<K: SystemCalls> Transfer<K> {
    /// A transfer of which nothing has moved.
    ///
    /// # Errors
    /// [`Error::Request`].
    pub(crate) fn new(request: Request<'_, K::Socket>, has_input: bool) -> Result<Self, Error> {
        validate(request.keep_copy, request.mode, has_input)?;
        let first = request.prefix.to_vec();
        let (forward, backward) = match request.mode {
            SpliceMode::Unidirectional { limit } => {
                let keep = request.keep_copy;
                (
                    DirectionState::new(
                        Side::Fd0,
                        first.len(),
                        limit,
                        keep,
                        HalfClose::NotForwarded,
                    ),
                    None,
                )
            }
            SpliceMode::Bidirectional => {
                let state = |from, first| {
                    DirectionState::new(from, first, None, None, HalfClose::Forwarded)
                };
                let backward = Direction::new(state(Side::Fd1, 0), Vec::new());
                (state(Side::Fd0, first.len()), Some(backward))
            }
        };
        Ok(Self {
            fds: [request.fd0, request.fd1],
            forward: Direction::new(forward, first),
            backward,
            auto_release: request.auto_release,
            is_queued: false,
            is_paused: false,
            is_readable_reported: false,
            is_end_reported: false,
        })
    }

    /// A connection.
    pub(crate) fn fd(&self, side: Side) -> &K::Socket {
        &self.fds[side as usize]
    }

    /// Moves bytes until somebody has to be waited for: `false`; or a direction took as much as it
    /// may in one turn.
    pub(crate) fn run(&mut self, tools: &mut Resources<K>) -> bool {
        if self.end().is_some() {
            return false;
        }
        let [fd0, fd1] = &self.fds;
        let mut is_paused = self.forward.run(tools, [fd0, fd1]);
        let is_broken = matches!(self.forward.state.end(), Some(End::Aborted { .. }));
        if let Some(backward) = self.backward.as_mut().filter(|_| !is_broken) {
            is_paused |= backward.run(tools, [fd1, fd0]);
        }
        is_paused && self.end().is_none()
    }

    /// Notes what became of a connection.
    pub(crate) fn handle_event(&mut self, kernel: &mut K, side: Side, event: SocketEvent) {
        let fd = &self.fds[side as usize];
        let (from_here, to_here) = match side {
            Side::Fd0 => (Some(&mut self.forward), self.backward.as_mut()),
            Side::Fd1 => (self.backward.as_mut(), Some(&mut self.forward)),
        };
        if let Some(to_here) = to_here {
            let sink_state = &mut to_here.state;
            if event.writable {
                sink_state.note_sink_ready();
            }
            // An error is told once. Where nothing is sent any more, who receives is to be told.
            if (event.failed || event.hung_up) && sink_state.is_sink_open() {
                let error = kernel.take_error(fd).or(event.hung_up.then_some(Errno::PIPE));
                error.into_iter().for_each(|error| sink_state.note_sink_failed(error));
            }
        }
        if let Some(from_here) = from_here.filter(|_| event.readable) {
            from_here.note_source_ready(event.urgent);
        }
    }

    /// Notes an error that the kernel told the application, and tells nobody else, of a connection
    /// of a unidirectional transfer.
    pub(crate) fn note_failed(&mut self, side: Side, error: Errno) {
        match side {
            Side::Fd0 => self.forward.state.set_source_error(error),
            Side::Fd1 => self.forward.state.note_sink_failed(error),
        }
    }

    /// Whether a direction goes on after a pause, as the kernel had no memory.
    pub(crate) fn is_out_of_memory(&self) -> bool {
        let is_backward_short =
            || self.backward.as_ref().is_some_and(|backward| backward.state.is_out_of_memory());
        self.end().is_none() && (self.forward.state.is_out_of_memory() || is_backward_short())
    }

    /// Notes that there was a pause.
    pub(crate) fn note_pause_end(&mut self) {
        self.is_paused = false;
        self.forward.state.note_pause_end();
        self.backward.iter_mut().for_each(|backward| backward.state.note_pause_end());
    }

    /// How the transfer ended, if it did: when every direction has, or one by an abort.
    pub(crate) fn end(&self) -> Option<End> {
        let forward = self.forward.state.end();
        let Some(backward) = &self.backward else { return forward };
        match (forward, backward.state.end()) {
            (Some(aborted @ End::Aborted { .. }), _) | (_, Some(aborted @ End::Aborted { .. })) => {
                Some(aborted)
            }
            (Some(end), Some(_)) => Some(end),
            _ => None,
        }
    }

    /// Payload in bytes that `fd1`, and `fd0`, took.
    pub(crate) fn forwarded_bytes(&self) -> [u64; 2] {
        let backward = self.backward.as_ref().map_or(0, |backward| backward.state.forwarded);
        [self.forward.state.forwarded, backward]
    }

    /// Whether there is what the application is to be told to read.
    pub(crate) fn is_readable(&self) -> bool {
        self.forward.state.is_readable()
    }

    /// Whether the application reads the payload too.
    pub(crate) fn has_copy(&self) -> bool {
        self.forward.state.has_copy()
    }

    /// Whether bytes go both ways.
    pub(crate) fn is_bidirectional(&self) -> bool {
        self.backward.is_some()
    }

    /// Reads kept bytes, and gives how many: 0 when there are none and will be none.
    ///
    /// # Errors
    /// [`Error::WouldBlock`].
    pub(crate) fn read_copy(
        &mut self,
        tools: &mut Resources<K>,
        bytes: &mut [u8],
    ) -> Result<usize, Error> {
        match self.forward.read(tools, bytes) {
            0 if !self.forward.state.has_forwarded_all() => Err(Error::WouldBlock),
            count => {
                self.is_readable_reported = false;
                Ok(count)
            }
        }
    }

    /// Ends the transfer, and gives what is left of it.
    pub(crate) fn release(self, tools: &mut Resources<K>) -> Released {
        let end = self.end();
        let [fd0, fd1] = &self.fds;
        let forward = self.forward.release(tools, fd1);
        let backward =
            self.backward.map(|backward| backward.release(tools, fd0)).unwrap_or_default();
        Released { end, directions: [forward, backward] }
    }
}

/// Whether a request means something.
fn validate(keep: Option<KeepCopy>, kind: SpliceMode, has_input: bool) -> Result<(), Error> {
    match (keep, kind) {
        (Some(_), SpliceMode::Bidirectional) => {
            Err(Error::Request("a copy is kept of one direction alone"))
        }
        (Some(keep), _) if keep.min2read == 0 || keep.min2read > keep.max2cache => {
            Err(Error::Request("min2read is at least 1, and no more than max2cache"))
        }
        (None, _) if has_input => Err(Error::Request("an input buffer wants a copy that is kept")),
        _ => Ok(()),
    }
}
