//! The checks of a finished connection. They hold for all inputs.

use super::actors::{Actors, OriginExchanges};
use super::script::{Script, sent_bytes};
use crate::corpus::compare::{ADDED_TO_REQUESTS, ADDED_TO_RESPONSES};
use crate::corpus::literal::{Role, escaped};
use crate::corpus::mutant::check_nothing_more;
use crate::corpus::responses::read_responses;
use crate::corpus::valid;
use crate::strict::{self, Field, Message, RequestContext};

/// Fields whose values the program writes itself.
const OWN_WORDS: [&str; 9] = [
    "connection",
    "content-length",
    "host",
    "keep-alive",
    "max-forwards",
    "te",
    "transfer-encoding",
    "upgrade",
    "trailer",
];

/// Compares what each side saw with what the other side sent.
pub(super) fn check(script: &Script, actors: &Actors) -> Result<(), String> {
    let sent = sent_bytes(&script.client);
    // Nothing is checked if there may be a tunnel, because its content may be anything.
    if script.role == Role::Forward && sent.windows(8).any(|it| it == b"CONNECT ") {
        return Ok(());
    }
    if let Some((bytes, ambiguity)) = actors.ambiguous.first() {
        return Err(format!("AMBIGUOUS at the origin ({ambiguity}): {}", escaped(bytes)));
    }
    for message in &actors.seen {
        check_request(message, &actors.seen, &sent)?;
    }
    let reading = valid::read(&sent, script.role);
    if reading.all {
        check_nothing_more(&reading.requests, &actors.seen).map_err(|(_, why)| why)?;
    }
    // An early response may belong to a request of which only a part arrived. Such a request is not
    // in `actors.seen`, so the requests are those that have responses.
    let requests: Vec<RequestContext> =
        actors.exchanges.iter().flat_map(|exchanges| exchanges.requests.clone()).collect();
    let responses = read_responses(&actors.received, &requests).map_err(|ambiguity| {
        format!("AMBIGUOUS at the client ({ambiguity}): {}", escaped(&actors.received))
    })?;
    let clean: Option<Vec<Message>> = actors
        .exchanges
        .iter()
        .map(expected_responses)
        .collect::<Option<Vec<_>>>()
        .map(|responses| responses.concat());
    let refused =
        responses.first().filter(|response| response.status() == 400 && !has_via(response));
    if let (Some(response), Some(first)) = (refused, reading.requests.first())
        && !first.odd
    {
        let why = String::from_utf8_lossy(&response.body).into_owned();
        return Err(format!("{} {} is valid, but was refused: {why}", first.method, first.target));
    }
    let forwarded = responses.iter().filter(|response| has_via(response));
    for response in forwarded {
        check_response(response, &actors.exchanges, clean.as_deref())?;
    }
    Ok(())
}

/// Returns whether the response has Via. The program's own responses have none.
fn has_via(response: &Message) -> bool {
    response.fields.iter().any(|field| field.is("via"))
}

/// Checks that a request consists of what the client sent, and that it is not sent twice unless
/// that is allowed.
fn check_request(message: &Message, seen: &[Message], sent: &[u8]) -> Result<(), String> {
    let (method, target) = (message.method(), message.target());
    let times =
        |words: &str| sent.windows(words.len()).filter(|it| *it == words.as_bytes()).count();
    let same_method = seen.iter().filter(|other| other.method() == method).count();
    if !matches!(method, "GET" | "HEAD" | "OPTIONS" | "TRACE" | "PUT" | "DELETE")
        && same_method > times(&format!("{method} "))
    {
        return Err(format!("{method} arrived {same_method} times"));
    }
    let encoded = percent_encoded(sent);
    let has = |words: &str| encoded.windows(words.len()).any(|it| it == words.as_bytes());
    let known = target == "/" || target == "*" || has(target) || has(&target[1..]);
    if times(&format!("{method} ")) == 0 || !known {
        return Err(format!("no client requested {method} {target}"));
    }
    if let Some(field) = made_up(&message.fields, &[sent], &ADDED_TO_REQUESTS) {
        return Err(format!("a field at the origin that no client sent: {field}"));
    }
    match is_within(&message.body, sent) {
        true => Ok(()),
        false => Err(format!("a body that no client sent: {}", escaped(&message.body))),
    }
}

/// Returns the sent bytes, with bytes from 0x80 percent-encoded as in a forwarded target.
fn percent_encoded(sent: &[u8]) -> Vec<u8> {
    let encoded = sent.iter().flat_map(|byte| match byte {
        0x80.. => format!("%{byte:02X}").into_bytes(),
        _ => vec![*byte],
    });
    encoded.collect()
}

/// Returns the responses of an origin connection if each has one meaning and all are complete.
fn expected_responses(exchanges: &OriginExchanges) -> Option<Vec<Message>> {
    let mut rest = &exchanges.sent_bytes[..];
    let mut responses = Vec::new();
    for requests in &exchanges.requests {
        if rest.is_empty() && exchanges.ends {
            break;
        }
        loop {
            let message = strict::response(rest, requests, true).ok().flatten()?;
            rest = &rest[message.bytes..];
            let interim = message.interim();
            responses.push(message);
            if !interim {
                break;
            }
        }
    }
    rest.is_empty().then_some(responses)
}

