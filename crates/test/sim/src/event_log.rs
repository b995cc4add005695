//! The event log of a world, for people: one line for each movement between its sockets, with the
//! sender, the receiver, the number of bytes and the first ones. Equal movements in a row share a
//! line. The name of a worker's endpoint includes the number of the connection. The trace, in
//! contrast, shows the kernel's events and serves to compare runs. Nothing is recorded, and
//! recording costs nothing, until [`World::enable_event_log`](crate::World::enable_event_log) is
//! called.

use std::collections::BTreeMap;
use std::fmt::Write;

use millrace_engine::Instant;

/// The lines, and the names of endpoints.
#[derive(Debug, Default)]
pub(crate) struct EventLog {
    pub(crate) is_enabled: bool,
    lines: Vec<EventLine>,
    /// The names, by connection and side.
    names: BTreeMap<(usize, usize), Box<str>>,
}

/// An event that happened once or several times in a row.
#[derive(Debug)]
struct EventLine {
    at: Instant,
    text: String,
    times: usize,
    /// Number of bytes sent, and the first of them.
    count: usize,
    first_bytes: Vec<u8>,
}

/// The most lines kept. Later events are not recorded.
const LINES_MAX: usize = 20_000;
/// The most bytes of a transfer that a line shows.
const BYTES_SHOWN_MAX: usize = 60;

impl EventLog {
    /// Names one endpoint of a connection.
    pub(crate) fn set_name(&mut self, side: (usize, usize), name: &str) {
        self.names.insert(side, name.into());
    }

    /// Returns the name of one endpoint of a connection.
    pub(crate) fn name_of(&self, side: (usize, usize)) -> Option<&str> {
        self.names.get(&side).map(|name| &**name)
    }

    /// Adds a line, or extends the last one if it has the same text.
    pub(crate) fn push(&mut self, at: Instant, did: String, bytes: &[u8]) {
        let lines = &mut self.lines;
        let begin = |room: usize| &bytes[..bytes.len().min(room)];
        let full = lines.len() == LINES_MAX;
        match lines.last_mut() {
            Some(last) if last.text == did => {
                last.times += 1;
                last.count += bytes.len();
                last.first_bytes.extend_from_slice(begin(
                    BYTES_SHOWN_MAX.saturating_sub(last.first_bytes.len()),
                ));
            }
            _ if !full => {
                let begin = begin(BYTES_SHOWN_MAX).to_vec();
                lines.push(EventLine {
                    at,
                    text: did,
                    times: 1,
                    count: bytes.len(),
                    first_bytes: begin,
                });
            }
            _ => {}
        }
    }

    /// Returns the log, one event a line.
    pub(crate) fn text(&self) -> String {
        let mut text = String::new();
        for line in &self.lines {
            let microseconds = line.at.nanoseconds().saturating_sub(1_000_000_000) / 1000;
            let (whole, part) = (microseconds / 1000, microseconds % 1000);
            // Writing to a String cannot fail.
            let _ = write!(text, "{whole:8}.{part:03} ms  {}", line.text);
            if line.count > 0 {
                let more = if line.count > line.first_bytes.len() { "…" } else { "" };
                let begin = line.first_bytes.escape_ascii();
                let _ = write!(text, "  {} bytes \"{begin}{more}\"", line.count);
            }
            if line.times > 1 {
                let _ = write!(text, ", {} times", line.times);
            }
            text.push('\n');
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use millrace_engine::Address;

    use crate::{Faults, World};

    #[test]
    fn the_event_log_shows_sender_receiver_and_bytes() {
        let world = World::new(1, Faults::None);
        world.enable_event_log();
        let listener = world.actor_listen(&Address::Tcp(([127, 0, 0, 1], 80).into()));
        let client = world.connect(&world.local_address(listener), None);
        world.name_socket(client, "client 1");
        world.write(client, b"GET / HTTP/1.1\r\n").unwrap();
        let log = world.event_log();
        assert!(log.contains("client 1 → 127.0.0.1:80"), "{log}");
        assert!(log.contains("16 bytes \"GET / HTTP/1.1\\r\\n\""), "{log}");
        assert!(!world.is_accepted(client) && !world.is_peer_closed(client));
    }
}
