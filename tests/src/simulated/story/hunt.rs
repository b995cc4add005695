//! Plays many seeds on several threads, and says what was found.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use super::ledger::{Failure, Met};
use super::shrink::{fails, shrink};
use super::words::{BAD_CHUNKS, BAD_HEADS, ODD_CHUNKS, ODD_HEADS};
use super::{Story, draw, play_story};

/// What many seeds came to.
#[derive(Default)]
pub struct Hunt {
    /// Seeds played.
    pub seeds: u64,
    /// Seeds that failed, the lowest first, each with its story and how it failed.
    pub failures: Vec<(Story, Failure)>,
    /// How often each class of behaviour was met.
    pub met: Met,
}

/// Every class of behaviour that stories have: a world in which one is never met proves nothing
/// about it. `few` leaves out the single messages of each table, of which a few hundred seeds meet
/// only most.
pub fn classes(few: bool) -> Vec<String> {
    let mut classes: Vec<String> = CLASSES.iter().map(|class| (*class).to_owned()).collect();
    if !few {
        let numbered = |class: &str, count: usize| -> Vec<String> {
            (0..count).map(|index| class.replace('#', &index.to_string())).collect()
        };
        classes.extend(numbered("answer: bad head #", BAD_HEADS.len()));
        classes.extend(numbered("answer: bad chunks #", BAD_CHUNKS.len()));
        classes.extend(numbered("request: odd Head(#)", ODD_HEADS.len()));
        classes.extend(numbered("request: odd Body(#)", ODD_CHUNKS.len()));
    }
    classes
}

const CLASSES: [&str; 105] = [
    "answer: 101 that nobody asked for",
    "answer: HTTP/1.0",
    "answer: a flood of interim ones",
    "answer: after interim ones",
    "answer: before the request's end",
    "answer: bytes after it",
    "answer: chunked",
    "answer: closed in the middle",
    "answer: closes behind it",
    "answer: drips",
    "answer: ends in the middle",
    "answer: reset in the middle",
    "answer: stops in the middle",
    "answer: trailers",
    "answer: until close",
    "answer: with a length",
    "client: closes in the middle",
    "client: ends its stream behind its requests",
    "client: ends its stream in the middle",
    "client: got a whole answer",
    "client: innocent",
    "client: leaves in the middle",
    "client: pauses in the middle",
    "client: reads slowly",
    "client: resets in the middle",
    "client: sees its connection break",
    "client: stops in the middle",
    "client: stops reading",
    "name: a lie comes first",
    "name: answered twice",
    "name: found",
    "name: found late",
    "name: no answer",
    "name: the server fails",
    "name: unknown",
    "operator: drains in the middle",
    "operator: reloads",
    "origin: closes at once",
    "origin: closes idle connections",
    "origin: ends idle connections",
    "origin: good",
    "origin: in a tunnel",
    "origin: never reads",
    "origin: refuses",
    "origin: resets at once",
    "origin: says something unasked",
    "origin: sees its connection break",
    "proxy: a request tried again",
    "proxy: answers 400 itself",
    "proxy: answers 408 itself",
    "proxy: answers 502 itself",
    "proxy: answers 503 itself",
    "proxy: answers 504 itself",
    "proxy: boosts",
    "proxy: forwards",
    "proxy: listens on a Unix socket",
    "proxy: short of descriptors",
    "proxy: short of memory",
    "request: Connect",
    "request: Get",
    "request: HTTP/1.0",
    "request: Head",
    "request: Options",
    "request: Post",
    "request: Put",
    "request: Upgrade",
    "request: chunked",
    "request: expects 100",
    "request: pipelined",
    "request: trailers",
    "story: Kind",
    "story: Mixed",
    "story: Wild",
    "trouble: clock leaps",
    "trouble: empty wake",
    "trouble: empty watch",
    "trouble: guessed name",
    "trouble: late connect",
    "trouble: late letter",
    "trouble: late name",
    "trouble: name server fails",
    "trouble: name told twice",
    "trouble: no memory",
    "trouble: no pipe",
    "trouble: reset",
    "trouble: shortage",
    "trouble: skewed accepts",
    "trouble: slow turn",
    "trouble: stale completion",
    "trouble: stall",
    "trouble: vanished peer",
    "trouble: wrong address",
    "tunnel: begun",
    "tunnel: whole",
    "world: connecting fails",
    "world: connections break",
    "world: datagrams are lost",
    "world: hostile",
    "world: idle",
    "world: no descriptor by chance",
    "world: segments are late",
    "world: short of pipes",
    "world: streams stall",
    "world: working",
    "client: waits for the proxy to close",
];

