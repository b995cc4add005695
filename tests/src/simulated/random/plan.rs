//! A random scenario as plain data: the proxy, origins, clients and events. Items do not depend on
//! each other, except that requests name origins by index. So items can be removed from a scenario.

use std::collections::BTreeSet;

use millrace_sim::Faults;

use super::files::change::SCRIPT;
pub use super::files::plan::{
    ChangeKind, FileCondition, FileRequest, NameKind, PlannedChange, PlannedName, RangeRequest,
    ServedFolder,
};
use crate::simulated::{TlsFault, TlsPlan};

/// A scenario that a seed generates.
#[derive(Clone, PartialEq, Debug)]
pub struct RandomScenario {
    /// The seed of the scenario and of its world.
    pub seed: u64,
    /// The faults of the world.
    pub world: Faults,
    /// The difficulty, which decides what must succeed.
    pub difficulty: Difficulty,
    /// The configuration of the proxy.
    pub proxy: Proxy,
    /// The folder that the proxy serves, if any; never with a forward proxy. With origins that
    /// speak HTTP, requests for which the folder has no file are passed on to them.
    pub folder: Option<ServedFolder>,
    /// The origins, at least one.
    pub origins: Vec<Origin>,
    /// Client connections.
    pub connections: Vec<Connection>,
    /// The actions of the operator.
    pub events: Vec<OperatorEvent>,
    /// Faults of the world that are disabled.
    pub disabled_faults: Vec<DisabledFault>,
}

/// The difficulty of a scenario.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Difficulty {
    /// All peers behave and there is no shortage: every request gets its complete response.
    Easy,
    /// Some peers misbehave, and there is no shortage: well-behaved peers must not suffer.
    Mixed,
    /// Small limits, shortage, misbehaviour of every class.
    Hard,
}

/// The configuration of the proxy.
#[derive(Clone, PartialEq, Debug)]
pub struct Proxy {
    /// A forward proxy, otherwise a reverse proxy.
    pub forward: bool,
    /// It listens on a Unix socket.
    pub unix: bool,
    /// Clients use TLS; never together with a Unix socket.
    pub secured: bool,
    /// Clients may request any name (SNI), or none.
    pub accepts_unknown_names: bool,
    /// Origins use TLS; never with a forward proxy.
    pub secures_origins: bool,
    /// Origins are FastCGI programs; never with a forward proxy.
    pub fastcgi: bool,
    /// `--upload-buffer` in bytes; `None`: the default, which is longer than each body.
    pub upload_buffer: Option<u64>,
    /// Requests that share an origin connection, and connections to each origin; `None`: requests
    /// are not pipelined. Only with a reverse proxy whose origins speak HTTP.
    pub pipelining: Option<(u64, u64)>,
    /// Threads, from 1.
    pub workers: usize,
    /// Megabytes for each worker on the command line. Any value means a shortage, see
    /// `bytes_per_worker`; `None`: enough.
    pub memory_mb: Option<u64>,
    /// Existing descriptors, and the number that the proxy assumes; `None`: enough.
    pub descriptors: Option<(usize, usize)>,
    /// Limits that differ from the defaults.
    pub limits: Vec<(&'static str, u64)>,
}

/// An origin.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Origin {
    /// How it treats connections.
    pub behaviour: OriginBehaviour,
    /// How its name is resolved.
    pub naming: NameBehaviour,
    /// How it uses TLS, if origins do.
    pub tls: TlsPlan,
}

/// How an origin treats connections.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OriginBehaviour {
    /// Serves any number of requests.
    Good,
    /// Does not listen.
    Refuses,
    /// Closes each connection at once.
    ClosesAtOnce,
    /// Resets each connection at once.
    ResetsAtOnce,
    /// Accepts and never reads.
    NeverReads,
    /// Closes a connection this number of milliseconds after a response.
    ClosesIdle(u64),
    /// Ends its stream on a connection that is idle for this number of milliseconds, and continues
    /// to read.
    EndsIdle(u64),
    /// Sends unrequested bytes this number of milliseconds after a response.
    SendsUnrequested(u64),
}

/// How the name server responds to an origin's name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NameBehaviour {
    /// The command line contains the address instead of a name.
    Address,
    /// A response at once.
    Known,
    /// A response after this number of milliseconds.
    Slow(u64),
    /// Two responses.
    Twice,
    /// A forged response with another identifier and an unused address precedes the right one.
    ForgedFirst,
    /// NXDOMAIN.
    Unknown,
    /// SERVFAIL.
    Fails,
    /// No response.
    Silent,
}

