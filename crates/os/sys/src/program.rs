//! Starting programs of others: with a folder, limits and no descriptor that they should not have;
//! and ending them.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};

use rustix::io::FdFlags;
use rustix::process::{Pid, PidfdFlags, Resource, Rlimit, Signal};

use crate::Result;

/// The things that a program gets besides its arguments, environment and standard streams.
#[derive(Clone, Copy, Debug)]
pub struct ProgramStart<'a> {
    /// The current folder.
    pub folder: BorrowedFd<'a>,
    /// A descriptor that stays open in the program. All others above 2 are closed.
    pub kept: Option<BorrowedFd<'a>>,
    /// The file `cgroup.procs` of the control group that the program becomes a member of
    /// (cgroups(7)), open for writing.
    pub control_group: Option<BorrowedFd<'a>>,
    /// The most bytes of address space of each of its processes (RLIMIT_AS).
    pub memory_bytes: Option<u64>,
    /// The most processes and threads of its user (RLIMIT_NPROC).
    pub processes: Option<u64>,
    /// The most open descriptors of each of its processes (RLIMIT_NOFILE).
    pub descriptors: u64,
}

/// Starts a program as the leader of a process group of its own. The kernel kills it when the
/// calling thread ends (PR_SET_PDEATHSIG). The effective user and group of this process become its
/// real and saved ones too. Signals have their default actions.
///
/// # Errors
/// Those of fork(2), execve(2), fchdir(2), setresuid(2) and setrlimit(2); of close_range(2) before
/// Linux 5.11; of a write to `cgroup.procs`.
pub fn start_program(command: &mut Command, start: ProgramStart<'_>) -> io::Result<Child> {
    let folder = start.folder.as_raw_fd();
    let kept = start.kept.map(|fd| fd.as_raw_fd());
    let control_group = start.control_group.map(|fd| fd.as_raw_fd());
    let limits = [
        (Resource::As, start.memory_bytes),
        (Resource::Nproc, start.processes),
        (Resource::Nofile, Some(start.descriptors)),
    ];
    let prepare = move || {
        reset_signals();
        close_on_exec()?;
        if let Some(kept) = kept {
            rustix::io::fcntl_setfd(borrow(kept), FdFlags::empty())?;
        }
        if let Some(control_group) = control_group {
            // 0 is the writing process.
            rustix::io::write(borrow(control_group), b"0")?;
        }
        rustix::process::fchdir(borrow(folder))?;
        for (resource, most) in limits {
            if let Some(most) = most {
                lower(resource, most)?;
            }
        }
        take_effective_ids()?;
        // After the change of the user, which may reset it.
        rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
        Ok(())
    };
    command.process_group(0);
    // SAFETY: between fork(2) and execve(2) the function only makes system calls. It allocates
    // nothing and takes no lock.
    unsafe { command.pre_exec(prepare) };
    command.spawn()
}

/// Returns a descriptor of the child, which has a copy of those of its parent.
fn borrow<'a>(fd: RawFd) -> BorrowedFd<'a> {
    // SAFETY: `start_program` borrows the descriptor until the child was started, and the child has
    // a copy, which it does not close before execve(2).
    unsafe { BorrowedFd::borrow_raw(fd) }
}

/// Makes the effective user and group the real and the saved ones too. The limit on processes then
/// counts those of this user: execve(2) fails with EAGAIN if there are more.
fn take_effective_ids() -> Result<()> {
    let (group, user) = (rustix::process::getegid(), rustix::process::geteuid());
    // A service manager may forbid these calls to a process that is not root.
    if group != rustix::process::getgid() {
        rustix::thread::set_thread_res_gid(group, group, group)?;
    }
    if user != rustix::process::getuid() {
        rustix::thread::set_thread_res_uid(user, user, user)?;
    }
    Ok(())
}

/// Resets ignored signals to their default actions. execve(2) resets only those with handlers.
fn reset_signals() {
    for signal in 1..=libc::SIGRTMAX() {
        // SAFETY: the process has no other thread, and runs no handler before execve(2). EINVAL:
        // the action of the signal cannot be changed.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
    }
}

