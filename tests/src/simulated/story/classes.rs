//! The classes of behaviour that stories have: how they are called where they are met, and the list
//! of those that many seeds have to meet.

use millrace_proxy::reason::Reason;
use millrace_sim::Faults;

use super::ledger::Ledger;
use super::plan::{Conduct, Connection, Form, Frame, How, Request, Story, Wrong};
use super::words::{BAD_CHUNKS, BAD_HEADS, ODD_CHUNKS, ODD_HEADS};

/// Every class of behaviour that stories have: a world in which one is never met proves nothing
/// about it. `few` leaves out the single messages of each table, of which a few hundred seeds meet
/// only most.
pub fn classes(few: bool) -> Vec<String> {
    let mut classes: Vec<String> = CLASSES.iter().map(|class| (*class).to_owned()).collect();
    if !few {
        let numbered = |class: &str, count: usize| -> Vec<String> {
            (0..count).map(|index| class.replace('#', &index.to_string())).collect()
        };
        classes.extend(numbered("answer: bad head #", BAD_HEADS.len()));
        classes.extend(numbered("answer: bad chunks #", BAD_CHUNKS.len()));
        classes.extend(numbered("request: odd Head(#)", ODD_HEADS.len()));
        classes.extend(numbered("request: odd Body(#)", ODD_CHUNKS.len()));
        classes.extend(REASONS.iter().map(|reason| format!("proxy: says {}", reason.word())));
    }
    classes
}

const CLASSES: [&str; 109] = [
    "answer: 101 that nobody asked for",
    "answer: HTTP/1.0",
    "answer: a flood of interim ones",
    "answer: after interim ones",
    "answer: before the request's end",
    "answer: bytes after it",
    "answer: chunked",
    "answer: closed in the middle",
    "answer: closes behind it",
    "answer: drips",
    "answer: ends in the middle",
    "answer: folded",
    "answer: in bare LF",
    "answer: its length twice",
    "answer: reset in the middle",
    "answer: spaces before colons",
    "answer: stops in the middle",
    "answer: trailers",
    "answer: until close",
    "answer: with a length",
    "client: closes in the middle",
    "client: ends its stream behind its requests",
    "client: ends its stream in the middle",
    "client: got a whole answer",
    "client: innocent",
    "client: leaves in the middle",
    "client: pauses in the middle",
    "client: reads slowly",
    "client: resets in the middle",
    "client: sees its connection break",
    "client: stops in the middle",
    "client: stops reading",
    "client: waits for the proxy to close",
    "name: a lie comes first",
    "name: answered twice",
    "name: found",
    "name: found late",
    "name: no answer",
    "name: the server fails",
    "name: unknown",
    "operator: breaks off what is left",
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
    "origin: says something unasked",
    "origin: sees its connection break",
    "proxy: a request tried again",
    "proxy: answers 400 itself",
    "proxy: answers 408 itself",
    "proxy: answers 502 itself",
    "proxy: answers 503 itself",
    "proxy: answers 504 itself",
    "proxy: boosts",
    "proxy: forwards",
    "proxy: holds all the bytes that it may",
    "proxy: listens on a Unix socket",
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
    "story: Kind",
    "story: Mixed",
    "story: Wild",
    "trouble: clock jumps",
    "trouble: spurious wake",
    "trouble: spurious readable",
    "trouble: failed connect",
    "trouble: guessed name",
    "trouble: late connect",
    "trouble: late wake",
    "trouble: late name",
    "trouble: late segment",
    "trouble: lost datagram",
    "trouble: name server fails",
    "trouble: name told twice",
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
    "tunnel: whole",
    "world: hostile",
    "world: idle",
    "world: working",
];

/// Why the proxy refuses something in stories. The others' options are in none: a list of users, of
/// addresses, of names.
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

