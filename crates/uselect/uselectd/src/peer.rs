//! Who asks: the process at the other end of the daemon's socket.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::path::PathBuf;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::sockopt::socket_peercred;

use crate::cgroup::cgroup_path;
use crate::error::Error;
use crate::limits::GROUPS_MAX;
use crate::policy::AccessPolicy;

/// A process that has connected and may be registered. Its number stays its own while `process` is
/// not readable.
pub(crate) struct PeerProcess {
    /// The number of its connection; no other connection has it.
    pub(crate) connection_id: u64,
    /// Readable once the process has ended.
    pub(crate) process: OwnedFd,
    pub(crate) number: u32,
    /// When it connected.
    pub(crate) user: u32,
    pub(crate) group: u32,
    /// Where it is in the tree of cgroups (version 2).
    pub(crate) cgroup: PathBuf,
    /// It has another number where it lives.
    pub(crate) is_nested: bool,
}

impl PeerProcess {
    /// The process that called connect(2); nothing if the policy does not have it. Of who cannot be
    /// had, whatever its cgroup is, no more is asked.
    ///
    /// # Errors
    /// [`Error::Unsupported`] before Linux 6.5; [`Error::NoCgroup`]; ESRCH when it has ended
    /// already.
    pub(crate) fn from_connection(
        (connection, connection_number): (BorrowedFd<'_>, u64),
        policy: &AccessPolicy,
    ) -> Result<Option<Self>, Error> {
        let credentials = socket_peercred(connection)?;
        let user = credentials.uid.as_raw();
        let group = credentials.gid.as_raw();
        let mut groups = peer_groups(connection)?;
        groups.push(group);
        let is_listed = policy.allows_user(user, &groups);
        if !is_listed && policy.cgroups.is_empty() {
            return Ok(None);
        }
        let process = peer_pidfd(connection)?;
        let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", process.as_raw_fd()))?;
        let field = |name: &str| info.lines().find_map(|line| line.strip_prefix(name));
        let numbers = field("NSpid:").ok_or(Errno::SRCH)?;
        let number = field("Pid:").and_then(|number| number.trim().parse::<u32>().ok());
        // 0: of no namespace that we see; -1, which is no u32: it has ended.
        let number = number.filter(|number| *number > 0).ok_or(Errno::SRCH)?;
        let is_nested = numbers.split_whitespace().count() != 1;
        let cgroup = cgroup_path(number);
        // If it has ended meanwhile, that may have been of another process of that number.
        if has_ended(process.as_fd())? {
            return Err(Errno::SRCH.into());
        }
        let cgroup = cgroup?;
        let is_allowed = is_listed || policy.allows_cgroup(&cgroup);
        let connection = connection_number;
        let peer =
            Self { connection_id: connection, process, number, user, group, cgroup, is_nested };
        Ok(is_allowed.then_some(peer))
    }
}

fn has_ended(process: BorrowedFd<'_>) -> Result<bool, Errno> {
    let mut fds = [PollFd::from_borrowed_fd(process, PollFlags::IN)];
    Ok(poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }))? > 0)
}

/// Whether the other end of a Unix connection has received all that was sent (SIOCOUTQ, which sockets
/// have by the name of terminals).
pub(crate) fn has_received_all(connection: BorrowedFd<'_>) -> bool {
    let mut left: libc::c_int = 0;
    // SAFETY: the kernel stores a number there, which outlives the call.
    let result = unsafe { libc::ioctl(connection.as_raw_fd(), libc::TIOCOUTQ, &raw mut left) };
    result == 0 && left == 0
}

/// SO_PEERGROUPS (since Linux 4.13): the groups beside its own.
fn peer_groups(connection: BorrowedFd<'_>) -> Result<Vec<u32>, Errno> {
    let mut groups = vec![0; GROUPS_MAX];
    let count = getsockopt_u32s(connection, libc::SO_PEERGROUPS, &mut groups)?;
    groups.truncate(count);
    groups.shrink_to_fit();
    Ok(groups)
}

/// SO_PEERPIDFD: the process as it was when it connected, so no other one that has its number now.
fn peer_pidfd(connection: BorrowedFd<'_>) -> Result<OwnedFd, Error> {
    let mut fd = [0];
    match getsockopt_u32s(connection, libc::SO_PEERPIDFD, &mut fd) {
        // SAFETY: the kernel has just given it to us.
        Ok(_) => Ok(unsafe { OwnedFd::from_raw_fd(fd[0].cast_signed()) }),
        Err(Errno::NOPROTOOPT) => {
            Err(Error::Unsupported { feature: "SO_PEERPIDFD", since: "Linux 6.5" })
        }
        // Of a process that was waited for (Linux 6.5).
        Err(Errno::INVAL) => Err(Errno::SRCH.into()),
        Err(error) => Err(error.into()),
    }
}

/// getsockopt(2) of what is numbers, at the level of sockets: how many there are.
fn getsockopt_u32s(
    socket: BorrowedFd<'_>,
    name: libc::c_int,
    numbers: &mut [u32],
) -> Result<usize, Errno> {
    let mut bytes = size_of_val(numbers) as libc::socklen_t;
    let (fd, to) = (socket.as_raw_fd(), numbers.as_mut_ptr().cast());
    // SAFETY: `numbers` has room for the `bytes`, and both outlive the call.
    let result = unsafe { libc::getsockopt(fd, libc::SOL_SOCKET, name, to, &raw mut bytes) };
    if result == 0 {
        return Ok(bytes as usize / size_of::<u32>());
    }
    let error = std::io::Error::last_os_error();
    Err(Errno::from_io_error(&error).unwrap_or(Errno::IO))
}

/// Whether this process is where processes have the numbers that programs in the kernel see.
///
/// # Errors
/// When /proc is not mounted.
pub(crate) fn is_in_initial_pid_namespace() -> Result<bool, Error> {
    // PROC_PID_INIT_INO of include/linux/proc_ns.h.
    const FIRST: u64 = 0xEFFF_FFFC;
    Ok(rustix::fs::stat("/proc/self/ns/pid")?.st_ino == FIRST)
}
