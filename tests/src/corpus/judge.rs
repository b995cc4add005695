//! Runs one case in a lane and compares everything that was seen with what must be.

use super::case::{Case, Outcome, Own};
use super::client::{Client, Pace};
use super::lane::Lane;
use super::literal::{ANY, Literal, Place, Role, Step, escaped, fill};
use super::origin::{Seen, default_answer};
use crate::strict::{self, Asked, Field, Framing, Message};

/// One request of a case, filled in for a lane.
struct Item<'a> {
    outcome: &'a Outcome,
    asked: Asked,
    /// What the origin must see of it, if it must see all of it.
    request: Option<Message>,
    /// What the origin says to it, if it is not the default answer.
    said: Option<Literal>,
    /// The interim answers and the final one that the client must see, if they are the origin's.
    answers: Vec<Message>,
}

/// Fields that the program adds of its own accord; a case that names one says what it must hold.
const ADDED_TO_REQUESTS: [&str; 6] =
    ["via", "forwarded", "x-forwarded-for", "x-forwarded-proto", "x-forwarded-host", "connection"];
const ADDED_TO_ANSWERS: [&str; 3] = ["via", "date", "connection"];

/// Fields that may stand elsewhere than where they were received: RFC 9110 section 7.2 wants Host
/// first, and what is for one hop is written anew for the next.
const MOVED: [&str; 3] = ["host", "te", "upgrade"];

/// The request that proves, after a case, that its connection still stands between two messages.
const PROBE: &str = "/the-next-request";

/// Runs a case.
///
/// # Errors
/// Says what differed from what must be.
pub fn run(case: &Case, lane: &Lane, pace: Pace) -> Result<(), String> {
    let verdict = talk(case, lane, pace);
    if verdict.is_err() {
        // What is left of a failed case must not be taken for a part of the next.
        let _ = lane.origin.settle();
        lane.origin.begin(Vec::new());
    }
    verdict
}

fn talk(case: &Case, lane: &Lane, pace: Pace) -> Result<(), String> {
    let place = lane.place();
    let sent = fill(&case.sent, &place, true)?;
    let items = plan(case, &place)?;
    let script = items.iter().filter_map(|item| {
        let target = item.request.as_ref()?.target().to_owned();
        Some((target, item.said.clone()?))
    });
    // An early answer is given at the head: its request may have no expected whole.
    let late = lane.origin.begin(script.collect());
    if let Some(late) = late.iter().find(|seen| !matches!(seen, Seen::Cut(_))) {
        return Err(format!("something reached the origin after an earlier case's end: {late}"));
    }
    let mut client = Client::connect(lane.address)?;
    client.send(&sent.steps, pace, &lane.origin)?;
    let mut closes = sent.steps.contains(&Step::End);
    for (index, item) in items.iter().enumerate() {
        let closed = receive(item, &mut client).map_err(|why| format!("item {}: {why}", index + 1));
        closes |= closed?;
    }
    let tunnel = case.outcomes.contains(&Outcome::Tunnel);
    let early = case.outcomes.contains(&Outcome::Early);
    let probe = match (closes, early) {
        (true, _) => false,
        (false, false) => probe(&mut client, lane, tunnel).map(|()| true)?,
        // Whether the connection goes on depends on whether the rest of the body was read in time.
        (false, true) => {
            client.finish();
            false
        }
    };
    let rest = client.rest()?;
    if !rest.is_empty() {
        return Err(format!("bytes after the last answer: {}", escaped(&rest)));
    }
    compare_seen(&items, probe, &lane.origin.settle()?)?;
    lane.origin.begin(Vec::new());
    Ok(())
}