/// Makes execve(2) close every descriptor but the standard streams.
fn close_on_exec() -> Result<()> {
    // SAFETY: no descriptor is closed now.
    let set = unsafe {
        libc::syscall(libc::SYS_close_range, 3, libc::c_uint::MAX, libc::CLOSE_RANGE_CLOEXEC)
    };
    if set == 0 { Ok(()) } else { Err(crate::last_error()) }
}

/// Lowers a limit to `most`, or leaves it if it is lower.
fn lower(resource: Resource, most: u64) -> Result<()> {
    let most = rustix::process::getrlimit(resource).maximum.map_or(most, |own| own.min(most));
    rustix::process::setrlimit(resource, Rlimit { current: Some(most), maximum: Some(most) })
}

/// Returns a descriptor that is readable once the child has ended (pidfd_open(2), since Linux 5.3).
///
/// # Errors
/// Those of pidfd_open(2).
pub fn open_child(child: &Child) -> Result<OwnedFd> {
    rustix::process::pidfd_open(pid(child.id()), PidfdFlags::empty())
}

/// Kills all processes of the group that a child leads. The child must not have been waited for, so
/// that its id is still that of the group.
pub fn kill_group(child: u32) {
    // ESRCH: all have ended. EPERM: those that are left have another user.
    let _ = rustix::process::kill_process_group(pid(child), Signal::KILL);
}

fn pid(child: u32) -> Pid {
    Pid::from_raw(child.cast_signed()).expect("the id of a child is positive")
}

/// Makes reads and writes return EAGAIN instead of waiting.
///
/// # Errors
/// Those of ioctl(2); none is known for pipes and sockets.
pub fn set_nonblocking(fd: BorrowedFd<'_>) -> Result<()> {
    rustix::io::ioctl_fionbio(fd, true)
}

/// Writes as much to a pipe as there is room for. Returns the number of bytes.
///
/// # Errors
/// EAGAIN if the pipe is full, EPIPE if it has no reader.
pub fn write_pipe(fd: BorrowedFd<'_>, bytes: &[u8]) -> Result<usize> {
    rustix::io::retry_on_intr(|| rustix::io::write(fd, bytes))
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::fd::AsFd;
    use std::process::Stdio;

    use super::*;

    fn start(script: &str) -> Child {
        let folder = crate::open_folder(std::path::Path::new("/usr")).unwrap();
        let mut command = Command::new("/bin/sh");
        command.args(["-c", script]).stdout(Stdio::piped());
        let start = ProgramStart {
            folder: folder.as_fd(),
            kept: None,
            control_group: None,
            memory_bytes: Some(1 << 30),
            processes: None,
            descriptors: 100,
        };
        start_program(&mut command, start).unwrap()
    }

    #[test]
    fn a_program_has_its_folder_and_limits_and_no_descriptor() {
        // SAFETY: the descriptor is that of standard error, which the test keeps open.
        let error = unsafe { BorrowedFd::borrow_raw(2) };
        let leaked = rustix::io::dup(error).unwrap();
        let mut child = start("pwd; ulimit -v; ulimit -n; set -- /proc/$$/fd/*; echo $#");
        let mut text = String::new();
        child.stdout.take().unwrap().read_to_string(&mut text).unwrap();
        child.wait().unwrap();
        let words: Vec<_> = text.split_whitespace().collect();
        // The standard streams, and the folder that the shell reads.
        assert_eq!(words, ["/usr", "1048576", "100", "4"]);
        drop(leaked);
    }

    #[test]
    fn a_group_is_killed_as_a_whole() {
        let mut child = start("sleep 600 & echo; wait");
        let mut output = child.stdout.take().unwrap();
        output.read_exact(&mut [0]).unwrap();
        let ended = open_child(&child).unwrap();
        kill_group(child.id());
        // The background process held the pipe too.
        assert_eq!(output.read_to_end(&mut Vec::new()).unwrap(), 0);
        let mut event = [rustix::event::PollFd::new(&ended, rustix::event::PollFlags::IN)];
        assert_eq!(rustix::event::poll(&mut event, None), Ok(1));
        assert!(!child.wait().unwrap().success());
    }
}
