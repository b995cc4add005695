//! `Vary`: which stored response for a URI matches a request (RFC 9111 section 4.1).
//!
//! Fields are compared as the origin receives them. Their values are normalised as far as their
//! definition permits, and hashed:
//!
//! * Lines of lists and of unknown fields are joined.
//! * In fields that an RFC defines as lists, empty members and white space around members are
//!   ignored.
//! * In fields of content negotiation, the case of values, the order of members, and the notation
//!   of weights are ignored too.
//! * All other fields are compared byte by byte: to an origin, `lang=en,` may be another cookie
//!   than `lang=en`.

use memchr::memchr;
use millrace_http1::{FieldName, NameSet, OriginRequest, ResponseHead, split_list, split_tokens};
use siphasher::sip128::{Hasher128, SipHasher13};

use super::key::{HashKey, put_lower};
use super::key_sink::KeySink;
use super::limits::VARY_NAMES_MAX;
use super::not_stored::NotStored;

/// The request fields by which the responses for a URI differ.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct VaryNames {
    /// Distinct lower-case names in order, separated by commas; never empty.
    text: Box<[u8]>,
    /// The [`FieldName`] of each name.
    known: Box<[FieldName]>,
}

/// The values of a request in the fields of [`VaryNames`], as hashes. Comparable only for the same
/// names.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct VariantKey {
    /// Hash of all values.
    pub exact: u128,
    /// The same, with `Accept-Language` replaced: in a request by its preferred language, in a
    /// stored response by the language of the response.
    pub by_language: Option<u128>,
}

impl VariantKey {
    /// Returns whether a stored response with this key matches a request with the key `request`.
    ///
    /// RFC 9111 section 4.1: a response matches equal values. A response in the language that the
    /// request prefers to all others matches too, because the origin could not select a better one.
    pub fn matches(&self, request: &Self) -> bool {
        let is_same_language =
            || self.by_language.is_some() && self.by_language == request.by_language;
        self.exact == request.exact || is_same_language()
    }
}

impl VaryNames {
    /// Parses the `Vary` fields of a response; `None` if it has none.
    ///
    /// # Errors
    /// Returns [`NotStored::VaryAny`] if there is a `*`, with which the response matches no other
    /// request, and [`NotStored::VaryTooMany`] beyond 16 names.
    pub fn parse(response: &ResponseHead) -> Result<Option<Self>, NotStored> {
        let mut names: Vec<Vec<u8>> = Vec::new();
        for name in response.values(FieldName::Vary).flat_map(split_tokens) {
            if name == b"*" {
                return Err(NotStored::VaryAny);
            }
            if names.iter().any(|known| known.eq_ignore_ascii_case(name)) {
                continue;
            }
            if names.len() == VARY_NAMES_MAX {
                return Err(NotStored::VaryTooMany);
            }
            names.push(name.to_ascii_lowercase());
        }
        names.sort_unstable();
        Ok(Self::from_bytes(&names.join(&b',')))
    }

    /// Returns the names in stored form, for the disk and for operators.
    pub fn as_bytes(&self) -> &[u8] {
        &self.text
    }

    /// Parses the result of [`VaryNames::as_bytes`]; `None` if it has no names.
    pub fn from_bytes(names: &[u8]) -> Option<Self> {
        let known: Box<[FieldName]> = split_tokens(names).map(FieldName::from_bytes).collect();
        (!known.is_empty()).then(|| Self { text: names.into(), known })
    }

    /// Returns a hash of the raw values of a request in these fields. Requests with the same raw
    /// values have the same [`VaryNames::key`], which costs about four times as much, so an index
    /// searches for this hash first and remembers it for matched requests. Absent and empty fields
    /// have different hashes.
    pub fn raw_hash(&self, hash: &HashKey, request: &OriginRequest<'_>) -> u128 {
        let mut sink = hash.hasher();
        for (name, &known) in self.iter() {
            let mut put_value = |value: &[u8]| {
                sink.put(value);
                sink.put(b"\n");
            };
            request.generated_value(known, &mut put_value);
            request.values(known, name).for_each(put_value);
            // Values contain no NUL and no line end, so two lists of values never have the same
            // text.
            sink.put(b"\0");
        }
        sink.finish128().as_u128()
    }

