//! The pipes of a worker: opened as they are needed, kept for the next body, bounded.

use millrace_engine::{Engine, Error, Fd, Token};

use crate::Thresholds;
use crate::pool::PipePool;

/// A pipe in use. It goes back by [`Pipes::give`]; dropping it would lose its descriptors.
#[derive(Debug)]
pub struct Pipe {
    out: Fd,
    into: Fd,
    /// Bytes in it.
    filled: usize,
}

/// What [`Pipe::fill`] found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FillResult {
    /// So many bytes, at least one, are in the pipe now.
    Bytes(usize),
    /// Nothing yet.
    WouldBlock,
    /// A pipe gets no further: a receive tells whether that is the end of the stream.
    End,
    /// The connection broke; a receive may tell that as an end now.
    Failed(Error),
}

impl Pipe {
    /// Moves what a stream has at once, up to `max` bytes, into the pipe, which is empty.
    pub fn fill<E: Engine>(&mut self, engine: &mut E, from: &Fd, max: usize) -> FillResult {
        assert_eq!(self.filled, 0, "a pipe is filled when it is empty");
        match engine.try_splice_in(from, &self.into, max) {
            Some(Ok(0)) => FillResult::End,
            Some(Ok(count)) => {
                self.filled = count;
                FillResult::Bytes(count)
            }
            Some(Err(error)) => FillResult::Failed(error),
            None => FillResult::WouldBlock,
        }
    }

    /// Copies everything in the pipe to the beginning of `memory`, by way of `aside`, an empty one.
    /// `true`: it is in the pipe as well, for [`Pipe::drain_after`]. `false`: it is in memory only
    /// and the pipe is empty, as `aside` had no room for it; how much that is, is no matter of bytes
    /// but of the pages and parts of pages that they came in (tee(2)).
    ///
    /// # Errors
    /// Those of the kernel: then nobody knows what is where, and both pipes are to be given up.
    ///
    /// # Panics
    /// When `memory` is too short, or `aside` is not empty.
    pub fn copy_out<E: Engine>(
        &mut self,
        engine: &mut E,
        aside: &mut Self,
        memory: &mut [u8],
    ) -> Result<bool, Error> {
        assert_eq!(aside.filled, 0, "what is beside is empty");
        let memory = &mut memory[..self.filled];
        aside.filled = engine.tee(&self.out, &aside.into, self.filled)?;
        let is_whole = aside.filled == self.filled;
        aside.read(engine, &mut memory[..])?;
        if !is_whole {
            self.read(engine, memory)?;
        }
        Ok(is_whole)
    }

    /// Moves everything in the pipe to the beginning of `memory`.
    ///
    /// # Errors
    /// As for [`Pipe::copy`].
    pub(crate) fn read<E: Engine>(
        &mut self,
        engine: &mut E,
        memory: &mut [u8],
    ) -> Result<(), Error> {
        let mut at = 0;
        while self.filled > 0 {
            let count = engine.read_pipe(&self.out, &mut memory[at..at + self.filled])?;
            assert!(count > 0, "a pipe has what was counted into it");
            self.filled -= count;
            at += count;
        }
        Ok(())
    }

    /// Sends `parts` and then everything in the pipe; one completion of a splice, which is to be
    /// given to [`Pipe::drained`], follows.
    pub fn drain_after<E: Engine>(&self, engine: &mut E, parts: &[&[u8]], sink: &Fd, token: Token) {
        engine.send_then_splice(parts, &self.out, sink, self.filled, token);
    }

    /// Notes that `count` bytes have gone to the sink, and sends what is left, if anything is:
    /// another completion follows then.
    ///
    /// # Panics
    /// When there were not so many.
    pub fn continue_drain<E: Engine>(
        &mut self,
        engine: &mut E,
        count: usize,
        sink: &Fd,
        token: Token,
    ) {
        self.note_drained(count);
        if self.filled > 0 {
            engine.splice(&self.out, sink, self.filled, token);
        }
    }

    /// Notes that `count` bytes have gone to the sink, and leaves what is left where it is.
    pub(crate) fn note_drained(&mut self, count: usize) {
        assert!(count <= self.filled, "no more leaves a pipe than was in it");
        self.filled -= count;
    }

