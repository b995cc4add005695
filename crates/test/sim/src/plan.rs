//! The properties of a world that its seed decides in advance: sizes of buffers and segments,
//! delays, and the probability of each fault.

use std::time::Duration;

use crate::random::SeededRandom;

/// The class of faults of a world.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Faults {
    /// Large buffers, short delays, and no waiting: the loopback of an idle machine.
    #[default]
    None,
    /// Everything that a working network and kernel do: short reads and writes, small buffers,
    /// delays, segments cut anywhere, completions in any order.
    Benign,
    /// Also the trouble of broken ones: resets, refusals, lost datagrams, stalls of minutes,
    /// vanishing peers, exhausted descriptors and memory, workers that are not scheduled, a clock
    /// that jumps.
    Hostile,
}

/// The properties of one world. Every number is drawn once from the seed.
#[derive(Clone, Default, Debug)]
pub struct WorldPlan {
    /// The class of faults for which it was drawn.
    pub faults: Faults,
    /// How streams carry bytes.
    pub streams: StreamPlan,
    /// Which kernel resources run out.
    pub shortages: ShortagePlan,
    /// The longest time, in nanoseconds, until a ready operation is passed to its engine, and again
    /// until the turn of the engine that tries it.
    pub jitter_ns: u64,
    /// How often, in a thousand, an operation that could complete at once has to wait.
    pub wait: u64,
    /// How often, in a thousand, a receive or send is short.
    pub short: u64,
    /// The most completions of one turn, at least 1.
    pub batch_max: usize,
    /// The capacity of a pipe in bytes.
    pub pipe_capacity: usize,
    /// How often, in a thousand connections of engines, connecting fails: refused, unreachable,
    /// timed out, or out of memory.
    pub connect_fault: u64,
    /// How often, in a thousand connections of engines, the first packet is lost.
    pub syn_loss: u64,
    /// How often, in a thousand, a datagram is lost.
    pub datagram_loss: u64,
    /// How often, in a thousand, a turn begins late because other programs run.
    pub slow_turns: u64,
    /// The longest delay of a turn that begins late, in nanoseconds.
    pub slow_turn_ns: u64,
    /// The longest delay until a wake is noticed, in nanoseconds.
    pub wake_ns: u64,
    /// How often, in a thousand, a turn reports a wake, or a `poll_readable` completes, without a
    /// reason.
    pub spurious: u64,
    /// How often, in a thousand, an operation of a closed descriptor still completes.
    pub stale: u64,
    /// How often, in a thousand, a connection goes to the first of several listeners.
    pub skew: u64,
    /// The longest delay, in nanoseconds, before a listener becomes ready. Connections that arrive
    /// in it are announced together.
    pub burst_ns: u64,
    /// How often, in a thousand connections, the actor's machine goes down without notice.
    pub vanish: u64,
    /// Number of clock jumps.
    pub clock_jumps: u64,
    /// The longest clock jump, in milliseconds.
    pub clock_jump_ms_max: u64,
    /// How often, in a thousand, log records are lost because the disk is full or too slow.
    pub log_loss: u64,
    /// How often, in a thousand, a name server responds late, twice, to another query, with another
    /// address, or with a failure. Used by the actor that plays the server.
    pub name_faults: u64,
    /// Number of messages in a mailbox between workers. Used by the code that creates the workers.
    pub mailbox_capacity: usize,
}

/// How the streams of a world carry bytes.
#[derive(Clone, Default, Debug)]
pub struct StreamPlan {
    /// Bytes that the kernel holds for a sender, at least 1.
    pub send_capacity: usize,
    /// Bytes that the kernel holds for a receiver, at least 1.
    pub receive_capacity: usize,
    /// The largest segment in bytes, at least 1; see [`StreamPlan::segment_max`].
    pub segment: usize,
    /// The longest ordinary delay of a segment, in nanoseconds.
    pub delay_ns: u64,
    /// How often, in a thousand, a segment is late by up to a second, as after a loss.
    pub loss: u64,
    /// How often, in a thousand, a connection is reset at a random moment.
    pub reset: u64,
    /// How often, in a thousand, a stream stalls for up to five minutes.
    pub stall: u64,
}

/// The kernel resources that run out in a world.
#[derive(Clone, Default, Debug)]
pub struct ShortagePlan {
    /// How often, in a thousand, no pipe is available because the user has too many.
    pub pipes: u64,
    /// How often, in a thousand, accept, connect or pipe finds no descriptor.
    pub descriptors: u64,
    /// How often, in a thousand, accept, connect or send finds no kernel memory.
    pub memory: u64,
    /// The part of each period of [`ShortagePlan::every_ms`], in milliseconds, in which other
    /// programs use all descriptors and pipes.
    pub lasting_ms: u64,
    /// The period in milliseconds, at least 1.
    pub every_ms: u64,
}

/// Number of bytes of a stream after which segments grow. The interesting cuts are near its
/// beginning, and a large body in small segments would cost a million events.
const FINE_BYTES: u64 = 16 * 1024;

