//! `PeerProcess`: the process at the other end of a connection to the daemon.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::path::PathBuf;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::sockopt::socket_peercred;

use crate::cgroup::cgroup_path;
use crate::error::Error;
use crate::limits::GROUPS_MAX;
use crate::policy::AccessPolicy;

/// A process that has connected and that the policy allows. While `pidfd` is not readable, no other
/// process has its pid.
pub(crate) struct PeerProcess {
    /// The id of its connection, which is never reused.
    pub(crate) connection_id: u64,
    /// Readable once the process has ended.
    pub(crate) pidfd: OwnedFd,
    pub(crate) pid: u32,
    /// Effective user id at connect(2).
    pub(crate) uid: u32,
    /// Effective group id at connect(2).
    pub(crate) gid: u32,
    /// Path of its cgroup (version 2) from the root of the hierarchy.
    pub(crate) cgroup: PathBuf,
    /// It is in a pid namespace below the daemon's, where it has another pid.
    pub(crate) is_nested: bool,
}

impl PeerProcess {
    /// Returns the process that called connect(2), or `None` if the policy does not allow it. If
    /// the policy allows neither its user nor its groups and lists no cgroups, nothing else is
    /// looked up.
    ///
    /// # Errors
    /// [`Error::Unsupported`] before Linux 6.5; [`Error::NoCgroup`]; ESRCH if the process has
    /// ended.
    pub(crate) fn from_connection(
        (connection, connection_id): (BorrowedFd<'_>, u64),
        policy: &AccessPolicy,
    ) -> Result<Option<Self>, Error> {
        let credentials = socket_peercred(connection)?;
        let uid = credentials.uid.as_raw();
        let gid = credentials.gid.as_raw();
        let mut groups = peer_groups(connection)?;
        groups.push(gid);
        let is_listed = policy.allows_user(uid, &groups);
        if !is_listed && policy.cgroups.is_empty() {
            return Ok(None);
        }
        let pidfd = peer_pidfd(connection)?;
        let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", pidfd.as_raw_fd()))?;
        let field = |name: &str| info.lines().find_map(|line| line.strip_prefix(name));
        let pids = field("NSpid:").ok_or(Errno::SRCH)?;
        let pid = field("Pid:").and_then(|pid| pid.trim().parse::<u32>().ok());
        // 0: the process is in no pid namespace that the daemon sees. -1, which does not parse as
        // u32: it has ended.
        let pid = pid.filter(|pid| *pid > 0).ok_or(Errno::SRCH)?;
        let is_nested = pids.split_whitespace().count() != 1;
        let cgroup = cgroup_path(pid);
        // If the process has ended by now, the cgroup may be that of another process with its pid.
        if has_ended(pidfd.as_fd())? {
            return Err(Errno::SRCH.into());
        }
        let cgroup = cgroup?;
        let is_allowed = is_listed || policy.allows_cgroup(&cgroup);
        let process = Self { connection_id, pidfd, pid, uid, gid, cgroup, is_nested };
        Ok(is_allowed.then_some(process))
    }
}

fn has_ended(pidfd: BorrowedFd<'_>) -> Result<bool, Errno> {
    let mut fds = [PollFd::from_borrowed_fd(pidfd, PollFlags::IN)];
    Ok(poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }))? > 0)
}

/// Returns whether the other end of a Unix connection has received everything that was sent
/// (SIOCOUTQ, which has the same number as TIOCOUTQ).
pub(crate) fn has_received_all(connection: BorrowedFd<'_>) -> bool {
    let mut unread: libc::c_int = 0;
    // SAFETY: the kernel stores an int to `unread`, which outlives the call.
    let result = unsafe { libc::ioctl(connection.as_raw_fd(), libc::TIOCOUTQ, &raw mut unread) };
    result == 0 && unread == 0
}

/// Returns the supplementary groups at connect(2) (SO_PEERGROUPS, since Linux 4.13).
fn peer_groups(connection: BorrowedFd<'_>) -> Result<Vec<u32>, Errno> {
    let mut groups = vec![0; GROUPS_MAX];
    let count = getsockopt_u32s(connection, libc::SO_PEERGROUPS, &mut groups)?;
    groups.truncate(count);
    groups.shrink_to_fit();
    Ok(groups)
}

/// Returns a pidfd of the process that called connect(2) (SO_PEERPIDFD, since Linux 6.5), never one
/// of another process that has its pid now.
fn peer_pidfd(connection: BorrowedFd<'_>) -> Result<OwnedFd, Error> {
    let mut fd = [0];
    match getsockopt_u32s(connection, libc::SO_PEERPIDFD, &mut fd) {
        // SAFETY: the kernel has just returned this descriptor, and this function alone owns it.
        Ok(_) => Ok(unsafe { OwnedFd::from_raw_fd(fd[0].cast_signed()) }),
        Err(Errno::NOPROTOOPT) => {
            Err(Error::Unsupported { feature: "SO_PEERPIDFD", since: "Linux 6.5" })
        }
        // The process has ended and was reaped (Linux 6.5).
        Err(Errno::INVAL) => Err(Errno::SRCH.into()),
        Err(error) => Err(error.into()),
    }
}

/// Calls getsockopt(2) for an option of SOL_SOCKET whose value is an array of `u32`. Returns the
/// number of elements.
fn getsockopt_u32s(
    socket: BorrowedFd<'_>,
    option: libc::c_int,
    values: &mut [u32],
) -> Result<usize, Errno> {
    let mut bytes = size_of_val(values) as libc::socklen_t;
    let (fd, value) = (socket.as_raw_fd(), values.as_mut_ptr().cast());
    // SAFETY: `values` has `bytes` bytes, and both outlive the call.
    let result = unsafe { libc::getsockopt(fd, libc::SOL_SOCKET, option, value, &raw mut bytes) };
    if result == 0 {
        return Ok(bytes as usize / size_of::<u32>());
    }
    let error = std::io::Error::last_os_error();
    Err(Errno::from_io_error(&error).unwrap_or(Errno::IO))
}

/// Returns whether this process is in the initial pid namespace, whose pids the eBPF programs use.
///
/// # Errors
/// If /proc is not mounted.
pub(crate) fn is_in_initial_pid_namespace() -> Result<bool, Error> {
    // PROC_PID_INIT_INO of include/linux/proc_ns.h.
    const INITIAL: u64 = 0xEFFF_FFFC;
    Ok(rustix::fs::stat("/proc/self/ns/pid")?.st_ino == INITIAL)
}
