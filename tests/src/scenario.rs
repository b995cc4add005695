//! Scenarios: short stories of clients, a proxy and origins, told once and run twice, against the
//! real program ([`crate::real`]) and in the simulator ([`crate::simulated`]).
//!
//! A scenario is a text file; `#` begins a comment line. At its left margin stand:
//!
//! ```text
//! proxy boost --origin http://{o1} --limit idle_ms=500   the command line, without --listen
//! listen [::1]:0                 instead of 127.0.0.1:0; `unix` means a Unix socket
//! only real | only simulated     when it cannot run in the other
//! only working                   not in hostile worlds: what comes hangs on how often origins were
//!                                asked before
//! name www.example.org 127.0.0.1 what the simulated name server knows
//! origin o1 [tcp|tcp6|unix|refusing]
//! reload other boost --origin http://{o2}   another configuration, for the step `reload other`
//! socket second                  the name of one more Unix socket: `--listen unix:{second}`
//! descriptors 20 [believed 40]   that the proxy may have open, and that it was told it may;
//!                                simulated only
//! mailboxes 1                    all clients come to one worker, so many letters fit between two,
//!                                and are read late; simulated only
//! client c1 times 10             as many clients at once, c1.1 and so on
//! client c1 [after c0 | when NAME]   connects at once, or when others have ended, or when a signal
//!                                was given
//! client c1 at second [after ...]    connects to that socket instead
//! ```
//!
//! Below an origin each `accept` begins the script of one connection, in the order in which they
//! are accepted; `accept each` is for all further ones. Instead of that, the scripts of `accept
//! any` answer requests on whichever connections they come, each request by the steps below it.
//! Below a client stands its one script; it is connected when that begins, and closes when it ends.
//! A script's steps, one a line:
//!
//! ```text
//! send PIECES                    all of it is to be taken by the kernel
//! try send PIECES                the connection may end meanwhile
//! send for MS PIECES             as much of it as is taken in so long
//! expect bytes PIECES            exactly these come next
//! expect request METHOD TARGET   a request, parsed strictly; a target in quotes may have spaces
//! expect answer STATUS [to METHOD[/1.0]]
//! expect head of request METHOD TARGET      (or `of answer ...`) the head alone; the rest stays
//! expect broken answer STATUS [to METHOD]   a beginning of it, perhaps of no byte, then the end or
//!                                a reset that shows that it is not whole
//! expect ended answer STATUS [to METHOD]    the same, but for sure the end in order
//! expect end                     the peer has finished in order
//! expect reset                   the peer has reset
//! expect cut                     the peer has finished or reset
//! expect reset after end         the peer had finished, and has reset since
//! expect nothing MS              no byte and no end comes for so long
//! finish | close | reset         half-close, close, abort
//! pause MS
//! signal NAME | await NAME       order between scripts
//! reload NAME [refused]          the proxy goes on under that configuration, or refuses it; all
//!                                its workers have taken it up when the next step begins
//! ```
//!
//! Below an expected message: `field NAME: VALUE` (this value; of several such fields, theirs
//! with commas between), `has NAME`, `absent NAME`, `trailer NAME: VALUE`, `framing length|chunked|close|none`, and `body PIECES`
//! (`body any`; without the line there is none).
//!
//! Pieces are `"text"` with `\r \n \t \0 \" \\ \xHH`, `pattern LENGTH SEED` (bytes that depend on
//! the seed), `chunk LENGTH SEED` (the same as one chunk) and `fill LENGTH` (letters). A line that
//! begins with a piece continues the one above. In texts and in the command line `{o1}` is an
//! origin's address, `{o1.port}` its port, `{proxy}` the proxy's, `{users}` the file of users.

mod check;
mod names;
mod parse;
mod pick;
mod play;

use std::net::IpAddr;
use std::path::Path;

pub use check::{Check, Expected, Extent, Subject};
pub use names::Names;
pub use pick::Picks;
pub use play::{Asked, Board, End, Need, Play};

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
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("scenarios");
        let entries = std::fs::read_dir(&folder).expect("the folder of scenarios is there");
        let mut scenarios: Vec<Self> = entries
            .map(|entry| entry.expect("a folder can be listed").path())
            .filter(|path| path.extension().is_some_and(|ending| ending == "scn"))
            .map(|path| {
                let text = std::fs::read_to_string(&path).expect("a scenario is a text file");
                let name = path.file_stem().unwrap_or_default().to_string_lossy();
                Self::parse(&name, &text).unwrap_or_else(|wrong| panic!("{name}.scn: {wrong}"))
            })
            .collect();
        scenarios.sort_by(|one, other| one.name.cmp(&other.name));
        scenarios
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