impl WorldPlan {
    /// Draws the plan of a world with `faults`.
    pub fn draw(faults: Faults, random: &mut SeededRandom) -> Self {
        let mut plan = Self::fault_free();
        if faults == Faults::None {
            return plan;
        }
        plan.faults = faults;
        let size = random.choose(&[8, 64, 700, 1460, 65_536]);
        let streams = &mut plan.streams;
        streams.segment = random.length(size);
        streams.send_capacity = random.length(size * 4).max(streams.segment.min(4));
        streams.receive_capacity = random.length(size * 4).max(streams.segment.min(4));
        // Tiny sizes have short delays. A header of a kilobyte that is sent byte by byte has to
        // arrive well before the proxy's deadlines in a world that is meant to work.
        let smallest = streams.segment.min(streams.send_capacity).min(streams.receive_capacity);
        let delay_us = match smallest {
            0..=8 => 5,
            9..=64 => 40,
            65..=700 => 400,
            701..=1460 => 2_000,
            _ => 20_000,
        };
        streams.delay_ns = random.between(1, delay_us) * 1000;
        plan.jitter_ns = random.between(0, delay_us * 200);
        plan.wait = random.choose(&[0, 200, 800]);
        plan.short = random.choose(&[0, 100, 500]);
        plan.streams.loss = if smallest > 64 { random.choose(&[0, 2]) } else { 0 };
        plan.batch_max = random.choose(&[1, 3, 1000]);
        plan.pipe_capacity = random.choose(&[4096, 65_536, 262_144]);
        plan.shortages.pipes = random.choose(&[0, 0, 300, 1000]);
        plan.draw_benign_trouble(random, delay_us);
        if faults == Faults::Hostile {
            plan.streams.reset = random.choose(&[0, 50, 200]);
            plan.connect_fault = random.choose(&[0, 100, 300]);
            plan.shortages.descriptors = random.choose(&[0, 20, 100]);
            plan.streams.stall = random.choose(&[0, 30, 100]);
            plan.datagram_loss = random.choose(&[0, 100, 500]);
            plan.draw_hostile_trouble(random);
        }
        plan
    }

    /// Draws the trouble of a working kernel on a busy machine.
    fn draw_benign_trouble(&mut self, random: &mut SeededRandom, delay_us: u64) {
        self.slow_turns = random.choose(&[0, 0, 20]);
        self.slow_turn_ns = delay_us * 500;
        self.wake_ns = random.choose(&[0, delay_us * 500]);
        self.syn_loss = random.choose(&[0, 0, 200]);
        self.spurious = random.choose(&[0, 50, 300]);
        self.skew = random.choose(&[0, 500, 1000]);
        self.burst_ns = random.choose(&[0, delay_us * 500]);
        self.mailbox_capacity = random.choose(&[1, 2, 256]);
    }

    /// Draws the trouble that only a broken kernel or an overloaded machine causes.
    fn draw_hostile_trouble(&mut self, random: &mut SeededRandom) {
        let shortages = &mut self.shortages;
        shortages.memory = random.choose(&[0, 0, 10, 50]);
        shortages.every_ms = random.between(1000, 30_000);
        shortages.lasting_ms = random.choose(&[0, 0, 500, 20_000]).min(shortages.every_ms * 3 / 4);
        if random.chance(300) {
            self.slow_turns = random.choose(&[5, 50]);
            self.slow_turn_ns = random.choose(&[100_000_000, 5_000_000_000]);
        }
        self.wake_ns = random.choose(&[self.wake_ns, 2_000_000_000]);
        self.stale = random.choose(&[0, 200, 1000]);
        self.burst_ns = random.choose(&[self.burst_ns, 1_000_000_000]);
        self.vanish = random.choose(&[0, 20, 100]);
        self.clock_jumps = random.choose(&[0, 0, 1, 3]);
        self.clock_jump_ms_max = random.choose(&[5_000, 60_000, 7_200_000]);
        self.log_loss = random.choose(&[0, 500, 1000]);
        self.name_faults = random.choose(&[0, 200, 800]);
    }

    /// Returns a plan in which nothing fails and nothing waits.
    fn fault_free() -> Self {
        Self {
            streams: StreamPlan {
                send_capacity: 256 * 1024,
                receive_capacity: 256 * 1024,
                segment: 65_536,
                delay_ns: 20_000,
                ..StreamPlan::default()
            },
            shortages: ShortagePlan { every_ms: 1, ..ShortagePlan::default() },
            batch_max: 1000,
            pipe_capacity: 262_144,
            mailbox_capacity: 256,
            ..Self::default()
        }
    }
}

impl StreamPlan {
    /// Returns the largest segment of a stream that has carried `carried` bytes.
    pub fn segment_max(&self, carried: u64) -> usize {
        if carried < FINE_BYTES { self.segment } else { self.segment.max(16 * 1024) }
    }

    /// Returns `capacity`, or more for a stream that has carried more than `FINE_BYTES`.
    pub fn capacity(&self, capacity: usize, carried: u64) -> usize {
        if carried < FINE_BYTES { capacity } else { capacity.max(32 * 1024) }
    }

    /// Draws the delay of the next segment.
    pub fn segment_delay(&self, random: &mut SeededRandom) -> Duration {
        let lost = random.chance(self.loss);
        let late = if lost { random.between(200_000_000, 1_000_000_000) } else { 0 };
        Duration::from_nanos(late + random.between(self.delay_ns / 10, self.delay_ns))
    }
}
