//! One body, filled and read by threads that sleep until they are woken: nobody is forgotten, every
//! byte is the one that was filled, and nothing is left of it. A seed decides who does what.

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread;
use std::time::Duration;

use iolite::{Helper, Kind, Slab};
use millrace_cache::{Body, End, Filler, Read, Reader, Waiter};
use millrace_http::corpus::Random;

/// Nobody waits so long for somebody who runs. It decides how long a failure takes, and that it is
/// one; nothing else.
const FORGOTTEN: Duration = Duration::from_secs(60);

const READERS: usize = 6;
const BODIES: usize = 400;
const BYTES_MAX: usize = 1 << 20;
const SLAB_BYTES: usize = 16 << 20;
/// How far behind a reader may be before the filler, at times, cuts it off.
const BEHIND_MAX: u64 = 300_000;

/// What the one who fills does.
#[derive(Clone, Copy, Debug)]
struct Plan {
    readers: usize,
    bytes: usize,
    is_announced: bool,
    /// After so many bytes the body is passed on only.
    passes_at: usize,
    ahead_max: u64,
    cuts_behind: bool,
    ending: Ending,
}

#[derive(Clone, Copy, PartialEq, Debug)]
enum Ending {
    Finished,
    Cut,
    /// Wakes nobody, so that the others look again without.
    Dropped,
}

impl Plan {
    fn draw(random: &mut Random) -> Self {
        let ending = match random.below(4) {
            0 => Ending::Cut,
            1 => Ending::Dropped,
            _ => Ending::Finished,
        };
        let scale = [50, 5_000, BYTES_MAX][random.below(3)];
        let bytes = random.below(scale);
        Self {
            readers: 1 + random.below(READERS),
            bytes,
            is_announced: random.below(2) == 0,
            passes_at: random.below(2 * bytes),
            ahead_max: [1, 5_000, 200_000, u64::MAX][random.below(4)],
            cuts_behind: random.below(3) == 0,
            ending,
        }
    }
}

/// Those who wake and are woken: the filler is number `READERS`.
#[derive(Clone)]
struct Bells(Arc<Vec<Sender<()>>>);

impl Bells {
    fn new() -> (Self, Vec<Receiver<()>>) {
        let (bells, ears) = (0..=READERS).map(|_| channel()).unzip();
        (Self(Arc::new(bells)), ears)
    }

    fn ring(&self, waiters: impl IntoIterator<Item = Waiter>) {
        for waiter in waiters {
            assert_eq!(waiter.token, u64::from(waiter.worker) + 7);
            // Who went away is woken for nothing.
            let _ = self.0[usize::from(waiter.worker)].send(());
        }
    }
}

/// Those who still read without a stop. Who stops goes on when they are gone: nobody may need him.
#[derive(Default)]
struct Busy {
    count: Mutex<usize>,
    none: Condvar,
}

impl Busy {
    fn begin(&self) -> Reading<'_> {
        *self.lock() += 1;
        Reading(self)
    }

    fn sleep(&self) {
        let slept = self.none.wait_timeout_while(self.lock(), FORGOTTEN, |count| *count > 0);
        assert!(!slept.expect("nobody panics with it").1.timed_out(), "somebody was forgotten");
    }

    fn lock(&self) -> MutexGuard<'_, usize> {
        self.count.lock().expect("nobody panics with it")
    }
}

/// One of them, as long as it lives.
struct Reading<'a>(&'a Busy);

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        let mut count = self.0.lock();
        *count -= 1;
        if *count == 0 {
            self.0.none.notify_all();
        }
    }
}

fn waiter(number: usize) -> Waiter {
    Waiter { worker: number as u16, token: number as u64 + 7 }
}

fn sleep(ear: &Receiver<()>, who: &str) {
    match ear.recv_timeout(FORGOTTEN) {
        Ok(()) => {}
        Err(RecvTimeoutError::Timeout) => panic!("{who} was forgotten"),
        Err(RecvTimeoutError::Disconnected) => unreachable!("the bells outlive all"),
    }
}

