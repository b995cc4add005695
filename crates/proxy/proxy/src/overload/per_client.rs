//! Client connections by client, for the limit on them. Each worker counts its own connections and
//! reports them every 100 ms. Until a report, a client may have as many connections as the limit
//! allows at each worker that does not know of the others.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Mutex, PoisonError};

/// A client as limits count it: an IPv4 address, or the IPv6 addresses that begin with the same
/// bits. One IPv6 subscriber has at least a /64 (RFC 6177).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Client(IpAddr);

impl Client {
    /// The client that has `address`, where the first `ipv6_prefix` bits of an IPv6 address name a
    /// client (1 to 128).
    pub fn of(address: IpAddr, ipv6_prefix: u64) -> Self {
        match address.to_canonical() {
            IpAddr::V6(address) => {
                let below = 128_u64.saturating_sub(ipv6_prefix) as u32;
                let kept = u128::MAX.checked_shl(below).unwrap_or(0);
                Self(Ipv6Addr::from(u128::from(address) & kept).into())
            }
            address => Self(address),
        }
    }
}

/// The counts of all workers.
#[derive(Debug, Default)]
pub(crate) struct AllClients(Mutex<HashMap<Client, u64>>);

/// The counts of one worker.
#[derive(Debug, Default)]
pub(crate) struct Clients {
    mine: HashMap<Client, Count>,
    /// Clients whose counts are exchanged with the other workers next, each once.
    changed: Vec<Client>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Count {
    open: u64,
    /// The value of `open` that was reported last.
    told: u64,
    /// Connections of the other workers at the last exchange.
    elsewhere: u64,
    /// Whether it is in `changed`.
    listed: bool,
}

impl Clients {
    /// Counts a connection in, if its client has fewer than `max`. Unix sockets have no address
    /// and no such limit.
    pub(crate) fn admit(&mut self, client: Option<Client>, max: u64) -> bool {
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
    pub(crate) fn leave(&mut self, client: Option<Client>) {
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

    /// Reports the changed counts, and reads those of the other workers for the same clients.
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

    fn client(address: &str, ipv6_prefix: u64) -> Client {
        Client::of(address.parse().unwrap(), ipv6_prefix)
    }

    #[test]
    fn ipv6_addresses_that_begin_alike_are_one_client() {
        for (prefix, last, next) in [
            (64, "2001:db8:1:2:ffff:ffff:ffff:ffff", "2001:db8:1:3::"),
            (56, "2001:db8:1:ff:ffff::1", "2001:db8:1:100::"),
            (1, "7fff:ffff::", "8000::"),
            (127, "2001:db8:1:2::1", "2001:db8:1:2::2"),
        ] {
            let first = client("2001:db8:1:2::", prefix);
            assert_eq!(client(last, prefix), first, "/{prefix}");
            assert_ne!(client(next, prefix), first, "/{prefix}");
        }
        assert_ne!(client("2001:db8::1", 128), client("2001:db8::2", 128));
        for prefix in [1, 64, 128] {
            assert_ne!(client("192.0.2.1", prefix), client("192.0.2.2", prefix));
            assert_eq!(client("192.0.2.1", prefix), client("::ffff:192.0.2.1", prefix));
        }
    }

    #[test]
    fn a_prefix_has_one_limit_for_all_its_addresses() {
        let mut clients = Clients::default();
        let address = |host: u64| Some(client(&format!("2001:db8::{host:x}"), 64));
        assert_eq!((0..10).filter(|&host| clients.admit(address(host), 3)).count(), 3);
        clients.leave(address(0));
        assert!(clients.admit(address(77), 3) && !clients.admit(address(78), 3));
        assert!(clients.admit(Some(client("2001:db8:0:1::", 64)), 3));
    }

    #[test]
    fn two_workers_share_a_limit_after_they_have_told_each_other() {
        let all = AllClients::default();
        let (mut first, mut second) = (Clients::default(), Clients::default());
        let client = Some(client("192.0.2.1", 64));
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
        let client = Some(client("192.0.2.1", 64));
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
