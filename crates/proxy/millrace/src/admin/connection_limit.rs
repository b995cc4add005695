//! Connections that are answered at once at the admin addresses of one kind. They are bounded, and
//! the oldest makes room: whoever opens many and says nothing keeps nobody else out.

use std::collections::VecDeque;
use std::net::Shutdown;
use std::sync::{Arc, Mutex};

use crate::http::Socket;
use crate::threads::lock;

/// Connections that are answered at once.
const CONNECTIONS_MAX: usize = 10;
/// Those, and others that were broken off and whose threads have not seen it yet. One that comes
/// beyond is closed; who asks for metrics asks again.
const THREADS_MAX: usize = 14;

/// The limit of the connections of one kind, and those connections.
#[derive(Default)]
pub(super) struct ConnectionLimit(Mutex<Connections>);

#[derive(Default)]
struct Connections {
    /// What the next one is called.
    next_number: u64,
    /// The oldest first; `<= CONNECTIONS_MAX`
    evictable: VecDeque<(u64, Arc<Socket>)>,
    /// Places that are not given back; `here.len() <= threads <= THREADS_MAX`
    threads: usize,
}

/// A connection's place, given back when it is dropped.
pub(super) struct ConnectionPermit {
    limit: Arc<ConnectionLimit>,
    number: u64,
}

impl ConnectionLimit {
    /// A place for the connection of `socket`; `None`: there is none. The socket is shut down when
    /// another connection needs the place.
    pub(super) fn acquire(self: &Arc<Self>, socket: &Arc<Socket>) -> Option<ConnectionPermit> {
        let mut connections = lock(&self.0);
        if connections.threads >= THREADS_MAX {
            return None;
        }
        if connections.evictable.len() >= CONNECTIONS_MAX
            && let Some((_, oldest)) = connections.evictable.pop_front()
        {
            // One that is gone already is as good.
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
    /// From now on this connection makes room for nobody.
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

    /// A connection and its other end.
    fn connection() -> (UnixStream, Connection) {
        let (end, other) = UnixStream::pair().unwrap();
        end.set_nonblocking(true).unwrap();
        (end, Connection::new(other.into(), true).unwrap())
    }

    #[test]
    fn the_oldest_makes_room_and_its_place_is_its_own_until_it_is_given_back() {
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
        // The oldest that is left of those that make room.
        places[count - 2].make_unevictable();
        places.extend([enter().unwrap(), enter().unwrap()]);
        assert!(!broken(&mut ends[count]) && broken(&mut ends[count + 1]));
        places.clear();
        assert!(lock(&limit.0).evictable.is_empty() && lock(&limit.0).threads == 0);
    }
}
