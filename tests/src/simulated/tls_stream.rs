//! TLS of one connection of an actor.

use std::io::{ErrorKind, Read, Write};

use millrace_engine::Error;
use millrace_sim::{ActorSocket, ReadResult, SeededRandom, World};
use millrace_tls::Clock;
use rustls::{Connection, ProtocolVersion};

/// How an actor uses TLS.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct TlsPlan {
    /// TLS 1.2 instead of 1.3.
    pub old: bool,
    /// Whether keys are updated between records at random.
    pub updates_keys: bool,
    /// The fault; `None`: the actor behaves well.
    pub fault: Option<TlsFault>,
}

/// A fault of an actor's TLS.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TlsFault {
    /// One bit of the record with this byte of the plaintext is flipped on its way.
    FlippedBit(u64),
    /// The end of the stream is not announced (close_notify).
    UnannouncedEnd,
    /// The client requests a name (SNI) that no certificate has.
    UnknownName,
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
    finish: Finish,
    /// The end of the stream from the peer, below TLS.
    end: Option<Result<(), Error>>,
    /// The session accepts nothing more.
    has_failed: bool,
    has_flipped: bool,
    violation: Option<String>,
}

/// The beginning of the messages that must never be seen outside of a record.
const PLAINTEXT: &[u8] = b"HTTP/1.";

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
            finish: Finish::Open,
            end: None,
            has_failed: false,
            has_flipped: false,
            violation: None,
        }
    }

    /// See [`Transport::advance`](super::transport::Transport::advance).
    pub(super) fn advance(&mut self, world: &World, socket: ActorSocket) -> Result<(), String> {
        while self.is_handshaking() && self.receive(world, socket, 64 * 1024) {}
        self.flush(world, socket);
        match &self.violation {
            None => Ok(()),
            Some(violation) => Err(violation.clone()),
        }
    }

    pub(super) fn read(&mut self, world: &World, socket: ActorSocket, max: usize) -> ReadResult {
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
                Some(Ok(())) => return ReadResult::Failed(Error::Reset),
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

    /// Ends the stream that this side sends, after all sealed bytes.
    pub(super) fn finish(&mut self, world: &World, socket: ActorSocket) {
        if self.finish == Finish::Open {
            self.finish = Finish::Requested;
        }
        self.flush(world, socket);
    }

    /// Announces the end of the stream, as far as the kernel takes the announcement at once.
    pub(super) fn announce_end(&mut self, world: &World, socket: ActorSocket) {
        if self.finish == Finish::Open && !self.is_handshaking() && !self.has_failed {
            self.write_close_notify();
            self.flush(world, socket);
        }
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
        let is_new = self.connection.protocol_version() == Some(ProtocolVersion::TLSv1_3);
        if self.plan.updates_keys && is_new && self.random.chance(200) {
            self.connection.refresh_traffic_keys().expect("the handshake is complete");
        }
        let size = self.random.choose(&[300, 16_384, 16_384, 40_000]);
        let count = bytes.len().min(size);
        let taken = self.connection.writer().write(&bytes[..count]).expect("a vector takes bytes");
        let (begin, end) = (self.written, self.written + taken as u64);
        (self.in_flight, self.written) = (taken, end);
        self.take_records();
        if let Some(TlsFault::FlippedBit(at)) = self.plan.fault
            && (begin..end).contains(&at)
        {
            let index = self.random.below(self.sealed.len() as u64) as usize;
            self.sealed[index] ^= 1 << self.random.below(8);
            self.has_flipped = true;
        }
    }

    fn take_records(&mut self) {
        while self.connection.wants_write() {
            self.connection.write_tls(&mut self.sealed).expect("a vector takes bytes");
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
                if bytes.windows(PLAINTEXT.len()).any(|window| window == PLAINTEXT) {
                    self.violation = Some("plaintext on a secured connection".to_owned());
                }
                self.clock.set(world.time_of_day());
                if let Err(error) = self.open(&bytes) {
                    self.fail(&error);
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
        let is_expected = match self.plan.fault {
            Some(TlsFault::FlippedBit(_)) => self.has_flipped,
            Some(TlsFault::UnknownName) => true,
            Some(TlsFault::UnannouncedEnd) | None => false,
        };
        if !(is_expected && matches!(error, rustls::Error::AlertReceived(_))) {
            self.violation.get_or_insert_with(|| format!("a violation of TLS: {error}"));
        }
    }
}
