//! The program's side: it listens for servers, and responds to their requests.

use std::collections::VecDeque;
use std::ffi::CStr;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use millrace_sys::{Errno, Interest, LevelSet, PollSet};

use crate::aggregate::Aggregate;
use crate::channel::{Channel, ChannelError, ChannelOptions, PeerFault, Received};
use crate::error::Error;
use crate::limits::{PARTS_SENT_MAX, PROGRAM_SLAB_BYTES};
use crate::program::interrupter::Interrupter;
use crate::program::message;
use crate::slab::Slab;

/// A program that responds to the requests of one or more servers, for example of each worker of a
/// server.
#[derive(Debug)]
pub struct ProgramListener {
    listener: OwnedFd,
    slab: Slab,
    servers: VecDeque<Server>,
    /// The number of the next server.
    next_number: u64,
    poll: PollSet,
    interrupter: Interrupter,
    /// When the last request was received.
    received: Instant,
    /// The responses since servers were woken.
    unannounced: usize,
    /// The responses of which servers are notified at once.
    prompt: usize,
}

/// A connection of a server.
#[derive(Debug)]
struct Server {
    number: u64,
    channel: Channel,
    /// Responses for which the channel has no room yet: their texts and bodies.
    waiting: VecDeque<(Vec<u8>, Aggregate)>,
}

/// A request.
#[derive(Debug)]
pub struct ProgramRequest {
    server: u64,
    id: u64,
    variables: Vec<u8>,
    body: Aggregate,
}

impl ProgramRequest {
    /// Returns the value of a variable, such as `REQUEST_METHOD`; `None` if the server has not set
    /// it.
    pub fn variable(&self, name: &[u8]) -> Option<&[u8]> {
        self.variables().find(|(of, _)| *of == name).map(|(_, value)| value)
    }

    /// Returns the value of a variable as a string of C; `None` if it is not set, or contains a
    /// zero byte.
    pub fn variable_c(&self, name: &[u8]) -> Option<&CStr> {
        let mut variables = message::variables(&self.variables);
        let (_, value) = variables.find(|(of, _)| *of == name)?;
        CStr::from_bytes_with_nul(value).ok()
    }

    /// Returns the names and values of all variables.
    pub fn variables(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        let all = message::variables(&self.variables);
        all.map(|(name, value)| (name, &value[..value.len() - 1]))
    }

    /// Returns the body.
    pub fn body(&self) -> &Aggregate {
        &self.body
    }
}

impl ProgramListener {
    /// Listens on a Unix packet socket at `path` with the permission bits `mode`. A socket file on
    /// which no process listens any more is replaced.
    ///
    /// # Errors
    /// [`Error::Kernel`]: EADDRINUSE if a process listens there, or if the file is no socket;
    /// EINVAL without a path; those of bind(2).
    pub fn bind(path: &Path, mode: u32) -> Result<Self, Error> {
        if path.as_os_str().is_empty() {
            // The kernel would choose a name.
            return Err(Error::Kernel("bind", Errno::INVAL));
        }
        let listener = millrace_sys::listen_packets(path, mode);
        Self::new(listener.map_err(|error| Error::Kernel("bind", error))?)
    }

    /// Accepts servers from a listening Unix packet socket.
    ///
    /// # Errors
    /// [`Error::Kernel`] without memory or a free descriptor.
    pub fn new(listener: OwnedFd) -> Result<Self, Error> {
        let interrupter = Interrupter::new().map_err(|error| Error::Kernel("eventfd", error))?;
        Ok(Self {
            listener,
            slab: Slab::on_heap(PROGRAM_SLAB_BYTES)?,
            servers: VecDeque::new(),
            next_number: 0,
            poll: PollSet::default(),
            interrupter,
            received: Instant::now(),
            unannounced: 0,
            prompt: 0,
        })
    }

    /// Returns a handle that interrupts [`ProgramListener::receive`].
    pub fn interrupter(&self) -> Interrupter {
        self.interrupter.clone()
    }

