//! The expected path of each exchange. A message that is refused early costs little, so an
//! unexpected refusal would hide growth. Each refusal is therefore listed here, and every other
//! exchange has to take the usual path of its place.

use super::exchange::FieldPlace;
use super::message::FieldShape;
use super::play::Seen;

/// Returns what client and origin see of a field with this shape in this place.
pub(super) fn expected(name: &str, shape: FieldShape, place: FieldPlace) -> Seen {
    let other = match name {
        // A message is refused unless the length of its body is certain.
        "content-length" | "transfer-encoding" => malformed(place),
        "connection" if has_many_members(shape) => malformed(place),
        "host" => in_request(place, 400),
        "expect" => in_request(place, 417),
        // The token is unknown.
        "proxy-authorization" if place == FieldPlace::Forward => Some(seen(407, 0)),
        "upgrade" if place == FieldPlace::Upgrade => match shape {
            _ if has_many_members(shape) => Some(seen(400, 0)),
            FieldShape::Bound => None,
            // No member is a valid protocol, so the proxy requests no upgrade. The origin's 101 is
            // then unrequested.
            _ => Some(seen(502, 1)),
        },
        "vary" if place == FieldPlace::Hit && has_many_names(shape) => Some(seen(200, 1)),
        "trailer" if place == FieldPlace::Hit => Some(seen(200, 1)),
        "authorization"
        | "if-match"
        | "if-unmodified-since"
        | "x-http-method"
        | "x-http-method-override"
        | "x-method-override"
        | "x-of-cache-bypass"
            if place == FieldPlace::RequestHit =>
        {
            Some(seen(200, 1))
        }
        "cache-control" => match (place, shape) {
            // `no-cache` in a request.
            (FieldPlace::RequestHit, FieldShape::Argument) => Some(validated(200)),
            // An unterminated string hides directives.
            (FieldPlace::Hit, FieldShape::Open) => Some(seen(200, 1)),
            _ => None,
        },
        _ => None,
    };
    other.unwrap_or_else(|| usual(place))
}

/// Returns what is seen of a message that is not refused.
fn usual(place: FieldPlace) -> Seen {
    match place {
        FieldPlace::RequestHit | FieldPlace::Hit => seen(200, 0),
        FieldPlace::Upgrade => seen(101, 1),
        FieldPlace::Response => seen(103, 1),
        FieldPlace::Validated => validated(200),
        _ => seen(200, 1),
    }
}

/// Returns what is seen of a refused message. A refused response is not stored.
fn malformed(place: FieldPlace) -> Option<Seen> {
    match place {
        FieldPlace::Response | FieldPlace::Head | FieldPlace::Post => Some(seen(502, 1)),
        FieldPlace::Validated => Some(validated(502)),
        FieldPlace::Hit => Some(seen(200, 1)),
        _ => in_request(place, 400),
    }
}

/// Returns what is seen of a request refused with this status, for places that have the field in
/// the request.
fn in_request(place: FieldPlace, status: u16) -> Option<Seen> {
    let has_it = matches!(
        place,
        FieldPlace::Request
            | FieldPlace::RequestHit
            | FieldPlace::Upgrade
            | FieldPlace::Forward
            | FieldPlace::Routed
    );
    has_it.then(|| seen(status, 0))
}

/// Returns whether the shape has more members, including empty ones, than a bounded list may have.
fn has_many_members(shape: FieldShape) -> bool {
    use FieldShape::{Blanks, Bound, Dots, Open, Parameters};
    !matches!(shape, Parameters | Blanks | Dots | Open | Bound)
}

/// Returns whether the shape has more different members than `Vary` may have.
fn has_many_names(shape: FieldShape) -> bool {
    use FieldShape::{CrossedEmpty, Empty, Same};
    has_many_members(shape) && !matches!(shape, Empty | Same | CrossedEmpty)
}

fn seen(status: u16, origin_requests: u32) -> Seen {
    Seen { status, origin_requests, is_validated: false }
}

fn validated(status: u16) -> Seen {
    Seen { status, origin_requests: 1, is_validated: true }
}
