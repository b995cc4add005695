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
use uselect::{Answer, CHALLENGE_BYTES, Mode, REQUEST, SLEEPER};

use crate::cgroup::Cgroup;
use crate::departed::Departed;
use crate::error::Error;
use crate::limits::{FULL_TIME, REGIONS_MAX, REQUEST_TIME_MAX, STRANGERS_MAX, STRANGERS_PER_USER};
use crate::listen::Listening;
use crate::log::Log;
use crate::peer::{Peer, has_taken_all, is_in_first_namespace};
use crate::placeholder;
use crate::policy::Policy;
use crate::programs::{COMMON, CgroupLinks, EXACT, EXECUTED, Programs, Tracing};
use crate::regions::{Memory, Region, Regions};
use crate::sweep::Sweep;

/// The programs, who is registered, and who asks.
pub struct Daemon {
    socket: Listening,
    policy: Policy,
    programs: Programs,
    regions: Regions,
    /// There while a process is registered or may register.
    executed: Option<Tracing>,
    /// There while somebody is registered.
    common: Option<Tracing>,
    /// There while somebody in exact mode is.
    exact: Option<Tracing>,
    /// By [`Cgroup::number`]; each is some member's.
    cgroups: BTreeMap<u64, CgroupLinks>,
    /// By the number of their connection, which is never used twice.
    strangers: BTreeMap<u64, Stranger>,
    members: BTreeMap<u64, Member>,
    /// Connections so far.
    connections: u64,
    /// With the members at most [`REGIONS_MAX`], and of a user what the policy says.
    departed: Departed,
    /// While somebody is registered.
    sweep: Sweep,
    /// Until then nobody is met, as there is no room for a connection: who waits stays to be seen.
    full_until: Instant,
    log: Log,
}

/// A process that may be registered, and has not asked yet. The programs have a placeholder for it.
struct Stranger {
    connection: UnixStream,
    peer: Peer,
    /// What its request has to end with.
    challenge: [u8; CHALLENGE_BYTES],
    deadline: Instant,
}

/// A registered process.
struct Member {
    connection: UnixStream,
    peer: Peer,
    mode: Mode,
    region: Region,
    /// [`Cgroup::number`].
    cgroup: u64,
}

/// What there is to do, about which connection.
#[derive(Clone, Copy)]
enum Cause {
    End,
    /// A member says something, or ends its connection.
    Word(u64),
    /// The process of a member has ended.
    Exit(u64),
    /// A stranger does as a member.
    Request(u64),
    /// Somebody connects.
    Connection,
}

impl Daemon {
    /// Listens at `path`, where a socket that nobody listens at is replaced, and loads the
    /// programs, which takes about a second. The socket is removed when the daemon is dropped.
    ///
    /// # Errors
    /// Those of [`Error`].
    pub fn new(path: &Path, policy: Policy) -> Result<Self, Error> {
        if !is_in_first_namespace()? {
            return Err(Error::NestedNamespace);
        }
        // First, as what is wrong with it is found at once; who asks meanwhile waits.
        let socket = Listening::new(path)?;
        let programs = Programs::load()?;
        Ok(Self {
            socket,
            policy,
            programs,
            regions: Regions::new(),
            executed: None,
            common: None,
            exact: None,
            cgroups: BTreeMap::new(),
            strangers: BTreeMap::new(),
            members: BTreeMap::new(),
            connections: 0,
            departed: Departed::default(),
            sweep: Sweep::new(),
            full_until: Instant::now(),
            log: Log::default(),
        })
    }

    /// Serves until `end`, if there is one, is readable, or until something fails that is not a
    /// client's fault.
    ///
    /// # Errors
    /// Those of poll(2) and accept(2); those of removing what was registered.
    pub fn run(&mut self, end: Option<BorrowedFd<'_>>) -> Result<(), Error> {
        while self.turn(end)? {}
        Ok(())
    }