    /// Receives the next request, and waits for it. Servers have their turn one after the other. A
    /// server that has gone, or does not keep to the protocol, is forgotten.
    ///
    /// # Errors
    /// [`Error::Interrupted`] after [`Interrupter::interrupt`], also if there is a request, which
    /// the next call returns; [`Error::Kernel`] and other reasons of an [`Error`] if the kernel
    /// cannot wait, or cannot connect a server. The program can receive again, from the other
    /// servers. A server that the kernel does not accept, without a descriptor for example, waits,
    /// and the next call fails at once.
    pub fn receive(&mut self) -> Result<ProgramRequest, Error> {
        let received = self.wait_for_request();
        if received.is_err() {
            // The caller may do something else than to receive again.
            self.announce();
        }
        received
    }

    fn wait_for_request(&mut self) -> Result<ProgramRequest, Error> {
        loop {
            if self.interrupter.take() {
                return Err(Error::Interrupted);
            }
            if let Some(request) = self.try_receive()? {
                self.received = Instant::now();
                return Ok(request);
            }
            self.wait()?;
        }
    }

    /// Receives the next request, if there is one.
    fn try_receive(&mut self) -> Result<Option<ProgramRequest>, Error> {
        for _ in 0..self.servers.len() {
            let Some(mut server) = self.servers.pop_front() else { break };
            match server.receive() {
                Ok(request) => {
                    self.servers.push_back(server);
                    if request.is_some() {
                        return Ok(request);
                    }
                }
                Err(error) => forget_server(error)?,
            }
        }
        Ok(None)
    }

    /// Wakes the servers to which responses were sent.
    fn announce(&mut self) {
        self.unannounced = 0;
        self.servers.iter_mut().for_each(|server| server.channel.wake());
    }

    /// Waits until a server has sent something or has gone, another one connects, or there is an
    /// interrupt.
    fn wait(&mut self) -> Result<(), Error> {
        let (mut is_ready, mut forgotten) = (false, Ok(()));
        self.servers.retain_mut(|server| match server.channel.prepare_to_wait() {
            Ok(has_something) => {
                is_ready |= has_something;
                true
            }
            Err(error) => {
                forgotten = forgotten.and(forget_server(error));
                false
            }
        });
        // Preparing may have sent more of a long response.
        self.announce();
        forgotten?;
        if is_ready {
            return Ok(());
        }
        let sockets = self.servers.iter().map(|server| server.channel.socket());
        let own = [self.listener.as_fd(), self.interrupter.descriptor()];
        let all = own.into_iter().chain(sockets).enumerate();
        let interests =
            all.map(|(at, fd)| Interest { fd, data: at as u64, readable: true, writable: false });
        match self.poll.wait(interests, None) {
            Ok(()) | Err(Errno::INTR) => {}
            Err(error) => return Err(Error::Kernel("poll", error)),
        }
        while let Some((at, _)) = self.poll.next_ready() {
            match at {
                0 => self.accept()?,
                1 => self.interrupter.clear(),
                _ => {}
            }
        }
        Ok(())
    }

    /// Accepts the connection of a server.
    fn accept(&mut self) -> Result<(), Error> {
        let socket = match millrace_sys::accept(self.listener.as_fd()) {
            Ok((socket, _)) => socket,
            Err(Errno::AGAIN | Errno::CONNABORTED) => return Ok(()),
            Err(error) => return Err(Error::Kernel("accept", error)),
        };
        let slab = self.slab.clone();
        let text_max = usize::MAX;
        let options = ChannelOptions { joins_pools: true, text_max, ..ChannelOptions::new(slab) };
        let mut channel = match Channel::new(socket, options) {
            Ok(channel) => channel,
            Err(error) => return forget_server(error),
        };
        channel.delay_wakes();
        let number = self.next_number;
        self.next_number += 1;
        self.servers.push_back(Server { number, channel, waiting: VecDeque::new() });
        Ok(())
    }

