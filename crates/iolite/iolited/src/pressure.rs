//! Readings of memory: of the system, and of the control groups that limit this process.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The memory that this process shares with others, and those that limit it: the system, and each
/// control group above it that has a limit.
#[derive(Debug)]
pub(crate) struct MemoryLevels {
    begin: Instant,
    levels: Vec<Level>,
}

#[derive(Debug)]
enum Level {
    System,
    Group { folder: PathBuf, names: &'static GroupNames },
}

/// The names of files, and of rows, for control groups of one version.
#[derive(Debug)]
struct GroupNames {
    limits: &'static [&'static str],
    usage: &'static str,
    /// The rows of memory.stat that include the groups below.
    stat_prefix: &'static str,
    /// A path below the group, or an absolute one.
    pressure: &'static str,
}

const VERSION_1: GroupNames = GroupNames {
    limits: &["memory.limit_in_bytes"],
    usage: "memory.usage_in_bytes",
    stat_prefix: "total_",
    // Groups of version 1 have no such file.
    pressure: SYSTEM_PRESSURE,
};

const VERSION_2: GroupNames = GroupNames {
    limits: &["memory.max", "memory.high"],
    usage: "memory.current",
    stat_prefix: "",
    pressure: "memory.pressure",
};

const SYSTEM_PRESSURE: &str = "/proc/pressure/memory";
/// The row with the number of pages of files that were read again.
const REFAULTED_PAGES: &str = "workingset_refault_file";
/// Version 1 has a large number instead of "max".
const LIMIT_BYTES_MAX: u64 = 1 << 60;

/// The memory of one level at one time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct MemoryReading {
    /// Since some moment.
    pub(crate) at: Duration,
    /// All bytes that may be used.
    pub(crate) limit: u64,
    /// The bytes that are not used.
    pub(crate) free: u64,
    /// The bytes of files in the kernel's cache, which it can reclaim.
    pub(crate) file_cache: u64,
    /// The time in which at least one thread waited for memory. It counts up.
    pub(crate) stalled: Duration,
    /// The bytes of files that were read again soon after they had been reclaimed. They count up.
    pub(crate) refaulted: u64,
}

impl MemoryLevels {
    /// Finds the levels of this process.
    pub(crate) fn find() -> Self {
        let text = |path| fs::read_to_string(path).unwrap_or_default();
        let mut levels = vec![Level::System];
        if let Some((mount, group, names)) =
            group_folder(&text("/proc/self/cgroup"), &text("/proc/self/mountinfo"))
        {
            let above = group.ancestors().take_while(|folder| folder.starts_with(&mount));
            levels.extend(above.map(|folder| Level::Group { folder: folder.to_owned(), names }));
        }
        Self { begin: Instant::now(), levels }
    }

    /// Reads all levels. A level has no reading while it has no limit, or if the kernel does not
    /// show it to this process.
    pub(crate) fn read(&self) -> Vec<Option<MemoryReading>> {
        let at = self.begin.elapsed();
        let text = |path: &Path| fs::read_to_string(path).ok();
        let read = |level: &Level| match level {
            Level::System => read_system(at, text),
            Level::Group { folder, names } => {
                read_group(at, names, |name| text(&folder.join(name)))
            }
        };
        self.levels.iter().map(read).collect()
    }
}

