//! The running programs: their number, their groups, and their ends.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use millrace_sys::{Errno, ProgramStart};

use crate::control_group::ControlGroup;
use crate::find::{FoundProgram, descriptor_path, is_script};
use crate::limits::DESCRIPTORS_MAX;
use crate::settings::LauncherSettings;

/// Why a request gets no output of a program.
#[derive(Debug)]
pub(crate) enum StartError {
    /// There is no program, or it cannot be opened.
    Open(Errno),
    /// The program cannot be started.
    Start(std::io::Error),
    /// As many programs run as may run at the same time.
    TooMany,
    /// The program wrote nothing in its time.
    TimedOut,
}

impl StartError {
    /// Returns the status of the response, and whether the operator has to know.
    pub(crate) fn status(&self) -> (&'static str, bool) {
        let errno = match self {
            Self::Open(errno) => Some(*errno),
            Self::Start(error) => Errno::from_io_error(error),
            Self::TooMany => return ("503 Service Unavailable", false),
            Self::TimedOut => return ("504 Gateway Timeout", true),
        };
        match (self, errno) {
            (Self::Open(_), Some(Errno::NOENT)) => ("404 Not Found", false),
            (_, Some(Errno::ACCESS | Errno::PERM)) => ("403 Forbidden", true),
            (_, Some(Errno::AGAIN | Errno::NOMEM | Errno::MFILE | Errno::NFILE)) => {
                ("503 Service Unavailable", true)
            }
            _ => ("502 Bad Gateway", true),
        }
    }
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let errno = match self {
            Self::Open(errno) => Some(*errno),
            Self::Start(error) => Errno::from_io_error(error),
            Self::TooMany => return f.write_str("too many programs run (limit cgi_programs)"),
            Self::TimedOut => return f.write_str("the program took too long (limit cgi_ms)"),
        };
        f.write_str(match (self, errno) {
            (Self::Open(_), Some(Errno::NOENT)) => "there is no such program",
            (_, Some(Errno::ACCESS | Errno::PERM)) => "the program is not executable",
            (_, Some(Errno::NOEXEC)) => "the program is neither a binary nor begins with #!",
            (_, Some(Errno::NOENT)) => "the interpreter of the program is missing",
            (_, Some(Errno::AGAIN)) => "too many processes run (limit cgi_processes)",
            _ => "the program cannot be started",
        })
    }
}

/// The programs that the launcher may start, and those that run.
#[derive(Debug)]
pub(crate) struct Programs {
    settings: LauncherSettings,
    folders: Vec<OwnedFd>,
    /// The limit on processes, if it counts the programs alone.
    processes: Option<u64>,
    running: Mutex<Running>,
}

#[derive(Debug)]
struct Running {
    /// The process ids of programs that were not waited for.
    children: Vec<u32>,
    /// Control groups that no program has.
    free_groups: Vec<ControlGroup>,
}

impl Programs {
    /// Creates the table. `groups` are empty, or one for each program.
    pub(crate) fn new(
        settings: LauncherSettings,
        folders: Vec<OwnedFd>,
        groups: Vec<ControlGroup>,
        processes: Option<u64>,
    ) -> Self {
        let running = Mutex::new(Running { children: Vec::new(), free_groups: groups });
        Self { settings, folders, processes, running }
    }

    /// Returns a folder and its path.
    pub(crate) fn folder(&self, number: usize) -> Option<(BorrowedFd<'_>, &Path)> {
        let path: &PathBuf = self.settings.folders.get(number)?;
        Some((self.folders.get(number)?.as_fd(), path))
    }

    /// Returns the longest run of a program.
    pub(crate) fn run_time(&self) -> Duration {
        Duration::from_millis(self.settings.run_ms)
    }

