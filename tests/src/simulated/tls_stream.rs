//! TLS of one connection of an actor.

use std::io::{ErrorKind, Read, Write};

use millrace_engine::Error;
use millrace_sim::{ActorSocket, ReadResult, SeededRandom, World};
use millrace_tls::Clock;
use rustls::{Connection, HandshakeKind, ProtocolVersion};

use super::tickets::ForeignTicket;

/// How an actor uses TLS.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct TlsPlan {
    /// TLS 1.2 instead of 1.3.
    pub old: bool,
    /// Whether keys are updated at random before records.
    pub updates_keys: bool,
    /// The ticket that a client sends; `None`: one of the proxy, if it has any.
    pub ticket: Option<ForeignTicket>,
    /// The fault; `None`: the actor behaves well.
    pub fault: Option<TlsFault>,
}

/// A fault of an actor's TLS.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TlsFault {
    /// One bit of the record with this byte of the plaintext is flipped on its way.
    FlippedBit(u64),
    /// One bit of this byte of the handshake is flipped on its way, but not of the first byte.
    FlippedHandshake(u64),
    /// The end of the stream is not announced (close_notify).
    UnannouncedEnd,
    /// Keys are updated each time bytes are received. The peer may refuse so many, and its close
    /// may overtake its last bytes.
    KeyUpdates,
    /// A client requests a name (SNI) that no certificate has. The certificate of an origin is for
    /// another name.
    UnknownName,
    /// A client requests no name.
    NoName,
}

/// How far the stream that this side sends has ended.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Finish {
    /// More bytes may follow.
    Open,
    /// It ends once all bytes are sent.
    Requested,
    /// The announcement is among the sealed bytes, if there is one. FIN follows them.
    Announced,
    /// FIN was sent.
    Done,
}

/// TLS of one connection of an actor.
pub(super) struct TlsStream {
    connection: Connection,
    clock: Clock,
    plan: TlsPlan,
    random: SeededRandom,
    /// Plaintext that the actor has not read.
    received: Vec<u8>,
    /// Records that the kernel has not taken.
    sealed: Vec<u8>,
    /// Bytes of plaintext in `sealed`. They count as written when the kernel has taken them all.
    in_flight: usize,
    /// Bytes of plaintext that were sealed.
    written: u64,
    /// Bytes of the handshake that were sent.
    handshake_bytes: u64,
    finish: Finish,
    /// The end of the stream from the peer, below TLS.
    end: Option<Result<(), Error>>,
    /// The session accepts nothing more.
    has_failed: bool,
    flip: Option<Flip>,
    violation: Option<String>,
}

/// A bit that was flipped.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Flip {
    /// In a record. The peer has to send an alert.
    Record,
    /// In the handshake, or in the length of a record, for whose rest the peer may wait.
    Other,
}

/// The bytes before the content of a record: type, version, and length.
const HEADER_BYTES: usize = 5;

impl TlsStream {
    pub(super) fn new(connection: Connection, clock: Clock, plan: TlsPlan, seed: u64) -> Self {
        Self {
            connection,
            clock,
            plan,
            random: SeededRandom::new(seed),
            received: Vec::new(),
            sealed: Vec::new(),
            in_flight: 0,
            written: 0,
            handshake_bytes: 0,
            finish: Finish::Open,
            end: None,
            has_failed: false,
            flip: None,
            violation: None,
        }
    }

    /// See [`Transport::advance`](super::transport::Transport::advance).
    pub(super) fn advance(&mut self, world: &World, socket: ActorSocket) -> Result<(), String> {
        while self.is_handshaking() && self.receive(world, socket, 64 * 1024) {}
        self.flush(world, socket);
        if self.plan.ticket.is_some() && self.is_resumed() {
            let ticket = self.plan.ticket;
            self.violate(format!("a session was resumed by a foreign ticket: {ticket:?}"));
        }
        match &self.violation {
            None => Ok(()),
            Some(violation) => Err(violation.clone()),
        }
    }

