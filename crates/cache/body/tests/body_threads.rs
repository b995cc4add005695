//! One body, filled and read by threads that sleep until they are woken. The test checks that no
//! waiter is forgotten, that every byte is the one that was filled, and that no memory is left in
//! use. A seed decides what each thread does. Forgotten waiters are found without a clock: all
//! threads sleep or have ended, and none has a pending wake-up.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

use iolite::{MemoryKind, PrefaultThread, Slab};
use millrace_body::{Body, BodyEnd, BodyRead, Filler, Reader, WaiterId};
use millrace_http1::corpus::Random;

const READERS: usize = 6;
const BODIES: usize = 400;
const BYTES_MAX: usize = 1 << 20;
const SLAB_BYTES: usize = 16 << 20;
/// How far behind a reader may be before the filler cuts it off, if the plan says so.
const LAG_MAX: u64 = 300_000;

/// The behaviour of the filler and its readers.
#[derive(Clone, Copy, Debug)]
struct Plan {
    readers: usize,
    bytes: usize,
    is_announced: bool,
    /// The body becomes pass-through after this number of bytes.
    pass_through_at: usize,
    ahead_max: u64,
    cuts_slow_readers: bool,
    ending: Ending,
}

#[derive(Clone, Copy, PartialEq, Debug)]
enum Ending {
    Finished,
    Cut,
    /// The drop wakes no reader, so the test wakes all of them.
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
            pass_through_at: random.below(2 * bytes),
            ahead_max: [1, 5_000, 200_000, u64::MAX][random.below(4)],
            cuts_slow_readers: random.below(3) == 0,
            ending,
        }
    }
}

/// The number of the filler; readers have lower numbers.
const FILLER: usize = READERS;

/// Tracks which threads are awake, and what the others wait for.
#[derive(Default)]
struct Scheduler {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    awake: usize,
    /// Readers that have neither stopped nor ended.
    busy: usize,
    /// Readers that sleep until no other reader is busy. So the test notices if a thread depends on
    /// them.
    stopped: usize,
    /// By number: threads that sleep until they are woken.
    asleep: [bool; READERS + 1],
    /// By number: whether the thread was woken since its last sleep.
    was_woken: [bool; READERS + 1],
    is_stuck: bool,
}

impl State {
    /// Records that a thread sleeps or ends. Detects a forgotten waiter: no thread is awake or
    /// about to be woken, and at least one sleeps.
    fn leave_awake(&mut self) {
        self.awake -= 1;
        let is_woken = self
            .asleep
            .iter()
            .zip(&self.was_woken)
            .any(|(asleep, was_woken)| *asleep && *was_woken);
        let stop_ends = self.stopped > 0 && self.busy == 0;
        let sleeps = self.stopped > 0 || self.asleep.contains(&true);
        self.is_stuck |= self.awake == 0 && sleeps && !is_woken && !stop_ends;
    }
}

impl Scheduler {
    fn enter(&self, number: usize) -> Participant<'_> {
        let is_busy = number != FILLER;
        let mut state = self.lock();
        state.awake += 1;
        state.busy += usize::from(is_busy);
        Participant { scheduler: self, number, is_busy }
    }

    fn wake(&self, waiters: impl IntoIterator<Item = WaiterId>) {
        let mut state = self.lock();
        for waiter in waiters {
            assert_eq!(waiter.token, u64::from(waiter.worker) + 7);
            state.was_woken[usize::from(waiter.worker)] = true;
        }
        self.changed.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sleeps until `is_over` returns true.
    fn sleep<'a>(
        &'a self,
        mut state: MutexGuard<'a, State>,
        is_over: impl Fn(&State) -> bool,
    ) -> MutexGuard<'a, State> {
        state.leave_awake();
        self.changed.notify_all();
        while !is_over(&state) && !state.is_stuck {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.awake += 1;
        assert!(!state.is_stuck, "a waiter was forgotten");
        state
    }
}

/// A running thread, until it is dropped.
struct Participant<'a> {
    scheduler: &'a Scheduler,
    number: usize,
    is_busy: bool,
}

impl Participant<'_> {
    fn waiter(&self) -> WaiterId {
        waiter(self.number)
    }

    /// Sleeps until woken; returns at once if woken since the last sleep.
    fn sleep(&mut self) {
        let number = self.number;
        let mut state = self.scheduler.lock();
        if !state.was_woken[number] {
            state.asleep[number] = true;
            state = self.scheduler.sleep(state, |state| state.was_woken[number]);
            state.asleep[number] = false;
        }
        state.was_woken[number] = false;
    }

    /// Sleeps until no reader is busy.
    fn stop(&mut self) {
        let mut state = self.scheduler.lock();
        state.busy -= usize::from(std::mem::take(&mut self.is_busy));
        state.stopped += 1;
        self.scheduler.sleep(state, |state| state.busy == 0).stopped -= 1;
    }
}

impl Drop for Participant<'_> {
    fn drop(&mut self) {
        let mut state = self.scheduler.lock();
        state.busy -= usize::from(self.is_busy);
        state.leave_awake();
        self.scheduler.changed.notify_all();
    }
}

fn waiter(number: usize) -> WaiterId {
    WaiterId { worker: number as u16, token: number as u64 + 7 }
}

