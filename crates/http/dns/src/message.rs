//! DNS messages (RFC 1035 section 4): writing a query, and parsing its response. Bytes only.
//!
//! A response is accepted only if it has the identifier of the query and repeats its question. Over
//! UDP, each character must have the same case. The case is random, so that an attacker who cannot
//! see the query has to guess it in addition to the identifier and the port (RFC 5452 section 4).

use std::net::IpAddr;
use std::time::Duration;

use domain::base::iana::{Class, Opcode, Rcode, Rtype};
use domain::base::wire::ParseError;
use domain::base::{Message, MessageBuilder, ParsedName};
use domain::dep::octseq::Array;
use domain::rdata::{A, Aaaa, Cname, Soa};

use super::name::DomainName;

/// The address family of a query.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum AddressFamily {
    V6,
    V4,
}

impl AddressFamily {
    fn rtype(self) -> Rtype {
        match self {
            Self::V6 => Rtype::AAAA,
            Self::V4 => Rtype::A,
        }
    }
}

/// A query in wire format. Over TCP, its length precedes it.
pub(super) type QueryMessage = Array<QUERY_MAX>;

/// A header, a question with the longest name, its type and its class.
const QUERY_MAX: usize = HEADER + 255 + 4;
const HEADER: usize = 12;
/// Maximum number of aliases followed within a response. A longer chain is an error of the name
/// server.
const ALIASES_MAX: usize = 8;
/// Maximum number of addresses used from a response. Connection attempts rarely need more than a
/// few.
const ADDRESSES_MAX: usize = 16;

/// Writes the query for the addresses of `name`. `random` returns a new number in each call.
pub(super) fn write_query(
    name: &DomainName,
    family: AddressFamily,
    mut random: impl FnMut() -> u64,
) -> QueryMessage {
    let mut wire = Array::<255>::new();
    let mut push = |bytes: &[u8]| {
        let pushed = domain::dep::octseq::OctetsBuilder::append_slice(&mut wire, bytes);
        pushed.expect("a checked name fits in 255 bytes");
    };
    let mut bits = 0u64;
    let mut bits_left = 0;
    for label in name.without_final_dot().split(|&byte| byte == b'.') {
        push(&[label.len() as u8]);
        for byte in label {
            if bits_left == 0 {
                (bits, bits_left) = (random(), u64::BITS);
            }
            push(&[if bits & 1 == 0 { *byte } else { byte.to_ascii_uppercase() }]);
            (bits, bits_left) = (bits >> 1, bits_left - 1);
        }
    }
    push(&[0]);
    let name = domain::base::Name::from_slice(&wire).expect("a checked name is a name");
    let mut builder = MessageBuilder::from_target(QueryMessage::new()).expect("a header fits");
    builder.header_mut().set_id(random() as u16);
    builder.header_mut().set_rd(true);
    let mut builder = builder.question();
    builder.push((name, family.rtype(), Class::IN)).expect("the longest question fits");
    builder.finish()
}

/// The relation of a received message to a query.
#[derive(PartialEq, Eq, Debug)]
pub(super) enum ResponseKind {
    /// A valid answer to the query.
    Answer(Answer),
    /// The response was truncated, or the case of its question differs. The query has to be
    /// repeated over TCP, which truncates no response. Over TCP the case need not match, because an
    /// attacker who does not see the packets cannot inject data into a connection.
    OverTcp,
    /// The message does not respond to this query.
    Stray,
    /// The server failed or refused the query, or its response is malformed.
    Failed,
}

/// The information in a response about a name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Answer {
    /// At least one address of the requested family, and the time for which they may be cached.
    Addresses(Vec<IpAddr>, Duration),
    /// The name exists without an address of the family. The duration is the time for which this
    /// may be cached; `None`: not at all.
    NoAddress(Option<Duration>),
    /// The name does not exist. The duration is as for `NoAddress`.
    NotFound(Option<Duration>),
}

