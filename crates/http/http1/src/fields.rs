//! What fields mean to an intermediary: lists, connection options, what goes on and what does not.

use memchr::{memchr, memchr3, memmem};

use crate::class::{is_token, trim};
use crate::limits::{CONNECTION_OPTIONS_MAX, EMPTY_MEMBERS_MAX, UPGRADE_PROTOCOLS_MAX};
use crate::{AnswerHead, Field, Fields, HeadError, Method, Name, NameSet, RequestHead, Version};

/// The members of a comma-separated list of tokens, trimmed, without the empty ones (RFC 9110
/// section 5.6.1). For fields whose members may be quoted there is [`items`].
pub fn tokens(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    members(value).filter(|member| !member.is_empty())
}

/// The members of a comma-separated list of tokens, trimmed, with the empty ones.
fn members(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    value.split(|&byte| byte == b',').map(trim)
}

/// The members of a comma-separated list, trimmed, without the empty ones. A comma in a quoted
/// string ends nothing; a string that is not closed reaches to the end of the value.
pub fn items(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut rest = Some(value);
    std::iter::from_fn(move || {
        let value = rest?;
        let end = item_end(value);
        rest = value.get(end + 1..);
        Some(trim(&value[..end]))
    })
    .filter(|member| !member.is_empty())
}

/// Where the comma is that ends the first member, or the length.
fn item_end(value: &[u8]) -> usize {
    let mut is_quoted = false;
    let mut at = 0;
    while let Some(found) = value.get(at..).and_then(|rest| memchr3(b',', b'"', b'\\', rest)) {
        at += found;
        match value[at] {
            b'"' => is_quoted = !is_quoted,
            b'\\' if is_quoted => at += 1,
            b',' if !is_quoted => return at,
            _ => {}
        }
        at += 1;
    }
    value.len()
}

/// Whether a list of tokens has this one, in whatever case.
pub fn has_token(value: &[u8], token: &[u8]) -> bool {
    tokens(value).any(|member| member.eq_ignore_ascii_case(token))
}

/// Reads plain decimal digits: no sign, no space; `None` for anything else and for overflow.
/// Leading zeros are read.
pub fn decimal(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() {
        return None;
    }
    // So many digits always fit, and are nearly all that is ever read.
    let (head, tail) = digits.split_at(digits.len().min(19));
    let value = head.iter().try_fold(0, |value, byte| Some(value * 10 + digit(*byte)?))?;
    tail.iter()
        .try_fold(value, |value: u64, byte| value.checked_mul(10)?.checked_add(digit(*byte)?))
}

fn digit(byte: u8) -> Option<u64> {
    byte.is_ascii_digit().then(|| u64::from(byte - b'0'))
}

/// What never goes on: the fields for the next hop only, RFC 9110 section 7.6.1, and with them
/// those of proxy authentication, which are for this proxy, or from nobody that may ask; what could
/// be taken for a field that was checked; and the length of a body, which is written anew.
const LEFT_BEHIND: NameSet = NameSet::of(&[
    Name::Connection,
    Name::KeepAlive,
    Name::ProxyConnection,
    Name::Te,
    Name::TransferEncoding,
    Name::Upgrade,
    Name::Http2Settings,
    Name::ProxyAuthorization,
    Name::ProxyAuthenticate,
    Name::ProxyAuthenticationInfo,
    Name::Disguised,
    Name::ContentLength,
    Name::Proxy,
]);

/// What the `Connection` fields of a head say.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ConnectionOptions {
    /// `close`
    pub close: bool,
    /// `keep-alive`
    pub keep_alive: bool,
    /// `upgrade`: the `Upgrade` field counts.
    pub upgrade: bool,
    /// `te`: the `TE` field counts.
    pub te: bool,
    /// Names of other fields, which may have to be removed.
    pub others: bool,
}

impl ConnectionOptions {
    /// Whether the sender wants the connection to last beyond this exchange, RFC 9112 section 9.3.
    pub fn is_persistent(self, version: Version) -> bool {
        !self.close && (version == Version::Http11 || self.keep_alive)
    }

