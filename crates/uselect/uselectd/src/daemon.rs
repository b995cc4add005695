//! `Daemon`: registers processes over a Unix socket and passes them their shared memory.
//!
//! One thread, which waits in poll(2). It never waits for a single process: a request has a fixed
//! length and a deadline, and every reply fits the buffer of the socket.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::io::{ErrorKind, IoSlice, IoSliceMut, Read};
use std::mem::MaybeUninit;
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use rustix::rand::{GetRandomFlags, getrandom};
use uselect::{CHALLENGE_BYTES, REQUEST_MAGIC, RING_REQUEST, RegistrationReply, TrackingMode};

use crate::cgroup::Cgroup;
use crate::error::Error;
use crate::limits::{
    ACCEPT_PAUSE, PENDING_MAX, PENDING_PER_USER_MAX, REGIONS_MAX, REQUEST_TIME_MAX,
};
use crate::listen::DaemonSocket;
use crate::log::RateLimitedLog;
use crate::peer::{PeerProcess, has_received_all, is_in_initial_pid_namespace};
use crate::placeholder;
use crate::policy::AccessPolicy;
use crate::programs::{
    COMMON_TRACEPOINTS, CgroupLinks, EXACT_TRACEPOINTS, EXEC_TRACEPOINTS, Programs, TracepointLinks,
};
use crate::regions::{ClientRegion, RegionFds, RegionTable};
use crate::sweep::Sweeper;
use crate::zombies::ZombieRegions;

/// The daemon: the loaded programs, the registered processes, and those that are about to register.
pub struct Daemon {
    socket: DaemonSocket,
    policy: AccessPolicy,
    programs: Programs,
    regions: RegionTable,
    /// Attached while there are clients or pending peers.
    exec_links: Option<TracepointLinks>,
    /// Attached while there are clients.
    common_links: Option<TracepointLinks>,
    /// Attached while there are clients in exact mode.
    exact_links: Option<TracepointLinks>,
    /// By [`Cgroup::id`], for each cgroup in which there is a client.
    cgroup_links: BTreeMap<u64, CgroupLinks>,
    /// By connection id.
    pending_peers: BTreeMap<u64, PendingPeer>,
    /// By connection id.
    clients: BTreeMap<u64, Client>,
    /// The id of the last connection. Ids are never reused.
    last_connection_id: u64,
    /// Regions of former clients. Together with `clients` there are at most [`REGIONS_MAX`], and at
    /// most [`AccessPolicy::per_user`] of one user.
    zombies: ZombieRegions,
    /// Runs while there are clients.
    sweeper: Sweeper,
    /// No connection is accepted before this time, because the daemon had no descriptor for one.
    accept_paused_until: Instant,
    log: RateLimitedLog,
}

/// A process that has connected, may be registered, and has not sent its request yet. The programs
/// have a placeholder for it.
struct PendingPeer {
    connection: UnixStream,
    process: PeerProcess,
    /// The bytes with which its request has to end.
    challenge: [u8; CHALLENGE_BYTES],
    deadline: Instant,
}

/// A registered process.
struct Client {
    connection: UnixStream,
    process: PeerProcess,
    mode: TrackingMode,
    region: ClientRegion,
    /// [`Cgroup::id`].
    cgroup_id: u64,
}

/// An event that poll(2) reports. Connections are given by their ids.
#[derive(Clone, Copy)]
enum DaemonEvent {
    /// The daemon has to end.
    Shutdown,
    /// A client has sent something or closed its connection.
    ClientReadable(u64),
    /// The process of a client has ended.
    ClientExited(u64),
    /// A pending peer has sent something or closed its connection.
    PendingReadable(u64),
    /// A process has connected.
    ListenerReadable,
}

