//! Mutants of the corpus: what nobody thought of. Whatever reaches the origin must still be
//! accepted by the strict parser, and every connection must end.

use std::thread;

use super::case::{Case, Outcome};
use super::client::{Client, Pace};
use super::lane::{Lane, PAUSE};
use super::literal::{Literal, Place, Role, Step, escaped, fill};
use super::origin::Seen;
use crate::strict::{self, Asked};

/// A pseudorandom sequence: SplitMix64, from one seed.
pub struct Random(u64);

impl Random {
    /// The sequence of this seed.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ (word >> 31)
    }

    /// A number in `0..bound`; 0 if the bound is 0.
    fn below(&mut self, bound: usize) -> usize {
        let bound = (bound as u64).max(1);
        usize::try_from(self.next() % bound).expect("below a usize")
    }
}

/// What is mutated: filled-in literals of one lane.
pub struct Stock {
    seeds: Vec<Seed>,
    /// Which of them are forwarded as they are: the nearest relatives of what gets through.
    forwarded: Vec<usize>,
}

struct Seed {
    name: String,
    sent: Literal,
    target: String,
    said: Option<Literal>,
}

impl Stock {
    /// The cases of the corpus that may be mutated in such a lane: all but those that open tunnels,
    /// whose content is nobody's to judge, and those that name other servers.
    pub fn new(cases: &[Case], place: &Place) -> Self {
        let mut seeds = Vec::new();
        let mut forwarded = Vec::new();
        for case in cases.iter().filter(|case| case.runs(place.role)) {
            let sent = fill(&case.sent, place, true).expect("checked before");
            if place.role == Role::Forward && elsewhere(&sent) {
                continue;
            }
            let seen = case.seen.first().unwrap_or(&case.sent);
            let seen = fill(seen, place, false).expect("checked before").bytes();
            let seen = String::from_utf8_lossy(&seen).into_owned();
            let target = seen.split(' ').nth(1).unwrap_or("").to_owned();
            let said = case.said.first();
            let said = said.map(|lines| fill(lines, place, false).expect("checked before"));
            if case.outcomes.first() == Some(&Outcome::Forwarded) {
                forwarded.push(seeds.len());
            }
            seeds.push(Seed { name: case.name.clone(), sent, target, said });
        }
        Self { seeds, forwarded }
    }

    fn pick(&self, random: &mut Random) -> &Seed {
        if random.below(2) == 0 && !self.forwarded.is_empty() {
            return &self.seeds[self.forwarded[random.below(self.forwarded.len())]];
        }
        &self.seeds[random.below(self.seeds.len())]
    }
}

/// Whether a literal leads to another server than the lane's origin, or opens a tunnel.
fn elsewhere(sent: &Literal) -> bool {
    let bytes = sent.bytes();
    let starts = |at: usize, text: &[u8]| bytes[at..].starts_with(text);
    (0..bytes.len()).any(|at| {
        let named = starts(at, b"://") && !sent.fixed.iter().any(|range| range.contains(&at));
        named || starts(at, b"CONNECT ")
    }) || sent.fixed.is_empty()
}

/// Runs one mutant of the stock in the lane. Gives whether a whole request reached the origin.
///
/// # Errors
/// Shows the mutant and what came of it.
pub fn run(stock: &Stock, random: &mut Random, lane: &Lane) -> Result<bool, String> {
    let seed = stock.pick(random);
    let mut sent = seed.sent.bytes();
    let mut said = seed.said.as_ref().map(|said| said.bytes());
    match &mut said {
        Some(said) if random.below(2) == 0 => mutate(said, &[], random),
        _ => mutate(&mut sent, &seed.sent.fixed, random),
    }
    let script = said.iter().map(|said| {
        let mut answer = Literal::of(said.clone());
        // The connection ends with the answer, so that whatever is wrong with it is over.
        answer.steps.push(Step::Close);
        (seed.target.clone(), answer)
    });
    let late = lane.origin.begin(script.collect());
    if let Some(late) = late.iter().find(|seen| !matches!(seen, Seen::Cut(_))) {
        return Err(format!("after the end of the mutant before, the origin saw {late}"));
    }
    verdict(&segments(&sent, random), lane).map_err(|why| {
        let said = said.map(|said| format!("\n  origin says: {}", escaped(&said)));
        let (name, sent) = (&seed.name, escaped(&sent));
        format!("a mutant of `{name}`: {why}\n  client: {sent}{}", said.unwrap_or_default())
    })
}

