//! One mutant against the program. Every request that reaches the origin must pass the strict
//! parser, every connection must end, and valid requests must be forwarded.

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

/// The outcome of a mutant without a violation.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct MutantOutcome {
    /// A complete request reached the origin.
    pub reached: bool,
    /// The outcome of the first request, if it is valid.
    pub first_outcome: Option<RequestOutcome>,
}

/// The outcome of a valid request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RequestOutcome {
    /// The origin received it or failed, or the program itself responded to a TRACE or OPTIONS.
    Forwarded,
    /// It was refused as unsupported or too large: see [`is_unsupported`].
    Unsupported,
    /// It was refused as malformed, for a reason that docs/refused.md lists for this kind.
    Refused,
}

/// The kind of a violation. Shrinking keeps it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Violation {
    /// An ambiguous request reached the origin.
    AmbiguousRequest,
    /// An ambiguous response reached the client.
    AmbiguousResponse,
    /// The origin received a request that no client sent.
    Smuggled,
    /// A valid request was refused for a reason that docs/refused.md does not list.
    Unlisted,
    /// A connection did not end, or could not begin.
    Hangs,
}

/// A failure: the violation, and a description.
pub type Failure = (Violation, String);

/// Returns whether this status of a generated response means that the request is unsupported or too
/// large.
pub fn is_unsupported(status: u16) -> bool {
    matches!(status, 403 | 405 | 413 | 414 | 417 | 431 | 501 | 505 | 508)
}

/// Runs a mutant against the program.
///
/// # Errors
/// Returns the violation.
pub fn run(
    mutant: &Mutant,
    templates: &Templates,
    program: &ProgramUnderTest,
) -> Result<MutantOutcome, Failure> {
    let substitutions = program.substitutions();
    let script = mutant.script(&substitutions).map(|(target, mut response)| {
        // The connection ends with the response, and with it every effect of a malformed response.
        response.steps.push(Step::Close);
        (target, response)
    });
    let segments = mutant.segments(&substitutions);
    let late = program.origin.begin(script.clone().into_iter().collect());
    if let Some(late) = late.iter().find(|seen| !matches!(seen, Seen::Cut(_))) {
        let why = format!("after the end of the mutant before, the origin saw {late}");
        return Err((Violation::Smuggled, why));
    }
    let result = talk(&segments, templates, program);
    result.map_err(|(violation, why)| {
        // The remains of a mutant must not count for the next one.
        let _ = program.origin.settle();
        program.origin.begin(Vec::new());
        let response =
            script.map(|(_, response)| format!("\n  origin sends: {}", escaped(&response.bytes())));
        let (name, sent) = (&mutant.name, escaped(&segments.concat()));
        let description = format!("a mutant of `{name}`: {why}\n  client: {sent}");
        (violation, description + &response.unwrap_or_default())
    })
}

fn talk(
    segments: &[Vec<u8>],
    templates: &Templates,
    program: &ProgramUnderTest,
) -> Result<MutantOutcome, Failure> {
    let hangs = |why| (Violation::Hangs, why);
    let mut client = Client::connect(program.address).map_err(hangs)?;
    for (index, segment) in segments.iter().enumerate() {
        if index > 0 && index % 2 == 0 {
            thread::sleep(PAUSE / 8);
        }
        let steps = [Step::Bytes(segment.clone())];
        client.send(&steps, Pace::Whole, &program.origin).map_err(hangs)?;
    }
    client.finish();
    let received = client.rest().map_err(hangs)?;
    let seen = program.origin.settle().map_err(hangs)?;
    program.origin.begin(Vec::new());
    let mut arrived = Vec::new();
    for seen in seen {
        match seen {
            Seen::Whole(message) => arrived.push(message),
            Seen::Cut(_) => {}
            Seen::Ambiguous(..) => {
                return Err((Violation::AmbiguousRequest, format!("at the origin: {seen}")));
            }
        }
    }
    let contexts: Vec<_> =
        arrived.iter().map(|message| RequestContext::with(message.method())).collect();
    read_responses(&received, &contexts).map_err(|ambiguity| {
        let received = escaped(&received);
        (Violation::AmbiguousResponse, format!("AMBIGUOUS at the client ({ambiguity}): {received}"))
    })?;
    let first_outcome = first_outcome(&segments.concat(), &arrived, &received, templates, program)?;
    Ok(MutantOutcome { reached: !arrived.is_empty(), first_outcome })
}

/// Compares what the origin saw with the valid requests that were sent. Returns the outcome of the
/// first one.
fn first_outcome(
    sent: &[u8],
    arrived: &[Message],
    received: &[u8],
    templates: &Templates,
    program: &ProgramUnderTest,
) -> Result<Option<RequestOutcome>, Failure> {
    let reading = valid::read(sent, program.role);
    if reading.all {
        check_nothing_more(&reading.requests, arrived)?;
    }
    let Some(first) = reading.requests.first() else { return Ok(None) };
    if arrived.iter().any(|message| is(message, first)) {
        return Ok(Some(RequestOutcome::Forwarded));
    }
    let own = strict::response(received, &RequestContext::with(&first.method), true);
    let Ok(Some(own)) = own else { return Ok(None) };
    let status = own.status();
    let body = String::from_utf8_lossy(&own.body).to_lowercase();
    let listed_refusals = |own: &super::case::OwnResponse| {
        own.status == status && body.contains(&own.words.to_lowercase())
    };
    match status {
        // A TRACE or OPTIONS that the program responded to, and an origin that failed.
        200..=399 | 500 | 502..=504 => Ok(Some(RequestOutcome::Forwarded)),
        _ if is_unsupported(status) => Ok(Some(RequestOutcome::Unsupported)),
        _ if first.odd && templates.listed_refusals.iter().any(listed_refusals) => {
            Ok(Some(RequestOutcome::Refused))
        }
        _ => Err((
            Violation::Unlisted,
            format!("a valid request was refused with {status}: {}", body.trim()),
        )),
    }
}

/// Checks that the origin received none but these requests. Each may arrive once, and a repeatable
/// one again. The caller knows that every sent byte belongs to a valid request.
pub(crate) fn check_nothing_more(
    requests: &[ValidRequest],
    arrived: &[Message],
) -> Result<(), Failure> {
    let mut left: Vec<&ValidRequest> = requests.iter().collect();
    for message in arrived {
        // RFC 9110 section 9.2.2: the methods that a proxy may repeat.
        let repeatable =
            matches!(message.method(), "GET" | "HEAD" | "OPTIONS" | "TRACE" | "PUT" | "DELETE");
        match left.iter().position(|request| is(message, request)) {
            Some(at) => drop(left.remove(at)),
            None if repeatable && requests.iter().any(|request| is(message, request)) => {}
            None => {
                let seen = Seen::Whole(message.clone());
                return Err((
                    Violation::Smuggled,
                    format!("the origin received a request that no client sent: {seen}"),
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
