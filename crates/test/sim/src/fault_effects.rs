//! The effects of planted faults on closes and completions.

use millrace_engine::{Completion, CompletionEvent, Token, TokenKind};

use crate::descriptor::{Object, OperationKind};
use crate::fault::{EngineFault, slot_of};
use crate::kernel::Kernel;

impl Kernel {
    /// Records the outstanding receive, or the bytes in a pipe, of a descriptor that `engine`
    /// closes, if its fault needs them.
    pub(crate) fn note_close(&mut self, engine: usize, number: u32) {
        match self.engines[engine].planted.fault {
            Some(EngineFault::StaleToken) => {
                if let Some(receive) = &self.owned_descriptor(engine, number).receive
                    && matches!(receive.kind, OperationKind::Receive { .. })
                    // The attempts of one name lookup share a generation, and rely on the contract.
                    && receive.token.kind() != TokenKind::Name
                {
                    let token = receive.token;
                    self.engines[engine].planted.closed.insert(slot_of(token), token);
                }
            }
            Some(EngineFault::DirtyPipe) => self.keep_left_bytes(engine, number),
            _ => {}
        }
    }

    /// If descriptor `number` is the reading end of a pipe, keeps the bytes of the pipe, if any.
    fn keep_left_bytes(&mut self, engine: usize, number: u32) {
        if let Object::PipeReadEnd(pipe) = self.owned_descriptor(engine, number).object
            && !self.pipes[pipe].bytes.is_empty()
        {
            self.engines[engine].planted.dirt = self.pipes[pipe].bytes.iter().copied().collect();
        }
    }

    /// Overwrites the first bytes of a newly filled pipe with those left in another one.
    pub(crate) fn corrupt_pipe(&mut self, engine: usize, pipe: usize) {
        let dirt = std::mem::take(&mut self.engines[engine].planted.dirt);
        self.pipes[pipe].bytes.iter_mut().zip(dirt).for_each(|(place, byte)| *place = byte);
    }

    /// Changes a completion according to the engine's fault.
    pub(crate) fn distort_completion(&mut self, engine: usize, completion: &mut Completion) {
        let (planted, token) = (&mut self.engines[engine].planted, completion.token);
        match &mut completion.event {
            CompletionEvent::Spliced(Ok(count)) => {
                *count = self.reported_splice_count(engine, token, *count)
            }
            CompletionEvent::Connected(result) => {
                let ended = planted.connects.remove(&token).filter(|_| result.is_err());
                planted.failed.extend(ended);
            }
            _ => {}
        }
    }

    /// Returns the number of bytes that is reported for a splice that moved `count`. Removes the
    /// byte that is lost.
    fn reported_splice_count(&mut self, engine: usize, token: Token, count: usize) -> usize {
        let planted = &mut self.engines[engine].planted;
        let Some((from, max)) = planted.splices.remove(&token) else { return count };
        if planted.has(EngineFault::DirtyPipe) {
            self.keep_left_bytes(engine, from);
        } else if count + 1 == max {
            let lost = self.read_pipe(from, &mut [0]);
            assert_eq!(lost, 1, "a splice requests at most the bytes of the pipe");
            return max;
        }
        count
    }
}
