//! The fields of a request as the origin receives them.
//!
//! The forwarded request, cache keys and variant keys (`Vary`) are all derived from one
//! [`OriginRequest`]. None of them can therefore use a value that the origin does not receive.
//! Fields that the proxy adds for its own purposes are not part of it: conditions, ranges, `Via`
//! and framing.

use std::net::IpAddr;

use crate::fields::is_forwarded;
use crate::format::{write_ip, write_normalised_authority};
use crate::{
    Authority, ClientCertificate, FieldLine, FieldName, FieldRun, HeaderWriter, Host, Http1Header,
    NameSet, RequestHead, Scheme, Version, destination, forwarded_runs, has_token, split_list,
};

/// How a proxy treats the fields that describe the client and its request.
#[derive(Clone, Copy, Debug)]
pub enum Forwarding<'a> {
    /// A forward proxy: the fields are forwarded as received.
    Proxy,
    /// A gateway (reverse proxy): it adds fields for the client, scheme and host of the request,
    /// and accepts received ones from trusted peers only.
    Gateway {
        /// The client's address; `None` on a Unix socket.
        client: Option<IpAddr>,
        /// Whether `Forwarded`, `X-Forwarded-*` and similar fields of this peer are accepted.
        is_trusted: bool,
        /// Lower-case names of fields that are forwarded from every peer.
        always_forwarded: &'a [Box<[u8]>],
    },
}

/// A request header as its origin receives it.
#[derive(Clone, Copy, Debug)]
pub struct OriginRequest<'a> {
    head: &'a RequestHead,
    scheme: Scheme,
    forwarding: Forwarding<'a>,
    certificate: Option<&'a ClientCertificate>,
}

/// Fields that a gateway writes itself.
const GENERATED: NameSet = NameSet::new(&[
    FieldName::Forwarded,
    FieldName::XForwardedFor,
    FieldName::XForwardedHost,
    FieldName::XForwardedProto,
]);

/// Fields that name only the client: an origin builds no URL from them.
const CLIENT_ADDRESS_FIELDS: NameSet = NameSet::new(&[
    FieldName::XRealIp,
    FieldName::XClientIp,
    FieldName::TrueClientIp,
    FieldName::CfConnectingIp,
    FieldName::ClientIp,
    FieldName::FastlyClientIp,
    FieldName::XClusterClientIp,
]);

/// Fields from which origins build URLs or select a response, and which a gateway never writes.
const URL_FIELDS: NameSet = NameSet::new(&[
    FieldName::XHost,
    FieldName::XHttpHostOverride,
    FieldName::XScheme,
    FieldName::XScriptName,
    FieldName::XUrlScheme,
    FieldName::FrontEndHttps,
    FieldName::Gateway,
]);

/// Fields that some origins accept as the request's method.
pub const METHOD_OVERRIDES: NameSet = NameSet::new(&[
    FieldName::XHttpMethodOverride,
    FieldName::XHttpMethod,
    FieldName::XMethodOverride,
]);

/// Fields that a gateway removes from requests of untrusted peers.
pub const REMOVED_UNLESS_TRUSTED: NameSet = CLIENT_ADDRESS_FIELDS.union(&URL_FIELDS);

/// All fields that describe the client or its request to an origin. A client that may set one can
/// change the response.
pub const FORWARDING_FIELDS: NameSet = GENERATED.union(&REMOVED_UNLESS_TRUSTED);

impl<'a> OriginRequest<'a> {
    /// Creates the origin's view of a request, given the scheme of its target URI and how the proxy
    /// forwards it.
    pub fn new(head: &'a RequestHead, scheme: Scheme, forwarding: Forwarding<'a>) -> Self {
        Self { head, scheme, forwarding, certificate: None }
    }

    /// Adds the verified certificate of the client. A gateway passes it to the origin, a forward
    /// proxy does not (RFC 9440 section 2.4).
    pub fn with_certificate(self, certificate: Option<&'a ClientCertificate>) -> Self {
        Self { certificate, ..self }
    }