    /// Returns the variant key of a request. Allocates only for fields that the proxy writes
    /// itself; see [`OriginRequest::generated_value`].
    pub fn key(&self, hash: &HashKey, request: &OriginRequest<'_>) -> VariantKey {
        let language = if self.has_language() { preferred_language(request) } else { None };
        self.key_in(hash, request, language)
    }

    /// Returns the key under which a response to this request is stored.
    pub fn response_key(
        &self,
        hash: &HashKey,
        request: &OriginRequest<'_>,
        response: &ResponseHead,
    ) -> VariantKey {
        let mut languages = response.values(FieldName::ContentLanguage).flat_map(split_tokens);
        let language = languages.next().filter(|_| self.has_language());
        let language = if languages.next().is_some() { None } else { language };
        self.key_in(hash, request, language)
    }

    fn key_in(
        &self,
        hash: &HashKey,
        request: &OriginRequest<'_>,
        language: Option<&[u8]>,
    ) -> VariantKey {
        VariantKey {
            exact: self.hash(hash, request, None),
            by_language: language.map(|tag| self.hash(hash, request, Some(tag))),
        }
    }

    fn has_language(&self) -> bool {
        self.known.contains(&FieldName::AcceptLanguage)
    }

    fn iter(&self) -> impl Iterator<Item = (&[u8], &FieldName)> {
        self.text.split(|&byte| byte == b',').zip(&self.known)
    }

    fn hash(&self, hash: &HashKey, request: &OriginRequest<'_>, language: Option<&[u8]>) -> u128 {
        let mut sink = hash.hasher();
        for (name, &known) in self.iter() {
            sink.put(name);
            match (known, language) {
                (FieldName::AcceptLanguage, Some(tag)) => {
                    put_lower(&mut sink, b"\n=", tag);
                }
                _ if WEIGHTED_LISTS.contains(known) => {
                    put_weighted(&mut sink, request, (known, name));
                }
                _ if LISTS.contains(known) => put_list(&mut sink, request, (known, name)),
                _ => put_lines(&mut sink, request, (known, name)),
            }
            // Values contain no line end, so two lists of values never have the same text.
            sink.put(b"\n");
        }
        sink.finish128().as_u128()
    }
}

/// Request fields of content negotiation: lists whose members have weights.
const WEIGHTED_LISTS: NameSet = NameSet::new(&[
    FieldName::Accept,
    FieldName::AcceptCharset,
    FieldName::AcceptEncoding,
    FieldName::AcceptLanguage,
]);

/// Other request fields that RFCs define as lists and that are forwarded as received. RFC 7240
/// defines `Prefer` as one.
const LISTS: NameSet = NameSet::new(&[
    FieldName::CacheControl,
    FieldName::CdnLoop,
    FieldName::ContentEncoding,
    FieldName::ContentLanguage,
    FieldName::IfMatch,
    FieldName::IfNoneMatch,
    FieldName::Pragma,
    FieldName::Prefer,
    FieldName::Via,
]);

/// Hashes the lines of a field byte by byte. Lines of an unknown field are joined, as RFC 9110
/// section 5.3 permits. If a known field is not a list, origins use its first or its last line, so
/// two lines are not the same as one line with a comma. An empty field differs from an absent one.
fn put_lines(
    sink: &mut SipHasher13,
    request: &OriginRequest<'_>,
    (known, name): (FieldName, &[u8]),
) {
    request.generated_value(known, |line| {
        sink.put(b"\n:");
        sink.put(line);
    });
    for (at, line) in request.values(known, name).enumerate() {
        sink.put(if at > 0 && known == FieldName::Other { b", " } else { b"\n:" });
        sink.put(line);
    }
}

/// Hashes the members of a list. An empty field differs from an absent one.
fn put_list(
    sink: &mut SipHasher13,
    request: &OriginRequest<'_>,
    (known, name): (FieldName, &[u8]),
) {
    let mut values = request.values(known, name).peekable();
    if values.peek().is_some() {
        sink.put(b"\n:");
    }
    for (at, member) in values.flat_map(split_list).enumerate() {
        sink.put(if at == 0 { b"" } else { b"," });
        sink.put(member);
    }
}

