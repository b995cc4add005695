//! The transport of one connection, to a client or to an origin: its socket, its received and
//! unread bytes, and its outstanding operations. Once a connection is open, nothing else accesses
//! its descriptor.
//!
//! A wire sends two kinds of bytes. Most belong to exchanges. The connection's own bytes, such as
//! the PROXY protocol header at the beginning of an origin connection, are sent before the next
//! bytes of an exchange. If a completion has been handled and no exchange has sent bytes, they are
//! sent alone. Their completion is passed to no exchange. Bytes that an exchange sends meanwhile
//! are queued behind them, so an exchange never waits for the connection's own bytes.
//!
//! A secured wire (TLS) opens what it receives and seals what it sends. During the handshake the
//! receive buffer has the bytes as they arrived; later it has plaintext, so that exchanges and
//! transfers do not see the difference. The wire of a FastCGI server translates what it receives.

mod records;
mod secured;

use std::net::SocketAddr;
use std::sync::Arc;

use millrace_engine::{
    Buffer, Charge, Engine, Error, Fd, FileRead, PathEstimate, SharedBytes, ShutdownHow, Token,
};
use millrace_splice::{FillResult, Pipe};

use crate::conn::record_layer::RecordLayer;
use crate::conn::recv_buffer::RecvBuffer;
use crate::secure::layer::SecureLayer;
use crate::transfer::sink::TransferSink;

/// The transport of a connection.
#[derive(Debug)]
pub(crate) struct Wire {
    fd: Fd,
    /// The token of the connection that owns the wire; its completions carry it.
    token: Token,
    /// Received bytes that are not read yet.
    pub(crate) recv_buffer: RecvBuffer,
    /// The connection's own bytes that are sent next.
    own: Option<Box<OwnBytes>>,
    /// TLS; `None` on a plain connection.
    secure: Option<Box<SecureLayer>>,
    /// FastCGI; `None` on a connection of HTTP.
    records: Option<Box<RecordLayer>>,
    /// A receive is outstanding, or a watch: a request to report that the socket is readable.
    is_receiving: bool,
    /// A send of the connection's own bytes is outstanding.
    is_sending_own: bool,
    exchange_send: ExchangeSend,
    /// The peer ended its stream: no more bytes will arrive.
    has_ended: bool,
    /// The stream of a secured wire ended without an announcement (close_notify), so an attacker
    /// may have cut it. A body that only that end delimits is not whole.
    is_cut: bool,
    /// A send, a receive or a splice failed. The kernel reports an error once, and after it an
    /// orderly end of the stream. That end does not mean that the stream is whole.
    is_broken: bool,
}

/// The send of an exchange.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum ExchangeSend {
    /// It sends nothing.
    None,
    /// Its bytes wait until the connection's own bytes are sent.
    Queued,
    /// Its send is outstanding.
    Outstanding,
}

/// The result of a receive.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ReceiveResult {
    /// Bytes, which are now in the receive buffer.
    Bytes,
    /// The peer ended its stream.
    End,
    /// The connection broke.
    Broken,
}

impl Wire {
    /// Creates the wire of a connection that was just opened. Its completions carry `token`.
    pub(crate) fn new(fd: Fd, token: Token) -> Self {
        Self {
            fd,
            token,
            recv_buffer: RecvBuffer::Empty,
            own: None,
            secure: None,
            records: None,
            is_receiving: false,
            is_sending_own: false,
            exchange_send: ExchangeSend::None,
            has_ended: false,
            is_cut: false,
            is_broken: false,
        }
    }

    /// Returns whether a receive or a watch is outstanding.
    pub(crate) fn is_receiving(&self) -> bool {
        self.is_receiving
    }

    /// Returns whether a send of an exchange is outstanding or queued.
    pub(crate) fn is_sending(&self) -> bool {
        self.exchange_send != ExchangeSend::None
    }

    /// Returns whether everything was sent.
    pub(crate) fn has_sent_all(&self) -> bool {
        !self.is_sending() && !self.is_sending_own && self.own.is_none()
    }

    /// Returns whether the peer ended its stream.
    pub(crate) fn has_ended(&self) -> bool {
        self.has_ended
    }

    /// Returns whether a send, a receive or a splice failed.
    pub(crate) fn is_broken(&self) -> bool {
        self.is_broken
    }

    /// Returns whether neither direction has ended or failed.
    pub(crate) fn is_open(&self) -> bool {
        !self.has_ended && !self.is_broken
    }

