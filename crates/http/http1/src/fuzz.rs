//! Fuzz functions for the header parsers, which check properties that hold for any input.

use crate::byte_class::trim;
use crate::expectation::expectation;
use crate::fields::{connection_options, forwarded_fields, forwarded_runs};
use crate::framing::{request_framing, response_framing};
use crate::head::{Fields, Head, HeadLimits, HeadScan, StartLine};
use crate::method::Method;
use crate::name::FieldName;
use crate::request::{RequestHead, destination};
use crate::response::{ResponseHead, StatusLine};
use crate::target::Authority;
use crate::upgrade::is_websocket_upgrade;

/// A header that the fuzz functions can compare.
trait Fuzzed {
    /// Returns everything that a reader can learn from the header, as text.
    fn meaning(&self) -> String;

    /// Returns the header written again, without white space around the values.
    fn canonical(&self) -> Vec<u8>;
}

/// Checks the properties that requests and responses share. Returns the header and its length in
/// bytes, if `data` begins with a header.
fn fuzz_head<L: StartLine>(data: &[u8], limits: &HeadLimits) -> Option<(Head<L>, usize)>
where
    Head<L>: Fuzzed,
{
    let mut head = Head::<L>::default();
    let whole = head.parse(data, &mut HeadScan::default(), limits);
    let mut piecewise = Head::<L>::default();
    let mut scan = HeadScan::default();
    let mut seen = Ok(None);
    // The header may have `bytes_max` bytes after an empty line of two. One more byte exceeds the
    // limit.
    for end in 0..=data.len().min(limits.bytes_max + 3) {
        // The proxy parses each piece into a cleared header from a pool.
        piecewise.clear();
        seen = piecewise.parse(&data[..end], &mut scan, limits);
        if seen != Ok(None) {
            break;
        }
    }
    assert_eq!(seen, whole);
    let Ok(Some(used)) = whole else {
        assert_eq!(head.meaning(), Head::<L>::default().meaning());
        return None;
    };
    assert!(used <= data.len() && head.bytes().len() <= limits.bytes_max);
    assert!(data[..used].ends_with(head.bytes()));
    assert_eq!(head.meaning(), piecewise.meaning());
    let canonical = head.canonical();
    // A status line may lack one space, which the canonical form has.
    let limits = HeadLimits { bytes_max: limits.bytes_max + 1, ..*limits };
    let used_of_canonical = piecewise.parse(&canonical, &mut HeadScan::default(), &limits);
    assert_eq!(used_of_canonical, Ok(Some(canonical.len())));
    assert_eq!(head.meaning(), piecewise.meaning());
    Some((head, used))
}

/// Fuzzes the request parser with any bytes. It checks that:
///
/// * input split anywhere yields the same header or the same error as input in one piece
/// * no more bytes are used than there are, and every range is inside the header
/// * a header written again without white space around its values is parsed to the same meaning
///
/// # Panics
/// Panics if one of these properties is violated.
pub fn fuzz_request_head(data: &[u8]) {
    let limits = HeadLimits { bytes_max: 4096, fields_max: 16, target_bytes_max: 1024 };
    if let Some((head, used)) = fuzz_head(data, &limits) {
        assert!(used <= head.bytes().len() + 2);
        fuzz_destination(&head);
    }
}

/// Fuzzes the response parsers in the same way as [`fuzz_request_head`], the lenient one included.
/// No byte is skipped before a response.
///
/// # Panics
/// Panics if one of the properties is violated.
pub fn fuzz_response_head(data: &[u8]) {
    let limits = HeadLimits { bytes_max: 4096, fields_max: 16, target_bytes_max: 0 };
    let strict = fuzz_head::<StatusLine>(data, &limits);
    if let Some((head, used)) = &strict {
        assert_eq!(*used, head.bytes().len());
    }
    fuzz_lenient(data, &limits, strict);
}

