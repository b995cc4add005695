//! `RateLimitedLog`: the messages of the running daemon on standard error.

use std::collections::BTreeMap;
use std::io::Write;
use std::time::Instant;

use crate::limits::LOG_REPEAT_AFTER;

/// The messages of the last [`LOG_REPEAT_AFTER`], with the time when each was written; none of them
/// is written again within that time. The map stays small, because there are few messages and none
/// contains text from another process.
#[derive(Default)]
pub(crate) struct RateLimitedLog(BTreeMap<String, Instant>);

impl RateLimitedLog {
    /// Writes a message, unless it was written a short time ago. Ignores errors of standard error:
    /// the daemon runs on without a log.
    pub(crate) fn write(&mut self, message: String) {
        if self.record(&message, Instant::now()) {
            let _ = writeln!(std::io::stderr(), "uselectd: {message}");
        }
    }

    /// Records a message. Returns whether it has to be written.
    fn record(&mut self, message: &str, now: Instant) -> bool {
        self.0.retain(|_, written| now.saturating_duration_since(*written) < LOG_REPEAT_AFTER);
        let is_new = !self.0.contains_key(message);
        if is_new {
            self.0.insert(message.to_owned(), now);
        }
        is_new
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_repeated_only_after_the_interval() {
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
