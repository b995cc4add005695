//! Two programs with one configuration: an attacked one and its control.

use std::collections::BTreeMap;
use std::collections::HashMap;
use std::net::Ipv4Addr;

use super::client::Client;
use super::mutant::{Class, Mutant, Probe, Service};
use super::program::Program;
use crate::corpus::literal::escaped;
use crate::strict::{Field, Message, StartLine};

/// Both programs, and the victims' connections to them.
pub(super) struct ProgramPair {
    attacked: ProgramSide,
    control: ProgramSide,
}

/// The counts of a class. They show whether attacks reach the cache: a program that stores nothing,
/// or refuses everything, changes no response either.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ClassCounts {
    /// Mutants that were played.
    pub played: u64,
    /// Mutants that changed another client's response.
    pub changed: u64,
    /// Requests of the attacks that do not overlap with victims' requests.
    pub attacks: u64,
    /// Requests that the origin received during these attacks.
    pub reached: u64,
    /// Responses of the attacked program to victims after attacks.
    pub responses: u64,
    /// Responses from the cache, which have Age.
    pub hits: u64,
    /// Responses with status 400.
    pub refused: u64,
}

/// The result of one mutant.
#[derive(Debug)]
pub(super) struct Outcome {
    /// The difference, if a victim got another response than it should have.
    pub(super) changed: Option<String>,
    pub(super) counts: ClassCounts,
}

struct ProgramSide {
    program: Program,
    /// Connections that stay open from batch to batch.
    clients: HashMap<ClientKey, Client>,
}

/// The service of a victim, and its address.
type ClientKey = (Service, Ipv4Addr);

/// The method of a request, and its bytes.
type Sent = (String, Vec<u8>);

/// The parts of a response that a client sees, apart from those that depend on time and on the
/// state of the cache.
#[derive(Debug)]
struct VisibleResponse {
    text: String,
    /// Whether the response came from the cache.
    is_hit: bool,
    status: u16,
}

/// A response, or why there is none.
type ClientResult = Result<VisibleResponse, String>;

/// Limit of the concurrent requests of one connection, low enough that no buffer fills up.
const PIPELINED_MAX: usize = 8;

impl ProgramPair {
    /// Starts the real program twice.
    pub(super) fn start(engine: &str) -> Self {
        Self::of(|| Program::start(engine))
    }

    /// Starts the cache that makes every mistake, twice.
    pub(super) fn start_broken() -> Self {
        Self::of(Program::start_broken)
    }

    fn of(start: impl Fn() -> Program) -> Self {
        let side = || ProgramSide { program: start(), clients: HashMap::new() };
        Self { attacked: side(), control: side() }
    }

    /// Returns a message if a program has ended, which it must not.
    pub(super) fn ended(&mut self) -> Option<String> {
        let ended = self.attacked.program.ended();
        ended.or_else(|| self.control.program.ended())
    }

    /// Plays mutants, each under the token beside it.
    pub(super) fn play(&mut self, mutants: &[(String, &Mutant)]) -> Vec<Outcome> {
        for side in [&mut self.attacked, &mut self.control] {
            for (token, mutant) in mutants {
                side.program.origins.register(token.clone(), mutant.model.clone());
            }
            side.requests(mutants, |mutant| &mutant.before);
        }
        let requests_before = self.origin_requests(mutants);
        let attacks: Vec<_> = mutants.iter().map(|(token, it)| self.attack(token, it)).collect();
        let (mut failed, mut open) = (Vec::new(), Vec::new());
        for (client, (_, mutant)) in attacks.into_iter().zip(mutants) {
            let (client, why) = match client {
                Ok(client) if mutant.overlaps => (Some(client), None),
                Ok(client) => (None, client.finish().err()),
                Err(why) => (None, Some(why)),
            };
            open.push(client);
            failed.push(why);
        }
        let requests_after = self.origin_requests(mutants);
        let got = self.attacked.requests(mutants, |mutant| &mutant.after);
        for (client, why) in open.into_iter().zip(&mut failed) {
            *why = why.take().or(client.and_then(|client| client.finish().err()));
        }
        let expected = self.control.requests(mutants, |mutant| &mutant.after);
        for side in [&self.attacked, &self.control] {
            mutants.iter().for_each(|(token, _)| side.program.origins.forget(token));
        }
        let mut outcomes = Vec::new();
        for (at, failed) in failed.into_iter().enumerate() {
            let failed = failed.map(|why| format!("the attack did not end: {why}"));
            let changed = failed.or_else(|| difference(&got[at], &expected[at]));
            let mut counts = ClassCounts { played: 1, ..ClassCounts::of(&got[at]) };
            counts.changed = u64::from(changed.is_some());
            if !mutants[at].1.overlaps {
                counts.attacks = mutants[at].1.attack.requests.len() as u64;
                counts.reached = requests_after[at] - requests_before[at];
            }
            outcomes.push(Outcome { changed, counts });
        }
        outcomes
    }