/// Fills in what is expected.
fn plan<'a>(case: &'a Case, place: &Place) -> Result<Vec<Item<'a>>, String> {
    let old = case.sent.iter().any(|line| line.ends_with("HTTP/1.0"));
    let mut seen = requests(case, place)?.into_iter();
    let mut said = case.said.iter();
    let mut received = case.received.iter();
    let mut items = Vec::new();
    for outcome in &case.outcomes {
        let request = if outcome.reaches() { seen.next() } else { None };
        if outcome.reaches() && request.is_none() {
            return Err("the case does not say what the origin must see".to_owned());
        }
        let method = request.as_ref().map_or("GET", Message::method);
        let asked = Asked { method: method.to_owned(), old };
        let said = if outcome.reaches() { said.next() } else { None };
        let said = said.map(|lines| fill(lines, place, false)).transpose()?;
        let shown = if outcome.shows() { received.next() } else { None };
        let bytes = match (shown, &said) {
            (Some(lines), _) => fill(lines, place, false)?.bytes(),
            (None, Some(said)) => said.bytes(),
            (None, None) => default_answer(method, request.as_ref().map_or("", Message::target)),
        };
        let answers = if outcome.shows() { answers(&bytes, &asked)? } else { Vec::new() };
        items.push(Item { outcome, asked, request, said, answers });
    }
    if seen.next().is_some() || said.next().is_some() || received.next().is_some() {
        return Err("the case has more blocks than outcomes that use them".to_owned());
    }
    Ok(items)
}

/// What the origin must see: the case's own blocks, or else what was sent.
fn requests(case: &Case, place: &Place) -> Result<Vec<Message>, String> {
    let whole = |bytes: &[u8]| match strict::request(bytes) {
        Ok(Some(message)) => Ok(message),
        Ok(None) => Err(format!("the case expects half a message: {}", escaped(bytes))),
        Err(doubt) => Err(format!("the case expects a doubtful message: {doubt}")),
    };
    if !case.seen.is_empty() {
        let blocks = case.seen.iter();
        return blocks.map(|lines| whole(&fill(lines, place, false)?.bytes())).collect();
    }
    let sent = fill(&case.sent, place, false)?.bytes();
    let mut at = 0;
    let mut messages = Vec::new();
    for _ in case.outcomes.iter().filter(|outcome| outcome.reaches()) {
        let message = whole(&sent[at..])?;
        at += message.bytes;
        messages.push(message);
    }
    Ok(messages)
}

fn answers(bytes: &[u8], asked: &Asked) -> Result<Vec<Message>, String> {
    let mut at = 0;
    let mut messages = Vec::new();
    loop {
        match strict::answer(&bytes[at..], asked, true) {
            Ok(Some(message)) => {
                at += message.bytes;
                let last = !message.interim();
                messages.push(message);
                if last {
                    return Ok(messages);
                }
            }
            Ok(None) => return Err("the case expects half an answer".to_owned()),
            Err(doubt) => return Err(format!("the case expects a doubtful answer: {doubt}")),
        }
    }
}

/// Receives what one request comes to; gives whether the connection must end with it.
fn receive(item: &Item<'_>, client: &mut Client) -> Result<bool, String> {
    match item.outcome {
        Outcome::Forwarded | Outcome::Early => {
            let mut closes = false;
            for expected in &item.answers {
                let got = client.answer(&item.asked)?;
                same(expected, &got, &ADDED_TO_ANSWERS)
                    .map_err(|why| format!("the client's answer: {why}"))?;
                closes = got.closes() || got.framing == Framing::UntilClose;
            }
            Ok(closes)
        }
        Outcome::Refused(own) | Outcome::Cut(own) => {
            let answer = own_answer(own, client, &item.asked)?;
            if answer.closes() { Ok(true) } else { Err("a refusal without a close".to_owned()) }
        }
        Outcome::Served(own) | Outcome::Answered(own) => {
            Ok(own_answer(own, client, &item.asked)?.closes())
        }
        Outcome::Tunnel => {
            let got = client.answer(&Asked::with("CONNECT"))?;
            if got.status() == 200 { Ok(false) } else { Err(format!("no tunnel: {got:?}")) }
        }
        Outcome::Aborted => {
            let rest = client.rest()?;
            match strict::answer(&rest, &item.asked, true) {
                Ok(None) => Ok(true),
                Ok(Some(_)) => Err(format!("a whole answer at the client: {}", escaped(&rest))),
                Err(doubt) => Err(format!("a doubtful answer at the client: {doubt}")),
            }
        }
        Outcome::Closed => match &client.rest()?[..] {
            [] => Ok(true),
            rest => Err(format!("an answer at the client: {}", escaped(rest))),
        },
        Outcome::Upgraded(text) => {
            for expected in &item.answers {
                let got = client.answer(&item.asked)?;
                same(expected, &got, &ADDED_TO_ANSWERS)?;
            }
            let got = client.bytes(text.len())?;
            client.finish();
            if got == text.as_bytes() {
                Ok(true)
            } else {
                Err(format!("through the tunnel came: {}", escaped(&got)))
            }
        }
    }
}

