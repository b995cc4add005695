//! `Daemon`: hands processes their memory, over a Unix socket.
//!
//! One thread, which waits in poll(2). Nothing that a process sends can make it wait for that
//! process: requests have a length and a deadline, and answers fit the socket.

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

/// The programs, who is registered, and who asks.
pub struct Daemon {
    socket: DaemonSocket,
    policy: AccessPolicy,
    programs: Programs,
    regions: RegionTable,
    /// There while a process is registered or may register.
    exec_links: Option<TracepointLinks>,
    /// There while somebody is registered.
    common_links: Option<TracepointLinks>,
    /// There while somebody in exact mode is.
    exact_links: Option<TracepointLinks>,
    /// By [`Cgroup::number`]; each is some member's.
    cgroup_links: BTreeMap<u64, CgroupLinks>,
    /// By the number of their connection, which is never used twice.
    pending_peers: BTreeMap<u64, PendingPeer>,
    clients: BTreeMap<u64, Client>,
    /// Connections so far.
    last_connection_id: u64,
    /// With the members at most [`REGIONS_MAX`], and of a user what the policy says.
    zombies: ZombieRegions,
    /// While somebody is registered.
    sweeper: Sweeper,
    /// Until then nobody is met, as there is no room for a connection: who waits stays to be seen.
    accept_paused_until: Instant,
    log: RateLimitedLog,
}

/// A process that may be registered, and has not asked yet. The programs have a placeholder for it.
struct PendingPeer {
    connection: UnixStream,
    peer: PeerProcess,
    /// What its request has to end with.
    challenge: [u8; CHALLENGE_BYTES],
    deadline: Instant,
}

/// A registered process.
struct Client {
    connection: UnixStream,
    peer: PeerProcess,
    mode: TrackingMode,
    region: ClientRegion,
    /// [`Cgroup::number`].
    cgroup: u64,
}

/// What there is to do, about which connection.
#[derive(Clone, Copy)]
enum DaemonEvent {
    Shutdown,
    /// A member says something, or ends its connection.
    ClientReadable(u64),
    /// The process of a member has ended.
    ClientExited(u64),
    /// A stranger does as a member.
    Request(u64),
    /// Somebody connects.
    ListenerReadable,
}