/// Parses a message received in response to `query`, over TCP or UDP.
pub(super) fn parse_response(message: &[u8], query: &[u8], over_tcp: bool) -> ResponseKind {
    let Ok(message) = Message::from_slice(message) else { return ResponseKind::Stray };
    let header = message.header();
    let is_answer = header.qr()
        && header.opcode() == Opcode::QUERY
        && message.as_slice()[..2] == query[..2]
        && message.header_counts().qdcount() == 1;
    // The question directly follows the header, so its name is not compressed and the bytes of both
    // questions have to be equal. The comparison without case affects only the name: lengths of
    // labels, types and classes are not alphabetic ASCII bytes.
    let question = query[HEADER..].len();
    let echo = message.as_slice().get(HEADER..HEADER + question).unwrap_or_default();
    if !is_answer || !echo.eq_ignore_ascii_case(&query[HEADER..]) {
        return ResponseKind::Stray;
    }
    if !over_tcp && (header.tc() || echo != &query[HEADER..]) {
        return ResponseKind::OverTcp;
    }
    match header.rcode() {
        Rcode::NOERROR | Rcode::NXDOMAIN if !header.tc() => {
            read_records(message).map_or(ResponseKind::Failed, ResponseKind::Answer)
        }
        _ => ResponseKind::Failed,
    }
}

fn read_records(message: &Message<[u8]>) -> Result<Answer, ParseError> {
    if message.header().rcode() == Rcode::NXDOMAIN {
        return Ok(Answer::NotFound(negative_ttl(message)));
    }
    let question = message.sole_question()?;
    let mut owner = question.qname().to_owned();
    let mut time = Duration::MAX;
    for _ in 0..=ALIASES_MAX {
        let (addresses, alias) = read_owner_records(message, &owner, question.qtype(), &mut time)?;
        match alias {
            _ if !addresses.is_empty() => return Ok(Answer::Addresses(addresses, time)),
            Some(alias) => owner = alias,
            None => return Ok(Answer::NoAddress(negative_ttl(message))),
        }
    }
    Err(ParseError::form_error("too many aliases"))
}

type OwnerRecords<'a> = (Vec<IpAddr>, Option<ParsedName<&'a [u8]>>);

/// Returns the addresses of `owner` in the answer section, and the name that it is an alias of.
/// `time` is lowered to the shortest TTL of the records used.
fn read_owner_records<'a>(
    message: &'a Message<[u8]>,
    owner: &ParsedName<&[u8]>,
    rtype: Rtype,
    time: &mut Duration,
) -> Result<OwnerRecords<'a>, ParseError> {
    let mut addresses = Vec::new();
    let mut alias = None;
    for record in message.answer()? {
        let record = record?;
        if record.class() != Class::IN || record.owner() != *owner {
            continue;
        }
        let address = match record.rtype() {
            Rtype::A if rtype == Rtype::A => {
                record.to_record::<A>()?.map(|record| IpAddr::from(record.data().addr()))
            }
            Rtype::AAAA if rtype == Rtype::AAAA => {
                record.to_record::<Aaaa>()?.map(|record| IpAddr::from(record.data().addr()))
            }
            Rtype::CNAME if alias.is_none() => {
                alias = record.to_record::<Cname<_>>()?.map(|record| *record.data().cname());
                None
            }
            _ => continue,
        };
        *time = (*time).min(ttl_duration(record.ttl().as_secs()));
        addresses.extend(address.filter(|_| addresses.len() < ADDRESSES_MAX));
    }
    Ok((addresses, alias))
}

/// Returns how long an absence may be cached: as the SOA record of the zone states (RFC 2308
/// section 5), and not at all without one.
fn negative_ttl(message: &Message<[u8]>) -> Option<Duration> {
    let mut records = message.authority().ok()?.limit_to_in::<Soa<_>>();
    let record = records.next()?.ok()?;
    let minimum = record.data().minimum().as_secs();
    Some(ttl_duration(record.ttl().as_secs()).min(ttl_duration(minimum)))
}

/// Converts a TTL. RFC 2181 section 8: a TTL whose highest bit is set counts as 0.
fn ttl_duration(seconds: u32) -> Duration {
    Duration::from_secs(u64::from(if seconds > i32::MAX as u32 { 0 } else { seconds }))
}

/// Parses any bytes as a response to a query for `example.org`, and checks the result. Called by
/// the fuzz target, and by a test over its corpus.
///
/// # Panics
/// Panics if the result violates a bound or has an address of the wrong family.
pub fn fuzz_dns_response(bytes: &[u8]) {
    let name = DomainName::parse(b"example.org").expect("a sound name");
    for family in [AddressFamily::V6, AddressFamily::V4] {
        let query = write_query(&name, family, || 0);
        // Most inputs are refused at the header, so each is also parsed after a matching
        // identifier and flags.
        let fitting = [&query[..2], &[0x81, 0x80], bytes].concat();
        for (message, over_tcp) in [(bytes, false), (&fitting, false), (&fitting, true)] {
            let ResponseKind::Answer(Answer::Addresses(addresses, time)) =
                parse_response(message, &query, over_tcp)
            else {
                continue;
            };
            assert!((1..=ADDRESSES_MAX).contains(&addresses.len()));
            assert!(addresses.iter().all(|found| found.is_ipv6() == (family == AddressFamily::V6)));
            assert!(time <= ttl_duration(i32::MAX as u32));
        }
    }
}

