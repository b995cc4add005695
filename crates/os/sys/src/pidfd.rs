//! Descriptors that refer to processes (pidfd_open(2)).

use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags};

use crate::Result;

/// Returns a descriptor of a process, which is readable once the process has ended.
///
/// # Errors
/// ESRCH if there is no such process; EINVAL for an id that none has.
pub fn open_process(process_id: u32) -> Result<OwnedFd> {
    let id = i32::try_from(process_id).ok().and_then(Pid::from_raw).ok_or(Errno::INVAL)?;
    rustix::process::pidfd_open(id, PidfdFlags::empty())
}

/// Returns whether a descriptor of unknown origin is one of [`open_process`]. No file system
/// is involved, since a process may implement one (FUSE) and may take its time.
///
/// # Errors
/// ENOENT if proc(5) is not mounted.
pub fn is_process(fd: BorrowedFd<'_>) -> Result<bool> {
    let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
    let name = rustix::fs::readlink(path, Vec::new())?;
    // The names of files begin with a slash.
    let name = name.to_bytes();
    Ok(name == b"anon_inode:[pidfd]" || name.starts_with(b"pidfd:"))
}

/// Returns whether the process of a descriptor of [`open_process`] has ended.
///
/// # Errors
/// Those of poll(2).
pub fn has_ended(process: BorrowedFd<'_>) -> Result<bool> {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let mut fds = [PollFd::from_borrowed_fd(process, PollFlags::IN)];
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    rustix::io::retry_on_intr(|| poll(&mut fds, Some(&at_once)))?;
    Ok(fds[0].revents().contains(PollFlags::IN))
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn only_descriptors_of_processes_are_accepted() {
        let this = open_process(std::process::id()).unwrap();
        let file = std::fs::File::open("/dev/null").unwrap();
        assert_eq!([is_process(this.as_fd()), is_process(file.as_fd())], [Ok(true), Ok(false)]);
        assert_eq!(has_ended(this.as_fd()), Ok(false));
        assert_eq!(open_process(0).unwrap_err(), Errno::INVAL);
    }
}