    /// Waits for something to happen, and does what it asks for; false if that is to end.
    fn turn(&mut self, end: Option<BorrowedFd<'_>>) -> Result<bool, Error> {
        for cause in self.wait(end)? {
            match cause {
                Cause::End => return Ok(false),
                Cause::Word(number) if self.serve(number) => {}
                Cause::Word(number) | Cause::Exit(number) => self.leave(number)?,
                Cause::Request(number) => self.hear(number)?,
                Cause::Connection => self.meet(),
            }
        }
        let now = Instant::now();
        let late = self.strangers.iter().filter(|(_, stranger)| stranger.deadline <= now);
        for number in late.map(|(number, _)| *number).collect::<Vec<u64>>() {
            let stranger = self.strangers.remove(&number).expect("it was found just now");
            placeholder::remove(&self.programs, &stranger.peer)?;
        }
        if self.strangers.is_empty() && self.members.is_empty() {
            self.executed = None;
        }
        if !self.members.is_empty() && self.sweep.due() <= now {
            let swept = self.sweep.go_on(&self.programs);
            swept.unwrap_or_else(|error| self.log.tell(format!("a sweep failed: {error}")));
        }
        Ok(true)
    }

    /// What has happened. Who has left comes before who asks: it may be the same process.
    fn wait(&self, end: Option<BorrowedFd<'_>>) -> Result<Vec<Cause>, Error> {
        let now = Instant::now();
        let is_full = now < self.full_until;
        let end = end.map(|end| (Cause::End, end));
        let members = self.members.iter().flat_map(|(&number, Member { connection, peer, .. })| {
            let exit = (Cause::Exit(number), peer.process.as_fd());
            [(Cause::Word(number), connection.as_fd()), exit]
        });
        let strangers = self
            .strangers
            .iter()
            .map(|(&number, stranger)| (Cause::Request(number), stranger.connection.as_fd()));
        let listener = (!is_full).then(|| (Cause::Connection, self.socket.listener.as_fd()));
        let all = end.into_iter().chain(members).chain(strangers).chain(listener);
        let readable = |(cause, fd)| (cause, PollFd::from_borrowed_fd(fd, PollFlags::IN));
        let (causes, mut fds): (Vec<Cause>, Vec<PollFd<'_>>) = all.map(readable).unzip();

        let deadlines = self.strangers.values().map(|stranger| stranger.deadline);
        let sweep = (!self.members.is_empty()).then_some(self.sweep.due());
        let full = is_full.then_some(self.full_until);
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

    fn meet(&mut self) {
        let accepted = self.socket.listener.accept();
        let is_ready =
            |connection: UnixStream| connection.set_nonblocking(true).map(|()| connection);
        match accepted.and_then(|(connection, _)| is_ready(connection)) {
            Ok(connection) => self.greet(connection),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => {
                self.log.tell(format!("a connection failed: {error}"));
                self.full_until = Instant::now() + FULL_TIME;
            }
        }
    }

    /// Who will not be registered, whatever it asks, is told at once, and waited for no more.
    fn greet(&mut self, connection: UnixStream) {
        self.connections += 1;
        let peer = Peer::of((connection.as_fd(), self.connections), &self.policy);
        let refusal = match peer {
            Ok(Some(peer)) if peer.is_nested => Answer::OtherNamespace,
            Ok(Some(peer)) if self.is_registered(&peer) => Answer::Registered,
            Ok(Some(peer)) if self.has_place(peer.user) => match self.challenge(&peer) {
                Ok(challenge) => {
                    let message = [&[Answer::Challenge as u8][..], &challenge].concat();
                    // One that hears nothing does not ask either, and is closed in time.
                    send(&connection, &message, &[]);
                    let deadline = Instant::now() + REQUEST_TIME_MAX;
                    let stranger = Stranger { connection, peer, challenge, deadline };
                    self.strangers.insert(self.connections, stranger);
                    return;
                }
                Err(error) => {
                    self.log.tell(format!("a process could not be watched: {error}"));
                    Answer::Failed
                }
            },
            Ok(Some(_)) => Answer::Full,
            Ok(None) => Answer::Refused,
            // There is nobody to be registered.
            Err(Error::Kernel(Errno::SRCH)) => return,
            Err(error) => {
                self.log.tell(format!("a process could not be looked at: {error}"));
                Answer::Failed
            }
        };
        answer(&connection, refusal, &[]);
    }

    fn is_registered(&self, peer: &Peer) -> bool {
        self.members.values().any(|member| member.peer.number == peer.number)
    }

    /// Has the programs watch the process for execve(2), and gives what its request has to end with.
    /// Those bytes are not known to anybody before, so a request was made after this.
    fn challenge(&mut self, peer: &Peer) -> Result<[u8; CHALLENGE_BYTES], Error> {
        if self.executed.is_none() {
            self.executed = Some(self.programs.trace(EXECUTED)?);
        }
        placeholder::enter(&self.programs, peer)?;
        let mut challenge = [0; CHALLENGE_BYTES];
        let count = getrandom(&mut challenge, GetRandomFlags::empty())?;
        assert_eq!(count, challenge.len(), "so few bytes come at once (getrandom(2))");
        Ok(challenge)
    }

    /// For one more of a user's who has not asked yet.
    fn has_place(&self, user: u32) -> bool {
        let is_of_user = |stranger: &&Stranger| stranger.peer.user == user;
        self.strangers.len() < STRANGERS_MAX
            && self.strangers.values().filter(is_of_user).count() < STRANGERS_PER_USER
    }

    fn hear(&mut self, number: u64) -> Result<(), Error> {
        let Some(stranger) = self.strangers.remove(&number) else { return Ok(()) };
        let Stranger { connection, peer, challenge, .. } = stranger;
        let request = Request::read(&connection, challenge);
        // Whoever else has the connection cannot register the process.
        let refusal = match request {
            Request::Asks(_, sender) if sender != peer.number => Some(Answer::Refused),
            Request::Asks(..) if !placeholder::is_there(&self.programs, &peer)? => {
                Some(Answer::Refused)
            }
            Request::Asks(mode, _) => {
                return self.register(number, connection, peer, mode);
            }
            Request::OtherVersion => Some(Answer::Version),
            Request::None => None,
        };
        placeholder::remove(&self.programs, &peer)?;
        if let Some(refusal) = refusal {
            answer(&connection, refusal, &[]);
        }
        Ok(())
    }

    fn register(
        &mut self,
        number: u64,
        connection: UnixStream,
        peer: Peer,
        mode: Mode,
    ) -> Result<(), Error> {
        let admitted = self.refusal(&peer).and_then(|refusal| match refusal {
            Some(refusal) => Ok(Err(refusal)),
            None => self.admit(&peer, mode).map(Ok),
        });
        let refusal = match admitted {
            Ok(Ok((region, memory, cgroup))) => {
                let descriptors = memory.each_ref().map(AsFd::as_fd);
                if !answer(&connection, Answer::Granted, &descriptors) {
                    // Or it would wait for ever. That it has ended is found as any other's end.
                    let _ = connection.shutdown(Shutdown::Both);
                }
                self.members.insert(number, Member { connection, peer, mode, region, cgroup });
                return Ok(());
            }
            Ok(Err(refusal)) => refusal,
            // It has executed another program.
            Err(Error::Kernel(Errno::SRCH)) => Answer::Refused,
            Err(error) => {
                self.log.tell(format!("a process could not be registered: {error}"));
                Answer::Failed
            }
        };
        placeholder::remove(&self.programs, &peer)?;
        answer(&connection, refusal, &[]);
        Ok(())
    }

    fn refusal(&mut self, peer: &Peer) -> Result<Option<Answer>, Error> {
        let of_user = |member: &&Member| member.peer.user == peer.user;
        if self.is_registered(peer) {
            return Ok(Some(Answer::Registered));
        }
        self.departed.drop_dead(&self.programs)?;
        let all = self.members.len() + self.departed.count();
        let of_user = self.members.values().filter(of_user).count();
        let is_full = all >= REGIONS_MAX
            || of_user + self.departed.count_of(peer.user) >= self.policy.per_user;
        Ok(is_full.then_some(Answer::Full))
    }

    /// Memory and programs for a process. What was begun is undone when the rest fails.
    fn admit(&mut self, peer: &Peer, mode: Mode) -> Result<(Region, Memory, u64), Error> {
        let cgroup = Cgroup::open(&peer.cgroup)?;
        let attached = self.attach(&cgroup, mode);
        let admitted = attached
            .and_then(|()| self.regions.add(&self.programs, peer, mode))
            .inspect_err(|_| self.detach_idle());
        admitted.map(|(region, memory)| (region, memory, cgroup.number))
    }

    fn attach(&mut self, cgroup: &Cgroup, mode: Mode) -> Result<(), Error> {
        if self.common.is_none() {
            self.common = Some(self.programs.trace(COMMON)?);
        }
        if mode == Mode::Exact && self.exact.is_none() {
            self.exact = Some(self.programs.trace(EXACT)?);
        }
        if let Entry::Vacant(place) = self.cgroups.entry(cgroup.number) {
            place.insert(self.programs.join(cgroup.fd.as_fd())?);
        }
        Ok(())
    }

    /// Gives a member what it asks for: the ring of its next sleeper. False if it has ended, says
    /// anything else, or asks before it has taken the answer to what it asked last: descriptors
    /// that nobody takes are bounded by the kernel, for all members together.
    fn serve(&mut self, number: u64) -> bool {
        let Some(Member { connection, region, .. }) = self.members.get_mut(&number) else {
            return true;
        };
        let mut asked = [0];
        match connection.read(&mut asked) {
            Ok(1) if asked == [SLEEPER] && has_taken_all(connection.as_fd()) => {}
            Err(error) => return error.kind() == ErrorKind::WouldBlock,
            _ => return false,
        }
        // Who gets no answer would count its rings in another way than the programs.
        match self.regions.add_ring(&self.programs, region) {
            Ok(Some(ring)) => answer(connection, Answer::Granted, &[ring.as_fd()]),
            Ok(None) => answer(connection, Answer::Full, &[]),
            Err(error) => {
                self.log.tell(format!("a sleeper got no ring: {error}"));
                answer(connection, Answer::Failed, &[])
            }
        }
    }

    /// A member that has left already, for another reason, does nothing.
    fn leave(&mut self, number: u64) -> Result<(), Error> {
        let Some(member) = self.members.remove(&number) else { return Ok(()) };
        self.regions.remove(&self.programs, &member.region)?;
        self.departed.add(member.peer.user, member.region.maps);
        self.detach_idle();
        Ok(())
    }

    /// While nobody is registered nobody pays.
    fn detach_idle(&mut self) {
        let members = &self.members;
        self.cgroups.retain(|number, _| members.values().any(|member| member.cgroup == *number));
        if !members.values().any(|member| member.mode == Mode::Exact) {
            self.exact = None;
        }
        if members.is_empty() {
            self.common = None;
        }
    }
}

/// What a process asks for.
enum Request {
    /// A registration, and the number of the process that has sent the request.
    Asks(Mode, u32),
    /// The same in words of another version.
    OtherVersion,
    /// Nothing, or nothing that makes sense.
    None,
}

impl Request {
    /// A request comes as a whole or is none: it is shorter than any segment of a Unix socket.
    fn read(connection: &UnixStream, challenge: [u8; CHALLENGE_BYTES]) -> Self {
        const VERSION: usize = REQUEST.len() - 1;
        let mut bytes = [0; REQUEST.len() + 1 + CHALLENGE_BYTES];
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
        let mode = match bytes[REQUEST.len()] {
            0 => Some(Mode::Exact),
            1 => Some(Mode::Lean),
            _ => None,
        };
        let is_whole = bytes.starts_with(&REQUEST) && bytes[REQUEST.len() + 1..] == challenge;
        match (mode, sender) {
            (Some(mode), Some(sender)) if received.bytes == bytes.len() && is_whole => {
                Self::Asks(mode, sender.as_raw_pid().unsigned_abs())
            }
            _ if received.bytes > VERSION && bytes.starts_with(&REQUEST[..VERSION]) => {
                Self::OtherVersion
            }
            _ => Self::None,
        }
    }
}

/// Says whether it has got there.
fn answer(connection: &UnixStream, answer: Answer, descriptors: &[BorrowedFd<'_>]) -> bool {
    send(connection, &[answer as u8], descriptors)
}

/// The same of any bytes.
fn send(connection: &UnixStream, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> bool {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(uselect::DESCRIPTORS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() {
        let fits = control.push(SendAncillaryMessage::ScmRights(descriptors));
        assert!(fits, "there is room for as many as a process gets");
    }
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    sendmsg(connection, &[IoSlice::new(bytes)], &mut control, flags).is_ok()
}
