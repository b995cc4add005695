//! Trouble of a world other than that of its network: exhausted kernel resources, workers that are
//! not scheduled, a clock that jumps, peers that go down without notice, and completions of closed
//! descriptors. The [`WorldPlan`](crate::WorldPlan) decides how often each happens. Each kind is
//! counted where it happens, so that a test can check that it did.

use std::time::Duration;

use millrace_engine::{CompletionEvent, Error, Token, TokenKind};

use crate::descriptor::{Descriptor, Object, Owner};
use crate::kernel::{Kernel, KernelEvent};
use crate::stale::{StaleCompletion, StaleOutcome};

/// The time from the beginning of a world in which clock jumps happen, in milliseconds.
const CLOCK_JUMPS_WITHIN_MS: u64 = 60_000;
/// The longest sum of all delays of turns. A run does not count these delays, so without a bound a
/// scenario of many turns would not end.
const TURN_DELAYS_MAX: Duration = Duration::from_secs(600);
/// The longest delay, in nanoseconds, after which an operation of a closed descriptor completes. By
/// then, another object may use the slot of the object that owned the descriptor.
const STALE_NS_MAX: u64 = 50_000_000;
/// The time for which Linux retransmits to a peer that is gone (ip-sysctl, tcp_retries2: 924
/// seconds at least).
const RESENDS_FOR: Duration = Duration::from_secs(924);

impl Kernel {
    /// Counts trouble of the kind `what`.
    pub(crate) fn count_trouble(&mut self, what: &'static str) {
        *self.trouble_counts.entry(what).or_default() += 1;
    }

    /// Schedules the clock jumps.
    pub(crate) fn schedule_clock_jumps(&mut self) {
        for _ in 0..self.plan.clock_jumps {
            let delay = Duration::from_millis(self.random.between(1, CLOCK_JUMPS_WITHIN_MS));
            self.schedule_after(delay, KernelEvent::ClockJump);
        }
    }

    /// Makes the clock jump, as on a machine that was suspended. Events that were due in the
    /// meantime happen now, in their order.
    pub(crate) fn jump_clock(&mut self) {
        if self.plan.clock_jumps == 0 {
            return; // The plan was replaced after this jump was scheduled.
        }
        let jump =
            Duration::from_millis(self.random.between(1, self.plan.clock_jump_ms_max.max(1)));
        self.now = self.now + jump;
        self.clock_jumped += jump;
        self.trace_note("clock jumps", &format!("{jump:?}"));
        self.count_trouble("clock jumps");
    }

    /// Returns whether other programs use all descriptors and pipes at this time.
    pub(crate) fn detect_shortage(&mut self) -> bool {
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

    /// Draws whether an operation finds no kernel memory.
    pub(crate) fn draw_memory_shortage(&mut self) -> bool {
        let lacks = self.random.chance(self.plan.shortages.memory);
        if lacks {
            self.trace_note("no memory", "");
            self.count_trouble("no memory");
        }
        lacks
    }

    /// Draws whether the turn of `engine` that is due begins late because other programs run. If
    /// so, schedules it.
    pub(crate) fn draw_late_turn(&mut self, engine: usize) -> bool {
        if self.turn_delays >= TURN_DELAYS_MAX || !self.random.chance(self.plan.slow_turns) {
            return false;
        }
        let pause = Duration::from_nanos(self.random.between(1, self.plan.slow_turn_ns.max(1)));
        let until = self.now + pause;
        self.turn_delays += pause;
        self.engines[engine].asleep_until = until;
        self.trace_note("slow turn", &format!("engine {engine}: {pause:?}"));
        self.count_trouble("slow turn");
        self.schedule_turn(engine, until);
        true
    }

    /// Draws the delay until a wake is noticed.
    pub(crate) fn wake_delay(&mut self) -> Duration {
        let late = Duration::from_nanos(self.random.between(0, self.plan.wake_ns));
        if late > Duration::from_millis(1) {
            self.count_trouble("late wake");
        }
        late
    }

    /// Draws whether an event is reported to a waiting engine without a reason.
    pub(crate) fn draw_spurious(&mut self, what: &'static str) -> bool {
        let spurious = self.random.chance(self.plan.spurious);
        if spurious {
            self.count_trouble(what);
        }
        spurious
    }

    /// At random, schedules completions for the outstanding operations of a stream's descriptor
    /// that is being closed. Tokens of name lookups are exempt, since the attempts of one lookup
    /// share a generation and rely on the contract.
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

    /// Queues a completion of a closed descriptor.
    pub(crate) fn queue_stale(&mut self, engine: usize, stale: StaleCompletion) {
        self.engines[engine].stale.push_back(stale);
        let now = self.now;
        self.schedule_turn(engine, now);
    }

    /// Returns the next completion of a closed descriptor.
    pub(crate) fn next_stale(&mut self, engine: usize) -> Option<(Token, CompletionEvent)> {
        let state = &mut self.engines[engine];
        let StaleCompletion { token, outcome } = state.stale.pop_front()?;
        let event = match outcome {
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

    /// Counts a segment, and takes the machine of an actor down without notice if the seed planned
    /// that for now. The machine sends and receives nothing from then on.
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

    /// If bytes are unsent and the peer is gone, begins to retransmit them: schedules the reset
    /// with which the kernel gives up.
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
