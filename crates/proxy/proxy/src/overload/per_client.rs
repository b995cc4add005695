//! Counts client connections by client, to enforce a limit. Each worker counts its own connections
//! and publishes the counts every 100 ms. Before a count is published, the other workers do not
//! know of these connections, and each of them accepts as many as the limit allows.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Mutex, PoisonError};

/// A client as limits count it: an IPv4 address, or an IPv6 prefix. An IPv6 subscriber has at least
/// a /64 (RFC 6177).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ClientPrefix(IpAddr);

impl ClientPrefix {
    /// Returns the client with this address. The first `ipv6_prefix` bits of an IPv6 address (1 to
    /// 128) identify a client.
    pub fn of(address: IpAddr, ipv6_prefix: u64) -> Self {
        match address.to_canonical() {
            IpAddr::V6(address) => {
                let host_bits = 128_u64.saturating_sub(ipv6_prefix) as u32;
                let mask = u128::MAX.checked_shl(host_bits).unwrap_or(0);
                Self(Ipv6Addr::from(u128::from(address) & mask).into())
            }
            address => Self(address),
        }
    }
}

/// The published counts, summed over all workers.
#[derive(Debug, Default)]
pub(crate) struct SharedClientCounts(Mutex<HashMap<ClientPrefix, u64>>);

/// The counts of one worker.
#[derive(Debug, Default)]
pub(crate) struct ClientCounts {
    counts: HashMap<ClientPrefix, ClientCount>,
    /// Clients whose counts are to be published next, each once.
    changed: Vec<ClientPrefix>,
}

/// The connections of one client.
#[derive(Clone, Copy, Debug, Default)]
struct ClientCount {
    /// Open connections at this worker.
    open: u64,
    /// The value of `open` that was published last.
    published: u64,
    /// Open connections at the other workers, when this worker last published the count.
    other_workers: u64,
    /// Whether the client is in `ClientCounts::changed`.
    is_changed: bool,
}

impl ClientCounts {
    /// Counts a new connection and returns true if its client has fewer than `max`; returns false
    /// otherwise. Clients on Unix sockets have no address and no limit.
    pub(crate) fn admit(&mut self, client: Option<ClientPrefix>, max: u64) -> bool {
        let Some(client) = client else { return true };
        let count = self.counts.entry(client).or_default();
        // Publish after a refusal as well: the counts of the other workers may be lower by now.
        if !std::mem::replace(&mut count.is_changed, true) {
            self.changed.push(client);
        }
        if count.open + count.other_workers >= max {
            return false;
        }
        count.open += 1;
        true
    }

    /// Stops counting a connection that was closed.
    pub(crate) fn release(&mut self, client: Option<ClientPrefix>) {
        let Some(client) = client else { return };
        let count = self.counts.get_mut(&client).expect("an open connection was counted");
        if !std::mem::replace(&mut count.is_changed, true) {
            self.changed.push(client);
        }
        count.open -= 1;
    }

    /// Withdraws all published counts of this worker, which has no connections any more.
    pub(crate) fn withdraw(&mut self, all: &SharedClientCounts) {
        let mut all = all.0.lock().unwrap_or_else(PoisonError::into_inner);
        for (client, count) in self.counts.drain() {
            if let Some(total) = all.get_mut(&client) {
                *total = total.saturating_sub(count.published);
                if *total == 0 {
                    all.remove(&client);
                }
            }
        }
        self.changed.clear();
    }

    /// Returns whether there are counts to publish.
    pub(crate) fn has_changes(&self) -> bool {
        !self.changed.is_empty()
    }

    /// Publishes the changed counts, and reads the counts of the other workers for the same
    /// clients.
    pub(crate) fn publish(&mut self, all: &SharedClientCounts) {
        let mut all = all.0.lock().unwrap_or_else(PoisonError::into_inner);
        for client in self.changed.drain(..) {
            let count = self.counts.get_mut(&client).expect("a changed client has a count");
            count.is_changed = false;
            let total = all.entry(client).or_default();
            *total = *total + count.open - count.published;
            count.published = count.open;
            count.other_workers = *total - count.open;
            if *total == 0 {
                all.remove(&client);
            }
            if count.open == 0 {
                self.counts.remove(&client);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client(address: &str, ipv6_prefix: u64) -> ClientPrefix {
        ClientPrefix::of(address.parse().unwrap(), ipv6_prefix)
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
        let mut clients = ClientCounts::default();
        let address = |host: u64| Some(client(&format!("2001:db8::{host:x}"), 64));
        assert_eq!((0..10).filter(|&host| clients.admit(address(host), 3)).count(), 3);
        clients.release(address(0));
        assert!(clients.admit(address(77), 3) && !clients.admit(address(78), 3));
        assert!(clients.admit(Some(client("2001:db8:0:1::", 64)), 3));
    }

    #[test]
    fn two_workers_share_a_limit_after_they_have_published_their_counts() {
        let all = SharedClientCounts::default();
        let (mut first, mut second) = (ClientCounts::default(), ClientCounts::default());
        let client = Some(client("192.0.2.1", 64));
        assert!(first.admit(client, 2) && first.admit(client, 2) && !first.admit(client, 2));
        first.publish(&all);
        assert!(second.admit(client, 2), "not published to it yet");
        second.publish(&all);
        assert!(!second.admit(client, 2));
        first.release(client);
        first.release(client);
        second.release(client);
        first.publish(&all);
        second.publish(&all);
        assert!(!first.has_changes() && first.counts.is_empty() && second.counts.is_empty());
        assert!(all.0.lock().unwrap().is_empty());
    }

    #[test]
    fn withdrawn_counts_do_not_count_any_more() {
        let all = SharedClientCounts::default();
        let (mut first, mut second) = (ClientCounts::default(), ClientCounts::default());
        let client = Some(client("192.0.2.1", 64));
        assert!(first.admit(client, 3) && first.admit(client, 3) && second.admit(client, 3));
        first.publish(&all);
        second.publish(&all);
        first.release(client);
        first.withdraw(&all);
        second.release(client);
        second.publish(&all);
        assert!(all.0.lock().unwrap().is_empty());
    }
}
