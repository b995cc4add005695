//! The pipes of a worker, over its engine.

use millrace_engine::{Engine, Error, Fd, Token};

use crate::Thresholds;
use crate::pool::PipePool;

/// A pipe in use. Return it by [`Pipes::release`]; dropping it would leak its descriptors.
#[derive(Debug)]
pub struct Pipe {
    out: Fd,
    into: Fd,
    /// Bytes in the pipe.
    filled: usize,
}

/// The result of [`Pipe::fill`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FillResult {
    /// This many bytes, at least one, are in the pipe now.
    Bytes(usize),
    /// No byte has arrived.
    WouldBlock,
    /// The pipe gets no more bytes. A receive shows whether this is the end of the stream.
    End,
    /// The connection failed. A later receive may report this as an end of the stream.
    Failed(Error),
}

impl Pipe {
    /// Moves the bytes of a stream that have arrived, up to `max`, into the pipe, which must be
    /// empty.
    pub fn fill<E: Engine>(&mut self, engine: &mut E, from: &Fd, max: usize) -> FillResult {
        assert_eq!(self.filled, 0, "only an empty pipe is filled");
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

    /// Copies the bytes of the pipe to the start of `memory`: duplicates them into `aside`, an
    /// empty pipe, and reads that pipe. Returns `true` if the bytes also remain in this pipe, for
    /// [`Pipe::drain_after`]. Returns `false` if `aside` had no room for all of them: this pipe is
    /// empty then, and the bytes are only in `memory`. The room depends on the pages and fragments
    /// in which the bytes arrived, not on their number (tee(2)).
    ///
    /// # Errors
    /// Those of the kernel. Then the place of the bytes is unknown, and both pipes have to be
    /// discarded.
    ///
    /// # Panics
    /// If `memory` is too short or `aside` is not empty.
    pub fn copy_out<E: Engine>(
        &mut self,
        engine: &mut E,
        aside: &mut Self,
        memory: &mut [u8],
    ) -> Result<bool, Error> {
        assert_eq!(aside.filled, 0, "`aside` is empty");
        let memory = &mut memory[..self.filled];
        aside.filled = engine.tee(&self.out, &aside.into, self.filled)?;
        let is_whole = aside.filled == self.filled;
        aside.read(engine, &mut memory[..])?;
        if !is_whole {
            self.read(engine, memory)?;
        }
        Ok(is_whole)
    }

    /// Moves the bytes of the pipe to the start of `memory`.
    ///
    /// # Errors
    /// As for [`Pipe::copy_out`].
    pub(crate) fn read<E: Engine>(
        &mut self,
        engine: &mut E,
        memory: &mut [u8],
    ) -> Result<(), Error> {
        let mut at = 0;
        while self.filled > 0 {
            let count = engine.read_pipe(&self.out, &mut memory[at..at + self.filled])?;
            assert!(count > 0, "the pipe has the counted bytes");
            self.filled -= count;
            at += count;
        }
        Ok(())
    }

    /// Sends `parts` and then the bytes of the pipe. One splice completion follows; pass it to
    /// [`Pipe::continue_drain`].
    pub fn drain_after<E: Engine>(&self, engine: &mut E, parts: &[&[u8]], sink: &Fd, token: Token) {
        engine.send_then_splice(parts, &self.out, sink, self.filled, token);
    }

    /// Records that `count` bytes were sent, and sends the rest. If there is a rest, another
    /// completion follows.
    ///
    /// # Panics
    /// If the pipe had fewer bytes.
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

    /// Records that `count` bytes were sent, and leaves the rest in the pipe.
    pub(crate) fn note_drained(&mut self, count: usize) {
        assert!(count <= self.filled, "a pipe loses at most its bytes");
        self.filled -= count;
    }

    /// Returns the number of bytes in the pipe.
    pub fn filled(&self) -> usize {
        self.filled
    }

    fn close<E: Engine>(self, engine: &mut E) {
        engine.close(self.out);
        engine.close(self.into);
    }
}

/// The pipes of a worker, with the thresholds for their use.
#[derive(Debug)]
pub struct Pipes {
    thresholds: Thresholds,
    pool: PipePool<Pipe>,
    /// Requests that got no pipe.
    refusals: u64,
}

impl Pipes {
    /// Creates an empty set of at most `max` pipes, to be used where `thresholds` are reached.
    pub const fn new(max: usize, thresholds: Thresholds) -> Self {
        Self { thresholds, pool: PipePool::new(max), refusals: 0 }
    }

    /// Returns the sizes from which a body is worth a pipe.
    pub fn thresholds(&self) -> &Thresholds {
        &self.thresholds
    }

