//! Control groups (cgroups(7), version 2) for programs. The guard makes and removes them, and the
//! launcher moves programs into them.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use millrace_sys::ProgramStart;

use crate::limits::DESCRIPTORS_MAX;
use crate::settings::{LAUNCHER_COMMAND, LauncherSettings, OWN_PROGRAM};

/// The file that kills all members of a group (since Linux 5.14).
const KILL_FILE: &str = "cgroup.kill";

/// The tries to remove a group whose members are ending, and the pause between two.
const REMOVE_TRIES_MAX: usize = 200;
const REMOVE_PAUSE: Duration = Duration::from_millis(10);

/// The control group of one program.
#[derive(Debug)]
pub(crate) struct ControlGroup {
    /// Adds a process. The kernel checks the rights of the process that opened the file.
    pub(crate) processes: File,
    /// Kills all members.
    pub(crate) kill: File,
}

/// Returns whether control groups could be made for programs, by trying it.
pub fn can_make_control_groups() -> bool {
    make_groups("test", 1).map(|parent| remove_groups(&parent)).is_ok()
}

/// Makes a group for each program of a launcher, in a group of their own below that of this
/// process. Returns the latter's folder.
pub(crate) fn make_groups(launcher: &str, count: u64) -> io::Result<PathBuf> {
    let own = own_group().ok_or(io::ErrorKind::NotFound)?;
    let parent = own.join(format!("millrace-cgi-{}-{launcher}", std::process::id()));
    fs::create_dir(&parent)?;
    let made = (0..count).try_for_each(|number| {
        let group = parent.join(number.to_string());
        fs::create_dir(&group)?;
        fs::metadata(group.join(KILL_FILE)).map(drop)
    });
    match made {
        Ok(()) => Ok(parent),
        Err(error) => {
            remove_groups(&parent);
            Err(error)
        }
    }
}

/// Kills all members of the groups and removes them. A group with a member in uninterruptible sleep
/// stays.
pub(crate) fn remove_groups(parent: &Path) {
    let _ = fs::write(parent.join(KILL_FILE), "1");
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove_group(&entry.path());
        }
    }
    remove_group(parent);
}

fn remove_group(group: &Path) {
    for _ in 0..REMOVE_TRIES_MAX {
        match fs::remove_dir(group) {
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy => {
                thread::sleep(REMOVE_PAUSE);
            }
            _ => return,
        }
    }
}

/// Returns the folder of the control group of this process.
fn own_group() -> Option<PathBuf> {
    let groups = fs::read_to_string("/proc/self/cgroup").ok()?;
    let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
    group_folder(&groups, &mounts)
}

/// Returns the folder of a group, from the texts of /proc/PID/cgroup and /proc/PID/mountinfo.
fn group_folder(groups: &str, mounts: &str) -> Option<PathBuf> {
    let group = groups.lines().find_map(|line| line.strip_prefix("0::"))?;
    mounts.lines().find_map(|line| {
        // proc_pid_mountinfo(5): the type follows a lone dash.
        let (left, right) = line.split_once(" - ")?;
        let mut fields = left.split(' ').skip(3);
        let (root, place) = (fields.next()?, fields.next()?);
        // A mount in a container may show a part of the hierarchy only.
        let below = Path::new(group).strip_prefix(root).ok()?;
        right.starts_with("cgroup2 ").then(|| Path::new(place).join(below))
    })
}

/// Opens the groups of the settings, while this process has the rights of the guard.
///
/// # Errors
/// Those of open(2).
pub(crate) fn open_groups(settings: &LauncherSettings) -> io::Result<Vec<ControlGroup>> {
    let Some(parent) = &settings.control_group else { return Ok(Vec::new()) };
    let open = |group: &Path, name| OpenOptions::new().write(true).open(group.join(name));
    let groups = (0..settings.programs).map(|number| {
        let group = parent.join(number.to_string());
        Ok(ControlGroup {
            processes: open(&group, "cgroup.procs")?,
            kill: open(&group, KILL_FILE)?,
        })
    });
    groups.collect()
}

/// Returns the groups if a program can be started in one of them, otherwise none. Before Linux
/// 5.16, the kernel checks the rights of the process that writes, which has given them up.
pub(crate) fn tested(groups: Vec<ControlGroup>) -> Vec<ControlGroup> {
    match groups.first().map(|group| try_start(Some(group))) {
        Some(Err(_)) => Vec::new(),
        Some(Ok(())) | None => groups,
    }
}

/// Starts this program, which ends at once without settings, as CGI programs are started.
///
/// # Errors
/// Those of [`start_program`](millrace_sys::start_program).
pub(crate) fn try_start(group: Option<&ControlGroup>) -> io::Result<()> {
    let folder = millrace_sys::open_folder(Path::new("/"))?;
    let start = ProgramStart {
        folder: folder.as_fd(),
        kept: None,
        control_group: group.map(|group| group.processes.as_fd()),
        memory_bytes: None,
        processes: None,
        descriptors: DESCRIPTORS_MAX,
    };
    let mut command = Command::new(OWN_PROGRAM);
    command.arg(LAUNCHER_COMMAND).env_clear();
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    millrace_sys::start_program(&mut command, start)?.wait().map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_folder_of_a_group_is_below_its_mount() {
        let mounts = "20 1 0:5 / /proc rw - proc proc rw\n\
             30 1 0:6 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw\n";
        let folder = |groups: &str, mounts: &str| {
            group_folder(groups, mounts).map(|path| path.display().to_string())
        };
        let groups = "3:pids:/x\n0::/system.slice/a.service\n";
        let expected = "/sys/fs/cgroup/system.slice/a.service";
        assert_eq!(folder(groups, mounts).as_deref(), Some(expected));
        assert_eq!(folder("3:pids:/x\n", mounts), None);
        assert_eq!(folder(groups, "20 1 0:5 / /proc rw - proc proc rw\n"), None);
        let part = mounts.replace("0:6 /", "0:6 /system.slice");
        assert_eq!(folder(groups, &part).as_deref(), Some("/sys/fs/cgroup/a.service"));
    }
}
