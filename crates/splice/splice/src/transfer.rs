//! One transfer: two connections, a direction or two between them, and what the application was
//! told.

use millrace_sys::Errno;

use crate::carrier::{Carrier, Tools};
use crate::flow::Flow;
use crate::kernel::{Found, Kernel};
use crate::request::{Close, End, Error, Keep, Kind, Released, Request, Side};

/// A transfer of a splicer.
pub(crate) struct Transfer<K: Kernel> {
    fds: [K::Socket; 2],
    /// From `fd0` to `fd1`.
    forth: Carrier<K>,
    /// From `fd1` to `fd0`: of a bidirectional transfer.
    back: Option<Carrier<K>>,
    pub(crate) auto_release: bool,
    /// Whether it waits for its turn.
    pub(crate) is_queued: bool,
    /// Whether it waits for the end of a pause.
    pub(crate) is_pausing: bool,
    /// Whether the application was told to read, and has not since.
    pub(crate) is_told_to_read: bool,
    /// Whether the application was told of the end.
    pub(crate) is_told_of_end: bool,
}

impl<K: Kernel> Transfer<K> {
    /// A transfer of which nothing has moved.
    ///
    /// # Errors
    /// [`Error::Request`].
    pub(crate) fn new(request: Request<'_, K::Socket>, has_input: bool) -> Result<Self, Error> {
        check(request.keep, request.kind, has_input)?;
        let first = request.first.to_vec();
        let (forth, back) = match request.kind {
            Kind::Unidirectional { limit } => {
                let keep = request.keep;
                (Flow::new(Side::Fd0, first.len(), limit, keep, Close::NotForwarded), None)
            }
            Kind::Bidirectional => {
                let flow = |from, first| Flow::new(from, first, None, None, Close::Forwarded);
                let back = Carrier::new(flow(Side::Fd1, 0), Vec::new());
                (flow(Side::Fd0, first.len()), Some(back))
            }
        };
        Ok(Self {
            fds: [request.fd0, request.fd1],
            forth: Carrier::new(forth, first),
            back,
            auto_release: request.auto_release,
            is_queued: false,
            is_pausing: false,
            is_told_to_read: false,
            is_told_of_end: false,
        })
    }

    /// A connection.
    pub(crate) fn fd(&self, side: Side) -> &K::Socket {
        &self.fds[side as usize]
    }

    /// Moves bytes until somebody has to be waited for: `false`; or a direction took as much as it
    /// may in one turn.
    pub(crate) fn run(&mut self, tools: &mut Tools<K>) -> bool {
        if self.end().is_some() {
            return false;
        }
        let [fd0, fd1] = &self.fds;
        let mut is_paused = self.forth.run(tools, [fd0, fd1]);
        let is_broken = matches!(self.forth.flow.end(), Some(End::Aborted { .. }));
        if let Some(back) = self.back.as_mut().filter(|_| !is_broken) {
            is_paused |= back.run(tools, [fd1, fd0]);
        }
        is_paused && self.end().is_none()
    }

    /// Notes what became of a connection.
    pub(crate) fn found(&mut self, kernel: &mut K, side: Side, found: Found) {
        let fd = &self.fds[side as usize];
        let (from_here, to_here) = match side {
            Side::Fd0 => (Some(&mut self.forth), self.back.as_mut()),
            Side::Fd1 => (self.back.as_mut(), Some(&mut self.forth)),
        };
        if let Some(to_here) = to_here {
            let flow = &mut to_here.flow;
            if found.writable {
                flow.sink_ready();
            }
            // An error is told once. Where nothing is sent any more, who receives is to be told.
            if (found.failed || found.hung_up) && flow.is_sink_open() {
                let error = kernel.take_error(fd).or(found.hung_up.then_some(Errno::PIPE));
                error.into_iter().for_each(|error| flow.sink_gone(error));
            }
        }
        if let Some(from_here) = from_here.filter(|_| found.readable) {
            from_here.source_ready(found.urgent);
        }
    }

    /// Notes an error that the kernel told the application, and tells nobody else, of a connection
    /// of a unidirectional transfer.
    pub(crate) fn failed(&mut self, side: Side, error: Errno) {
        match side {
            Side::Fd0 => self.forth.flow.source_breaks(error),
            Side::Fd1 => self.forth.flow.sink_gone(error),
        }
    }

    /// Whether a direction goes on after a pause, as the kernel had no memory.
    pub(crate) fn is_short(&self) -> bool {
        let is_back_short = || self.back.as_ref().is_some_and(|back| back.flow.is_short());
        self.end().is_none() && (self.forth.flow.is_short() || is_back_short())
    }

    /// Notes that there was a pause.
    pub(crate) fn has_paused(&mut self) {
        self.is_pausing = false;
        self.forth.flow.has_paused();
        self.back.iter_mut().for_each(|back| back.flow.has_paused());
    }

    /// How the transfer ended, if it did: when every direction has, or one by an abort.
    pub(crate) fn end(&self) -> Option<End> {
        let forth = self.forth.flow.end();
        let Some(back) = &self.back else { return forth };
        match (forth, back.flow.end()) {
            (Some(aborted @ End::Aborted { .. }), _) | (_, Some(aborted @ End::Aborted { .. })) => {
                Some(aborted)
            }
            (Some(end), Some(_)) => Some(end),
            _ => None,
        }
    }

    /// Payload in bytes that `fd1`, and `fd0`, took.
    pub(crate) fn forwarded(&self) -> [u64; 2] {
        let back = self.back.as_ref().map_or(0, |back| back.flow.forwarded);
        [self.forth.flow.forwarded, back]
    }

    /// Whether there is what the application is to be told to read.
    pub(crate) fn is_readable(&self) -> bool {
        self.forth.flow.is_readable()
    }

    /// Whether the application reads the payload too.
    pub(crate) fn is_kept(&self) -> bool {
        self.forth.flow.is_kept()
    }

    /// Whether bytes go both ways.
    pub(crate) fn is_bidirectional(&self) -> bool {
        self.back.is_some()
    }

    /// Reads kept bytes, and gives how many: 0 when there are none and will be none.
    ///
    /// # Errors
    /// [`Error::WouldBlock`].
    pub(crate) fn read_kept(
        &mut self,
        tools: &mut Tools<K>,
        bytes: &mut [u8],
    ) -> Result<usize, Error> {
        match self.forth.read(tools, bytes) {
            0 if !self.forth.flow.has_forwarded_all() => Err(Error::WouldBlock),
            count => {
                self.is_told_to_read = false;
                Ok(count)
            }
        }
    }

    /// Ends the transfer, and gives what is left of it.
    pub(crate) fn release(self, tools: &mut Tools<K>) -> Released {
        let end = self.end();
        let [fd0, fd1] = &self.fds;
        let forth = self.forth.release(tools, fd1);
        let back = self.back.map(|back| back.release(tools, fd0)).unwrap_or_default();
        Released { end, directions: [forth, back] }
    }
}

/// Whether a request means something.
fn check(keep: Option<Keep>, kind: Kind, has_input: bool) -> Result<(), Error> {
    match (keep, kind) {
        (Some(_), Kind::Bidirectional) => {
            Err(Error::Request("a copy is kept of one direction alone"))
        }
        (Some(keep), _) if keep.min2read == 0 || keep.min2read > keep.max2cache => {
            Err(Error::Request("min2read is at least 1, and no more than max2cache"))
        }
        (None, _) if has_input => Err(Error::Request("an input buffer wants a copy that is kept")),
        _ => Ok(()),
    }
}
