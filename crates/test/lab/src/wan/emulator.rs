//! Decides when each packet departs to the other side, or whether it is lost.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use rand_distr::{Distribution, StandardNormal, StandardUniform};
use rand_pcg::Pcg64;

use crate::wan::connection::ConnectionKey;
use crate::wan::settings::PathSettings;

/// A side of the network.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Side {
    /// The namespace of the clients.
    Clients,
    /// The namespace of the servers.
    Servers,
}

/// The fate of a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fate {
    /// It departs at this time since the start.
    Departs(Duration),
    /// It is lost by chance.
    Lost,
    /// The queue of its connection is full.
    Refused,
}

/// The state of all connections.
#[derive(Debug)]
pub struct Emulator {
    up: PathSettings,
    down: PathSettings,
    lanes: HashMap<ConnectionKey, Lane>,
    random: Pcg64,
    /// The number of lanes at which unused ones are removed.
    checked_at: usize,
}

/// One direction of one connection.
#[derive(Debug)]
struct Lane {
    /// The connection's place in the normal distribution of delays.
    deviation: f64,
    /// When the last packet has passed the bottleneck.
    free_at: Duration,
    /// When the packets that wait for the bottleneck, or pass it, have passed it.
    waiting: VecDeque<Duration>,
    /// When the last packet departs that is not late.
    departs_at: Duration,
    used_at: Duration,
}

/// A connection without packets for this time is forgotten, and begins anew with the next one.
const UNUSED_MAX: Duration = Duration::from_secs(300);
/// The lanes among which none is looked for that is unused.
const LANES_UNCHECKED: usize = 10_000;

impl Emulator {
    /// Creates an emulator with settings for the direction to the servers, `up`, and the other one.
    /// The same seed makes the same draws.
    pub fn new(up: PathSettings, down: PathSettings, seed: u64) -> Self {
        let random = Pcg64::new(u128::from(seed), 0);
        Self { up, down, lanes: HashMap::new(), random, checked_at: LANES_UNCHECKED }
    }

    /// Decides about an IP packet that `from` has sent, at a time since the start that is never
    /// before that of the last packet. Bytes that are no IP packet are lost.
    pub fn arrive(&mut self, from: Side, packet: &[u8], now: Duration) -> Fate {
        let Some(key) = ConnectionKey::of(packet) else { return Fate::Lost };
        if !self.lanes.contains_key(&key) {
            self.add_lane(key, now);
        }
        let settings = if from == Side::Clients { &self.up } else { &self.down };
        let random = &mut self.random;
        let lane = self.lanes.get_mut(&key).expect("it was there or was added");
        lane.used_at = now;
        let mut draw = || -> f64 { StandardUniform.sample(random) };
        if draw() < settings.loss {
            return Fate::Lost;
        }
        let Some(passed_at) = lane.pass(packet.len(), settings, now) else { return Fate::Refused };
        let delay = settings.delay.as_secs_f64() + lane.deviation * settings.spread.as_secs_f64();
        let jitter = settings.jitter.mul_f64(draw());
        let departs_at = passed_at + Duration::from_secs_f64(delay.max(0.0)) + jitter;
        if draw() < settings.reorder {
            return Fate::Departs(departs_at + settings.late);
        }
        lane.departs_at = lane.departs_at.max(departs_at);
        Fate::Departs(lane.departs_at)
    }

    fn add_lane(&mut self, key: ConnectionKey, now: Duration) {
        if self.lanes.len() >= self.checked_at {
            self.lanes.retain(|_, lane| now.saturating_sub(lane.used_at) < UNUSED_MAX);
            self.checked_at = LANES_UNCHECKED.max(2 * self.lanes.len());
        }
        let deviation = match self.lanes.get(&key.reversed()) {
            Some(other) => other.deviation,
            None => StandardNormal.sample(&mut self.random),
        };
        let (free_at, departs_at) = (Duration::ZERO, Duration::ZERO);
        let waiting = VecDeque::new();
        self.lanes.insert(key, Lane { deviation, free_at, waiting, departs_at, used_at: now });
    }
}

