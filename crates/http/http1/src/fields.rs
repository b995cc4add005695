//! Which fields an intermediary forwards.

use memchr::{memchr, memmem};

use crate::connection::ConnectionOptions;
use crate::field::FieldLine;
use crate::head::Fields;
use crate::name::{FieldName, NameSet};

/// Fields that are never forwarded:
///
/// * hop-by-hop fields (RFC 9110 section 7.6.1)
/// * fields of proxy authentication: in a request they are meant for this proxy, and an origin may
///   not request proxy authentication
/// * fields that a CGI program could confuse with a checked field, or with the environment variable
///   `HTTP_PROXY`
/// * the length of the body, which is written anew
/// * the certificate of a client, which only the gateway that verified it may write (RFC 9440
///   section 2.4)
const NOT_FORWARDED: NameSet = NameSet::new(&[
    FieldName::Connection,
    FieldName::KeepAlive,
    FieldName::ProxyConnection,
    FieldName::Te,
    FieldName::TransferEncoding,
    FieldName::Upgrade,
    FieldName::Http2Settings,
    FieldName::ProxyAuthorization,
    FieldName::ProxyAuthenticate,
    FieldName::ProxyAuthenticationInfo,
    FieldName::Disguised,
    FieldName::ContentLength,
    FieldName::Proxy,
    FieldName::ClientCert,
    FieldName::ClientCertChain,
    // Paths of files that only this server may know.
    FieldName::XSendfile,
    FieldName::XAccelRedirect,
]);

/// Returns the options in the `Connection` fields of a header. They were parsed with the header.
pub fn connection_options(fields: &Fields) -> ConnectionOptions {
    fields.options
}

/// Returns the fields of a header that are forwarded, in order.
///
/// The following are left out: the hop-by-hop fields of RFC 9110 section 7.6.1, `HTTP2-Settings`,
/// the fields of proxy authentication, `Proxy`, `Client-Cert`, `Client-Cert-Chain`,
/// [`FieldName::Disguised`], `Content-Length`, and unknown fields that `Connection` names. The
/// caller writes `Content-Length` itself from the framing or from
/// [`declared_length`](crate::declared_length), so that it occurs once and in plain form.
///
/// `Connection` may not name a field that is meant for all recipients (RFC 9110 section 7.6.1). An
/// option of `Connection` therefore removes a field only if its name is [`FieldName::Other`]. This
/// crate knows the names of all fields that matter for routing, authentication and caching, or that
/// describe the client, so a sender cannot remove those.
pub fn forwarded_fields(fields: &Fields) -> impl Iterator<Item = &FieldLine> {
    fields.fields().iter().filter(|field| is_forwarded(field))
}

/// Returns whether a field is forwarded.
#[inline]
pub(crate) fn is_forwarded(field: &FieldLine) -> bool {
    !(NOT_FORWARDED.contains(field.known) || field.is_nominated)
}

/// One or more consecutive forwarded fields of a header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FieldRun<'a> {
    /// One or more complete lines as received, each a name, `: `, a value and CR LF.
    Lines(&'a [u8]),
    /// One field, whose line had other white space around its value.
    Field {
        /// The name as received.
        name: &'a [u8],
        /// The value without surrounding white space.
        value: &'a [u8],
    },
}

