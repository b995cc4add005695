//! A story as plain data: who does what, and when. Every piece stands for itself, so that a story
//! from which pieces are taken away is a story again.

use std::collections::BTreeSet;

use millrace_sim::Faults;

/// What a seed invents.
#[derive(Clone, PartialEq, Debug)]
pub struct RandomScenario {
    /// Names the story and its world.
    pub seed: u64,
    /// How unkind the world is.
    pub world: Faults,
    /// What may be expected of the proxy in it.
    pub difficulty: Difficulty,
    /// How the proxy is set up.
    pub proxy: Proxy,
    /// At least one.
    pub origins: Vec<Origin>,
    /// Client connections.
    pub connections: Vec<Connection>,
    /// What whoever operates the proxy does.
    pub events: Vec<OperatorEvent>,
    /// Faults of the world's plan that are taken back.
    pub disabled_faults: Vec<DisabledFault>,
}

/// What a story is like.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Difficulty {
    /// Everybody behaves and nothing is scarce: every request gets its whole answer.
    Easy,
    /// Some misbehave, and nothing is scarce: they must not harm those who behave.
    Mixed,
    /// Small limits, starvation, misbehaviour of every class.
    Hard,
}

/// The proxy's set-up.
#[derive(Clone, PartialEq, Debug)]
pub struct Proxy {
    /// A forward proxy, else a booster.
    pub forward: bool,
    /// It listens on a Unix socket.
    pub unix: bool,
    /// Threads, from 1.
    pub workers: usize,
    /// Megabytes for each worker, as its command line has them, and short of memory whatever they
    /// are; `None`: plenty.
    pub memory_mb: Option<u64>,
    /// Descriptors there are and descriptors that it was told of; `None`: plenty.
    pub descriptors: Option<(usize, usize)>,
    /// Other values than the defaults.
    pub limits: Vec<(&'static str, u64)>,
}

/// An origin.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Origin {
    /// How it treats connections.
    pub behaviour: OriginBehaviour,
    /// How its name is found.
    pub naming: NameBehaviour,
}

/// How an origin treats connections.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OriginBehaviour {
    /// Serves as many requests as come.
    Good,
    /// Nobody listens.
    Refuses,
    /// Closes each at once.
    ClosesAtOnce,
    /// Resets each at once.
    ResetsAtOnce,
    /// Accepts and never reads.
    NeverReads,
    /// Closes a connection so many milliseconds after an answer.
    ClosesIdle(u64),
    /// Ends its stream on connections that nobody uses for so many milliseconds, and reads on.
    EndsIdle(u64),
    /// Sends what nobody asked for so many milliseconds after an answer.
    SendsUnrequested(u64),
}

/// How an origin's name is found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NameBehaviour {
    /// It has none: the address is given.
    Address,
    /// Answered at once.
    Known,
    /// Answered after so many milliseconds.
    Slow(u64),
    /// Answered twice.
    Twice,
    /// An answer to another query comes first, with an address where nobody is.
    ForgedFirst,
    /// NXDOMAIN.
    Unknown,
    /// SERVFAIL.
    Fails,
    /// Never answered.
    Silent,
}

/// One client connection.
#[derive(Clone, PartialEq, Debug)]
pub struct Connection {
    /// The client's number: it decides the address.
    pub client: u8,
    /// When it is opened, in milliseconds from the beginning.
    pub begins_ms: u64,
    /// How it reads.
    pub reader: Reader,
    /// All requests are sent ahead, else each after the answer before.
    pub pipelined: bool,
    /// In their order.
    pub requests: Vec<Request>,
    /// What happens when all was answered.
    pub ending: Ending,
}

/// How a client reads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reader {
    /// As it comes.
    Eager,
    /// So many bytes every so many milliseconds.
    Slow(usize, u64),
    /// Not for so many milliseconds once so many bytes have come.
    Stalls(usize, u64),
}

/// How a client connection ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ending {
    /// The client closes.
    Closes,
    /// The client ends its stream behind its last request, and waits for the answers.
    Finishes,
    /// The client waits for the proxy to close.
    Idles,
}

/// One request, and what its origin is to answer.
#[derive(Clone, PartialEq, Debug)]
pub struct Request {
    /// Unique in the story; bodies are made from it.
    pub id: u32,
    /// What is asked for.
    pub method: Method,
    /// Which origin is meant; a booster picks its own.
    pub origin: usize,
    /// HTTP/1.0.
    pub old: bool,
    /// Says that it is the connection's last.
    pub closes: bool,
    /// How long the client waits before it, in milliseconds.
    pub pause_ms: u64,
    /// Its body; of CONNECT and Upgrade, what goes up the tunnel.
    pub body: Body,
    /// Where it is broken off or halted.
    pub breaks: Option<Break>,
    /// In place of a well-formed one.
    pub malformation: Option<Malformation>,
    /// What is answered.
    pub response: ResponsePlan,
}