#[cfg(test)]
#[path = "../tests/common/messages.rs"]
mod messages;

#[cfg(test)]
mod tests {
    use super::messages::{OK, QNAME, answer, record, soa, wire};
    use super::*;

    fn query(name: &str, family: AddressFamily) -> QueryMessage {
        let mut seed = 0x9e37_79b9_7f4a_7c15u64;
        write_query(&DomainName::parse(name.as_bytes()).unwrap(), family, || {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            seed ^ seed >> 33
        })
    }

    fn found(addresses: &[&str], seconds: u64) -> ResponseKind {
        let addresses = addresses.iter().map(|text| text.parse().unwrap()).collect();
        ResponseKind::Answer(Answer::Addresses(addresses, Duration::from_secs(seconds)))
    }

    #[test]
    fn a_query_has_one_question_in_random_case() {
        let query = query("Some.Long-Host.example.org.", AddressFamily::V6);
        assert_eq!(query[2..HEADER], [1, 0, 0, 1, 0, 0, 0, 0, 0, 0]);
        let question = &query[HEADER..];
        let expected = [wire("some.long-host.example.org"), vec![0, 28, 0, 1]].concat();
        assert_eq!(question.to_ascii_lowercase(), expected);
        assert_ne!(question, expected, "twenty characters of the same case");
        assert_ne!(question, expected.to_ascii_uppercase());
        let longest = ["a".repeat(63).as_str(); 4].join(".");
        let longest = &longest[..253];
        assert_eq!(self::query(longest, AddressFamily::V4).len(), QUERY_MAX);
    }

    #[test]
    fn addresses_have_the_shortest_ttl() {
        let query = query("www.example", AddressFamily::V4);
        let records = [
            record(&QNAME, 1, 300, &[192, 0, 2, 1]),
            record(&wire("WWW.example"), 1, 60, &[192, 0, 2, 2]),
            record(&wire("other.example"), 1, 5, &[192, 0, 2, 3]),
            record(&QNAME, 28, 5, &[0; 16]),
        ];
        let message = answer(&query, OK, &records, &[]);
        let expected = found(&["192.0.2.1", "192.0.2.2"], 60);
        assert_eq!(parse_response(&message, &query, false), expected);
        let many: Vec<_> = (0..99).map(|last| record(&QNAME, 1, 9, &[10, 0, 0, last])).collect();
        let reading = parse_response(&answer(&query, OK, &many, &[]), &query, true);
        let ResponseKind::Answer(Answer::Addresses(addresses, _)) = reading else { panic!() };
        assert_eq!(addresses.len(), ADDRESSES_MAX);
        let timeless = [record(&QNAME, 1, 0x8000_0000, &[192, 0, 2, 1])];
        let message = answer(&query, OK, &timeless, &[]);
        assert_eq!(parse_response(&message, &query, false), found(&["192.0.2.1"], 0));
    }

    fn alias_chain(query: &[u8], length: usize) -> Vec<u8> {
        let name = |index| if index == 0 { "www.example".to_owned() } else { format!("c{index}") };
        let mut records: Vec<_> = (0..length)
            .map(|index| {
                record(&wire(&name(index)), 5, 100 - index as u32, &wire(&name(index + 1)))
            })
            .collect();
        records.push(record(&wire(&name(length)), 28, 500, &[0x20; 16]));
        records.reverse();
        answer(query, OK, &records, &[])
    }

    #[test]
    fn aliases_are_followed_to_a_bound_in_any_order() {
        let query = query("www.example", AddressFamily::V6);
        let address = "2020:2020:2020:2020:2020:2020:2020:2020";
        let eight = alias_chain(&query, ALIASES_MAX);
        assert_eq!(parse_response(&eight, &query, false), found(&[address], 93));
        let nine = alias_chain(&query, ALIASES_MAX + 1);
        assert_eq!(parse_response(&nine, &query, false), ResponseKind::Failed);
        let circle = [record(&QNAME, 5, 9, &QNAME)];
        let message = answer(&query, OK, &circle, &[]);
        assert_eq!(parse_response(&message, &query, false), ResponseKind::Failed);
        let nowhere = [record(&QNAME, 5, 9, &wire("gone.example"))];
        let message = answer(&query, OK, &nowhere, &[]);
        let none = ResponseKind::Answer(Answer::NoAddress(None));
        assert_eq!(parse_response(&message, &query, false), none);
    }