/// Hashes the members of a field of content negotiation (RFC 9110 section 12.5). Each member has
/// its weight, so their order has no meaning and they are sorted. An unusually long list is hashed
/// as it is.
fn put_weighted(
    sink: &mut SipHasher13,
    request: &OriginRequest<'_>,
    (known, name): (FieldName, &[u8]),
) {
    let mut list = [WeightedMember::default(); WEIGHTED_MAX];
    let mut count = 0;
    let mut values = request.values(known, name).peekable();
    let is_there = values.peek().is_some();
    for member in values.flat_map(split_list).map(WeightedMember::parse) {
        let Some(place) = list.get_mut(count) else {
            return put_list(sink, request, (known, name));
        };
        *place = member;
        count += 1;
        let mut at = count - 1;
        while at > 0 && list[at].is_before(&list[at - 1]) {
            list.swap(at, at - 1);
            at -= 1;
        }
    }
    if is_there {
        sink.put(b"\n+");
    }
    list[..count].iter().for_each(|member| member.put(sink));
}

/// Maximum number of members that are sorted.
const WEIGHTED_MAX: usize = 16;

/// A member of a field of content negotiation.
#[derive(Clone, Copy, Default)]
struct WeightedMember<'a> {
    value: &'a [u8],
    /// The parameters from the first `;` on.
    parameters: &'a [u8],
    weight: u16,
}

impl<'a> WeightedMember<'a> {
    fn parse(member: &'a [u8]) -> Self {
        let value_len = memchr(b';', member).unwrap_or(member.len());
        let (value, parameters) = member.split_at(value_len);
        let value = value.trim_ascii();
        // The two names denote the same coding (RFC 9110 section 8.4.1.3).
        let value = if value.eq_ignore_ascii_case(b"x-gzip") { b"gzip" } else { value };
        let weight = only_weight(parameters).unwrap_or(WEIGHT_MAX);
        Self { value, parameters, weight }
    }

    fn is_before(&self, other: &Self) -> bool {
        let lower = |bytes: &'a [u8]| bytes.iter().map(u8::to_ascii_lowercase);
        let by_value = lower(self.value).cmp(other.value.iter().map(u8::to_ascii_lowercase));
        let rest = |member: &Self| (member.weight, member.parameters.len());
        by_value.then_with(|| rest(self).cmp(&rest(other))).is_lt()
    }

    fn put(&self, sink: &mut SipHasher13) {
        let [high, low] = self.weight.to_be_bytes();
        put_lower(sink, &[b'\n', high, low], self.value);
        let has_weight = only_weight(self.parameters).is_some();
        for parameter in split_parameters(self.parameters) {
            if !has_weight || parse_weight(parameter).is_none() {
                sink.put(b";");
                sink.put(parameter);
            }
        }
    }
}

/// Splits the parameters of a member. Parameters with a quoted string are not split, because a
/// string may contain `;` and white space.
fn split_parameters(parameters: &[u8]) -> impl Iterator<Item = &[u8]> {
    let has_string = memchr(b'"', parameters).is_some();
    let pieces = parameters.split(move |&byte| byte == b';' && !has_string);
    pieces.skip(usize::from(!has_string)).map(<[u8]>::trim_ascii)
}

/// Returns the only weight in the parameters of a member. Returns `None` if there are two, of which
/// some origins use the first and some the last.
fn only_weight(parameters: &[u8]) -> Option<u16> {
    let mut weights = split_parameters(parameters).filter_map(parse_weight);
    weights.next().filter(|_| weights.next().is_none())
}

const WEIGHT_MAX: u16 = 1000;

