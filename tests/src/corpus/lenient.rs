//! Sends responses with faults that the program rewrites, some of them mutated, through the program
//! with its cache. Every response that the client receives must have one meaning. A response with
//! LF line ends or folded values must neither be stored nor update a stored response.
//!
//! A mutant is two or three requests for one target. The last but one gets the mutated response.
//! The last shows its effect on the cache. The client's input is parsed by [`crate::strict`]. This
//! module decides from the bytes of the origin whether a response is ambiguous.

use std::fmt;
use std::thread;

use super::client::{Client, Pace};
use super::literal::{Literal, Role, Step, escaped};
use super::mutate::mutate;
use super::program::ProgramUnderTest;
use super::random::Random;
use super::responses::read_responses;
use crate::strict::{Field, Message, RequestContext};

/// Concurrent programs, half of them in each role.
const THREADS: u64 = 6;

/// Number of failures after which a thread stops.
const FAILURES_MAX: usize = 8;

/// The stored response that an update changes, fresh for a minute.
const STORED: &str = "HTTP/1.1 200 OK\r\nETag: \"a\"\r\nCache-Control: max-age=60\r\n\
                      Content-Length: 2\r\n\r\nok";
/// The response to the last request, if it reaches the origin.
const LAST: &str = "HTTP/1.1 200 OK\r\nCache-Control: no-store\r\nContent-Length: 4\r\n\r\nlast";
/// A field that only mutated responses have.
const MARK: &str = "x-mark";

/// How the cache may use the mutated response.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum CacheUse {
    /// A new response whose fields allow storing it.
    Store,
    /// A 304 to a request that validates the stored response.
    Validate,
    /// The response to a HEAD, which may update the stored response.
    Head,
}

/// The results of the mutants.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct LenientStats {
    /// Number of mutants that were run.
    pub run: u64,
    /// Ambiguous responses that reached the client in the strict form.
    pub rewritten: u64,
    /// Responses that were stored or updated a stored one.
    pub stored: u64,
    /// Responses that were replaced by a 502.
    pub refused: u64,
    /// The violations, each with its mutant.
    pub failures: Vec<String>,
}

impl fmt::Display for LenientStats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { run, rewritten, stored, refused, failures } = self;
        write!(
            f,
            "{run} faulty responses: {rewritten} ambiguous ones rewritten, {stored} stored, \
             {refused} refused, {} wrong",
            failures.len()
        )
    }
}

/// Runs the first `mutants` mutants of `seed`, or one of them with the number `only`.
///
/// # Panics
/// Panics if a program cannot be started.
pub fn run(engine: &str, seed: u64, mutants: u64, only: Option<u64>) -> LenientStats {
    let threads = if only.is_some() { 1 } else { THREADS };
    thread::scope(|scope| {
        let start = |first: u64| {
            scope.spawn(move || {
                let first = only.unwrap_or(first);
                let end = only.map_or(mutants, |only| only + 1);
                run_thread(engine, seed, (first..end).step_by(threads as usize))
            })
        };
        let threads: Vec<_> = (0..threads).map(start).collect();
        let mut all = LenientStats::default();
        for thread in threads {
            let stats = thread.join().expect("a thread does not panic");
            all.run += stats.run;
            all.rewritten += stats.rewritten;
            all.stored += stats.stored;
            all.refused += stats.refused;
            all.failures.extend(stats.failures);
        }
        all
    })
}

fn run_thread(engine: &str, seed: u64, mutants: impl Iterator<Item = u64>) -> LenientStats {
    let mut stats = LenientStats::default();
    let mut program: Option<ProgramUnderTest> = None;
    for index in mutants {
        let role = if index % 2 == 0 { Role::Boost } else { Role::Forward };
        let program = program.get_or_insert_with(|| ProgramUnderTest::caching(role, engine));
        let mut random = Random::of(seed, index);
        let kind =
            [CacheUse::Store, CacheUse::Store, CacheUse::Validate, CacheUse::Head][random.below(4)];
        let sent = response(kind, &mut random);
        if let Err(why) = play(kind, &sent, &format!("/{index}"), program, &mut stats) {
            let sent = escaped(&sent);
            let title = format!("ENGINE={engine} SEED={seed} MUTANT={index}, {role:?}, {kind:?}");
            stats.failures.push(format!("{title}: {why}\n  origin sends: {sent}"));
        }
        if let Some(why) = program.ended() {
            stats.failures.push(why);
        }
        stats.run += 1;
        if stats.failures.len() >= FAILURES_MAX {
            break;
        }
    }
    stats
}

