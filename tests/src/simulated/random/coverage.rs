//! The classes of behaviour that random scenarios cover, and the list of required ones.

use millrace_proxy::reason::Reason;
use millrace_sim::Faults;

use super::model::ExchangeModel;
use super::plan::{
    BodyFraming, BreakKind, Connection, HeaderSyntax, OriginBehaviour, RandomScenario, Request,
    ResponseFault,
};
use super::programs::wire::{BAD_HEADERS, BAD_RECORDS};
use super::wire::{
    BAD_REQUEST_CHUNKS, BAD_REQUEST_HEADERS, BAD_RESPONSE_CHUNKS, BAD_RESPONSE_HEADERS,
};
use crate::simulated::{TlsFault, TlsPlan};

/// Returns every class of behaviour that random scenarios have to cover. With `few`, it omits the
/// single malformed messages and the reasons, because a few hundred seeds do not cover all of them.
pub fn required_classes(few: bool) -> Vec<String> {
    let mut classes: Vec<String> = CLASSES.iter().map(|class| (*class).to_owned()).collect();
    if !few {
        let numbered = |class: &str, count: usize| -> Vec<String> {
            (0..count).map(|index| class.replace('#', &index.to_string())).collect()
        };
        classes.extend(numbered("response: bad head #", BAD_RESPONSE_HEADERS.len()));
        classes.extend(numbered("response: bad chunks #", BAD_RESPONSE_CHUNKS.len()));
        classes.extend(numbered("program: bad header #", BAD_HEADERS.len()));
        classes.extend(numbered("program: bad records #", BAD_RECORDS.len()));
        classes.extend(numbered("request: malformed Head(#)", BAD_REQUEST_HEADERS.len()));
        classes.extend(numbered("request: malformed Body(#)", BAD_REQUEST_CHUNKS.len()));
        classes.extend(REASONS.iter().map(|reason| format!("proxy: reports {}", reason.word())));
    }
    classes
}

const CLASSES: [&str; 143] = [
    "file: several ranges",
    "file: status 200",
    "file: status 206",
    "file: status 304",
    "file: status 403",
    "file: status 404",
    "file: status 416",
    "file: status 500",
    "client: got a file",
    "program: ends its request too early",
    "program: writes to its standard error",
    "proxy: its origins are programs",
    "proxy: serves a folder",
    "request: for a part of a file",
    "response: unrequested 101",
    "response: HTTP/1.0",
    "response: a flood of interim responses",
    "response: after interim responses",
    "response: before the request's end",
    "response: bytes after it",
    "response: chunked",
    "response: closed in the middle",
    "response: closes after it",
    "response: drips",
    "response: ends in the middle",
    "response: folded",
    "response: in bare LF",
    "response: its length twice",
    "response: reset in the middle",
    "response: spaces before colons",
    "response: stops in the middle",
    "response: trailers",
    "response: until close",
    "response: with a length",
    "client: TLS 1.2",
    "client: TLS with a flipped bit",
    "client: TLS with a flipped bit in the handshake",
    "client: TLS with a ticket of DroppedKey",
    "client: TLS with a ticket of Forged",
    "client: TLS with a ticket of OtherService",
    "client: TLS with an unannounced end",
    "client: TLS with an unknown name",
    "client: TLS with many key updates",
    "client: TLS with no name",
    "client: resumes a session",
    "client: closes in the middle",
    "client: ends its stream after its requests",
    "client: ends its stream in the middle",
    "client: got a complete response",
    "client: must succeed",
    "client: leaves in the middle",
    "client: pauses in the middle",
    "client: reads slowly",
    "client: resets in the middle",
    "client: sees its connection break",
    "client: stops in the middle",
    "client: stops reader",
    "client: waits for the proxy to close",
    "name: a forged response first",
    "name: sent twice",
    "name: found",
    "name: found late",
    "name: no response",
    "name: the server fails",
    "name: unknown",
    "operator: stops the remaining work",
    "operator: drains in the middle",
    "operator: reloads",
    "origin: closes at once",
    "origin: closes idle connections",
    "origin: ends idle connections",
    "origin: good",
    "origin: in a tunnel",
    "origin: never reads",
    "origin: refuses",
    "origin: resets at once",
    "origin: sends unrequested bytes",
    "origin: sees its connection break",
    "origin: TLS 1.2",
    "origin: TLS with a flipped bit",
    "origin: TLS with a flipped bit in the handshake",
    "origin: TLS with an unannounced end",
    "origin: TLS with an unknown name",
    "origin: TLS with many key updates",
    "origin: resumes a session",
    "proxy: a request tried again",
    "proxy: responds 400 itself",
    "proxy: responds 408 itself",
    "proxy: responds 502 itself",
    "proxy: responds 503 itself",
    "proxy: responds 504 itself",
    "proxy: is a reverse proxy",
    "proxy: is a forward proxy",
    "proxy: holds all the bytes that it may",
    "proxy: listens on a Unix socket",
    "proxy: secures its clients",
    "proxy: secures its origins",
    "proxy: short of descriptors",
    "proxy: short of memory",
    "request: Connect",
    "request: Get",
    "request: HTTP/1.0",
    "request: Head",
    "request: Options",
    "request: Post",
    "request: Put",
    "request: Upgrade",
    "request: chunked",
    "request: expects 100",
    "request: pipelined",
    "request: trailers",
    "scenario: Easy",
    "scenario: Mixed",
    "scenario: Hard",
    "trouble: clock jumps",
    "trouble: spurious wake",
    "trouble: spurious readable",
    "trouble: failed connect",
    "trouble: forged name",
    "trouble: late connect",
    "trouble: late wake",
    "trouble: late name",
    "trouble: late segment",
    "trouble: lost datagram",
    "trouble: name server fails",
    "trouble: name sent twice",
    "trouble: no descriptor",
    "trouble: no descriptor left",
    "trouble: no memory",
    "trouble: no pipe",
    "trouble: reset",
    "trouble: shortage",
    "trouble: skewed accepts",
    "trouble: slow turn",
    "trouble: stale completion",
    "trouble: stall",
    "trouble: vanished peer",
    "trouble: wrong address",
    "tunnel: begun",
    "tunnel: complete",
    "world: hostile",
    "world: idle",
    "world: working",
];