    /// Returns how many requests of each mutant the origins of the attacked program have received.
    fn origin_requests(&self, mutants: &[(String, &Mutant)]) -> Vec<u64> {
        let origins = &self.attacked.program.origins;
        mutants.iter().map(|(token, _)| origins.requests(token)).collect()
    }

    /// Sends the attacker's requests, and returns the client.
    fn attack(&mut self, token: &str, mutant: &Mutant) -> Result<Client, String> {
        let attack = &mutant.attack;
        let program = &self.attacked.program;
        if mutant.class == Class::Early {
            self.attacked.clients.retain(|(service, _), _| !service.is_early());
            program.origins.end_early();
        }
        let origin = program.origins.modelled.to_string();
        let mut client = Client::connect(attack.from, program.address(attack.service))?;
        for request in &attack.requests {
            let (header, body) = request.bytes(attack.service, token, &origin);
            let early = request.early.map(|early| early.min(body.len().saturating_sub(1)));
            let (first, rest) = body.split_at(early.unwrap_or(body.len()));
            client.send(&[&header, first].concat());
            if early.is_some() {
                client.response(&request.method)?;
                client.send(rest);
            }
        }
        Ok(client)
    }
}

impl ProgramSide {
    /// Sends the victims' requests of all mutants in rounds: all first requests, then all second
    /// ones.
    fn requests(
        &mut self,
        mutants: &[(String, &Mutant)],
        of: impl Fn(&Mutant) -> &[Probe],
    ) -> Vec<Vec<ClientResult>> {
        let mut shown: Vec<Vec<ClientResult>> = mutants.iter().map(|_| Vec::new()).collect();
        let rounds = mutants.iter().map(|(_, mutant)| of(mutant).len()).max().unwrap_or(0);
        let origin = self.program.origins.modelled.to_string();
        for round in 0..rounds {
            let mut groups: BTreeMap<ClientKey, Vec<(usize, Sent)>> = BTreeMap::new();
            for (at, (token, mutant)) in mutants.iter().enumerate() {
                if let Some(Probe { service, from, request }) = of(mutant).get(round) {
                    let (header, body) = request.bytes(*service, token, &origin);
                    let sent = (request.method.clone(), [header, body].concat());
                    groups.entry((*service, *from)).or_default().push((at, sent));
                }
            }
            for (client_key, requests) in groups {
                for part in requests.chunks(PIPELINED_MAX) {
                    let sent: Vec<_> = part.iter().map(|(_, sent)| sent).collect();
                    let responses = self.pipeline(client_key, &sent);
                    for ((at, _), response) in part.iter().zip(responses) {
                        shown[*at].push(response.map(|message| show(&message)));
                    }
                }
            }
        }
        shown
    }