fn play(
    kind: CacheUse,
    sent: &[u8],
    target: &str,
    program: &ProgramUnderTest,
    stats: &mut LenientStats,
) -> Result<(), String> {
    if kind != CacheUse::Store {
        send_request(program, ("GET", ""), target, STORED.as_bytes())?;
    }
    let request = match kind {
        CacheUse::Store => ("GET", ""),
        CacheUse::Validate => ("GET", "Cache-Control: no-cache\r\n"),
        CacheUse::Head => ("HEAD", "Cache-Control: no-cache\r\n"),
    };
    let (responses, _) = send_request(program, request, target, sent)?;
    let last = responses.last();
    let is_own = last.is_none_or(|message| !message.fields.iter().any(|field| field.is("via")));
    let faults = Faults::of(sent);
    if faults.mixes_line_ends && !is_own {
        return Err("a header with mixed line ends was forwarded".to_owned());
    }
    stats.refused += u64::from(last.is_some_and(|message| message.status() == 502 && is_own));
    stats.rewritten += u64::from(faults.is_ambiguous && !is_own && responses.iter().any(is_marked));
    let (responses, is_hit) = send_request(program, ("GET", ""), target, LAST.as_bytes())?;
    let is_from_mutant = is_hit && responses.iter().any(|message| has_update(kind, message));
    if is_from_mutant && faults.is_ambiguous {
        return Err("an ambiguous response is in the cache".to_owned());
    }
    stats.stored += u64::from(is_from_mutant);
    Ok(())
}

/// Returns whether a stored response contains a part of the mutant. From a response to HEAD, the
/// cache takes only the freshness fields.
fn has_update(kind: CacheUse, message: &Message) -> bool {
    let renews = |field: &Field| field.is("cache-control") && field.value.ends_with(b"max-age=90");
    is_marked(message) || (kind == CacheUse::Head && message.fields.iter().any(renews))
}

fn is_marked(message: &Message) -> bool {
    message.fields.iter().any(|field| field.is(MARK))
}

/// Sends one request on a connection of its own. Returns the response, and whether the request did
/// not reach the origin.
fn send_request(
    program: &ProgramUnderTest,
    (method, fields): (&str, &str),
    target: &str,
    sent: &[u8],
) -> Result<(Vec<Message>, bool), String> {
    let mut literal = Literal::of(sent.to_owned());
    literal.steps.push(Step::Close);
    program.origin.begin(vec![(target.to_owned(), literal)]);
    let substitutions = program.substitutions();
    let host = &substitutions.host;
    let prefix =
        if substitutions.role == Role::Forward { format!("http://{host}") } else { String::new() };
    let request = format!("{method} {prefix}{target} HTTP/1.1\r\nHost: {host}\r\n{fields}\r\n");
    let mut client = Client::connect(program.address)?;
    client.send(&[Step::Bytes(request.into_bytes())], Pace::Whole, &program.origin)?;
    client.finish();
    let received = client.rest()?;
    let responses = read_responses(&received, &[RequestContext::with(method)])
        .map_err(|why| format!("AMBIGUOUS at the client ({why}): {}", escaped(&received)))?;
    let is_hit = program.origin.settle()?.is_empty();
    Ok((responses, is_hit))
}

/// Returns a response of this kind, usually with some of the faults that the program rewrites, and
/// mutated with a probability of one half.
fn response(kind: CacheUse, random: &mut Random) -> Vec<u8> {
    let mut bytes = Vec::new();
    if random.below(6) == 0 {
        header(&["HTTP/1.1 103 Early Hints", "Link: </a>; rel=preload"], &mut bytes, random);
    }
    let framing = match (kind, random.below(8)) {
        (CacheUse::Validate, _) => &[][..],
        (_, 0) => &["Content-Length: 2", "Content-Length: 2"],
        (_, 1) => &["Content-Length: 2, 2"],
        (_, 2) => &["Transfer-Encoding: chunked"],
        (_, 3) => &["Content-Length: 2", "content-length: 3"],
        _ => &["Content-Length: 2"],
    };
    let status =
        ["HTTP/1.1 200 OK", "HTTP/1.1 304 Not Modified"][usize::from(kind == CacheUse::Validate)];
    let mut lines = vec![status, "X-Mark: a b, c", "ETag: \"a\"", "Cache-Control: max-age=90"];
    lines.extend(["Set: d; e", "X-Mark: f:g"].iter().take(random.below(3)));
    if random.below(16) == 0 {
        lines.extend(std::iter::repeat_n("F: 1", 200 + random.below(850)));
    }
    lines.extend(framing);
    header(&lines, &mut bytes, random);
    if kind == CacheUse::Store {
        let is_chunked = framing.iter().any(|line| line.starts_with("Transfer"));
        bytes.extend_from_slice(if is_chunked { b"2\r\nok\r\n0\r\n\r\n" } else { b"ok" });
    }
    if random.below(2) == 0 {
        mutate(&mut bytes, STORED.as_bytes(), random);
    }
    bytes
}

