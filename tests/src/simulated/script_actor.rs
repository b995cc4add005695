//! One script on one socket of the simulated world.

use millrace_engine::Instant;
use millrace_sim::{ReadResult, World};

use super::transport::Transport;
use crate::scenario::{End, Need, Play};

/// A script and its socket.
pub(super) struct ScriptActor {
    /// Name of the client or origin, for error messages.
    pub(super) name: String,
    transport: Option<Transport>,
    pub(super) play: Play,
    /// The time at which the script stops waiting in a hostile world, in milliseconds without clock
    /// jumps.
    patience: Option<u64>,
    /// Whether the script does not read while it cannot write, like many programs.
    stubborn: bool,
    /// Whether the script waits for bytes, and none have arrived since it began to wait.
    idle: bool,
    /// Whether the connection is closed when the script is over.
    pub(super) closes: bool,
    over: bool,
}

/// Limit of a wait of a script in a hostile world: longer than every deadline of the proxy and
/// every stall of the network together.
const PATIENCE_MS: u64 = 3_600_000;

impl ScriptActor {
    pub(super) fn new(name: String, transport: Transport, play: Play, world: &World) -> Self {
        let patience = play.is_hostile().then(|| milliseconds_without_jumps(world) + PATIENCE_MS);
        let stubborn = play.is_hostile() && world.random().is_multiple_of(2);
        let transport = Some(transport);
        Self { name, transport, play, patience, stubborn, idle: false, closes: false, over: false }
    }

    /// Returns whether the script has ended.
    pub(super) fn is_over(&self) -> bool {
        self.over
    }

    /// Returns the connection while it is open.
    pub(super) fn transport(&mut self) -> Option<&mut Transport> {
        self.transport.as_mut()
    }

    /// Takes the connection, if it is open, and the received bytes that no step has used.
    pub(super) fn take(&mut self) -> Option<(Transport, Vec<u8>)> {
        let transport = self.transport.take()?;
        Some((transport, self.play.inbox().to_vec()))
    }

    /// Continues the script. Returns when to continue. A script that has ended leaves its socket
    /// open.
    pub(super) fn step(&mut self, world: &World) -> Result<Option<Instant>, String> {
        let Some(transport) = self.transport.as_mut().filter(|_| !self.over) else {
            return Ok(None);
        };
        match world.connected(transport.socket()) {
            None => return Ok(None),
            Some(Ok(())) => {
                transport.advance(world).map_err(|why| format!("{}: {why}", self.name))?;
            }
            Some(Err(error)) if self.play.is_hostile() => {
                world.trace_note("given up", &format!("{}: {error}", self.name));
                self.play.give_up();
            }
            Some(Err(error)) => return Err(format!("{}: connect: {error}", self.name)),
        }
        let now = world.now().milliseconds();
        let is_overdue =
            self.patience.is_some_and(|patience| milliseconds_without_jumps(world) >= patience);
        if !self.play.given_up() && is_overdue {
            // The script that sets the signal may have been cut off. Then the signal never comes.
            if self.play.need(now) != Need::Signal {
                return Err(format!("{}: line {}: timed out", self.name, self.play.line()));
            }
            self.play.give_up();
        }
        if self.idle && !self.read(world) {
            return Ok(self.next_step(world, None));
        }
        self.idle = false;
        self.play_on(world, now)
    }

    fn play_on(&mut self, world: &World, now: u64) -> Result<Option<Instant>, String> {
        while let Some(transport) = &mut self.transport {
            match self.play.need(now) {
                Need::Write(bytes, until) => match transport.write(world, bytes) {
                    Ok(0) => {
                        // With tiny buffers, a client that cannot write and does not read would
                        // deadlock with a proxy that waits for it.
                        if self.stubborn || self.play.has_ended() || !self.read(world) {
                            return Ok(self.next_step(world, until));
                        }
                    }
                    Ok(count) => self.play.written(count),
                    Err(_) => self.play.broken(),
                },
                Need::Read => {
                    if !self.read(world) {
                        self.idle = true;
                        return Ok(self.next_step(world, None));
                    }
                }
                Need::ReadUntil(until) => {
                    if !self.read(world) {
                        return Ok(self.next_step(world, Some(until)));
                    }
                }
                Need::Until(until) => return Ok(self.next_step(world, Some(until))),
                Need::Signal => return Ok(self.next_step(world, None)),
                Need::Finish => {
                    transport.shutdown_write(world);
                    self.play.advance();
                }
                Need::Close => {
                    if !transport.prepare_close(world) {
                        return Ok(self.next_step(world, None));
                    }
                    self.over = true;
                    self.close(world);
                    return Ok(None);
                }
                Need::Reset => {
                    self.over = true;
                    self.transport.take().into_iter().for_each(|it| it.reset(world));
                    return Ok(None);
                }
                Need::Over => {
                    if self.closes && !transport.prepare_close(world) {
                        return Ok(self.next_step(world, None));
                    }
                    self.over = true;
                    return Ok(None);
                }
                Need::Failed(why) => return Err(format!("{}: {why}", self.name)),
            }
        }
        Ok(None)
    }

    /// Closes the socket if it is open.
    pub(super) fn close(&mut self, world: &World) {
        if let Some(transport) = self.transport.take() {
            transport.close(world);
        }
    }

    /// Reads once. Returns false if nothing was available.
    fn read(&mut self, world: &World) -> bool {
        let Some(transport) = &mut self.transport else { return false };
        match transport.read(world, 64 * 1024) {
            ReadResult::Bytes(bytes) => self.play.received(&bytes),
            ReadResult::End => self.play.ended(End::Finished),
            ReadResult::Failed(_) => self.play.ended(End::Reset),
            ReadResult::Nothing => return false,
        }
        true
    }

    fn next_step(&self, world: &World, until: Option<u64>) -> Option<Instant> {
        let jumped = world.clock_jumped().as_millis() as u64;
        let patience = self.patience.map(|patience| patience + jumped);
        // Beyond its limit, a script can only wait for a signal. It needs no further wake-up,
        // because the script that sets the signal has a limit of its own.
        let patience = patience.filter(|patience| *patience > world.now().milliseconds());
        let until = until.into_iter().chain(patience).min()?;
        Some(Instant::from_nanoseconds(until * 1_000_000))
    }
}

/// Returns the milliseconds of the world's clock without its jumps.
fn milliseconds_without_jumps(world: &World) -> u64 {
    world.now().milliseconds() - world.clock_jumped().as_millis() as u64
}