/// What is asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Method {
    /// Safe.
    Get,
    /// Answered without a body.
    Head,
    /// Not idempotent.
    Post,
    /// Idempotent, with a body.
    Put,
    /// Safe.
    Options,
    /// A tunnel through a forward proxy.
    Connect,
    /// GET that wants to become a tunnel.
    Upgrade,
}

impl Method {
    /// The word.
    pub fn word(self) -> &'static str {
        match self {
            Self::Get | Self::Upgrade => "GET",
            Self::Head => "HEAD",
            Self::Post => "POST",
            Self::Put => "PUT",
            Self::Options => "OPTIONS",
            Self::Connect => "CONNECT",
        }
    }

    /// Whether bytes move both ways after it.
    pub fn is_tunnel(self) -> bool {
        matches!(self, Self::Connect | Self::Upgrade)
    }
}

/// A body.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Body {
    /// Bytes of payload.
    pub length: usize,
    /// Sent in chunks of so many bytes.
    pub chunk: Option<usize>,
    /// Trailers follow the chunks.
    pub trailers: bool,
    /// The client expects 100 before it sends.
    pub expects: bool,
}

/// Where something is broken off or halted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Break {
    /// After so many bytes, head included; modulo the length.
    pub at: usize,
    /// How.
    pub how: BreakKind,
}

/// How something is broken off or halted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BreakKind {
    /// The stream is ended, and the other direction still read.
    Finish,
    /// Closed.
    Close,
    /// Reset.
    Reset,
    /// Nothing more is sent, and everything read.
    Stop,
    /// Goes on after so many milliseconds.
    Pause(u64),
}

/// A request that must be refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Malformation {
    /// A head by its number in the table: nothing reaches an origin.
    Head(usize),
    /// A chunked body by its number in the table: an origin sees a part at most.
    Body(usize),
}

/// What an origin answers.
#[derive(Clone, PartialEq, Debug)]
pub struct ResponsePlan {
    /// A final status.
    pub status: u16,
    /// Bytes of the body, or of what comes down a tunnel.
    pub length: usize,
    /// How its end is found.
    pub framing: BodyFraming,
    /// HTTP/1.0.
    pub old: bool,
    /// The origin closes behind it.
    pub closes: bool,
    /// Interim answers before it.
    pub interims: u32,
    /// Waited before anything is said, in milliseconds.
    pub delay_ms: u64,
    /// Sent in pieces of so many bytes, every so many milliseconds.
    pub drip: Option<(usize, u64)>,
    /// Sent at the head of the request, whose body is read all the same.
    pub early: bool,
    /// Trailers follow the chunks.
    pub trailers: bool,
    /// How its headers are written.
    pub syntax: HeaderSyntax,
    /// What is wrong with it.
    pub fault: Option<ResponseFault>,
}

/// How the headers of an answer are written: in the strict form, or with a fault that the proxy
/// rewrites, so that the client receives the strict form.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum HeaderSyntax {
    /// As RFC 9112 has it.
    #[default]
    Strict,
    /// Each line ends in LF alone.
    BareLf,
    /// Values are folded.
    Folded,
    /// White space before colons.
    Spaced,
    /// Content-Length twice.
    Repeated,
}

impl HeaderSyntax {
    /// One of them for a number, mostly the strict one. It takes nothing from the random sequence
    /// of a story, which stays the story that it was.
    pub(super) fn of(number: usize) -> Self {
        let faulty = [Self::BareLf, Self::Folded, Self::Spaced, Self::Repeated];
        faulty.get(number % 24).copied().unwrap_or_default()
    }

    /// Whether a cache may not rely on such a header.
    pub(super) fn is_ambiguous(self) -> bool {
        matches!(self, Self::BareLf | Self::Folded)
    }

    /// Writes a header, or more of them, in this form.
    pub(super) fn write(self, header: String) -> Vec<u8> {
        let frames = |name: &str| {
            ["content-length", "transfer-encoding", "connection"]
                .contains(&name.to_ascii_lowercase().as_str())
        };
        let write_line = |line: &str| match (self, line.split_once(": ")) {
            (Self::Folded, Some((name, value))) if !frames(name) => {
                format!("{name}:\r\n \t{value}\r\n")
            }
            (Self::Spaced, Some((name, value))) if !frames(name) => {
                format!("{name} \t: {value}\r\n")
            }
            (Self::Repeated, Some(("Content-Length", value))) => {
                format!("{line}\r\nContent-Length: {value}, {value}\r\n")
            }
            _ => format!("{line}\r\n"),
        };
        match self {
            Self::Strict => header.into_bytes(),
            Self::BareLf => header.replace("\r\n", "\n").into_bytes(),
            _ => header.split_terminator("\r\n").map(write_line).collect::<String>().into_bytes(),
        }
    }
}