/// Writes a header, with each of its faults at some probability.
fn header(lines: &[&str], out: &mut Vec<u8>, random: &mut Random) {
    let ends = ["\r\n", "\n"];
    let end = ends[usize::from(random.below(3) == 0)];
    // One line ends differently.
    let odd = if random.below(8) == 0 { random.below(lines.len() + 1) } else { usize::MAX };
    let (spaces, folds) = (random.below(3) == 0, random.below(3) == 0);
    for (number, line) in lines.iter().enumerate() {
        let mut line = (*line).to_owned();
        if let Some(colon) = line.find(':').filter(|_| number > 0) {
            if folds && random.below(3) == 0 {
                let at = colon + 1 + random.below(line.len() - colon);
                line.insert_str(at, &format!("{end}{}", random.choose(&[" ", "\t", "  \t"])));
            }
            if spaces && random.below(3) == 0 {
                line.insert_str(colon, random.choose(&[" ", "\t", " \t "]));
            }
        }
        out.extend_from_slice(line.as_bytes());
        let is_odd = (end == "\n") != (number == odd);
        out.extend_from_slice(ends[usize::from(is_odd)].as_bytes());
    }
    let is_odd = (end == "\n") != (lines.len() == odd);
    out.extend_from_slice(ends[usize::from(is_odd)].as_bytes());
}

/// The faults in the bytes that the origin sends: in the headers of the interim responses and of
/// the final one.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Faults {
    /// A line ends in LF alone, or begins with white space.
    is_ambiguous: bool,
    /// Lines of one header end in CR LF, and others in LF alone.
    mixes_line_ends: bool,
}

impl Faults {
    /// Reads lines until the first empty one, with either line end, and continues behind it if the
    /// response is interim.
    fn of(sent: &[u8]) -> Self {
        let mut faults = Self::default();
        let mut rest = sent;
        loop {
            let is_interim = rest.get(9) == Some(&b'1') && !rest[9..].starts_with(b"101");
            let (mut crlf, mut bare) = (false, false);
            loop {
                let Some(line_feed) = rest.iter().position(|byte| *byte == b'\n') else {
                    return faults;
                };
                let (line, after) = (&rest[..line_feed], &rest[line_feed + 1..]);
                rest = after;
                let has_cr = line.ends_with(b"\r");
                crlf |= has_cr;
                bare |= !has_cr;
                let is_folded = line.starts_with(b" ") || line.starts_with(b"\t");
                faults.is_ambiguous |= bare || is_folded;
                if line.is_empty() || line == b"\r" {
                    break;
                }
            }
            faults.mixes_line_ends |= crlf && bare;
            if !is_interim {
                return faults;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_are_seen_in_what_was_sent() {
        let faults = |sent: &str| {
            let Faults { is_ambiguous, mixes_line_ends } = Faults::of(sent.as_bytes());
            (is_ambiguous, mixes_line_ends)
        };
        assert_eq!(faults(STORED), (false, false));
        assert_eq!(faults("HTTP/1.1 200 OK\r\nA : b\r\n\r\n\n b\n"), (false, false));
        assert_eq!(faults("HTTP/1.1 200 OK\nA: b\n\n\r\n"), (true, false));
        assert_eq!(faults("HTTP/1.1 200 OK\r\nA: b\r\n c\r\n\r\n"), (true, false));
        assert_eq!(faults("HTTP/1.1 200 OK\r\nA: b\n\r\n"), (true, true));
        assert_eq!(faults("HTTP/1.1 200 OK\r\nA: b\r\n\n"), (true, true));
        assert_eq!(faults("HTTP/1.1 103 x\n\nHTTP/1.1 200 OK\r\n\r\n"), (true, false));
        assert_eq!(faults("HTTP/1.1 103 x\r\n\r\nHTTP/1.1 200 OK\n\n"), (true, false));
        assert_eq!(faults("HTTP/1.1 103 x\r\n\r\nHTTP/1.1 200 OK\n\r\n"), (true, true));
    }

    #[test]
    fn responses_have_each_fault_and_none() {
        let mut random = Random::new(1);
        let sent: Vec<_> = (0..1000).map(|_| response(CacheUse::Store, &mut random)).collect();
        let count = |is: &dyn Fn(&[u8]) -> bool| sent.iter().filter(|sent| is(sent)).count();
        assert!(count(&|sent| Faults::of(sent) == Faults::default()) > 200);
        assert!(count(&|sent| Faults::of(sent).is_ambiguous) > 300);
        assert!(count(&|sent| Faults::of(sent).mixes_line_ends) > 50);
        let has = |sent: &[u8], part: &[u8]| sent.windows(part.len()).any(|it| it == part);
        assert!(count(&|sent| has(sent, b" : ") || has(sent, b"\t: ")) > 100);
        assert!(count(&|sent| sent.len() > 1000) > 20);
    }
}
