//! What the fault of an engine makes of its closes and completions.

use millrace_engine::{Completion, CompletionEvent, Token, TokenKind};

use crate::descriptor::{Object, Work};
use crate::fault::{EngineFault, slot_of};
use crate::kernel::Kernel;

impl Kernel {
    /// Notes what a descriptor of `engine` has outstanding or leaves behind when it is closed.
    pub(crate) fn note_close(&mut self, engine: usize, number: u32) {
        match self.engines[engine].planted.fault {
            Some(EngineFault::StaleToken) => {
                if let Some(receive) = &self.own(engine, number).receive
                    && matches!(receive.work, Work::Receive { .. })
                    // The attempts of one lookup share a token: they rely on the engine.
                    && receive.token.kind() != TokenKind::Name
                {
                    let token = receive.token;
                    self.engines[engine].planted.closed.insert(slot_of(token), token);
                }
            }
            Some(EngineFault::DirtyPipe) => self.note_left(engine, number),
            _ => {}
        }
    }

    /// Keeps the bytes in the pipe whose reading end this is, if it is one and not empty.
    fn note_left(&mut self, engine: usize, number: u32) {
        if let Object::PipeOut(pipe) = self.own(engine, number).object
            && !self.pipes[pipe].bytes.is_empty()
        {
            self.engines[engine].planted.dirt = self.pipes[pipe].bytes.iter().copied().collect();
        }
    }

    /// Overwrites the first bytes in a pipe that was filled with what was left in another one.
    pub(crate) fn soil(&mut self, engine: usize, pipe: usize) {
        let dirt = std::mem::take(&mut self.engines[engine].planted.dirt);
        self.pipes[pipe].bytes.iter_mut().zip(dirt).for_each(|(place, byte)| *place = byte);
    }

    /// Makes a completion what the fault of its engine makes of it.
    pub(crate) fn distort(&mut self, engine: usize, completion: &mut Completion) {
        let (planted, token) = (&mut self.engines[engine].planted, completion.token);
        match &mut completion.event {
            CompletionEvent::Spliced(Ok(count)) => *count = self.spliced(engine, token, *count),
            CompletionEvent::Connected(result) => {
                let ended = planted.connects.remove(&token).filter(|_| result.is_err());
                planted.failed.extend(ended);
            }
            _ => {}
        }
    }

    /// How many bytes a splice is reported to have moved that moved `count`.
    fn spliced(&mut self, engine: usize, token: Token, count: usize) -> usize {
        let planted = &mut self.engines[engine].planted;
        let Some((from, max)) = planted.splices.remove(&token) else { return count };
        if planted.has(EngineFault::DirtyPipe) {
            self.note_left(engine, from);
        } else if count + 1 == max {
            let lost = self.drain(from, &mut [0]);
            assert_eq!(lost, 1, "a splice was asked for no more than is in the pipe");
            return max;
        }
        count
    }
}
