//! Runs one case against a program and compares everything that was seen with the expectations.

use super::case::{Case, Outcome, OwnResponse};
use super::client::{Client, Pace};
use super::compare::{ADDED_TO_REQUESTS, ADDED_TO_RESPONSES, same};
use super::literal::{Step, escaped, fill};
use super::origin::Seen;
use super::plan::{Item, plan};
use super::program::ProgramUnderTest;
use crate::strict::{self, Framing, Message, RequestContext};

/// The target of a request that is sent on the connection after a case. Its response proves that no
/// byte of the case was left on the connection.
const PROBE: &str = "/the-next-request";

/// The target of every request whose client resets its connection.
const LEFT: &str = "/left";

/// Runs a case.
///
/// # Errors
/// Returns the difference from the expectations.
pub fn run(case: &Case, program: &ProgramUnderTest, pace: Pace) -> Result<(), String> {
    talk(case, program, pace).map_err(|why| {
        // The remains of a failed case must not count for the next case.
        let _ = program.origin.settle();
        let seen = program.origin.begin(Vec::new());
        match seen.iter().find(|seen| matches!(seen, Seen::Ambiguous(..))) {
            Some(ambiguous) if !why.contains("AMBIGUOUS") => {
                format!("{why}; at the origin: {ambiguous}")
            }
            _ => why,
        }
    })
}

fn talk(case: &Case, program: &ProgramUnderTest, pace: Pace) -> Result<(), String> {
    let substitutions = program.substitutions();
    let sent = fill(&case.sent, &substitutions, true)?;
    let items = plan(case, &substitutions)?;
    let script = items.iter().filter_map(|item| {
        let target = item.request.as_ref()?.target().to_owned();
        Some((target, item.response.clone()?))
    });
    let late = program.origin.begin(script.collect());
    if let Some(late) = late.iter().find(|seen| !matches!(seen, Seen::Cut(_)) && !is_left(seen)) {
        return Err(format!("something reached the origin after an earlier case's end: {late}"));
    }
    let mut client = Client::connect(program.address)?;
    client.send(&sent.steps, pace, &program.origin)?;
    let mut closes = sent.steps.iter().any(|step| matches!(step, Step::End | Step::Reset));
    for (index, item) in items.iter().enumerate() {
        let closed = receive(item, &mut client).map_err(|why| format!("item {}: {why}", index + 1));
        closes |= closed?;
    }
    let tunnel = case.outcomes.contains(&Outcome::Tunnel);
    let early = case.outcomes.contains(&Outcome::Early);
    let probe = match (closes, early) {
        (true, _) => false,
        (false, false) => probe(&mut client, program, tunnel).map(|()| true)?,
        // Whether the connection continues depends on whether the rest of the body was read in
        // time.
        (false, true) => {
            client.finish();
            false
        }
    };
    let rest = client.rest()?;
    if !rest.is_empty() {
        return Err(format!("bytes after the last response: {}", escaped(&rest)));
    }
    compare_seen(&items, probe, &program.origin.settle()?)?;
    program.origin.begin(Vec::new());
    Ok(())
}

/// Receives the outcome of one request. Returns whether the connection must end with it.
fn receive(item: &Item<'_>, client: &mut Client) -> Result<bool, String> {
    match item.outcome {
        Outcome::Forwarded | Outcome::Early => {
            let mut closes = false;
            for expected in &item.responses {
                let got = client.next_response(&item.context)?;
                same(expected, &got, &ADDED_TO_RESPONSES)
                    .map_err(|why| format!("response at the client: {why}"))?;
                closes = got.closes() || got.framing == Framing::UntilClose;
            }
            Ok(closes)
        }
        Outcome::Refused(own) | Outcome::Cut(own) => {
            let response = receive_own_response(own, client, &item.context)?;
            if response.closes() {
                Ok(true)
            } else {
                Err("a refusal that does not announce the close".to_owned())
            }
        }
        Outcome::Served(own) | Outcome::Generated(own) => {
            Ok(receive_own_response(own, client, &item.context)?.closes())
        }
        Outcome::Left => Ok(true),
        Outcome::Tunnel => {
            let got = client.next_response(&RequestContext::with("CONNECT"))?;
            if got.status() == 200 { Ok(false) } else { Err(format!("no tunnel: {got:?}")) }
        }
        Outcome::Aborted => {
            let rest = client.rest()?;
            match strict::response(&rest, &item.context, true) {
                Ok(None) => Ok(true),
                Ok(Some(_)) => {
                    Err(format!("a complete response at the client: {}", escaped(&rest)))
                }
                Err(ambiguity) => Err(format!("an AMBIGUOUS response at the client: {ambiguity}")),
            }
        }
        Outcome::Closed => match &client.rest()?[..] {
            [] => Ok(true),
            rest => Err(format!("a response at the client: {}", escaped(rest))),
        },
        Outcome::Upgraded(text) => {
            for expected in &item.responses {
                let got = client.next_response(&item.context)?;
                same(expected, &got, &ADDED_TO_RESPONSES)?;
            }
            let got = client.bytes(text.len())?;
            client.finish();
            if got == text.as_bytes() {
                Ok(true)
            } else {
                Err(format!("received through the tunnel: {}", escaped(&got)))
            }
        }
    }
}

