//! The real uselectd, as a process of a test.

use std::io::{BufRead, BufReader, Read};
use std::path::PathBuf;
use std::process::{Child, ChildStderr, Command, Stdio};
use std::time::{Duration, Instant};

use aya::maps::{ArrayOfMaps, HashMap, Map, MapData};

use crate::common;

pub(crate) struct Uselectd {
    pub(crate) process: Child,
    pub(crate) socket: PathBuf,
    /// What it says behind its first line.
    said: BufReader<ChildStderr>,
}

/// What the kernel keeps because of a daemon.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Kept {
    /// Of the daemon; its programs and maps are among them.
    pub(crate) descriptors: usize,
    /// Of those, links: what calls a program.
    pub(crate) links: usize,
    /// Entries of its maps by which programs find processes, and their memory.
    pub(crate) places: usize,
}

impl Uselectd {
    /// `None` where it cannot run, which is said.
    pub(crate) fn start(name: &str, options: &[&str]) -> Option<Self> {
        // Says why not, and fails where it should.
        common::tracker()?;
        Some(Self::at(common::socket(name), options))
    }

    pub(crate) fn at(socket: PathBuf, options: &[&str]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_uselectd"));
        command.arg("--socket").arg(&socket).args(options).stderr(Stdio::piped());
        let mut process = command.spawn().unwrap();
        let (mut said, mut line) = (BufReader::new(process.stderr.take().unwrap()), String::new());
        said.read_line(&mut line).unwrap();
        assert!(line.starts_with("uselectd: listening on unix:"), "{line}");
        Self { process, socket, said }
    }

    /// Ends it, and gives all that it has said since it listened.
    pub(crate) fn end(&mut self) -> String {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
        let mut said = String::new();
        self.said.read_to_string(&mut said).unwrap();
        said
    }

    /// By the ids of its maps and not by their names, as other daemons run beside it.
    pub(crate) fn kept(&self) -> Kept {
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
        let places = infos.iter().filter_map(|info| field(info, "map_id")).map(entries).sum();
        Kept { descriptors: infos.len(), links, places }
    }

    pub(crate) fn wait_for(&self, expected: Kept) {
        let end = Instant::now() + Duration::from_secs(10);
        while self.kept() != expected {
            assert!(Instant::now() < end, "{:?}, not {expected:?}", self.kept());
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

/// Of a map of processes, or of maps.
fn entries(id: u32) -> usize {
    // One that was closed meanwhile is nobody's any more.
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
        // Some tests have done it before.
        let _ = self.process.kill();
        self.process.wait().unwrap();
        let _ = std::fs::remove_file(&self.socket);
    }
}