fn verdict(segments: &[Vec<u8>], lane: &Lane) -> Result<bool, String> {
    let mut client = Client::connect(lane.address)?;
    for (index, segment) in segments.iter().enumerate() {
        if index > 0 && index % 2 == 0 {
            thread::sleep(PAUSE / 8);
        }
        client.send(&[Step::Bytes(segment.clone())], Pace::Whole, &lane.origin)?;
    }
    client.finish();
    let received = client.rest()?;
    let seen = lane.origin.settle()?;
    lane.origin.begin(Vec::new());
    let mut asked = Vec::new();
    for seen in &seen {
        match seen {
            Seen::Whole(message) => asked.push(Asked::with(message.method())),
            Seen::Cut(_) => {}
            Seen::Doubtful(..) => return Err(format!("at the origin: {seen}")),
        }
    }
    let reached = !asked.is_empty();
    check_answers(&received, &asked)
        .map_err(|doubt| format!("DOUBTFUL at the client ({doubt}): {}", escaped(&received)))?;
    Ok(reached)
}

/// Every answer at the client must have one meaning; the last one may be cut.
///
/// Which of the answers are the program's own, and which request each of the others answers, is not
/// known: pipelined requests may reach the origin in any order. The program's own have no Via. One
/// reading that fits is enough.
fn check_answers(received: &[u8], asked: &[Asked]) -> Result<(), String> {
    if received.is_empty() {
        return Ok(());
    }
    let head = received.windows(4).position(|four| four == b"\r\n\r\n").unwrap_or(received.len());
    let own = !received[..head].windows(6).any(|six| six == b"\r\nVia:");
    let mut readings: Vec<(Asked, Vec<Asked>)> = Vec::new();
    for (index, current) in asked.iter().enumerate() {
        if readings.iter().all(|(other, _)| other != current) {
            let mut later = asked.to_owned();
            later.remove(index);
            readings.push((current.clone(), later));
        }
    }
    if own {
        readings.extend(["GET", "HEAD"].map(|method| (Asked::with(method), asked.to_owned())));
    }
    let mut doubt = String::from("more answers than requests");
    for (current, later) in readings {
        let verdict = match strict::answer(received, &current, true) {
            Ok(Some(message)) if message.status() == 101 => Ok(()),
            Ok(Some(message)) if message.interim() => {
                check_answers(&received[message.bytes..], asked)
            }
            Ok(Some(message)) => check_answers(&received[message.bytes..], &later),
            Ok(None) => Ok(()),
            Err(doubt) => Err(doubt.0),
        };
        match verdict {
            Ok(()) => return Ok(()),
            Err(why) => doubt = why,
        }
    }
    Err(doubt)
}

/// Cuts the bytes into one to four segments, anywhere.
fn segments(bytes: &[u8], random: &mut Random) -> Vec<Vec<u8>> {
    let mut cuts: Vec<_> = (0..random.below(4)).map(|_| random.below(bytes.len())).collect();
    cuts.extend([0, bytes.len()]);
    cuts.sort_unstable();
    cuts.dedup();
    cuts.windows(2).map(|cut| bytes[cut[0]..cut[1]].to_owned()).collect()
}

