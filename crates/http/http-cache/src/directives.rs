//! Cache directives: `Cache-Control` and `Pragma` of requests, and `Cache-Control` or a targeted
//! field of responses.
//!
//! RFC 9111 section 5.2 does not define how to handle malformed directives. Here a directive is
//! recognised by its name, whatever follows. A malformed argument makes a response stale (section
//! 4.2.1), or extends a prohibition to the whole response. If a directive with a number occurs
//! twice, the first one applies (section 4.2.1). In a targeted field, the last one of any directive
//! applies (RFC 9651 section 3.2). Unknown directives are ignored.

use millrace_http1::{
    FieldName, RequestHead, ResponseHead, has_token, parse_decimal, split_list, split_tokens,
};

use super::field_names::FieldNames;
use super::limits::DELTA_S_MAX;
use super::structured::{self, DirectiveArgument};

/// The cache directives of a request (RFC 9111 section 5.2.1). The default has none.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RequestDirectives {
    /// `max-age`: maximum age of the response in seconds.
    pub max_age_s: Option<u32>,
    /// `min-fresh`: minimum remaining freshness of the response in seconds.
    pub min_fresh_s: Option<u32>,
    /// `max-stale`: maximum staleness of the response in seconds; `u32::MAX` if it is unlimited.
    pub max_stale_s: Option<u32>,
    /// `no-cache`: the response has to be validated first.
    pub no_cache: bool,
    /// `no-store`: no part of the exchange may be stored.
    pub no_store: bool,
    /// `only-if-cached`: respond from the cache, or with status 504.
    pub only_if_cached: bool,
}

impl RequestDirectives {
    /// Parses the directives of a request. If it has neither `Cache-Control` nor `Pragma`, the cost
    /// is two bit tests.
    ///
    /// `Pragma: no-cache` applies if there is no `Cache-Control`: RFC 9111 section 5.4 deprecates
    /// it, but an HTTP/1.0 client has no alternative. Malformed numbers are ignored, because
    /// request directives are preferences.
    pub fn parse(request: &RequestHead) -> Self {
        let mut directives = Self::default();
        if request.find(FieldName::CacheControl).is_none() {
            let mut pragmas = request.values(FieldName::Pragma);
            directives.no_cache = pragmas.any(|value| has_token(value, b"no-cache"));
            return directives;
        }
        for item in request.values(FieldName::CacheControl).flat_map(split_list) {
            let (name, argument) = split_directive(item);
            directives.apply(name, argument);
        }
        directives
    }

    fn apply(&mut self, name: &[u8], argument: DirectiveArgument<'_>) {
        let is = |known: &str| name.eq_ignore_ascii_case(known.as_bytes());
        match name.len() {
            7 if is("max-age") => self.max_age_s = self.max_age_s.or(argument.seconds()),
            9 if is("min-fresh") => self.min_fresh_s = self.min_fresh_s.or(argument.seconds()),
            9 if is("max-stale") => {
                let seconds = match argument {
                    DirectiveArgument::None => Some(u32::MAX),
                    argument => argument.seconds(),
                };
                self.max_stale_s = self.max_stale_s.or(seconds);
            }
            8 if is("no-cache") => self.no_cache = true,
            8 if is("no-store") => self.no_store = true,
            14 if is("only-if-cached") => self.only_if_cached = true,
            _ => {}
        }
    }
}

/// The cache directives of a response (RFC 9111 section 5.2.2).
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ResponseDirectives {
    /// `max-age`: lifetime in seconds.
    pub max_age_s: Option<u32>,
    /// `s-maxage`: lifetime in seconds for shared caches.
    pub s_maxage_s: Option<u32>,
    /// `stale-while-revalidate`: seconds after the lifetime during which the response may be used
    /// while it is validated (RFC 5861 section 3).
    pub stale_while_revalidate_s: Option<u32>,
    /// `stale-if-error`: seconds after the lifetime during which the response may replace an error
    /// (RFC 5861 section 4).
    pub stale_if_error_s: Option<u32>,
    /// `no-store`: must not be stored.
    pub no_store: bool,
    /// `no-cache`: must not be used without validation.
    pub no_cache: bool,
    /// `private`: must not be stored by shared caches.
    pub private: bool,
    /// `public`: may be stored even if the request has credentials or the status is not
    /// heuristically cacheable.
    pub public: bool,
    /// `must-revalidate`: must not be used stale.
    pub must_revalidate: bool,
    /// `proxy-revalidate`: must not be used stale by shared caches.
    pub proxy_revalidate: bool,
    /// `must-understand`: may be stored only by caches that understand the status.
    pub must_understand: bool,
    /// `immutable`: does not change while it is fresh (RFC 8246).
    pub immutable: bool,
    /// Whether the directives come from a targeted field (RFC 9213), so that `Expires` and
    /// `Cache-Control` are ignored.
    pub is_targeted: bool,
    /// The fields that `no-cache` and `private` name, which must not be stored (sections 5.2.2.4
    /// and 5.2.2.7).
    pub(super) omitted: FieldNames,
}