    /// Returns the verified certificate of the client that the origin receives.
    pub fn certificate(&self) -> Option<&'a ClientCertificate> {
        self.certificate.filter(|_| self.is_gateway())
    }

    /// Creates the origin's view of a request for `http` that is forwarded as received, as by a
    /// forward proxy.
    pub fn as_received(head: &'a RequestHead) -> Self {
        Self::new(head, Scheme::Http, Forwarding::Proxy)
    }

    /// Returns the request as the client sent it.
    pub fn head(&self) -> &'a RequestHead {
        self.head
    }

    /// Returns the field lines of the header that are forwarded, except those of the names in
    /// `left_out`. `Host` is never among them; [`OriginRequest::write_host`] writes it.
    pub fn lines(&self, left_out: NameSet) -> impl Iterator<Item = FieldRun<'a>> {
        let this = *self;
        let left_out = left_out.union(&self.omitted_names());
        // Few requests have a field whose forwarding depends on the peer or on the configuration.
        let lacks_conditional_fields = !self.head.has_any(&REMOVED_UNLESS_TRUSTED);
        forwarded_runs(this.head, move |field| {
            !left_out.contains(field.known)
                && (lacks_conditional_fields || this.may_forward_received(field))
        })
    }

    /// Returns the names whose received lines are dropped, besides those that [`is_forwarded`]
    /// excludes.
    #[inline]
    fn omitted_names(&self) -> NameSet {
        const HOST: NameSet = NameSet::new(&[FieldName::Host]);
        const EXPECT: NameSet = NameSet::new(&[FieldName::Expect]);
        let left_out = match self.forwarding {
            Forwarding::Proxy => HOST,
            Forwarding::Gateway { .. } => HOST.union(&GENERATED),
        };
        match self.head.version() {
            Version::Http10 => left_out.union(&EXPECT),
            Version::Http11 => left_out,
        }
    }

    /// Returns whether the line of a field is forwarded as received, if its name is not left out.
    fn may_forward_received(&self, field: &FieldLine) -> bool {
        match self.forwarding {
            Forwarding::Gateway { is_trusted: false, .. }
                if REMOVED_UNLESS_TRUSTED.contains(field.known) =>
            {
                self.is_always_forwarded(field)
            }
            _ => true,
        }
    }

    /// Returns whether the gateway is configured to forward the field from every peer.
    fn is_always_forwarded(&self, field: &FieldLine) -> bool {
        let Forwarding::Gateway { always_forwarded, .. } = self.forwarding else { return false };
        let name = self.head.name_of(field);
        always_forwarded.iter().any(|other| name.eq_ignore_ascii_case(other))
    }

    /// Returns the scheme of the target URI: that of the client connection, or of an absolute
    /// target.
    pub fn scheme(&self) -> Scheme {
        self.scheme
    }

    /// Appends the value of `Host`: an authority in the normalised form that cache keys have.
    #[inline]
    pub fn write_host(&self, out: &mut Vec<u8>, authority: &Authority<'_>) {
        write_normalised_authority(out, authority, self.scheme.port());
    }

    /// Writes the forwarding fields that a gateway adds: `Forwarded` (RFC 7239), its predecessors
    /// `X-Forwarded-*`, and the client's certificate (RFC 9440). A forward proxy adds none.
    /// `authority` is that of the request's destination.
    pub fn write_forwarding(&self, out: &mut impl HeaderWriter, authority: Option<&Authority<'_>>) {
        let Forwarding::Gateway { client, .. } = self.forwarding else { return };
        let client_at = out.field_with(b"X-Forwarded-For", |value| {
            self.write_earlier_members(FieldName::XForwardedFor, value);
            let start = value.len();
            match client {
                Some(ip) => write_ip(value, ip),
                None => value.extend_from_slice(b"unknown"),
            }
            start..value.len()
        });
        let host_at = out.field_with(b"Forwarded", |value| {
            self.write_earlier_members(FieldName::Forwarded, value);
            value.extend_from_slice(b"for=");
            let is_v6 = client.is_some_and(|ip| ip.is_ipv6());
            value.extend_from_slice(if is_v6 { b"\"[" } else { b"" });
            value.extend_from_within(client_at);
            let proto: &[u8] = match (is_v6, self.scheme) {
                (false, Scheme::Http) => b";proto=http",
                (false, Scheme::Https) => b";proto=https",
                (true, Scheme::Http) => b"]\";proto=http",
                (true, Scheme::Https) => b"]\";proto=https",
            };
            value.extend_from_slice(proto);
            authority.map(|authority| {
                value.extend_from_slice(b";host=\"");
                let start = value.len();
                self.write_host(value, authority);
                let host_at = start..value.len();
                value.push(b'"');
                host_at
            })
        });
        out.field(b"X-Forwarded-Proto", self.reported_scheme());
        match (self.trusted_value(FieldName::XForwardedHost), host_at) {
            (Some(first), _) => out.field(b"X-Forwarded-Host", first),
            (None, Some(host_at)) => {
                out.field_with(b"X-Forwarded-Host", |value| value.extend_from_within(host_at));
            }
            (None, None) => {}
        }
        if let Some(client) = self.certificate {
            out.field(b"Client-Cert", &client.certificate);
            if let Some(chain) = &client.chain {
                out.field(b"Client-Cert-Chain", chain);
            }
        }
    }

    /// Appends the members that a list had when it arrived from a trusted peer.
    fn write_earlier_members(&self, known: FieldName, out: &mut Vec<u8>) {
        if !self.is_trusted() {
            return;
        }
        for value in self.head.values(known).filter(|value| !value.is_empty()) {
            out.extend_from_slice(value);
            out.extend_from_slice(b", ");
        }
    }

    /// Returns the first value of a field from a trusted peer: the one that the first proxy wrote.
    fn trusted_value(&self, known: FieldName) -> Option<&'a [u8]> {
        if self.is_trusted() { self.head.values(known).next() } else { None }
    }

    /// Returns the scheme that a gateway reports: the one that a trusted peer reported, or that of
    /// the target URI.
    fn reported_scheme(&self) -> &'a [u8] {
        self.trusted_value(FieldName::XForwardedProto).unwrap_or(self.scheme.as_str().as_bytes())
    }

    fn is_gateway(&self) -> bool {
        matches!(self.forwarding, Forwarding::Gateway { .. })
    }

    fn is_trusted(&self) -> bool {
        matches!(self.forwarding, Forwarding::Gateway { is_trusted: true, .. })
    }

    fn authority(&self) -> Option<Authority<'a>> {
        destination(self.head).ok()?.authority
    }

    /// Returns whether the origin may send trailers (RFC 9110 section 10.1.4).
    #[inline]
    pub fn accepts_trailers(&self) -> bool {
        self.head.version() == Version::Http11
            && self.head.values(FieldName::Te).any(|te| has_token(te, b"trailers"))
    }

    /// Returns the values of a field that are forwarded as received, in order. `name` distinguishes
    /// names of a category ([`FieldName::is_category`]). If the header has no field whose name is
    /// `known`, the cost is one bit test.
    pub fn values(&self, known: FieldName, name: &[u8]) -> impl Iterator<Item = &'a [u8]> {
        let this = *self;
        let is_category = known.is_category();
        let left_out = self.omitted_names();
        let is_named = move |field: &&FieldLine| {
            (!is_category || this.head.name_of(field).eq_ignore_ascii_case(name))
                && is_forwarded(field)
                && !left_out.contains(known)
                && this.may_forward_received(field)
        };
        this.head.fields_of(known).filter(is_named).map(move |field| this.head.value_of(field))
    }

    /// Calls `put` with the value that the proxy writes instead of the received ones, if it writes
    /// one. It does not call `put` for `Host`, which a cache key already has as part of the URL.
    ///
    /// It allocates if the value has to be formatted: an address, a host, or a list with its
    /// earlier members.
    pub fn generated_value(&self, known: FieldName, put: impl FnOnce(&[u8])) {
        match known {
            FieldName::Te if self.accepts_trailers() => put(b"trailers"),
            FieldName::XForwardedProto if self.is_gateway() => put(self.reported_scheme()),
            FieldName::ClientCert => {
                if let Some(client) = self.certificate() {
                    put(&client.certificate);
                }
            }
            FieldName::ClientCertChain => {
                if let Some(chain) = self.certificate().and_then(|client| client.chain.as_ref()) {
                    put(chain);
                }
            }
            _ if GENERATED.contains(known) && self.is_gateway() => {
                let mut added = Vec::with_capacity(ADDED_BYTES);
                let header = &mut Http1Header::new(&mut added);
                self.write_forwarding(header, self.authority().as_ref());
                let mut fields = FieldRun::Lines(&added).fields();
                if let Some((_, value)) =
                    fields.find(|(name, _)| FieldName::from_bytes(name) == known)
                {
                    put(value);
                }
            }
            _ => {}
        }
    }

    /// Calls `put` with the name and value of each field that has to be part of a cache key.
    /// An origin may select its response by these fields, and the client may determine their
    /// values. They are accepted because the peer is trusted, or because the configuration forwards
    /// them from every peer. Fields of the client's certificate are represented by their digests.
    ///
    /// Values that this proxy would write itself are left out, so that a request has the same key
    /// with and without them.
    pub fn for_each_key_field(&self, mut put: impl FnMut(&'a [u8], &[u8])) {
        let Forwarding::Gateway { is_trusted, .. } = self.forwarding else { return };
        if let Some(ClientCertificate { digests: [certificate, chain], .. }) = self.certificate {
            put(b"client-cert", certificate);
            put(b"client-cert-chain", chain);
        }
        if !self.head.has_any(&FORWARDING_FIELDS) {
            return;
        }
        let mut seen = NameSet::default();
        for field in self.head.fields() {
            let (known, name, value) =
                (field.known, self.head.name_of(field), self.head.value_of(field));
            match known {
                _ if !FORWARDING_FIELDS.contains(known) => {}
                // The origin receives all lines of `Forwarded` as one list, but only the first
                // value of `X-Forwarded-Host` and of `X-Forwarded-Proto`.
                _ if GENERATED.contains(known) && (!is_trusted || seen.contains(known)) => {}
                FieldName::Forwarded => {
                    seen = seen.union(&NameSet::new(&[known]));
                    let kept = self.url_parameters();
                    if !kept.is_empty() {
                        put(name, &kept);
                    }
                }
                FieldName::XForwardedHost | FieldName::XForwardedProto => {
                    seen = seen.union(&NameSet::new(&[known]));
                    let is_own = match known {
                        FieldName::XForwardedHost => self.is_own_host(value),
                        _ => value == self.scheme.as_str().as_bytes(),
                    };
                    if !is_own {
                        put(name, value);
                    }
                }
                _ if GENERATED.contains(known) => {}
                _ if (is_trusted && URL_FIELDS.contains(known))
                    || self.is_always_forwarded(field) =>
                {
                    put(name, value)
                }
                _ => {}
            }
        }
    }

    /// Returns whether a value equals the `X-Forwarded-Host` that this gateway would write itself.
    fn is_own_host(&self, value: &[u8]) -> bool {
        match self.authority() {
            // The common case, compared without a copy.
            Some(Authority { host: Host::Name(name), port })
                if port.is_none_or(|port| port == self.scheme.port()) =>
            {
                value.iter().copied().eq(name.iter().map(u8::to_ascii_lowercase))
            }
            Some(authority) => {
                let mut own = Vec::with_capacity(value.len());
                self.write_host(&mut own, &authority);
                own == value
            }
            None => value.is_empty(),
        }
    }

    /// Combines all lines of `Forwarded` into one list, and returns its parameters that are not
    /// addresses.
    fn url_parameters(&self) -> Vec<u8> {
        let mut lines = self.head.values(FieldName::Forwarded);
        let first = lines.next().unwrap_or_default();
        let rest: Vec<&[u8]> = lines.collect();
        if rest.is_empty() {
            return url_parameters(first);
        }
        url_parameters(&[&[first][..], &rest].concat().join(&b", "[..]))
    }
}