    pub(super) fn read(&mut self, world: &World, socket: ActorSocket, max: usize) -> ReadResult {
        self.flush(world, socket);
        loop {
            if !self.received.is_empty() {
                let count = self.received.len().min(max);
                return ReadResult::Bytes(self.received.drain(..count).collect());
            }
            let state = (!self.has_failed).then(|| self.connection.process_new_packets());
            if state.is_some_and(|state| state.is_ok_and(|state| state.peer_has_closed())) {
                return ReadResult::End;
            }
            match self.end {
                Some(Ok(())) => {
                    if self.flip == Some(Flip::Record) && !self.has_failed {
                        self.violate("a damaged record was not answered by an alert".to_owned());
                    }
                    return ReadResult::Failed(Error::Reset);
                }
                Some(Err(error)) => return ReadResult::Failed(error),
                None => {}
            }
            if !self.receive(world, socket, max) {
                return ReadResult::Nothing;
            }
        }
    }

    pub(super) fn write(
        &mut self,
        world: &World,
        socket: ActorSocket,
        bytes: &[u8],
    ) -> Result<usize, Error> {
        self.flush(world, socket);
        if bytes.is_empty() || self.has_failed {
            world.write(socket, &[])?;
        }
        if self.has_failed {
            return Err(Error::BrokenPipe);
        }
        if self.is_handshaking() {
            return if self.end.is_some() { Err(Error::BrokenPipe) } else { Ok(0) };
        }
        if self.sealed.is_empty() && self.in_flight == 0 {
            self.seal(bytes);
            self.flush(world, socket);
        }
        if self.has_failed {
            return Err(Error::BrokenPipe);
        }
        if !self.sealed.is_empty() {
            // Finds the error of a broken connection, and otherwise waits for room.
            return world.write(socket, &[]);
        }
        Ok(std::mem::take(&mut self.in_flight).min(bytes.len()))
    }

    /// Returns the number of sealed bytes that the kernel has not taken.
    pub(super) fn unsent(&self) -> usize {
        self.sealed.len()
    }

    /// Returns whether bytes were sealed that [`TlsStream::write`] has not reported: the peer may
    /// have them.
    pub(super) fn has_in_flight(&self) -> bool {
        self.in_flight > 0
    }

    /// Ends the stream that this side sends, after all sealed bytes.
    pub(super) fn finish(&mut self, world: &World, socket: ActorSocket) {
        if self.finish == Finish::Open {
            self.finish = Finish::Requested;
        }
        self.flush(world, socket);
    }

    /// Announces the end of the stream. Returns whether the kernel has taken everything that it
    /// will take, so that nothing is lost if the socket is closed.
    pub(super) fn prepare_close(&mut self, world: &World, socket: ActorSocket) -> bool {
        if self.is_handshaking() || self.has_failed {
            return true;
        }
        if self.finish == Finish::Open {
            self.write_close_notify();
            self.finish = Finish::Announced;
        }
        self.flush(world, socket);
        self.sealed.is_empty()
    }

    /// Returns whether the session continues an earlier one.
    pub(super) fn is_resumed(&self) -> bool {
        self.connection.handshake_kind() == Some(HandshakeKind::Resumed)
    }

    fn violate(&mut self, violation: String) {
        self.violation.get_or_insert(violation);
    }

    fn is_handshaking(&self) -> bool {
        self.connection.is_handshaking() && !self.has_failed
    }

    fn write_close_notify(&mut self) {
        if self.plan.fault != Some(TlsFault::UnannouncedEnd) {
            self.connection.send_close_notify();
        }
    }

    /// Seals a part of `bytes`.
    fn seal(&mut self, bytes: &[u8]) {
        if self.plan.updates_keys && self.random.chance(200) {
            self.update_keys();
        }
        let size = self.random.choose(&[1, 300, 16_384, 16_384, 40_000, 40_000]);
        let count = bytes.len().min(size);
        let taken = self.connection.writer().write(&bytes[..count]).expect("a vector takes bytes");
        let (begin, end) = (self.written, self.written + taken as u64);
        (self.in_flight, self.written) = (taken, end);
        self.take_records();
        if let Some(TlsFault::FlippedBit(at)) = self.plan.fault
            && (begin..end).contains(&at)
        {
            self.flip_record();
        }
    }

