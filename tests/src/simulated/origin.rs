//! An origin of the simulated world.
//!
//! In a working world it plays its scripts in the order in which it accepts connections. In a
//! hostile world this order has no meaning: requests are retried, also at other origins, and
//! connections break before they carry any. The origin then reads requests on any connection and
//! responds to each as any of the scripts does. This detects a request that no client sent, and a
//! request that is repeated although it must not be.

use std::rc::Rc;

use millrace_engine::Instant;
use millrace_sim::{ActorSocket, ReadResult, World};

use super::script_actor::ScriptActor;
use super::tls::TlsSettings;
use super::tls_stream::TlsPlan;
use super::transport::Transport;
use crate::scenario::{
    Origin, Placeholders, Play, RequestScripts, Script, ScriptSignals, Tolerance,
};

/// An origin and its connections.
pub(super) struct ScriptedOrigin {
    origin: Origin,
    listener: Option<ActorSocket>,
    names: Placeholders,
    signals: ScriptSignals,
    hostile: bool,
    /// Selects responses by request.
    picks: Rc<RequestScripts>,
    /// TLS; `None` if its connections are plain.
    tls: Option<Rc<TlsSettings>>,
    accepted: usize,
    active: Vec<ActiveScript>,
    idle: Vec<IdleConnection>,
}

/// A connection on which a script is played.
struct ActiveScript {
    actor: ScriptActor,
    /// Whether a request selected the script, so that other requests may follow it.
    picked: bool,
}

/// A connection without a current request.
struct IdleConnection {
    name: String,
    transport: Transport,
    inbox: Vec<u8>,
}

impl ScriptedOrigin {
    /// Creates an origin of a working world, or, with the `common` state of all origins, of a
    /// hostile one.
    pub(super) fn new(
        origin: &Origin,
        listener: Option<ActorSocket>,
        names: &Placeholders,
        signals: &ScriptSignals,
        common: Option<&Rc<RequestScripts>>,
        tls: Option<Rc<TlsSettings>>,
    ) -> Self {
        let own = || Rc::new(RequestScripts::new(origin.any.clone(), names));
        Self {
            origin: origin.clone(),
            listener,
            names: names.clone(),
            signals: signals.clone(),
            hostile: common.is_some(),
            picks: common.map_or_else(own, Rc::clone),
            tls,
            accepted: 0,
            active: Vec::new(),
            idle: Vec::new(),
        }
    }

    /// Returns whether every script was played.
    pub(super) fn is_over(&self) -> bool {
        self.hostile
            || (self.accepted >= self.origin.scripts.len()
                && self.active.iter().all(|active| active.actor.is_over()))
    }

    fn tolerance(&self) -> Tolerance {
        if self.hostile { Tolerance::Hostile } else { Tolerance::Exact }
    }

    /// Describes what the origin waits for.
    pub(super) fn state(&self) -> String {
        let open = self.active.iter().map(|active| &active.actor).filter(|actor| !actor.is_over());
        let lines: Vec<String> =
            open.map(|actor| format!("{} at line {}", actor.name, actor.play.line())).collect();
        let (accepted, wanted) = (self.accepted, self.origin.scripts.len());
        format!("{}: {accepted} of {wanted} connections; {}", self.origin.name, lines.join(", "))
    }

    pub(super) fn step(&mut self, world: &World) -> Result<Option<Instant>, String> {
        while let Some((socket, _)) = self.listener.and_then(|listener| world.accept(listener)) {
            self.accepted += 1;
            self.begin(world, socket)?;
        }
        for index in (0..self.idle.len()).rev() {
            self.listen(world, index)?;
        }
        let mut next_wake = None;
        for index in (0..self.active.len()).rev() {
            let actor = &mut self.active[index].actor;
            let again = actor.step(world)?;
            next_wake = next_wake.into_iter().chain(again).min();
            if actor.is_over() {
                self.after(world, index)?;
            }
        }
        Ok(next_wake)
    }