    #[test]
    fn absences_are_cached_as_the_zone_states() {
        let query = query("www.example", AddressFamily::V4);
        let minute = Some(Duration::from_secs(60));
        for (flags, authority, expected) in [
            (OK, vec![], ResponseKind::Answer(Answer::NoAddress(None))),
            (OK, vec![soa(60, 900)], ResponseKind::Answer(Answer::NoAddress(minute))),
            (OK | 3, vec![soa(900, 60)], ResponseKind::Answer(Answer::NotFound(minute))),
            (OK | 3, vec![], ResponseKind::Answer(Answer::NotFound(None))),
            (OK | 1, vec![], ResponseKind::Failed),
            (OK | 2, vec![], ResponseKind::Failed),
            (OK | 4, vec![], ResponseKind::Failed),
            (OK | 5, vec![], ResponseKind::Failed),
        ] {
            let message = answer(&query, flags, &[], &authority);
            assert_eq!(parse_response(&message, &query, false), expected, "{flags:x}");
        }
    }

    #[test]
    fn unrelated_messages_are_ignored() {
        let query = query("www.example", AddressFamily::V4);
        let good = answer(&query, OK, &[record(&QNAME, 1, 9, &[192, 0, 2, 1])], &[]);
        let changed = |place: usize, byte: u8| {
            let mut message = good.clone();
            message[place] = byte;
            message
        };
        for (message, why) in [
            (Vec::new(), "empty"),
            (good[..11].to_vec(), "half a header"),
            (good[..20].to_vec(), "half a question"),
            (changed(0, !good[0]), "another identifier"),
            (changed(1, !good[1]), "another identifier"),
            (changed(2, 0x01), "a query"),
            (changed(2, 0xa1), "another opcode"),
            (changed(5, 0), "no question"),
            (changed(5, 2), "two questions"),
            (changed(HEADER, 2), "another name"),
            (changed(HEADER + 14, 28), "another type"),
            (changed(HEADER + 16, 3), "another class"),
        ] {
            assert_eq!(parse_response(&message, &query, false), ResponseKind::Stray, "{why}");
            assert_eq!(parse_response(&message, &query, true), ResponseKind::Stray, "{why}");
        }
        assert_eq!(parse_response(&good, &query, false), found(&["192.0.2.1"], 9));
        let cut = &good[..good.len() - 1];
        assert_eq!(parse_response(cut, &query, false), ResponseKind::Failed, "half a record");
    }

    #[test]
    fn truncated_or_differently_cased_answers_are_repeated_over_tcp() {
        let query = query("www.example", AddressFamily::V4);
        let whole = answer(&query, OK, &[record(&QNAME, 1, 9, &[192, 0, 2, 1])], &[]);
        let mut lowered = whole.clone();
        lowered[HEADER..].make_ascii_lowercase();
        assert_ne!(lowered, whole);
        assert_eq!(parse_response(&lowered, &query, false), ResponseKind::OverTcp);
        assert_eq!(parse_response(&lowered, &query, true), found(&["192.0.2.1"], 9));
        let truncated = answer(&query, OK | 0x200, &[], &[]);
        assert_eq!(parse_response(&truncated, &query, false), ResponseKind::OverTcp);
        assert_eq!(parse_response(&truncated, &query, true), ResponseKind::Failed);
    }

    #[test]
    fn any_bytes_are_parsed_safely() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../fuzz/corpus/dns_response");
        let files = std::fs::read_dir(folder).unwrap();
        let mut seeds: Vec<_> =
            files.map(|file| std::fs::read(file.unwrap().path()).unwrap()).collect();
        assert!(seeds.len() >= 20, "the corpus is there");
        seeds.sort();
        let mut random = std::time::UNIX_EPOCH.elapsed().unwrap().as_nanos() as u64;
        println!("seed {random}");
        for seed in seeds {
            fuzz_dns_response(&seed);
            for _ in 0..500 {
                let mut changed = seed.clone();
                for _ in 0..3 {
                    random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    let place = (random >> 33) as usize % changed.len();
                    changed[place] = (random >> 24) as u8;
                }
                fuzz_dns_response(&changed);
                fuzz_dns_response(&changed[..random as usize % changed.len()]);
            }
        }
    }
}
