//! A small worker over any engine. It relays each accepted connection to one origin, in both
//! directions, with half-close, by copying or by splicing. It replaces the proxy in tests of
//! engines.

use std::os::fd::BorrowedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use millrace_engine::{
    Address, Buffer, Completion, CompletionEvent, Engine, Error, Fd, FileRead, Instant,
    SharedBytes, ShutdownHow, Token, TokenKind,
};
use millrace_sys::Errno;

/// How bytes are moved.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum How {
    Copy,
    Splice,
    /// Bytes are received, then a pipe is filled, and both are sent by `send_then_splice`.
    SendThenSplice,
    /// Received bytes are sent by `send_shared`: the first three by copy, and the rest by
    /// reference.
    Shared,
    /// Received bytes are sent by `send_file`: the first three by copy, and the rest from a file.
    File,
}

/// Bytes moving one way.
#[derive(Default)]
struct Flow {
    pipe: Option<(Fd, Fd)>,
    piped: usize,
    ended: bool,
}

/// Two connections. Flow 0 goes from the client to the origin, flow 1 back.
struct Pair {
    sides: [Fd; 2],
    flows: [Flow; 2],
}

/// The worker.
pub(crate) struct Relay<E: Engine> {
    engine: E,
    listener: Option<Fd>,
    origin: Address,
    how: How,
    /// Slots are not reused, so the generation of every token is 0.
    pairs: Vec<Option<Pair>>,
    retry_accept_at: Option<Instant>,
    stop: Arc<AtomicBool>,
}

/// The listener's token.
const LISTENER: Token = Token::new(TokenKind::Listener, 0, 0);

impl<E: Engine> Relay<E> {
    pub(crate) fn new(
        mut engine: E,
        listener: Fd,
        origin: Address,
        how: How,
        stop: Arc<AtomicBool>,
    ) -> Self {
        engine.accept(&listener, LISTENER);
        let pairs = Vec::new();
        Self { engine, listener: Some(listener), origin, how, pairs, retry_accept_at: None, stop }
    }

    /// Runs a turn. Returns false once `stop` is set and every pair is closed.
    pub(crate) fn turn(&mut self) -> bool {
        self.engine.submit_and_wait(self.retry_accept_at);
        if self.retry_accept_at.is_some_and(|when| when <= self.engine.now()) {
            self.retry_accept_at = None;
            if let Some(listener) = &self.listener {
                self.engine.accept(listener, LISTENER);
            }
        }
        while let Some(completion) = self.engine.next_completion() {
            self.handle(completion);
        }
        if self.stop.load(Ordering::Acquire)
            && let Some(listener) = self.listener.take()
        {
            self.engine.cancel_accept(&listener);
            self.engine.close(listener);
            self.retry_accept_at = None;
        }
        self.listener.is_some() || self.pairs.iter().any(Option::is_some)
    }

    fn handle(&mut self, completion: Completion) {
        let index = completion.token.slot() as usize / 2;
        let flow = completion.token.slot() as usize % 2;
        match completion.event {
            CompletionEvent::Woken => {}
            CompletionEvent::Readable => self.receive(index, flow),
            CompletionEvent::Accepted(Ok((client, _))) => self.begin(client),
            CompletionEvent::Accepted(Err(error)) => {
                let ours = matches!(error, Error::OutOfDescriptors | Error::OutOfMemory);
                assert!(ours, "accept fails: {error}");
                self.retry_accept_at = Some(self.engine.now() + Duration::from_millis(10));
            }
            CompletionEvent::Connected(Ok(())) => {
                self.fill(index, 0);
                self.fill(index, 1);
            }
            CompletionEvent::Received(Ok(buffer)) => self.relay_received(index, flow, buffer),
            CompletionEvent::Sent(Ok(())) => self.fill(index, flow),
            CompletionEvent::Spliced(Ok(count)) => {
                self.handle_spliced(
                    index,
                    flow,
                    completion.token.kind() == TokenKind::Client,
                    count,
                );
            }
            CompletionEvent::Connected(Err(_))
            | CompletionEvent::Received(Err(_))
            | CompletionEvent::Sent(Err(_))
            | CompletionEvent::Spliced(Err(_)) => self.end(index, true),
        }
    }

    fn begin(&mut self, client: Fd) {
        let token = Self::token(TokenKind::Origin, self.pairs.len(), 0);
        match self.engine.connect(&self.origin, token) {
            Ok(origin) => {
                let pair = Pair { sides: [client, origin], flows: Default::default() };
                self.pairs.push(Some(pair));
            }
            Err(_) => self.engine.reset(client),
        }
    }

