//! The real uselectd, as a process that a test starts.

use std::io::{BufRead, BufReader, Read};
use std::path::PathBuf;
use std::process::{Child, ChildStderr, Command, Stdio};
use std::time::{Duration, Instant};

use aya::maps::{ArrayOfMaps, HashMap, Map, MapData};

use crate::common;

pub(crate) struct Uselectd {
    pub(crate) process: Child,
    pub(crate) socket: PathBuf,
    /// Its standard error after the first line.
    stderr: BufReader<ChildStderr>,
}

/// Objects that the kernel keeps for a daemon.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct KernelObjects {
    /// Descriptors of the daemon, including its programs and maps.
    pub(crate) descriptors: usize,
    /// The links among the descriptors, which attach programs.
    pub(crate) links: usize,
    /// Entries of its maps by which programs find processes and their memory.
    pub(crate) map_entries: usize,
}

impl Uselectd {
    /// Starts a daemon. Prints why and returns `None` if it cannot run.
    pub(crate) fn start(name: &str, options: &[&str]) -> Option<Self> {
        // Prints why a daemon cannot run, and panics if it should be able to.
        common::tracker()?;
        Some(Self::start_at(common::socket_path(name), options))
    }

    pub(crate) fn start_at(socket: PathBuf, options: &[&str]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_uselectd"));
        command.arg("--socket").arg(&socket).args(options).stderr(Stdio::piped());
        let mut process = command.spawn().unwrap();
        let (mut stderr, mut line) =
            (BufReader::new(process.stderr.take().unwrap()), String::new());
        stderr.read_line(&mut line).unwrap();
        assert!(line.starts_with("uselectd: listening on unix:"), "{line}");
        Self { process, socket, stderr }
    }

    /// Kills the daemon and returns everything that it has logged since it listened.
    pub(crate) fn kill_and_read_log(&mut self) -> String {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
        let mut log = String::new();
        self.stderr.read_to_string(&mut log).unwrap();
        log
    }

    /// Counts the objects of this daemon. Identifies maps by id, not by name, because other daemons
    /// may run at the same time.
    pub(crate) fn kernel_objects(&self) -> KernelObjects {
        let folder = format!("/proc/{}/fdinfo", self.process.id());
        let read = |entry: std::io::Result<std::fs::DirEntry>| {
            std::fs::read_to_string(entry.unwrap().path()).unwrap_or_default()
        };
        let infos: Vec<String> = std::fs::read_dir(folder).unwrap().map(read).collect();
        let field = |info: &str, name| {
            let found = info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
            found.map(|text| text.trim().parse().unwrap())
        };
        let links = infos.iter().filter(|info| info.contains("link_type:")).count();
        let map_entries =
            infos.iter().filter_map(|info| field(info, "map_id")).map(count_entries).sum();
        KernelObjects { descriptors: infos.len(), links, map_entries }
    }

    pub(crate) fn wait_for(&self, expected: KernelObjects) {
        let end = Instant::now() + Duration::from_secs(10);
        while self.kernel_objects() != expected {
            assert!(Instant::now() < end, "{:?}, not {expected:?}", self.kernel_objects());
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

/// Returns the number of entries of a hash map or of a map of maps, and 0 for other maps.
fn count_entries(id: u32) -> usize {
    // The map may have been closed meanwhile.
    let Ok(data) = MapData::from_id(id) else { return 0 };
    match Map::from_map_data(data).unwrap() {
        map @ Map::HashMap(_) => HashMap::<_, u32, [u8; 24]>::try_from(map).unwrap().iter().count(),
        map @ Map::ArrayOfMaps(_) => {
            let map = ArrayOfMaps::<_, MapData>::try_from(map).unwrap();
            (0..map.len()).filter(|at| map.get(at, 0).is_ok()).count()
        }
        _ => 0,
    }
}

impl Drop for Uselectd {
    fn drop(&mut self) {
        // Some tests have killed the process already.
        let _ = self.process.kill();
        self.process.wait().unwrap();
        let _ = std::fs::remove_file(&self.socket);
    }
}
