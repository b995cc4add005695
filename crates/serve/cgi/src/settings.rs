//! The settings of the launcher, which its command line carries.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use millrace_confine::Identity;

/// This program, also if its file was replaced.
pub(crate) const OWN_PROGRAM: &str = "/proc/self/exe";

/// The hidden command of the guard.
pub(crate) const GUARD_COMMAND: &str = "cgi-guard";

/// The hidden command of the launcher.
pub(crate) const LAUNCHER_COMMAND: &str = "cgi-launcher";

/// The users that root selects.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Users {
    /// The real and saved ids of the launcher. The effective ones are those of the programs.
    pub launcher: Identity,
    /// The ids of the programs. If they are those of the launcher, a program can kill it.
    pub programs: Identity,
}

/// The settings of the launcher. They cannot be changed while it runs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LauncherSettings {
    /// The process that may connect.
    pub parent: u32,
    /// The users of the launcher and of the programs; `None`: that of the parent.
    pub users: Option<Users>,
    /// The most programs that run at the same time.
    pub programs: u64,
    /// The longest run of a program, in milliseconds.
    pub run_ms: u64,
    /// The most bytes of address space of a process of a program; 0: no limit.
    pub memory_bytes: u64,
    /// The most processes of the user of the programs, if that is not the user of the parent; 0: no
    /// limit.
    pub processes: u64,
    /// The control group below which each program gets its own; `None`: it gets a process group.
    pub control_group: Option<PathBuf>,
    /// The folders with the programs, in the order of their numbers.
    pub folders: Vec<PathBuf>,
}

impl LauncherSettings {
    /// Returns the arguments of a command line.
    pub fn to_arguments(&self) -> Vec<OsString> {
        let ids = |of: Identity| format!("{}:{}", of.user, of.group);
        let users =
            self.users.map(|users| format!("{}:{}", ids(users.launcher), ids(users.programs)));
        let numbers =
            [u64::from(self.parent), self.programs, self.run_ms, self.memory_bytes, self.processes];
        let numbers = numbers.map(|number| number.to_string().into());
        let group = self.control_group.clone().map_or("-".into(), OsString::from);
        let mut arguments = vec![users.map_or("-".into(), OsString::from), group];
        arguments.extend(numbers);
        arguments.extend(self.folders.iter().map(|folder| folder.clone().into_os_string()));
        arguments
    }

    /// Reads the arguments of a command line; `None` if they are not those of
    /// [`LauncherSettings::to_arguments`].
    pub fn from_arguments(arguments: &[OsString]) -> Option<Self> {
        let (fixed, folders) = arguments.split_first_chunk::<7>()?;
        let [users, group, numbers @ ..] = fixed;
        let users = match users.to_str()? {
            "-" => None,
            text => {
                let mut ids = text.split(':').map(|id| id.parse().ok());
                let mut identity = || Some(Identity { user: ids.next()??, group: ids.next()?? });
                Some(Users { launcher: identity()?, programs: identity()? })
            }
        };
        let mut numbers = numbers.iter().map(|text| text.to_str()?.parse::<u64>().ok());
        let mut number = || numbers.next().flatten();
        Some(Self {
            users,
            control_group: (group.as_bytes() != b"-").then(|| group.into()),
            parent: u32::try_from(number()?).ok()?,
            programs: number()?,
            run_ms: number()?,
            memory_bytes: number()?,
            processes: number()?,
            folders: folders.iter().map(PathBuf::from).collect(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_read_as_they_were_written() {
        let plain = LauncherSettings {
            parent: 77,
            users: None,
            programs: 1,
            run_ms: 2,
            memory_bytes: 3,
            processes: 4,
            control_group: None,
            folders: vec!["/srv/a b".into(), "c".into()],
        };
        let full = LauncherSettings {
            users: Some(Users {
                launcher: Identity { user: 65534, group: 1 },
                programs: Identity { user: 33, group: 34 },
            }),
            control_group: Some("/sys/fs/cgroup/x".into()),
            ..plain.clone()
        };
        for settings in [plain, full] {
            let read = LauncherSettings::from_arguments(&settings.to_arguments());
            assert_eq!(read, Some(settings));
        }
        for words in ["", "- - 1 2 3 4", "- - 1 2 3 4 x", "1 - 1 2 3 4 5"] {
            let words: Vec<OsString> = words.split(' ').map(OsString::from).collect();
            assert_eq!(LauncherSettings::from_arguments(&words), None);
        }
    }
}
