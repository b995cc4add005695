//! One mutant against the program: whatever reaches the origin must be accepted by the strict
//! parser, every connection must end, and what is valid must be forwarded.

use std::thread;

use super::client::{Client, Pace};
use super::literal::{Step, escaped};
use super::origin::Seen;
use super::program::ProgramUnderTest;
use super::responses::read_responses;
use super::templates::{Mutant, Templates};
use super::timeouts::PAUSE;
use super::valid::{self, ValidRequest};
use crate::strict::{self, Message, RequestContext};

/// What came of a mutant that nothing is wrong with.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct MutantOutcome {
    /// A whole request reached the origin.
    pub reached: bool,
    /// What became of its first request, if that is valid.
    pub fate: Option<RequestOutcome>,
}

/// What became of a valid request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RequestOutcome {
    /// The origin saw it, or failed.
    Forwarded,
    /// It was answered as a section of the RFC has it for what this proxy does not serve, or does
    /// not serve at such a size: see [`by_rule`].
    Ruled,
    /// It was refused as malformed, is of a kind that docs/refused.md tells, and for such a reason.
    Refused,
}

/// What is wrong with what came of a mutant. A shrunk mutant fails in the same way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Violation {
    /// Something doubtful reached the origin.
    DoubtfulRequest,
    /// Something doubtful reached the client.
    DoubtfulAnswer,
    /// The origin saw a request that nobody sent.
    Smuggled,
    /// A valid request was refused for a reason that docs/refused.md does not tell.
    Untold,
    /// A connection did not end, or could not begin.
    Hangs,
}

/// A failure: what, and the story.
pub type Failure = (Violation, String);

/// Whether a status of the program's own says that it does not serve this, or not at this size.
pub fn by_rule(status: u16) -> bool {
    matches!(status, 403 | 405 | 413 | 414 | 417 | 431 | 501 | 505 | 508)
}

/// Runs a mutant in the lane.
///
/// # Errors
/// Shows what came of it.
pub fn run(
    mutant: &Mutant,
    stock: &Templates,
    lane: &ProgramUnderTest,
) -> Result<MutantOutcome, Failure> {
    let place = lane.place();
    let script = mutant.script(&place).map(|(target, mut answer)| {
        // The connection ends with the answer, so that whatever is wrong with it is over.
        answer.steps.push(Step::Close);
        (target, answer)
    });
    let segments = mutant.segments(&place);
    let late = lane.origin.begin(script.clone().into_iter().collect());
    if let Some(late) = late.iter().find(|seen| !matches!(seen, Seen::Cut(_))) {
        let why = format!("after the end of the mutant before, the origin saw {late}");
        return Err((Violation::Smuggled, why));
    }
    let verdict = talk(&segments, stock, lane);
    verdict.map_err(|(wrong, why)| {
        // What is left of it must not be taken for a part of the next.
        let _ = lane.origin.settle();
        lane.origin.begin(Vec::new());
        let said = script.map(|(_, said)| format!("\n  origin says: {}", escaped(&said.bytes())));
        let (name, sent) = (&mutant.name, escaped(&segments.concat()));
        let story = format!("a mutant of `{name}`: {why}\n  client: {sent}");
        (wrong, story + &said.unwrap_or_default())
    })
}

fn talk(
    segments: &[Vec<u8>],
    stock: &Templates,
    lane: &ProgramUnderTest,
) -> Result<MutantOutcome, Failure> {
    let hangs = |why| (Violation::Hangs, why);
    let mut client = Client::connect(lane.address).map_err(hangs)?;
    for (index, segment) in segments.iter().enumerate() {
        if index > 0 && index % 2 == 0 {
            thread::sleep(PAUSE / 8);
        }
        let steps = [Step::Bytes(segment.clone())];
        client.send(&steps, Pace::Whole, &lane.origin).map_err(hangs)?;
    }
    client.finish();
    let received = client.rest().map_err(hangs)?;
    let seen = lane.origin.settle().map_err(hangs)?;
    lane.origin.begin(Vec::new());
    let mut whole = Vec::new();
    for seen in seen {
        match seen {
            Seen::Whole(message) => whole.push(message),
            Seen::Cut(_) => {}
            Seen::Doubtful(..) => {
                return Err((Violation::DoubtfulRequest, format!("at the origin: {seen}")));
            }
        }
    }
    let asked: Vec<_> =
        whole.iter().map(|message| RequestContext::with(message.method())).collect();
    read_responses(&received, &asked).map_err(|doubt| {
        let received = escaped(&received);
        (Violation::DoubtfulAnswer, format!("DOUBTFUL at the client ({doubt}): {received}"))
    })?;
    let fate = fate(&segments.concat(), &whole, &received, stock, lane)?;
    Ok(MutantOutcome { reached: !whole.is_empty(), fate })
}

/// Compares what the origin saw with what a client may send.
fn fate(
    sent: &[u8],
    whole: &[Message],
    received: &[u8],
    stock: &Templates,
    lane: &ProgramUnderTest,
) -> Result<Option<RequestOutcome>, Failure> {
    let reading = valid::read(sent, lane.role);
    if reading.all {
        check_nothing_more(&reading.requests, whole)?;
    }
    let Some(first) = reading.requests.first() else { return Ok(None) };
    if whole.iter().any(|message| is(message, first)) {
        return Ok(Some(RequestOutcome::Forwarded));
    }
    let own = strict::response(received, &RequestContext::with(&first.method), true);
    let Ok(Some(own)) = own else { return Ok(None) };
    let status = own.status();
    let body = String::from_utf8_lossy(&own.body).to_lowercase();
    let told = |own: &super::case::OwnResponse| {
        own.status == status && body.contains(&own.words.to_lowercase())
    };
    match status {
        // A TRACE or OPTIONS that went no further, and an origin that failed.
        200..=399 | 500 | 502..=504 => Ok(Some(RequestOutcome::Forwarded)),
        _ if by_rule(status) => Ok(Some(RequestOutcome::Ruled)),
        _ if first.odd && stock.told.iter().any(told) => Ok(Some(RequestOutcome::Refused)),
        _ => Err((Violation::Untold, format!("valid, and refused with {status}: {}", body.trim()))),
    }
}

/// Where every byte that was sent belongs to a valid request, the origin sees these requests and no
/// other; one that may be repeated may be seen again.
pub(crate) fn check_nothing_more(
    requests: &[ValidRequest],
    whole: &[Message],
) -> Result<(), Failure> {
    let mut left: Vec<&ValidRequest> = requests.iter().collect();
    for message in whole {
        // RFC 9110 section 9.2.2: those that a proxy may send again.
        let repeatable =
            matches!(message.method(), "GET" | "HEAD" | "OPTIONS" | "TRACE" | "PUT" | "DELETE");
        match left.iter().position(|request| is(message, request)) {
            Some(at) => drop(left.remove(at)),
            None if repeatable && requests.iter().any(|request| is(message, request)) => {}
            None => {
                let seen = Seen::Whole(message.clone());
                return Err((
                    Violation::Smuggled,
                    format!("nobody sent what the origin saw: {seen}"),
                ));
            }
        }
    }
    Ok(())
}

fn is(message: &Message, request: &ValidRequest) -> bool {
    message.method() == request.method
        && message.target() == request.target
        && message.body == request.body
}