impl Daemon {
    /// Listens at `path` and loads the programs, which takes about a second. Replaces a socket file
    /// at which no process listens. The socket file is removed when the daemon is dropped.
    ///
    /// # Errors
    /// [`Error::NestedPidNamespace`], [`Error::Listen`], [`Error::Unsupported`],
    /// [`Error::IteratorForbidden`], [`Error::Program`]; [`Error::Kernel`] if /proc is not mounted.
    pub fn new(path: &Path, policy: AccessPolicy) -> Result<Self, Error> {
        if !is_in_initial_pid_namespace()? {
            return Err(Error::NestedPidNamespace);
        }
        // Listening comes first, so that its errors are reported at once. A process that connects
        // meanwhile waits in the queue of the socket.
        let socket = DaemonSocket::new(path)?;
        let programs = Programs::load()?;
        Ok(Self {
            socket,
            policy,
            programs,
            regions: RegionTable::new(),
            exec_links: None,
            common_links: None,
            exact_links: None,
            cgroup_links: BTreeMap::new(),
            pending_peers: BTreeMap::new(),
            clients: BTreeMap::new(),
            last_connection_id: 0,
            zombies: ZombieRegions::default(),
            sweeper: Sweeper::new(),
            accept_paused_until: Instant::now(),
            log: RateLimitedLog::default(),
        })
    }

    /// Serves until `shutdown` is readable, or forever without it. Errors that concern one client
    /// do not end the daemon.
    ///
    /// # Errors
    /// Errors of poll(2), and of bpf(2) when the entry of a process is looked up or removed.
    pub fn run(&mut self, shutdown: Option<BorrowedFd<'_>>) -> Result<(), Error> {
        while self.run_once(shutdown)? {}
        Ok(())
    }

    /// Waits for events and handles them. Returns false if the daemon has to end.
    fn run_once(&mut self, shutdown: Option<BorrowedFd<'_>>) -> Result<bool, Error> {
        for event in self.wait_for_events(shutdown)? {
            match event {
                DaemonEvent::Shutdown => return Ok(false),
                DaemonEvent::ClientReadable(id) if self.handle_client(id) => {}
                DaemonEvent::ClientReadable(id) | DaemonEvent::ClientExited(id) => {
                    self.unregister(id)?;
                }
                DaemonEvent::PendingReadable(id) => self.read_request(id)?,
                DaemonEvent::ListenerReadable => self.accept(),
            }
        }
        let now = Instant::now();
        self.drop_expired_peers(now)?;
        if self.pending_peers.is_empty() && self.clients.is_empty() {
            self.exec_links = None;
        }
        if !self.clients.is_empty()
            && self.sweeper.due() <= now
            && let Err(error) = self.sweeper.run_due(&self.programs)
        {
            self.log.write(format!("sweep failed: {error}"));
        }
        Ok(true)
    }

