//! What goes wrong in a world beside its network: nothing is left of what the kernel hands out, a
//! worker is not scheduled, the clock leaps, a peer is gone without a word, completions come that
//! nobody waits for. How often is up to the [`Plan`](crate::Plan); each kind is counted where it
//! happens, so that a test can see that it does.

use std::time::Duration;

use millrace_engine::{CompletionEvent, Error, Token, TokenKind};

use crate::descriptor::{Descriptor, Object, Owner};
use crate::kernel::{Kernel, KernelEvent};
use crate::stale::{StaleCompletion, StaleOutcome};

/// Worlds in which the clock leaps do so at moments of their first minute.
const LEAPS_MS_MAX: u64 = 60_000;
/// How long workers sleep in all, beyond all deadlines: a story of many turns has to end as well.
const SLEEP_MAX: Duration = Duration::from_secs(600);
/// How late at most a closed descriptor still completes something, in nanoseconds: somebody else
/// may be in its owner's slot by then.
const STALE_NS_MAX: u64 = 50_000_000;
/// How long Linux resends to a peer that is gone (ip-sysctl, tcp_retries2: 924 seconds at least).
const RESENDS_FOR: Duration = Duration::from_secs(924);

impl Kernel {
    /// Counts something that went wrong.
    pub(crate) fn count_trouble(&mut self, what: &'static str) {
        *self.trouble_counts.entry(what).or_default() += 1;
    }

    /// Plans the leaps of the clock.
    pub(crate) fn schedule_clock_jumps(&mut self) {
        for _ in 0..self.plan.clock_jumps {
            let delay = Duration::from_millis(self.random.between(1, LEAPS_MS_MAX));
            self.schedule_after(delay, KernelEvent::ClockJump);
        }
    }

    /// The clock leaps, as on a machine that was suspended: what was to happen meanwhile happens
    /// now, in its order.
    pub(crate) fn jump_clock(&mut self) {
        if self.plan.clock_jumps == 0 {
            return; // The plan was replaced after this was planned.
        }
        let leap =
            Duration::from_millis(self.random.between(1, self.plan.clock_jump_ms_max.max(1)));
        self.now = self.now + leap;
        self.clock_jumped += leap;
        self.trace_note("clock leaps", &format!("{leap:?}"));
        self.count_trouble("clock leaps");
    }

    /// Whether somebody else has taken all that the kernel hands out, for some while.
    pub(crate) fn draw_shortage(&mut self) -> bool {
        let plan = &self.plan;
        let now = self.now.milliseconds();
        if plan.shortages.lasting_ms == 0
            || now % plan.shortages.every_ms >= plan.shortages.lasting_ms
        {
            return false;
        }
        self.count_trouble("shortage");
        true
    }

    /// Whether an operation finds no kernel memory.
    pub(crate) fn draw_memory_shortage(&mut self) -> bool {
        let lacks = self.random.chance(self.plan.shortages.memory);
        if lacks {
            self.trace_note("no memory", "");
            self.count_trouble("no memory");
        }
        lacks
    }

    /// Whether the turn of `engine` that is due begins only later, because other programs run: then
    /// that is planned.
    pub(crate) fn draw_late_turn(&mut self, engine: usize) -> bool {
        if self.slept >= SLEEP_MAX || !self.random.chance(self.plan.slow_turns) {
            return false;
        }
        let pause = Duration::from_nanos(self.random.between(1, self.plan.slow_turn_ns.max(1)));
        let until = self.now + pause;
        self.slept += pause;
        self.engines[engine].asleep_until = until;
        self.trace_note("slow turn", &format!("engine {engine}: {pause:?}"));
        self.count_trouble("slow turn");
        self.schedule_turn(engine, until);
        true
    }

    /// How much later than usual a wake is noticed.
    pub(crate) fn wake_delay(&mut self) -> Duration {
        let late = Duration::from_nanos(self.random.between(0, self.plan.wake_ns));
        if late > Duration::from_millis(1) {
            self.count_trouble("late letter");
        }
        late
    }