fn own_answer(own: &Own, client: &mut Client, asked: &Asked) -> Result<Message, String> {
    let mut answer = client.answer(asked)?;
    while answer.interim() {
        answer = client.answer(asked)?;
    }
    let body = String::from_utf8_lossy(&answer.body).into_owned();
    if answer.status() != own.status {
        return Err(format!("{} instead of {}: {}", answer.status(), own.status, body.trim()));
    }
    let said = body.to_lowercase().contains(&own.words.to_lowercase());
    if asked.method != "HEAD" && !said {
        return Err(format!("the reason lacks `{}`: {}", own.words, body.trim()));
    }
    Ok(answer)
}

/// The next request on the connection, which must get the next answer, or the end of the tunnel.
fn probe(client: &mut Client, lane: &Lane, tunnel: bool) -> Result<(), String> {
    let lines = [
        format!("GET {{{PROBE}}} HTTP/1.1"),
        "Host: {host}".to_owned(),
        "Connection: close".to_owned(),
        String::new(),
    ];
    let probe = fill(&lines, &lane.place(), !tunnel)?;
    client.send(&probe.steps, Pace::Whole, &lane.origin)?;
    let got = client.answer(&Asked::with("GET")).map_err(|why| format!("afterwards: {why}"))?;
    if got.body != format!("GET {PROBE}").as_bytes() {
        let body = escaped(&got.body);
        return Err(format!("the next request got another's answer: {body}"));
    }
    if tunnel {
        client.finish();
    }
    Ok(())
}

