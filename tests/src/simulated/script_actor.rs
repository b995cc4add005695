//! One script at one socket of the simulated world.

use millrace_engine::Instant;
use millrace_sim::{ActorSocket, ReadResult, World};

use crate::scenario::{End, Need, Play};

/// A script and its socket.
pub(super) struct ScriptActor {
    /// Client or origin, for messages.
    pub(super) name: String,
    socket: Option<ActorSocket>,
    pub(super) play: Play,
    /// When a hostile world makes it give up waiting, in milliseconds without leaps of the clock.
    patience: Option<u64>,
    /// Does not read while it cannot write, as many programs are written.
    stubborn: bool,
    /// The last need was to read, and nothing has come since.
    idle: bool,
    over: bool,
}

/// How long a script in a hostile world waits for anything: longer than every deadline of the
/// proxy and every stall of the network together.
const PATIENCE_MS: u64 = 3_600_000;

impl ScriptActor {
    pub(super) fn new(name: String, socket: ActorSocket, play: Play, world: &World) -> Self {
        let patience = play.is_hostile().then(|| milliseconds_without_jumps(world) + PATIENCE_MS);
        let stubborn = play.is_hostile() && world.random().is_multiple_of(2);
        Self { name, socket: Some(socket), play, patience, stubborn, idle: false, over: false }
    }

    /// Whether the script has ended.
    pub(super) fn is_over(&self) -> bool {
        self.over
    }

    /// Whether the socket is still open.
    pub(super) fn socket(&self) -> Option<ActorSocket> {
        self.socket
    }

    /// Plays on; says when to look again. A script that is over leaves its socket open.
    pub(super) fn step(&mut self, world: &World) -> Result<Option<Instant>, String> {
        let Some(socket) = self.socket.filter(|_| !self.over) else { return Ok(None) };
        match world.connected(socket) {
            None => return Ok(None),
            Some(Ok(())) => {}
            Some(Err(error)) if self.play.is_hostile() => {
                world.trace_note("given up", &format!("{}: {error}", self.name));
                self.play.give_up();
            }
            Some(Err(error)) => return Err(format!("{}: connect: {error}", self.name)),
        }
        let now = world.now().milliseconds();
        let waits_in_vain =
            self.patience.is_some_and(|patience| milliseconds_without_jumps(world) >= patience);
        if !self.play.given_up() && waits_in_vain {
            // A signal may never come where the one who gives it was cut off.
            if self.play.need(now) != Need::Board {
                return Err(format!("{}: line {}: waits in vain", self.name, self.play.line()));
            }
            self.play.give_up();
        }
        if self.idle && !self.read(world, socket) {
            return Ok(self.look(world, None));
        }
        self.idle = false;
        self.play_on(world, socket, now)
    }

    fn play_on(
        &mut self,
        world: &World,
        socket: ActorSocket,
        now: u64,
    ) -> Result<Option<Instant>, String> {
        loop {
            match self.play.need(now) {
                Need::Write(bytes, until) => match world.write(socket, bytes) {
                    Ok(0) => {
                        // A client that can neither write nor reads would wait for a proxy that
                        // waits for it, where buffers are tiny.
                        if self.stubborn || self.play.has_ended() || !self.read(world, socket) {
                            return Ok(self.look(world, until));
                        }
                    }
                    Ok(count) => self.play.written(count),
                    Err(_) => self.play.broken(),
                },
                Need::Read => {
                    if !self.read(world, socket) {
                        self.idle = true;
                        return Ok(self.look(world, None));
                    }
                }
                Need::ReadUntil(until) => {
                    if !self.read(world, socket) {
                        return Ok(self.look(world, Some(until)));
                    }
                }
                Need::Until(until) => return Ok(self.look(world, Some(until))),
                Need::Board => return Ok(self.look(world, None)),
                Need::Finish => {
                    world.shutdown_write(socket);
                    self.play.advance();
                }
                Need::Close => {
                    self.over = true;
                    self.close(world);
                    return Ok(None);
                }
                Need::Reset => {
                    (self.socket, self.over) = (None, true);
                    world.reset(socket);
                    return Ok(None);
                }
                Need::Over => {
                    self.over = true;
                    return Ok(None);
                }
                Need::Failed(why) => return Err(format!("{}: {why}", self.name)),
            }
        }
    }

    /// Closes the socket, if that has not happened.
    pub(super) fn close(&mut self, world: &World) {
        if let Some(socket) = self.socket.take() {
            world.close(socket);
        }
    }

    /// Reads once; false when nothing was there.
    fn read(&mut self, world: &World, socket: ActorSocket) -> bool {
        match world.read(socket, 64 * 1024) {
            ReadResult::Bytes(bytes) => self.play.received(&bytes),
            ReadResult::End => self.play.ended(End::Finished),
            ReadResult::Failed(_) => self.play.ended(End::Reset),
            ReadResult::Nothing => return false,
        }
        true
    }

    fn look(&self, world: &World, until: Option<u64>) -> Option<Instant> {
        let leapt = world.clock_jumped().as_millis() as u64;
        let patience = self.patience.map(|patience| patience + leapt);
        // Once it is over, what is still waited for is somebody else's to do: it takes its time.
        let patience = patience.filter(|patience| *patience > world.now().milliseconds());
        let until = until.into_iter().chain(patience).min()?;
        Some(Instant::from_nanoseconds(until * 1_000_000))
    }
}

/// Milliseconds that the world has lived through: its clock without its leaps.
fn milliseconds_without_jumps(world: &World) -> u64 {
    world.now().milliseconds() - world.clock_jumped().as_millis() as u64
}
