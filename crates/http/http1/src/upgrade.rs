//! Switching to another protocol (RFC 9110 section 7.8).

use crate::comma_list::split_tokens;
use crate::head::Fields;
use crate::limits::UPGRADE_PROTOCOLS_MAX;
use crate::method::{Method, Version};
use crate::name::FieldName;
use crate::request::RequestHead;
use crate::response::ResponseHead;

/// Returns the protocols that a header offers or accepts, at most 8. Each is a token, with an
/// optional `/` and another token.
///
/// The result is empty unless `Connection` has the option `upgrade`. It is also empty if one
/// protocol is malformed, because the peer may interpret the list differently.
pub fn upgrade_protocols(fields: &Fields) -> impl Iterator<Item = &[u8]> {
    fields.values(FieldName::Upgrade).flat_map(split_tokens).filter(|_| fields.offers_upgrade)
}

/// Returns whether a request offers WebSocket and no other protocol (RFC 6455 section 4.1). Other
/// protocols, h2c in particular, would carry requests that the proxy does not see.
pub fn is_websocket_upgrade(head: &RequestHead) -> bool {
    let mut protocols = upgrade_protocols(head);
    head.method() == Method::Get
        && head.version() == Version::Http11
        && protocols.next().is_some_and(|protocol| protocol.eq_ignore_ascii_case(b"websocket"))
        && protocols.next().is_none()
}

/// Returns whether a response switches to a protocol that its request offered: status 101, and only
/// protocols that the request named.
pub fn is_upgrade_accepted(request: &RequestHead, response: &ResponseHead) -> bool {
    let mut offered: [&[u8]; UPGRADE_PROTOCOLS_MAX] = Default::default();
    let places = offered.iter_mut().zip(upgrade_protocols(request));
    let count = places.map(|(place, protocol)| *place = protocol).count();
    let is_offered = |protocol: &[u8]| {
        offered[..count].iter().any(|offered| offered.eq_ignore_ascii_case(protocol))
    };
    let mut accepted = upgrade_protocols(response).peekable();
    response.status() == 101 && accepted.peek().is_some() && accepted.all(is_offered)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_heads::{request, response};

    #[test]
    fn only_offered_protocols_are_accepted() {
        let head =
            |fields: &str| request(format!("GET / HTTP/1.1\r\nHost: a\r\n{fields}\r\n")).unwrap();
        let offer = head("Upgrade: WebSocket\r\nConnection: Upgrade\r\n");
        assert!(is_websocket_upgrade(&offer));
        for other in [
            "Upgrade: websocket\r\n",
            "Connection: upgrade\r\n",
            "Upgrade: h2c\r\nConnection: Upgrade\r\n",
            "Upgrade: websocket, h2c\r\nConnection: Upgrade\r\n",
            "Upgrade: websocket, \"h2c\r\nConnection: Upgrade\r\n",
            "Upgrade: websocket\r\nUpgrade: a/b/c\r\nConnection: Upgrade\r\n",
        ] {
            assert!(!is_websocket_upgrade(&head(other)), "{other}");
        }
        let both = head("Upgrade: a/1, b\r\nUpgrade: c\r\nConnection: x, upgrade\r\n");
        assert_eq!(upgrade_protocols(&both).collect::<Vec<_>>(), [&b"a/1"[..], b"b", b"c"]);
        let accepts = |status: &str| {
            let response = response(format!("HTTP/1.1 {status}\r\n\r\n")).unwrap();
            is_upgrade_accepted(&offer, &response)
        };
        assert!(accepts("101 x\r\nConnection: upgrade\r\nUpgrade: websocket"));
        assert!(!accepts("200 x\r\nConnection: upgrade\r\nUpgrade: websocket"));
        assert!(!accepts("101 x\r\nConnection: upgrade\r\nUpgrade: h2c"));
        assert!(!accepts("101 x\r\nConnection: upgrade\r\nUpgrade: websocket, h2c"));
        assert!(!accepts("101 x\r\nUpgrade: websocket") && !accepts("101 x"));
    }
}