/// Returns the mount of the hierarchy that limits memory, the folder of the group of this process,
/// and the names there, from the texts of /proc/PID/cgroup and /proc/PID/mountinfo.
fn group_folder(groups: &str, mounts: &str) -> Option<(PathBuf, PathBuf, &'static GroupNames)> {
    let of = |line: &'_ str| -> Option<(String, String)> {
        let (_, rest) = line.split_once(':')?;
        let (controllers, group) = rest.split_once(':')?;
        Some((controllers.to_owned(), group.to_owned()))
    };
    let groups: Vec<_> = groups.lines().filter_map(of).collect();
    let has_memory = |list: &str| list.split(',').any(|controller| controller == "memory");
    let version_1 = groups.iter().find(|(controllers, _)| has_memory(controllers));
    let version_2 = groups.iter().find(|(controllers, _)| controllers.is_empty());
    let ((_, group), names) =
        version_1.map(|of| (of, &VERSION_1)).or(version_2.map(|of| (of, &VERSION_2)))?;
    mounts.lines().find_map(|line| {
        // proc_pid_mountinfo(5): type, source and options follow a lone dash.
        let (left, right) = line.split_once(" - ")?;
        let mut fields = left.split(' ').skip(3);
        let (root, place) = (fields.next()?, fields.next()?);
        let mut kind = right.split(' ');
        let is_it = match (kind.next()?, version_1.is_some()) {
            ("cgroup2", false) => true,
            ("cgroup", true) => kind.nth(1).is_some_and(has_memory),
            _ => false,
        };
        // A mount in a container may show a part of the hierarchy only.
        let below = Path::new(group).strip_prefix(root).unwrap_or(Path::new(""));
        is_it.then(|| (place.into(), Path::new(place).join(below), names))
    })
}

fn read_system(at: Duration, text: impl Fn(&Path) -> Option<String>) -> Option<MemoryReading> {
    let memory = text(Path::new("/proc/meminfo"))?;
    let bytes = |name| Some(row(&memory, name)? << 10);
    let events = text(Path::new("/proc/vmstat")).unwrap_or_default();
    let pressure = text(Path::new(SYSTEM_PRESSURE)).unwrap_or_default();
    Some(MemoryReading {
        at,
        limit: bytes("MemTotal:")?,
        free: bytes("MemFree:")?,
        file_cache: bytes("Active(file):")? + bytes("Inactive(file):")?,
        stalled: stalled(&pressure),
        refaulted: row(&events, REFAULTED_PAGES).unwrap_or(0) * page_bytes(),
    })
}

fn read_group(
    at: Duration,
    names: &GroupNames,
    text: impl Fn(&str) -> Option<String>,
) -> Option<MemoryReading> {
    let number = |name| text(name)?.trim().parse::<u64>().ok();
    let limit = names.limits.iter().filter_map(|name| number(name)).min()?;
    let statistics = text("memory.stat")?;
    let counted = |name| row(&statistics, &format!("{}{name}", names.stat_prefix));
    (limit < LIMIT_BYTES_MAX).then_some(MemoryReading {
        at,
        limit,
        free: limit.saturating_sub(number(names.usage)?),
        file_cache: counted("active_file")? + counted("inactive_file")?,
        stalled: stalled(&text(names.pressure).unwrap_or_default()),
        refaulted: counted(REFAULTED_PAGES).unwrap_or(0) * page_bytes(),
    })
}

fn page_bytes() -> u64 {
    millrace_sys::page_bytes() as u64
}

/// Returns the number in the row of a name.
fn row(text: &str, name: &str) -> Option<u64> {
    let mut words = text.lines().map(str::split_whitespace);
    words.find_map(|mut words| (words.next()? == name).then(|| words.next()?.parse().ok())?)
}