/// What an origin does with its connections.
pub(super) fn of_conduct(conduct: Conduct) -> &'static str {
    match conduct {
        Conduct::Good => "origin: good",
        Conduct::Refuses => "origin: refuses",
        Conduct::ClosesAtOnce => "origin: closes at once",
        Conduct::ResetsAtOnce => "origin: resets at once",
        Conduct::Deaf => "origin: never reads",
        Conduct::ClosesIdle(_) => "origin: closes idle connections",
        Conduct::EndsIdle(_) => "origin: ends idle connections",
        Conduct::StraysIdle(_) => "origin: says something unasked",
    }
}

/// A client begins to send a request.
pub(super) fn meet_request(ledger: &Ledger, plan: &Connection, request: &Request) {
    ledger.met(format!("request: {:?}", request.method));
    if plan.pipelined && plan.requests.len() > 1 {
        ledger.met("request: pipelined");
    }
    if request.body.chunk.is_some() {
        ledger.met("request: chunked");
    }
    if request.body.trailers {
        ledger.met("request: trailers");
    }
    if request.body.expects {
        ledger.met("request: expects 100");
    }
    if request.old {
        ledger.met("request: HTTP/1.0");
    }
    if let Some(breaks) = request.breaks {
        ledger.met(match breaks.how {
            How::Finish => "client: ends its stream in the middle",
            How::Close => "client: closes in the middle",
            How::Reset => "client: resets in the middle",
            How::Stop => "client: stops in the middle",
            How::Pause(_) => "client: pauses in the middle",
        });
    }
    if let Some(oddity) = request.oddity {
        ledger.met(format!("request: odd {oddity:?}"));
    }
}

/// An origin begins to answer a request.
pub(super) fn meet_answer(ledger: &Ledger, request: &Request) {
    let answer = &request.answer;
    ledger.met(match answer.frame {
        Frame::Length => "answer: with a length",
        Frame::Chunks(_) => "answer: chunked",
        Frame::UntilClose => "answer: until close",
    });
    if answer.old {
        ledger.met("answer: HTTP/1.0");
    }
    if answer.interims > 0 {
        ledger.met("answer: after interim ones");
    }
    if answer.early && request.body.length > 0 {
        ledger.met("answer: before the request's end");
    }
    if answer.drip.is_some() {
        ledger.met("answer: drips");
    }
    if answer.trailers {
        ledger.met("answer: trailers");
    }
    match answer.form {
        Form::Strict => {}
        Form::BareLf => ledger.met("answer: in bare LF"),
        Form::Folded => ledger.met("answer: folded"),
        Form::Spaced => ledger.met("answer: spaces before colons"),
        Form::Repeated => ledger.met("answer: its length twice"),
    }
    match answer.wrong {
        None => {}
        Some(Wrong::Breaks(breaks)) => ledger.met(match breaks.how {
            How::Finish => "answer: ends in the middle",
            How::Close => "answer: closed in the middle",
            How::Reset => "answer: reset in the middle",
            How::Stop => "answer: stops in the middle",
            How::Pause(_) => "answer: pauses in the middle",
        }),
        Some(Wrong::Goes(_)) => ledger.met("answer: bytes after it"),
        Some(Wrong::Head(index)) => ledger.met(format!("answer: bad head {index}")),
        Some(Wrong::Chunks(index)) => ledger.met(format!("answer: bad chunks {index}")),
        Some(Wrong::Floods) => ledger.met("answer: a flood of interim ones"),
        Some(Wrong::Switches) => ledger.met("answer: 101 that nobody asked for"),
    }
}

/// A story begins.
pub(super) fn meet_story(ledger: &Ledger, story: &Story) {
    ledger.met(format!("story: {:?}", story.temper));
    ledger.met(match story.world {
        Faults::None => "world: idle",
        Faults::Benign => "world: working",
        Faults::Hostile => "world: hostile",
    });
    ledger.met(if story.proxy.forward { "proxy: forwards" } else { "proxy: boosts" });
    for (met, class) in [
        (story.proxy.unix, "proxy: listens on a Unix socket"),
        (story.proxy.memory_mb.is_some(), "proxy: short of memory"),
        (story.proxy.descriptors.is_some(), "proxy: short of descriptors"),
    ] {
        if met {
            ledger.met(class);
        }
    }
}
