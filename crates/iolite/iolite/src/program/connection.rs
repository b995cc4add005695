//! The server's side of a connection to a program.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;

use millrace_sys::Errno;

use crate::account::Account;
use crate::aggregate::Aggregate;
use crate::buffer::Buffer;
use crate::channel::{Channel, ChannelError, ChannelOptions, PeerFault, Received};
use crate::limits::BLOCK_BYTES;
use crate::pool::Pool;
use crate::program::message;
use crate::slab::Slab;

/// The bounds of a connection to a program.
#[derive(Clone, Debug)]
pub struct ProgramOptions {
    /// The memory for bytes that are copied, in bytes. It is taken as it is used.
    pub slab_bytes: usize,
    /// The sealed files of the program are charged to this account.
    pub account: Account,
    /// The size of the pool for bodies of requests, in bytes, at least one block of 2 MB. Bodies
    /// that find no room are copied.
    pub pool_bytes: usize,
    /// The longest header of a response, in bytes.
    pub header_bytes_max: usize,
}

/// A connection of a server to a program.
#[derive(Debug)]
pub struct ProgramConnection {
    channel: Channel,
    slab: Slab,
    pool: Pool,
    account: Account,
}

/// A response of a program.
#[derive(Debug)]
pub struct ProgramResponse {
    /// The id of the request. The program may invent one.
    pub id: u64,
    /// The header, as the program has written it; empty if it is too long.
    pub header: Vec<u8>,
    /// The body.
    pub body: Aggregate,
}

impl ProgramConnection {
    /// Connects to the program that listens on the socket at `path`. Never waits.
    ///
    /// # Errors
    /// [`ChannelError::Kernel`] with the error of connect(2): ENOENT, EACCES, ECONNREFUSED, EAGAIN
    /// if the program accepts no connections; [`ChannelError::Memory`].
    pub fn connect(path: &Path, options: ProgramOptions) -> Result<Self, ChannelError> {
        let ProgramOptions { slab_bytes, account, pool_bytes, header_bytes_max } = options;
        let socket = millrace_sys::connect_packets(path)
            .map_err(|error| ChannelError::Kernel("connect", error))?;
        let slab = Slab::on_heap(slab_bytes)?;
        let text_max = header_bytes_max + message::ID_BYTES;
        let channel_options = ChannelOptions {
            account: account.clone(),
            text_max,
            ..ChannelOptions::new(slab.clone())
        };
        let mut channel = Channel::new(socket, channel_options)?;
        channel.delay_wakes();
        let pool = Pool::new(pool_bytes, u64::MAX, &mut [&mut channel])?;
        Ok(Self { channel, slab, pool, account })
    }

    /// Returns the socket, which is readable when there may be a response, or room for a request
    /// (see [`ProgramConnection::prepare_to_wait`]).
    pub fn socket(&self) -> BorrowedFd<'_> {
        self.channel.socket()
    }

    /// Returns a copy of the socket's descriptor, for an event loop that owns what it waits for.
    ///
    /// # Errors
    /// [`ChannelError::Kernel`] without a free descriptor.
    pub fn copy_socket(&self) -> Result<OwnedFd, ChannelError> {
        let copy = self.channel.socket().try_clone_to_owned();
        copy.map_err(|error| {
            let error = Errno::from_io_error(&error).unwrap_or(Errno::IO);
            ChannelError::Kernel("fcntl", error)
        })
    }

    /// Returns the account of the program's files.
    pub fn account(&self) -> &Account {
        &self.account
    }

    /// Returns memory of the pool that the program reads, for receiving the body of a request into
    /// it; `None` if there is none, or not in one piece: `length` is above [`BLOCK_BYTES`].
    ///
    /// # Panics
    /// If `length` is 0.
    pub fn allocate(&self, length: usize) -> Option<Buffer> {
        if length > BLOCK_BYTES {
            return None;
        }
        self.pool.allocate(length..=length).ok()
    }

    /// Copies the body of a request into the pool that the program reads.
    ///
    /// # Errors
    /// [`ChannelError::NoMemory`].
    pub fn share(&self, body: &[u8]) -> Result<Aggregate, ChannelError> {
        let copied = Aggregate::from_bytes_in_pool(body, &self.pool);
        copied.or_else(|_| Aggregate::from_bytes(body, &self.slab)).map_err(ChannelError::NoMemory)
    }

    /// Returns whether [`ProgramConnection::try_send`] takes a request now.
    ///
    /// # Errors
    /// As [`ProgramConnection::try_receive`].
    pub fn check_room(&mut self) -> Result<bool, ChannelError> {
        self.channel.check_room()
    }

    /// Sends a request with these variables, whose values may be in several pieces, if there is
    /// room for it. Returns whether it was taken. The program sees it at the latest after
    /// [`ProgramConnection::wake`].
    ///
    /// # Errors
    /// [`ChannelError`] has the reasons. After most of them, the connection is of no use.
    pub fn try_send<'a, V: Iterator<Item = &'a [u8]>>(
        &mut self,
        id: u64,
        variables: impl Iterator<Item = (&'a [u8], V)>,
        body: &Aggregate,
    ) -> Result<bool, ChannelError> {
        let write = |text: &mut Vec<u8>| {
            message::begin(text, id);
            variables.for_each(|(name, value)| message::write_variable(text, name, value));
        };
        self.channel.try_send_after_text(write, body)
    }

    /// Receives a response; `None` if there is none yet.
    ///
    /// # Errors
    /// [`ChannelError::Closed`] when the program has closed the connection or has ended; other
    /// reasons of a [`ChannelError`]. [`ChannelError::NoMemory`] may be repaired by dropping
    /// responses; after the others, the connection is of no use.
    pub fn try_receive(&mut self) -> Result<Option<ProgramResponse>, ChannelError> {
        match self.channel.try_receive()? {
            Received::Nothing => Ok(None),
            Received::Ended => Err(ChannelError::Closed),
            Received::Aggregate(body) => {
                let (id, header) = message::split(self.channel.text()).ok_or(PeerFault::Message)?;
                let header = if self.channel.text_is_cut() { &[] } else { header };
                Ok(Some(ProgramResponse { id, header: header.to_vec(), body }))
            }
        }
    }

    /// Wakes the program if it waits for requests that were sent. One call is enough for several
    /// requests.
    pub fn wake(&mut self) {
        self.channel.wake();
    }

    /// Lets the program make the socket readable when it has responded, or when it has made room
    /// after [`ProgramConnection::try_send`] has returned `false`. Returns whether that is so
    /// already. Call this last before waiting.
    ///
    /// # Errors
    /// As [`ProgramConnection::try_receive`].
    pub fn prepare_to_wait(&mut self) -> Result<bool, ChannelError> {
        let is_ready = self.channel.prepare_to_wait();
        self.channel.wake();
        is_ready
    }
}