/// One seed of so many is played twice, to see that it repeats; every failing one is.
const REPLAYED_OF: u64 = 32;

/// Plays `seeds` from `first` on, on `threads` threads. Ends early once `failures_max` have failed.
pub fn hunt(first: u64, seeds: u64, threads: usize, failures_max: usize) -> Hunt {
    let next = AtomicU64::new(first);
    let found = Mutex::new(Hunt::default());
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                let mut met = Met::new();
                loop {
                    // Each seed is taken once; nothing else hangs on the order.
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed - first >= seeds {
                        break;
                    }
                    let failure = play_seed(seed, &mut met);
                    let mut found = found.lock().expect("no thread panics with the lock");
                    found.seeds += 1;
                    found.failures.extend(failure);
                    if found.failures.len() >= failures_max {
                        break;
                    }
                }
                let mut found = found.lock().expect("no thread panics with the lock");
                for (class, count) in met {
                    *found.met.entry(class).or_default() += count;
                }
            });
        }
    });
    let mut found = found.into_inner().expect("no thread panicked");
    found.failures.sort_by_key(|(story, _)| story.seed);
    found
}

fn play_seed(seed: u64, met: &mut Met) -> Option<(Story, Failure)> {
    let story = draw(seed);
    let outcome = play_story(&story, false);
    for (class, count) in &outcome.met {
        *met.entry(class.clone()).or_default() += count;
    }
    if (outcome.failure.is_some() || seed.is_multiple_of(REPLAYED_OF))
        && let Some(failure) = differs(&story, outcome.hash)
    {
        return Some((story, failure));
    }
    outcome.failure.map(|failure| (story, failure))
}

/// Whether a second run of a story is another one.
fn differs(story: &Story, hash: u64) -> Option<Failure> {
    let again = play_story(story, false).hash;
    let words = format!("the trace has the hash {hash:016x}, and {again:016x} when played again");
    (again != hash).then_some(Failure { kind: "replay", words })
}

/// A failing story shrunk within `time`, as a person reads it: the story, what happened, what was
/// wrong, how to see it again.
pub fn report(story: &Story, failure: &Failure, time: Duration) -> String {
    let (small, failure) = match failure.kind {
        "replay" => (story.clone(), failure.clone()),
        _ => shrink(story, failure, time, &fails),
    };
    let outcome = play_story(&small, true);
    let again = play_story(&small, true);
    // For whoever looks into the engine: a line a completion.
    let traces = std::env::var_os("TRACE").is_some();
    let trace = if traces { format!("\n{}", outcome.trace) } else { String::new() };
    let repeats = if outcome.hash == again.hash { "repeats" } else { "DOES NOT REPEAT" };
    format!(
        "seed {} fails ({}).\n\nThe whole story has {} connections; shrunk, it is:\n\n{small}\n\
         What happened:\n\n{}{trace}\nWhat was wrong ({}): {}\nThe trace's hash {:016x} {repeats}.\n\
         Again: make sim SEED={}\n",
        story.seed,
        failure.kind,
        story.connections.len(),
        outcome.tale,
        failure.kind,
        failure.words,
        outcome.hash,
        story.seed,
    )
}
