#![doc = include_str!("../scenarios/README.md")]

mod check;
mod folders;
mod parse;
mod pick;
mod placeholders;
mod play;

use std::net::IpAddr;
use std::path::{Path, PathBuf};

pub use check::{Check, Expected, ExpectedStart, MessagePart, Tolerance};
pub use folders::{EntryKind, FileChange, FolderEntry, FolderPlan};
pub use pick::RequestScripts;
pub use placeholders::Placeholders;
pub use play::{End, Need, Play, RunnerTask, ScriptSignals, TaskNumber};

/// A scenario.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// The file's name without its ending.
    pub name: String,
    /// The program's arguments, with placeholders.
    pub command: Vec<String>,
    /// Configurations by name, as command lines like `command`.
    pub reloads: Vec<(String, Vec<String>)>,
    /// Names of Unix sockets besides the one of `listen`.
    pub sockets: Vec<String>,
    /// Where the proxy listens.
    pub listen: Listen,
    /// Whether the real program runs it.
    pub real: bool,
    /// Whether the simulator runs it.
    pub simulated: bool,
    /// Whether the simulator also runs it in worlds with hostile faults.
    pub hostile: bool,
    /// Whether simulated clients and origins may use TLS.
    pub secured: bool,
    /// The descriptors that the simulated proxy may open, and the number that it assumes.
    pub descriptors: Option<(usize, usize)>,
    /// Capacity of a mailbox between two simulated workers. One worker then accepts all clients.
    pub mailboxes: Option<usize>,
    /// The folders of files.
    pub folders: Vec<FolderPlan>,
    /// The names that the simulated name server resolves, with their addresses.
    pub names: Vec<(String, IpAddr)>,
    /// The origins, in the order of the file.
    pub origins: Vec<Origin>,
    /// The clients, in the order of the file.
    pub clients: Vec<Client>,
}

/// Where the proxy listens.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Listen {
    /// An IP address with port 0.
    Tcp(String),
    /// A Unix socket at a path that the runner picks.
    Unix,
}

/// The kind of an origin's address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OriginKind {
    /// On 127.0.0.1.
    Tcp,
    /// On ::1.
    Tcp6,
    /// A Unix socket.
    Unix,
    /// A TCP address without a listener.
    Refusing,
}

/// A named origin.
#[derive(Clone, Debug)]
pub struct Origin {
    /// The name in placeholders.
    pub name: String,
    /// The kind of its address.
    pub kind: OriginKind,
    /// The scripts of the first connections, in the order of accepting.
    pub scripts: Vec<Script>,
    /// The script of all further connections; `None`: a further connection is a failure.
    pub each: Option<Script>,
    /// Scripts for further connections, selected by each request.
    pub any: Vec<Script>,
}

impl Origin {
    /// Returns all scripts.
    pub fn all(&self) -> impl Iterator<Item = &Script> {
        self.scripts.iter().chain(&self.each).chain(&self.any)
    }
}

/// A named client.
#[derive(Clone, Debug)]
pub struct Client {
    /// The name, unique among clients.
    pub name: String,
    /// The socket that it connects to, one of [`Scenario::sockets`]; `None`: the proxy's own.
    pub at: Option<String>,
    /// Number of these clients; 1 in a parsed scenario.
    count: usize,
    /// Clients that end before this one connects.
    pub after: Vec<String>,
    /// Signals that are set before this client connects.
    pub when: Vec<String>,
    /// The steps of the client.
    pub script: Script,
}

impl Client {
    /// Returns `count` clients.
    fn each(self) -> impl Iterator<Item = Self> {
        (1..=self.count).map(move |number| {
            let name = match self.count {
                1 => self.name.clone(),
                _ => format!("{}.{number}", self.name),
            };
            Self { name, count: 1, ..self.clone() }
        })
    }
}

/// The steps on one connection.
#[derive(Clone, Default, Debug)]
pub struct Script {
    /// The steps, in the order of the script.
    pub steps: Vec<Step>,
}

/// One line of a script.
#[derive(Clone, Debug)]
pub struct Step {
    /// The line in the file, from 1.
    pub line: usize,
    /// The action or expectation.
    pub action: Action,
}