/// Compares what the origin saw with what it must see. Requests on different connections may
/// overtake each other; what counts is that each is there once, and nothing else is.
fn compare_seen(items: &[Item<'_>], probe: bool, seen: &[Seen]) -> Result<(), String> {
    let mut left: Vec<&Message> = Vec::new();
    let may_cut = items
        .iter()
        .any(|item| matches!(item.outcome, Outcome::Cut(_) | Outcome::Early | Outcome::Closed));
    for seen in seen {
        match seen {
            Seen::Whole(message) if probe && message.target() == PROBE => {}
            Seen::Whole(message) => left.push(message),
            Seen::Cut(_) if may_cut => {}
            Seen::Cut(_) | Seen::Doubtful(..) => return Err(format!("the origin saw {seen}")),
        }
    }
    for item in items {
        let Some(expected) = &item.request else { continue };
        let matches =
            |got: &&Message| (got.method(), got.target()) == (expected.method(), expected.target());
        match left.iter().position(matches) {
            Some(at) => same(expected, left.remove(at), &ADDED_TO_REQUESTS)
                .map_err(|why| format!("at the origin: {why}"))?,
            None if *item.outcome == Outcome::Early => {}
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

fn list_seen(seen: &[Seen]) -> String {
    seen.iter().map(Seen::to_string).collect::<Vec<_>>().join("; ")
}

/// Whether a message is what was expected, but for fields that the program adds.
fn same(expected: &Message, got: &Message, added: &[&str]) -> Result<(), String> {
    let starts = match (&expected.start, &got.start) {
        (a, b) if a == b => true,
        // The reason phrase means nothing (RFC 9112 section 4) and may be replaced.
        _ => got.status() != 0 && got.status() == expected.status(),
    };
    if !starts {
        return Err(format!("{:?} instead of {:?}", got.start, expected.start));
    }
    // An answer that ends with its connection may go on in chunks: then nothing need be closed.
    let chunked = (expected.framing, got.framing) == (Framing::UntilClose, Framing::Chunked);
    for name in added {
        let named = expected.fields.iter().any(|field| field.is(name));
        if named && !(chunked && *name == "connection") {
            compare_values(name, &expected.fields, &got.fields)?;
        }
    }
    for name in MOVED {
        compare_values(name, &expected.fields, &got.fields)?;
    }
    let plain = |field: &&Field| {
        let own_place = added.iter().chain(&MOVED).all(|name| !field.is(name));
        own_place && !frames(field)
    };
    let expected_fields: Vec<_> = expected.fields.iter().filter(plain).collect();
    let got_fields: Vec<_> = got.fields.iter().filter(plain).collect();
    if expected_fields != got_fields {
        return Err(format!("fields {} instead of {}", list(&got_fields), list(&expected_fields)));
    }
    if expected.framing != got.framing && !chunked {
        return Err(format!("framing {:?} instead of {:?}", got.framing, expected.framing));
    }
    if expected.framing == Framing::None {
        compare_values("content-length", &expected.fields, &got.fields)?;
    }
    if expected.body != got.body {
        return Err(format!("body {} for {}", escaped(&got.body), escaped(&expected.body)));
    }
    if expected.trailers != got.trailers {
        return Err(format!("trailers {:?} instead of {:?}", got.trailers, expected.trailers));
    }
    Ok(())
}

fn frames(field: &Field) -> bool {
    field.is("content-length") || field.is("transfer-encoding")
}

fn compare_values(name: &str, expected: &[Field], got: &[Field]) -> Result<(), String> {
    let values = |fields: &[Field]| -> Vec<String> {
        let named = fields.iter().filter(|field| field.is(name));
        named.map(|field| escaped(&field.value)).collect()
    };
    let (mut expected, mut got) = (values(expected), values(got));
    if name == "connection" {
        // Options have no case.
        for value in expected.iter_mut().chain(&mut got) {
            value.make_ascii_lowercase();
        }
    }
    let any = escaped(ANY.as_bytes());
    let alike = |(expected, got): (&String, &String)| match expected.split_once(&any) {
        Some((before, after)) => {
            let rest = got.strip_prefix(before).and_then(|rest| rest.strip_suffix(after));
            rest.is_some_and(|rest| !rest.is_empty())
        }
        None => expected == got,
    };
    if expected.len() == got.len() && expected.iter().zip(&got).all(alike) {
        Ok(())
    } else {
        Err(format!("{name}: {got:?} instead of {expected:?}"))
    }
}

fn list(fields: &[&Field]) -> String {
    let lines = fields.iter().map(|field| format!("{}: {}", field.name, escaped(&field.value)));
    format!("[{}]", lines.collect::<Vec<_>>().join("; "))
}

/// Checks the corpus itself: whoever writes that a message must be refused although the strict
/// parser accepts it must say that it is valid, so that it stands in docs/refused.md.
///
/// # Errors
/// Names what is said wrongly.
pub fn check(case: &Case) -> Result<(), String> {
    let place = |role| Place {
        host: "127.0.0.1:1".to_owned(),
        role,
        own: "127.0.0.1:2".to_owned(),
        via: "millrace".to_owned(),
    };
    for role in [Role::Boost, Role::Forward].into_iter().filter(|role| case.runs(*role)) {
        plan(case, &place(role))?;
    }
    let place = place(Role::Boost);
    let sent = fill(&case.sent, &place, false)?.bytes();
    let refused = matches!(case.outcomes[..], [Outcome::Refused(_)]);
    let plain = matches!(strict::request(&sent), Ok(Some(message)) if message.bytes == sent.len());
    if refused && plain && !case.valid {
        return Err("a plain message is refused, and the case is not marked `valid`".to_owned());
    }
    let unrefused = case.outcomes.iter().all(|outcome| *outcome == Outcome::Forwarded);
    if case.valid && unrefused {
        return Err("marked `valid`, which only a refused message needs".to_owned());
    }
    Ok(())
}
