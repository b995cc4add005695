//! A case with its placeholders replaced: the expectations of each request.

use super::case::{Case, Outcome};
use super::literal::{Literal, Role, Substitutions, escaped, fill};
use super::origin::default_response;
use crate::strict::{self, Message, RequestContext};

/// One request of a case, with its placeholders replaced.
pub(super) struct Item<'a> {
    pub(super) outcome: &'a Outcome,
    pub(super) asked: RequestContext,
    /// The request that the origin must receive, if it must receive all of it.
    pub(super) request: Option<Message>,
    /// The origin's response, if it is not the default one.
    pub(super) said: Option<Literal>,
    /// The interim responses and the final one that the client must receive from the origin.
    pub(super) answers: Vec<Message>,
}

/// Returns the expectations of a case.
pub(super) fn plan<'a>(case: &'a Case, place: &Substitutions) -> Result<Vec<Item<'a>>, String> {
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
        let asked = RequestContext { method: method.to_owned(), old };
        let said = if outcome.reaches() { said.next() } else { None };
        let said = said.map(|lines| fill(lines, place, false)).transpose()?;
        let shown = if outcome.shows() { received.next() } else { None };
        let bytes = match (shown, &said) {
            (Some(lines), _) => fill(lines, place, false)?.bytes(),
            (None, Some(said)) => said.bytes(),
            (None, None) => default_response(method, request.as_ref().map_or("", Message::target)),
        };
        let answers = if outcome.shows() { answers(&bytes, &asked)? } else { Vec::new() };
        items.push(Item { outcome, asked, request, said, answers });
    }
    if seen.next().is_some() || said.next().is_some() || received.next().is_some() {
        return Err("the case has more blocks than outcomes that use them".to_owned());
    }
    Ok(items)
}

/// Returns the requests that the origin must receive: the case's own blocks, or else the sent ones.
fn requests(case: &Case, place: &Substitutions) -> Result<Vec<Message>, String> {
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

fn answers(bytes: &[u8], asked: &RequestContext) -> Result<Vec<Message>, String> {
    let mut at = 0;
    let mut messages = Vec::new();
    loop {
        match strict::response(&bytes[at..], asked, true) {
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

/// Checks the corpus itself. A case that refuses a message that the strict parser accepts must mark
/// it as valid, so that docs/refused.md lists it.
///
/// # Errors
/// Returns the error in the case.
pub fn check(case: &Case) -> Result<(), String> {
    let place = |role| Substitutions {
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
    let refused = match &case.outcomes[..] {
        [Outcome::Refused(own) | Outcome::Cut(own) | Outcome::Served(own)] => own.status >= 400,
        _ => false,
    };
    let plain = matches!(strict::request(&sent), Ok(Some(message)) if message.bytes == sent.len());
    if refused && plain && case.valid.is_none() {
        return Err("a plain message is refused without a row (`valid: ROW`)".to_owned());
    }
    let unrefused = case.outcomes.iter().all(|outcome| *outcome == Outcome::Forwarded);
    if case.valid.is_some() && unrefused {
        return Err("marked `valid`, which only a refused message needs".to_owned());
    }
    Ok(())
}
