//! One transfer: two connections, one or two directions, and the notices that were sent.

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
    /// From `fd1` to `fd0`, in a bidirectional transfer.
    backward: Option<Direction<K>>,
    pub(crate) auto_release: bool,
    /// The transfer is in the queue of the splicer.
    pub(crate) is_queued: bool,
    /// The transfer waits for the end of a pause.
    pub(crate) is_paused: bool,
    /// A readable notice was sent, and the application has not read since.
    pub(crate) is_readable_reported: bool,
    /// The notice of the end was sent.
    pub(crate) is_end_reported: bool,
}

impl<K: SystemCalls> Transfer<K> {
    /// Creates a transfer that has moved no byte.
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

    /// Returns a connection.
    pub(crate) fn fd(&self, side: Side) -> &K::Socket {
        &self.fds[side as usize]
    }

    /// Moves bytes. Returns `false` if the transfer has to wait or has ended, `true` if a direction
    /// reached its limit for one turn.
    pub(crate) fn run(&mut self, resources: &mut Resources<K>) -> bool {
        if self.end().is_some() {
            return false;
        }
        let [fd0, fd1] = &self.fds;
        let mut has_more = self.forward.run(resources, [fd0, fd1]);
        let is_broken = matches!(self.forward.state.end(), Some(End::Aborted { .. }));
        if let Some(backward) = self.backward.as_mut().filter(|_| !is_broken) {
            has_more |= backward.run(resources, [fd1, fd0]);
        }
        has_more && self.end().is_none()
    }

    /// Handles a change of a connection.
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
            // The kernel reports an error once. If this direction sends nothing any more, the
            // direction that receives from the connection must get the error.
            if (event.failed || event.hung_up) && sink_state.is_sink_open() {
                let error = kernel.take_error(fd).or(event.hung_up.then_some(Errno::PIPE));
                error.into_iter().for_each(|error| sink_state.note_sink_failed(error));
            }
        }
        if let Some(from_here) = from_here.filter(|_| event.readable) {
            from_here.note_source_ready(event.urgent);
        }
    }

    /// Records an error of a connection that the kernel reported to the application and will not
    /// report again. Only for unidirectional transfers.
    pub(crate) fn note_failed(&mut self, side: Side, error: Errno) {
        match side {
            Side::Fd0 => self.forward.state.set_source_error(error),
            Side::Fd1 => self.forward.state.note_sink_failed(error),
        }
    }

    /// Returns whether a direction pauses because the kernel had no memory.
    pub(crate) fn is_out_of_memory(&self) -> bool {
        let is_backward_short =
            || self.backward.as_ref().is_some_and(|backward| backward.state.is_out_of_memory());
        self.end().is_none() && (self.forward.state.is_out_of_memory() || is_backward_short())
    }

    /// Records the end of a pause.
    pub(crate) fn note_pause_end(&mut self) {
        self.is_paused = false;
        self.forward.state.note_pause_end();
        self.backward.iter_mut().for_each(|backward| backward.state.note_pause_end());
    }

    /// Returns how the transfer ended; `None` before all directions have ended or one was aborted.
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

    /// Returns the payload bytes sent to `fd1` and to `fd0`.
    pub(crate) fn forwarded_bytes(&self) -> [u64; 2] {
        let backward = self.backward.as_ref().map_or(0, |backward| backward.state.forwarded);
        [self.forward.state.forwarded, backward]
    }

    /// Returns whether a readable notice is due.
    pub(crate) fn is_readable(&self) -> bool {
        self.forward.state.is_readable()
    }

    /// Returns whether the application reads the payload too.
    pub(crate) fn has_copy(&self) -> bool {
        self.forward.state.has_copy()
    }

    /// Returns whether the transfer is bidirectional.
    pub(crate) fn is_bidirectional(&self) -> bool {
        self.backward.is_some()
    }

    /// Reads kept payload and returns its length: 0 after the end.
    ///
    /// # Errors
    /// [`Error::WouldBlock`].
    pub(crate) fn read_copy(
        &mut self,
        resources: &mut Resources<K>,
        bytes: &mut [u8],
    ) -> Result<usize, Error> {
        match self.forward.read(resources, bytes) {
            0 if !self.forward.state.is_copy_complete() => Err(Error::WouldBlock),
            count => {
                self.is_readable_reported = false;
                Ok(count)
            }
        }
    }

    /// Ends the transfer and returns the remaining bytes.
    pub(crate) fn release(self, resources: &mut Resources<K>) -> Released {
        let end = self.end();
        let [fd0, fd1] = &self.fds;
        let forward = self.forward.release(resources, fd1);
        let backward =
            self.backward.map(|backward| backward.release(resources, fd0)).unwrap_or_default();
        Released { end, directions: [forward, backward] }
    }
}

/// Checks the mode and the bounds of a request.
fn validate(keep: Option<KeepCopy>, mode: SpliceMode, has_input: bool) -> Result<(), Error> {
    match (keep, mode) {
        (Some(_), SpliceMode::Bidirectional) => {
            Err(Error::Request("KeepCopy of both directions (expected: a unidirectional transfer)"))
        }
        (Some(keep), _) if keep.min2read == 0 || keep.min2read > keep.max2cache => {
            Err(Error::Request("min2read is out of range (expected: 1 to max2cache)"))
        }
        (None, _) if has_input => Err(Error::Request("input buffer without KeepCopy")),
        _ => Ok(()),
    }
}
