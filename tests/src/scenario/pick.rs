//! Finds the part of a script that answers a request, wherever the request comes: for origins whose
//! connections carry whatever the proxy puts on them.

use std::collections::BTreeMap;
use std::sync::Mutex;

use super::check::next_request;
use super::{Action, Names, Script, Subject};

/// Scripts that begin with requests, and how often each request came.
#[derive(Debug)]
pub struct RequestScripts {
    scripts: Vec<Script>,
    names: Names,
    seen: Mutex<BTreeMap<(String, String), usize>>,
}

impl RequestScripts {
    /// Over these scripts.
    pub fn new(scripts: Vec<Script>, names: &Names) -> Self {
        Self { scripts, names: names.clone(), seen: Mutex::default() }
    }

    /// The steps for the request at the beginning of `input`, up to the next request; `None` while
    /// its head is not whole. The first time a request comes it is answered by the first part that
    /// expects it, the next time by the second, and so on; the last serves all that follow.
    ///
    /// # Errors
    /// When the request can be read in two ways, or nobody expects it.
    ///
    /// # Panics
    /// When another thread panicked here.
    pub fn pick(&self, input: &[u8]) -> Result<Option<Script>, String> {
        let Some((method, target)) = next_request(input)? else { return Ok(None) };
        let mut parts: Vec<Script> =
            self.scripts.iter().flat_map(|script| self.parts(script, &method, &target)).collect();
        if parts.is_empty() {
            return Err(format!("nobody expected {method} {target}"));
        }
        let mut seen = self.seen.lock().expect("nobody panics with the lock");
        let times = seen.entry((method, target)).or_default();
        let part = parts.swap_remove((*times).min(parts.len() - 1));
        *times += 1;
        Ok(Some(part))
    }

    /// Methods and targets that came, and how often.
    ///
    /// # Panics
    /// When another thread panicked here.
    pub fn seen(&self) -> BTreeMap<(String, String), usize> {
        self.seen.lock().expect("nobody panics with the lock").clone()
    }

    /// The parts of a script that answer this request.
    fn parts(&self, script: &Script, method: &str, target: &str) -> Vec<Script> {
        let mut parts = Vec::new();
        let mut part: Option<Script> = None;
        for step in &script.steps {
            if let Some((wanted, at)) = request_of(&step.action) {
                parts.extend(part.take());
                if wanted == method && self.names.fill(at) == target {
                    part = Some(Script::default());
                }
            }
            if let Some(part) = &mut part {
                part.steps.push(step.clone());
            }
        }
        parts.extend(part);
        parts
    }
}

/// Method and target of the request that a step expects.
fn request_of(action: &Action) -> Option<(&str, &str)> {
    match action {
        Action::Message(expected) => match &expected.subject {
            Subject::Request { method, target } => Some((method, target)),
            Subject::Response { .. } => None,
        },
        _ => None,
    }
}

impl Script {
    /// Whether it can be picked by a request: it begins with one, or is empty.
    pub fn begins_with_request(&self) -> bool {
        self.steps.first().is_none_or(|step| request_of(&step.action).is_some())
    }
}