/// The action or expectation of a step.
#[derive(Clone, Debug)]
pub enum Action {
    /// Send bytes.
    Send {
        /// The bytes to send.
        pieces: Vec<Piece>,
        /// Whether a broken connection is no failure.
        may_fail: bool,
        /// Milliseconds after which the rest is left unsent.
        time: Option<u64>,
    },
    /// Exactly these bytes.
    Bytes(Vec<Piece>),
    /// A message.
    Message(Expected),
    /// The end of the stream.
    End {
        /// The ways in which it may end.
        allowed: &'static [End],
    },
    /// A reset after the end of the stream. A script detects it by writing, so it can send nothing
    /// afterwards.
    ResetAfterEnd,
    /// Nothing for this number of milliseconds.
    Nothing(u64),
    /// Half-close.
    Finish,
    /// Close; the script ends.
    Close,
    /// Reset; the script ends.
    Reset,
    /// Wait for this number of milliseconds.
    Pause(u64),
    /// Set a signal for other scripts.
    Signal(String),
    /// Wait for a signal.
    Await(String),
    /// Make the proxy apply another configuration.
    Reload {
        /// Its name.
        name: String,
        /// Whether the proxy must refuse it.
        refused: bool,
    },
    /// Change a file.
    Write {
        /// The name of the folder.
        folder: String,
        /// The path below it.
        path: String,
        /// The new bytes.
        pieces: Vec<Piece>,
        /// See [`FileChange::is_in_place`].
        is_in_place: bool,
    },
}

/// Part of what is sent or expected.
#[derive(Clone, Debug)]
pub enum Piece {
    /// Bytes, with placeholders.
    Text(Vec<u8>),
    /// This number of bytes `a`.
    Fill(usize),
    /// This number of bytes of the pattern of a seed.
    Pattern(usize, u64),
    /// A pattern (length and seed) as one chunk.
    Chunk(usize, u64),
}

impl Script {
    /// Returns everything that the script sends, as text.
    pub fn sent(&self, names: &Placeholders) -> String {
        let mut sent = String::new();
        for step in &self.steps {
            if let Action::Send { pieces, .. } = &step.action {
                sent.push_str(&String::from_utf8_lossy(&names.bytes(pieces)));
            }
        }
        sent
    }
}

impl Scenario {
    /// Parses a scenario.
    ///
    /// # Errors
    /// Returns the error with its line.
    pub fn parse(name: &str, text: &str) -> Result<Self, String> {
        parse::scenario(name, text)
    }

    /// Returns all scenarios of this package, in the order of their names.
    ///
    /// # Panics
    /// Panics if a scenario cannot be parsed.
    pub fn all() -> Vec<Self> {
        let mut paths = Vec::new();
        files_below(&Path::new(env!("CARGO_MANIFEST_DIR")).join("scenarios"), &mut paths);
        paths.retain(|path| path.extension().is_some_and(|ending| ending == "scn"));
        let read = |path: PathBuf| {
            let text = std::fs::read_to_string(&path).expect("a scenario is a text file");
            let name = path.file_stem().unwrap_or_default().to_string_lossy();
            Self::parse(&name, &text).unwrap_or_else(|wrong| panic!("{name}.scn: {wrong}"))
        };
        let mut scenarios: Vec<Self> = paths.into_iter().map(read).collect();
        scenarios.sort_by(|one, other| one.name.cmp(&other.name));
        let mut pairs = scenarios.windows(2).filter(|pair| pair[0].name == pair[1].name);
        let twice = pairs.next().map(|pair| &pair[0].name);
        assert!(twice.is_none(), "two scenarios have one name: {twice:?}");
        scenarios
    }
}

/// Adds the files of a folder and of its subfolders to `paths`.
fn files_below(folder: &Path, paths: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).expect("the folder can be read") {
        let path = entry.expect("the folder can be listed").path();
        if path.is_dir() { files_below(&path, paths) } else { paths.push(path) }
    }
}

/// Returns `length` bytes that depend on `seed`. No sequence repeats within 64 KB, so that lost,
/// doubled and swapped bytes show.
pub fn pattern(length: usize, seed: u64) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(length + 8);
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    while bytes.len() < length {
        // xorshift64 (Marsaglia 2003): every state except 0 occurs once in 2^64 - 1 steps.
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(length);
    bytes
}