    /// Returns the responses to pipelined requests. If the connection ends too early, it sends the
    /// remaining requests again on another one.
    fn pipeline(
        &mut self,
        client_key: ClientKey,
        requests: &[&Sent],
    ) -> Vec<Result<Message, String>> {
        let address = self.program.address(client_key.0);
        let mut responses: Vec<Result<Message, String>> = Vec::new();
        while responses.len() < requests.len() {
            let kept = self.clients.remove(&client_key);
            let is_new = kept.is_none();
            let client = kept.map_or_else(|| Client::connect(client_key.1, address), Ok);
            let count = responses.len();
            match client.and_then(|client| take(client, &requests[count..], &mut responses)) {
                Ok(Some(client)) => drop(self.clients.insert(client_key, client)),
                Ok(None) if is_new && responses.len() == count => {
                    responses.push(Err("no response".to_owned()));
                }
                Ok(None) => {}
                Err(why) => responses.push(Err(why)),
            }
        }
        responses
    }
}

/// Sends requests at once and reads their responses. Returns the client if its connection
/// continues.
fn take(
    mut client: Client,
    requests: &[&Sent],
    responses: &mut Vec<Result<Message, String>>,
) -> Result<Option<Client>, String> {
    let bytes: Vec<&[u8]> = requests.iter().map(|(_, bytes)| &bytes[..]).collect();
    client.send(&bytes.concat());
    for (method, _) in requests {
        match client.response(method)? {
            Some(message) => responses.push(Ok(message)),
            None => return Ok(None),
        }
    }
    Ok(Some(client))
}

/// Returns a response as text, without the fields that depend on time and on the state of the
/// cache.
fn show(message: &Message) -> VisibleResponse {
    let reason = match &message.start {
        StartLine::Response { reason, .. } => escaped(reason),
        StartLine::Request { .. } => String::new(),
    };
    let mut text = format!("{} {reason}\n", message.status());
    // The order of fields with different names has no meaning, RFC 9110 section 5.3.
    let mut fields: Vec<&Field> = message.fields.iter().collect();
    fields.sort_by_key(|field| field.name.to_ascii_lowercase());
    for Field { name, value } in fields {
        if !["age", "date", "cache-status"].contains(&&*name.to_ascii_lowercase()) {
            text.push_str(&format!("{name}: {}\n", without_pseudonym(&escaped(value))));
        }
    }
    text = text + "\n" + &escaped(&message.body);
    let is_hit = message.fields.iter().any(|field| field.is("age"));
    VisibleResponse { text, is_hit, status: message.status() }
}

/// Returns a Via value without the program's pseudonym, which contains a random number.
fn without_pseudonym(value: &str) -> String {
    const NAME: &str = "millrace-";
    match value.find(NAME).map(|at| at + NAME.len()) {
        Some(at) if value[at..].len() >= 16 => format!("{}{}", &value[..at], &value[at + 16..]),
        _ => value.to_owned(),
    }
}

/// Returns the difference if a victim got another response than it should have, or `None`.
fn difference(got: &[ClientResult], expected: &[ClientResult]) -> Option<String> {
    let differs = |(got, expected): (&ClientResult, &ClientResult)| match (got, expected) {
        (Ok(got), Ok(expected)) => got.text != expected.text,
        _ => true,
    };
    let differing = got.iter().zip(expected).position(differs)?;
    let say = |seen: &ClientResult| match seen {
        Ok(shown) => shown.text.replace('\n', "\n      "),
        Err(why) => why.clone(),
    };
    Some(format!(
        "request {} of a victim got\n      {}\n    instead of\n      {}",
        differing + 1,
        say(&got[differing]),
        say(&expected[differing])
    ))
}

impl ClassCounts {
    fn of(seen: &[ClientResult]) -> Self {
        let mut counts = Self::default();
        for shown in seen.iter().flatten() {
            counts.responses += 1;
            counts.hits += u64::from(shown.is_hit);
            counts.refused += u64::from(shown.status == 400);
        }
        counts
    }

    /// Adds other counts of the class.
    pub(super) fn join(&mut self, other: Self) {
        self.played += other.played;
        self.changed += other.changed;
        self.attacks += other.attacks;
        self.reached += other.reached;
        self.responses += other.responses;
        self.hits += other.hits;
        self.refused += other.refused;
    }
}