/// One client connection.
#[derive(Clone, PartialEq, Debug)]
pub struct Connection {
    /// The client's number, which decides its address.
    pub client: u8,
    /// When it is opened, in milliseconds from the beginning.
    pub begins_ms: u64,
    /// How it reads.
    pub reader: Reader,
    /// Whether requests are pipelined, or each waits for the response before.
    pub pipelined: bool,
    /// The requests, in the order of sending.
    pub requests: Vec<Request>,
    /// How the connection ends when all responses are complete.
    pub ending: Ending,
    /// How it uses TLS, if the proxy does.
    pub tls: TlsPlan,
}

/// How a client reads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reader {
    /// At once.
    Eager,
    /// This number of bytes, once per number of milliseconds.
    Slow(usize, u64),
    /// Pauses once, after this number of bytes, for this number of milliseconds.
    Stalls(usize, u64),
}

/// How a client connection ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ending {
    /// The client closes.
    Closes,
    /// The client ends its stream after its last request, and waits for the responses.
    Finishes,
    /// The client waits for the proxy to close.
    Idles,
}

/// One request and its planned response.
#[derive(Clone, PartialEq, Debug)]
pub struct Request {
    /// The id, unique in the scenario. Bodies are made from it.
    pub id: u32,
    /// The request method.
    pub method: Method,
    /// The index of the origin, for a forward proxy; a reverse proxy chooses itself.
    pub origin: usize,
    /// Whether the request is HTTP/1.0.
    pub old: bool,
    /// Whether it has `Connection: close`.
    pub closes: bool,
    /// How long the client waits before it, in milliseconds.
    pub pause_ms: u64,
    /// Its body; for CONNECT and Upgrade, the payload of the client.
    pub body: Body,
    /// Where it breaks off or pauses.
    pub breaks: Option<Break>,
    /// A malformed request to send in its place.
    pub malformation: Option<Malformation>,
    /// The file that it requests. The response below is used only if the request is passed on.
    pub file: Option<FileRequest>,
    /// The response.
    pub response: ResponsePlan,
}

/// A request method, or the purpose of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Method {
    /// Safe.
    Get,
    /// Without a body in the response.
    Head,
    /// Not idempotent.
    Post,
    /// Idempotent, with a body.
    Put,
    /// Safe.
    Options,
    /// A tunnel through a forward proxy.
    Connect,
    /// A GET that requests an upgrade to a tunnel.
    Upgrade,
}

impl Method {
    /// Returns whether the proxy never sends such a request again.
    fn is_sent_once(self) -> bool {
        matches!(self, Self::Post | Self::Put)
    }

    /// Returns the name of the method.
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

    /// Returns whether a tunnel follows it.
    pub fn is_tunnel(self) -> bool {
        matches!(self, Self::Connect | Self::Upgrade)
    }
}

/// A body.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Body {
    /// Bytes of payload.
    pub length: usize,
    /// The size of its chunks; `None`: it has a length.
    pub chunk: Option<usize>,
    /// Trailers follow the chunks.
    pub trailers: bool,
    /// The client waits for 100 before it sends the body.
    pub expects: bool,
}

/// Where a message breaks off or pauses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Break {
    /// The position in bytes, including the header; modulo the length.
    pub at: usize,
    /// The kind of the break.
    pub how: BreakKind,
}

/// The kind of a break or a pause.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BreakKind {
    /// The stream ends, and the other direction is still read.
    Finish,
    /// The connection is closed.
    Close,
    /// The connection is reset.
    Reset,
    /// Nothing more is sent, and everything is read.
    Stop,
    /// Sending continues after this number of milliseconds.
    Pause(u64),
}

/// A request that must be refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Malformation {
    /// A header by its index in the table: nothing may reach an origin.
    Head(usize),
    /// A chunked body by its index in the table: an origin may see a part of it.
    Body(usize),
}

/// The planned response of an origin.
#[derive(Clone, PartialEq, Debug)]
pub struct ResponsePlan {
    /// A final status.
    pub status: u16,
    /// Bytes of the body, or of the payload of the origin in a tunnel.
    pub length: usize,
    /// How its end is determined.
    pub framing: BodyFraming,
    /// Whether the response is HTTP/1.0.
    pub old: bool,
    /// The origin closes after it.
    pub closes: bool,
    /// The number of interim responses before it.
    pub interims: u32,
    /// The delay before the first byte, in milliseconds.
    pub delay_ms: u64,
    /// The size of parts in bytes and the milliseconds between them, if the response is sent in
    /// parts.
    pub drip: Option<(usize, u64)>,
    /// Whether it is sent as soon as the request header has arrived. The origin still reads the
    /// request body.
    pub early: bool,
    /// Trailers follow the chunks.
    pub trailers: bool,
    /// How its headers are written.
    pub syntax: HeaderSyntax,
    /// Bytes that a program writes to its standard error.
    pub errors: usize,
    /// The fault in it.
    pub fault: Option<ResponseFault>,
}