    /// Returns whether the stream ended without the announcement that TLS requires.
    pub(crate) fn is_cut(&self) -> bool {
        self.is_cut
    }

    /// Returns whether the connection can serve further exchanges: it neither broke nor ended, and
    /// no byte is unread.
    pub(crate) fn is_clean(&self) -> bool {
        self.recv_buffer.is_empty() && !self.is_broken && !self.has_ended && self.has_idle_records()
    }

    /// Returns whether received bytes are unread, or the peer will certainly send more: a secured
    /// one still has to announce its end.
    pub(crate) fn may_receive_more(&self) -> bool {
        !self.recv_buffer.is_empty() || (self.secure.is_some() && !self.has_ended)
    }

    /// Returns whether bytes may be moved from the socket without a receive: it is a plain one,
    /// none is outstanding, and the stream continues.
    pub(crate) fn may_splice(&self) -> bool {
        self.secure.is_none()
            && !self.is_receiving
            && !self.has_ended
            && !self.is_broken
            && self.may_bypass_records()
    }

    /// Requests at most `max` bytes, unless a receive is outstanding or the stream has ended.
    pub(crate) fn receive<E: Engine>(&mut self, engine: &mut E, max: usize) {
        if !self.is_receiving && !self.has_ended {
            self.is_receiving = true;
            let max = self.bound_receive(max);
            engine.recv(&self.fd, max, self.token);
        }
    }

    /// Returns how many bytes to receive if `max` are wanted.
    #[inline(always)]
    fn bound_receive(&mut self, max: usize) -> usize {
        match &mut self.secure {
            None => max,
            Some(secure) => secure.bound_receive(max),
        }
    }

    /// Requests bytes of a body, unless a receive is outstanding or the stream has ended.
    /// `expected` is the number of bytes that will certainly arrive, or 0 if it is unknown. With
    /// `watches`, requests only the report that the socket is readable.
    pub(crate) fn receive_body<E: Engine>(
        &mut self,
        engine: &mut E,
        max: usize,
        expected: u64,
        watches: bool,
    ) {
        if self.is_receiving || self.has_ended {
            return;
        }
        self.is_receiving = true;
        engine.expect_bytes(&self.fd, expected);
        if watches {
            engine.poll_readable(&self.fd, self.token);
        } else {
            let max = self.bound_receive(max);
            engine.recv(&self.fd, max, self.token);
        }
    }

    /// Notes that the watch has ended.
    pub(crate) fn complete_watch(&mut self) {
        self.is_receiving = false;
    }

    /// Handles the result of the receive. The bytes are in the receive buffer, lent until
    /// [`Wire::settle`]. Returns `None` if records without plaintext arrived, and another receive
    /// is outstanding.
    #[inline(always)]
    pub(crate) fn complete_receive<E: Engine>(
        &mut self,
        engine: &mut E,
        result: Result<Buffer, Error>,
    ) -> Option<ReceiveResult> {
        self.is_receiving = false;
        Some(match result {
            Ok(buffer) if buffer.is_empty() => {
                engine.recycle(buffer);
                if self.is_broken {
                    return Some(ReceiveResult::Broken);
                }
                self.has_ended = true;
                self.is_cut =
                    self.secure.as_ref().is_some_and(|secure| !secure.session().has_peer_closed());
                ReceiveResult::End
            }
            Ok(buffer) if self.secure.is_some() => return self.open(engine, buffer),
            Ok(buffer) if self.records.is_some() => return self.receive_records(engine, buffer),
            Ok(buffer) => {
                self.recv_buffer.accept(buffer, engine);
                ReceiveResult::Bytes
            }
            Err(_) => {
                self.is_broken = true;
                ReceiveResult::Broken
            }
        })
    }

    /// Handles the result of a send. Returns the result for the exchange; `None` if the bytes were
    /// the connection's own.
    #[inline]
    pub(crate) fn complete_send<T>(
        &mut self,
        result: Result<T, Error>,
    ) -> Option<Result<T, Error>> {
        self.is_broken |= result.is_err();
        if self.exchange_send != ExchangeSend::Outstanding {
            self.is_sending_own = false;
            return None;
        }
        self.exchange_send = ExchangeSend::None;
        match &self.secure {
            Some(secure) if secure.has_failed() => {
                self.is_broken = true;
                Some(Err(Error::BrokenPipe))
            }
            _ => Some(result),
        }
    }

