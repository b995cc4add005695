//! Checks that the work for a message grows with its bytes, not with their square.
//!
//! Each field that the code may read as a list is sent through the proxy's own worker in the
//! simulator: in every kind of message, in many shapes, and at half and at full size. Callgrind
//! counts the instructions of each exchange (docs/measuring/cost.md).

mod count;
mod exchange;
mod expected;
mod message;
mod play;
mod site;
mod size;

use std::fmt;
use std::thread;

use count::Run;
use exchange::{Case, Exchange};
use expected::expected;
use message::names;

pub use exchange::{FieldPlace, Service};
pub use message::FieldShape;
pub use play::{Seen, play, play_with};
pub use size::Size;

/// The highest allowed growth of a message's instructions when its size doubles.
pub const GROWTH_MAX: f64 = 2.3;

/// The most instructions that one message may cost at the default limits: about 10 ms.
pub const INSTRUCTIONS_MAX: u64 = 30_000_000;

/// The cost of one message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cost {
    /// The number of the message's case: a field in a shape.
    pub case: usize,
    /// The place of the field.
    pub place: FieldPlace,
    /// Instructions at half of the size.
    pub half: u64,
    /// Instructions at the full size.
    pub full: u64,
}

impl Cost {
    /// Returns `full / half`.
    pub fn growth(&self) -> f64 {
        self.full as f64 / self.half as f64
    }

    /// Returns whether it cost more than a message may.
    pub fn is_too_much(&self) -> bool {
        self.growth() > GROWTH_MAX || self.full > INSTRUCTIONS_MAX
    }
}

impl fmt::Display for Cost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, shape) = &cases()[self.case];
        let Self { place, half, full, .. } = self;
        write!(f, "{name} {shape:?} {place:?}: {half} -> {full} ({:.2} times)", self.growth())
    }
}

/// Returns every field in every shape.
pub fn cases() -> Vec<(String, FieldShape)> {
    let shapes = |name: String| FieldShape::ALL.map(|shape| (name.clone(), shape));
    names().into_iter().flat_map(shapes).collect()
}

/// Returns the exchanges of these cases: for each case, all places at half of the size, then all at
/// full size.
pub fn exchanges(numbers: &[usize], size: Size) -> Vec<Exchange> {
    let cases = cases();
    let of = |&number: &usize| {
        let (name, shape) = &cases[number];
        [2, 1].into_iter().flat_map(move |parts| {
            let [request, response] = size.of(name).bytes(parts);
            Case::new(name, *shape, request, response).exchanges()
        })
    };
    numbers.iter().flat_map(of).collect()
}

/// The environment variable that selects the cases of [`play_from_environment`].
const PLAYED: &str = "GROWTH_PLAYED";

/// Counts the instructions of these cases at this size and at half of it. Runs this program with
/// the arguments `player`, once for each processor, and each run calls [`play_from_environment`].
///
/// # Errors
/// Returns what failed.
pub fn measure(player: &[&str], numbers: &[usize], size: Size) -> Result<Vec<Cost>, String> {
    let runs = thread::available_parallelism().map_or(1, usize::from);
    let shares: Vec<&[usize]> = numbers.chunks(numbers.len().div_ceil(runs)).collect();
    let start = |(index, share): (usize, &&[usize])| {
        let numbers: String = share.iter().map(|number| format!(" {number}")).collect();
        let played = format!("{} {}{numbers}", size.request, size.response);
        Run::start(player, (PLAYED, &played), index)
    };
    let runs: Vec<Result<Run, String>> = shares.iter().enumerate().map(start).collect();
    let mut costs = Vec::new();
    for (share, run) in shares.iter().zip(runs) {
        let counts = run?.end()?;
        let exchanges = share.len() * 2 * FieldPlace::ALL.len();
        let counted = counts.iter().take(exchanges).filter(|&&count| count > 0).count();
        if counted < exchanges {
            return Err(format!("{counted} of {exchanges} exchanges were counted"));
        }
        costs.extend(paired(share, &counts));
    }
    Ok(costs)
}

/// Plays the cases that [`measure`] put into the environment. The work of `reader`, which is called
/// with each request, counts as the worker's.
///
/// # Panics
/// Panics if the variable is missing, or if a message takes another path than expected.
pub fn play_from_environment(reader: fn(&[u8])) {
    let played = std::env::var(PLAYED).expect("`measure` sets it");
    let words = played.split(' ').map(|word| word.parse().expect("`measure` writes numbers"));
    let words: Vec<usize> = words.collect();
    let [request, response, ref numbers @ ..] = words[..] else { panic!("two sizes come first") };
    let size = Size { request, response };
    let seen = play_with(exchanges(numbers, size), size, reader);
    let deviations = deviations(numbers, &seen);
    assert!(deviations.is_empty(), "other paths than expected:\n{}", deviations.join("\n"));
}

/// Returns the exchanges of these cases that took another path than expected.
fn deviations(numbers: &[usize], seen: &[Seen]) -> Vec<String> {
    let cases = cases();
    let kinds = numbers.iter().flat_map(|&number| {
        let (name, shape) = &cases[number];
        [FieldPlace::ALL; 2].into_iter().flatten().map(move |place| (name, *shape, place))
    });
    assert_eq!(seen.len(), numbers.len() * 2 * FieldPlace::ALL.len());
    kinds
        .zip(seen)
        .filter(|&((name, shape, place), seen)| expected(name, shape, place) != *seen)
        .map(|((name, shape, place), seen)| format!("{name} {shape:?} {place:?}: {seen:?}"))
        .collect()
}