/// The names of the directives of a response: first those with a number, then those that forbid or
/// allow something.
const DIRECTIVES: [&str; 12] = [
    "max-age",
    "s-maxage",
    "stale-while-revalidate",
    "stale-if-error",
    "no-store",
    "no-cache",
    "private",
    "public",
    "must-revalidate",
    "proxy-revalidate",
    "must-understand",
    "immutable",
];
/// The number of directives that have a number.
const NUMBERS: usize = 4;

impl ResponseDirectives {
    /// Parses the directives of a response. `targets` are the lower-case names of targeted fields.
    /// Only the first one that is present and valid applies (RFC 9213 section 2.2). If a field
    /// before it has a value of the wrong type, the prohibitions of that field apply too.
    pub fn parse(response: &ResponseHead, targets: &[Box<[u8]>]) -> Self {
        let mut directives = Self::default();
        for name in targets {
            let value = structured::combined(structured::lines_named(response, name));
            let members = value.as_ref().and_then(|it| structured::dictionary(it, &DIRECTIVES));
            let Some(members) = members else { continue };
            let mut targeted = Self::from_members(&members);
            if has_valid_types(&members) {
                targeted.add_prohibitions(&directives);
                return targeted;
            }
            directives.add_prohibitions(&targeted);
        }
        for item in response.values(FieldName::CacheControl).flat_map(split_list) {
            let (name, argument) = split_directive(item);
            directives.apply(name, argument);
            // The rest of an unterminated string may contain further directives.
            directives.no_store |= has_open_string(item);
        }
        directives.omitted.sort();
        directives
    }

    fn from_members(members: &[Option<DirectiveArgument<'_>>; DIRECTIVES.len()]) -> Self {
        let mut directives = Self { is_targeted: true, ..Self::default() };
        for (name, argument) in DIRECTIVES.iter().zip(members) {
            if let Some(argument) = argument.filter(|it| *it != DirectiveArgument::False) {
                directives.apply(name.as_bytes(), argument);
            }
        }
        directives.omitted.sort();
        directives
    }

    /// Adds the prohibitions of a targeted field in which other values have the wrong type. RFC
    /// 9213 allows such a field to be ignored. A cache may always store less, however, and the
    /// origin addressed this field to it.
    fn add_prohibitions(&mut self, targeted: &Self) {
        self.no_store |= targeted.no_store;
        self.no_cache |= targeted.no_cache || targeted.omitted != FieldNames::default();
        self.private |= targeted.private;
        self.must_revalidate |= targeted.must_revalidate;
        self.proxy_revalidate |= targeted.proxy_revalidate;
    }

    /// Returns whether a field of this name must not be stored.
    pub fn omits(&self, name: &[u8]) -> bool {
        self.omitted.contains(name)
    }

    fn apply(&mut self, name: &[u8], argument: DirectiveArgument<'_>) {
        let is = |known: &str| name.eq_ignore_ascii_case(known.as_bytes());
        let seconds = || Some(argument.seconds().unwrap_or(0));
        match name.len() {
            7 if is("max-age") => self.max_age_s = self.max_age_s.or_else(seconds),
            8 if is("s-maxage") => self.s_maxage_s = self.s_maxage_s.or_else(seconds),
            22 if is("stale-while-revalidate") => {
                self.stale_while_revalidate_s = self.stale_while_revalidate_s.or_else(seconds);
            }
            14 if is("stale-if-error") => {
                self.stale_if_error_s = self.stale_if_error_s.or_else(seconds);
            }
            8 if is("no-store") => self.no_store = true,
            8 if is("no-cache") => self.no_cache |= !self.omit(argument),
            7 if is("private") => self.private |= !self.omit(argument),
            6 if is("public") => self.public = true,
            15 if is("must-revalidate") => self.must_revalidate = true,
            16 if is("proxy-revalidate") => self.proxy_revalidate = true,
            15 if is("must-understand") => self.must_understand = true,
            9 if is("immutable") => self.immutable = true,
            _ => {}
        }
    }

    /// Records the names of fields that must not be stored. Returns `false` if there is none, so
    /// that the directive applies to the whole response.
    fn omit(&mut self, argument: DirectiveArgument<'_>) -> bool {
        let DirectiveArgument::Text(names) = argument else { return false };
        if split_list(names).next().is_none() {
            return false;
        }
        split_tokens(names).for_each(|name| self.omitted.add(name));
        true
    }
}

impl DirectiveArgument<'_> {
    /// Parses delta-seconds (RFC 9111 section 1.2.2). Numbers beyond the maximum become the
    /// maximum. Quotes around the digits are ignored (section 5.2).
    fn seconds(self) -> Option<u32> {
        let number = match self {
            Self::Number(number) => u64::try_from(number).ok()?,
            Self::Text(digits) => match parse_decimal(digits) {
                Some(number) => number,
                None if !digits.is_empty() && digits.iter().all(u8::is_ascii_digit) => u64::MAX,
                None => return None,
            },
            Self::None | Self::False | Self::Odd => return None,
        };
        Some(number.min(u64::from(DELTA_S_MAX)) as u32)
    }
}

