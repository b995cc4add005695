//! The part of a wire that only a secured connection (TLS) uses: its handshake, the records that it
//! opens and seals, and the announced end of its stream.

use std::cell::RefCell;
use std::rc::Rc;

use millrace_engine::{Buffer, Engine, HeldBytes, Instant, ShutdownHow};
use millrace_tls::{ClientHello, Session, TlsError};

use super::{ExchangeSend, ReceiveResult, Wire};
use crate::conn::recv_buffer::RecvBuffer;
use crate::secure::layer::{SecureBuffers, SecureLayer};

/// The most bytes of a session, such as replies to KeyUpdates, that wait for a peer.
const OWN_BYTES_MAX: usize = 8 * 1024;

impl Wire {
    /// Secures the wire. The unread bytes in the receive buffer are the first ones of the session.
    /// The first bytes of the session for the peer become the connection's own bytes.
    pub(crate) fn secure(
        &mut self,
        session: Session,
        buffers: Rc<RefCell<SecureBuffers>>,
        hello: Option<ClientHello>,
    ) {
        let mut layer = Box::new(SecureLayer::new(session, buffers, hello));
        let mut output = Vec::new();
        layer.begin(&mut output);
        if !output.is_empty() {
            self.own_bytes().append(&mut output);
        }
        self.secure = Some(layer);
    }

    /// Ends the session without an announcement, after its handshake failed. Bytes are received
    /// and sent as they are from now on.
    pub(crate) fn abandon_session(&mut self) {
        self.secure = None;
    }

    /// Returns the TLS part; `None` on a plain connection.
    pub(crate) fn tls(&self) -> Option<&SecureLayer> {
        self.secure.as_deref()
    }

    /// Returns since when a TLS record has arrived only in part; `None` if none has.
    pub(crate) fn part_since(&self) -> Option<Instant> {
        self.tls().and_then(SecureLayer::part_since)
    }

    /// Returns why the session has failed; `None` on a plain connection.
    #[inline]
    pub(crate) fn session_failure(&self) -> Option<&TlsError> {
        self.tls().and_then(|tls| tls.session().failure())
    }

    /// Takes the client's certificate after the handshake.
    pub(crate) fn identify_client<E: Engine>(&mut self, engine: &E) {
        if let Some(secure) = &mut self.secure {
            secure.identify_client(engine);
        }
    }

    /// Continues the handshake with the bytes in the receive buffer. Returns true once it is
    /// complete; the receive buffer then has plaintext.
    ///
    /// # Errors
    /// If the handshake failed. An alert for the peer is among the connection's own bytes.
    pub(crate) fn advance_handshake<E: Engine>(
        &mut self,
        engine: &mut E,
    ) -> Result<bool, TlsError> {
        let Some(secure) = &mut self.secure else { return Ok(true) };
        let mut output = Vec::new();
        let opened = match std::mem::take(&mut self.recv_buffer) {
            RecvBuffer::Empty => secure.open_held(engine, &mut [], &mut output, |_| ()),
            RecvBuffer::Lent { mut buffer, read: 0 } => {
                let opened = secure.open(engine, &mut buffer, &mut output);
                match buffer.is_empty() {
                    true => engine.recycle(buffer),
                    false => self.recv_buffer.accept(buffer, engine),
                }
                opened
            }
            mut received => {
                let bytes = received.bytes_mut();
                let opened = secure.open_held(engine, bytes, &mut output, |plaintext| {
                    let has_any = !plaintext.is_empty();
                    has_any.then(|| HeldBytes::copy(engine.budget(), &[plaintext]))
                });
                received.clear(engine);
                opened.map(|held| {
                    self.recv_buffer = held.map_or(RecvBuffer::Empty, RecvBuffer::Held);
                })
            }
        };
        let is_complete = !secure.session().is_handshaking();
        self.take_session_output(engine, output);
        if opened.is_ok() && self.session_failure().is_some() {
            self.break_session(engine);
        }
        opened.map(|()| is_complete)
    }