    /// Returns the connection's own bytes, to which the caller may append.
    pub(crate) fn own_bytes(&mut self) -> &mut Vec<u8> {
        &mut self.own.get_or_insert_default().bytes
    }

    /// Moves the bytes that are available in the socket into an empty pipe.
    pub(crate) fn fill_pipe<E: Engine>(
        &mut self,
        engine: &mut E,
        pipe: &mut Pipe,
        max: usize,
    ) -> FillResult {
        let before = pipe.filled();
        let fill = pipe.fill(engine, &self.fd, max);
        self.skip_records(pipe.filled() - before);
        self.is_broken |= matches!(fill, FillResult::Failed(_));
        fill
    }

    /// Receives the bytes that are available in the socket into `memory`. Returns their number, 0
    /// at the end of the stream, or `None` if no byte is available.
    pub(crate) fn try_receive_into<E: Engine>(
        &mut self,
        engine: &mut E,
        memory: &mut [u8],
    ) -> Option<Result<usize, Error>> {
        let taken = engine.try_recv_into(&self.fd, memory);
        self.is_broken |= matches!(taken, Some(Err(_)));
        self.has_ended |= matches!(taken, Some(Ok(0)));
        if let Some(Ok(count)) = taken {
            self.skip_records(count);
        }
        taken
    }

    /// Ends the handling of a completion: returns the buffer that the engine lent, and sends the
    /// connection's own bytes.
    #[inline]
    pub(crate) fn settle<E: Engine>(&mut self, engine: &mut E) {
        if self.own.is_some() || self.recv_buffer.is_lent() {
            self.settle_now(engine);
        }
    }

    #[inline(never)]
    fn settle_now<E: Engine>(&mut self, engine: &mut E) {
        self.recv_buffer.settle(engine);
        if self.own.is_some() {
            self.settle_own(engine);
        }
    }

    /// Returns whether a send is outstanding.
    fn has_outstanding_send(&self) -> bool {
        self.is_sending_own || self.exchange_send == ExchangeSend::Outstanding
    }

    /// Sends a whole request, for whose completion no exchange waits, behind all earlier bytes.
    pub(crate) fn send_behind<E: Engine>(&mut self, engine: &mut E, request: &[u8]) {
        let own = &mut self.own.get_or_insert_default().bytes;
        match &mut self.secure {
            None => own.extend_from_slice(request),
            Some(secure) => secure.seal(&[request], |sealed| own.extend_from_slice(sealed)),
        }
        self.settle_own(engine);
    }

    /// Sends the connection's own bytes, unless a send is outstanding, and ends the stream after
    /// them if that was requested.
    #[cold]
    #[inline(never)]
    fn settle_own<E: Engine>(&mut self, engine: &mut E) {
        // After a failed send, the peer would take further bytes for those that it did not get.
        if self.has_outstanding_send() || self.is_broken {
            return;
        }
        let Some(mut own) = self.own.take() else { return };
        if !own.bytes.is_empty() || own.queued.is_some() {
            engine.send(&self.fd, &[&own.bytes], self.token);
            match own.queued.take() {
                Some(_) => self.exchange_send = ExchangeSend::Outstanding,
                None => self.is_sending_own = true,
            }
            own.bytes.clear();
            self.own = own.ends_stream.then_some(own);
        } else if own.ends_stream {
            engine.shutdown(&self.fd, ShutdownHow::Write);
        }
    }

    /// Sends bytes of an exchange with `send`, after the connection's own bytes.
    #[inline(always)]
    fn send_after_own(&mut self, parts: &[&[u8]], send: impl FnOnce(&Fd, &[&[u8]], Token)) {
        match self.own {
            None => send(&self.fd, parts, self.token),
            Some(_) => self.send_own_before(parts, send),
        }
        self.exchange_send = ExchangeSend::Outstanding;
    }

    #[cold]
    #[inline(never)]
    fn send_own_before(&mut self, parts: &[&[u8]], send: impl FnOnce(&Fd, &[&[u8]], Token)) {
        let own = self.own.take().unwrap_or_default();
        assert!(!own.ends_stream, "nothing is sent after the end of the stream");
        let parts: Vec<&[u8]> = [&own.bytes[..]].into_iter().chain(parts.iter().copied()).collect();
        send(&self.fd, &parts, self.token);
    }

