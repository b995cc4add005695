//! Where a request wants to go.

use crate::field::Span;
use crate::request::RequestHead;
use crate::target::{Authority, AuthorityAt, Destination, Host, HostAt, Located, TargetError};

/// Says where a request wants to go, RFC 9112 section 3.2. An absolute target wins over `Host`,
/// section 3.2.2, but `Host` has to be valid all the same: whoever comes next may look at it. It
/// was read with the head, so asking again costs nothing.
///
/// # Errors
/// When the target does not fit the method, or the host is not certain. The method matters only
/// with `*` and `host:port`.
pub fn destination(head: &RequestHead) -> Result<Destination<'_>, TargetError> {
    let Located { authority, path_and_query } = head.located()?;
    let view = |span| head.view(span);
    let authority_bytes = authority.map_or(&[][..], |at| view(at.span));
    let authority = authority.map(|AuthorityAt { span, host, port }| {
        let host = match host {
            HostAt::Name(len) => Host::Name(view(Span { len, ..span })),
            HostAt::V4(address) => Host::V4(address),
            HostAt::V6(address) => Host::V6(address),
        };
        Authority { host, port }
    });
    Ok(Destination { authority, authority_bytes, path_and_query: view(path_and_query) })
}