/// Parses `q=0.5` as thousandths (RFC 9110 section 12.4.2); `None` for any other parameter.
fn parse_weight(parameter: &[u8]) -> Option<u16> {
    let [b'q' | b'Q', b'=', number @ ..] = parameter else { return None };
    let (whole, fraction) = match number {
        [whole @ (b'0' | b'1')] => (whole, &[][..]),
        [whole @ (b'0' | b'1'), b'.', fraction @ ..] if fraction.len() <= 3 => (whole, fraction),
        _ => return None,
    };
    if !fraction.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let digit = |at: usize| fraction.get(at).map_or(0, |digit| u16::from(digit - b'0'));
    let thousandths = u16::from(whole - b'0') * 1000 + digit(0) * 100 + digit(1) * 10 + digit(2);
    (thousandths <= WEIGHT_MAX).then_some(thousandths)
}

/// Returns the language that a request prefers to all others; `None` if there is no such one.
fn preferred_language<'a>(request: &OriginRequest<'a>) -> Option<&'a [u8]> {
    let mut best: Option<(&[u8], u16)> = None;
    let mut is_alone = false;
    for member in request.head().values(FieldName::AcceptLanguage).flat_map(split_list) {
        let mut parts = member.split(|&byte| byte == b';').map(<[u8]>::trim_ascii);
        let language = parts.next()?;
        let weight = parts.next().map_or(Some(WEIGHT_MAX), parse_weight)?;
        match best {
            Some((other, most)) if most == weight => {
                is_alone &= other.eq_ignore_ascii_case(language);
            }
            Some((_, most)) if most > weight => {}
            _ => {
                best = Some((language, weight));
                is_alone = true;
            }
        }
    }
    let (language, weight) = best?;
    (is_alone && weight > 0 && language != b"*").then_some(language)
}

#[cfg(test)]
mod tests {
    use millrace_http1::{Forwarding, Scheme};

    use super::super::test_messages::{HASH, get, response};
    use super::*;

    fn names(value: &str) -> Result<Option<VaryNames>, NotStored> {
        VaryNames::parse(&response(200, &format!("Vary: {value}\r\n")))
    }

    /// Returns whether the stored response to one request matches another request.
    fn fits(vary: &str, stored: &str, fields: &str, request_fields: &str) -> bool {
        let names = names(vary).unwrap().unwrap();
        let (stored, request) = (get(stored), get(request_fields));
        let stored = OriginRequest::as_received(&stored);
        let stored = names.response_key(&HASH, &stored, &response(200, fields));
        stored.matches(&names.key(&HASH, &OriginRequest::as_received(&request)))
    }

    fn same(field: &str, one: &str, other: &str) -> bool {
        let line = |value: &str| format!("{field}: {value}\r\n");
        fits(field, &line(one), "", &line(other))
    }

    #[test]
    fn names_are_read_rfc_9110_section_12_5_5() {
        let text = |value| names(value).unwrap().map(|names| names.as_bytes().to_vec());
        assert_eq!(text("Foo, bar,, FOO\r\nVary: Baz").unwrap(), b"bar,baz,foo");
        assert_eq!(text(" ,"), None);
        assert_eq!(VaryNames::from_bytes(b"a,b"), names("b, A").unwrap());
        for any in ["*", "*, *", "*\r\nVary: *", ", *", "\r\nVary: *", "*, Foo", "Foo, *"] {
            assert_eq!(names(any), Err(NotStored::VaryAny), "{any}");
        }
        let many = |count: usize| (0..count).map(|at| format!("a{at},")).collect::<String>();
        assert!(names(&many(16)).unwrap().is_some());
        assert_eq!(names(&many(17)), Err(NotStored::VaryTooMany));
    }

    #[test]
    fn named_fields_have_to_be_equal_section_4_1() {
        let all = "Foo: 1\r\nBar: abc\r\nBaz: 789\r\n";
        assert!(fits("Foo, Bar, Baz", all, "", all));
        assert!(fits("Foo", "Foo: 1\r\nOther: 2\r\n", "", "Other: 3\r\nfoo: 1\r\n"));
        assert!(fits("Foo, Bar", "Foo: 1\r\n", "", "Foo: 1\r\n"), "both lack one");
        assert!(!fits("Foo, Bar, Baz", all, "", "Foo: 2\r\nBar: abc\r\nBaz: 789\r\n"));
        assert!(!fits("Foo", "", "", "Foo: 1\r\n"));
        assert!(!fits("Foo", "Foo: 1\r\n", "", ""));
        assert!(!fits("Foo", "Foo:\r\n", "", ""));
        assert!(!fits("Foo, Bar", "Foo: 1\r\n", "", "Bar: 1\r\n"));
        assert!(!same("Foo", "1", "12") && !same("Foo", "a", "A"));
    }