    /// Reads the `Connection` fields of a whole head.
    pub(crate) fn of(fields: &Fields) -> Result<Self, HeadError> {
        let mut options = Self::default();
        let mut bound = MemberBound { left: CONNECTION_OPTIONS_MAX, left_empty: EMPTY_MEMBERS_MAX };
        for value in fields.values(Name::Connection) {
            for option in members(value) {
                bound.count(option).ok_or(HeadError::ConnectionOptionsTooMany)?;
                let is = |name: &str| option.eq_ignore_ascii_case(name.as_bytes());
                match option.len() {
                    5 if is("close") => options.close = true,
                    10 if is("keep-alive") => options.keep_alive = true,
                    7 if is("upgrade") => options.upgrade = true,
                    2 if is("te") => options.te = true,
                    0 => {}
                    _ => options.others = true,
                }
            }
        }
        Ok(options)
    }
}

/// Marks the unknown fields among `fields`, which are ranges of `bytes`, that the options of
/// `Connection` name. [`ConnectionOptions::of`] has bounded the options.
#[cold]
pub(crate) fn nominate(bytes: &[u8], fields: &mut [Field]) {
    let mut names: [&[u8]; CONNECTION_OPTIONS_MAX] = Default::default();
    let connection = fields.iter().filter(|field| field.known == Name::Connection);
    let options = connection.flat_map(|field| tokens(field.value.of(bytes)));
    let count = names.iter_mut().zip(options).map(|(name, option)| *name = option).count();
    for field in fields.iter_mut().filter(|field| field.known == Name::Other) {
        let name = field.name.of(bytes);
        field.is_nominated = names[..count].iter().any(|option| option.eq_ignore_ascii_case(name));
    }
}

/// How many more members a list may have.
struct MemberBound {
    left: usize,
    left_empty: usize,
}

impl MemberBound {
    /// Counts a member; `None`: it is one too many.
    fn count(&mut self, member: &[u8]) -> Option<()> {
        let left = if member.is_empty() { &mut self.left_empty } else { &mut self.left };
        *left = left.checked_sub(1)?;
        Some(())
    }
}

/// What the `Connection` fields of a head say; it was read with the head.
pub fn connection_options(fields: &Fields) -> ConnectionOptions {
    fields.options
}

/// The fields of a head that go on to the other side, in their order.
///
/// Left out are the hop-by-hop fields of RFC 9110 section 7.6.1, with those of proxy
/// authentication; those that `Connection` names; [`Name::Disguised`]; and `Content-Length`, which
/// the caller writes itself from the framing or [`declared_length`](crate::declared_length), so
/// that it is there once and in plain form.
///
/// RFC 9110 section 7.6.1: `Connection` may not name a field that is meant for every recipient. So
/// it removes only fields that this crate does not know; all that frame, route, authenticate,
/// attest or control caches are known, and stay.
pub fn forwarded_fields(fields: &Fields) -> impl Iterator<Item = &Field> {
    fields.fields().iter().filter(|field| goes_on(field))
}

#[inline]
pub(crate) fn goes_on(field: &Field) -> bool {
    !(LEFT_BEHIND.has(field.known) || field.is_nominated)
}

/// What goes on of a head, in pieces as long as they can be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Run<'a> {
    /// One or more whole lines as received, each a name, `: `, a value and CR LF.
    Lines(&'a [u8]),
    /// A field whose line had other blanks around its value.
    Field {
        /// The name as received.
        name: &'a [u8],
        /// The value, trimmed.
        value: &'a [u8],
    },
}

impl<'a> Run<'a> {
    /// Its names and values in their order, for a writer that sends no lines.
    pub fn fields(self) -> impl Iterator<Item = (&'a [u8], &'a [u8])> {
        let (mut single, mut lines) = match self {
            Self::Lines(lines) => (None, lines),
            Self::Field { name, value } => (Some((name, value)), &[][..]),
        };
        std::iter::from_fn(move || {
            single.take().or_else(|| {
                let end = memmem::find(lines, b"\r\n")?;
                let line = &lines[..end];
                lines = &lines[end + 2..];
                let colon = memchr(b':', line)?;
                Some((&line[..colon], &line[colon + 2..]))
            })
        })
    }
}