/// Returns the members of a `Forwarded` value without their address parameters (`for` and `by`, RFC
/// 7239 sections 5.1 and 5.2). A parameter that implementations may split differently is kept. If
/// no parameter is left, the result is empty and not allocated.
fn url_parameters(value: &[u8]) -> Vec<u8> {
    let mut kept = Vec::new();
    if split_list(value).flat_map(non_address_parameters).all(<[u8]>::is_empty) {
        return kept;
    }
    for (at, member) in split_list(value).enumerate() {
        kept.extend_from_slice(if at == 0 { b"" } else { b"," });
        for parameter in non_address_parameters(member) {
            kept.push(b';');
            kept.extend_from_slice(parameter);
        }
    }
    kept
}

/// Returns the parameters of a member that are not addresses.
fn non_address_parameters(member: &[u8]) -> impl Iterator<Item = &[u8]> {
    let parameters = member.split(|&byte| byte == b';').map(<[u8]>::trim_ascii);
    parameters.filter(|parameter| !is_address_parameter(parameter))
}

fn is_address_parameter(parameter: &[u8]) -> bool {
    let [a, b, c, rest @ ..] = parameter else { return false };
    let address = match [a, b, c].map(u8::to_ascii_lowercase) {
        [b'f', b'o', b'r'] => rest.strip_prefix(b"="),
        [b'b', b'y', b'='] => parameter.get(3..),
        _ => None,
    };
    address.is_some_and(|address| {
        let address = match address {
            [b'"', quoted @ .., b'"'] => quoted,
            token => token,
        };
        address.iter().all(|byte| byte.is_ascii_alphanumeric() || b"._-:[]".contains(byte))
    })
}