    /// Ends the stream to the peer (FIN), after the connection's own bytes. A secured wire
    /// announces the end first (close_notify).
    pub(crate) fn shutdown<E: Engine>(&mut self, engine: &mut E) {
        if self.secure.is_none() && self.own.is_none() && !self.has_outstanding_send() {
            engine.shutdown(&self.fd, ShutdownHow::Write);
            return;
        }
        self.announce_end();
        self.own.get_or_insert_default().ends_stream = true;
        self.settle_own(engine);
    }

    /// Closes the connection.
    #[inline(always)]
    pub(crate) fn close<E: Engine>(mut self, engine: &mut E) {
        self.recv_buffer.clear(engine);
        if self.secure.is_some() || self.own.is_some() {
            self.send_last(engine);
        }
        engine.close(self.fd);
    }

    /// Sends the connection's own bytes as the last ones, as far as the kernel takes them at once.
    #[cold]
    #[inline(never)]
    fn send_last<E: Engine>(&mut self, engine: &mut E) {
        if self.has_outstanding_send() || self.is_broken {
            return;
        }
        self.announce_end();
        self.settle_own(engine);
    }

    /// Resets the connection.
    pub(crate) fn reset<E: Engine>(mut self, engine: &mut E) {
        self.recv_buffer.clear(engine);
        engine.reset(self.fd);
    }

    /// Returns how many bytes the wire holds that are not charged to the budget: bytes of the
    /// session, which have a bound of their own.
    pub(crate) fn uncharged(&self) -> usize {
        let own = self.own.as_ref().map_or(0, |own| {
            let queued = own.queued.as_ref().map_or(0, Charge::bytes);
            own.bytes.len() - queued
        });
        own + self.secure.as_ref().map_or(0, |secure| secure.uncharged())
    }

    /// Returns the number of sent bytes that the peer's kernel has not acknowledged. A reset would
    /// lose them.
    pub(crate) fn undelivered<E: Engine>(&self, engine: &E) -> u32 {
        let bytes = self.unsent(engine) + engine.unacknowledged_bytes(&self.fd);
        u32::try_from(bytes).unwrap_or(u32::MAX)
    }

    /// Returns whether the engine already knows that the outstanding receive will complete.
    pub(crate) fn is_recv_ready<E: Engine>(&self, engine: &E) -> bool {
        engine.is_recv_ready(&self.fd)
    }

    /// Returns the local address of an accepted connection.
    pub(crate) fn local_address<E: Engine>(&self, engine: &E) -> Option<SocketAddr> {
        engine.local_address(&self.fd)
    }

    /// Returns the kernel's estimate of the path to the peer, if that costs no system call.
    pub(crate) fn path_estimate<E: Engine>(&self, engine: &E) -> Option<PathEstimate> {
        engine.path_estimate(&self.fd)
    }

    /// Returns the bytes of the outstanding send that the kernel has not taken. 0 if no send is
    /// outstanding.
    pub(crate) fn unsent<E: Engine>(&self, engine: &E) -> usize {
        engine.unsent_bytes(&self.fd) + self.queued_bytes()
    }

    /// Returns the number of the bytes that wait until the connection's own bytes are sent.
    #[inline]
    fn queued_bytes(&self) -> usize {
        match self.exchange_send {
            ExchangeSend::Queued => self.own.as_ref().map_or(0, |own| own.bytes.len()),
            ExchangeSend::None | ExchangeSend::Outstanding => 0,
        }
    }
}

/// The most parts of a send with shared bytes, as for [`Engine::send_shared`].
const SHARED_PARTS_MAX: usize = 16;

/// The connection's own bytes. Boxed, since most connections have none.
#[derive(Debug, Default)]
struct OwnBytes {
    bytes: Vec<u8>,
    /// The charge for sealed bytes of an exchange, if those are the last ones of `bytes`.
    queued: Option<Charge>,
    /// Whether the stream to the peer ends after them.
    ends_stream: bool,
}

impl<E: Engine> TransferSink<E> for Wire {
    #[inline]
    fn send(&mut self, engine: &mut E, parts: &[&[u8]]) {
        if self.secure.is_some() {
            return self.seal(engine, parts);
        }
        self.send_after_own(parts, |fd, parts, token| engine.send(fd, parts, token));
    }