impl Daemon {
    /// Listens at `path`, where a socket that nobody listens at is replaced, and loads the
    /// programs, which takes about a second. The socket is removed when the daemon is dropped.
    ///
    /// # Errors
    /// Those of [`Error`].
    pub fn new(path: &Path, policy: AccessPolicy) -> Result<Self, Error> {
        if !is_in_initial_pid_namespace()? {
            return Err(Error::NestedPidNamespace);
        }
        // First, as what is wrong with it is found at once; who asks meanwhile waits.
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

    /// Serves until `end`, if there is one, is readable, or until something fails that is not a
    /// client's fault.
    ///
    /// # Errors
    /// Those of poll(2) and accept(2); those of removing what was registered.
    pub fn run(&mut self, end: Option<BorrowedFd<'_>>) -> Result<(), Error> {
        while self.run_once(end)? {}
        Ok(())
    }

    /// Waits for something to happen, and does what it asks for; false if that is to end.
    fn run_once(&mut self, end: Option<BorrowedFd<'_>>) -> Result<bool, Error> {
        for cause in self.wait_for_events(end)? {
            match cause {
                DaemonEvent::Shutdown => return Ok(false),
                DaemonEvent::ClientReadable(number) if self.handle_client(number) => {}
                DaemonEvent::ClientReadable(number) | DaemonEvent::ClientExited(number) => {
                    self.unregister(number)?
                }
                DaemonEvent::Request(number) => self.read_request(number)?,
                DaemonEvent::ListenerReadable => self.accept(),
            }
        }
        let now = Instant::now();
        let late = self.pending_peers.iter().filter(|(_, stranger)| stranger.deadline <= now);
        for number in late.map(|(number, _)| *number).collect::<Vec<u64>>() {
            let stranger = self.pending_peers.remove(&number).expect("it was found just now");
            placeholder::remove(&self.programs, &stranger.peer)?;
        }
        if self.pending_peers.is_empty() && self.clients.is_empty() {
            self.exec_links = None;
        }
        if !self.clients.is_empty() && self.sweeper.due() <= now {
            let swept = self.sweeper.run_due(&self.programs);
            swept.unwrap_or_else(|error| self.log.write(format!("a sweep failed: {error}")));
        }
        Ok(true)
    }

    /// What has happened. Who has left comes before who asks: it may be the same process.
    fn wait_for_events(&self, end: Option<BorrowedFd<'_>>) -> Result<Vec<DaemonEvent>, Error> {
        let now = Instant::now();
        let is_full = now < self.accept_paused_until;
        let end = end.map(|end| (DaemonEvent::Shutdown, end));
        let members = self.clients.iter().flat_map(|(&number, Client { connection, peer, .. })| {
            let exit = (DaemonEvent::ClientExited(number), peer.process.as_fd());
            [(DaemonEvent::ClientReadable(number), connection.as_fd()), exit]
        });
        let strangers = self
            .pending_peers
            .iter()
            .map(|(&number, stranger)| (DaemonEvent::Request(number), stranger.connection.as_fd()));
        let listener =
            (!is_full).then(|| (DaemonEvent::ListenerReadable, self.socket.listener.as_fd()));
        let all = end.into_iter().chain(members).chain(strangers).chain(listener);
        let readable = |(cause, fd)| (cause, PollFd::from_borrowed_fd(fd, PollFlags::IN));
        let (causes, mut fds): (Vec<DaemonEvent>, Vec<PollFd<'_>>) = all.map(readable).unzip();

        let deadlines = self.pending_peers.values().map(|stranger| stranger.deadline);
        let sweep = (!self.clients.is_empty()).then_some(self.sweeper.due());
        let full = is_full.then_some(self.accept_paused_until);
        let wait = deadlines.chain(sweep).chain(full).min().map(|deadline| {
            let left = deadline.saturating_duration_since(now);
            Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() }
        });
        match poll(&mut fds, wait.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let ready = causes.into_iter().zip(&fds).filter(|(_, fd)| !fd.revents().is_empty());
        Ok(ready.map(|(cause, _)| cause).collect())
    }

    fn accept(&mut self) {
        let accepted = self.socket.listener.accept();
        let is_ready =
            |connection: UnixStream| connection.set_nonblocking(true).map(|()| connection);
        match accepted.and_then(|(connection, _)| is_ready(connection)) {
            Ok(connection) => self.admit(connection),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => {
                self.log.write(format!("a connection failed: {error}"));
                self.accept_paused_until = Instant::now() + ACCEPT_PAUSE;
            }
        }
    }

    /// Who will not be registered, whatever it asks, is told at once, and waited for no more.
    fn admit(&mut self, connection: UnixStream) {
        self.last_connection_id += 1;
        let peer = PeerProcess::from_connection(
            (connection.as_fd(), self.last_connection_id),
            &self.policy,
        );
        let refusal = match peer {
            Ok(Some(peer)) if peer.is_nested => RegistrationReply::OtherNamespace,
            Ok(Some(peer)) if self.is_registered(&peer) => RegistrationReply::AlreadyRegistered,
            Ok(Some(peer)) if self.has_pending_slot(peer.user) => match self.issue_challenge(&peer)
            {
                Ok(challenge) => {
                    let message = [&[RegistrationReply::Challenge as u8][..], &challenge].concat();
                    // One that hears nothing does not ask either, and is closed in time.
                    send_message(&connection, &message, &[]);
                    let deadline = Instant::now() + REQUEST_TIME_MAX;
                    let stranger = PendingPeer { connection, peer, challenge, deadline };
                    self.pending_peers.insert(self.last_connection_id, stranger);
                    return;
                }
                Err(error) => {
                    self.log.write(format!("a process could not be watched: {error}"));
                    RegistrationReply::Failed
                }
            },
            Ok(Some(_)) => RegistrationReply::Full,
            Ok(None) => RegistrationReply::Refused,
            // There is nobody to be registered.
            Err(Error::Kernel(Errno::SRCH)) => return,
            Err(error) => {
                self.log.write(format!("a process could not be looked at: {error}"));
                RegistrationReply::Failed
            }
        };
        send_answer(&connection, refusal, &[]);
    }

    fn is_registered(&self, peer: &PeerProcess) -> bool {
        self.clients.values().any(|member| member.peer.number == peer.number)
    }

    /// Has the programs watch the process for execve(2), and gives what its request has to end with.
    /// Those bytes are not known to anybody before, so a request was made after this.
    fn issue_challenge(&mut self, peer: &PeerProcess) -> Result<[u8; CHALLENGE_BYTES], Error> {
        if self.exec_links.is_none() {
            self.exec_links = Some(self.programs.attach_tracepoints(EXEC_TRACEPOINTS)?);
        }
        placeholder::insert(&self.programs, peer)?;
        let mut challenge = [0; CHALLENGE_BYTES];
        let count = getrandom(&mut challenge, GetRandomFlags::empty())?;
        assert_eq!(count, challenge.len(), "so few bytes come at once (getrandom(2))");
        Ok(challenge)
    }

    /// For one more of a user's who has not asked yet.
    fn has_pending_slot(&self, user: u32) -> bool {
        let is_of_user = |stranger: &&PendingPeer| stranger.peer.user == user;
        self.pending_peers.len() < PENDING_MAX
            && self.pending_peers.values().filter(is_of_user).count() < PENDING_PER_USER_MAX
    }

    fn read_request(&mut self, number: u64) -> Result<(), Error> {
        let Some(stranger) = self.pending_peers.remove(&number) else { return Ok(()) };
        let PendingPeer { connection, peer, challenge, .. } = stranger;
        let request = Request::read(&connection, challenge);
        // Whoever else has the connection cannot register the process.
        let refusal = match request {
            Request::Asks(_, sender) if sender != peer.number => Some(RegistrationReply::Refused),
            Request::Asks(..) if !placeholder::exists(&self.programs, &peer)? => {
                Some(RegistrationReply::Refused)
            }
            Request::Asks(mode, _) => {
                return self.register(number, connection, peer, mode);
            }
            Request::OtherVersion => Some(RegistrationReply::Version),
            Request::None => None,
        };
        placeholder::remove(&self.programs, &peer)?;
        if let Some(refusal) = refusal {
            send_answer(&connection, refusal, &[]);
        }
        Ok(())
    }

    fn register(
        &mut self,
        number: u64,
        connection: UnixStream,
        peer: PeerProcess,
        mode: TrackingMode,
    ) -> Result<(), Error> {
        let admitted = self.check_limits(&peer).and_then(|refusal| match refusal {
            Some(refusal) => Ok(Err(refusal)),
            None => self.create_region(&peer, mode).map(Ok),
        });
        let refusal = match admitted {
            Ok(Ok((region, memory, cgroup))) => {
                let descriptors = memory.each_ref().map(AsFd::as_fd);
                if !send_answer(&connection, RegistrationReply::Granted, &descriptors) {
                    // Or it would wait for ever. That it has ended is found as any other's end.
                    let _ = connection.shutdown(Shutdown::Both);
                }
                self.clients.insert(number, Client { connection, peer, mode, region, cgroup });
                return Ok(());
            }
            Ok(Err(refusal)) => refusal,
            // It has executed another program.
            Err(Error::Kernel(Errno::SRCH)) => RegistrationReply::Refused,
            Err(error) => {
                self.log.write(format!("a process could not be registered: {error}"));
                RegistrationReply::Failed
            }
        };
        placeholder::remove(&self.programs, &peer)?;
        send_answer(&connection, refusal, &[]);
        Ok(())
    }

    fn check_limits(&mut self, peer: &PeerProcess) -> Result<Option<RegistrationReply>, Error> {
        let of_user = |member: &&Client| member.peer.user == peer.user;
        if self.is_registered(peer) {
            return Ok(Some(RegistrationReply::AlreadyRegistered));
        }
        self.zombies.reap(&self.programs)?;
        let all = self.clients.len() + self.zombies.len();
        let of_user = self.clients.values().filter(of_user).count();
        let is_full = all >= REGIONS_MAX
            || of_user + self.zombies.len_of_user(peer.user) >= self.policy.per_user;
        Ok(is_full.then_some(RegistrationReply::Full))
    }

    /// Memory and programs for a process. What was begun is undone when the rest fails.
    fn create_region(
        &mut self,
        peer: &PeerProcess,
        mode: TrackingMode,
    ) -> Result<(ClientRegion, RegionFds, u64), Error> {
        let cgroup = Cgroup::open(&peer.cgroup)?;
        let attached = self.attach_programs(&cgroup, mode);
        let admitted = attached
            .and_then(|()| self.regions.add(&self.programs, peer, mode))
            .inspect_err(|_| self.detach_unused());
        admitted.map(|(region, memory)| (region, memory, cgroup.id))
    }

    fn attach_programs(&mut self, cgroup: &Cgroup, mode: TrackingMode) -> Result<(), Error> {
        if self.common_links.is_none() {
            self.common_links = Some(self.programs.attach_tracepoints(COMMON_TRACEPOINTS)?);
        }
        if mode == TrackingMode::Exact && self.exact_links.is_none() {
            self.exact_links = Some(self.programs.attach_tracepoints(EXACT_TRACEPOINTS)?);
        }
        if let Entry::Vacant(place) = self.cgroup_links.entry(cgroup.id) {
            place.insert(self.programs.attach_cgroup(cgroup.fd.as_fd())?);
        }
        Ok(())
    }

    /// Gives a member what it asks for: the ring of its next sleeper. False if it has ended, says
    /// anything else, or asks before it has taken the answer to what it asked last: descriptors
    /// that nobody takes are bounded by the kernel, for all members together.
    fn handle_client(&mut self, number: u64) -> bool {
        let Some(Client { connection, region, .. }) = self.clients.get_mut(&number) else {
            return true;
        };
        let mut asked = [0];
        match connection.read(&mut asked) {
            Ok(1) if asked == [RING_REQUEST] && has_received_all(connection.as_fd()) => {}
            Err(error) => return error.kind() == ErrorKind::WouldBlock,
            _ => return false,
        }
        // Who gets no answer would count its rings in another way than the programs.
        match self.regions.add_ring(&self.programs, region) {
            Ok(Some(ring)) => send_answer(connection, RegistrationReply::Granted, &[ring.as_fd()]),
            Ok(None) => send_answer(connection, RegistrationReply::Full, &[]),
            Err(error) => {
                self.log.write(format!("a sleeper got no ring: {error}"));
                send_answer(connection, RegistrationReply::Failed, &[])
            }
        }
    }

    /// A member that has left already, for another reason, does nothing.
    fn unregister(&mut self, number: u64) -> Result<(), Error> {
        let Some(member) = self.clients.remove(&number) else { return Ok(()) };
        self.regions.remove(&self.programs, &member.region)?;
        self.zombies.add(member.peer.user, member.region.maps);
        self.detach_unused();
        Ok(())
    }

    /// While nobody is registered nobody pays.
    fn detach_unused(&mut self) {
        let members = &self.clients;
        self.cgroup_links
            .retain(|number, _| members.values().any(|member| member.cgroup == *number));
        if !members.values().any(|member| member.mode == TrackingMode::Exact) {
            self.exact_links = None;
        }
        if members.is_empty() {
            self.common_links = None;
        }
    }
}

/// What a process asks for.
enum Request {
    /// A registration, and the number of the process that has sent the request.
    Asks(TrackingMode, u32),
    /// The same in words of another version.
    OtherVersion,
    /// Nothing, or nothing that makes sense.
    None,
}

impl Request {
    /// A request comes as a whole or is none: it is shorter than any segment of a Unix socket.
    fn read(connection: &UnixStream, challenge: [u8; CHALLENGE_BYTES]) -> Self {
        const VERSION: usize = REQUEST_MAGIC.len() - 1;
        let mut bytes = [0; REQUEST_MAGIC.len() + 1 + CHALLENGE_BYTES];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmCredentials(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut parts = [IoSliceMut::new(&mut bytes)];
        let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
        let Ok(received) = recvmsg(connection, &mut parts, &mut control, flags) else {
            return Self::None;
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
                Self::Asks(mode, sender.as_raw_pid().unsigned_abs())
            }
            _ if received.bytes > VERSION && bytes.starts_with(&REQUEST_MAGIC[..VERSION]) => {
                Self::OtherVersion
            }
            _ => Self::None,
        }
    }
}

/// Says whether it has got there.
fn send_answer(
    connection: &UnixStream,
    answer: RegistrationReply,
    descriptors: &[BorrowedFd<'_>],
) -> bool {
    send_message(connection, &[answer as u8], descriptors)
}

/// The same of any bytes.
fn send_message(connection: &UnixStream, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> bool {
    let mut space =
        [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(uselect::REPLY_DESCRIPTORS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() {
        let fits = control.push(SendAncillaryMessage::ScmRights(descriptors));
        assert!(fits, "there is room for as many as a process gets");
    }
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    sendmsg(connection, &[IoSlice::new(bytes)], &mut control, flags).is_ok()
}
