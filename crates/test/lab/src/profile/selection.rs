//! The processes and packets whose time is measured.

use std::fs::metadata;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use aya::util::online_cpus;
use rustix::fs::statfs;

use crate::profile::layout::{SELECT_CGROUP, SELECT_CORE, SELECT_NAMESPACE, SELECT_PROCESS};

/// The allowed selections, for errors and help.
pub const ALLOWED: &str = "pid:NUMBER, cgroup:DIRECTORY, core:NUMBER, netns:NAME; NAME is a name \
                           of ip-netns(8), a process id, or the path of a namespace";

/// The processes and packets whose time is measured.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Selection {
    /// The threads of one process, by its id in the initial PID namespace. Its children are not
    /// selected.
    Process(u32),
    /// The processes in a cgroup of version 2 and in its descendants, by its directory.
    Cgroup(PathBuf),
    /// All that runs on a CPU, by its number.
    Core(u32),
    /// The processes in a network namespace, by a file that denotes it, and the packets that its
    /// devices receive. Kernel threads are in no namespace.
    Namespace(PathBuf),
}

impl Selection {
    /// Reads a selection such as "pid:17" or "netns:servers".
    ///
    /// # Errors
    /// One line that names the wrong text and what is allowed.
    pub fn parse(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?} is no selection (expected: {ALLOWED})");
        let (kind, value) = text.split_once(':').ok_or_else(wrong)?;
        let number = || value.parse().map_err(|_| wrong());
        if value.is_empty() {
            return Err(wrong());
        }
        match kind {
            "pid" => number().map(Selection::Process),
            "cgroup" => Ok(Selection::Cgroup(value.into())),
            "core" => number().map(Selection::Core),
            "netns" => Ok(Selection::Namespace(namespace_path(value))),
            _ => Err(wrong()),
        }
    }

    /// Returns the kind and the id for the programs.
    ///
    /// # Errors
    /// One line: the process, cgroup, CPU or namespace does not exist.
    pub(crate) fn resolve(&self) -> Result<(u32, u64), String> {
        match self {
            Selection::Process(id) => {
                let initial = metadata("/proc/self/ns/pid").map(|file| file.ino());
                if !matches!(initial, Ok(INITIAL_PID_NAMESPACE)) {
                    return Err("a process is selected in the initial PID namespace only".into());
                }
                inode(Path::new(&format!("/proc/{id}")), PROC_SUPER_MAGIC, "process")?;
                Ok((SELECT_PROCESS, (*id).into()))
            }
            Selection::Cgroup(path) => {
                Ok((SELECT_CGROUP, inode(path, CGROUP2_SUPER_MAGIC, "cgroup of version 2")?))
            }
            Selection::Core(number) => match online_cpus() {
                Ok(cpus) if cpus.contains(number) => Ok((SELECT_CORE, (*number).into())),
                _ => Err(format!("{number} is no CPU that is online")),
            },
            Selection::Namespace(path) => {
                Ok((SELECT_NAMESPACE, inode(path, NSFS_MAGIC, "network namespace")?))
            }
        }
    }
}

// linux/magic.h: types of file systems.
const PROC_SUPER_MAGIC: i64 = 0x9FA0;
const CGROUP2_SUPER_MAGIC: i64 = 0x6367_7270;
const NSFS_MAGIC: i64 = 0x6E73_6673;

/// PROC_PID_INIT_INO of include/linux/proc_ns.h.
const INITIAL_PID_NAMESPACE: u64 = 0xEFFF_FFFC;

fn namespace_path(name: &str) -> PathBuf {
    if name.contains('/') {
        name.into()
    } else if name.bytes().all(|byte| byte.is_ascii_digit()) {
        format!("/proc/{name}/ns/net").into()
    } else {
        format!("/run/netns/{name}").into()
    }
}

/// Returns the inode number of a file, which must be on a file system of this type.
fn inode(path: &Path, file_system: i64, thing: &str) -> Result<u64, String> {
    let shown = path.display();
    let file = metadata(path).map_err(|error| format!("{shown}: {error}"))?;
    let found = statfs(path).map_err(|error| format!("{shown}: {error}"))?;
    if found.f_type as i64 != file_system {
        return Err(format!("{shown} is no {thing}"));
    }
    Ok(file.ino())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn selections_are_parsed() {
        let parse = |text| Selection::parse(text).unwrap();
        assert_eq!(parse("pid:17"), Selection::Process(17));
        assert_eq!(parse("core:0"), Selection::Core(0));
        assert_eq!(parse("cgroup:/a/b"), Selection::Cgroup("/a/b".into()));
        assert_eq!(parse("netns:a"), Selection::Namespace("/run/netns/a".into()));
        assert_eq!(parse("netns:9"), Selection::Namespace("/proc/9/ns/net".into()));
        assert_eq!(parse("netns:./9"), Selection::Namespace("./9".into()));
        for wrong in ["", "17", "pid:", "pid:x", "core:-1", "user:1", "netns:"] {
            assert!(Selection::parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn selections_that_do_not_exist_are_refused() {
        for (text, error) in [
            ("cgroup:/proc", "/proc is no cgroup of version 2"),
            ("core:9999", "9999 is no CPU that is online"),
            ("netns:/proc/self/stat", "/proc/self/stat is no network namespace"),
            ("netns:no such name", "/run/netns/no such name: No such file or directory"),
        ] {
            let found = Selection::parse(text).unwrap().resolve().unwrap_err();
            assert!(found.starts_with(error), "{found}");
        }
    }
}