/// How the end of an answer is found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BodyFraming {
    /// Content-Length.
    Length,
    /// Chunks of so many bytes.
    Chunks(usize),
    /// The end of the connection.
    UntilClose,
}

/// What is wrong with an answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ResponseFault {
    /// It is broken off or halted.
    Breaks(Break),
    /// Something follows it.
    ExtraBytes(usize),
    /// A head by its number in the table.
    Head(usize),
    /// Chunks by their number in the table.
    Chunks(usize),
    /// More interim answers than anybody should read.
    InterimFlood,
    /// 101 that nobody asked for.
    UnrequestedUpgrade,
}

/// What whoever operates the proxy does.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum OperatorEvent {
    /// SIGHUP after so many milliseconds, with these limits in place of the first ones.
    Reload(u64, Vec<(&'static str, u64)>),
    /// SIGTERM after so many milliseconds.
    Drain(u64),
}

/// A fault of the world's plan that is taken back, to see what a failure needs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DisabledFault {
    /// No leaps of the clock, no turns and letters that are late.
    Clocks,
    /// Kernel memory enough, and nobody else who takes descriptors and pipes.
    Memory,
    /// No peers that vanish.
    Vanishing,
    /// No completions of what was closed, nothing announced that is not there.
    Strays,
    /// Connections come at once, and to any worker.
    Accepts,
    /// Room for many letters between workers.
    Mailboxes,
    /// The name server says what is planned for it, and nothing else.
    Names,
    /// No resets by the network.
    Resets,
    /// No failed connects.
    Connects,
    /// No descriptors refused by chance.
    Descriptors,
    /// No stalls and losses.
    Stalls,
    /// No short reads and writes, no waits.
    ShortTransfers,
    /// Large buffers and segments.
    Sizes,
    /// Pipes enough.
    Pipes,
    /// Completions at once, many a turn.
    Delays,
}

impl DisabledFault {
    /// All of them, those first that take back most.
    pub const ALL: [Self; 15] = [
        Self::Clocks,
        Self::Memory,
        Self::Vanishing,
        Self::Strays,
        Self::Accepts,
        Self::Mailboxes,
        Self::Names,
        Self::Resets,
        Self::Connects,
        Self::Descriptors,
        Self::Stalls,
        Self::ShortTransfers,
        Self::Pipes,
        Self::Delays,
        Self::Sizes,
    ];
}

impl RandomScenario {
    /// The connection and request of an id.
    pub fn find(&self, id: u32) -> Option<(usize, &Request)> {
        self.connections.iter().enumerate().find_map(|(index, connection)| {
            let request = connection.requests.iter().find(|request| request.id == id)?;
            Some((index, request))
        })
    }

    /// Whether nothing is amiss with this connection, those who answer it, the world and what there
    /// is of everything: then each of its requests gets its whole answer.
    pub fn must_succeed(&self, connection: &Connection) -> bool {
        let roomy = self.difficulty != Difficulty::Hard && self.world != Faults::Hostile;
        let origins: BTreeSet<usize> = match self.proxy.forward {
            true => connection.requests.iter().map(|request| request.origin).collect(),
            false => (0..self.origins.len()).collect(),
        };
        roomy
            && !self.events.iter().any(|event| matches!(event, OperatorEvent::Drain(_)))
            && !matches!(connection.reader, Reader::Stalls(..))
            && connection.requests.iter().all(|request| self.has_plain_exchange(request))
            && origins.iter().all(|origin| self.has_clean_connections(*origin))
    }

    fn has_plain_exchange(&self, request: &Request) -> bool {
        let answer = &request.response;
        request.breaks.is_none_or(|it| matches!(it.how, BreakKind::Pause(_)))
            && request.malformation.is_none()
            && answer.fault.is_none()
            && !(answer.early && request.body.length > 0)
    }

    /// Whether what reaches an origin always finds a connection as it should be: what follows an
    /// answer may be taken for the next one, which nobody behind it can tell.
    fn has_clean_connections(&self, origin: usize) -> bool {
        let good = self.origins[origin].behaviour == OriginBehaviour::Good;
        let found = !matches!(
            self.origins[origin].naming,
            NameBehaviour::Unknown | NameBehaviour::Fails | NameBehaviour::Silent
        );
        let asked = self.connections.iter().flat_map(|connection| &connection.requests);
        good && found
            && asked.filter(|request| !self.proxy.forward || request.origin == origin).all(
                |request| {
                    !matches!(request.response.fault, Some(ResponseFault::ExtraBytes(_)))
                        && !request.response.early
                },
            )
    }
}