impl Lane {
    /// Sends a packet through the bottleneck. Returns when it has passed; `None` without room.
    fn pass(&mut self, bytes: usize, settings: &PathSettings, now: Duration) -> Option<Duration> {
        let Some(rate) = settings.rate else { return Some(now) };
        while self.waiting.front().is_some_and(|at| *at <= now) {
            self.waiting.pop_front();
        }
        if self.waiting.len() >= settings.queue {
            return None;
        }
        let nanoseconds = bytes as u128 * 8 * 1_000_000_000 / u128::from(rate);
        self.free_at = self.free_at.max(now) + Duration::from_nanos(nanoseconds as u64);
        self.waiting.push_back(self.free_at);
        Some(self.free_at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn settings(text: &str) -> PathSettings {
        let mut settings = PathSettings::default();
        settings.apply(text).unwrap();
        settings
    }

    fn emulator(text: &str) -> Emulator {
        Emulator::new(settings(text), settings("delay=0ms"), 1)
    }

    /// Returns a UDP packet of 125 bytes: 1,000 bits.
    fn packet(port: u16) -> Vec<u8> {
        let mut packet = vec![0x45, 0, 0, 125, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
        packet.extend(port.to_be_bytes());
        packet.resize(125, 0);
        packet
    }

    fn departure(emulator: &mut Emulator, port: u16, now: Duration) -> Duration {
        match emulator.arrive(Side::Clients, &packet(port), now) {
            Fate::Departs(at) => at,
            fate => panic!("{fate:?}"),
        }
    }

    #[test]
    fn each_connection_has_its_rate_and_its_queue() {
        // A packet takes 1 ms.
        let mut emulator = emulator("delay=10ms,rate=1mbit,queue=3");
        for port in [1, 2] {
            let mut next = || departure(&mut emulator, port, 5 * MS);
            assert_eq!([next(), next(), next()], [16 * MS, 17 * MS, 18 * MS]);
            assert_eq!(emulator.arrive(Side::Clients, &packet(port), 5 * MS), Fate::Refused);
        }
        assert_eq!(departure(&mut emulator, 1, 6 * MS), 19 * MS, "one has passed");
        assert_eq!(departure(&mut emulator, 1, 100 * MS), 111 * MS, "the queue is empty");
        // The other direction has other settings.
        assert_eq!(
            emulator.arrive(Side::Servers, &packet(1), 100 * MS),
            Fate::Departs(111 * MS),
            "it is the same connection, so it keeps its order"
        );
        assert_eq!(emulator.arrive(Side::Servers, &packet(3), 7 * MS), Fate::Departs(7 * MS));
    }

    #[test]
    fn jitter_keeps_the_order_and_late_packets_do_not() {
        let mut steady = emulator("delay=10ms,jitter=5ms");
        let mut last = Duration::ZERO;
        for round in 0..1000 {
            let now = MS * round;
            let at = departure(&mut steady, 1, now);
            assert!(at >= last && (now + 10 * MS..now + 20 * MS).contains(&at), "{round}: {at:?}");
            last = at;
        }
        let mut unsteady = emulator("delay=10ms,reorder=20%,late=3ms");
        let times: Vec<_> =
            (0..1000).map(|round| departure(&mut unsteady, 1, MS * round)).collect();
        let overtaken = times.windows(2).filter(|pair| pair[0] > pair[1]).count();
        assert!((150..250).contains(&overtaken), "{overtaken}");
        let late = (0..1000).filter(|&round| times[round as usize] == MS * (round + 13)).count();
        assert!((150..250).contains(&late), "{late}");
    }

    #[test]
    fn packets_are_lost_by_chance() {
        let mut emulator = emulator("loss=5%");
        let lost = (0..100_000)
            .filter(|_| emulator.arrive(Side::Clients, &packet(1), MS) == Fate::Lost)
            .count();
        assert!((4_700..5_300).contains(&lost), "{lost}");
        assert_eq!(emulator.arrive(Side::Clients, b"no packet", MS), Fate::Lost);
    }

    #[test]
    fn delays_differ_between_connections() {
        let mut emulator = emulator("delay=100ms,spread=30ms");
        let delays: Vec<f64> = (0..10_000)
            .map(|port| departure(&mut emulator, port, MS).as_secs_f64() - 0.001)
            .collect();
        let mean = delays.iter().sum::<f64>() / 10_000.0;
        let variance = delays.iter().map(|delay| (delay - mean).powi(2)).sum::<f64>() / 10_000.0;
        assert!((0.098..0.102).contains(&mean), "{mean}");
        assert!((0.028..0.032).contains(&variance.sqrt()), "{variance}");
        for port in 0..100 {
            let again = departure(&mut emulator, port, MS).as_secs_f64() - 0.001;
            assert!((again - delays[usize::from(port)]).abs() < 1e-6);
        }
    }

    #[test]
    fn unused_connections_are_forgotten() {
        let mut emulator = emulator("delay=1ms");
        for port in 0..LANES_UNCHECKED as u16 {
            departure(&mut emulator, port, MS);
        }
        departure(&mut emulator, 60_000, UNUSED_MAX + 2 * MS);
        assert_eq!(emulator.lanes.len(), 1);
    }
}