/// Returns whether the members of a targeted field have the types of their directives (RFC 9213
/// section 2.1).
///
/// A directive with a number has an Integer. The others have a Boolean; false counts as an absent
/// directive. `no-cache` and `private` may have a String with names of fields instead. If a member
/// has another type, only the prohibitions of the field apply, because the field would otherwise
/// override `Cache-Control`.
fn has_valid_types(members: &[Option<DirectiveArgument<'_>>; DIRECTIVES.len()]) -> bool {
    let (numbers, others) = members.split_at(NUMBERS);
    let are_numbers =
        numbers.iter().flatten().all(|argument| matches!(argument, DirectiveArgument::Number(_)));
    let names_fields = ["no-cache", "private"];
    let mut others = DIRECTIVES[NUMBERS..].iter().zip(others);
    are_numbers
        && others.all(|(name, argument)| match argument {
            None | Some(DirectiveArgument::None | DirectiveArgument::False) => true,
            Some(DirectiveArgument::Text(_)) => names_fields.contains(name),
            Some(DirectiveArgument::Number(_) | DirectiveArgument::Odd) => false,
        })
}

/// Returns whether a list member contains an unterminated string, which extends to the end of the
/// line.
fn has_open_string(item: &[u8]) -> bool {
    let mut is_open = false;
    let mut bytes = item.iter();
    while let Some(byte) = bytes.next() {
        match byte {
            b'"' => is_open = !is_open,
            b'\\' if is_open => drop(bytes.next()),
            _ => {}
        }
    }
    is_open
}

/// Splits a list member into name and argument.
fn split_directive(item: &[u8]) -> (&[u8], DirectiveArgument<'_>) {
    let Some(equals) = item.iter().position(|&byte| byte == b'=') else {
        return (item, DirectiveArgument::None);
    };
    let (name, argument) = (&item[..equals], &item[equals + 1..]);
    let has_blanks = name.last().is_some_and(u8::is_ascii_whitespace)
        || argument.first().is_some_and(u8::is_ascii_whitespace);
    let argument = match argument {
        _ if has_blanks => DirectiveArgument::Odd,
        [b'"', text @ .., b'"'] if !text.iter().any(|byte| b"\"\\".contains(byte)) => {
            DirectiveArgument::Text(text)
        }
        [b'"', ..] => DirectiveArgument::Odd,
        text => DirectiveArgument::Text(text),
    };
    (name.trim_ascii_end(), argument)
}

#[cfg(test)]
mod tests {
    use super::super::test_messages::{get, response};
    use super::*;

    fn request_directives(fields: &str) -> RequestDirectives {
        RequestDirectives::parse(&get(fields))
    }

    fn allowed(fields: &str) -> ResponseDirectives {
        ResponseDirectives::parse(&response(200, fields), &[(*b"cdn-cache-control").into()])
    }

    #[test]
    fn a_targeted_field_has_every_directive() {
        let targeted = |value: &str| allowed(&format!("CDN-Cache-Control: {value}\r\n"));
        let none = targeted("other");
        assert!(none.is_targeted);
        for name in DIRECTIVES {
            let value = if name.contains("age") || name.contains("stale") { "=1" } else { "" };
            assert_ne!(targeted(&format!("a, {name}{value}, z")), none, "{name}");
        }
    }

    fn max_age(value: &str) -> Option<u32> {
        allowed(&format!("Cache-Control: {value}\r\n")).max_age_s
    }

    #[test]
    fn requests_are_read_section_5_2_1() {
        let all = request_directives(
            "Cache-Control: max-age=1, Max-Stale, unknown=\"no-store\"\r\n\
             Cache-Control: min-fresh=\"3\",no-cache, no-store,only-if-cached\r\n",
        );
        let expected = RequestDirectives {
            max_age_s: Some(1),
            min_fresh_s: Some(3),
            max_stale_s: Some(u32::MAX),
            no_cache: true,
            no_store: true,
            only_if_cached: true,
        };
        assert_eq!(all, expected);
        assert_eq!(request_directives("Cache-Control: max-stale=5\r\n").max_stale_s, Some(5));
        assert_eq!(
            request_directives("Cache-Control: max-age=x, max-stale=-1\r\n"),
            request_directives("")
        );
    }

    #[test]
    fn pragma_applies_without_cache_control_section_5_4() {
        assert!(request_directives("Pragma: x, No-Cache\r\n").no_cache);
        assert!(!request_directives("Pragma: no-cache\r\nCache-Control: max-age=5\r\n").no_cache);
        assert!(!request_directives("Pragma: extension\r\n").no_cache);
    }

    #[test]
    fn responses_are_read_section_5_2_2() {
        let all = allowed(
            "Cache-Control: MaX-aGe=1, S-MaxAge=2, stale-while-revalidate=3, immutable\r\n\
             Cache-Control: stale-if-error=4, no-store, no-cache, private, public\r\n\
             Cache-Control: must-revalidate, proxy-revalidate, must-understand, foobar\r\n",
        );
        let expected = ResponseDirectives {
            max_age_s: Some(1),
            s_maxage_s: Some(2),
            stale_while_revalidate_s: Some(3),
            stale_if_error_s: Some(4),
            no_store: true,
            no_cache: true,
            private: true,
            public: true,
            must_revalidate: true,
            proxy_revalidate: true,
            must_understand: true,
            immutable: true,
            is_targeted: false,
            omitted: FieldNames::default(),
        };
        assert_eq!(all, expected);
    }

    #[test]
    fn numbers_are_read_and_bounded_section_1_2_2() {
        assert_eq!(max_age("max-age=3600"), Some(3600));
        assert_eq!(max_age("max-age=\"3600\""), Some(3600));
        assert_eq!(max_age("max-age=003600"), Some(3600));
        assert_eq!(max_age("max-age=2147483647"), Some(2_147_483_647));
        for large in ["2147483648", "2147483649", "99999999999", "99999999999999999999999"] {
            assert_eq!(max_age(&format!("max-age={large}")), Some(1 << 31));
        }
    }

    #[test]
    fn malformed_freshness_is_stale_section_4_2_1() {
        for odd in [
            "max-age",
            "max-age=",
            "max-age=-3600",
            "max-age='3600'",
            "max-age=3600.0",
            "max-age=a3600",
            "max-age=3600a",
            "max-age =3600",
            "max-age= 3600",
            "max-age=\"36\\00\"",
        ] {
            assert_eq!(max_age(odd), Some(0), "{odd}");
        }
        assert_eq!(max_age("xmax-age=3600"), None);
        assert_eq!(max_age("a=\"max-age=3600\""), None);
    }

    #[test]
    fn the_first_of_two_applies_section_4_2_1() {
        assert_eq!(max_age("max-age=3600, max-age=1"), Some(3600));
        assert_eq!(max_age("max-age=1\r\nCache-Control: max-age=3600"), Some(1));
        assert_eq!(max_age("a=\"max-age=3600\", max-age=1"), Some(1));
        assert_eq!(max_age("max-age=\"1\", a=\"max-age=3600\""), Some(1));
    }

    #[test]
    fn fields_may_be_named_sections_5_2_2_4_and_5_2_2_7() {
        let named = allowed("Cache-Control: no-cache=\"a, B\", private=c\r\n");
        assert!(!named.no_cache && !named.private);
        assert!(named.omits(b"A") && named.omits(b"b") && named.omits(b"C") && !named.omits(b"d"));
        for whole in ["no-cache=\"\"", "no-cache=", "no-cache =\"a\"", "no-cache=\"a\\,b\""] {
            let whole = allowed(&format!("Cache-Control: {whole}\r\n"));
            assert!(whole.no_cache && whole.omitted == FieldNames::default(), "{whole:?}");
        }
        let both = allowed("Cache-Control: no-cache, no-cache=a\r\n");
        assert!(both.no_cache && both.omits(b"a"));
    }

    #[test]
    fn a_string_without_end_forbids_to_store() {
        let is_forbidden = |value: &str| allowed(&format!("Cache-Control: {value}\r\n")).no_store;
        assert!(is_forbidden("a=\"b, no-store, max-age=60"));
        assert!(is_forbidden("max-age=60, a=\"b\\\""));
        assert!(!is_forbidden("a=\"b\\\"\", max-age=60") && !is_forbidden("a=\"\", b"));
    }

    #[test]
    fn a_targeted_field_applies_alone_rfc_9213_section_2_2() {
        let cdn = |value: &str| {
            allowed(&format!(
                "Cache-Control: no-store, max-age=1\r\nCDN-Cache-Control: {value}\r\n"
            ))
        };
        let targeted = cdn("max-age=60;x, no-cache=\"a\", private=?0, must-revalidate=?1");
        assert!(targeted.is_targeted && !targeted.no_store && !targeted.private);
        assert!(targeted.must_revalidate && !targeted.no_cache && targeted.omits(b"a"));
        assert_eq!(targeted.max_age_s, Some(60));
        assert_eq!(cdn("max-age=60\r\nCDN-Cache-Control: max-age=6").max_age_s, Some(6));
        assert_eq!(cdn("max-age=-1").max_age_s, Some(0));
        for ignored in ["", "max-age=60 60", "MAX-AGE=60", "max-age =60", "max-age=60,"] {
            let read = cdn(ignored);
            assert!(!read.is_targeted && read.no_store, "{ignored}");
        }
    }

    #[test]
    fn a_value_of_the_wrong_type_is_not_used_rfc_9213_section_2_1() {
        let read = |value: &str| {
            allowed(&format!("Cache-Control: max-age=1\r\nCDN-Cache-Control: {value}\r\n"))
        };
        for name in &DIRECTIVES[..NUMBERS] {
            for wrong in ["=\"600\"", "", "=600.0", "=a", "=(600)", "=?0", "=:YQ==:"] {
                let value = format!("{name}{wrong}");
                assert_eq!(read(&value), read(""), "{value}");
                assert_eq!(read(&format!("public, {value}")), read(""), "{value}");
                let forbids = read(&format!("private, max-age=9, {value}"));
                assert!(forbids.private && forbids.max_age_s == Some(1), "{value}");
            }
        }
        for name in ["public", "must-understand", "immutable"] {
            for wrong in ["=1", "=\"a\"", "=a"] {
                assert_eq!(read(&format!("max-age=9, {name}{wrong}")), read(""), "{name}{wrong}");
            }
        }
        for (value, mut expected) in [("no-store=1", read("")), ("no-store=\"a\"", read(""))] {
            expected.no_store = true;
            assert_eq!(read(&format!("max-age=9, {value}")), expected, "{value}");
        }
        for value in ["private=a", "private=1", "private=(a)"] {
            assert!(read(value).private && !read(value).is_targeted, "{value}");
        }
        // Unknown members and false count as absent.
        assert!(read("other=\"600\", max-age=9, no-store=?0").is_targeted);
        assert_eq!(read("max-age=9, no-store=?0, x=1.5").max_age_s, Some(9));
    }

    #[test]
    fn targets_are_searched_in_order_rfc_9213_section_2_2() {
        let targets = [(*b"mine-cache-control").into(), (*b"cdn-cache-control").into()];
        let read = |fields: &str| ResponseDirectives::parse(&response(200, fields), &targets);
        let both = "CDN-Cache-Control: max-age=1\r\nMine-Cache-Control: max-age=2\r\n";
        assert_eq!(read(both).max_age_s, Some(2));
        let after = |mine: &str| {
            read(&format!("CDN-Cache-Control: max-age=1\r\nMine-Cache-Control: {mine}\r\n"))
        };
        let alone = after("");
        assert_eq!(alone.max_age_s, Some(1));
        assert_eq!(after("no-store, max-age="), alone, "a malformed field counts as absent");
        // The prohibitions of a targeted field with a wrong type apply in addition to the next
        // targeted field.
        for (mine, forbid) in [
            ("no-store", (|it| it.no_store = true) as fn(&mut ResponseDirectives)),
            ("no-cache", |it| it.no_cache = true),
            ("no-cache=\"a\"", |it| it.no_cache = true),
            ("private", |it| it.private = true),
            ("must-revalidate", |it| it.must_revalidate = true),
            ("proxy-revalidate", |it| it.proxy_revalidate = true),
            ("public", |_| {}),
            ("stale-if-error=9", |_| {}),
        ] {
            let mut expected = alone.clone();
            forbid(&mut expected);
            assert_eq!(after(&format!("{mine}, max-age=\"9\"")), expected, "{mine}");
        }
    }
}