/// The byte at a position of every body.
fn byte(at: u64) -> u8 {
    (at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8
}

fn fill(mut filler: Filler, plan: Plan, bells: &Bells, ear: &Receiver<()>, random: &mut Random) {
    let me = waiter(READERS);
    let end = if plan.ending == Ending::Finished { plan.bytes } else { plan.bytes / 2 };
    let (mut at, mut is_passing) = (0, false);
    while at < end {
        if !is_passing && at >= plan.passes_at {
            filler.pass();
            is_passing = true;
        }
        if plan.cuts_behind {
            filler.cut_behind(BEHIND_MAX);
        }
        // Where nobody reads it goes on, as for a body that is kept.
        if filler.ahead(plan.ahead_max, me).is_some_and(|ahead| ahead >= plan.ahead_max) {
            sleep(ear, "the filler");
            continue;
        }
        let Ok(spare) = filler.spare() else {
            // Never full: all bodies fit. The helper is a moment behind.
            thread::yield_now();
            continue;
        };
        let next = if is_passing { end } else { end.min(plan.passes_at) };
        let count = spare.len().min(next - at).min(1 + random.below(40_000));
        for (place, at) in spare[..count].iter_mut().zip(at as u64..) {
            *place = byte(at);
        }
        at += count;
        bells.ring(filler.advance(count));
    }
    match plan.ending {
        Ending::Finished => bells.ring(filler.finish()),
        Ending::Cut => bells.ring(filler.cut()),
        Ending::Dropped => {
            drop(filler);
            bells.ring((0..READERS).map(waiter));
        }
    }
}

/// One who reads from a place on.
struct Client {
    number: usize,
    start: usize,
    /// So often it reads before it goes away.
    patience: usize,
    /// So often it reads before it stops until the others are gone.
    stops_at: usize,
    max: usize,
    random: Random,
}

impl Client {
    fn draw(number: usize, plan: Plan, mut random: Random) -> Self {
        Self {
            number,
            start: random.below(2) * random.below(plan.bytes + 2),
            patience: if random.below(3) == 0 { random.below(30) } else { usize::MAX },
            stops_at: if random.below(3) == 0 { random.below(5) } else { usize::MAX },
            max: [9_000, 700, 16_384, 1 << 20, usize::MAX][random.below(5)],
            random,
        }
    }

    fn read(
        mut self,
        plan: Plan,
        body: Arc<Body>,
        bells: &Bells,
        ear: &Receiver<()>,
        busy: Reading,
    ) {
        self.dawdle();
        let Some(mut reader) = Reader::new(body, self.start as u64) else { return };
        let all = busy.0;
        let mut busy = Some(busy);
        for turn in 0..self.patience {
            if turn == self.stops_at {
                busy = None;
                all.sleep();
            }
            self.dawdle();
            let (found, woken) = reader.read(self.max, waiter(self.number));
            bells.ring(woken);
            match found {
                Read::Bytes(slice) => {
                    assert!((1..=self.max).contains(&slice.len()));
                    let first = reader.at() - slice.len() as u64;
                    let is_same = slice.iter().zip(first..).all(|(&found, at)| found == byte(at));
                    assert!(is_same, "reader {} at {first}", self.number);
                }
                Read::Wait => sleep(ear, "a reader"),
                Read::End(end) => {
                    self.check_end(end, reader.at(), plan);
                    break;
                }
            }
        }
        self.dawdle();
        bells.ring(reader.leave());
        drop(busy);
    }

    /// Now and then lets the others do something first.
    fn dawdle(&mut self) {
        if self.random.below(4) == 0 {
            (0..self.random.below(100)).for_each(|_| thread::yield_now());
        }
    }

    fn check_end(&self, end: End, at: u64, plan: Plan) {
        let is_finished = plan.ending == Ending::Finished;
        let came = if is_finished { plan.bytes } else { plan.bytes / 2 };
        let is_at_end = at == came.max(self.start) as u64;
        match end {
            End::Whole => assert!(is_finished && is_at_end, "at {at}"),
            End::Cut => {
                let is_behind = plan.cuts_behind && came > plan.passes_at;
                assert!(is_behind || !is_finished && is_at_end, "at {at}");
            }
        }
    }
}

#[test]
fn nobody_is_forgotten_and_no_byte_is_another() {
    let slab = Slab::on_heap(SLAB_BYTES).unwrap();
    let _helper = Helper::start(&slab).unwrap();
    let mut random = Random::seeded();
    for _ in 0..BODIES {
        let plan = Plan::draw(&mut random);
        println!("{plan:?}");
        let length = plan.is_announced.then_some(plan.bytes as u64);
        let filler = Filler::new(&slab, Kind::Referred, length, 0);
        let body = filler.body().clone();
        let (bells, mut ears) = Bells::new();
        let filler_ear = ears.pop().unwrap();
        let busy = Busy::default();
        let mut seed = || Random::from_seed(random.below(usize::MAX) as u64);
        thread::scope(|scope| {
            for (number, ear) in ears.into_iter().take(plan.readers).enumerate() {
                let (body, bells, busy) = (body.clone(), bells.clone(), busy.begin());
                let client = Client::draw(number, plan, seed());
                scope.spawn(move || client.read(plan, body, &bells, &ear, busy));
            }
            let (bells, mut random) = (bells.clone(), seed());
            scope.spawn(move || fill(filler, plan, &bells, &filler_ear, &mut random));
        });
        let is_kept = plan.ending == Ending::Finished && plan.bytes <= plan.passes_at;
        assert_eq!(body.bytes().map(|bytes| bytes.len()), is_kept.then_some(plan.bytes as u64));
        let end = if plan.ending == Ending::Finished { End::Whole } else { End::Cut };
        assert_eq!(body.end(), Some(end));
        drop(body);
        assert_eq!((slab.counters().live, slab.counters().runs), (0, 0));
    }
}