    #[test]
    fn lists_are_joined_and_white_space_is_ignored_section_4_1() {
        for list in ["Prefer", "Cache-Control", "If-None-Match"] {
            let twice = |one: &str, other: &str| format!("{one}\r\n{list}: {other}");
            assert!(same(list, "1, 2", &twice("1", "2")));
            assert!(same(list, "1,2", " 1, 2 ") && same(list, "1,,2", "1 ,\t2"));
            assert!(!same(list, "1, 2", "2, 1") && !same(list, "\"1, 2\"", "\"1,2\""));
            assert!(!same(list, "1", &twice("1", "1")));
        }
    }

    #[test]
    fn other_fields_are_compared_byte_by_byte_section_4_1() {
        for (name, one, other) in [
            ("Cookie", "lang=en", "lang=en,"),
            ("Cookie", "a=1,2", "a=1, 2"),
            ("User-Agent", "a,b", "a, b"),
            ("X-Tenant", "a", "a,"),
            ("Authorization", "a ,b", "a,b"),
            ("User-Agent", "a (b, c)", "a (b\r\nUser-Agent: c)"),
            ("Cookie", "a=\"x, y\"", "a=\"x\r\nCookie: y\""),
        ] {
            assert!(!same(name, one, other), "{name}: {one}");
        }
        assert!(same("Foo", "1, 2", "1\r\nFoo: 2"), "RFC 9110 section 5.3");
    }

    #[test]
    fn negotiation_is_compared_by_meaning_rfc_9110_section_12_5() {
        assert!(same("Accept-Language", "en, de", "de, en"));
        assert!(same("Accept-Language", "en, de", "eN, De"));
        assert!(same("Accept-Language", "en, de", " en ,   de"));
        assert!(same("Accept-Encoding", "gzip, br;q=0.5", "BR; q=0.50,gzip;q=1.000"));
        assert!(same("Accept-Encoding", "x-gzip", "gzip;q=1."));
        assert!(!same("Accept", "text/html;a=\"x; y\"", "text/html;a=\"x;y\""));
        assert!(same(
            "Accept",
            "text/html;level=1;q=0.3, */*",
            "*/*, TEXT/HTML ; level=1 ; q=0.30"
        ));
        assert!(same("Accept-Charset", "UTF-8, a;q=0.1", "a;q=0.1, utf-8"));
        assert!(!same("Accept-Language", "en, de", "en, de;q=0.9"));
        assert!(
            !same("Accept-Encoding", "gzip", "gzip, br") && !same("Accept-Encoding", "gzip", "")
        );
        assert!(!same("Accept-Encoding", "gzip", "gzip;q=0"));
        assert!(!same("Accept", "a/b;c=D", "a/b;c=d"));
        assert!(!same("Accept-Encoding", "gzip;q=2", "gzip;q=3"), "malformed weights are compared");
        assert!(!same("Accept-Encoding", "gzip", "gzip;q=0;q=1"), "two weights");
        assert!(!same("Accept-Encoding", "gzip;q=1;q=0", "gzip;q=0;q=1"), "two weights");
        assert!(!same("Accept-Encoding", "a, a", "a"));
        let many = |count: usize, from: usize| {
            (0..count).map(|at| format!("a{},", (at + from) % count)).collect::<String>()
        };
        assert!(same("Accept", &many(16, 0), &many(16, 1)));
        assert!(same("Accept", &many(17, 0), &many(17, 0)));
        assert!(!same("Accept", &many(17, 0), &many(17, 1)), "too many to be put in order");
    }

