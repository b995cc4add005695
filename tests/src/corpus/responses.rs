//! Reads the responses on a client connection. The order of their requests is unknown.

use std::collections::HashSet;

use crate::strict::{self, Message, RequestContext};

/// Checks that every response at the client has one meaning. The last one may be cut.
///
/// It is unknown which responses the program made itself, and which request each of the others
/// belongs to: pipelined requests may reach the origin in any order. The program's own responses
/// have no Via. One interpretation that fits is enough, and its complete responses are returned.
///
/// # Errors
/// Returns the ambiguity in one of the interpretations, if none fits.
pub(crate) fn read_responses(
    received: &[u8],
    requests: &[RequestContext],
) -> Result<Vec<Message>, String> {
    let mut kinds: Vec<(RequestContext, usize)> = Vec::new();
    for one in requests {
        match kinds.iter_mut().find(|(kind, _)| kind == one) {
            Some((_, count)) => *count += 1,
            None => kinds.push((one.clone(), 1)),
        }
    }
    let mut left = kinds.iter().map(|(_, count)| *count).collect();
    let mut interpretations = Interpretations { received, kinds: &kinds, failed: HashSet::new() };
    let mut responses = interpretations.fit(0, &mut left)?;
    responses.reverse();
    Ok(responses)
}

/// The possible interpretations of the responses at a client.
struct Interpretations<'a> {
    received: &'a [u8],
    /// The different requests, each with its count.
    kinds: &'a [(RequestContext, usize)],
    /// Positions without a fitting interpretation, each with the remaining requests of every kind.
    /// Without this table the time would be exponential.
    failed: HashSet<(usize, Vec<usize>)>,
}

impl Interpretations<'_> {
    /// Returns the responses from `at` on, the last one first, with `left` remaining requests of
    /// each kind.
    fn fit(&mut self, at: usize, left: &mut Vec<usize>) -> Result<Vec<Message>, String> {
        let rest = &self.received[at..];
        if rest.is_empty() {
            return Ok(Vec::new());
        }
        let mut ambiguity = String::from("more responses than requests");
        if self.failed.contains(&(at, left.clone())) {
            return Err(ambiguity);
        }
        let head = rest.windows(4).position(|four| four == b"\r\n\r\n").unwrap_or(rest.len());
        let own = !rest[..head].windows(6).any(|six| six == b"\r\nVia:");
        let requests = self.kinds.iter().enumerate().filter(|(kind, _)| left[*kind] > 0);
        let requests = requests.map(|(kind, (requests, _))| (requests.clone(), Some(kind)));
        let own = ["GET", "HEAD"]
            .iter()
            .filter(|_| own)
            .map(|method| (RequestContext::with(method), None));
        for (requests, kind) in requests.chain(own).collect::<Vec<_>>() {
            let result = match strict::response(rest, &requests, true) {
                // The bytes that follow are not HTTP.
                Ok(Some(message)) if message.status() == 101 => Ok(vec![message]),
                Ok(Some(message)) => {
                    let kind = kind.filter(|_| !message.interim());
                    kind.into_iter().for_each(|kind| left[kind] -= 1);
                    let later = self.fit(at + message.bytes, left);
                    kind.into_iter().for_each(|kind| left[kind] += 1);
                    later.map(|mut responses| {
                        responses.push(message);
                        responses
                    })
                }
                Ok(None) => Ok(Vec::new()),
                Err(ambiguity) => Err(ambiguity.0),
            };
            match result {
                Ok(responses) => return Ok(responses),
                Err(why) => ambiguity = why,
            }
        }
        self.failed.insert((at, left.clone()));
        Err(ambiguity)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn responses_may_come_in_any_order_that_fits() {
        let head = "HTTP/1.1 200 OK\r\nVia: 1.1 a\r\nContent-Length: 2\r\n\r\n";
        let own = "HTTP/1.1 400 Bad Request\r\nContent-Length: 2\r\n\r\nno";
        let requests = ["GET", "HEAD"].map(RequestContext::with);
        let check =
            |text: String| read_responses(text.as_bytes(), &requests).map(|read| read.len());
        assert_eq!(check(format!("{head}{head}ok")), Ok(2));
        assert_eq!(check(format!("{head}ok{head}{own}")), Ok(3));
        assert!(check(format!("{head}ok{head}ok{own}")).is_err());
        assert!(check(format!("{head}{head}{head}")).is_err());
    }
}