    /// Closes every socket at the end of the world.
    pub(super) fn close(&mut self, world: &World) {
        for active in &mut self.active {
            active.actor.close(world);
        }
        for idle in self.idle.drain(..) {
            idle.transport.close(world);
        }
        if let Some(listener) = self.listener.take() {
            world.close(listener);
        }
    }

    fn begin(&mut self, world: &World, socket: ActorSocket) -> Result<(), String> {
        let name = format!("{} connection {}", self.origin.name, self.accepted);
        let transport = match &self.tls {
            None => Transport::plain(socket),
            Some(tls) => {
                let random = world.random();
                let (old, updates_keys) = (random.is_multiple_of(4), random % 8 > 5);
                tls.origin(world, socket, TlsPlan { old, updates_keys, ..TlsPlan::default() })
            }
        };
        let by_request = match self.hostile {
            true => self.origin.all().all(Script::begins_with_request),
            false => self.accepted > self.origin.scripts.len() && !self.origin.any.is_empty(),
        };
        if by_request {
            self.idle.push(IdleConnection { name, transport, inbox: Vec::new() });
            return Ok(());
        }
        let script = self.origin.scripts.get(self.accepted - 1).or(self.origin.each.as_ref());
        // In a hostile world the proxy retries the connection of a tunnel, so the last script
        // serves all further connections.
        let script = script.or(self.origin.scripts.last().filter(|_| self.hostile));
        let script = script.ok_or_else(|| format!("{name}: no script for this connection"))?;
        let play = Play::new(script, &self.names, &self.signals, self.tolerance());
        self.active.push(ActiveScript {
            actor: ScriptActor::new(name, transport, play, world),
            picked: false,
        });
        Ok(())
    }

    /// Handles the end of a script. Its connection stays open until the proxy ends it.
    fn after(&mut self, world: &World, index: usize) -> Result<(), String> {
        let ActiveScript { actor, picked } = &mut self.active[index];
        if *picked {
            let name = actor.name.clone();
            let Some((transport, inbox)) = actor.take() else { return Ok(()) };
            self.active.remove(index);
            self.idle.push(IdleConnection { name, transport, inbox });
            return self.listen(world, self.idle.len() - 1);
        }
        let mut inbox = actor.play.inbox().to_vec();
        let Some(transport) = actor.transport() else { return Ok(()) };
        match transport.read(world, 64 * 1024) {
            ReadResult::Bytes(bytes) => inbox.extend(bytes),
            ReadResult::End | ReadResult::Failed(_) => actor.close(world),
            ReadResult::Nothing => {}
        }
        match inbox.is_empty() {
            true => Ok(()),
            false => Err(format!("{}: unexpected bytes: \"{}\"", actor.name, inbox.escape_ascii())),
        }
    }

    /// Looks for a request on an idle connection, and begins to respond to it.
    fn listen(&mut self, world: &World, index: usize) -> Result<(), String> {
        let idle = &mut self.idle[index];
        let ended = match idle.transport.read(world, 64 * 1024) {
            ReadResult::Bytes(bytes) => {
                idle.inbox.extend(bytes);
                false
            }
            ReadResult::End | ReadResult::Failed(_) => true,
            ReadResult::Nothing => false,
        };
        let picked = self.picks.pick(&idle.inbox);
        if let Some(script) = picked.map_err(|why| format!("{}: {why}", idle.name))? {
            let IdleConnection { name, transport, inbox } = self.idle.swap_remove(index);
            let mut play = Play::new(&script, &self.names, &self.signals, self.tolerance());
            play.received(&inbox);
            self.active.push(ActiveScript {
                actor: ScriptActor::new(name, transport, play, world),
                picked: true,
            });
        } else if ended {
            self.idle.swap_remove(index).transport.close(world);
        }
        Ok(())
    }
}