    fn lock(&self) -> MutexGuard<'_, Running> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts a program in `folder` with an environment.
    ///
    /// The file is executed by its descriptor, so that it is the one that was found. The
    /// interpreter of a script opens it again by that descriptor, so it stays open there; it cannot
    /// be read or written (O_PATH).
    pub(crate) fn start(
        &self,
        found: &FoundProgram<'_>,
        folder: BorrowedFd<'_>,
        environment: BTreeMap<OsString, OsString>,
    ) -> Result<RunningProgram<'_>, StartError> {
        let name = found.path.rsplit(|&byte| byte == b'/').next().unwrap_or_default();
        let mut command = Command::new(descriptor_path(&found.file));
        command.arg0(OsStr::from_bytes(name)).env_clear().envs(environment);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let kept = is_script(&found.file).then(|| found.file.as_fd());
        // The end of the launcher takes the lock too, so it never misses a program.
        let mut running = self.lock();
        if running.children.len() as u64 >= self.settings.programs {
            return Err(StartError::TooMany);
        }
        let group = running.free_groups.pop();
        let start = ProgramStart {
            folder,
            kept,
            control_group: group.as_ref().map(|group| group.processes.as_fd()),
            memory_bytes: Some(self.settings.memory_bytes).filter(|&bytes| bytes > 0),
            processes: self.processes,
            descriptors: DESCRIPTORS_MAX,
        };
        let mut child = match millrace_sys::start_program(&mut command, start) {
            Ok(child) => child,
            Err(error) => {
                running.free_groups.extend(group);
                return Err(StartError::Start(error));
            }
        };
        running.children.push(child.id());
        drop(running);
        let (input, output) = (child.stdin.take(), child.stdout.take());
        let errors = child.stderr.take();
        let ended = millrace_sys::open_child(&child);
        let Ok(ended) = ended else {
            Ending { programs: self, child, group, is_finished: false }.finish();
            return Err(StartError::Start(std::io::ErrorKind::OutOfMemory.into()));
        };
        for fd in [
            input.as_ref().map(AsFd::as_fd),
            output.as_ref().map(AsFd::as_fd),
            errors.as_ref().map(AsFd::as_fd),
        ] {
            let set = fd.map(millrace_sys::set_nonblocking);
            debug_assert_eq!(set, Some(Ok(())));
        }
        let ending = Ending { programs: self, child, group, is_finished: false };
        Ok(RunningProgram { input, output, errors, ended, ending })
    }

    /// Kills all programs with their groups, and ends the process.
    pub(crate) fn end_process(&self) -> ! {
        let running = self.lock();
        for child in &running.children {
            millrace_sys::kill_group(*child);
        }
        // The guard kills the members of the control groups, after the end of this process.
        std::process::exit(0)
    }
}

/// A program that runs, or that was not waited for. It is killed with its group when this is
/// dropped.
#[derive(Debug)]
pub(crate) struct RunningProgram<'p> {
    /// Its standard input; `None` after the end of the body.
    pub(crate) input: Option<ChildStdin>,
    /// Its standard output; `None` after its end.
    pub(crate) output: Option<ChildStdout>,
    /// Its standard error; `None` after its end.
    pub(crate) errors: Option<ChildStderr>,
    /// Readable once the program has ended.
    pub(crate) ended: OwnedFd,
    ending: Ending<'p>,
}

impl RunningProgram<'_> {
    /// Kills the program with its group.
    pub(crate) fn kill(&mut self) {
        self.ending.kill();
    }

    /// Kills the program with its group, and waits for its end. Returns its exit status, `None` if
    /// a signal ended it.
    pub(crate) fn finish(&mut self) -> Option<u32> {
        self.ending.finish()
    }
}

/// A program whose end is not handled yet.
#[derive(Debug)]
struct Ending<'p> {
    programs: &'p Programs,
    child: Child,
    group: Option<ControlGroup>,
    is_finished: bool,
}

impl Ending<'_> {
    fn kill(&mut self) {
        if let Some(group) = &mut self.group {
            // Fails only if the group was removed, which needs the launcher's guard.
            let _ = group.kill.write_all(b"1");
        }
        millrace_sys::kill_group(self.child.id());
    }

    fn finish(&mut self) -> Option<u32> {
        self.kill();
        let id = self.child.id();
        {
            // The id is that of another process once the child was waited for.
            let mut running = self.programs.lock();
            running.children.retain(|child| *child != id);
            running.free_groups.extend(self.group.take());
        }
        self.is_finished = true;
        let status = self.child.wait().ok()?;
        debug_assert!(status.code().is_some() || status.signal().is_some());
        status.code().map(|code| code as u32)
    }
}

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        if !self.is_finished {
            self.finish();
        }
    }
}
