//! A direction after an unsplice: the application forwards the rest by receives and sends.

use millrace_engine::{Buffer, CompletionEvent, Engine, Fd, ShutdownHow, Token};
use rand_core::{Rng, SeedableRng};
use rand_pcg::Pcg64Mcg;

use super::engine_direction::EngineDirection;
use super::peer::byte;
use crate::pipes::Pipes;

pub(super) struct ManualDirection {
    /// Bytes to be sent: those from the unsplice, then received ones.
    unsent: Vec<u8>,
    is_sending: bool,
    /// A receive is outstanding, or a poll from before the unsplice.
    is_receiving: bool,
    is_at_end: bool,
    /// The sink failed. Received bytes are dropped.
    is_sink_gone: bool,
    /// All bytes of the source were forwarded, or dropped because the sink failed.
    pub(super) is_over: bool,
    /// The direction had ended before the unsplice.
    pub(super) was_over: bool,
    pub(super) is_broken: bool,
    /// Bytes of the source that the transfer took or that were received since.
    pub(super) taken: usize,
    /// Payload was unsent at the unsplice.
    pub(super) had_unsent: bool,
    salt: u64,
    tokens: [Token; 2],
    random: Pcg64Mcg,
}

impl EngineDirection {
    /// Ends a direction without a pending operation at the sink. Checks that the unsent payload
    /// continues exactly where the forwarded payload ends.
    pub(super) fn unsplice<E: Engine>(
        &mut self,
        engine: &mut E,
        pipes: &mut Pipes,
    ) -> ManualDirection {
        assert!(!self.is_sending(), "no operation is pending at the sink");
        let is_over = self.state.end().is_some();
        self.state.stop();
        let (piped, ahead) = self.state.piped();
        let rest = match self.pipe.take() {
            Some(pipe) => super::engine_direction::read(pipe, engine, pipes),
            // Bytes that are sent from memory are the last ones of the copy.
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
            assert_eq!(
                kept.read, wanted,
                "the copy has only payload that was forwarded or cannot be"
            );
        }
        let mut unsent = self.prefix[self.prefix.len() - self.state.prefix..].to_vec();
        if is_sink_gone {
            unsent.clear();
        } else {
            let from = self.state.forwarded as usize;
            assert_eq!(from + rest.len(), taken, "no byte is lost");
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
    /// Queues the next operation.
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

    /// Handles a completion.
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
            other => panic!("unexpected completion {other:?}"),
        }
    }
}

/// Compares bytes with the stream at `from`.
fn compare(bytes: &[u8], salt: u64, from: usize) {
    for (at, &got) in bytes.iter().enumerate() {
        assert_eq!(got, byte(salt, from + at), "byte {}", from + at);
    }
}
