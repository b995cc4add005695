//! HTTP/1 rules for origin connections: whether a connection persists after a response, whether a
//! request may be repeated, and how a response header continues the exchange.

use millrace_http1::{
    FieldName, Fields, Framing, Http1Header, connection_options, is_upgrade_accepted,
    response_framing, split_list,
};

use crate::exchange::{Exchange, Reason};
use crate::origin::INTERIM_MAX;

/// How a response header continues the exchange.
pub(crate) enum HeaderOutcome {
    /// The header of an interim response: another header follows.
    Interim,
    /// The header of the final response, and the framing of its body.
    Final(Framing),
}

/// Classifies the response header that was just received, and counts an interim response.
///
/// # Errors
/// The reason why the response cannot be used.
pub(crate) fn classify_header(exchange: &mut Exchange) -> Result<HeaderOutcome, Reason> {
    let Exchange { transaction, response, request, .. } = exchange;
    let framing = response_framing(response, request.method())
        .map_err(|_| Reason::MalformedResponseFraming)?;
    match response.status() {
        101 if transaction.upgrade_sent && is_upgrade_accepted(request, response) => {
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

/// Returns whether the origin connection of the exchange may serve another request.
///
/// It may not if the response began before the last byte of the request body was sent. An origin
/// that never reads the body would take the rest of it for a request, and the next client on the
/// connection would get the response to that. A request without a body needs no such check: the
/// engine may report the end of its send after the response has arrived, and the pool does not
/// reuse the connection before that report.
///
/// It may not if the response is ambiguous either, because the origin may regard the bytes after
/// its header as a part of the header.
pub(crate) fn is_persistent(exchange: &Exchange) -> bool {
    let has_no_body = matches!(exchange.framing, Framing::None | Framing::Length(0));
    // Bytes of a body in a file may still be unsent although all were received from the client.
    (has_no_body || exchange.upload.has_received_all())
        && exchange.transaction.early_bytes == 0
        && exchange.transaction.framing != Framing::UntilClose
        && !exchange.transaction.is_ambiguous
        && !closes_after_response(exchange)
        && !authenticates_connection(&exchange.response)
        && !authenticates_connection(&exchange.request)
}

/// Returns whether the origin closes the connection after its response (RFC 9112 section 9.6).
pub(crate) fn closes_after_response(exchange: &Exchange) -> bool {
    let response = &exchange.response;
    !connection_options(response).is_persistent(response.version())
}

/// Returns whether a request may be sent again after an origin received all of it. Its method has
/// to be idempotent (RFC 9110 section 9.2.2). It must have no body, because a body that was sent is
/// no longer in memory.
pub(crate) fn may_repeat(exchange: &Exchange) -> bool {
    let has_no_body = matches!(exchange.framing, Framing::None | Framing::Length(0));
    exchange.request.method().is_idempotent() && has_no_body
}

/// Returns whether a message binds its connection to the sender by a scheme that authenticates the
/// connection rather than the request (RFC 4559 section 6).
pub(super) fn authenticates_connection(fields: &Fields) -> bool {
    let names = [FieldName::Authorization, FieldName::WwwAuthenticate];
    if names.iter().all(|&name| fields.find(name).is_none()) {
        return false;
    }
    names.into_iter().flat_map(|name| fields.values(name)).any(|value| {
        split_list(value).any(|challenge| {
            let mut words = challenge.split(|byte| byte.is_ascii_whitespace());
            let scheme = words.next().unwrap_or_default();
            scheme.eq_ignore_ascii_case(b"ntlm") || scheme.eq_ignore_ascii_case(b"negotiate")
        })
    })
}

/// Returns a writer of a request header.
pub(crate) fn header(out: &mut Vec<u8>) -> Http1Header<'_> {
    Http1Header::new(out)
}
