//! A name server of the simulated world. It serves A and AAAA records from a table, and NXDOMAIN
//! for every other name. In a hostile world its responses may have a [`NameFault`].

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use millrace_engine::Instant;
use millrace_sim::{Actor, ActorSocket, World};

/// A name server and its table.
pub(super) struct NameServer {
    socket: ActorSocket,
    address: SocketAddr,
    names: Vec<(String, IpAddr)>,
    /// Delayed responses: the time, the address, and the bytes.
    held: Vec<(Instant, SocketAddr, Vec<u8>)>,
}

/// A fault in one response.
#[derive(Clone, Copy, Debug)]
enum NameFault {
    /// The response arrives up to ten seconds late.
    Late,
    /// The response arrives twice.
    Twice,
    /// A forged response with another identifier precedes the right one, as from an attacker who
    /// guesses identifiers.
    Guessed,
    /// SERVFAIL.
    Failed,
    /// The response contains an address that no host has.
    WrongAddress,
}

const TYPE_A: u16 = 1;
const TYPE_AAAA: u16 = 28;

impl NameServer {
    pub(super) fn new(world: &World, names: &[(String, IpAddr)]) -> Self {
        let address = SocketAddr::from(([127, 0, 0, 53], 53));
        Self {
            socket: world.actor_udp_socket(address),
            address,
            names: names.to_vec(),
            held: Vec::new(),
        }
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(super) fn socket(&self) -> ActorSocket {
        self.socket
    }

    /// Returns the response to a query with one question (RFC 1035 section 4.1), or `None` for an
    /// invalid query.
    pub(super) fn build_response(&self, query: &[u8]) -> Option<Vec<u8>> {
        let (name, end) = queried_name(query)?;
        let question = query.get(12..end + 4)?;
        let kind = u16::from_be_bytes([question[question.len() - 4], question[question.len() - 3]]);
        let known: Vec<IpAddr> =
            self.names.iter().filter(|(other, _)| *other == name).map(|(_, ip)| *ip).collect();
        let wanted = known.iter().filter(|ip| match ip {
            IpAddr::V4(_) => kind == TYPE_A,
            IpAddr::V6(_) => kind == TYPE_AAAA,
        });
        let records: Vec<u8> = wanted.clone().flat_map(|ip| record(kind, *ip)).collect();
        let count = wanted.count() as u8;
        // A response with recursion; code 3 is NXDOMAIN.
        let code = if known.is_empty() { 3 } else { 0 };
        let mut response = vec![query[0], query[1], 0x81, 0x80 | code, 0, 1, 0, count, 0, 0, 0, 0];
        response.extend_from_slice(question);
        response.extend(records);
        Some(response)
    }
}

/// Returns the name in a query, in lower case, and its end.
pub(super) fn queried_name(query: &[u8]) -> Option<(String, usize)> {
    let mut at = 12;
    let mut labels = Vec::new();
    loop {
        let length = usize::from(*query.get(at)?);
        if length == 0 {
            return Some((labels.join(".").to_ascii_lowercase(), at + 1));
        }
        labels.push(String::from_utf8_lossy(query.get(at + 1..at + 1 + length)?).to_string());
        at += 1 + length;
    }
}

/// Returns one record: a pointer to the question's name, type, class IN, 60 seconds, the address.
fn record(kind: u16, ip: IpAddr) -> Vec<u8> {
    let address = match ip {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    };
    let mut record = vec![0xc0, 12, 0, kind as u8, 0, 1, 0, 0, 0, 60, 0, address.len() as u8];
    record.extend(address);
    record
}

impl Actor for NameServer {
    fn step(&mut self, world: &World) -> Option<Instant> {
        while let Some((from, query)) = world.receive_from(self.socket) {
            if let Some(response) = self.build_response(&query) {
                self.reply(world, from, response);
            }
        }
        self.send_held(world)
    }
}

impl NameServer {
    /// Sends delayed responses that are due. Returns when the next is due.
    pub(super) fn send_held(&mut self, world: &World) -> Option<Instant> {
        let now = world.now();
        for (_, to, response) in self.held.extract_if(.., |(until, ..)| *until <= now) {
            world.send_to(self.socket, to, &response);
        }
        self.held.iter().map(|(until, ..)| *until).min()
    }

    /// Sends a response, possibly with a fault.
    pub(super) fn reply(&mut self, world: &World, to: SocketAddr, mut response: Vec<u8>) {
        if world.random() % 1000 >= world.plan().name_faults {
            return world.send_to(self.socket, to, &response);
        }
        let faults = [
            NameFault::Late,
            NameFault::Twice,
            NameFault::Guessed,
            NameFault::Failed,
            NameFault::WrongAddress,
        ];
        let fault = faults[(world.random() % faults.len() as u64) as usize];
        world.trace_note("name server", &format!("{fault:?}"));
        match fault {
            NameFault::Late => {
                world.count_trouble("late name");
                let until = world.now() + Duration::from_millis(world.random() % 10_000);
                return self.held.push((until, to, response));
            }
            NameFault::Twice => {
                world.count_trouble("name sent twice");
                world.send_to(self.socket, to, &response);
            }
            NameFault::Guessed => {
                world.count_trouble("forged name");
                let mut guessed = response.clone();
                guessed[1] ^= 1;
                Self::forge_address(&mut guessed);
                world.send_to(self.socket, to, &guessed);
            }
            NameFault::Failed => {
                world.count_trouble("name server fails");
                response[3] = response[3] & 0xf0 | 2;
            }
            NameFault::WrongAddress => {
                world.count_trouble("wrong address");
                Self::forge_address(&mut response);
            }
        }
        world.send_to(self.socket, to, &response);
    }

    /// Replaces the last address of a response by one without a host.
    fn forge_address(response: &mut [u8]) {
        if response[7] > 0 {
            let last = response.len() - 1;
            response[last] ^= 0x40;
        }
    }
}