    /// Waits for events and returns them. Clients come before pending peers and new connections,
    /// because a client that has left and a process that registers may be the same process.
    fn wait_for_events(&self, shutdown: Option<BorrowedFd<'_>>) -> Result<Vec<DaemonEvent>, Error> {
        let now = Instant::now();
        let is_paused = now < self.accept_paused_until;
        let shutdown = shutdown.map(|fd| (DaemonEvent::Shutdown, fd));
        let clients = self.clients.iter().flat_map(|(&id, Client { connection, process, .. })| {
            let exited = (DaemonEvent::ClientExited(id), process.pidfd.as_fd());
            [(DaemonEvent::ClientReadable(id), connection.as_fd()), exited]
        });
        let pending_peers = self
            .pending_peers
            .iter()
            .map(|(&id, peer)| (DaemonEvent::PendingReadable(id), peer.connection.as_fd()));
        let listener =
            (!is_paused).then(|| (DaemonEvent::ListenerReadable, self.socket.listener.as_fd()));
        let all = shutdown.into_iter().chain(clients).chain(pending_peers).chain(listener);
        let poll_entry = |(event, fd)| (event, PollFd::from_borrowed_fd(fd, PollFlags::IN));
        let (events, mut fds): (Vec<DaemonEvent>, Vec<PollFd<'_>>) = all.map(poll_entry).unzip();

        let deadlines = self.pending_peers.values().map(|peer| peer.deadline);
        let sweep = (!self.clients.is_empty()).then_some(self.sweeper.due());
        let accept = is_paused.then_some(self.accept_paused_until);
        let timeout = deadlines.chain(sweep).chain(accept).min().map(|deadline| {
            let left = deadline.saturating_duration_since(now);
            Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() }
        });
        match poll(&mut fds, timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let ready = events.into_iter().zip(&fds).filter(|(_, fd)| !fd.revents().is_empty());
        Ok(ready.map(|(event, _)| event).collect())
    }

    /// Disconnects the pending peers that have not sent a request before their deadline.
    fn drop_expired_peers(&mut self, now: Instant) -> Result<(), Error> {
        let expired = self.pending_peers.iter().filter(|(_, peer)| peer.deadline <= now);
        for id in expired.map(|(id, _)| *id).collect::<Vec<u64>>() {
            let peer = self.pending_peers.remove(&id).expect("its id was just listed");
            placeholder::remove(&self.programs, &peer.process)?;
        }
        Ok(())
    }

    fn accept(&mut self) {
        let accepted = self.socket.listener.accept();
        let set_nonblocking =
            |connection: UnixStream| connection.set_nonblocking(true).map(|()| connection);
        match accepted.and_then(|(connection, _)| set_nonblocking(connection)) {
            Ok(connection) => self.admit(connection),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => {
                self.log.write(format!("cannot accept a connection: {error}"));
                self.accept_paused_until = Instant::now() + ACCEPT_PAUSE;
            }
        }
    }

    /// Sends a challenge to a process that may be registered. Sends a refusal to any other process
    /// at once, and disconnects it.
    fn admit(&mut self, connection: UnixStream) {
        self.last_connection_id += 1;
        let process = PeerProcess::from_connection(
            (connection.as_fd(), self.last_connection_id),
            &self.policy,
        );
        let refusal = match process {
            Ok(Some(process)) if process.is_nested => RegistrationReply::OtherNamespace,
            Ok(Some(process)) if self.is_registered(&process) => {
                RegistrationReply::AlreadyRegistered
            }
            Ok(Some(process)) if self.has_pending_slot(process.uid) => {
                match self.issue_challenge(&process) {
                    Ok(challenge) => {
                        let message =
                            [&[RegistrationReply::Challenge as u8][..], &challenge].concat();
                        // A peer that cannot receive the challenge cannot send a valid request
                        // either; its deadline ends the connection.
                        send_message(&connection, &message, &[]);
                        let deadline = Instant::now() + REQUEST_TIME_MAX;
                        let peer = PendingPeer { connection, process, challenge, deadline };
                        self.pending_peers.insert(self.last_connection_id, peer);
                        return;
                    }
                    Err(error) => {
                        self.log.write(format!("cannot watch a process for execve(2): {error}"));
                        RegistrationReply::Failed
                    }
                }
            }
            Ok(Some(_)) => RegistrationReply::Full,
            Ok(None) => RegistrationReply::Refused,
            // The process has ended.
            Err(Error::Kernel(Errno::SRCH)) => return,
            Err(error) => {
                self.log.write(format!("cannot identify a process: {error}"));
                RegistrationReply::Failed
            }
        };
        send_reply(&connection, refusal, &[]);
    }

    fn is_registered(&self, process: &PeerProcess) -> bool {
        self.clients.values().any(|client| client.process.pid == process.pid)
    }

    /// Inserts the placeholder that execve(2) of the process deletes, and returns the bytes with
    /// which its request has to end. The bytes are random, so a request that has them was made
    /// after this call.
    fn issue_challenge(&mut self, process: &PeerProcess) -> Result<[u8; CHALLENGE_BYTES], Error> {
        if self.exec_links.is_none() {
            self.exec_links = Some(self.programs.attach_tracepoints(EXEC_TRACEPOINTS)?);
        }
        placeholder::insert(&self.programs, process)?;
        let mut challenge = [0; CHALLENGE_BYTES];
        let count = getrandom(&mut challenge, GetRandomFlags::empty())?;
        assert_eq!(count, challenge.len(), "getrandom(2) returns up to 256 bytes at once");
        Ok(challenge)
    }

    /// Returns whether one more process of a user may be pending.
    fn has_pending_slot(&self, uid: u32) -> bool {
        let is_of_user = |peer: &&PendingPeer| peer.process.uid == uid;
        self.pending_peers.len() < PENDING_MAX
            && self.pending_peers.values().filter(is_of_user).count() < PENDING_PER_USER_MAX
    }

    /// Reads the request of a pending peer, and registers its process or refuses it.
    fn read_request(&mut self, id: u64) -> Result<(), Error> {
        let Some(peer) = self.pending_peers.remove(&id) else { return Ok(()) };
        let PendingPeer { connection, process, challenge, .. } = peer;
        let refusal = match RegistrationRequest::read(&connection, challenge) {
            // Another process has the connection and must not register this one.
            RegistrationRequest::Register(_, sender) if sender != process.pid => {
                Some(RegistrationReply::Refused)
            }
            // The process has executed another program since it connected.
            RegistrationRequest::Register(..)
                if !placeholder::exists(&self.programs, &process)? =>
            {
                Some(RegistrationReply::Refused)
            }
            RegistrationRequest::Register(mode, _) => {
                return self.register(id, connection, process, mode);
            }
            RegistrationRequest::OtherVersion => Some(RegistrationReply::Version),
            RegistrationRequest::Invalid => None,
        };
        placeholder::remove(&self.programs, &process)?;
        if let Some(refusal) = refusal {
            send_reply(&connection, refusal, &[]);
        }
        Ok(())
    }

    fn register(
        &mut self,
        id: u64,
        connection: UnixStream,
        process: PeerProcess,
        mode: TrackingMode,
    ) -> Result<(), Error> {
        let result = self.check_limits(&process).and_then(|refusal| match refusal {
            Some(refusal) => Ok(Err(refusal)),
            None => self.create_region(&process, mode).map(Ok),
        });
        let refusal = match result {
            Ok(Ok((region, region_fds, cgroup_id))) => {
                let fds = region_fds.each_ref().map(AsFd::as_fd);
                if !send_reply(&connection, RegistrationReply::Granted, &fds) {
                    // The process would wait for the reply forever. The shutdown makes the
                    // connection readable, and the client is unregistered like any other.
                    let _ = connection.shutdown(Shutdown::Both);
                }
                let client = Client { connection, process, mode, region, cgroup_id };
                self.clients.insert(id, client);
                return Ok(());
            }
            Ok(Err(refusal)) => refusal,
            // The process has executed another program.
            Err(Error::Kernel(Errno::SRCH)) => RegistrationReply::Refused,
            Err(error) => {
                self.log.write(format!("cannot register a process: {error}"));
                RegistrationReply::Failed
            }
        };
        placeholder::remove(&self.programs, &process)?;
        send_reply(&connection, refusal, &[]);
        Ok(())
    }

    /// Returns why a process cannot be registered now, if a limit is reached or it is registered
    /// already.
    fn check_limits(&mut self, process: &PeerProcess) -> Result<Option<RegistrationReply>, Error> {
        if self.is_registered(process) {
            return Ok(Some(RegistrationReply::AlreadyRegistered));
        }
        self.zombies.reap(&self.programs)?;
        let is_of_user = |client: &&Client| client.process.uid == process.uid;
        let count = self.clients.len() + self.zombies.len();
        let count_of_user = self.clients.values().filter(is_of_user).count()
            + self.zombies.len_of_user(process.uid);
        let is_full = count >= REGIONS_MAX || count_of_user >= self.policy.per_user;
        Ok(is_full.then_some(RegistrationReply::Full))
    }

    /// Attaches the programs that a client needs and creates its region. Returns the id of its
    /// cgroup too. If a step fails, the steps before it are undone.
    fn create_region(
        &mut self,
        process: &PeerProcess,
        mode: TrackingMode,
    ) -> Result<(ClientRegion, RegionFds, u64), Error> {
        let cgroup = Cgroup::open(&process.cgroup)?;
        let (region, region_fds) = self
            .attach_programs(&cgroup, mode)
            .and_then(|()| self.regions.add(&self.programs, process, mode))
            .inspect_err(|_| self.detach_unused())?;
        Ok((region, region_fds, cgroup.id))
    }

    fn attach_programs(&mut self, cgroup: &Cgroup, mode: TrackingMode) -> Result<(), Error> {
        if self.common_links.is_none() {
            self.common_links = Some(self.programs.attach_tracepoints(COMMON_TRACEPOINTS)?);
        }
        if mode == TrackingMode::Exact && self.exact_links.is_none() {
            self.exact_links = Some(self.programs.attach_tracepoints(EXACT_TRACEPOINTS)?);
        }
        if let Entry::Vacant(entry) = self.cgroup_links.entry(cgroup.id) {
            entry.insert(self.programs.attach_cgroup(cgroup.fd.as_fd())?);
        }
        Ok(())
    }

    /// Handles the request of a client for the ring of its next sleeper. Returns false if the
    /// client has closed its connection, has sent anything else, or has sent a request before it
    /// received the last reply. The last rule exists because the kernel bounds the number of
    /// descriptors in flight for all clients together.
    fn handle_client(&mut self, id: u64) -> bool {
        let Some(Client { connection, region, .. }) = self.clients.get_mut(&id) else {
            return true;
        };
        let mut request = [0];
        match connection.read(&mut request) {
            Ok(1) if request == [RING_REQUEST] && has_received_all(connection.as_fd()) => {}
            Err(error) => return error.kind() == ErrorKind::WouldBlock,
            _ => return false,
        }
        // A client whose reply cannot be sent is unregistered: it would number its rings
        // differently from the programs.
        match self.regions.add_ring(&self.programs, region) {
            Ok(Some(ring)) => send_reply(connection, RegistrationReply::Granted, &[ring.as_fd()]),
            Ok(None) => send_reply(connection, RegistrationReply::Full, &[]),
            Err(error) => {
                self.log.write(format!("cannot create a ring for a sleeper: {error}"));
                send_reply(connection, RegistrationReply::Failed, &[])
            }
        }
    }

    /// Unregisters a client. Does nothing if it is unregistered already, because one poll(2) may
    /// report two events of it.
    fn unregister(&mut self, id: u64) -> Result<(), Error> {
        let Some(client) = self.clients.remove(&id) else { return Ok(()) };
        self.regions.remove(&self.programs, &client.region)?;
        self.zombies.add(client.process.uid, client.region.map_ids);
        self.detach_unused();
        Ok(())
    }

    /// Detaches the programs that no client needs, so that they cost other processes nothing.
    fn detach_unused(&mut self) {
        let clients = &self.clients;
        self.cgroup_links.retain(|id, _| clients.values().any(|client| client.cgroup_id == *id));
        if !clients.values().any(|client| client.mode == TrackingMode::Exact) {
            self.exact_links = None;
        }
        if clients.is_empty() {
            self.common_links = None;
        }
    }
}

/// A message of a pending peer.
enum RegistrationRequest {
    /// A valid request: the mode, and the pid of the process that sent it.
    Register(TrackingMode, u32),
    /// A request of another version, or one with a wrong challenge or mode.
    OtherVersion,
    /// No request, or the end of the connection.
    Invalid,
}

impl RegistrationRequest {
    /// Reads a request by one call. The library sends it by one call, and a Unix socket delivers so
    /// few bytes together. A request in parts is invalid.
    fn read(connection: &UnixStream, challenge: [u8; CHALLENGE_BYTES]) -> Self {
        const VERSION: usize = REQUEST_MAGIC.len() - 1;
        let mut bytes = [0; REQUEST_MAGIC.len() + 1 + CHALLENGE_BYTES];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmCredentials(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut parts = [IoSliceMut::new(&mut bytes)];
        let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
        let Ok(received) = recvmsg(connection, &mut parts, &mut control, flags) else {
            return Self::Invalid;
        };
        let sender = control.drain().find_map(|message| match message {
            RecvAncillaryMessage::ScmCredentials(sender) => Some(sender.pid),
            _ => None,
        });
        let mode = match bytes[REQUEST_MAGIC.len()] {
            0 => Some(TrackingMode::Exact),
            1 => Some(TrackingMode::Lean),
            _ => None,
        };
        let is_whole =
            bytes.starts_with(&REQUEST_MAGIC) && bytes[REQUEST_MAGIC.len() + 1..] == challenge;
        match (mode, sender) {
            (Some(mode), Some(sender)) if received.bytes == bytes.len() && is_whole => {
                Self::Register(mode, sender.as_raw_pid().unsigned_abs())
            }
            _ if received.bytes > VERSION && bytes.starts_with(&REQUEST_MAGIC[..VERSION]) => {
                Self::OtherVersion
            }
            _ => Self::Invalid,
        }
    }
}

/// Sends a reply with descriptors. Returns whether it was sent.
fn send_reply(connection: &UnixStream, reply: RegistrationReply, fds: &[BorrowedFd<'_>]) -> bool {
    send_message(connection, &[reply as u8], fds)
}

/// Sends bytes with descriptors, without waiting. Returns whether they were sent.
fn send_message(connection: &UnixStream, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> bool {
    let mut space =
        [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(uselect::REPLY_DESCRIPTORS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() {
        let fits = control.push(SendAncillaryMessage::ScmRights(fds));
        assert!(fits, "at most REPLY_DESCRIPTORS are sent at a time");
    }
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    sendmsg(connection, &[IoSlice::new(bytes)], &mut control, flags).is_ok()
}
