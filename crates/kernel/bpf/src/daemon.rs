//! `Daemon`: hands processes their memory, over a Unix socket.
//!
//! One thread, which waits in poll(2). Nothing that a process sends can make it wait for that
//! process: requests have a length and a deadline, and answers fit the socket.

use std::collections::BTreeMap;
use std::io::{ErrorKind, IoSlice, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use uselect::Answer;

use crate::cgroup::Cgroup;
use crate::error::Error;
use crate::limits::{REGIONS_PER_USER_MAX, REQUEST_TIME_MAX, STRANGERS_MAX};
use crate::peer::{Peer, is_in_first_namespace};
use crate::programs::{CgroupLinks, Programs, Tracing};
use crate::regions::{Region, Regions};

/// Who may be registered.
#[derive(Clone, Debug)]
pub struct Policy {
    /// User ids, as the daemon's namespace has them.
    pub users: Vec<u32>,
}

/// The programs, who is registered, and who asks.
pub struct Daemon {
    listener: UnixListener,
    policy: Policy,
    programs: Programs,
    regions: Regions,
    /// There while somebody is registered.
    tracing: Option<Tracing>,
    cgroups: BTreeMap<u64, (CgroupLinks, usize)>,
    strangers: Vec<Stranger>,
    members: Vec<Member>,
}

/// A connection that has not asked yet.
struct Stranger {
    connection: UnixStream,
    deadline: Instant,
}

/// A registered process.
struct Member {
    connection: UnixStream,
    peer: Peer,
    region: Region,
    /// [`Cgroup::number`].
    cgroup: u64,
}

impl Daemon {
    /// Loads the programs and listens at `path`, where a socket that nobody listens at is replaced.
    /// Anybody may connect; the policy says who is answered.
    ///
    /// # Errors
    /// Those of [`Error`].
    pub fn new(path: &Path, policy: Policy) -> Result<Self, Error> {
        if !is_in_first_namespace()? {
            return Err(Error::NestedNamespace);
        }
        let programs = Programs::load()?;
        let listener = listen(path)?;
        Ok(Self {
            listener,
            policy,
            programs,
            regions: Regions::new(),
            tracing: None,
            cgroups: BTreeMap::new(),
            strangers: Vec::new(),
            members: Vec::new(),
        })
    }

    /// Serves until something fails that is not a client's fault.
    ///
    /// # Errors
    /// Those of poll(2) and accept(2); those of removing what was registered.
    pub fn run(&mut self) -> Result<(), Error> {
        loop {
            self.turn()?;
        }
    }

    /// Waits for something to happen, and does what it asks for.
    fn turn(&mut self) -> Result<(), Error> {
        let (members, strangers) = (self.members.len(), self.strangers.len());
        let mut fds = vec![readable(self.listener.as_fd())];
        for member in &self.members {
            fds.push(readable(member.connection.as_fd()));
            fds.push(readable(member.peer.process.as_fd()));
        }
        fds.extend(self.strangers.iter().map(|stranger| readable(stranger.connection.as_fd())));
        let wait = self.strangers.iter().map(|stranger| stranger.deadline).min().map(|deadline| {
            let left = deadline.saturating_duration_since(Instant::now());
            Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() }
        });
        match poll(&mut fds, wait.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let is_ready: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
        // From the back, so that what is taken out moves nobody who is still to come.
        for at in (0..strangers).rev() {
            let is_late = self.strangers[at].deadline <= Instant::now();
            if is_ready[1 + 2 * members + at] || is_late {
                let stranger = self.strangers.swap_remove(at);
                self.hear(stranger);
            }
        }
        for at in (0..members).rev() {
            // A member says nothing more, so whatever comes is its end.
            if is_ready[1 + 2 * at] || is_ready[2 + 2 * at] {
                let member = self.members.swap_remove(at);
                self.leave(member)?;
            }
        }
        if is_ready[0] { self.meet() } else { Ok(()) }
    }

    fn meet(&mut self) -> Result<(), Error> {
        match self.listener.accept() {
            Ok((connection, _)) if self.strangers.len() < STRANGERS_MAX => {
                connection.set_nonblocking(true)?;
                let deadline = Instant::now() + REQUEST_TIME_MAX;
                self.strangers.push(Stranger { connection, deadline });
            }
            // One too many is closed.
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => tell(&format!("a connection failed: {error}")),
        }
        Ok(())
    }

    /// A request comes as a whole or is none: it is shorter than any segment of a Unix socket.
    fn hear(&mut self, mut stranger: Stranger) {
        let mut request = [0; uselect::REQUEST.len()];
        let version = uselect::REQUEST.len() - 1;
        match stranger.connection.read(&mut request) {
            Ok(count) if request[..count] == uselect::REQUEST => self.register(stranger.connection),
            Ok(count) if count > version && request[..version] == uselect::REQUEST[..version] => {
                answer(&stranger.connection, Answer::Version, &[]);
            }
            _ => {}
        }
    }

    fn register(&mut self, connection: UnixStream) {
        let registered = Peer::of(connection.as_fd()).and_then(|peer| {
            if let Some(refusal) = self.refusal(&peer) {
                return Ok(Err(refusal));
            }
            self.admit(&peer).map(|(region, cgroup)| Ok((peer, region, cgroup)))
        });
        match registered {
            Ok(Ok((peer, region, cgroup))) => {
                // If it does not get there, the connection's end says so.
                answer(&connection, Answer::Granted, &region.descriptors());
                self.members.push(Member { connection, peer, region, cgroup });
            }
            Ok(Err(refusal)) => answer(&connection, refusal, &[]),
            Err(error) => {
                tell(&format!("a process could not be registered: {error}"));
                answer(&connection, Answer::Failed, &[]);
            }
        }
    }

    fn refusal(&self, peer: &Peer) -> Option<Answer> {
        let of_user = self.members.iter().filter(|member| member.peer.user == peer.user).count();
        match () {
            () if !self.policy.users.contains(&peer.user) => Some(Answer::Refused),
            () if peer.is_nested => Some(Answer::OtherNamespace),
            () if self.members.iter().any(|member| member.peer.number == peer.number) => {
                Some(Answer::Registered)
            }
            () if of_user >= REGIONS_PER_USER_MAX || self.regions.is_full() => Some(Answer::Full),
            () => None,
        }
    }

    /// Memory and programs for a process. What was begun is undone when the rest fails.
    fn admit(&mut self, peer: &Peer) -> Result<(Region, u64), Error> {
        let cgroup = Cgroup::of(peer.number)?;
        let region = self.regions.add(&self.programs, peer.number)?;
        match self.attach(&cgroup) {
            Ok(()) => Ok((region, cgroup.number)),
            Err(error) => {
                self.regions.remove(&self.programs, &region)?;
                self.detach_idle();
                Err(error)
            }
        }
    }

    fn attach(&mut self, cgroup: &Cgroup) -> Result<(), Error> {
        if self.tracing.is_none() {
            self.tracing = Some(self.programs.trace()?);
        }
        if let Some((_, users)) = self.cgroups.get_mut(&cgroup.number) {
            *users += 1;
            return Ok(());
        }
        let links = self.programs.join(cgroup.fd.as_fd())?;
        self.cgroups.insert(cgroup.number, (links, 1));
        Ok(())
    }

    fn leave(&mut self, member: Member) -> Result<(), Error> {
        self.regions.remove(&self.programs, &member.region)?;
        if let Some((_, users)) = self.cgroups.get_mut(&member.cgroup) {
            *users -= 1;
        }
        self.cgroups.retain(|_, (_, users)| *users > 0);
        self.detach_idle();
        Ok(())
    }

    /// While nobody is registered nobody pays.
    fn detach_idle(&mut self) {
        if self.cgroups.is_empty() {
            self.tracing = None;
        }
    }
}

fn listen(path: &Path) -> Result<UnixListener, Error> {
    let is_socket = std::fs::symlink_metadata(path).is_ok_and(|data| data.file_type().is_socket());
    if is_socket && UnixStream::connect(path).is_err() {
        std::fs::remove_file(path)?;
    }
    let listener = UnixListener::bind(path)?;
    listener.set_nonblocking(true)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o666))?;
    Ok(listener)
}

fn readable(fd: BorrowedFd<'_>) -> PollFd<'_> {
    PollFd::from_borrowed_fd(fd, PollFlags::IN)
}

/// That nobody listens any more is no reason to end.
fn tell(what: &str) {
    let _ = writeln!(std::io::stderr(), "uselectd: {what}");
}

/// Who does not take it has gone, which is found out in its turn.
fn answer(connection: &UnixStream, answer: Answer, descriptors: &[BorrowedFd<'_>]) {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(uselect::DESCRIPTORS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() {
        let fits = control.push(SendAncillaryMessage::ScmRights(descriptors));
        assert!(fits, "there is room for as many as a process gets");
    }
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    let _ = sendmsg(connection, &[IoSlice::new(&[answer as u8])], &mut control, flags);
}