/// Returns the time of `some` in a pressure file; 0 if the kernel does not measure it.
fn stalled(text: &str) -> Duration {
    let some = text.lines().find_map(|line| line.strip_prefix("some "));
    let total = some.and_then(|line| line.split_once("total=")?.1.trim().parse().ok());
    Duration::from_micros(total.unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PRESSURE: &str = "some avg10=0.00 avg60=0.12 avg300=0.01 total=123456\n\
                            full avg10=0.00 avg60=0.00 avg300=0.00 total=99\n";

    #[test]
    fn the_system_is_read() {
        let text = |path: &Path| {
            Some(match path.to_str()? {
                "/proc/meminfo" => {
                    "MemTotal:  1000 kB\nMemFree:     100 kB\nMemAvailable: 300 kB\n\
                     Active(file):   40 kB\nInactive(file): 30 kB\n"
                        .to_owned()
                }
                "/proc/vmstat" => "nr_free 7\nworkingset_refault_file 5\n".to_owned(),
                SYSTEM_PRESSURE => PRESSURE.to_owned(),
                _ => return None,
            })
        };
        let at = Duration::from_secs(7);
        let reading = MemoryReading {
            at,
            limit: 1000 << 10,
            free: 100 << 10,
            file_cache: 70 << 10,
            stalled: Duration::from_micros(123_456),
            refaulted: 5 * page_bytes(),
        };
        assert_eq!(read_system(at, text), Some(reading));
        assert_eq!(read_system(at, |_| None), None);
        // A kernel without pressure.
        let without = |path: &Path| text(path).filter(|_| path == Path::new("/proc/meminfo"));
        let none = MemoryReading { stalled: Duration::ZERO, refaulted: 0, ..reading };
        assert_eq!(read_system(at, without), Some(none));
        // This system.
        let read = MemoryLevels::find().read();
        assert!(read[0].is_some_and(|of| of.limit > of.free && of.free > 0), "{read:?}");
    }

    #[test]
    fn a_group_is_read_if_it_has_a_limit() {
        let read = |names, limits: [&str; 2]| {
            let limits = limits.map(str::to_owned);
            read_group(Duration::ZERO, names, move |name| {
                Some(match name {
                    "memory.max" | "memory.limit_in_bytes" => limits[0].clone(),
                    "memory.high" => limits[1].clone(),
                    "memory.current" | "memory.usage_in_bytes" => "60\n".to_owned(),
                    "memory.pressure" | SYSTEM_PRESSURE => PRESSURE.to_owned(),
                    "memory.stat" => "active_file 1\ninactive_file 2\ntotal_active_file 10\n\
                         total_inactive_file 20\nworkingset_refault_file 3\n"
                        .to_owned(),
                    _ => return None,
                })
            })
        };
        let seen = |names, limits| {
            read(names, limits).map(|of| (of.limit, of.free, of.file_cache, of.refaulted))
        };
        assert_eq!(seen(&VERSION_2, ["100\n", "max\n"]), Some((100, 40, 3, 3 * page_bytes())));
        assert_eq!(seen(&VERSION_2, ["100\n", "50\n"]), Some((50, 0, 3, 3 * page_bytes())));
        assert_eq!(seen(&VERSION_2, ["max\n", "max\n"]), None);
        assert_eq!(seen(&VERSION_1, ["100\n", ""]), Some((100, 40, 30, 0)));
        assert_eq!(seen(&VERSION_1, ["9223372036854771712\n", ""]), None);
        let stalled = read(&VERSION_2, ["100", "max"]).map(|of| of.stalled.as_micros());
        assert_eq!(stalled, Some(123_456));
    }

    #[test]
    fn the_group_is_found() {
        let found = |groups, mounts| {
            let (mount, group, names) = group_folder(groups, mounts)?;
            Some((mount, group, names.stat_prefix))
        };
        let is = |mount: &str, group: &str, prefix| Some((mount.into(), group.into(), prefix));
        let unified = "24 1 0:22 / /proc rw - proc proc rw\n\
                       30 1 0:6 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw\n";
        let expected = is("/sys/fs/cgroup", "/sys/fs/cgroup/system.slice/a.service", "");
        assert_eq!(found("0::/system.slice/a.service\n", unified), expected);
        let hybrid = "31 1 0:7 / /cg/cpu rw - cgroup cgroup rw,cpu\n\
                      32 1 0:8 / /cg/memory rw - cgroup cgroup rw,memory\n\
                      33 1 0:9 / /cg/unified rw - cgroup2 cgroup2 rw\n";
        let groups = "5:cpu:/\n4:memory:/a/b\n0::/\n";
        assert_eq!(found(groups, hybrid), is("/cg/memory", "/cg/memory/a/b", "total_"));
        // A container that shows its own part only.
        let part = "32 1 0:8 /a /cg/memory rw - cgroup cgroup rw,memory\n";
        assert_eq!(found(groups, part), is("/cg/memory", "/cg/memory/b", "total_"));
        let other = "32 1 0:8 /x /cg/memory rw - cgroup cgroup rw,memory\n";
        assert_eq!(found(groups, other), is("/cg/memory", "/cg/memory", "total_"));
        assert_eq!(found("", unified), None);
        assert_eq!(found(groups, ""), None);
    }
}
