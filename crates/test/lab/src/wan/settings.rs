//! The properties of a path through the network, in one direction.

use std::time::Duration;

/// The properties of one direction. Each connection has its own queue and rate.
#[derive(Clone, PartialEq, Debug)]
pub struct PathSettings {
    /// The time that a packet takes without a queue.
    pub delay: Duration,
    /// The standard deviation of the delay between connections, of a normal distribution. A
    /// connection has the same delay in all its life.
    pub spread: Duration,
    /// The most that a packet takes longer than its connection's delay, of a uniform distribution.
    /// Packets keep their order.
    pub jitter: Duration,
    /// Bits of IP packets in a second; `None` for no limit.
    pub rate: Option<u64>,
    /// The part of the packets that is lost, from 0 to 1.
    pub loss: f64,
    /// The part of the packets that later ones overtake, from 0 to 1.
    pub reorder: f64,
    /// The time by which these are late.
    pub late: Duration,
    /// The packets that wait for the rate at most; further ones are lost.
    pub queue: usize,
}

impl Default for PathSettings {
    fn default() -> Self {
        Self {
            delay: Duration::ZERO,
            spread: Duration::ZERO,
            jitter: Duration::ZERO,
            rate: None,
            loss: 0.0,
            reorder: 0.0,
            late: Duration::from_millis(5),
            queue: 100,
        }
    }
}

/// The allowed settings, for errors and help.
pub const ALLOWED: &str = "delay=TIME, spread=TIME, jitter=TIME, rate=BITS (bit, kbit, mbit, \
                           gbit), loss=PERCENT, reorder=PERCENT, late=TIME, queue=PACKETS, \
                           separated by commas; TIME in us, ms or s";

impl PathSettings {
    /// Changes the settings that `text` names, such as "delay=100ms,rate=56kbit,loss=0.5%".
    ///
    /// # Errors
    /// One line that names the wrong part and what is allowed.
    pub fn apply(&mut self, text: &str) -> Result<(), String> {
        for part in text.split(',') {
            let wrong = || format!("{part:?} is no setting of a path (expected: {ALLOWED})");
            let (name, value) = part.split_once('=').ok_or_else(wrong)?;
            let applied = match name {
                "delay" => set(&mut self.delay, time(value)),
                "spread" => set(&mut self.spread, time(value)),
                "jitter" => set(&mut self.jitter, time(value)),
                "rate" => set(&mut self.rate, bits(value).map(Some)),
                "loss" => set(&mut self.loss, part_of_all(value)),
                "reorder" => set(&mut self.reorder, part_of_all(value)),
                "late" => set(&mut self.late, time(value)),
                "queue" => set(&mut self.queue, value.parse().ok().filter(|count| *count > 0)),
                _ => None,
            };
            applied.ok_or_else(wrong)?;
        }
        Ok(())
    }
}

/// Changes a setting; `None` if there is no value.
pub(super) fn set<T>(field: &mut T, value: Option<T>) -> Option<()> {
    *field = value?;
    Some(())
}

/// Returns the number before one of the units, multiplied by the value of its unit.
fn with_unit(text: &str, units: &[(&str, f64)]) -> Option<f64> {
    let digits = text.trim_end_matches(|character: char| !character.is_ascii_digit());
    let unit = &text[digits.len()..];
    let (_, value) = units.iter().find(|(name, _)| *name == unit)?;
    let number: f64 = digits.parse().ok().filter(|number: &f64| *number >= 0.0)?;
    Some(number * value)
}

fn time(text: &str) -> Option<Duration> {
    let seconds = with_unit(text, &[("us", 1e-6), ("ms", 1e-3), ("s", 1.0)])?;
    Duration::try_from_secs_f64(seconds).ok().filter(|time| *time <= TIME_MAX)
}

fn bits(text: &str) -> Option<u64> {
    let units = [("bit", 1.0), ("kbit", 1e3), ("mbit", 1e6), ("gbit", 1e9)];
    let bits = with_unit(text, &units)? as u64;
    (bits >= RATE_MIN).then_some(bits)
}

fn part_of_all(text: &str) -> Option<f64> {
    with_unit(text, &[("%", 0.01)]).filter(|part| *part <= 1.0)
}

/// No network takes longer, except between planets.
const TIME_MAX: Duration = Duration::from_secs(60);
/// A packet of 64 KB takes less than ten minutes.
const RATE_MIN: u64 = 1000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_have_units() {
        let mut settings = PathSettings::default();
        settings
            .apply("delay=200ms,spread=1.5s,jitter=250us,rate=56kbit,loss=0.5%,reorder=10%,queue=7")
            .unwrap();
        let expected = PathSettings {
            delay: Duration::from_millis(200),
            spread: Duration::from_millis(1500),
            jitter: Duration::from_micros(250),
            rate: Some(56_000),
            loss: 0.005,
            reorder: 0.1,
            late: Duration::from_millis(5),
            queue: 7,
        };
        assert_eq!(settings, expected);
        settings.apply("late=1ms,rate=1.5mbit").unwrap();
        assert_eq!((settings.late, settings.rate), (Duration::from_millis(1), Some(1_500_000)));
    }

    #[test]
    fn an_error_names_the_wrong_part() {
        for text in [
            "delay=1",
            "delay=ms",
            "delay=-1ms",
            "delay=61s",
            "rate=56k",
            "rate=9bit",
            "loss=101%",
            "loss=1",
            "queue=0",
            "queue=1.5",
            "delay",
            "speed=1",
            "",
            "delay=1ms,",
            "delay=1e9s",
        ] {
            let error = PathSettings::default().apply(text).unwrap_err();
            assert!(error.ends_with(&format!("(expected: {ALLOWED})")), "{text}: {error}");
        }
        let error = PathSettings::default().apply("delay=1ms,loss=2").unwrap_err();
        assert!(error.starts_with("\"loss=2\" is no setting"), "{error}");
    }
}