fn receive_own_response(
    own: &OwnResponse,
    client: &mut Client,
    context: &RequestContext,
) -> Result<Message, String> {
    let mut response = client.next_response(context)?;
    while response.interim() {
        response = client.next_response(context)?;
    }
    let body = String::from_utf8_lossy(&response.body).into_owned();
    if response.status() != own.status {
        return Err(format!("{} instead of {}: {}", response.status(), own.status, body.trim()));
    }
    let has_words = body.to_lowercase().contains(&own.words.to_lowercase());
    if context.method != "HEAD" && !has_words {
        return Err(format!("the reason lacks `{}`: {}", own.words, body.trim()));
    }
    Ok(response)
}

/// Sends another request on the connection, through the tunnel if there is one, and checks that it
/// gets its own response.
fn probe(client: &mut Client, program: &ProgramUnderTest, tunnel: bool) -> Result<(), String> {
    let lines = [
        format!("GET {{{PROBE}}} HTTP/1.1"),
        "Host: {host}".to_owned(),
        "Connection: close".to_owned(),
        String::new(),
    ];
    let probe = fill(&lines, &program.substitutions(), !tunnel)?;
    client.send(&probe.steps, Pace::Whole, &program.origin)?;
    let got = client
        .next_response(&RequestContext::with("GET"))
        .map_err(|why| format!("the request after the case: {why}"))?;
    if got.body != format!("GET {PROBE}").as_bytes() {
        let body = escaped(&got.body);
        return Err(format!("the next request got the response to another one: {body}"));
    }
    if tunnel {
        client.finish();
    }
    Ok(())
}

/// Compares what the origin saw with what it must see. Each request must arrive once, and nothing
/// else. The order is not compared, because requests on different connections may overtake each
/// other.
fn compare_seen(items: &[Item<'_>], probe: bool, seen: &[Seen]) -> Result<(), String> {
    let mut left: Vec<&Message> = Vec::new();
    let may_cut = items
        .iter()
        .any(|item| matches!(item.outcome, Outcome::Cut(_) | Outcome::Early | Outcome::Closed));
    for seen in seen {
        match seen {
            Seen::Whole(message) if probe && message.target() == PROBE => {}
            _ if is_left(seen) => {}
            Seen::Whole(message) => left.push(message),
            Seen::Cut(_) if may_cut => {}
            Seen::Cut(_) | Seen::Ambiguous(..) => return Err(format!("the origin saw {seen}")),
        }
    }
    for item in items {
        let Some(expected) = &item.request else { continue };
        let matches =
            |got: &&Message| (got.method(), got.target()) == (expected.method(), expected.target());
        match left.iter().position(matches) {
            Some(at) => same(expected, left.remove(at), &ADDED_TO_REQUESTS)
                .map_err(|why| format!("at the origin: {why}"))?,
            None if matches!(item.outcome, Outcome::Early | Outcome::Left) => {}
            None => {
                let missing = format!("{} {}", expected.method(), expected.target());
                return Err(format!(
                    "the origin did not see {missing}; it saw {}",
                    list_seen(seen)
                ));
            }
        }
    }
    match left.first() {
        None => Ok(()),
        Some(message) => Err(format!("the origin also saw {}", Seen::Whole((*message).clone()))),
    }
}

/// Returns whether the client of this request has left. Such a request may arrive during any later
/// case.
fn is_left(seen: &Seen) -> bool {
    match seen {
        Seen::Whole(message) => message.target() == LEFT,
        Seen::Cut(bytes) => bytes.windows(LEFT.len()).any(|target| target == LEFT.as_bytes()),
        Seen::Ambiguous(..) => false,
    }
}

fn list_seen(seen: &[Seen]) -> String {
    seen.iter().map(Seen::to_string).collect::<Vec<_>>().join("; ")
}
