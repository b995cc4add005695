//! The limit of concurrent connections of one kind to the control plane. A new connection evicts
//! the oldest one, so that idle connections cannot keep others out.

use std::collections::VecDeque;
use std::net::Shutdown;
use std::sync::{Arc, Mutex};

use crate::http::Socket;
use crate::threads::lock;

/// The default of `ConnectionLimit::connections_max`.
const CONNECTIONS_MAX: usize = 10;
/// The default of `ConnectionLimit::threads_max`.
const THREADS_MAX: usize = 14;

/// The connections of one kind and their limit.
pub(crate) struct ConnectionLimit {
    connections: Mutex<Connections>,
    /// Limit of the connections that are served at the same time.
    connections_max: usize,
    /// Limit of the threads: those of served connections, and of evicted ones that have not ended
    /// yet. A connection beyond the limit is closed; a metrics client will retry.
    threads_max: usize,
}

#[derive(Default)]
struct Connections {
    /// The number of the next connection.
    next_number: u64,
    /// Connections that may be evicted, oldest first; `<= connections_max`.
    evictable: VecDeque<(u64, Arc<Socket>)>,
    /// Permits that are not released; `evictable.len() <= threads <= threads_max`.
    threads: usize,
}

/// The permit of a connection. Dropping it frees a permit for another connection.
pub(crate) struct ConnectionPermit {
    limit: Arc<ConnectionLimit>,
    number: u64,
}

impl Default for ConnectionLimit {
    fn default() -> Self {
        Self::new(CONNECTIONS_MAX, THREADS_MAX)
    }
}

impl ConnectionLimit {
    /// Creates a limit of connections, and one of threads, which must be higher.
    pub(crate) fn new(connections_max: usize, threads_max: usize) -> Self {
        Self { connections: Mutex::default(), connections_max, threads_max }
    }

    /// Returns a permit for the connection of `socket`, or `None` if none is free. May evict the
    /// oldest connection by shutting its socket down, as a later call may evict this one.
    pub(crate) fn acquire(self: &Arc<Self>, socket: &Arc<Socket>) -> Option<ConnectionPermit> {
        let mut connections = lock(&self.connections);
        if connections.threads >= self.threads_max {
            return None;
        }
        if connections.evictable.len() >= self.connections_max
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
        lock(&self.limit.connections).evictable.retain(|(other, _)| *other != number);
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        self.make_unevictable();
        lock(&self.limit.connections).threads -= 1;
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
        assert!(
            lock(&limit.connections).evictable.is_empty() && lock(&limit.connections).threads == 0
        );
    }
}
