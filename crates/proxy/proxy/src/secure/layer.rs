//! The TLS part of a wire: opens received records and seals bytes to be sent.

use std::cell::RefCell;
use std::rc::Rc;

use millrace_engine::{Buffer, Charge, Engine, Instant};
use millrace_tls::{ClientHello, Session, TlsError};

use crate::secure::client_certificate::VerifiedClient;

/// The TLS part of a wire.
#[derive(Debug)]
pub(crate) struct SecureLayer {
    session: Session,
    buffers: Rc<RefCell<SecureBuffers>>,
    /// The charge for the part of a record that the session holds, and since when it holds one;
    /// `None` while it holds none.
    held: Option<(Charge, Instant)>,
    /// A seal has failed: the session has ended, or its keys are used up.
    has_failed: bool,
    /// The maximum of the latest receive, which is repeated if it yields no plaintext.
    pub(crate) receive_max: usize,
    /// The ClientHello. `None` on a connection to an origin.
    pub(crate) hello: Option<Box<ClientHello>>,
    /// The certificate that the client presented in the handshake.
    client: Option<Rc<VerifiedClient>>,
}

/// Buffers that the secured wires of a worker share. They are used within one call.
#[derive(Debug, Default)]
pub(crate) struct SecureBuffers {
    /// Plaintext is written here, and this buffer is exchanged for the one that the engine lent.
    /// Rustls has no interface that leaves the plaintext where the record was.
    plaintext: Buffer,
    /// Bytes of several parts that are sealed in one record.
    gathered: Vec<u8>,
    /// Sealed records, until the engine takes them.
    sealed: Vec<u8>,
}

/// Most bytes that one step of a transfer seals. Sealed bytes cannot be sealed again differently,
/// so the bytes that the socket does not take wait in the engine.
pub(crate) const STEP_BYTES_MAX: u64 = 64 * 1024;
/// A record of the largest size: 2^14 bytes, at most 256 bytes of overhead, and the header (RFC
/// 8446 section 5.2).
const RECORD_BYTES_MAX: usize = 16 * 1024 + 256 + 5;

impl SecureLayer {
    pub(crate) fn new(
        session: Session,
        buffers: Rc<RefCell<SecureBuffers>>,
        hello: Option<ClientHello>,
    ) -> Self {
        let hello = hello.map(Box::new);
        Self {
            session,
            buffers,
            held: None,
            has_failed: false,
            receive_max: 0,
            hello,
            client: None,
        }
    }

    /// Appends the first bytes of the session for the peer: the ClientHello, if this side is the
    /// client.
    pub(crate) fn begin(&mut self, own: &mut Vec<u8>) {
        // A failure shows when the handshake is continued.
        let _ = self.session.flush(own);
    }

    /// Takes the client's certificate after the handshake, in which it was verified.
    pub(crate) fn identify_client<E: Engine>(&mut self, engine: &E) {
        if self.session.client_certificates().is_some() {
            let chain = self.session.client_chain(engine.time_of_day());
            self.client = VerifiedClient::new(&chain, engine).map(Rc::new);
        }
    }

    /// Returns the certificate of the client.
    pub(crate) fn client(&self) -> Option<&Rc<VerifiedClient>> {
        self.client.as_ref()
    }

    pub(crate) fn session(&self) -> &Session {
        &self.session
    }

    /// Returns how many bytes to receive if the caller wants at most `max`. The plaintext of a held
    /// record has to fit into the same buffer.
    #[cold]
    #[inline(never)]
    pub(crate) fn bound_receive(&mut self, max: usize) -> usize {
        self.receive_max = max;
        match self.held {
            None => max,
            Some(_) => max.min(Buffer::SIZE - RECORD_BYTES_MAX),
        }
    }

    /// Opens the received bytes in `buffer`, which then has the plaintext. Appends bytes for the
    /// peer to `own`.
    ///
    /// # Errors
    /// If the bytes are not acceptable. The session has ended then.
    pub(crate) fn open<E: Engine>(
        &mut self,
        engine: &E,
        buffer: &mut Buffer,
        own: &mut Vec<u8>,
    ) -> Result<(), TlsError> {
        let mut buffers = self.buffers.borrow_mut();
        let plaintext = &mut buffers.plaintext;
        let opened = self.session.open(buffer, plaintext.block_mut(), own);
        plaintext.set_filled(*opened.as_ref().unwrap_or(&0));
        std::mem::swap(buffer, plaintext);
        drop(buffers);
        self.charge_held(engine);
        opened.map(|_| ())
    }

    /// Like [`SecureLayer::open`], for `received` bytes that are not in a buffer of the engine.
    /// Passes the plaintext to `take`.
    pub(crate) fn open_held<E: Engine, R>(
        &mut self,
        engine: &E,
        received: &mut [u8],
        own: &mut Vec<u8>,
        take: impl FnOnce(&[u8]) -> R,
    ) -> Result<R, TlsError> {
        let mut buffers = self.buffers.borrow_mut();
        let plaintext = buffers.plaintext.block_mut();
        let opened = self.session.open(received, plaintext, own);
        let taken = opened.map(|count| take(&plaintext[..count]));
        drop(buffers);
        self.charge_held(engine);
        taken
    }

    /// Returns how many held bytes are not charged to the budget.
    pub(crate) fn uncharged(&self) -> usize {
        let charged = self.held.as_ref().map_or(0, |(charge, _)| charge.bytes());
        self.session.held_bytes().saturating_sub(charged)
    }

    /// Returns since when the session holds parts of records without a break.
    pub(crate) fn part_since(&self) -> Option<Instant> {
        self.held.as_ref().map(|(_, since)| *since)
    }

    /// Charges the budget for the bytes that the session holds.
    fn charge_held<E: Engine>(&mut self, engine: &E) {
        let held = self.session.held_bytes();
        let since = self.part_since();
        self.held = (held > 0)
            .then(|| (engine.budget().charge(held), since.unwrap_or_else(|| engine.now())));
    }

    /// Returns whether bytes could not be sealed. Nothing can be sent any more.
    pub(crate) fn has_failed(&self) -> bool {
        self.has_failed
    }

    /// Seals `parts` and passes the records to `send`: none after a failure.
    pub(crate) fn seal(&mut self, parts: &[&[u8]], send: impl FnOnce(&[u8])) {
        let mut buffers = self.buffers.borrow_mut();
        let SecureBuffers { gathered, sealed, .. } = &mut *buffers;
        sealed.clear();
        if self.session.seal(parts, gathered, sealed).is_err() {
            self.has_failed = true;
            sealed.clear();
        }
        send(sealed);
    }

    /// Appends the announcement of the end of the stream (close_notify) to `own`.
    pub(crate) fn close(&mut self, own: &mut Vec<u8>) {
        self.session.close(own);
    }
}