    /// Responds to a request. Slices of sealed files ([`SealedMemory`](crate::SealedMemory)) are
    /// passed by reference; others are copied, the longer ones into a sealed file each. Nothing
    /// happens if the server has gone.
    ///
    /// # Errors
    /// [`ChannelError::Parts`]: the body has too many slices; [`ChannelError::Memory`]: there is no
    /// memory for a copy. The program can respond once more, for example without a body.
    pub fn respond(
        &mut self,
        request: &ProgramRequest,
        header: &[u8],
        body: Aggregate,
    ) -> Result<(), ChannelError> {
        let mut servers = self.servers.iter_mut();
        let Some(server) = servers.find(|server| server.number == request.server) else {
            return Ok(());
        };
        let parts = body.slices().count();
        if parts > PARTS_SENT_MAX {
            return Err(ChannelError::Parts(parts));
        }
        server.send(request.id, header, body)?;
        self.unannounced += 1;
        self.prompt = match self.received.elapsed() > UNANNOUNCED_TIME {
            true => PROMPT_AFTER_SLOW,
            false => self.prompt.saturating_sub(1),
        };
        if self.unannounced >= UNANNOUNCED_MAX || self.prompt > 0 {
            self.announce();
        }
        Ok(())
    }

    /// Waits until all servers have received the responses, and ends. Requests that have no
    /// response get none.
    pub fn close(mut self) {
        for mut server in self.servers.drain(..) {
            // A server that has gone receives nothing more.
            let _ = server.send_waiting().and_then(|()| server.channel.close());
        }
    }

    /// Returns the memory in which copies of this program are.
    pub fn slab(&self) -> &Slab {
        &self.slab
    }
}

/// The responses after which servers are woken. If each response woke a server that runs on the
/// same processor, each would cost two switches between the processes.
const UNANNOUNCED_MAX: usize = 16;
/// A response that takes longer wakes its server at once, and so do those after it: earlier
/// responses would wait for a slow one.
const UNANNOUNCED_TIME: Duration = Duration::from_micros(20);
const PROMPT_AFTER_SLOW: usize = 1000;

/// Returns the error for which a server is forgotten, if it is one of this process: the kernel has
/// no descriptor or no memory, for example. A server that has gone or has broken the protocol is no
/// error.
fn forget_server(error: ChannelError) -> Result<(), Error> {
    match error {
        ChannelError::Kernel(_, Errno::PIPE | Errno::CONNRESET | Errno::CONNREFUSED) => Ok(()),
        ChannelError::Kernel(call, error) => Err(Error::Kernel(call, error)),
        ChannelError::Memory(error) => Err(error),
        _ => Ok(()),
    }
}

impl Server {
    /// Sends responses that wait, and receives a request if there is one.
    fn receive(&mut self) -> Result<Option<ProgramRequest>, ChannelError> {
        while let Some((text, body)) = self.waiting.front() {
            if !self.channel.try_send_after_text(|of| of.extend_from_slice(text), body)? {
                break;
            }
            self.waiting.pop_front();
        }
        match self.channel.try_receive()? {
            Received::Nothing => Ok(None),
            Received::Ended => Err(ChannelError::Closed),
            Received::Aggregate(body) => {
                let (id, variables) =
                    message::split(self.channel.text()).ok_or(PeerFault::Message)?;
                let variables = variables.to_vec();
                Ok(Some(ProgramRequest { server: self.number, id, variables, body }))
            }
        }
    }

    /// Sends a response, or lets it wait for room.
    fn send(&mut self, id: u64, header: &[u8], body: Aggregate) -> Result<(), ChannelError> {
        let write = |text: &mut Vec<u8>| {
            message::begin(text, id);
            text.extend_from_slice(header);
        };
        let is_sent = self.waiting.is_empty()
            && match self.channel.try_send_after_text(write, &body) {
                Ok(is_sent) => is_sent,
                Err(error @ ChannelError::Memory(_)) => return Err(error),
                // The next receive finds out and forgets the server.
                Err(_) => true,
            };
        if !is_sent {
            let mut text = Vec::new();
            write(&mut text);
            self.waiting.push_back((text, body));
        }
        Ok(())
    }

    /// Sends the responses that wait, and waits until there is room for them.
    fn send_waiting(&mut self) -> Result<(), ChannelError> {
        while let Some((text, body)) = self.waiting.pop_front() {
            self.channel.send_after_text(|of| of.extend_from_slice(&text), &body)?;
        }
        Ok(())
    }
}
