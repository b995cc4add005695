//! The input of mutations: the messages of the corpus, as templates.
//!
//! A template contains one private-use Unicode character in place of an address. A change can move,
//! repeat or remove it, but not turn it into another address: a mutant at a forward proxy must not
//! send requests to a server that is not ours.

use super::case::{Case, Outcome, OwnResponse};
use super::literal::{Literal, Role, Substitutions, escaped, fill};
use super::mutate::mutate;
use super::random::Random;

/// Stands for the origin's address and port.
const HOST: &str = "\u{e000}";
/// Stands for the program's own address and port.
const OWN: &str = "\u{e001}";

/// The templates of one role.
pub struct Templates {
    role: Role,
    seeds: Vec<Template>,
    /// Indices of the seeds that are forwarded. They are closest to what the program accepts.
    forwarded: Vec<usize>,
    /// The refusals of valid messages that docs/refused.md lists.
    pub(super) listed_refusals: Vec<OwnResponse>,
}

struct Template {
    name: String,
    sent: Vec<u8>,
    target: String,
    response: Option<Vec<u8>>,
}

/// A mutated message, and the origin's response to it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Mutant {
    /// The name of its case.
    pub name: String,
    /// The client's bytes, as a template.
    pub sent: Vec<u8>,
    /// The origin's response to a request for `target`, as a template; `None`: the default
    /// response.
    pub response: Option<Vec<u8>>,
    /// The target that gets `response`.
    pub target: String,
    /// Where the client's bytes are split into segments, in thousandths of their length.
    pub cuts: Vec<usize>,
}

impl Templates {
    /// Returns the cases of the corpus that may be mutated in this role. It excludes those that
    /// open tunnels, whose content is not checked, and those that name other servers.
    pub fn new(cases: &[Case], role: Role) -> Self {
        let substitutions = Substitutions {
            host: HOST.to_owned(),
            role,
            own: OWN.to_owned(),
            via: "millrace".to_owned(),
        };
        let mut templates =
            Self { role, seeds: Vec::new(), forwarded: Vec::new(), listed_refusals: Vec::new() };
        for case in cases.iter().filter(|case| case.runs(role)) {
            let whole = |lines: &Vec<String>, sent| {
                fill(lines, &substitutions, sent).expect("checked before").bytes()
            };
            let sent = whole(&case.sent, true);
            if case.valid.is_some() {
                templates
                    .listed_refusals
                    .extend(case.outcomes.iter().filter_map(Outcome::own).cloned());
            }
            if !is_ours(&sent, role) || case.outcomes.contains(&Outcome::Tunnel) {
                continue;
            }
            let seen = whole(case.seen.first().unwrap_or(&case.sent), false);
            let target = String::from_utf8_lossy(&seen).split(' ').nth(1).unwrap_or("").to_owned();
            let response = case.responses.first().map(|lines| whole(lines, false));
            if case.outcomes.first() == Some(&Outcome::Forwarded) {
                templates.forwarded.push(templates.seeds.len());
            }
            templates.seeds.push(Template { name: case.name.clone(), sent, target, response });
        }
        templates
    }

    /// Returns the mutant of this sequence.
    pub fn mutant(&self, random: &mut Random) -> Mutant {
        loop {
            let seed = self.pick(random);
            let mut mutant = Mutant {
                name: seed.name.clone(),
                sent: seed.sent.clone(),
                response: seed.response.clone(),
                target: seed.target.clone(),
                cuts: (0..random.below(4)).map(|_| random.below(1000)).collect(),
            };
            mutant.cuts.sort_unstable();
            let other = self.pick(random);
            match (&mut mutant.response, &other.response) {
                (Some(response), answer) if random.below(2) == 0 => {
                    mutate(
                        response,
                        answer.as_deref().unwrap_or(b"HTTP/1.1 200 OK\r\n\r\n"),
                        random,
                    );
                }
                _ => mutate(&mut mutant.sent, &other.sent, random),
            }
            if is_ours(&mutant.sent, self.role) {
                return mutant;
            }
        }
    }

