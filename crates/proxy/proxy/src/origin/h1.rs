//! HTTP/1 on an origin connection: which connection outlives its response, whether a request may be
//! repeated, and what the header of a response means.

use millrace_http1::{
    Fields, Framing, Http1Header, Name, answer_framing, connection_options, items, upgrade_accepted,
};

use crate::exchange::{Exchange, Reason};
use crate::origin::INTERIM_MAX;

/// What a response header means for the exchange.
pub(crate) enum HeaderOutcome {
    Interim,
    Final(Framing),
}

/// Reads the status and framing of the response header that just came.
///
/// # Errors
/// The reason why the response cannot be used.
pub(crate) fn classify_header(exchange: &mut Exchange) -> Result<HeaderOutcome, Reason> {
    let Exchange { transaction, response: answer, request, .. } = exchange;
    let framing =
        answer_framing(answer, request.method()).map_err(|_| Reason::MalformedResponseFraming)?;
    match answer.status() {
        101 if transaction.upgrade_sent && upgrade_accepted(request, answer) => {
            Ok(HeaderOutcome::Final(Framing::None))
        }
        101 => Err(Reason::UpgradeUnrequested),
        100..=199 if transaction.interim_count >= INTERIM_MAX => Err(Reason::TooManyInterim),
        100..=199 => {
            transaction.interim_count += 1;
            Ok(HeaderOutcome::Interim)
        }
        _ => Ok(HeaderOutcome::Final(framing)),
    }
}

/// Whether the connection of an exchange outlives its response. The response may not begin before
/// the last byte of the request body was sent: an origin that never reads the body would take
/// the rest of it for a request, and the next client on the connection would get the response.
/// Without a body the engine may report later that the request was sent; the connection serves
/// no other request before. Nor may the response be ambiguous: what follows the end of its header
/// here may be a part of the header to its origin.
pub(crate) fn is_persistent(exchange: &Exchange) -> bool {
    exchange.has_received_request()
        && exchange.transaction.early_bytes == 0
        && exchange.transaction.framing != Framing::UntilClose
        && !exchange.transaction.is_ambiguous
        && !closes_after_response(exchange)
        && !authenticates_connection(&exchange.response)
        && !authenticates_connection(&exchange.request)
}

/// Whether the origin closes the connection after its response (RFC 9112 section 9.6).
pub(crate) fn closes_after_response(exchange: &Exchange) -> bool {
    let response = &exchange.response;
    !connection_options(response).is_persistent(response.version())
}

/// RFC 9110 section 9.2.2: whether a request may be sent again after an origin had all of it.
pub(crate) fn may_repeat(exchange: &Exchange) -> bool {
    let is_held = matches!(exchange.framing, Framing::None | Framing::Length(0));
    exchange.request.method().is_idempotent() && is_held
}

/// Whether the connection that a message came on is bound to its sender: the schemes that
/// authenticate a connection instead of a request (RFC 4559 section 6).
fn authenticates_connection(fields: &Fields) -> bool {
    let names = [Name::Authorization, Name::WwwAuthenticate];
    if names.iter().all(|&name| fields.find(name).is_none()) {
        return false;
    }
    names.into_iter().flat_map(|name| fields.values(name)).any(|value| {
        items(value).any(|challenge| {
            let mut words = challenge.split(|byte| byte.is_ascii_whitespace());
            let scheme = words.next().unwrap_or_default();
            scheme.eq_ignore_ascii_case(b"ntlm") || scheme.eq_ignore_ascii_case(b"negotiate")
        })
    })
}

/// The writer of a request's header.
pub(crate) fn header(out: &mut Vec<u8>) -> Http1Header<'_> {
    Http1Header::new(out)
}