    /// Bytes in it.
    pub fn filled(&self) -> usize {
        self.filled
    }

    fn close<E: Engine>(self, engine: &mut E) {
        engine.close(self.out);
        engine.close(self.into);
    }
}

/// A worker's pipes, and what they are taken for.
#[derive(Debug)]
pub struct Pipes {
    thresholds: Thresholds,
    pool: PipePool<Pipe>,
    /// Requests that got none.
    refused: u64,
}

impl Pipes {
    /// None yet, and at most `max`; to be taken where `thresholds` are reached.
    pub const fn new(max: usize, thresholds: Thresholds) -> Self {
        Self { thresholds, pool: PipePool::new(max), refused: 0 }
    }

    /// From how many bytes on a body is worth one.
    pub fn thresholds(&self) -> &Thresholds {
        &self.thresholds
    }

    /// An empty pipe; `None`, and counted, when all are in use, or the kernel gives no further one.
    pub fn acquire<E: Engine>(&mut self, engine: &mut E) -> Option<Pipe> {
        let open = || engine.pipe().map(|(out, into)| Pipe { out, into, filled: 0 });
        let pipe = self.pool.acquire(open);
        self.refused += u64::from(pipe.is_none());
        pipe
    }

    /// Takes a pipe back. One with bytes in it is closed, whatever it has outstanding: nobody else
    /// may get them.
    pub fn release<E: Engine>(&mut self, engine: &mut E, pipe: Pipe) {
        if pipe.filled == 0 {
            self.pool.release(pipe);
        } else {
            self.pool.note_closed();
            pipe.close(engine);
        }
    }

    /// Closes an eighth of the pipes that nobody needed since this was called last: what a burst
    /// opened goes back to the kernel in time.
    pub fn trim<E: Engine>(&mut self, engine: &mut E) {
        self.pool.trim().into_iter().for_each(|pipe| pipe.close(engine));
    }

    /// Closes those that are not in use.
    pub fn close_free<E: Engine>(&mut self, engine: &mut E) {
        self.pool.take_free().into_iter().for_each(|pipe| pipe.close(engine));
    }

    /// Times that [`Pipes::take`] gave none.
    pub fn refused(&self) -> u64 {
        self.refused
    }

    /// Pipes that are open.
    pub fn open(&self) -> usize {
        self.pool.open()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use millrace_engine::{Address, CompletionEvent, TokenKind, Wake};
    use millrace_sim::{Faults, ReadResult, SimEngine, SimWorker, World};

    use super::*;

    const TOKEN: Token = Token::new(TokenKind::Client, 0, 0);

    /// A stream of the engine's that has `bytes` to be read and takes what is sent to it.
    fn stream(
        world: &World,
        engine: &mut SimEngine,
        bytes: &[u8],
    ) -> (Fd, millrace_sim::ActorSocket) {
        let address = Address::Tcp("127.0.0.1:0".parse().expect("an address"));
        let listener = world.actor_listen(&address);
        let fd = engine.connect(&world.local_address(listener), TOKEN).expect("there is room");
        run(world, engine);
        let (peer, _) = world.accept(listener).expect("it was connected to");
        let mut written = 0;
        while written < bytes.len() {
            written += world.write(peer, &bytes[written..]).expect("nobody closes it");
            run(world, engine);
        }
        world.close(listener);
        (fd, peer)
    }

    struct Worker<'a>(&'a mut SimEngine, Vec<CompletionEvent>);

