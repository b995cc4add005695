//! All actors of one run: clients, origins, the name server.

use std::cell::Cell;
use std::path::Path;
use std::rc::Rc;

use millrace_engine::{Address, Instant};
use millrace_sim::{Actor, World};

use super::origin::OriginSeat;
use super::reload::Reloader;
use super::seat::Seat;
use crate::scenario::{Board, Client, Names, Play};

/// Everybody but the proxy.
pub(super) struct Cast {
    pub(super) clients: Vec<(Client, Option<Seat>)>,
    pub(super) origins: Vec<OriginSeat>,
    pub(super) proxy: Address,
    pub(super) reloader: Reloader,
    pub(super) names: Names,
    pub(super) board: Board,
    pub(super) hostile: bool,
    pub(super) failures: Vec<String>,
    /// Every script has ended, or one has failed.
    pub(super) over: Rc<Cell<bool>>,
}

impl Actor for Cast {
    fn step(&mut self, world: &World) -> Option<Instant> {
        let mut look = None;
        loop {
            let told = self.board.told();
            self.reloader.step(world);
            look = look.into_iter().chain(self.step_all(world)).min();
            if self.board.told() == told {
                break;
            }
        }
        let played = self.clients.iter().all(|(_, seat)| seat.as_ref().is_some_and(Seat::is_over))
            && self.origins.iter().all(OriginSeat::is_over);
        self.over.set(played || !self.failures.is_empty());
        look
    }
}

impl Cast {
    fn step_all(&mut self, world: &World) -> Option<Instant> {
        let mut look = None;
        for index in 0..self.clients.len() {
            self.begin(world, index);
            let Some(seat) = &mut self.clients[index].1 else { continue };
            let was_over = seat.is_over();
            match seat.step(world) {
                Ok(again) => look = look.into_iter().chain(again).min(),
                Err(why) => self.failures.push(why),
            }
            if seat.is_over() && !was_over {
                self.end(world, index);
            }
        }
        for origin in &mut self.origins {
            match origin.step(world) {
                Ok(again) => look = look.into_iter().chain(again).min(),
                Err(why) => self.failures.push(why),
            }
        }
        look
    }

    /// Connects a client when those before it have ended.
    fn begin(&mut self, world: &World, index: usize) {
        let (client, seat) = &self.clients[index];
        let ready = client.after.iter().all(|other| self.board.has(&ended(other)))
            && client.when.iter().all(|signal| self.board.has(signal));
        if seat.is_some() || !ready {
            return;
        }
        let play = Play::new(&client.script, &self.names, &self.board, self.hostile);
        let socket = match &client.at {
            None => world.connect(&self.proxy, None),
            Some(name) => {
                let path = self.names.fill(&format!("{{{name}}}"));
                world.connect(&Address::Unix(Path::new(&path).into()), None)
            }
        };
        let seat = Seat::new(client.name.clone(), socket, play, world);
        self.clients[index].1 = Some(seat);
    }

    /// A client that has said its part closes; unless it did so by itself, nothing may be left.
    fn end(&mut self, world: &World, index: usize) {
        let (client, seat) = &mut self.clients[index];
        let Some(seat) = seat else { return };
        let rest = seat.play.inbox();
        if !rest.is_empty() && seat.socket().is_some() {
            let rest = rest.escape_ascii();
            self.failures.push(format!("{}: more came: \"{rest}\"", client.name));
        }
        seat.close(world);
        self.board.signal(&ended(&client.name));
    }

    /// What is still waited for.
    pub(super) fn state(&self) -> String {
        let clients = self.clients.iter().map(|(client, seat)| match seat {
            None => format!("{} has not begun", client.name),
            Some(seat) if seat.is_over() => format!("{} has ended", client.name),
            Some(seat) => format!("{} at line {}", client.name, seat.play.line()),
        });
        let origins = self.origins.iter().map(OriginSeat::state);
        clients.chain(origins).collect::<Vec<_>>().join("\n")
    }

    /// Closes every socket.
    pub(super) fn close(&mut self, world: &World) {
        for seat in self.clients.iter_mut().filter_map(|(_, seat)| seat.as_mut()) {
            seat.close(world);
        }
        for origin in &mut self.origins {
            origin.close(world);
        }
    }
}

fn ended(client: &str) -> String {
    format!("client {client} has ended")
}
