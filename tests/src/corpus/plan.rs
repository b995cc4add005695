//! A case with its placeholders replaced: the expectations of each request.

use super::case::{Case, Outcome};
use super::literal::{Literal, Role, Substitutions, escaped, fill};
use super::origin::default_response;
use crate::strict::{self, Message, RequestContext};

/// One request of a case, with its placeholders replaced.
pub(super) struct Item<'a> {
    pub(super) outcome: &'a Outcome,
    pub(super) context: RequestContext,
    /// The request that the origin must receive completely, if any.
    pub(super) request: Option<Message>,
    /// The origin's response, if it is not the default one.
    pub(super) response: Option<Literal>,
    /// The interim responses and the final one that the client must receive from the origin.
    pub(super) responses: Vec<Message>,
}

/// Returns the expectations of a case.
pub(super) fn plan<'a>(
    case: &'a Case,
    substitutions: &Substitutions,
) -> Result<Vec<Item<'a>>, String> {
    let old = case.sent.iter().any(|line| line.ends_with("HTTP/1.0"));
    let mut seen = requests(case, substitutions)?.into_iter();
    let mut response = case.responses.iter();
    let mut received = case.received.iter();
    let mut items = Vec::new();
    for outcome in &case.outcomes {
        let request = if outcome.reaches() { seen.next() } else { None };
        if outcome.reaches() && request.is_none() {
            return Err("the case has no request that the origin must receive".to_owned());
        }
        let method = request.as_ref().map_or("GET", Message::method);
        let context = RequestContext { method: method.to_owned(), old };
        let response = if outcome.reaches() { response.next() } else { None };
        let response = response.map(|lines| fill(lines, substitutions, false)).transpose()?;
        let shown = if outcome.shows() { received.next() } else { None };
        let bytes = match (shown, &response) {
            (Some(lines), _) => fill(lines, substitutions, false)?.bytes(),
            (None, Some(response)) => response.bytes(),
            (None, None) => default_response(method, request.as_ref().map_or("", Message::target)),
        };
        let responses = if outcome.shows() { responses(&bytes, &context)? } else { Vec::new() };
        items.push(Item { outcome, context, request, response, responses });
    }
    if seen.next().is_some() || response.next().is_some() || received.next().is_some() {
        return Err("the case has more blocks than outcomes that use them".to_owned());
    }
    Ok(items)
}

/// Returns the requests that the origin must receive: the case's own blocks, or else the sent ones.
fn requests(case: &Case, substitutions: &Substitutions) -> Result<Vec<Message>, String> {
    let whole = |bytes: &[u8]| match strict::request(bytes) {
        Ok(Some(message)) => Ok(message),
        Ok(None) => Err(format!("the case expects an incomplete message: {}", escaped(bytes))),
        Err(ambiguity) => Err(format!("the case expects an ambiguous message: {ambiguity}")),
    };
    if !case.seen.is_empty() {
        let blocks = case.seen.iter();
        return blocks.map(|lines| whole(&fill(lines, substitutions, false)?.bytes())).collect();
    }
    let sent = fill(&case.sent, substitutions, false)?.bytes();
    let mut at = 0;
    let mut messages = Vec::new();
    for _ in case.outcomes.iter().filter(|outcome| outcome.reaches()) {
        let message = whole(&sent[at..])?;
        at += message.bytes;
        messages.push(message);
    }
    Ok(messages)
}

fn responses(bytes: &[u8], context: &RequestContext) -> Result<Vec<Message>, String> {
    let mut at = 0;
    let mut messages = Vec::new();
    loop {
        match strict::response(&bytes[at..], context, true) {
            Ok(Some(message)) => {
                at += message.bytes;
                let last = !message.interim();
                messages.push(message);
                if last {
                    return Ok(messages);
                }
            }
            Ok(None) => return Err("the case expects an incomplete response".to_owned()),
            Err(ambiguity) => {
                return Err(format!("the case expects an ambiguous response: {ambiguity}"));
            }
        }
    }
}

/// Checks a case of the corpus itself. A case that refuses a message that the strict parser accepts
/// must mark it as valid, so that docs/refused.md lists it.
///
/// # Errors
/// Returns the error in the case.
pub fn check(case: &Case) -> Result<(), String> {
    let substitutions = |role| Substitutions {
        host: "127.0.0.1:1".to_owned(),
        role,
        own: "127.0.0.1:2".to_owned(),
        via: "millrace".to_owned(),
    };
    for role in [Role::Boost, Role::Forward].into_iter().filter(|role| case.runs(*role)) {
        plan(case, &substitutions(role))?;
    }
    let substitutions = substitutions(Role::Boost);
    let sent = fill(&case.sent, &substitutions, false)?.bytes();
    let refused = match &case.outcomes[..] {
        [Outcome::Refused(own) | Outcome::Cut(own) | Outcome::Served(own)] => own.status >= 400,
        _ => false,
    };
    let plain = matches!(strict::request(&sent), Ok(Some(message)) if message.bytes == sent.len());
    if refused && plain && case.valid.is_none() {
        return Err(
            "the strict parser accepts the refused message, and the case has no `valid: ROW`"
                .to_owned(),
        );
    }
    let unrefused = case.outcomes.iter().all(|outcome| *outcome == Outcome::Forwarded);
    if case.valid.is_some() && unrefused {
        return Err("marked `valid`, but the message is not refused".to_owned());
    }
    Ok(())
}