    #[test]
    fn equal_raw_values_have_the_same_hash() {
        let names = names("Foo, Bar").unwrap().unwrap();
        let words = |fields: &str| names.raw_hash(&HASH, &OriginRequest::as_received(&get(fields)));
        assert_eq!(words("Foo: 1\r\nX: y\r\nbar: 2\r\n"), words("bar: 2\r\nfoo: 1\r\n"));
        for other in ["Foo: 1\r\n", "Foo: 2\r\nBar: 1\r\n", "Foo: 1\r\nFoo: 2\r\n", ""] {
            assert_ne!(words("Foo: 1\r\nBar: 2\r\n"), words(other), "{other}");
        }
        assert_ne!(words("Foo: 1\r\n"), words("Bar: 1\r\n"));
        assert_ne!(words("Foo: 1\r\nFoo: 2\r\n"), words("Foo: 1\r\nBar: 2\r\n"));
        assert_ne!(words("Foo:\r\n"), words(""));
        assert_ne!(words("Foo:\r\n"), words("Bar:\r\n"), "empty values are distinguished");
        let all = ["", "Foo:\r\n", "Foo:\r\nFoo:\r\n", "Bar:\r\nBar:\r\n", "Foo:\r\nBar:\r\n"];
        for (at, one) in all.iter().enumerate() {
            assert!(all[..at].iter().all(|other| words(one) != words(other)), "{one}");
            assert!(all[..at].iter().all(|other| !fits("Foo, Bar", one, "", other)), "{one}");
        }
    }

    #[test]
    fn a_field_is_compared_as_the_origin_receives_it() {
        let sent = |vary: &str, client: &str, is_trusted, fields: &str| {
            let names = names(vary).unwrap().unwrap();
            let (head, client) = (get(fields), client.parse().ok());
            let forwarding = Forwarding::Gateway { client, is_trusted, always_forwarded: &[] };
            let request = OriginRequest::new(&head, Scheme::Http, forwarding);
            (names.raw_hash(&HASH, &request), names.key(&HASH, &request).exact)
        };
        for vary in ["X-Forwarded-For", "Forwarded"] {
            let one = sent(vary, "192.0.2.1", false, "");
            assert_ne!(one, sent(vary, "192.0.2.9", false, ""), "{vary}: another client");
            let written = "X-Forwarded-For: 192.0.2.9\r\nForwarded: for=192.0.2.9\r\n";
            assert_eq!(one, sent(vary, "192.0.2.1", false, written), "{vary}: not believed");
            assert_ne!(one, sent(vary, "192.0.2.1", true, written), "{vary}: believed");
        }
        let scheme = |is_trusted| {
            sent("X-Forwarded-Proto", "192.0.2.1", is_trusted, "X-Forwarded-Proto: https\r\n")
        };
        assert_eq!(scheme(false), sent("X-Forwarded-Proto", "192.0.2.2", true, ""));
        assert_ne!(scheme(false), scheme(true));
        let removed = "Connection: x-own\r\nX-Own: 1\r\n";
        assert_eq!(sent("X-Own", "::", false, removed), sent("X-Own", "::", false, ""));
    }

    #[test]
    fn a_preferred_language_finds_its_response_section_4_1() {
        let finds = |stored: &str, language: &str, preferred: &str| {
            let stored = format!("Accept-Language: {stored}\r\n");
            let language = format!("Content-Language: {language}\r\n");
            fits(
                "Accept-Language",
                &stored,
                &language,
                &format!("Accept-Language: {preferred}\r\n"),
            )
        };
        assert!(finds("en, de", "de", "fr;q=0.5, de;q=1.0"));
        assert!(finds("en, de", "DE", "de, fr;q=0.9"));
        assert!(!finds("en, de", "de", "fr, de;q=0.9") && !finds("en, de", "de", "fr, de"));
        assert!(!finds("en, de", "de", "de-AT, de;q=0.9") && !finds("en, de", "de", "*"));
        assert!(!finds("en, de", "de, en", "de") && !finds("en, de", "de", "de;q=0"));
        assert!(!finds("en, de", "de", "de;q=x"));
        // Only this field may differ.
        let stored = "Accept-Language: en\r\nFoo: 1\r\n";
        let request_fields = "Accept-Language: de\r\nFoo: 2\r\n";
        assert!(!fits("Accept-Language, Foo", stored, "Content-Language: de\r\n", request_fields));
        assert!(!fits("Foo", "Foo: 1\r\n", "Content-Language: de\r\n", request_fields));
    }
}