    /// Flips a bit of the sealed bytes, which are whole records.
    fn flip_record(&mut self) {
        let index = self.random.below(self.sealed.len() as u64) as usize;
        let (mut begin, mut flip) = (0, Flip::Record);
        while let Some(header) = self.sealed.get(begin..begin + HEADER_BYTES) {
            let length = usize::from(u16::from_be_bytes([header[3], header[4]]));
            if (begin + 3..begin + HEADER_BYTES).contains(&index) {
                flip = Flip::Other;
            }
            begin += HEADER_BYTES + length;
        }
        self.sealed[index] ^= 1 << self.random.below(8);
        self.flip = Some(flip);
    }

    fn update_keys(&mut self) {
        let is_new = self.connection.protocol_version() == Some(ProtocolVersion::TLSv1_3);
        if is_new && !self.connection.is_handshaking() {
            self.connection.refresh_traffic_keys().expect("the handshake is complete");
        }
    }

    fn take_records(&mut self) {
        let begin = self.sealed.len();
        while self.connection.wants_write() {
            self.connection.write_tls(&mut self.sealed).expect("a vector takes bytes");
        }
        if self.written == 0 {
            let (first, count) = (self.handshake_bytes, (self.sealed.len() - begin) as u64);
            self.handshake_bytes += count;
            if let Some(TlsFault::FlippedHandshake(at)) = self.plan.fault
                && (first..first + count).contains(&at.max(1))
            {
                let index = begin + (at.max(1) - first) as usize;
                self.sealed[index] ^= 1 << self.random.below(8);
                self.flip = Some(Flip::Other);
            }
        }
    }

    /// Sends sealed bytes, and ends the stream after them if that was requested.
    fn flush(&mut self, world: &World, socket: ActorSocket) {
        loop {
            self.take_records();
            while !self.sealed.is_empty() {
                match world.write(socket, &self.sealed) {
                    Ok(0) => return,
                    Ok(count) => drop(self.sealed.drain(..count)),
                    // The actor finds the error when it reads or writes.
                    Err(error) => {
                        self.sealed.clear();
                        self.in_flight = 0;
                        self.has_failed = true;
                        self.end.get_or_insert(Err(error));
                        return;
                    }
                }
            }
            match self.finish {
                Finish::Requested if !self.is_handshaking() => {
                    if !self.has_failed {
                        self.write_close_notify();
                    }
                    self.finish = Finish::Announced;
                }
                Finish::Announced => {
                    self.finish = Finish::Done;
                    return world.shutdown_write(socket);
                }
                _ => return,
            }
        }
    }

    /// Receives up to `max` bytes of records. Returns false if none were available.
    fn receive(&mut self, world: &World, socket: ActorSocket, max: usize) -> bool {
        if self.end.is_some() {
            return false;
        }
        match world.read(socket, max) {
            ReadResult::Nothing => return false,
            ReadResult::End => self.end = Some(Ok(())),
            ReadResult::Failed(error) => self.end = Some(Err(error)),
            ReadResult::Bytes(bytes) => {
                self.clock.set(world.time_of_day());
                if let Err(error) = self.open(&bytes) {
                    self.fail(&error);
                } else if self.plan.fault == Some(TlsFault::KeyUpdates)
                    && self.finish == Finish::Open
                {
                    self.update_keys();
                }
                self.flush(world, socket);
            }
        }
        true
    }

    fn open(&mut self, mut bytes: &[u8]) -> Result<(), rustls::Error> {
        while !bytes.is_empty() {
            self.connection.read_tls(&mut bytes).expect("all plaintext was read");
            self.connection.process_new_packets()?;
            match self.connection.reader().read_to_end(&mut self.received) {
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => panic!("{error}"),
            }
        }
        Ok(())
    }

    /// Ends the session. An alert is the expected result of a fault of this side.
    fn fail(&mut self, error: &rustls::Error) {
        self.has_failed = true;
        self.end = Some(Err(Error::Reset));
        let is_alert = matches!(error, rustls::Error::AlertReceived(_));
        let is_expected = match self.plan.fault {
            Some(TlsFault::FlippedBit(_)) => self.flip.is_some() && is_alert,
            // The keys of both sides differ then.
            Some(TlsFault::FlippedHandshake(_)) => self.flip.is_some(),
            Some(TlsFault::UnknownName | TlsFault::NoName | TlsFault::KeyUpdates) => is_alert,
            Some(TlsFault::UnannouncedEnd) | None => false,
        };
        if !is_expected {
            self.violate(format!("a violation of TLS: {error}"));
        }
    }
}
