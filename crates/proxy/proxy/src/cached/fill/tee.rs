//! Storing by tee(2): received bytes go through a pipe to the client that caused the fill, as if
//! they were not stored. A second pipe refers to the same pages and is read into the cache. So
//! stored bytes are copied once, and sent bytes are not copied (docs/design/splice.md).
//!
//! This mode runs at the pace of the client. It lasts only while that client is the only reader and
//! empties each pipe quickly. After that the body is received into the cache's memory.

use millrace_engine::{Engine, Key, Table};
use millrace_splice::{FillResult as Filled, Pipe, Pipes, limits::PIPE_BYTES};

use crate::cached::fill::{Fill, FillPause};
use crate::conn::Conn;
use crate::exchange::Exchange;
use crate::origin::OriginConn;

impl Fill {
    /// Moves the bytes that are available in the socket into the cache and to the leader. Returns
    /// their number. The leader must have taken all earlier bytes.
    pub(crate) fn tee<E: Engine>(
        &mut self,
        mut path: TeePath<'_, E>,
        now_ms: u64,
    ) -> Result<usize, FillPause> {
        let certain_bytes =
            self.body.certain_payload().unwrap_or(u64::MAX).min(PIPE_BYTES as u64) as usize;
        let unfilled = self.filling.unfilled(now_ms).map_err(|_| FillPause::NeedsMemory)?;
        let max = unfilled.len().min(certain_bytes);
        let Some([mut pipe, mut aside]) = take_two_pipes(path.engine, path.pipes) else {
            self.leader = None;
            return Ok(0);
        };
        let count = match path.connection.wire.fill_pipe(path.engine, &mut pipe, max) {
            Filled::Bytes(count) => count,
            filled => {
                path.pipes.release(path.engine, pipe);
                path.pipes.release(path.engine, aside);
                return self.handle_empty_pipe(filled);
            }
        };
        let copied = pipe.copy_out(path.engine, &mut aside, unfilled);
        path.pipes.release(path.engine, aside);
        let leader = self.leader.as_mut().expect("the caller has checked that there is a leader");
        leader.arrivals.note_filled(count, max, &leader.thresholds);
        match copied {
            Ok(true) => path.send(leader.exchange, pipe),
            // The second pipe had no room for all pages, so the bytes are only in the cache. The
            // leader is woken and reads them there.
            Ok(false) => path.pipes.release(path.engine, pipe),
            Err(_) => {
                path.pipes.release(path.engine, pipe);
                return Err(FillPause::Cut);
            }
        }
        self.body.skip(count as u64);
        self.bytes += count as u64;
        Ok(count)
    }

    fn handle_empty_pipe(&mut self, filled: Filled) -> Result<usize, FillPause> {
        match filled {
            Filled::WouldBlock => Err(FillPause::NeedsWatch),
            Filled::Failed(_) => Err(FillPause::Cut),
            // Without a leader, the fill receives directly, and that receive reports the end.
            Filled::End | Filled::Bytes(_) => {
                self.leader = None;
                Ok(0)
            }
        }
    }
}

/// The objects on the path from an origin to the client that caused the fill.
pub(crate) struct TeePath<'a, E: Engine> {
    pub(crate) engine: &'a mut E,
    pub(crate) pipes: &'a mut Pipes,
    pub(crate) connection: &'a mut OriginConn,
    pub(crate) exchanges: &'a mut Table<Box<Exchange>>,
    pub(crate) conns: &'a mut Table<Conn>,
}

impl<E: Engine> TeePath<'_, E> {
    /// Sends the bytes in the pipe to the leader, which does not read them from the cache.
    fn send(&mut self, key: Key, pipe: Pipe) {
        let exchange =
            self.exchanges.get_mut(key).expect("the leader's exchange awaits its source");
        let conn = exchange.conn.and_then(|conn| self.conns.get_mut(conn));
        let conn = conn.expect("an exchange with a reader has a client");
        if let Some(reader) = &mut exchange.caching.reader {
            reader.skip(pipe.filled());
        }
        exchange.download.pump_pipe(self.engine, pipe, &mut conn.wire);
    }
}

fn take_two_pipes<E: Engine>(engine: &mut E, pipes: &mut Pipes) -> Option<[Pipe; 2]> {
    let pipe = pipes.acquire(engine)?;
    let Some(aside) = pipes.acquire(engine) else {
        pipes.release(engine, pipe);
        return None;
    };
    Some([pipe, aside])
}