/// Returns the byte at a position of every body.
fn byte(at: u64) -> u8 {
    (at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8
}

fn fill(mut filler: Filler, plan: Plan, mut me: Participant<'_>, mut random: Random) {
    let end = if plan.ending == Ending::Finished { plan.bytes } else { plan.bytes / 2 };
    let (mut at, mut is_pass_through) = (0, false);
    while at < end {
        if !is_pass_through && at >= plan.pass_through_at {
            filler.pass_through();
            is_pass_through = true;
        }
        if plan.cuts_slow_readers {
            filler.cut_slow_readers(LAG_MAX);
        }
        // Without readers the filler continues, as for a body that is stored.
        let lead = filler.lead_or_wait(plan.ahead_max, me.waiter());
        if lead.is_some_and(|lead| lead >= plan.ahead_max) {
            me.sleep();
            continue;
        }
        let Ok(unfilled) = filler.unfilled() else {
            // The slab is never full, because all bodies fit; the prefault thread is a moment
            // behind.
            thread::yield_now();
            continue;
        };
        let next = if is_pass_through { end } else { end.min(plan.pass_through_at) };
        let count = unfilled.len().min(next - at).min(1 + random.below(40_000));
        for (place, at) in unfilled[..count].iter_mut().zip(at as u64..) {
            *place = byte(at);
        }
        at += count;
        me.scheduler.wake(filler.advance(count));
    }
    match plan.ending {
        Ending::Finished => me.scheduler.wake(filler.finish()),
        Ending::Cut => me.scheduler.wake(filler.cut()),
        Ending::Dropped => {
            drop(filler);
            me.scheduler.wake((0..READERS).map(waiter));
        }
    }
}

/// A reader that begins at some position.
struct Client {
    start: usize,
    /// Number of reads after which it leaves.
    reads_max: usize,
    /// Number of reads after which it stops until no reader is busy.
    stop_after: usize,
    max: usize,
    random: Random,
}

impl Client {
    fn draw(plan: Plan, mut random: Random) -> Self {
        Self {
            start: random.below(2) * random.below(plan.bytes + 2),
            reads_max: if random.below(3) == 0 { random.below(30) } else { usize::MAX },
            stop_after: if random.below(3) == 0 { random.below(5) } else { usize::MAX },
            max: [9_000, 700, 16_384, 1 << 20, usize::MAX][random.below(5)],
            random,
        }
    }

    fn read(mut self, plan: Plan, body: Arc<Body>, mut me: Participant<'_>) {
        self.yield_randomly();
        let Some(mut reader) = Reader::new(body, self.start as u64) else { return };
        for turn in 0..self.reads_max {
            if turn == self.stop_after {
                me.stop();
            }
            self.yield_randomly();
            let (found, woken) = reader.read(self.max, me.waiter());
            me.scheduler.wake(woken);
            match found {
                BodyRead::Bytes(slice) => {
                    assert!((1..=self.max).contains(&slice.len()));
                    let first = reader.at() - slice.len() as u64;
                    let is_same = slice.iter().zip(first..).all(|(&found, at)| found == byte(at));
                    assert!(is_same, "reader {} at {first}", me.number);
                }
                BodyRead::Wait => me.sleep(),
                BodyRead::End(end) => {
                    self.check_end(end, reader.at(), plan);
                    break;
                }
            }
        }
        self.yield_randomly();
        me.scheduler.wake(reader.close());
    }

    /// Sometimes lets the other threads run first.
    fn yield_randomly(&mut self) {
        if self.random.below(4) == 0 {
            (0..self.random.below(100)).for_each(|_| thread::yield_now());
        }
    }

    fn check_end(&self, end: BodyEnd, at: u64, plan: Plan) {
        let is_finished = plan.ending == Ending::Finished;
        let arrived = if is_finished { plan.bytes } else { plan.bytes / 2 };
        let is_at_end = at == arrived.max(self.start) as u64;
        match end {
            BodyEnd::Whole => assert!(is_finished && is_at_end, "at {at}"),
            BodyEnd::Cut => {
                let is_behind = plan.cuts_slow_readers && arrived > plan.pass_through_at;
                assert!(is_behind || !is_finished && is_at_end, "at {at}");
            }
        }
    }
}

#[test]
fn no_waiter_is_forgotten_and_no_byte_is_wrong() {
    let slab = Slab::on_heap(SLAB_BYTES).unwrap();
    let _thread = PrefaultThread::start(&slab).unwrap();
    let mut random = Random::from_clock();
    for _ in 0..BODIES {
        let plan = Plan::draw(&mut random);
        println!("{plan:?}");
        let length = plan.is_announced.then_some(plan.bytes as u64);
        let filler = Filler::new(&slab, MemoryKind::ZeroCopy, length, 0);
        let body = filler.body().clone();
        let scheduler = Scheduler::default();
        let mut seed = || Random::from_seed(random.below(usize::MAX) as u64);
        thread::scope(|scope| {
            let participants: Vec<_> =
                (0..plan.readers).map(|number| scheduler.enter(number)).collect();
            let me = scheduler.enter(FILLER);
            for participant in participants {
                let (body, client) = (body.clone(), Client::draw(plan, seed()));
                scope.spawn(move || client.read(plan, body, participant));
            }
            let random = seed();
            scope.spawn(move || fill(filler, plan, me, random));
        });
        let is_kept = plan.ending == Ending::Finished && plan.bytes <= plan.pass_through_at;
        assert_eq!(body.bytes().map(|bytes| bytes.len()), is_kept.then_some(plan.bytes as u64));
        let end = if plan.ending == Ending::Finished { BodyEnd::Whole } else { BodyEnd::Cut };
        assert_eq!(body.end(), Some(end));
        drop(body);
        assert_eq!((slab.stats().live, slab.stats().extents), (0, 0));
    }
}