    /// Returns an empty pipe. If all are in use or the kernel refuses another, counts a refusal and
    /// returns `None`.
    pub fn acquire<E: Engine>(&mut self, engine: &mut E) -> Option<Pipe> {
        let open = || engine.pipe().map(|(out, into)| Pipe { out, into, filled: 0 });
        let pipe = self.pool.acquire(open);
        self.refusals += u64::from(pipe.is_none());
        pipe
    }

    /// Takes a pipe back. A pipe with bytes is closed, even with operations outstanding, because no
    /// other transfer may get these bytes.
    pub fn release<E: Engine>(&mut self, engine: &mut E, pipe: Pipe) {
        if pipe.filled == 0 {
            self.pool.release(pipe);
        } else {
            self.pool.note_closed();
            pipe.close(engine);
        }
    }

    /// Closes an eighth of the pipes that were not used since the last call, so that the kernel
    /// gets back the pipes that a burst opened.
    pub fn trim<E: Engine>(&mut self, engine: &mut E) {
        self.pool.trim().into_iter().for_each(|pipe| pipe.close(engine));
    }

    /// Closes the free pipes.
    pub fn close_free<E: Engine>(&mut self, engine: &mut E) {
        self.pool.take_free().into_iter().for_each(|pipe| pipe.close(engine));
    }

    /// Returns how often [`Pipes::acquire`] returned `None`.
    pub fn refusals(&self) -> u64 {
        self.refusals
    }

    /// Returns the number of open pipes.
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

    /// Opens a stream of the engine from which `bytes` can be read, with its peer.
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
            written += world.write(peer, &bytes[written..]).expect("the stream is open");
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

    /// Returns the completions of the next virtual minute.
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
    fn an_empty_pipe_is_reused_and_one_with_bytes_is_closed() {
        let world = World::new(1, Faults::None);
        let mut engine = world.engine(1 << 20);
        let mut pipes = Pipes::new(1, Thresholds::FIXED);
        let (source, _) = stream(&world, &mut engine, b"bodynext");
        let (sink, reader) = stream(&world, &mut engine, b"");
        let mut pipe = pipes.acquire(&mut engine).expect("a pipe is available");
        assert!(pipes.acquire(&mut engine).is_none());
        assert_eq!((pipes.open(), pipes.refusals()), (1, 1));
        assert_eq!(pipe.fill(&mut engine, &source, 4), FillResult::Bytes(4));
        pipe.drain_after(&mut engine, &[b"head "], &sink, TOKEN);
        assert!(matches!(run(&world, &mut engine)[..], [CompletionEvent::Spliced(Ok(4))]));
        pipe.continue_drain(&mut engine, 4, &sink, TOKEN);
        assert!(
            matches!(world.read(reader, 100), ReadResult::Bytes(bytes) if bytes == b"head body")
        );
        pipes.release(&mut engine, pipe);
        assert_eq!(pipes.open(), 1);
        let mut pipe = pipes.acquire(&mut engine).expect("the pipe was released");
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
    fn bytes_copied_out_stay_in_the_pipe_or_only_in_memory() {
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
            let is_in_both = pipe.copy_out(&mut engine, aside, &mut memory).expect("no pipe fails");
            assert_eq!(memory[..filled], b"body"[..filled]);
            assert_eq!((pipe.filled(), aside.filled()), (if is_in_both { filled } else { 0 }, 0));
            *(if is_in_both { &mut shared } else { &mut taken }) += 1;
        }
        assert!(shared > 0 && taken > 0, "{shared} {taken}");
    }

    #[test]
    fn unused_pipes_are_closed() {
        let world = World::new(1, Faults::None);
        let mut engine = world.engine(1 << 20);
        let mut pipes = Pipes::new(20, Thresholds::FIXED);
        let taken: Vec<Pipe> = std::iter::from_fn(|| pipes.acquire(&mut engine)).collect();
        assert_eq!(pipes.open(), 20);
        taken.into_iter().for_each(|pipe| pipes.release(&mut engine, pipe));
        pipes.trim(&mut engine);
        assert_eq!(pipes.open(), 20, "all were in use");
        let kept = pipes.acquire(&mut engine).expect("one is free");
        pipes.trim(&mut engine);
        assert_eq!(pipes.open(), 17, "nineteen were unused");
        for _ in 0..20 {
            pipes.trim(&mut engine);
        }
        assert_eq!(pipes.open(), 1, "pipes in use stay open");
        pipes.release(&mut engine, kept);
        pipes.close_free(&mut engine);
    }
}