/// The fields of [`forwarded_fields`] that are to be kept, in their order, neighbours together: so
/// that a writer copies, or sends by reference, a few ranges of a head instead of each field.
/// `keep` may be asked more than once about a field.
pub fn forwarded_runs<'a>(
    fields: &'a Fields,
    keep: impl Fn(&Field) -> bool + 'a,
) -> impl Iterator<Item = Run<'a>> {
    let mut rest = fields.fields();
    let is_kept = move |field: &Field| goes_on(field) && keep(field);
    std::iter::from_fn(move || {
        let start = rest.iter().position(&is_kept)?;
        let first = &rest[start];
        let lines = &rest[start..];
        let count = lines.iter().take_while(|field| field.is_canonical && is_kept(field)).count();
        rest = &lines[count.max(1)..];
        if count == 0 {
            let (name, value) = (fields.name_of(first), fields.value_of(first));
            return Some(Run::Field { name, value });
        }
        // Lines that are neighbours in the list are neighbours in the head.
        let range = first.name.start as usize..lines[count - 1].canonical_end() as usize;
        Some(Run::Lines(&fields.bytes()[range]))
    })
}

/// What a request expects before it sends its body, RFC 9110 section 10.1.1.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Expectation {
    /// Nothing. So it is with HTTP/1.0, whatever it says.
    #[default]
    None,
    /// `100-continue`
    Continue,
    /// Something else, or several things: status 417.
    Unknown,
}

/// Reads the `Expect` fields of a request.
pub fn expectation(head: &RequestHead) -> Expectation {
    if head.version() == Version::Http10 {
        return Expectation::None;
    }
    let mut values = head.values(Name::Expect);
    match (values.next(), values.next()) {
        (None, _) => Expectation::None,
        (Some(value), None) if value.eq_ignore_ascii_case(b"100-continue") => Expectation::Continue,
        _ => Expectation::Unknown,
    }
}

/// The protocols that a head offers or accepts to switch to, at most 8, each a token with perhaps
/// `/` and another. None unless `Connection` says `upgrade` (RFC 9110 section 7.8), and none when
/// one of them is malformed: what it means to the other side is not certain.
pub fn upgrade_protocols(fields: &Fields) -> impl Iterator<Item = &[u8]> {
    fields.values(Name::Upgrade).flat_map(tokens).filter(|_| fields.offers_upgrade)
}

/// Whether all protocols in the `Upgrade` fields of a whole head are well-formed.
pub(crate) fn are_upgrade_protocols(fields: &Fields) -> Result<bool, HeadError> {
    let mut are_valid = true;
    let mut bound = MemberBound { left: UPGRADE_PROTOCOLS_MAX, left_empty: EMPTY_MEMBERS_MAX };
    for protocol in fields.values(Name::Upgrade).flat_map(members) {
        bound.count(protocol).ok_or(HeadError::UpgradeProtocolsTooMany)?;
        are_valid &= protocol.is_empty() || is_protocol(protocol);
    }
    Ok(are_valid)
}

fn is_protocol(bytes: &[u8]) -> bool {
    let mut parts = bytes.splitn(2, |&byte| byte == b'/');
    parts.all(is_token)
}

/// Whether a request asks for WebSocket and for nothing else, RFC 6455 section 4.1. Other
/// protocols, h2c above all, would carry requests that the proxy never sees.
pub fn is_websocket_upgrade(head: &RequestHead) -> bool {
    let mut protocols = upgrade_protocols(head);
    head.method() == Method::Get
        && head.version() == Version::Http11
        && protocols.next().is_some_and(|protocol| protocol.eq_ignore_ascii_case(b"websocket"))
        && protocols.next().is_none()
}