/// How the headers of a response are written: in the strict form, or with a fault that the proxy
/// rewrites, so that the client receives the strict form.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum HeaderSyntax {
    /// As RFC 9112 specifies.
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
    /// Returns the syntax for a number, strict for 20 of 24. The number comes from the plan: a
    /// number from the random sequence would change every later item of the scenario.
    pub(super) fn of(number: usize) -> Self {
        let faulty = [Self::BareLf, Self::Folded, Self::Spaced, Self::Repeated];
        faulty.get(number % 24).copied().unwrap_or_default()
    }

    /// Returns whether a cache must not rely on such a header.
    pub(super) fn is_ambiguous(self) -> bool {
        matches!(self, Self::BareLf | Self::Folded)
    }

    /// Writes headers in this syntax.
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

/// How the end of a response is determined.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BodyFraming {
    /// Content-Length.
    Length,
    /// Chunks of this number of bytes.
    Chunks(usize),
    /// The end of the connection.
    UntilClose,
}

/// The fault in a response.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ResponseFault {
    /// It breaks off or pauses.
    Breaks(Break),
    /// Unrequested bytes follow it, by their index in the table.
    ExtraBytes(usize),
    /// A header by its index in the table.
    Head(usize),
    /// Chunks by their index in the table.
    Chunks(usize),
    /// More interim responses than a recipient should read.
    InterimFlood,
    /// An unrequested 101.
    UnrequestedUpgrade,
    /// A header of a program by its index in the table.
    ProgramHeader(usize),
    /// Records of a program by their index in the table.
    ProgramRecords(usize),
    /// The program ends the request after this many bytes of its output, modulo their number.
    EarlyEnd(usize),
}

impl ResponseFault {
    /// Returns whether nothing of the response may reach a client.
    pub(super) fn has_bad_header(self) -> bool {
        matches!(
            self,
            Self::Head(_) | Self::ProgramHeader(_) | Self::UnrequestedUpgrade | Self::InterimFlood
        )
    }

    /// Returns whether the response may begin, and must never look complete.
    pub(super) fn has_bad_body(self) -> bool {
        matches!(self, Self::Chunks(_) | Self::ProgramRecords(_))
    }
}

/// An action of the operator.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum OperatorEvent {
    /// SIGHUP after this number of milliseconds, with these limits in place of the first ones.
    Reload(u64, Vec<(&'static str, u64)>),
    /// SIGTERM after this number of milliseconds.
    Drain(u64),
}

/// A fault of the world that the shrinker disables, to find the faults that a failure needs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DisabledFault {
    /// Clock jumps, late turns and late messages.
    Clocks,
    /// Shortage of kernel memory, descriptors and pipes.
    Memory,
    /// Peers that vanish.
    Vanishing,
    /// Completions for closed objects, and false readiness.
    Strays,
    /// Late or unevenly distributed accepts.
    Accepts,
    /// Small mailboxes between workers.
    Mailboxes,
    /// Unplanned faults of the name server.
    Names,
    /// Resets by the network.
    Resets,
    /// Failed connects.
    Connects,
    /// Random refusals of descriptors.
    Descriptors,
    /// Stalls and losses.
    Stalls,
    /// Short reads and writes, and random waits.
    ShortTransfers,
    /// Small buffers and segments.
    Sizes,
    /// Shortage of pipes.
    Pipes,
    /// Delayed completions, and few completions per turn.
    Delays,
}

impl DisabledFault {
    /// All faults, those with the largest effect first.
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
    /// Returns the connection and the request of an id.
    pub fn find(&self, id: u32) -> Option<(usize, &Request)> {
        self.connections.iter().enumerate().find_map(|(index, connection)| {
            let request = connection.requests.iter().find(|request| request.id == id)?;
            Some((index, request))
        })
    }

    /// Returns whether this connection, its origins, the world and the resources are free of
    /// faults. Then each of its requests must get its complete response.
    pub fn must_succeed(&self, connection: &Connection) -> bool {
        let roomy = self.difficulty != Difficulty::Hard && self.world != Faults::Hostile;
        let origins: BTreeSet<usize> = match self.proxy.forward {
            true => connection.requests.iter().map(|request| request.origin).collect(),
            false => (0..self.origins.len()).collect(),
        };
        let has_tls_fault = self.proxy.secured && self.has_tls_fault(connection);
        roomy
            && !has_tls_fault
            && !self.events.iter().any(|event| matches!(event, OperatorEvent::Drain(_)))
            && !matches!(connection.reader, Reader::Stalls(..))
            && connection.requests.iter().all(|request| self.has_plain_exchange(request))
            && connection.requests.iter().all(|request| self.has_plain_file(request))
            && !(self.closes_unannounced()
                && connection.requests.iter().any(|it| it.method.is_sent_once()))
            && origins.iter().all(|origin| self.has_clean_connections(*origin))
    }

