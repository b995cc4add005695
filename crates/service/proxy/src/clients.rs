//! Client connections by address, for the limit on them: each worker counts its own, and tells the
//! others every 100 ms. So between two tellings an address may have up to one limit's worth of
//! connections at each worker that had not heard of the others.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};

/// The counts of all workers.
#[derive(Debug, Default)]
pub(crate) struct AllClients(Mutex<HashMap<IpAddr, u64>>);

/// The counts of one worker.
#[derive(Debug, Default)]
pub(crate) struct Clients {
    mine: HashMap<IpAddr, Count>,
    /// Addresses that there is something to tell or to hear about, each once.
    changed: Vec<IpAddr>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Count {
    open: u64,
    /// What the others were told of `open`.
    told: u64,
    /// What the others had when we last asked.
    elsewhere: u64,
    /// Whether its address is in `changed`.
    listed: bool,
}

impl Clients {
    /// Counts a connection in, if its address has fewer than `max`. Unix sockets have no address
    /// and no such limit.
    pub(crate) fn admit(&mut self, client: Option<IpAddr>, max: u64) -> bool {
        let Some(client) = client else { return true };
        let count = self.mine.entry(client).or_default();
        // A refusal is news as well: what the others have may be less by now.
        if !std::mem::replace(&mut count.listed, true) {
            self.changed.push(client);
        }
        if count.open + count.elsewhere >= max {
            return false;
        }
        count.open += 1;
        true
    }

    /// Counts a connection out.
    pub(crate) fn leave(&mut self, client: Option<IpAddr>) {
        let Some(client) = client else { return };
        let count = self.mine.get_mut(&client).expect("counted in before");
        if !std::mem::replace(&mut count.listed, true) {
            self.changed.push(client);
        }
        count.open -= 1;
    }

    /// Tells the others that nobody is here any more.
    pub(crate) fn forget(&mut self, all: &AllClients) {
        let mut all = all.0.lock().unwrap_or_else(PoisonError::into_inner);
        for (client, count) in self.mine.drain() {
            if let Some(total) = all.get_mut(&client) {
                *total = total.saturating_sub(count.told);
                if *total == 0 {
                    all.remove(&client);
                }
            }
        }
        self.changed.clear();
    }

    /// Whether there is something to tell.
    pub(crate) fn has_news(&self) -> bool {
        !self.changed.is_empty()
    }

    /// Tells the others what changed, and hears of them what concerns the same addresses.
    pub(crate) fn tell(&mut self, all: &AllClients) {
        let mut all = all.0.lock().unwrap_or_else(PoisonError::into_inner);
        for client in self.changed.drain(..) {
            let count = self.mine.get_mut(&client).expect("listed once, removed below");
            count.listed = false;
            let total = all.entry(client).or_default();
            *total = *total + count.open - count.told;
            count.told = count.open;
            count.elsewhere = *total - count.open;
            if *total == 0 {
                all.remove(&client);
            }
            if count.open == 0 {
                self.mine.remove(&client);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_workers_share_a_limit_after_they_have_told_each_other() {
        let all = AllClients::default();
        let (mut first, mut second) = (Clients::default(), Clients::default());
        let client = Some(IpAddr::from([192, 0, 2, 1]));
        assert!(first.admit(client, 2) && first.admit(client, 2) && !first.admit(client, 2));
        first.tell(&all);
        assert!(second.admit(client, 2), "not heard yet");
        second.tell(&all);
        assert!(!second.admit(client, 2));
        first.leave(client);
        first.leave(client);
        second.leave(client);
        first.tell(&all);
        second.tell(&all);
        assert!(!first.has_news() && first.mine.is_empty() && second.mine.is_empty());
        assert!(all.0.lock().unwrap().is_empty());
    }

    #[test]
    fn who_is_gone_counts_no_more() {
        let all = AllClients::default();
        let (mut first, mut second) = (Clients::default(), Clients::default());
        let client = Some(IpAddr::from([192, 0, 2, 1]));
        assert!(first.admit(client, 3) && first.admit(client, 3) && second.admit(client, 3));
        first.tell(&all);
        second.tell(&all);
        first.leave(client);
        first.forget(&all);
        second.leave(client);
        second.tell(&all);
        assert!(all.0.lock().unwrap().is_empty());
    }
}
