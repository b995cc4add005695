//! A way after its transfer was unspliced: the application receives and sends by itself what the
//! splicer would have moved, by completions too.

use millrace_engine::{Buffer, CompletionEvent, Engine, Fd, ShutdownHow, Token};
use rand_core::{Rng, SeedableRng};
use rand_pcg::Pcg64Mcg;

use super::engine_direction::EngineDirection;
use super::peer::byte;
use crate::pipes::Pipes;

pub(super) struct ManualDirection {
    /// To be sent: what was handed out, later what was received.
    unsent: Vec<u8>,
    is_sending: bool,
    /// A receive or, from before, a watch is outstanding.
    is_receiving: bool,
    is_at_end: bool,
    /// Whoever sends there was told that nobody takes it any more: what comes is taken off alone.
    is_sink_gone: bool,
    /// All that the source sent went on.
    pub(super) is_over: bool,
    /// It had ended before.
    pub(super) was_over: bool,
    pub(super) is_broken: bool,
    /// Bytes of the source's stream that the transfer took or that were received since.
    pub(super) taken: usize,
    /// Whether something that had been taken was handed out.
    pub(super) had_unsent: bool,
    salt: u64,
    tokens: [Token; 2],
    random: Pcg64Mcg,
}

impl EngineDirection {
    /// Ends the direction where it is, with nothing outstanding to the sink: what was taken and not
    /// forwarded is handed out. It is what the source sent, neither more nor less.
    pub(super) fn unsplice<E: Engine>(
        &mut self,
        engine: &mut E,
        pipes: &mut Pipes,
    ) -> ManualDirection {
        assert!(!self.is_sending(), "what is on its way is waited for");
        let is_over = self.state.end().is_some();
        self.state.stop();
        let (piped, ahead) = self.state.piped();
        let rest = match self.pipe.take() {
            Some(pipe) => super::engine_direction::read(pipe, engine, pipes),
            // A copy that is on its way has no pipe: it is the last that is kept.
            None => self.kept.as_ref().map_or(Vec::new(), |kept| kept.last(piped)),
        };
        let taken = self.state.taken as usize;
        let is_sink_gone = self.state.is_sink_failed();
        if let Some(kept) = &mut self.kept {
            if is_sink_gone {
                kept.push(&rest[ahead..]);
            }
            kept.read_all_but(if is_sink_gone { 0 } else { ahead });
            let wanted = if is_sink_gone { taken } else { self.state.forwarded as usize };
            assert_eq!(kept.read, wanted, "what is kept was forwarded, or cannot be");
        }
        let mut unsent = self.prefix[self.prefix.len() - self.state.prefix..].to_vec();
        if is_sink_gone {
            unsent.clear();
        } else {
            let from = self.state.forwarded as usize;
            assert_eq!(from + rest.len(), taken, "nothing is lost");
            compare(&rest, self.salt, from);
            unsent.extend(&rest);
        }
        ManualDirection {
            unsent,
            is_sending: false,
            is_receiving: self.is_watching,
            is_at_end: self.is_at_end,
            is_sink_gone,
            is_over,
            was_over: is_over,
            is_broken: self.is_source_broken,
            taken,
            had_unsent: !is_sink_gone && !rest.is_empty(),
            salt: self.salt,
            tokens: self.tokens,
            random: Pcg64Mcg::seed_from_u64(self.salt),
        }
    }
}

impl ManualDirection {
    /// Queues what is to be done next.
    pub(super) fn advance<E: Engine>(&mut self, engine: &mut E, [source, sink]: [&Fd; 2]) {
        if self.is_over || self.is_sending {
            return;
        }
        if !self.unsent.is_empty() {
            self.is_sending = true;
            engine.send(sink, &[&std::mem::take(&mut self.unsent)], self.tokens[1]);
        } else if self.is_at_end {
            self.is_over = true;
            if !self.is_sink_gone {
                engine.shutdown(sink, ShutdownHow::Write);
            }
        } else if !self.is_receiving {
            self.is_receiving = true;
            let max = 1 + self.random.next_u64() as usize % Buffer::SIZE;
            engine.recv(source, max, self.tokens[0]);
        }
    }

    /// What an operation came to.
    pub(super) fn handle_event<E: Engine>(&mut self, event: CompletionEvent, engine: &mut E) {
        match event {
            CompletionEvent::Readable => self.is_receiving = false,
            CompletionEvent::Received(Ok(buffer)) => {
                self.is_receiving = false;
                self.is_at_end = buffer.is_empty();
                compare(&buffer, self.salt, self.taken);
                self.taken += buffer.len();
                if !self.is_sink_gone {
                    self.unsent.extend_from_slice(&buffer);
                }
                engine.recycle(buffer);
            }
            CompletionEvent::Sent(Ok(())) => self.is_sending = false,
            CompletionEvent::Received(Err(_)) | CompletionEvent::Sent(Err(_)) => {
                self.is_broken = true
            }
            other => panic!("nobody asked for {other:?}"),
        }
    }
}

/// Whether the bytes are those at `from` of a stream.
fn compare(bytes: &[u8], salt: u64, from: usize) {
    for (at, &got) in bytes.iter().enumerate() {
        assert_eq!(got, byte(salt, from + at), "byte {}", from + at);
    }
}
