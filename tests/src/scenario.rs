#![doc = include_str!("../scenarios/README.md")]

mod check;
mod names;
mod parse;
mod pick;
mod play;

use std::net::IpAddr;
use std::path::{Path, PathBuf};

pub use check::{Check, Expected, Extent, Subject};
pub use names::Names;
pub use pick::RequestScripts;
pub use play::{End, Need, Play, ReloadRequest, ScriptSignals};

/// A whole story.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// The file's name without its ending.
    pub name: String,
    /// The words after the program's name, placeholders in them.
    pub command: Vec<String>,
    /// Configurations by their names, as command lines like the one above.
    pub reloads: Vec<(String, Vec<String>)>,
    /// Names of Unix sockets beside that of `listen`.
    pub sockets: Vec<String>,
    /// Where the proxy listens.
    pub listen: Listen,
    /// Whether the real program runs it.
    pub real: bool,
    /// Whether the simulator runs it.
    pub simulated: bool,
    /// Whether it does so in hostile worlds, too.
    pub hostile: bool,
    /// Descriptors that the simulated proxy may have open, and how many it was told it may.
    pub descriptors: Option<(usize, usize)>,
    /// Letters that fit between two simulated workers, one of which all clients come to.
    pub mailboxes: Option<usize>,
    /// What the simulated name server knows.
    pub names: Vec<(String, IpAddr)>,
    /// In the order of the file.
    pub origins: Vec<Origin>,
    /// In the order of the file.
    pub clients: Vec<Client>,
}

/// Where the proxy listens.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Listen {
    /// `ADDRESS:0`.
    Tcp(String),
    /// A Unix socket at a path that the runner picks.
    Unix,
}

/// What kind of address an origin has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OriginKind {
    /// On 127.0.0.1.
    Tcp,
    /// On ::1.
    Tcp6,
    /// A Unix socket.
    Unix,
    /// A TCP address where nobody listens.
    Refusing,
}

/// A named origin.
#[derive(Clone, Debug)]
pub struct Origin {
    /// As in placeholders.
    pub name: String,
    /// Its address' kind.
    pub kind: OriginKind,
    /// One for each connection, in the order of accepting.
    pub scripts: Vec<Script>,
    /// For all further connections; none: they are a failure.
    pub each: Option<Script>,
    /// For further connections, picked by each request that comes.
    pub any: Vec<Script>,
}

impl Origin {
    /// All scripts.
    pub fn all(&self) -> impl Iterator<Item = &Script> {
        self.scripts.iter().chain(&self.each).chain(&self.any)
    }
}

/// A named client.
#[derive(Clone, Debug)]
pub struct Client {
    /// Unique among clients.
    pub name: String,
    /// The socket that it connects to, of [`Scenario::sockets`]; `None`: the proxy's own.
    pub at: Option<String>,
    /// How many there are; 1 once the whole scenario was read.
    count: usize,
    /// Clients that end before this one connects.
    pub after: Vec<String>,
    /// Signals that are given before it connects.
    pub when: Vec<String>,
    /// What it does.
    pub script: Script,
}

impl Client {
    /// As many clients as are meant.
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

/// Steps over one connection.
#[derive(Clone, Default, Debug)]
pub struct Script {
    /// In order.
    pub steps: Vec<Step>,
}

/// One line of a script.
#[derive(Clone, Debug)]
pub struct Step {
    /// Where it stands in the file, from 1.
    pub line: usize,
    /// What is done or awaited.
    pub action: Action,
}

/// What a step does or awaits.
#[derive(Clone, Debug)]
pub enum Action {
    /// Send; with `may_fail`, the connection may end meanwhile.
    Send {
        /// What is sent.
        pieces: Vec<Piece>,
        /// Whether a broken connection is no failure.
        may_fail: bool,
        /// After how many milliseconds the rest is left unsent.
        time: Option<u64>,
    },
    /// Exactly these bytes.
    Bytes(Vec<Piece>),
    /// A message.
    Message(Expected),
    /// The end of the stream.
    End {
        /// How it may end.
        allowed: &'static [End],
    },
    /// A reset, after the end of the stream was expected: nothing can be sent any more.
    ResetAfterEnd,
    /// Nothing for so many milliseconds.
    Nothing(u64),
    /// Half-close.
    Finish,
    /// Close; the script ends.
    Close,
    /// Reset; the script ends.
    Reset,
    /// Wait for so many milliseconds.
    Pause(u64),
    /// Tell other scripts.
    Signal(String),
    /// Wait until it was told.
    Await(String),
    /// Have the proxy go on under another configuration.
    Reload {
        /// Its name.
        name: String,
        /// Whether it is to be refused.
        refused: bool,
    },
}

/// Part of what is sent or expected.
#[derive(Clone, Debug)]
pub enum Piece {
    /// Bytes, with placeholders.
    Text(Vec<u8>),
    /// So many letters `a`.
    Fill(usize),
    /// So many bytes of the pattern of a seed.
    Pattern(usize, u64),
    /// The same, as one chunk.
    Chunk(usize, u64),
}

impl Script {
    /// Everything that it sends, as text.
    pub fn sent(&self, names: &Names) -> String {
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
    /// Reads a scenario's text.
    ///
    /// # Errors
    /// What is wrong, with its line.
    pub fn parse(name: &str, text: &str) -> Result<Self, String> {
        parse::scenario(name, text)
    }

    /// All scenarios of this package, in the order of their names.
    ///
    /// # Panics
    /// When one cannot be read: the tests are broken.
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

/// Adds the files of a folder and of the folders in it to `paths`.
fn files_below(folder: &Path, paths: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).expect("the folder can be read") {
        let path = entry.expect("the folder can be listed").path();
        if path.is_dir() { files_below(&path, paths) } else { paths.push(path) }
    }
}

/// `length` bytes that depend on `seed`: no run repeats within 64 KB, so that lost, doubled and
/// swapped bytes show.
pub fn pattern(length: usize, seed: u64) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(length + 8);
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    while bytes.len() < length {
        // xorshift64 (Marsaglia 2003): every state but 0 comes once in 2^64 - 1 steps.
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(length);
    bytes
}
