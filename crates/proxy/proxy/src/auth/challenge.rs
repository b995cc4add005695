//! The challenges in a 407 response (RFC 9110 section 11.7.1).

use millrace_config::Auth;
use millrace_http1::HeaderWriter;

use crate::exchange::{Exchange, Reason};

/// Writes the Proxy-Authenticate fields of a response that refuses `exchange` for `reason`, if its
/// status is 407.
///
/// Basic is always offered. A program that supports no other scheme may send the token of a user in
/// place of the password.
pub(crate) fn write_challenges(out: &mut impl HeaderWriter, exchange: &Exchange, reason: Reason) {
    if reason.status() != 407 {
        return;
    }
    let Some(auth) = &exchange.snapshot().service(exchange.service).auth else { return };
    // RFC 7617 section 2.1: the client is to encode the name and password in UTF-8.
    write(out, b"Basic", auth, b", charset=\"UTF-8\"");
    if auth.users.as_ref().is_some_and(|users| users.has_tokens()) {
        let was_wrong = reason == Reason::AuthFailed;
        write(out, b"Bearer", auth, if was_wrong { b", error=\"invalid_token\"" } else { b"" });
    }
}

fn write(out: &mut impl HeaderWriter, scheme: &[u8], auth: &Auth, more: &[u8]) {
    out.field_with(b"Proxy-Authenticate", |value| {
        for part in [scheme, b" realm=\"", auth.realm.as_bytes(), b"\"", more] {
            value.extend_from_slice(part);
        }
    });
}