/// Bytes that are enough for the lines that a gateway adds to most requests.
const ADDED_BYTES: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_heads::request;

    fn client() -> Option<IpAddr> {
        Some("192.0.2.1".parse().unwrap())
    }

    fn head(fields: &str) -> RequestHead {
        request(format!("GET /a HTTP/1.1\r\nHost: SHOP:80\r\n{fields}\r\n")).unwrap()
    }

    /// Returns the fields that an origin receives, as lines.
    fn sent(head: &RequestHead, forwarding: Forwarding<'_>) -> String {
        let request = OriginRequest::new(head, Scheme::Http, forwarding);
        let mut out = Vec::new();
        let mut header = Http1Header::new(&mut out);
        request.lines(NameSet::default()).for_each(|run| header.field_run(run));
        request.write_forwarding(&mut header, request.authority().as_ref());
        String::from_utf8(out).unwrap()
    }

    fn keyed(head: &RequestHead, forwarding: Forwarding<'_>) -> Vec<String> {
        let mut fields = Vec::new();
        OriginRequest::new(head, Scheme::Http, forwarding).for_each_key_field(|name, value| {
            fields.push(String::from_utf8([name, b":", value].concat()).unwrap());
        });
        fields
    }

    const DESCRIBED: &str = "Forwarded: for=1.2.3.4;host=evil;proto=https\r\nX-Real-Ip: 1.2.3.4\r\n\
         X-Forwarded-For: 1.2.3.4\r\nX-Forwarded-Host: evil\r\nX-Forwarded-Proto: https\r\n\
         X-Forwarded-Scheme: https\r\nX-Forwarded-Prefix: /evil\r\nX-Host: evil\r\n\
         X-Original-URL: /admin\r\nX-Rewrite-URL: /admin\r\nFront-End-Https: on\r\nProxy: evil\r\n\
         True-Client-IP: 1.2.3.4\r\nCF-Connecting-IP: 1.2.3.4\r\nX-Client-IP: 1.2.3.4\r\n";

    const OWN: &str = "X-Forwarded-For: 192.0.2.1\r\n\
         Forwarded: for=192.0.2.1;proto=http;host=\"shop\"\r\n\
         X-Forwarded-Proto: http\r\nX-Forwarded-Host: shop\r\n";

    #[test]
    fn a_gateway_removes_untrusted_fields() {
        let head = head(&format!("{DESCRIBED}X-HTTP-Method: PUT\r\nCookie: a\r\n"));
        let untrusted =
            Forwarding::Gateway { client: client(), is_trusted: false, always_forwarded: &[] };
        let expected = format!("X-HTTP-Method: PUT\r\nCookie: a\r\n{OWN}");
        assert_eq!(sent(&head, untrusted), expected);
        assert!(keyed(&head, untrusted).is_empty());
    }

    #[test]
    fn a_gateway_forwards_and_keys_fields_of_trusted_peers() {
        let head = head(DESCRIBED);
        let trusted =
            Forwarding::Gateway { client: client(), is_trusted: true, always_forwarded: &[] };
        let text = sent(&head, trusted);
        assert!(text.contains("X-Forwarded-For: 1.2.3.4, 192.0.2.1\r\n"), "{text}");
        assert!(text.contains("Forwarded: for=1.2.3.4;host=evil;proto=https, for=192.0.2.1;"));
        assert!(text.contains("X-Forwarded-Proto: https\r\nX-Forwarded-Host: evil\r\n"));
        assert!(text.contains("X-Real-Ip: 1.2.3.4\r\n") && !text.contains("Proxy:"));
        let expected = [
            "Forwarded:;host=evil;proto=https",
            "X-Forwarded-Host:evil",
            "X-Forwarded-Proto:https",
            "X-Forwarded-Scheme:https",
            "X-Forwarded-Prefix:/evil",
            "X-Host:evil",
            "X-Original-URL:/admin",
            "X-Rewrite-URL:/admin",
            "Front-End-Https:on",
        ];
        assert_eq!(keyed(&head, trusted), expected);
    }

    #[test]
    fn the_lines_of_forwarded_are_one_list() {
        let trusted =
            Forwarding::Gateway { client: client(), is_trusted: true, always_forwarded: &[] };
        let of = |fields: &str| keyed(&head(fields), trusted);
        let before = of("Forwarded: for=x\r\nForwarded: host=evil\r\n");
        assert_eq!(before, of("Forwarded: for=x, host=evil\r\n"));
        assert_ne!(before, of("Forwarded: host=evil\r\nForwarded: for=x\r\n"));
        assert_ne!(before, of("Forwarded: host=evil\r\n"));
    }

    #[test]
    fn values_of_the_gateway_are_not_keyed() {
        let head =
            head("X-Forwarded-Host: shop\r\nX-Forwarded-Proto: http\r\nForwarded: for=a\r\n");
        let trusted = Forwarding::Gateway { client: None, is_trusted: true, always_forwarded: &[] };
        assert!(keyed(&head, trusted).is_empty());
        assert!(sent(&head, trusted).starts_with("X-Forwarded-For: unknown\r\nForwarded: for=a, "));
    }

    #[test]
    fn a_forwarded_host_is_compared_with_the_own_host_byte_by_byte() {
        let is_own = |host: &str, value: &str| {
            let text =
                format!("GET /a HTTP/1.1\r\nHost: {host}\r\nX-Forwarded-Host: {value}\r\n\r\n");
            let trusted =
                Forwarding::Gateway { client: None, is_trusted: true, always_forwarded: &[] };
            keyed(&request(text).unwrap(), trusted).is_empty()
        };
        for host in ["shop", "SHOP", "Shop:80"] {
            assert!(is_own(host, "shop"));
            for other in ["SHOP", "shop:80", "sho", "shops", ""] {
                assert!(!is_own(host, other), "{host}: {other}");
            }
        }
        assert!(is_own("SHOP:8080", "shop:8080") && !is_own("shop:8080", "shop"));
        assert!(is_own("127.0.0.1:80", "127.0.0.1") && !is_own("127.0.0.1", "127.0.0.1:80"));
    }

    #[test]
    fn a_request_over_tls_is_described_as_https() {
        let of = |host: &str, fields: &str, is_trusted: bool| {
            let head = request(format!("GET /a HTTP/1.1\r\nHost: {host}\r\n{fields}\r\n")).unwrap();
            let forwarding =
                Forwarding::Gateway { client: None, is_trusted, always_forwarded: &[] };
            let sent = OriginRequest::new(&head, Scheme::Https, forwarding);
            let (mut out, mut keyed) = (Vec::new(), Vec::new());
            let authority = sent.authority().unwrap();
            sent.write_host(&mut out, &authority);
            out.push(b'\n');
            sent.write_forwarding(&mut Http1Header::new(&mut out), Some(&authority));
            sent.for_each_key_field(|name, value| keyed.extend([name, b"=", value].concat()));
            (String::from_utf8(out).unwrap(), String::from_utf8(keyed).unwrap())
        };
        let own = "shop\nX-Forwarded-For: unknown\r\n\
                   Forwarded: for=unknown;proto=https;host=\"shop\"\r\n\
                   X-Forwarded-Proto: https\r\nX-Forwarded-Host: shop\r\n";
        assert_eq!(of("Shop:443", "", false), (own.to_owned(), String::new()));
        assert!(of("shop:80", "", false).0.starts_with("shop:80\n"));
        let same = "X-Forwarded-Proto: https\r\nX-Forwarded-Host: shop\r\n";
        assert_eq!(of("shop:443", same, true), (own.to_owned(), String::new()));
        let (sent, keyed) = of("shop", "X-Forwarded-Proto: http\r\n", true);
        assert!(sent.contains("proto=https") && sent.contains("X-Forwarded-Proto: http\r\n"));
        assert_eq!(keyed, "X-Forwarded-Proto=http");
        assert_eq!(of("shop", "X-Forwarded-Proto: http\r\n", false).1, "");
        assert_eq!(
            of("shop", "X-Forwarded-Host: shop:443\r\n", true).1,
            "X-Forwarded-Host=shop:443"
        );
    }

    #[test]
    fn configured_fields_are_forwarded_and_keyed_for_every_peer() {
        let head = head(DESCRIBED);
        let always_forwarded = [(*b"x-real-ip").into(), (*b"x-forwarded-prefix").into()];
        let forwarding = Forwarding::Gateway {
            client: client(),
            is_trusted: false,
            always_forwarded: &always_forwarded,
        };
        let text = sent(&head, forwarding);
        assert_eq!(text, format!("X-Real-Ip: 1.2.3.4\r\nX-Forwarded-Prefix: /evil\r\n{OWN}"));
        let expected = ["X-Real-Ip:1.2.3.4", "X-Forwarded-Prefix:/evil"];
        assert_eq!(keyed(&head, forwarding), expected);
    }

    #[test]
    fn a_forward_proxy_changes_no_forwarding_field() {
        let head = head(DESCRIBED);
        let expected = DESCRIBED.replace("Proxy: evil\r\n", "");
        assert_eq!(sent(&head, Forwarding::Proxy), expected);
        assert!(keyed(&head, Forwarding::Proxy).is_empty());
    }

    #[test]
    fn values_are_those_that_the_origin_receives() {
        let head = head(&format!(
            "{DESCRIBED}TE: gzip, trailers\r\nConnection: te, x-own\r\n\
                                  X-Own: 1\r\nX-Other: 2\r\n"
        ));
        let of = |forwarding, name: &str| {
            let request = OriginRequest::new(&head, Scheme::Http, forwarding);
            let known = FieldName::from_bytes(name.as_bytes());
            let mut all = Vec::new();
            request.generated_value(known, |value| all.push(value.to_vec()));
            all.extend(request.values(known, name.as_bytes()).map(<[u8]>::to_vec));
            String::from_utf8(all.join(&b"|"[..])).unwrap()
        };
        let untrusted =
            Forwarding::Gateway { client: client(), is_trusted: false, always_forwarded: &[] };
        assert_eq!(of(untrusted, "x-forwarded-for"), "192.0.2.1");
        assert_eq!(of(untrusted, "x-forwarded-host"), "shop");
        assert_eq!(of(untrusted, "x-forwarded-proto"), "http");
        let trusted =
            Forwarding::Gateway { client: client(), is_trusted: true, always_forwarded: &[] };
        assert_eq!(of(trusted, "x-forwarded-proto"), "https");
        assert_eq!(of(Forwarding::Proxy, "x-forwarded-proto"), "https");
        assert_eq!(of(untrusted, "x-forwarded-scheme"), "");
        assert_eq!(of(Forwarding::Proxy, "x-forwarded-for"), "1.2.3.4");
        assert_eq!(of(Forwarding::Proxy, "x-forwarded-scheme"), "https");
        for forwarding in [untrusted, Forwarding::Proxy] {
            assert_eq!(of(forwarding, "te"), "trailers");
            assert_eq!(of(forwarding, "x-own"), "", "removed by Connection");
            assert_eq!(of(forwarding, "x-other"), "2");
            assert_eq!(of(forwarding, "host"), "", "part of the URL");
        }
    }

    #[test]
    fn only_the_own_certificate_of_a_client_is_passed_on_rfc_9440_section_2_4() {
        let certificate = ClientCertificate {
            certificate: (*b":MII=:").into(),
            chain: Some((*b":MIJ=:, :MIK=:").into()),
            digests: [(*b"d1").into(), (*b"d2").into()],
        };
        let forged = "CLIENT-cert: :AA==:\r\nclient_cert: :AA==:\r\nClient.Cert.Chain: :AA==:\r\n\
                      Client-Cert-Chain: :AA==:\r\nConnection: client-cert, client-cert-chain\r\n";
        let head = head(forged);
        let trusted =
            Forwarding::Gateway { client: client(), is_trusted: true, always_forwarded: &[] };
        assert_eq!(sent(&head, trusted).matches("AA==").count(), 0);
        assert_eq!(sent(&head, Forwarding::Proxy), "");
        let of = |forwarding| {
            let request = OriginRequest::new(&head, Scheme::Https, forwarding);
            let request = request.with_certificate(Some(&certificate));
            let (mut out, mut keyed, mut varied) = (Vec::new(), Vec::new(), Vec::new());
            request.write_forwarding(&mut Http1Header::new(&mut out), None);
            request.for_each_key_field(|name, value| keyed.extend([name, b"=", value].concat()));
            for name in [FieldName::ClientCert, FieldName::ClientCertChain] {
                request.generated_value(name, |value| varied.extend_from_slice(value));
                assert_eq!(request.values(name, b"").count(), 0);
            }
            [out, keyed, varied].map(|bytes| String::from_utf8(bytes).unwrap())
        };
        let [out, keyed, varied] = of(trusted);
        assert!(out.ends_with("\r\nClient-Cert: :MII=:\r\nClient-Cert-Chain: :MIJ=:, :MIK=:\r\n"));
        assert_eq!(keyed, "client-cert=d1client-cert-chain=d2");
        assert_eq!(varied, ":MII=::MIJ=:, :MIK=:");
        assert_eq!(of(Forwarding::Proxy), [""; 3]);
    }

    #[test]
    fn parameters_of_forwarded_are_kept_unless_they_are_addresses_rfc_7239_section_5() {
        let of = |value: &str| String::from_utf8(url_parameters(value.as_bytes())).unwrap();
        assert_eq!(of("for=1.2.3.4, For=\"[2001:db8::1]:47\";by=_gazonk"), "");
        assert_eq!(of("for=a;proto=https, for=b"), ";proto=https,");
        assert_eq!(of("for=b, for=a;proto=https"), ",;proto=https", "order counts");
        assert_eq!(of("for=\"a;proto=https\""), ";for=\"a;proto=https\"", "read in two ways");
        assert_eq!(of("for = a; host=x"), ";for = a;host=x");
        assert_eq!(of("for=\"a"), ";for=\"a");
        assert_eq!(of("host=\"a,b\";for=c"), ";host=\"a,b\"");
        assert_eq!(of("fork=1"), ";fork=1");
    }
}
