//! The tale of a world: what moved between its sockets, told in lines for a person to read, who to
//! whom, how many bytes and how they begin. A worker's end of a connection has the connection's
//! number behind it. The trace next to it is for comparing runs. Nothing is told, and nothing of it
//! costs anything, unless [`World::tell`] asks for it.

use std::fmt::Write;

use crate::descriptor::Owner;
use crate::kernel::Kernel;
use crate::told::Line;
use crate::{Socket, World};

/// Lines kept; what comes after them is not told.
const LINES_MAX: usize = 20_000;
/// Bytes that a line shows of what was sent.
const SHOWN: usize = 60;

impl World {
    /// From now on everything is told.
    pub fn tell(&self) {
        self.kernel.borrow_mut().tale.told = true;
    }

    /// What was told, one line an event.
    pub fn tale(&self) -> String {
        let kernel = self.kernel.borrow();
        let mut text = String::new();
        for line in &kernel.tale.lines {
            let microseconds = line.at.nanoseconds().saturating_sub(1_000_000_000) / 1000;
            let (whole, part) = (microseconds / 1000, microseconds % 1000);
            // Writing into a String does not fail.
            let _ = write!(text, "{whole:8}.{part:03} ms  {}", line.did);
            if line.count > 0 {
                let more = if line.count > line.begin.len() { "…" } else { "" };
                let begin = line.begin.escape_ascii();
                let _ = write!(text, "  {} bytes \"{begin}{more}\"", line.count);
            }
            if line.times > 1 {
                let _ = write!(text, ", {} times", line.times);
            }
            text.push('\n');
        }
        text
    }

    /// Names an actor's end of a connection in the tale.
    pub fn name(&self, socket: Socket, name: &str) {
        let kernel = &mut *self.kernel.borrow_mut();
        let side = kernel.stream_of(socket.number());
        kernel.tale.names.insert(side, name.into());
    }

    /// Adds an actor's words to the tale.
    pub fn say(&self, words: &str) {
        let kernel = &mut *self.kernel.borrow_mut();
        if kernel.tale.told {
            kernel.tell_line(words.to_owned(), &[]);
        }
    }
}

impl Kernel {
    /// Tells what `side` of a connection did, and which bytes it sent.
    pub(crate) fn tell(&mut self, connection: usize, side: usize, did: &str, bytes: &[u8]) {
        if !self.tale.told {
            return;
        }
        let [from, to] = [side, 1 - side].map(|side| self.who(connection, side));
        self.tell_line(format!("{from} {did} {to}"), bytes);
    }

    /// From now on `side` of a connection belongs to `owner`.
    pub(crate) fn name_owner(&mut self, connection: usize, side: usize, owner: Owner) {
        if let Owner::Engine(index) = owner
            && self.tale.told
        {
            let name = format!("worker {index} ({connection})");
            self.tale.names.insert((connection, side), name.into());
        }
    }

    /// Adds a line, or to the last one where that says the same.
    fn tell_line(&mut self, did: String, bytes: &[u8]) {
        let (at, lines) = (self.now, &mut self.tale.lines);
        let begin = |room: usize| &bytes[..bytes.len().min(room)];
        let full = lines.len() == LINES_MAX;
        match lines.last_mut() {
            Some(last) if last.did == did => {
                last.times += 1;
                last.count += bytes.len();
                last.begin.extend_from_slice(begin(SHOWN.saturating_sub(last.begin.len())));
            }
            _ if !full => {
                let begin = begin(SHOWN).to_vec();
                lines.push(Line { at, did, times: 1, count: bytes.len(), begin });
            }
            _ => {}
        }
    }

    /// Who holds one end of a connection.
    fn who(&self, connection: usize, side: usize) -> String {
        if let Some(name) = self.tale.names.get(&(connection, side)) {
            return name.to_string();
        }
        match self.connections[connection].sides[side].address {
            Some(address) => format!("{address}"),
            None => "somebody".to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use millrace_engine::Address;

    use crate::{Faults, World};

    #[test]
    fn a_tale_says_who_sent_what_to_whom() {
        let world = World::new(1, Faults::None);
        world.tell();
        let listener = world.actor_listen(&Address::Tcp(([127, 0, 0, 1], 80).into()));
        let client = world.connect(&world.local_address(listener), None);
        world.name(client, "client 1");
        world.write(client, b"GET / HTTP/1.1\r\n").unwrap();
        let tale = world.tale();
        assert!(tale.contains("client 1 → 127.0.0.1:80"), "{tale}");
        assert!(tale.contains("16 bytes \"GET / HTTP/1.1\\r\\n\""), "{tale}");
        assert!(!world.is_taken(client) && !world.is_left(client));
    }
}