    fn pick(&self, random: &mut Random) -> &Template {
        if random.below(2) == 0 && !self.forwarded.is_empty() {
            return &self.seeds[self.forwarded[random.below(self.forwarded.len())]];
        }
        &self.seeds[random.below(self.seeds.len())]
    }
}

impl Mutant {
    /// Returns the segments that the client sends, with these substitutions.
    pub(crate) fn segments(&self, substitutions: &Substitutions) -> Vec<Vec<u8>> {
        let sent = expand(&self.sent, substitutions);
        let mut cuts: Vec<_> = self.cuts.iter().map(|cut| cut * sent.len() / 1000).collect();
        cuts.extend([0, sent.len()]);
        cuts.sort_unstable();
        cuts.dedup();
        cuts.windows(2).map(|cut| sent[cut[0]..cut[1]].to_owned()).collect()
    }

    /// Returns the origin's response, with these substitutions.
    pub(crate) fn script(&self, substitutions: &Substitutions) -> Option<(String, Literal)> {
        let response = expand(self.response.as_ref()?, substitutions);
        Some((self.target.clone(), Literal::of(response)))
    }

    /// Returns both sides in the format of the corpus, for error messages.
    pub(super) fn description(&self) -> String {
        let shown = |template: &[u8]| {
            let text = escaped(template).replace(&escaped(HOST.as_bytes()), "{host}");
            text.replace(&escaped(OWN.as_bytes()), "{self}")
        };
        let (sent, response) = (shown(&self.sent), self.response.as_deref().map(shown));
        let response =
            response.map(|response| format!("\n  origin sends: {response}")).unwrap_or_default();
        let cuts = match &self.cuts[..] {
            [] => String::new(),
            cuts => format!("\n  cut at {cuts:?} thousandths"),
        };
        format!("  client: {sent}{response}{cuts}")
    }

    /// Returns whether the mutant may be sent in this role.
    pub(super) fn may_run(&self, role: Role) -> bool {
        is_ours(&self.sent, role)
    }
}

/// Returns whether a template for a forward proxy names no server but the origin under test, and
/// opens no tunnel. A reverse proxy connects only to its origin, so any template is ours.
fn is_ours(sent: &[u8], role: Role) -> bool {
    let ours = |at: usize| {
        let rest = &sent[at..];
        let elsewhere = rest.starts_with(b"://") && !rest[3..].starts_with(HOST.as_bytes());
        !rest.starts_with(b"CONNECT ") && !elsewhere
    };
    role == Role::Boost || (0..sent.len()).all(ours)
}

fn expand(template: &[u8], substitutions: &Substitutions) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(template.len() + 64);
    let mut rest = template;
    while let Some((first, after)) = rest.split_first() {
        let marks = [(HOST, &substitutions.host), (OWN, &substitutions.own)];
        match marks.iter().find(|(mark, _)| rest.starts_with(mark.as_bytes())) {
            Some((mark, address)) => {
                bytes.extend_from_slice(address.as_bytes());
                rest = &rest[mark.len()..];
            }
            None => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mutants_contain_no_other_address() {
        let substitutions = Substitutions {
            host: "127.9.9.9:49999".to_owned(),
            role: Role::Forward,
            own: "127.9.9.8:1".to_owned(),
            via: String::new(),
        };
        let template = format!("GET http://{HOST}/ HTTP/1.1\r\nHost: {HOST}\r\n\r\n");
        for seed in 0..10_000 {
            let mut mutant = template.clone().into_bytes();
            mutate(&mut mutant, template.as_bytes(), &mut Random::new(seed));
            if !is_ours(&mutant, Role::Forward) {
                continue;
            }
            let bytes = expand(&mutant, &substitutions);
            let mut targets = bytes.windows(4).enumerate().filter(|(_, four)| four == b"://1");
            let whole =
                |(at, _): (usize, _)| bytes[at + 3..].starts_with(substitutions.host.as_bytes());
            assert!(targets.all(whole), "{}", bytes.escape_ascii());
        }
    }
}
