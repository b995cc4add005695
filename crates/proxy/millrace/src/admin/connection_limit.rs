//! The limit of concurrent admin connections of one kind. A new connection evicts the oldest one,
//! so that idle connections cannot keep others out.

use std::collections::VecDeque;
use std::net::Shutdown;
use std::sync::{Arc, Mutex};

use crate::http::Socket;
use crate::threads::lock;

/// Limit of the connections that are served at the same time.
const CONNECTIONS_MAX: usize = 10;
/// Limit of the threads: those of served connections, and of evicted ones that have not ended yet.
/// A connection beyond the limit is closed; a metrics client will retry.
const THREADS_MAX: usize = 14;

/// The connections of one kind and their limit.
#[derive(Default)]
pub(crate) struct ConnectionLimit(Mutex<Connections>);

#[derive(Default)]
struct Connections {
    /// The number of the next connection.
    next_number: u64,
    /// Connections that may be evicted, oldest first; `<= CONNECTIONS_MAX`.
    evictable: VecDeque<(u64, Arc<Socket>)>,
    /// Permits that are not released; `evictable.len() <= threads <= THREADS_MAX`.
    threads: usize,
}

/// The permit of a connection. Dropping it frees a permit for another connection.
pub(crate) struct ConnectionPermit {
    limit: Arc<ConnectionLimit>,
    number: u64,
}

impl ConnectionLimit {
    /// Returns a permit for the connection of `socket`, or `None` if none is free. May evict the
    /// oldest connection by shutting its socket down, as a later call may evict this one.
    pub(crate) fn acquire(self: &Arc<Self>, socket: &Arc<Socket>) -> Option<ConnectionPermit> {
        let mut connections = lock(&self.0);
        if connections.threads >= THREADS_MAX {
            return None;
        }
        if connections.evictable.len() >= CONNECTIONS_MAX
            && let Some((_, oldest)) = connections.evictable.pop_front()
        {
            // An error means that the connection has ended already.
            let _ = oldest.shutdown(Shutdown::Both);
        }
        let number = connections.next_number;
        connections.next_number += 1;
        connections.threads += 1;
        connections.evictable.push_back((number, Arc::clone(socket)));
        Some(ConnectionPermit { limit: Arc::clone(self), number })
    }
}

impl ConnectionPermit {
    /// Keeps this connection from being evicted.
    pub(super) fn make_unevictable(&self) {
        let number = self.number;
        lock(&self.limit.0).evictable.retain(|(other, _)| *other != number);
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        self.make_unevictable();
        lock(&self.limit.0).threads -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::Connection;
    use std::io::Read;
    use std::os::unix::net::UnixStream;

    /// Creates a connection and its other end.
    fn connection() -> (UnixStream, Connection) {
        let (end, other) = UnixStream::pair().unwrap();
        end.set_nonblocking(true).unwrap();
        (end, Connection::new(other.into(), true).unwrap())
    }

    #[test]
    fn the_oldest_connection_is_evicted_and_its_thread_counts_until_it_ends() {
        let limit = Arc::new(ConnectionLimit::default());
        let (mut ends, connections): (Vec<_>, Vec<_>) =
            (0..=THREADS_MAX + 2).map(|_| connection()).unzip();
        let mut connections = connections.iter();
        let mut enter = || limit.acquire(connections.next().unwrap().socket());
        let mut places: Vec<_> = (0..THREADS_MAX).map(|_| enter().unwrap()).collect();
        let broken = |end: &mut UnixStream| matches!(end.read(&mut [0]), Ok(0));
        let all: Vec<_> = ends.iter_mut().map(broken).collect();
        let count = THREADS_MAX - CONNECTIONS_MAX;
        assert!(all[..count].iter().all(|broken| *broken), "{all:?}");
        assert!(!all[count..].iter().any(|broken| *broken), "{all:?}");
        assert!(enter().is_none());
        drop(places.drain(..2));
        // Without this call, this connection would be evicted next.
        places[count - 2].make_unevictable();
        places.extend([enter().unwrap(), enter().unwrap()]);
        assert!(!broken(&mut ends[count]) && broken(&mut ends[count + 1]));
        places.clear();
        assert!(lock(&limit.0).evictable.is_empty() && lock(&limit.0).threads == 0);
    }
}
