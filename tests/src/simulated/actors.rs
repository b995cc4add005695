//! The actors that a scenario describes: clients, origins and reloads.

use std::cell::Cell;
use std::path::Path;
use std::rc::Rc;

use millrace_engine::{Address, Instant};
use millrace_sim::{Actor, World};

use super::origin::ScriptedOrigin;
use super::reload::Reloader;
use super::script_actor::ScriptActor;
use super::tls::TlsSettings;
use super::tls_stream::TlsPlan;
use super::transport::Transport;
use crate::scenario::{Client, Placeholders, Play, ScriptSignals, Tolerance};

/// The clients, the origins and the reloader of one run.
pub(super) struct ScenarioActors {
    pub(super) clients: Vec<(Client, Option<ScriptActor>)>,
    pub(super) origins: Vec<ScriptedOrigin>,
    pub(super) proxy: Address,
    /// TLS; `None` if neither clients nor origins use it.
    pub(super) tls: Option<Rc<TlsSettings>>,
    pub(super) secures_clients: bool,
    pub(super) reloader: Reloader,
    pub(super) names: Placeholders,
    pub(super) signals: ScriptSignals,
    /// The faults that clients accept.
    pub(super) tolerance: Tolerance,
    pub(super) failures: Vec<String>,
    /// Whether every script has ended, or one has failed.
    pub(super) over: Rc<Cell<bool>>,
}

impl Actor for ScenarioActors {
    fn step(&mut self, world: &World) -> Option<Instant> {
        let mut next_wake = None;
        loop {
            let before = self.signals.count();
            self.reloader.step(world, self.tls.as_deref());
            next_wake = next_wake.into_iter().chain(self.step_all(world)).min();
            if self.signals.count() == before {
                break;
            }
        }
        let played =
            self.clients.iter().all(|(_, actor)| actor.as_ref().is_some_and(ScriptActor::is_over))
                && self.origins.iter().all(ScriptedOrigin::is_over);
        self.over.set(played || !self.failures.is_empty());
        next_wake
    }
}

impl ScenarioActors {
    fn step_all(&mut self, world: &World) -> Option<Instant> {
        let mut next_wake = None;
        for index in 0..self.clients.len() {
            self.begin(world, index);
            let Some(actor) = &mut self.clients[index].1 else { continue };
            let was_over = actor.is_over();
            match actor.step(world) {
                Ok(again) => next_wake = next_wake.into_iter().chain(again).min(),
                Err(why) => self.failures.push(why),
            }
            if actor.is_over() && !was_over {
                self.end(world, index);
            }
        }
        for origin in &mut self.origins {
            match origin.step(world) {
                Ok(again) => next_wake = next_wake.into_iter().chain(again).min(),
                Err(why) => self.failures.push(why),
            }
        }
        next_wake
    }

    /// Connects a client when the clients that it follows have ended and its signals are set.
    fn begin(&mut self, world: &World, index: usize) {
        let (client, actor) = &self.clients[index];
        let ready = client.after.iter().all(|other| self.signals.is_set(&ended(other)))
            && client.when.iter().all(|signal| self.signals.is_set(signal));
        if actor.is_some() || !ready {
            return;
        }
        let play = Play::new(&client.script, &self.names, &self.signals, self.tolerance);
        let tls = self.tls.as_ref().filter(|_| self.secures_clients);
        let transport = match (&client.at, tls) {
            (None, None) => Transport::plain(world.connect(&self.proxy, None)),
            (None, Some(tls)) => {
                let random = world.random();
                let plan = TlsPlan {
                    old: random.is_multiple_of(4),
                    updates_keys: random % 8 > 5,
                    ..TlsPlan::default()
                };
                tls.client(world, world.connect(&self.proxy, None), plan)
            }
            (Some(name), _) => {
                let path = self.names.fill(&format!("{{{name}}}"));
                Transport::plain(world.connect(&Address::Unix(Path::new(&path).into()), None))
            }
        };
        let mut actor = ScriptActor::new(client.name.clone(), transport, play, world);
        actor.closes = true;
        self.clients[index].1 = Some(actor);
    }

    /// Closes a client that has finished its script. Received bytes that no step used are a
    /// failure, unless the script closed the connection.
    fn end(&mut self, world: &World, index: usize) {
        let (client, actor) = &mut self.clients[index];
        let Some(actor) = actor else { return };
        let is_open = actor.transport().is_some();
        let rest = actor.play.inbox();
        if !rest.is_empty() && is_open {
            let rest = rest.escape_ascii();
            self.failures.push(format!("{}: unexpected bytes: \"{rest}\"", client.name));
        }
        actor.close(world);
        self.signals.signal(&ended(&client.name));
    }

    /// Describes what the actors wait for.
    pub(super) fn state(&self) -> String {
        let clients = self.clients.iter().map(|(client, actor)| match actor {
            None => format!("{} has not begun", client.name),
            Some(actor) if actor.is_over() => format!("{} has ended", client.name),
            Some(actor) => format!("{} at line {}", client.name, actor.play.line()),
        });
        let origins = self.origins.iter().map(ScriptedOrigin::state);
        clients.chain(origins).collect::<Vec<_>>().join("\n")
    }

    /// Closes every socket.
    pub(super) fn close(&mut self, world: &World) {
        for actor in self.clients.iter_mut().filter_map(|(_, actor)| actor.as_mut()) {
            actor.close(world);
        }
        for origin in &mut self.origins {
            origin.close(world);
        }
    }
}

fn ended(client: &str) -> String {
    format!("client {client} has ended")
}