/// Whether an answer switches to what its request offered: status 101, and only protocols that the
/// request named.
pub fn upgrade_accepted(request: &RequestHead, answer: &AnswerHead) -> bool {
    let mut offered: [&[u8]; UPGRADE_PROTOCOLS_MAX] = Default::default();
    let places = offered.iter_mut().zip(upgrade_protocols(request));
    let count = places.map(|(place, protocol)| *place = protocol).count();
    let is_offered = |protocol: &[u8]| {
        offered[..count].iter().any(|offered| offered.eq_ignore_ascii_case(protocol))
    };
    let mut accepted = upgrade_protocols(answer).peekable();
    answer.status() == 101 && accepted.peek().is_some() && accepted.all(is_offered)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples::{answer, request};
    use crate::{HeaderWriter, Http1Header};

    fn forwarded(head: &str) -> Vec<String> {
        let head = request(format!("GET / HTTP/1.1\r\nHost: a\r\n{head}\r\n")).unwrap();
        let names = forwarded_fields(&head).map(|field| head.name_of(field));
        names.map(|name| String::from_utf8(name.to_vec()).unwrap()).collect()
    }

    #[test]
    fn lists_are_split_at_commas_outside_quotes() {
        let split = |value| tokens(value).collect::<Vec<_>>();
        assert_eq!(split(b" a ,, b\t,"), [b"a", b"b"]);
        assert!(split(b", ,").is_empty() && split(b"").is_empty());
        let split = |value| items(value).collect::<Vec<_>>();
        assert_eq!(split(b"a=\"x,y\", b"), [&b"a=\"x,y\""[..], b"b"]);
        assert_eq!(split(br#""\",", c,,"#), [&br#""\",""#[..], b"c"]);
        assert_eq!(split(b"\"open, d"), [b"\"open, d"]);
        assert_eq!(split(b"a\\,b"), [&b"a\\"[..], b"b"]);
        assert!(has_token(b"x, Close", b"close") && !has_token(b"closed", b"close"));
    }

    #[test]
    fn decimal_is_digits_only() {
        assert_eq!(decimal(b"18446744073709551615"), Some(u64::MAX));
        assert_eq!(decimal(b"9999999999999999999"), Some(9_999_999_999_999_999_999));
        assert_eq!(decimal(b"0000000000000000000042"), Some(42));
        for bytes in [&b"18446744073709551616"[..], b"", b"+1", b"-1", b" 1", b"1 ", b"0x1", b"1_0"]
        {
            assert_eq!(decimal(bytes), None);
        }
    }

    #[test]
    fn hop_by_hop_fields_stay_behind() {
        let hop_by_hop = "Connection: close\r\nKeep-Alive: 1\r\nProxy-Connection: x\r\n\
                          TE: trailers\r\n\
                          Transfer-Encoding: chunked\r\nUpgrade: h2c\r\nHTTP2-Settings: AA\r\n\
                          Proxy-Authorization: x\r\nProxy-Authenticate: x\r\nContent-Length: 1\r\n";
        assert_eq!(forwarded(&format!("{hop_by_hop}X-Kept: 1\r\n")), ["Host", "X-Kept"]);
    }

    #[test]
    fn connection_removes_only_what_is_not_known() {
        let named = "Connection: X-Gone,host, Cookie ,X-Forwarded-For,Cache-Control\r\n\
                     Connection: authorization, via, Max-Forwards, cdn-cache-control\r\n";
        let fields = "x-gone: 1\r\nCookie: 1\r\nX-Forwarded-For: 1\r\nCache-Control: 1\r\n\
                      Authorization: 1\r\nVia: 1\r\nMax-Forwards: 1\r\nX-Gone-Not: 1\r\n\
                      CDN-Cache-Control: 1\r\n";
        let kept = ["Host", "Cookie", "X-Forwarded-For", "Cache-Control", "Authorization", "Via"];
        let kept = [&kept[..], &["Max-Forwards", "X-Gone-Not", "CDN-Cache-Control"]].concat();
        assert_eq!(forwarded(&format!("{named}{fields}")), kept);
    }

    #[test]
    fn disguised_names_stay_behind() {
        let fields = "Content_Length: 5\r\nTransfer_Encoding: chunked\r\nX_Forwarded-For: 1\r\n";
        assert_eq!(forwarded(&format!("{fields}my_own: 1\r\n")), ["Host", "my_own"]);
    }

    #[test]
    fn neighbours_go_on_as_one_range() {
        let lines = "GET / HTTP/1.1\r\nHost: a\r\nX-A: 1\r\nX-B: \r\nConnection: x-gone\r\n\
                     X-C: 3\r\nX-D:4\r\nX-E: 5 \r\nX-F:\t6\r\nX-G:\r\nX-Gone: 7\r\nVia:  8\r\n\
                     Etag: 9\r\nCookie: 10\r\nAge: 11\r\n\r\n";
        let head = request(lines).unwrap();
        let runs: Vec<_> =
            forwarded_runs(&head, |field| !matches!(field.known, Name::Host | Name::Cookie))
                .collect();
        let field = |name, value| Run::Field { name, value };
        let expected = [
            Run::Lines(b"X-A: 1\r\nX-B: \r\n"),
            Run::Lines(b"X-C: 3\r\n"),
            field(b"X-D", b"4"),
            field(b"X-E", b"5"),
            field(b"X-F", b"6"),
            field(b"X-G", b""),
            field(b"Via", b"8"),
            Run::Lines(b"Etag: 9\r\n"),
            Run::Lines(b"Age: 11\r\n"),
        ];
        assert_eq!(runs, expected);
        let mut written = Vec::new();
        let mut header = Http1Header::new(&mut written);
        forwarded_runs(&head, |_| true).for_each(|run| header.run(run));
        let canonical = "Host: a\r\nX-A: 1\r\nX-B: \r\nX-C: 3\r\nX-D: 4\r\nX-E: 5\r\nX-F: 6\r\n\
                         X-G: \r\nVia: 8\r\nEtag: 9\r\nCookie: 10\r\nAge: 11\r\n";
        let fields = forwarded_runs(&head, |_| true).flat_map(Run::fields);
        let lines = fields.map(|(name, value)| [name, b": ", value, b"\r\n"].concat());
        assert_eq!(lines.collect::<Vec<_>>().concat(), written);
        assert_eq!(String::from_utf8(written).unwrap(), canonical);
    }

    #[test]
    fn persistence_follows_version_and_options() {
        let persists = |version: &str, connection: &str| {
            let head = format!("GET / {version}\r\nHost: a\r\nConnection: {connection}\r\n\r\n");
            let head = request(&head).unwrap();
            connection_options(&head).is_persistent(head.version())
        };
        assert!(persists("HTTP/1.1", "") && persists("HTTP/1.0", "x, Keep-Alive"));
        assert!(!persists("HTTP/1.0", "") && !persists("HTTP/1.1", "CLOSE"));
        assert!(!persists("HTTP/1.1", "keep-alive, close"));
    }

    #[test]
    fn expectations_are_one_or_refused() {
        let expects = |fields: &str, version: &str| {
            let head = format!("POST / {version}\r\nHost: a\r\n{fields}\r\n");
            expectation(&request(&head).unwrap())
        };
        assert_eq!(expects("", "HTTP/1.1"), Expectation::None);
        assert_eq!(expects("Expect: 100-Continue\r\n", "HTTP/1.1"), Expectation::Continue);
        assert_eq!(expects("Expect: 100-continue\r\n", "HTTP/1.0"), Expectation::None);
        for odd in ["Expect: 200-ok", "Expect:", "Expect: 100-continue, x", "Expect: 100-continuex"]
        {
            assert_eq!(expects(&format!("{odd}\r\n"), "HTTP/1.1"), Expectation::Unknown, "{odd}");
        }
        let twice = "Expect: 100-continue\r\n".repeat(2);
        assert_eq!(expects(&twice, "HTTP/1.1"), Expectation::Unknown);
    }

    #[test]
    fn only_what_was_offered_may_be_switched_to() {
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
            let answer = answer(format!("HTTP/1.1 {status}\r\n\r\n")).unwrap();
            upgrade_accepted(&offer, &answer)
        };
        assert!(accepts("101 x\r\nConnection: upgrade\r\nUpgrade: websocket"));
        assert!(!accepts("200 x\r\nConnection: upgrade\r\nUpgrade: websocket"));
        assert!(!accepts("101 x\r\nConnection: upgrade\r\nUpgrade: h2c"));
        assert!(!accepts("101 x\r\nConnection: upgrade\r\nUpgrade: websocket, h2c"));
        assert!(!accepts("101 x\r\nUpgrade: websocket") && !accepts("101 x"));
    }
}