    #[inline]
    fn send_shared(&mut self, engine: &mut E, parts: &[&[u8]], shared: &dyn SharedBytes) {
        if self.secure.is_some() {
            let mut all: [&[u8]; SHARED_PARTS_MAX] = [&[]; SHARED_PARTS_MAX];
            all[..parts.len()].copy_from_slice(parts);
            all[parts.len()] = shared.bytes();
            return self.seal(engine, &all[..=parts.len()]);
        }
        self.send_after_own(parts, |fd, parts, token| engine.send_shared(fd, parts, shared, token));
    }

    fn send_file(
        &mut self,
        engine: &mut E,
        parts: &[&[u8]],
        file: &Arc<dyn FileRead>,
        at: u64,
        count: usize,
    ) {
        assert!(self.secure.is_none(), "the bytes of a file are sealed from memory");
        self.send_after_own(parts, |fd, parts, token| {
            engine.send_file(fd, parts, file, at, count, token);
        });
    }

    #[inline]
    fn send_pipe(&mut self, engine: &mut E, parts: &[&[u8]], pipe: &Pipe) {
        assert!(self.secure.is_none(), "only plain bytes are spliced");
        self.send_after_own(parts, |fd, parts, token| pipe.drain_after(engine, parts, fd, token));
    }

    fn continue_pipe(&mut self, engine: &mut E, pipe: &mut Pipe, count: usize) {
        pipe.continue_drain(engine, count, &self.fd, self.token);
        if pipe.filled() > 0 {
            self.exchange_send = ExchangeSend::Outstanding;
        }
    }

    fn unsent(&self, engine: &E) -> usize {
        Wire::unsent(self, engine)
    }

    #[inline]
    fn accepts_pipes(&self) -> bool {
        self.secure.is_none()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use millrace_engine::{Address, CompletionEvent, TokenKind};
    use millrace_sim::{Faults, ReadResult, RunOutcome, SimEngine, SimWorker, World, run};

    use super::*;

    /// A worker with one wire. It sends own bytes as soon as it is connected, and again before the
    /// bytes of an exchange.
    struct Worker {
        engine: SimEngine,
        wire: Option<Wire>,
        fd: Option<Fd>,
        /// The results of `complete_send`, in order.
        sent: Vec<bool>,
    }

    impl SimWorker for Worker {
        fn run_turn(&mut self) -> bool {
            self.engine.submit_and_wait(None);
            while let Some(completion) = self.engine.next_completion() {
                match completion.event {
                    CompletionEvent::Connected(result) => {
                        assert_eq!(result, Ok(()));
                        let fd = self.fd.take().expect("connects once");
                        let wire = self.wire.insert(Wire::new(fd, completion.token));
                        wire.own_bytes().extend_from_slice(b"own ");
                        wire.settle(&mut self.engine);
                    }
                    CompletionEvent::Sent(result) => {
                        let wire = self.wire.as_mut().expect("the wire exists once it has sent");
                        self.sent.push(wire.complete_send(result).is_some());
                        if self.sent.len() == 1 {
                            assert!(!wire.is_sending());
                            wire.own_bytes().extend_from_slice(b"first ");
                            wire.send(&mut self.engine, &[b"exchange's", b" bytes"]);
                            wire.settle(&mut self.engine);
                        }
                    }
                    event => assert!(matches!(event, CompletionEvent::Woken), "{event:?}"),
                }
            }
            true
        }
    }

    #[test]
    fn own_bytes_precede_those_of_exchanges_and_complete_for_none() {
        let world = World::new(1, Faults::None);
        let address: Address = Address::Tcp("127.0.0.1:80".parse().unwrap());
        let listener = world.actor_listen(&address);
        let mut engine = world.engine(1 << 20);
        let fd = engine.connect(&address, Token::new(TokenKind::Origin, 0, 1)).unwrap();
        let mut worker = Worker { engine, wire: None, fd: Some(fd), sent: Vec::new() };
        let (mut peer, mut read) = (None, Vec::new());
        let mut is_done = |world: &World| {
            peer = peer.or_else(|| world.accept(listener).map(|(socket, _)| socket));
            if let Some(peer) = peer
                && let ReadResult::Bytes(bytes) = world.read(peer, 100)
            {
                read.extend_from_slice(&bytes);
            }
            read.len() == b"own first exchange's bytes".len()
        };
        let limit = Duration::from_secs(10);
        let ended = run(&world, &mut [&mut worker], &mut [], limit, &mut is_done);
        assert_eq!(ended, RunOutcome::Done);
        assert_eq!(read, b"own first exchange's bytes");
        assert_eq!(worker.sent, [false, true]);
    }
}