/// Changes the bytes in one to three ways, never inside a fixed range.
fn mutate(bytes: &mut Vec<u8>, fixed: &[std::ops::Range<usize>], random: &mut Random) {
    let mut fixed = fixed.to_owned();
    let mut changes = 1 + random.below(3);
    while changes > 0 && !bytes.is_empty() {
        // Most of what matters stands near the beginning of a long message.
        let reach = if random.below(4) == 0 { bytes.len() } else { bytes.len().min(600) };
        let at = random.below(reach);
        if fixed.iter().any(|range| range.contains(&at)) {
            continue;
        }
        changes -= 1;
        match random.below(6) {
            0 => bytes[at] ^= 1 << random.below(8),
            1 | 2 => insert(bytes, &mut fixed, at, INSERTIONS[random.below(INSERTIONS.len())]),
            3 => {
                bytes.remove(at);
                shift(&mut fixed, at, -1);
            }
            4 => {
                let line = line_around(bytes, at);
                let copy = bytes[line.clone()].to_owned();
                if !fixed.iter().any(|range| range.contains(&line.end)) {
                    insert(bytes, &mut fixed, line.end, &copy);
                }
            }
            _ => {
                bytes.truncate(at.max(1));
            }
        }
    }
}

fn insert(bytes: &mut Vec<u8>, fixed: &mut [std::ops::Range<usize>], at: usize, new: &[u8]) {
    bytes.splice(at..at, new.iter().copied());
    shift(fixed, at, isize::try_from(new.len()).expect("a short insertion"));
}

fn shift(fixed: &mut [std::ops::Range<usize>], at: usize, by: isize) {
    for range in fixed.iter_mut().filter(|range| range.start >= at) {
        *range = range.start.saturating_add_signed(by)..range.end.saturating_add_signed(by);
    }
}

/// The line, its end included, that a position lies in.
fn line_around(bytes: &[u8], at: usize) -> std::ops::Range<usize> {
    let start = bytes[..at].iter().rposition(|byte| *byte == b'\n').map_or(0, |lf| lf + 1);
    let end =
        bytes[at..].iter().position(|byte| *byte == b'\n').map_or(bytes.len(), |lf| at + lf + 1);
    start..end
}

const INSERTIONS: [&[u8]; 20] = [
    b"\r",
    b"\n",
    b"\r\n",
    b"\r\n\r\n",
    b"\0",
    b" ",
    b"\t",
    b":",
    b",",
    b";",
    b"0",
    b"\x0b",
    b"\x7f",
    b"\xff",
    b"chunked",
    b"\r\n ",
    b"Content-Length: 5\r\n",
    b"\r\nTransfer-Encoding: chunked",
    b"\r\nConnection: close",
    b"GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_read_in_every_order_that_fits() {
        let head = "HTTP/1.1 200 OK\r\nVia: 1.1 a\r\nContent-Length: 2\r\n\r\n";
        let own = "HTTP/1.1 400 Bad Request\r\nContent-Length: 2\r\n\r\nno";
        let asked = ["GET", "HEAD"].map(Asked::with);
        let check = |text: String| check_answers(text.as_bytes(), &asked);
        assert_eq!(check(format!("{head}{head}ok")), Ok(()));
        assert_eq!(check(format!("{head}ok{head}{own}")), Ok(()));
        assert!(check(format!("{head}ok{head}ok{own}")).is_err());
        assert!(check(format!("{head}{head}{head}")).is_err());
    }

    #[test]
    fn mutants_never_touch_what_is_fixed() {
        let address = b"127.9.9.9:49999";
        let text = [b"GET http://", &address[..], b"/ HTTP/1.1\r\nHost: a\r\n\r\n"].concat();
        let fixed = 11..11 + address.len();
        let mut random = Random::new(1);
        for _ in 0..10_000 {
            let mut mutant = text.clone();
            mutate(&mut mutant, std::slice::from_ref(&fixed), &mut random);
            // What is there of it is all of it, or all that was not cut off.
            let there = mutant.windows(3).position(|three| three == b"127").unwrap_or(mutant.len());
            let there = &mutant[there..mutant.len().min(there + address.len())];
            assert!(address.starts_with(there), "{}", escaped(&mutant));
        }
    }
}