impl<'a> FieldRun<'a> {
    /// Returns the names and values in order, for a writer that does not write lines.
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

/// Returns the fields of [`forwarded_fields`] for which `keep` returns true, in order, with
/// neighbours combined. A writer can then copy, or send by reference, a few ranges of a header
/// instead of each field.
///
/// `keep` may be called more than once for a field.
pub fn forwarded_runs<'a>(
    fields: &'a Fields,
    keep: impl Fn(&FieldLine) -> bool + 'a,
) -> impl Iterator<Item = FieldRun<'a>> {
    let mut rest = fields.fields();
    let is_kept = move |field: &FieldLine| is_forwarded(field) && keep(field);
    std::iter::from_fn(move || {
        let start = rest.iter().position(&is_kept)?;
        let first = &rest[start];
        let lines = &rest[start..];
        let count = lines.iter().take_while(|field| field.is_canonical && is_kept(field)).count();
        rest = &lines[count.max(1)..];
        if count == 0 {
            let (name, value) = (fields.name_of(first), fields.value_of(first));
            return Some(FieldRun::Field { name, value });
        }
        // Neighbours in the list are neighbours in the header.
        let range = first.name.start as usize..lines[count - 1].canonical_end() as usize;
        Some(FieldRun::Lines(&fields.bytes()[range]))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_heads::request;
    use crate::{HeaderWriter, Http1Header};

    fn forwarded(head: &str) -> Vec<String> {
        let head = request(format!("GET / HTTP/1.1\r\nHost: a\r\n{head}\r\n")).unwrap();
        let names = forwarded_fields(&head).map(|field| head.name_of(field));
        names.map(|name| String::from_utf8(name.to_vec()).unwrap()).collect()
    }

    #[test]
    fn hop_by_hop_fields_are_not_forwarded() {
        let hop_by_hop = "Connection: close\r\nKeep-Alive: 1\r\nProxy-Connection: x\r\n\
                          TE: trailers\r\n\
                          Transfer-Encoding: chunked\r\nUpgrade: h2c\r\nHTTP2-Settings: AA\r\n\
                          Proxy-Authorization: x\r\nProxy-Authenticate: x\r\nContent-Length: 1\r\n";
        assert_eq!(forwarded(&format!("{hop_by_hop}X-Kept: 1\r\n")), ["Host", "X-Kept"]);
    }

    #[test]
    fn connection_removes_only_unknown_fields() {
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
    fn disguised_names_are_not_forwarded() {
        let fields = "Content_Length: 5\r\nTransfer_Encoding: chunked\r\nX_Forwarded-For: 1\r\n";
        assert_eq!(forwarded(&format!("{fields}my_own: 1\r\n")), ["Host", "my_own"]);
    }

    #[test]
    fn neighbours_are_forwarded_as_one_range() {
        let lines = "GET / HTTP/1.1\r\nHost: a\r\nX-A: 1\r\nX-B: \r\nConnection: x-gone\r\n\
                     X-C: 3\r\nX-D:4\r\nX-E: 5 \r\nX-F:\t6\r\nX-G:\r\nX-Gone: 7\r\nVia:  8\r\n\
                     Etag: 9\r\nCookie: 10\r\nAge: 11\r\n\r\n";
        let head = request(lines).unwrap();
        let runs: Vec<_> = forwarded_runs(&head, |field| {
            !matches!(field.known, FieldName::Host | FieldName::Cookie)
        })
        .collect();
        let field = |name, value| FieldRun::Field { name, value };
        let expected = [
            FieldRun::Lines(b"X-A: 1\r\nX-B: \r\n"),
            FieldRun::Lines(b"X-C: 3\r\n"),
            field(b"X-D", b"4"),
            field(b"X-E", b"5"),
            field(b"X-F", b"6"),
            field(b"X-G", b""),
            field(b"Via", b"8"),
            FieldRun::Lines(b"Etag: 9\r\n"),
            FieldRun::Lines(b"Age: 11\r\n"),
        ];
        assert_eq!(runs, expected);
        let mut written = Vec::new();
        let mut header = Http1Header::new(&mut written);
        forwarded_runs(&head, |_| true).for_each(|run| header.field_run(run));
        let canonical = "Host: a\r\nX-A: 1\r\nX-B: \r\nX-C: 3\r\nX-D: 4\r\nX-E: 5\r\nX-F: 6\r\n\
                         X-G: \r\nVia: 8\r\nEtag: 9\r\nCookie: 10\r\nAge: 11\r\n";
        let fields = forwarded_runs(&head, |_| true).flat_map(FieldRun::fields);
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
}