    /// Requests the next bytes of a flow.
    fn fill(&mut self, index: usize, flow: usize) {
        let token = Self::token(TokenKind::Client, index, flow);
        let pair = self.pairs[index].as_mut().expect("no completion comes after a close");
        if matches!(self.how, How::Splice | How::SendThenSplice) && pair.flows[flow].pipe.is_none()
        {
            pair.flows[flow].pipe = self.engine.pipe().ok();
        }
        match &pair.flows[flow].pipe {
            Some(_) if self.how == How::SendThenSplice => {
                self.engine.poll_readable(&pair.sides[flow], token)
            }
            Some((_, into)) => self.engine.splice(&pair.sides[flow], into, 100_000, token),
            None => self.engine.recv(&pair.sides[flow], Buffer::SIZE, token),
        }
    }

    fn receive(&mut self, index: usize, flow: usize) {
        let pair = self.pairs[index].as_mut().expect("no completion comes after a close");
        let token = Self::token(TokenKind::Client, index, flow);
        self.engine.recv(&pair.sides[flow], 1000, token);
    }

    fn relay_received(&mut self, index: usize, flow: usize, buffer: Buffer) {
        let pair = self.pairs[index].as_mut().expect("no completion comes after a close");
        if buffer.is_empty() {
            self.engine.recycle(buffer);
            return self.finish(index, flow);
        }
        let token = Self::token(TokenKind::Origin, index, flow);
        let (first, second) = buffer.split_at(buffer.len() / 2);
        let parts = [first, b"", second];
        let (state, sink) = (&mut pair.flows[flow], &pair.sides[1 - flow]);
        match &state.pipe {
            Some((from, into)) if self.how == How::SendThenSplice => {
                match self.engine.try_splice_in(&pair.sides[flow], into, 100_000) {
                    Some(Ok(count)) if count > 0 => {
                        state.piped = count;
                        self.engine.send_then_splice(&parts, from, sink, count, token);
                    }
                    Some(Err(_)) => {
                        self.engine.recycle(buffer);
                        return self.end(index, true);
                    }
                    _ => self.engine.send(sink, &parts, token),
                }
            }
            _ if self.how == How::Shared => {
                let (first, rest) = buffer.split_at(buffer.len().min(3));
                self.engine.send_shared(sink, &[first], &Part(rest.into()), token);
            }
            _ if self.how == How::File && buffer.len() > 3 => {
                let file: Arc<dyn FileRead> = Arc::new(MemoryFile(buffer.to_vec()));
                self.engine.send_file(sink, &[&buffer[..3]], &file, 3, buffer.len() - 3, token);
            }
            _ => self.engine.send(sink, &parts, token),
        }
        self.engine.recycle(buffer);
    }

    fn handle_spliced(&mut self, index: usize, flow: usize, filled: bool, count: usize) {
        let pair = self.pairs[index].as_mut().expect("no completion comes after a close");
        let state = &mut pair.flows[flow];
        if filled && count == 0 {
            return self.finish(index, flow);
        }
        state.piped = if filled { count } else { state.piped - count };
        if state.piped == 0 {
            return self.fill(index, flow);
        }
        let (from, _) = state.pipe.as_ref().expect("it was spliced through");
        let token = Self::token(TokenKind::Origin, index, flow);
        self.engine.splice(from, &pair.sides[1 - flow], state.piped, token);
    }

    fn finish(&mut self, index: usize, flow: usize) {
        let pair = self.pairs[index].as_mut().expect("no completion comes after a close");
        self.engine.shutdown(&pair.sides[1 - flow], ShutdownHow::Write);
        pair.flows[flow].ended = true;
        if pair.flows.iter().all(|flow| flow.ended) {
            self.end(index, false);
        }
    }

    fn end(&mut self, index: usize, abort: bool) {
        let Some(pair) = self.pairs[index].take() else {
            return;
        };
        for side in pair.sides {
            if abort { self.engine.reset(side) } else { self.engine.close(side) }
        }
        for (from, into) in pair.flows.into_iter().filter_map(|flow| flow.pipe) {
            self.engine.close(from);
            self.engine.close(into);
        }
    }

    fn token(kind: TokenKind, index: usize, flow: usize) -> Token {
        Token::new(kind, (index * 2 + flow) as u32, 0)
    }
}

/// Bytes that the simulated kernel sends by reference. It never requests their file.
#[derive(Clone, Debug)]
struct Part(Rc<[u8]>);

impl SharedBytes for Part {
    fn bytes(&self) -> &[u8] {
        &self.0
    }

    fn file(&self) -> Option<(BorrowedFd<'_>, u64)> {
        unreachable!("there is no file")
    }

    fn clone_box(&self) -> Box<dyn SharedBytes> {
        Box::new(self.clone())
    }
}

/// A file of the simulated kernel. One call reads at most 700 bytes.
#[derive(Debug)]
struct MemoryFile(Vec<u8>);

impl FileRead for MemoryFile {
    fn read_at(&self, at: u64, bytes: &mut [u8], waits: bool) -> Result<usize, Errno> {
        assert!(waits, "a send waits for the file");
        let rest = &self.0[at as usize..];
        let count = rest.len().min(bytes.len()).min(700);
        bytes[..count].copy_from_slice(&rest[..count]);
        Ok(count)
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}