/// Checks that the lenient parser accepts each header that the strict parser accepts, and that the
/// strict parser accepts each header that the lenient parser has rewritten. The result must not
/// depend on how the input is split.
fn fuzz_lenient(data: &[u8], limits: &HeadLimits, strict: Option<(ResponseHead, usize)>) {
    let mut head = ResponseHead::default();
    let mut scan = HeadScan::default();
    let whole = head.parse_lenient(data, &mut scan, limits);
    let (mut piecewise, mut seen) = ((ResponseHead::default(), HeadScan::default()), Ok(None));
    for end in 0..=data.len().min(limits.bytes_max + 3) {
        piecewise.0.clear();
        seen = piecewise.0.parse_lenient(&data[..end], &mut piecewise.1, limits);
        if seen != Ok(None) {
            break;
        }
    }
    assert_eq!(seen, whole);
    assert_eq!(head.meaning(), piecewise.0.meaning());
    if let Some((strict, used)) = strict {
        assert_eq!(
            (whole, head.bytes(), scan.is_ambiguous()),
            (Ok(Some(used)), strict.bytes(), false)
        );
    }
    let Ok(Some(used)) = whole else {
        assert_eq!(head.meaning(), ResponseHead::default().meaning());
        return;
    };
    assert_eq!(scan.is_ambiguous(), piecewise.1.is_ambiguous());
    let has_bare = data[..used].starts_with(b"\n")
        || data[..used].windows(2).any(|pair| pair[1] == b'\n' && pair[0] != b'\r');
    assert!(scan.is_ambiguous() || !has_bare);
    let (again, used) =
        fuzz_head::<StatusLine>(head.bytes(), limits).expect("the rewritten header is strict");
    assert_eq!((used, again.meaning()), (head.bytes().len(), head.meaning()));
}

/// Checks that the text of an accepted authority is parsed to the same authority.
fn fuzz_destination(head: &RequestHead) {
    let Ok(destination) = destination(head) else { return };
    let Some(authority) = destination.authority else { return };
    let text = authority.to_string();
    assert_eq!(Authority::parse(text.as_bytes()), Ok(authority));
    assert_eq!(Authority::parse(destination.authority_bytes), Ok(authority));
    let path = destination.path_and_query;
    assert_eq!(path.is_empty(), head.method() == Method::Connect);
    assert!(path.is_empty() || path == b"*" || path.starts_with(b"/"));
}

impl Fuzzed for RequestHead {
    fn meaning(&self) -> String {
        let fields = self.fields_meaning();
        let forwarded: Vec<_> = forwarded_fields(self).map(|field| self.name_of(field)).collect();
        format!(
            "{:?} {:?} {:?} {:?} {:?} {:?} {:?} {:?} {:?} {fields} {forwarded:?}",
            self.method(),
            self.method_bytes(),
            self.target(),
            self.form(),
            self.version(),
            destination(self),
            request_framing(self),
            expectation(self),
            is_websocket_upgrade(self),
        )
    }

    fn canonical(&self) -> Vec<u8> {
        let version = self.version().as_str().as_bytes();
        let start = [self.method_bytes(), b" ", self.target(), b" ", version, b"\r\n"].concat();
        self.fields_canonical(start)
    }
}

impl Fuzzed for ResponseHead {
    fn meaning(&self) -> String {
        let methods = [Method::Get, Method::Head, Method::Connect];
        let framings = methods.map(|method| response_framing(self, method));
        let forwarded: Vec<_> = forwarded_fields(self).map(|field| self.name_of(field)).collect();
        let fields = self.fields_meaning();
        format!(
            "{:?} {} {:?} {framings:?} {fields} {forwarded:?}",
            self.version(),
            self.status(),
            self.reason(),
        )
    }

    fn canonical(&self) -> Vec<u8> {
        let status = format!("{} {} ", self.version().as_str(), self.status());
        self.fields_canonical([status.as_bytes(), self.reason(), b"\r\n"].concat())
    }
}

impl Fields {
    /// Returns everything that a reader can learn from the fields, as text.
    fn fields_meaning(&self) -> String {
        let lines = self.fields().iter().map(|field| {
            let (name, value) = (self.name_of(field), self.value_of(field));
            assert_eq!(field.known, FieldName::from_bytes(name));
            assert_eq!(value, trim(value));
            (name, value)
        });
        let (mut by_field, mut by_run) = (Vec::new(), Vec::new());
        for field in forwarded_fields(self) {
            let (name, value) = (self.name_of(field), self.value_of(field));
            by_field.push((name, value));
        }
        forwarded_runs(self, |_| true).for_each(|run| by_run.extend(run.fields()));
        assert_eq!(by_field, by_run);
        format!("{:?} {:?}", lines.collect::<Vec<_>>(), connection_options(self))
    }

    /// Returns a header: `start`, then the fields without white space around their values.
    fn fields_canonical(&self, mut start: Vec<u8>) -> Vec<u8> {
        for field in self.fields() {
            for part in [self.name_of(field), b":", self.value_of(field), b"\r\n"] {
                start.extend_from_slice(part);
            }
        }
        start.extend_from_slice(b"\r\n");
        start
    }
}