/// Checks that the origin sent this response. If every response of the origin has one meaning
/// (`clean`), one of them must have the same status and body. Otherwise the body must at least
/// consist of bytes that the origin sent.
fn check_response(
    response: &Message,
    exchanges: &[OriginExchanges],
    clean: Option<&[Message]>,
) -> Result<(), String> {
    let wrong =
        |why: String| Err(format!("a response that the origin did not send, {why}: {response:?}"));
    let sources: Vec<_> = exchanges.iter().map(|exchanges| &exchanges.sent_bytes[..]).collect();
    if let Some(field) = made_up(&response.fields, &sources, &ADDED_TO_RESPONSES) {
        return wrong(format!("the field {field}"));
    }
    let is = |of: &Message| of.status() == response.status() && of.body == response.body;
    match clean {
        Some(clean) if clean.iter().any(is) => Ok(()),
        Some(_) => wrong("its status or body".to_owned()),
        None if sources.iter().any(|source| is_within(&response.body, source)) => Ok(()),
        None => wrong("its body".to_owned()),
    }
}

/// Returns the first field that neither a source nor the program wrote.
fn made_up(fields: &[Field], sources: &[&[u8]], added: &[&str]) -> Option<String> {
    let stands = |field: &Field| {
        let name = field.name.as_bytes();
        sources.iter().any(|source| {
            let named = source.windows(name.len()).any(|it| it.eq_ignore_ascii_case(name));
            named && is_within(&field.value, source)
        })
    };
    let own = |field: &Field| added.iter().chain(&OWN_WORDS).any(|name| field.is(name));
    let strange = fields.iter().find(|field| !own(field) && !stands(field))?;
    Some(format!("{}: {}", strange.name, escaped(&strange.value)))
}

/// Returns whether the bytes of `part` occur in `whole` in this order, with any bytes between them
/// (chunk sizes, folds). A space of `part` may match a tab, because a fold becomes a space.
fn is_within(part: &[u8], whole: &[u8]) -> bool {
    let mut whole = whole.iter();
    part.iter().all(|byte| whole.any(|other| other == byte || (*byte == b' ' && *other == b'\t')))
}

/// These tests prove that the checks can fail.
#[cfg(test)]
mod tests {
    use millrace_sim::{Faults, World};

    use super::*;

    /// Two requests as a client sends them, without the fields that a proxy adds.
    const SENT: &[u8] = b"\0POST /a HTTP/1.1\r\nHost: a\r\nX: 1\r\nContent-Length: 2\r\n\r\nab\
                          GET /b HTTP/1.1\r\nHost: a\r\n\r\n";
    const ANSWER: &str = "HTTP/1.1 200 OK\r\nVia: 1.1 m\r\nContent-Length: 4\r\n\r\nyes!";

    /// Runs the check for an origin that saw the requests `seen` and a client that received the
    /// bytes `received`. The origin sent the same response, with a body of four bytes, to each
    /// request.
    fn sent_bytes(seen: &[&str], received: &str) -> Result<(), String> {
        let world = World::new(1, Faults::None);
        let script = Script::parse(SENT);
        let mut actors = Actors::new(&world, &script);
        for text in seen {
            match strict::request(text.as_bytes()) {
                Ok(message) => actors.seen.push(message.expect("a whole request")),
                Err(ambiguity) => actors.ambiguous.push((text.as_bytes().to_vec(), ambiguity)),
            }
        }
        let sent_bytes = "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nyes!".repeat(seen.len());
        let requests = actors.seen.iter().map(|seen| RequestContext::with(seen.method())).collect();
        actors.exchanges.push(OriginExchanges {
            requests,
            sent_bytes: sent_bytes.into_bytes(),
            ends: false,
        });
        actors.received = received.as_bytes().to_vec();
        check(&script, &actors)
    }

    #[test]
    fn only_what_a_proxy_may_do_passes() {
        let post = "POST /a HTTP/1.1\r\nHost: a\r\nX: 1\r\nContent-Length: 2\r\n\r\nab";
        let get = "GET /b HTTP/1.1\r\nHost: a\r\n\r\n";
        assert_eq!(sent_bytes(&[], ""), Ok(()));
        assert_eq!(sent_bytes(&[post, get], &ANSWER.repeat(2)), Ok(()));
        assert_eq!(sent_bytes(&[post, get, get], ANSWER), Ok(()));
        let wrong = |seen: &[&str], received: &str, why: &str| {
            let sent_bytes = sent_bytes(seen, received).expect_err(why);
            assert!(sent_bytes.contains(why), "{sent_bytes} instead of {why}");
        };
        wrong(&[post, post], "", "arrived 2 times");
        wrong(&[&post.replace("POST", "PUT")], "", "no client requested PUT /a");
        wrong(&[&get.replace("/b", "/c")], "", "no client requested GET /c");
        wrong(&[&get.replace("/b", "/a")], "", "the origin received a request that no client sent");
        wrong(&[&get.replace("\r\n\r\n", "\r\nY: 1\r\n\r\n")], "", "a field at the origin");
        wrong(&[&post.replace("\r\nab", "\r\nzz")], "", "a body that no client sent");
        wrong(&[&get.replace("Host:", "Host :")], "", "AMBIGUOUS at the origin");
        wrong(&[get], &ANSWER.replace("Length: 4", "Length: +4"), "AMBIGUOUS at the client");
        wrong(&[get], &ANSWER.repeat(2), "more responses than requests");
        wrong(&[get], &ANSWER.replace("yes!", "nope"), "its status or body");
        wrong(&[get], &ANSWER.replace("200", "404"), "its status or body");
        wrong(&[get], &ANSWER.replace("Via", "Q: 1\r\nVia"), "the field Q");
        let refused = ANSWER.replace("200", "400").replace("Via: 1.1 m\r\n", "");
        wrong(&[], &refused, "is valid, but was refused");
    }
}
