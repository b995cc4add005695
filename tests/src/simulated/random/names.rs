//! The name server of a random scenario, which responds as planned for each origin's name.

use std::net::SocketAddr;
use std::time::Duration;

use millrace_engine::Instant;
use millrace_sim::World;

use super::super::name_server::{NameServer, queried_name};
use super::model::ExchangeModel;
use super::plan::{NameBehaviour, Origin};

/// The server and its delayed responses.
pub(super) struct PlannedNameServer {
    server: NameServer,
    namings: Vec<NameBehaviour>,
    later: Vec<(Instant, SocketAddr, Vec<u8>)>,
    model: ExchangeModel,
}

/// Returns the name of an origin by its number.
pub(super) fn name_of(number: usize) -> String {
    format!("o{number}.test")
}

impl PlannedNameServer {
    pub(super) fn new(world: &World, origins: &[Origin], model: &ExchangeModel) -> Self {
        let known = (0..origins.len()).filter(|it| origins[*it].naming != NameBehaviour::Unknown);
        let names: Vec<_> = known.map(|it| (name_of(it), [127, 0, 0, 1].into())).collect();
        Self {
            server: NameServer::new(world, &names),
            namings: origins.iter().map(|origin| origin.naming).collect(),
            later: Vec::new(),
            model: model.clone(),
        }
    }

    pub(super) fn server(&self) -> &NameServer {
        &self.server
    }

    /// Responds to queries. Returns when to act again.
    pub(super) fn step(&mut self, world: &World) -> Option<Instant> {
        let now = world.now();
        while let Some((from, query)) = world.receive_from(self.server.socket()) {
            self.respond(world, from, &query);
        }
        let (due, later) = self.later.drain(..).partition(|(when, ..)| *when <= now);
        self.later = later;
        let due: Vec<(Instant, SocketAddr, Vec<u8>)> = due;
        for (_, to, response) in due {
            self.server.reply(world, to, response);
        }
        let held = self.server.send_held(world);
        self.later.iter().map(|(when, ..)| *when).chain(held).min()
    }

    fn respond(&mut self, world: &World, from: SocketAddr, query: &[u8]) {
        let Some(mut response) = self.server.build_response(query) else { return };
        let name = queried_name(query).map(|(name, _)| name).unwrap_or_default();
        let number = (0..self.namings.len()).find(|number| name_of(*number) == name);
        let naming = number.map_or(NameBehaviour::Unknown, |number| self.namings[number]);
        let mut wait = 0;
        self.model.cover(match naming {
            NameBehaviour::Address | NameBehaviour::Known => "name: found",
            NameBehaviour::Slow(ms) => {
                wait = ms;
                "name: found late"
            }
            NameBehaviour::Twice => {
                self.later.push((world.now(), from, response.clone()));
                "name: sent twice"
            }
            NameBehaviour::ForgedFirst => {
                let mut forged = response.clone();
                forged[1] ^= 0x55;
                // This changes the last byte of the address, if there is one. No host has the new
                // address.
                *forged.last_mut().expect("a response has a header") ^= 0x40;
                self.later.push((world.now(), from, forged));
                wait = 1;
                "name: a forged response first"
            }
            NameBehaviour::Unknown => "name: unknown",
            NameBehaviour::Fails => {
                // SERVFAIL (RFC 1035 section 4.1.1), without records.
                response.truncate(queried_name(query).map_or(12, |(_, end)| end + 4));
                response[3] = (response[3] & 0xf0) | 2;
                response[6..8].fill(0);
                "name: the server fails"
            }
            NameBehaviour::Silent => {
                self.model.cover("name: no response");
                return;
            }
        });
        self.later.push((world.now() + Duration::from_millis(wait), from, response));
    }
}