/// The reasons of refusals that occur in random scenarios. The other reasons need options that
/// random scenarios never set, such as lists of users, addresses or names.
const REASONS: [Reason; 25] = [
    Reason::BodyCut,
    Reason::BodyTimedOut,
    Reason::ConnectFailed,
    Reason::ConnectTimedOut,
    Reason::HeadTimedOut,
    Reason::HeadTooLarge,
    Reason::MalformedResponse,
    Reason::MalformedResponseBody,
    Reason::MalformedResponseFraming,
    Reason::MalformedBody,
    Reason::MalformedFraming,
    Reason::MalformedHead,
    Reason::MalformedTarget,
    Reason::NameFailed,
    Reason::NameTimedOut,
    Reason::NameUnknown,
    Reason::OriginBusy,
    Reason::OriginClosed,
    Reason::OriginTimedOut,
    Reason::OriginUnreachable,
    Reason::Overloaded,
    Reason::TargetTooLong,
    Reason::TooManyInterim,
    Reason::UpgradeUnrequested,
    Reason::VersionUnsupported,
];

/// Returns the class of an origin's behaviour.
pub(super) fn behaviour_class(behaviour: OriginBehaviour) -> &'static str {
    match behaviour {
        OriginBehaviour::Good => "origin: good",
        OriginBehaviour::Refuses => "origin: refuses",
        OriginBehaviour::ClosesAtOnce => "origin: closes at once",
        OriginBehaviour::ResetsAtOnce => "origin: resets at once",
        OriginBehaviour::NeverReads => "origin: never reads",
        OriginBehaviour::ClosesIdle(_) => "origin: closes idle connections",
        OriginBehaviour::EndsIdle(_) => "origin: ends idle connections",
        OriginBehaviour::SendsUnrequested(_) => "origin: sends unrequested bytes",
    }
}

/// Counts the classes of a request that a client begins to send.
pub(super) fn cover_request(model: &ExchangeModel, plan: &Connection, request: &Request) {
    model.cover(format!("request: {:?}", request.method));
    if plan.pipelined && plan.requests.len() > 1 {
        model.cover("request: pipelined");
    }
    if request.file.is_some_and(|file| file.range.is_some()) {
        model.cover("request: for a part of a file");
    }
    if request.body.chunk.is_some() {
        model.cover("request: chunked");
    }
    if request.body.trailers {
        model.cover("request: trailers");
    }
    if request.body.expects {
        model.cover("request: expects 100");
    }
    if request.old {
        model.cover("request: HTTP/1.0");
    }
    if let Some(breaks) = request.breaks {
        model.cover(match breaks.how {
            BreakKind::Finish => "client: ends its stream in the middle",
            BreakKind::Close => "client: closes in the middle",
            BreakKind::Reset => "client: resets in the middle",
            BreakKind::Stop => "client: stops in the middle",
            BreakKind::Pause(_) => "client: pauses in the middle",
        });
    }
    if let Some(malformation) = request.malformation {
        model.cover(format!("request: malformed {malformation:?}"));
    }
}

