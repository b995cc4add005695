//! `Log`: what the daemon says on standard error while it runs.

use std::collections::BTreeMap;
use std::io::Write;
use std::time::Instant;

use crate::limits::LOG_REPEAT_AFTER;

/// What was said, and when: what goes on, or is asked for again and again, is not said each time.
/// There are few ways to fail, and nothing is said in a stranger's words, so it stays small.
#[derive(Default)]
pub(crate) struct RateLimitedLog(BTreeMap<String, Instant>);

impl RateLimitedLog {
    /// That nobody listens any more is no reason to end.
    pub(crate) fn write(&mut self, what: String) {
        if self.record(&what, Instant::now()) {
            let _ = writeln!(std::io::stderr(), "uselectd: {what}");
        }
    }

    fn record(&mut self, what: &str, now: Instant) -> bool {
        self.0.retain(|_, said| now.saturating_duration_since(*said) < LOG_REPEAT_AFTER);
        let is_news = !self.0.contains_key(what);
        if is_news {
            self.0.insert(what.to_owned(), now);
        }
        is_news
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_said_is_said_again_only_later() {
        let (mut log, begin) = (RateLimitedLog::default(), Instant::now());
        assert!(log.record("a", begin));
        assert!(log.record("b", begin + LOG_REPEAT_AFTER / 2));
        assert!(!log.record("a", begin + LOG_REPEAT_AFTER / 2));
        assert!(log.record("a", begin + LOG_REPEAT_AFTER));
        assert!(!log.record("b", begin + LOG_REPEAT_AFTER));
        assert_eq!(log.0.len(), 2);
        assert!(log.record("c", begin + 2 * LOG_REPEAT_AFTER));
        assert_eq!(log.0.len(), 1);
    }
}