    /// Whether something is announced to a waiting engine that is not there.
    pub(crate) fn draw_spurious(&mut self, what: &'static str) -> bool {
        let spurious = self.random.chance(self.plan.spurious);
        if spurious {
            self.count_trouble(what);
        }
        spurious
    }

    /// A descriptor of an engine is closed: what it had outstanding may complete all the same. Not
    /// where tokens are not told apart by generations: the tries of one lookup share theirs, and
    /// rely on the contract.
    pub(crate) fn schedule_stale(&mut self, descriptor: &Descriptor) {
        let (Owner::Engine(engine), Object::Stream { connection, side, .. }) =
            (descriptor.owner, &descriptor.object)
        else {
            return;
        };
        for operation in [&descriptor.receive, &descriptor.send].into_iter().flatten() {
            if operation.token.kind() == TokenKind::Name || !self.random.chance(self.plan.stale) {
                continue;
            }
            let arrived = self.connections[*connection].incoming(*side).arrived.iter();
            let arrived: Vec<u8> = arrived.copied().take(1000).collect();
            if let Some(stale) = StaleCompletion::from_operation(operation, arrived) {
                self.count_trouble("stale completion");
                let late = Duration::from_nanos(self.random.between(0, STALE_NS_MAX));
                self.schedule_after(late, KernelEvent::Stale { engine, stale });
            }
        }
    }

    /// A closed descriptor completes something.
    pub(crate) fn queue_stale(&mut self, engine: usize, stale: StaleCompletion) {
        self.engines[engine].stale.push_back(stale);
        let now = self.now;
        self.schedule_turn(engine, now);
    }

    /// The next completion of a closed descriptor.
    pub(crate) fn next_stale(&mut self, engine: usize) -> Option<(Token, CompletionEvent)> {
        let state = &mut self.engines[engine];
        let StaleCompletion { token, outcome: did } = state.stale.pop_front()?;
        let event = match did {
            StaleOutcome::Received(bytes) => {
                let mut buffer = state.spare_buffers.pop().unwrap_or_default();
                buffer.block_mut()[..bytes.len()].copy_from_slice(&bytes);
                buffer.set_filled(bytes.len());
                state.lent += 1;
                CompletionEvent::Received(Ok(buffer))
            }
            StaleOutcome::ReceivedError => CompletionEvent::Received(Err(Error::Reset)),
            StaleOutcome::Sent => CompletionEvent::Sent(Ok(())),
            StaleOutcome::NotConnected => CompletionEvent::Connected(Err(Error::TimedOut)),
        };
        Some((token, event))
    }

    /// The machine of an actor goes down without a word, if that is planned for now: it knows of
    /// nothing more, and its peer hears nothing more.
    pub(crate) fn maybe_vanish(&mut self, index: usize) {
        match &mut self.connections[index].vanish_after {
            Some(0) => self.connections[index].vanish_after = None,
            Some(after) => return *after -= 1,
            None => return,
        }
        let is_actor = |side: &usize| {
            let number = self.connections[index].sides[*side].descriptor;
            number.is_some_and(|number| self.descriptors[&number].owner == Owner::Actor)
        };
        let Some(side) = (0..2).find(is_actor) else { return };
        self.trace_note("vanished", &format!("side {side} of connection {index}"));
        self.count_trouble("vanished peer");
        let connection = &mut self.connections[index];
        connection.receive_reset(side);
        connection.vanished = Some(side);
        self.resend(index);
    }

    /// Bytes for a peer that is gone are sent again and again, until the kernel gives up.
    pub(crate) fn resend(&mut self, index: usize) {
        let connection = &mut self.connections[index];
        let Some(gone) = connection.vanished else { return };
        if connection.sides[1 - gone].out.sent.is_empty() || connection.resends {
            return;
        }
        connection.resends = true;
        self.schedule_after(RESENDS_FOR, KernelEvent::Reset { connection: index, side: 1 - gone });
    }
}