    /// Takes the bytes that the session has for the peer, and stops receiving if the peer has
    /// announced its end.
    fn take_session_output<E: Engine>(&mut self, engine: &mut E, mut output: Vec<u8>) {
        if !output.is_empty() {
            self.own_bytes().append(&mut output);
        }
        if self.tls().is_some_and(|tls| tls.session().has_peer_closed()) {
            // The peer may keep its socket open. The next receive finds the end of the stream.
            engine.shutdown(&self.fd, ShutdownHow::Read);
        }
    }

    /// Opens received records. During the handshake they stay as they are, because a stage decides
    /// when to continue it.
    #[inline(never)]
    pub(super) fn open<E: Engine>(
        &mut self,
        engine: &mut E,
        mut buffer: Buffer,
    ) -> Option<ReceiveResult> {
        let secure = self.secure.as_mut().expect("the caller has checked that the wire is secured");
        if secure.session().is_handshaking() {
            self.recv_buffer.accept(buffer, engine);
            return Some(ReceiveResult::Bytes);
        }
        let mut output = Vec::new();
        let opened = secure.open(engine, &mut buffer, &mut output);
        let max = secure.receive_max;
        self.take_session_output(engine, output);
        // A peer that takes no bytes, but causes more, is not worth the memory.
        let is_excessive = self
            .own
            .as_ref()
            .is_some_and(|own| own.queued.is_none() && own.bytes.len() > OWN_BYTES_MAX);
        if opened.is_err() || is_excessive {
            engine.recycle(buffer);
            self.break_session(engine);
            return Some(ReceiveResult::Broken);
        }
        if self.session_failure().is_some() {
            self.break_session(engine);
        }
        if buffer.is_empty() {
            engine.recycle(buffer);
            self.receive(engine, max);
            return None;
        }
        self.recv_buffer.accept(buffer, engine);
        Some(ReceiveResult::Bytes)
    }

    /// Breaks the wire, because its session has failed. Unread bytes can still be read; after them
    /// a receive finds that the wire is broken.
    fn break_session<E: Engine>(&mut self, engine: &mut E) {
        // Nothing is sent once the wire is broken, so the alert has to go first.
        self.settle_own(engine);
        self.is_broken = true;
        // The peer may keep its socket open.
        engine.shutdown(&self.fd, ShutdownHow::Read);
    }

    /// Seals `parts` and sends the records, after the connection's own bytes.
    #[inline(never)]
    pub(super) fn seal<E: Engine>(&mut self, engine: &mut E, parts: &[&[u8]]) {
        let mut secure = self.secure.take().expect("the caller has checked that it is secured");
        secure.seal(parts, |sealed| self.send_sealed(engine, sealed));
        self.secure = Some(secure);
    }

    /// Sends records of an exchange, or queues them behind the connection's own bytes.
    fn send_sealed<E: Engine>(&mut self, engine: &mut E, sealed: &[u8]) {
        if !self.is_sending_own {
            self.send_after_own(&[sealed], |fd, parts, token| engine.send(fd, parts, token));
            return;
        }
        let own = self.own.get_or_insert_default();
        assert!(own.queued.is_none() && !own.ends_stream, "an exchange sends once at a time");
        own.bytes.extend_from_slice(sealed);
        own.queued = Some(engine.budget().charge(sealed.len()));
        self.exchange_send = ExchangeSend::Queued;
    }

    /// Appends the announcement of the end of the stream, if the wire is secured.
    pub(super) fn announce_end(&mut self) {
        let Some(secure) = &mut self.secure else { return };
        secure.close(&mut self.own.get_or_insert_default().bytes);
    }

    /// Ends the stream to the peer of a secured connection. Returns whether the kernel has taken
    /// everything, so that the connection can be closed.
    pub(crate) fn finish<E: Engine>(&mut self, engine: &mut E) -> bool {
        if self.is_broken {
            return true;
        }
        self.shutdown(engine);
        let waits = self.own.as_ref().is_some_and(|own| !own.bytes.is_empty());
        !waits && engine.unsent_bytes(&self.fd) == 0
    }
}