    impl SimWorker for Worker<'_> {
        fn run_turn(&mut self) -> bool {
            self.0.submit_and_wait(None);
            self.1.extend(
                std::iter::from_fn(|| self.0.next_completion()).map(|completion| completion.event),
            );
            true
        }
    }

    /// What completes within a virtual minute.
    fn run(world: &World, engine: &mut SimEngine) -> Vec<CompletionEvent> {
        engine.waker().wake();
        let mut worker = Worker(engine, Vec::new());
        millrace_sim::run(world, &mut [&mut worker], &mut [], Duration::from_secs(60), &mut |_| {
            false
        });
        worker.1.retain(|event| !matches!(event, CompletionEvent::Woken));
        worker.1
    }

    #[test]
    fn a_pipe_that_was_emptied_serves_again_and_a_dirty_one_never() {
        let world = World::new(1, Faults::None);
        let mut engine = world.engine(1 << 20);
        let mut pipes = Pipes::new(1, Thresholds::FIXED);
        let (source, _) = stream(&world, &mut engine, b"bodynext");
        let (sink, reader) = stream(&world, &mut engine, b"");
        let mut pipe = pipes.acquire(&mut engine).expect("the first is there");
        assert!(pipes.acquire(&mut engine).is_none());
        assert_eq!((pipes.open(), pipes.refused()), (1, 1));
        assert_eq!(pipe.fill(&mut engine, &source, 4), FillResult::Bytes(4));
        pipe.drain_after(&mut engine, &[b"head "], &sink, TOKEN);
        assert!(matches!(run(&world, &mut engine)[..], [CompletionEvent::Spliced(Ok(4))]));
        pipe.continue_drain(&mut engine, 4, &sink, TOKEN);
        assert!(
            matches!(world.read(reader, 100), ReadResult::Bytes(bytes) if bytes == b"head body")
        );
        pipes.release(&mut engine, pipe);
        assert_eq!(pipes.open(), 1);
        let mut pipe = pipes.acquire(&mut engine).expect("it was given back");
        assert_eq!(pipe.fill(&mut engine, &source, 100), FillResult::Bytes(4));
        pipes.release(&mut engine, pipe);
        assert_eq!(pipes.open(), 0);
        let mut pipe = pipes.acquire(&mut engine).expect("there is room for a new one");
        assert_eq!(pipe.fill(&mut engine, &source, 100), FillResult::WouldBlock);
        pipes.release(&mut engine, pipe);
        pipes.close_free(&mut engine);
        assert_eq!(pipes.open(), 0);
    }

    #[test]
    fn what_is_copied_out_of_a_pipe_is_there_still_or_nowhere_else() {
        let (mut shared, mut taken) = (0, 0);
        for seed in 0..200 {
            let world = World::new(seed, Faults::Benign);
            let mut engine = world.engine(1 << 20);
            let mut pipes = Pipes::new(2, Thresholds::FIXED);
            let (source, _) = stream(&world, &mut engine, b"body");
            let mut both = [(); 2].map(|()| pipes.acquire(&mut engine));
            let [Some(pipe), Some(aside)] = &mut both else { continue };
            let FillResult::Bytes(filled) = pipe.fill(&mut engine, &source, 4) else { continue };
            let mut memory = [0; 4];
            let is_in_both =
                pipe.copy_out(&mut engine, aside, &mut memory).expect("nothing breaks");
            assert_eq!(memory[..filled], b"body"[..filled]);
            assert_eq!((pipe.filled(), aside.filled()), (if is_in_both { filled } else { 0 }, 0));
            *(if is_in_both { &mut shared } else { &mut taken }) += 1;
        }
        assert!(shared > 0 && taken > 0, "{shared} {taken}");
    }

    #[test]
    fn what_nobody_needs_goes_back_to_the_kernel() {
        let world = World::new(1, Faults::None);
        let mut engine = world.engine(1 << 20);
        let mut pipes = Pipes::new(20, Thresholds::FIXED);
        let taken: Vec<Pipe> = std::iter::from_fn(|| pipes.acquire(&mut engine)).collect();
        assert_eq!(pipes.open(), 20);
        taken.into_iter().for_each(|pipe| pipes.release(&mut engine, pipe));
        pipes.trim(&mut engine);
        assert_eq!(pipes.open(), 20, "all were needed since");
        let kept = pipes.acquire(&mut engine).expect("one is free");
        pipes.trim(&mut engine);
        assert_eq!(pipes.open(), 17, "nineteen were not");
        for _ in 0..20 {
            pipes.trim(&mut engine);
        }
        assert_eq!(pipes.open(), 1, "what is in use stays");
        pipes.release(&mut engine, kept);
        pipes.close_free(&mut engine);
    }
}