/// Returns the costs of these cases, from counts in the order of [`exchanges`].
fn paired<'a>(numbers: &'a [usize], counts: &'a [u64]) -> impl Iterator<Item = Cost> + 'a {
    let count = FieldPlace::ALL.len();
    numbers.iter().zip(counts.chunks(2 * count)).flat_map(move |(&case, counts)| {
        let (half, full) = counts.split_at(count);
        let both = half.iter().zip(full).zip(FieldPlace::ALL);
        let costs = both.map(move |((&half, &full), place)| Cost { case, place, half, full });
        costs.filter(|cost| cost.place.has_field())
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fs;
    use std::path::Path;

    use super::message::{PATH, QUERY};
    use super::*;

    fn number_of(name: &str, shape: FieldShape) -> usize {
        let is_it = |case: &(String, FieldShape)| case.0 == name && case.1 == shape;
        cases().iter().position(is_it).expect("there is such a case")
    }

    /// [`play_from_environment`] checks everything that is counted. This test checks the paths
    /// without callgrind.
    #[test]
    fn each_place_takes_its_path() {
        for (name, shape) in [
            ("x-unknown", FieldShape::Distinct),
            ("connection", FieldShape::Bound),
            ("upgrade", FieldShape::Bound),
            ("set-cookie", FieldShape::Lines),
            ("vary", FieldShape::Bound),
            ("age", FieldShape::Distinct),
            ("x-of-cache-target", FieldShape::Pairs),
            (PATH, FieldShape::Blanks),
            (PATH, FieldShape::Dots),
        ] {
            let numbers = [number_of(name, shape)];
            let seen = play(exchanges(&numbers, Size::DEFAULT), Size::DEFAULT);
            assert_eq!(deviations(&numbers, &seen), Vec::<String>::new());
        }
    }

    /// [`names`] takes the names of fields from the parser. Code that compares a name as text reads
    /// a field that the parser does not know, and [`names`] misses it. So no such field may be a
    /// list.
    #[test]
    fn only_fields_with_one_value_are_compared_as_text() {
        const COMPARED: [&str; 2] = ["name == b\"", "name.eq_ignore_ascii_case(b\""];
        let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates");
        let mut folders = [
            "http/http1/src",
            "http/http-cache/src",
            "cache/body/src",
            "cache/disk/src",
            "cache/store/src",
            "proxy/config/src",
            "proxy/proxy/src",
        ]
        .map(|folder| crates.join(folder))
        .to_vec();
        let mut found = BTreeSet::new();
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder).expect("a folder of sources") {
                let path = entry.expect("an entry").path();
                if path.is_dir() {
                    folders.push(path);
                    continue;
                }
                let text = fs::read_to_string(&path).expect("a source");
                for compared in COMPARED {
                    let names = text.split(compared).skip(1).filter_map(|it| it.split('"').next());
                    found.extend(names.map(str::to_owned));
                }
            }
        }
        assert_eq!(found.into_iter().collect::<Vec<_>>(), ["*", "content-md5"]);
    }

    #[test]
    fn messages_have_the_requested_size() {
        let size = Size::SMALL;
        for number in 0..cases().len() {
            let (name, shape) = &cases()[number];
            let all = exchanges(&[number], size);
            let longest = all.iter().map(|exchange| exchange.request.len()).max();
            let longest = longest.expect("there are some");
            let is_long = name == PATH || longest + 300 > size.request;
            assert!(longest <= size.request && is_long, "{name} {shape:?}: {longest}");
            let responses = all.iter().flat_map(|exchange| &exchange.responses);
            let longest = responses.map(Vec::len).max().expect("there are some");
            let is_long = [QUERY, PATH].contains(&name.as_str()) || longest + 300 > size.response;
            assert!(longest <= size.response && is_long, "{name} {shape:?}: {longest}");
        }
    }

    /// A message with the shortest name has the most fields.
    #[test]
    fn no_message_is_refused_for_the_number_of_its_fields() {
        let shortest = names().into_iter().map(|name| name.len()).min();
        assert_eq!(shortest, Some("te".len()));
        let all = cases().into_iter().enumerate();
        let cases = all.filter(|(_, (name, _))| name == "te").map(|(number, _)| number);
        for exchange in exchanges(&cases.collect::<Vec<_>>(), Size::DEFAULT) {
            for message in exchange.responses.iter().chain([&exchange.request]) {
                let lines = message.iter().filter(|&&byte| byte == b'\n').count();
                assert!(lines <= message::FIELDS_MAX, "{lines} lines");
            }
        }
    }

    #[test]
    fn names_come_from_the_code() {
        let names = names();
        for name in ["connection", "upgrade", "vary", "x-of-cache-target", "x-of-cache-key", QUERY]
        {
            assert!(names.iter().any(|known| known == name), "{name}");
        }
    }

    #[test]
    fn a_message_may_grow_a_little_more_than_its_size() {
        let cost = |half, full| Cost { case: 0, place: FieldPlace::Hit, half, full };
        assert!(!cost(100, 230).is_too_much() && cost(100, 231).is_too_much());
        assert!(!cost(20_000_000, 30_000_000).is_too_much());
        assert!(cost(20_000_000, 30_000_001).is_too_much());
    }
}
