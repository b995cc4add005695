//! `Log`: what the daemon says on standard error while it runs.

use std::collections::BTreeMap;
use std::io::Write;
use std::time::Instant;

use crate::limits::SAID_TIME;

/// What was said, and when: what goes on, or is asked for again and again, is not said each time.
/// There are few ways to fail, and nothing is said in a stranger's words, so it stays small.
#[derive(Default)]
pub(crate) struct Log(BTreeMap<String, Instant>);

impl Log {
    /// That nobody listens any more is no reason to end.
    pub(crate) fn tell(&mut self, what: String) {
        if self.is_news(&what, Instant::now()) {
            let _ = writeln!(std::io::stderr(), "uselectd: {what}");
        }
    }

    fn is_news(&mut self, what: &str, now: Instant) -> bool {
        self.0.retain(|_, said| now.saturating_duration_since(*said) < SAID_TIME);
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
        let (mut log, begin) = (Log::default(), Instant::now());
        assert!(log.is_news("a", begin));
        assert!(log.is_news("b", begin + SAID_TIME / 2));
        assert!(!log.is_news("a", begin + SAID_TIME / 2));
        assert!(log.is_news("a", begin + SAID_TIME));
        assert!(!log.is_news("b", begin + SAID_TIME));
        assert_eq!(log.0.len(), 2);
        assert!(log.is_news("c", begin + 2 * SAID_TIME));
        assert_eq!(log.0.len(), 1);
    }
}