/// Counts the classes of TLS that a client uses.
pub(super) fn cover_tls(model: &ExchangeModel, plan: TlsPlan) {
    if plan.old {
        model.cover("client: TLS 1.2");
    }
    if let Some(ticket) = plan.ticket {
        model.cover(format!("client: TLS with a ticket of {ticket:?}"));
    }
    if let Some(fault) = plan.fault {
        model.cover(format!("client: TLS with {}", fault_class(fault)));
    }
}

/// Counts the classes of TLS that an origin uses.
pub(super) fn cover_origin_tls(model: &ExchangeModel, plan: TlsPlan) {
    if plan.old {
        model.cover("origin: TLS 1.2");
    }
    if let Some(fault) = plan.fault {
        model.cover(format!("origin: TLS with {}", fault_class(fault)));
    }
}

fn fault_class(fault: TlsFault) -> &'static str {
    match fault {
        TlsFault::FlippedBit(_) => "a flipped bit",
        TlsFault::FlippedHandshake(_) => "a flipped bit in the handshake",
        TlsFault::UnannouncedEnd => "an unannounced end",
        TlsFault::UnknownName => "an unknown name",
        TlsFault::NoName => "no name",
        TlsFault::KeyUpdates => "many key updates",
    }
}

/// Counts the classes of a response that an origin begins to send.
pub(super) fn cover_response(model: &ExchangeModel, request: &Request) {
    let response = &request.response;
    model.cover(match response.framing {
        BodyFraming::Length => "response: with a length",
        BodyFraming::Chunks(_) => "response: chunked",
        BodyFraming::UntilClose => "response: until close",
    });
    if response.old {
        model.cover("response: HTTP/1.0");
    }
    if response.interims > 0 {
        model.cover("response: after interim responses");
    }
    if response.early && request.body.length > 0 {
        model.cover("response: before the request's end");
    }
    if response.drip.is_some() {
        model.cover("response: drips");
    }
    if response.trailers {
        model.cover("response: trailers");
    }
    match response.syntax {
        HeaderSyntax::Strict => {}
        HeaderSyntax::BareLf => model.cover("response: in bare LF"),
        HeaderSyntax::Folded => model.cover("response: folded"),
        HeaderSyntax::Spaced => model.cover("response: spaces before colons"),
        HeaderSyntax::Repeated => model.cover("response: its length twice"),
    }
    match response.fault {
        None => {}
        Some(ResponseFault::Breaks(breaks)) => model.cover(match breaks.how {
            BreakKind::Finish => "response: ends in the middle",
            BreakKind::Close => "response: closed in the middle",
            BreakKind::Reset => "response: reset in the middle",
            BreakKind::Stop => "response: stops in the middle",
            BreakKind::Pause(_) => "response: pauses in the middle",
        }),
        Some(ResponseFault::ExtraBytes(_)) => model.cover("response: bytes after it"),
        Some(ResponseFault::Head(index)) => model.cover(format!("response: bad head {index}")),
        Some(ResponseFault::Chunks(index)) => model.cover(format!("response: bad chunks {index}")),
        Some(ResponseFault::InterimFlood) => model.cover("response: a flood of interim responses"),
        Some(ResponseFault::UnrequestedUpgrade) => model.cover("response: unrequested 101"),
        Some(ResponseFault::ProgramHeader(index)) => {
            model.cover(format!("program: bad header {index}"));
        }
        Some(ResponseFault::ProgramRecords(index)) => {
            model.cover(format!("program: bad records {index}"));
        }
        Some(ResponseFault::EarlyEnd(_)) => model.cover("program: ends its request too early"),
    }
    if response.errors > 0 {
        model.cover("program: writes to its standard error");
    }
}

/// Counts the classes of a scenario that begins.
pub(super) fn cover_scenario(model: &ExchangeModel, scenario: &RandomScenario) {
    model.cover(format!("scenario: {:?}", scenario.difficulty));
    model.cover(match scenario.world {
        Faults::None => "world: idle",
        Faults::Benign => "world: working",
        Faults::Hostile => "world: hostile",
    });
    model.cover(if scenario.proxy.forward {
        "proxy: is a forward proxy"
    } else {
        "proxy: is a reverse proxy"
    });
    for (applies, class) in [
        (scenario.proxy.unix, "proxy: listens on a Unix socket"),
        (scenario.proxy.secured, "proxy: secures its clients"),
        (scenario.proxy.secures_origins, "proxy: secures its origins"),
        (scenario.proxy.fastcgi, "proxy: its origins are programs"),
        (scenario.proxy.pipelining.is_some(), "proxy: pipelines to its origins"),
        (scenario.folder.is_some(), "proxy: serves a folder"),
        (scenario.proxy.memory_mb.is_some(), "proxy: short of memory"),
        (scenario.proxy.descriptors.is_some(), "proxy: short of descriptors"),
    ] {
        if applies {
            model.cover(class);
        }
    }
}