    /// Returns whether the workers end before the limit of a drain. A request whose client has
    /// closed its connection may still wait for an origin then: for TCP that client may only have
    /// ended its direction.
    pub fn drains_in_time(&self) -> bool {
        let closes =
            |request: &Request| request.breaks.is_some_and(|it| it.how == BreakKind::Close);
        let mut requests = self.connections.iter().flat_map(|connection| &connection.requests);
        let is_left_alone = requests.any(closes)
            && self.origins.iter().any(|it| it.behaviour == OriginBehaviour::NeverReads);
        self.difficulty != Difficulty::Hard && !is_left_alone
    }

    fn has_tls_fault(&self, connection: &Connection) -> bool {
        match connection.tls.fault {
            None => false,
            Some(TlsFault::UnknownName | TlsFault::NoName) => !self.proxy.accepts_unknown_names,
            Some(_) => true,
        }
    }

    /// Returns whether a program closes a connection after a response, which FastCGI cannot
    /// announce. A request that is sent on it meanwhile is lost, unless it can be sent again.
    fn closes_unannounced(&self) -> bool {
        let mut requests = self.connections.iter().flat_map(|connection| &connection.requests);
        self.proxy.fastcgi && requests.any(|request| request.response.closes)
    }

    /// Returns whether an origin uses TLS and does not announce the end of its streams.
    pub(super) fn ends_unannounced(&self, origin: usize) -> bool {
        let fault = self.origins[origin].tls.fault;
        self.proxy.secures_origins && fault == Some(TlsFault::UnannouncedEnd)
    }

    fn has_plain_exchange(&self, request: &Request) -> bool {
        let response = &request.response;
        let buffer = self.proxy.upload_buffer.filter(|_| self.proxy.fastcgi);
        let is_too_long = request.body.chunk.is_some()
            && buffer.is_some_and(|bytes| request.body.length as u64 > bytes);
        request.breaks.is_none_or(|it| matches!(it.how, BreakKind::Pause(_)))
            && request.malformation.is_none()
            && !is_too_long
            && (response.fault.is_none() || !self.may_reach_origin(request))
            && !(response.early && request.body.length > 0)
    }

    /// Returns whether a request is sent to an origin: no file is the response to it.
    pub(super) fn may_reach_origin(&self, request: &Request) -> bool {
        let (Some(file), Some(folder)) = (request.file, &self.folder) else { return true };
        self.passes_on() && folder.names[file.name].kind.refusal().is_some()
    }

    /// Returns whether no fault and no change in place concerns the file of a request, if it has
    /// one.
    fn has_plain_file(&self, request: &Request) -> bool {
        let (Some(file), Some(folder)) = (request.file, &self.folder) else { return true };
        let mut changes = folder.changes.iter().filter(|change| change.name == file.name);
        folder.faulty.is_none_or(|(faulty, _)| faulty != file.name)
            && !changes.any(|change| change.kind.is_in_place())
    }

    /// Returns whether requests for which the folder has no file are passed on to an origin.
    pub(super) fn passes_on(&self) -> bool {
        self.folder.is_some() && !self.proxy.fastcgi
    }

    /// Returns the target of a request to a reverse proxy.
    pub(super) fn target(&self, request: &Request) -> String {
        let id = request.id;
        match (request.file, &self.folder) {
            // The query makes the URL unique. The folder ignores it.
            (Some(FileRequest { name, .. }), Some(folder)) => {
                format!("{}?{id}", folder.names[name].kind.target(name))
            }
            _ if self.folder.is_some() && self.proxy.fastcgi => format!("/{SCRIPT}/r/{id}"),
            _ => format!("/r/{id}"),
        }
    }

    /// Returns whether a request to an origin always finds a usable connection. Unrequested bytes
    /// after a response may be taken for the next response, which no proxy can detect.
    fn has_clean_connections(&self, origin: usize) -> bool {
        let good = self.origins[origin].behaviour == OriginBehaviour::Good
            && !(self.proxy.secures_origins && self.origins[origin].tls.fault.is_some());
        let found = !matches!(
            self.origins[origin].naming,
            NameBehaviour::Unknown | NameBehaviour::Fails | NameBehaviour::Silent
        );
        let requests = self.connections.iter().flat_map(|connection| &connection.requests);
        good && found
            && requests.filter(|request| !self.proxy.forward || request.origin == origin).all(
                |request| {
                    !matches!(request.response.fault, Some(ResponseFault::ExtraBytes(_)))
                        && !request.response.early
                },
            )
    }
}
