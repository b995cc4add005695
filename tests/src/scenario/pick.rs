//! Selects the part of a script that responds to a request.
//!
//! It serves origins that do not know which connection will carry which request.

use std::collections::BTreeMap;
use std::sync::Mutex;

use super::check::next_request;
use super::{Action, ExpectedStart, Placeholders, Script};

/// Scripts that begin with requests, and how often each request arrived.
#[derive(Debug)]
pub struct RequestScripts {
    scripts: Vec<Script>,
    names: Placeholders,
    seen: Mutex<BTreeMap<(String, String), usize>>,
}

impl RequestScripts {
    /// Creates a selection from these scripts.
    pub fn new(scripts: Vec<Script>, names: &Placeholders) -> Self {
        Self { scripts, names: names.clone(), seen: Mutex::default() }
    }

    /// Returns the steps for the request at the beginning of `input`, up to the next request, or
    /// `None` while its header is incomplete. The first part that expects the request serves its
    /// first arrival, the second part the second, and so on. The last part serves all that follow.
    ///
    /// # Errors
    /// Returns an error if the request is ambiguous, or if no script expects it.
    ///
    /// # Panics
    /// Panics if another thread panicked here.
    pub fn pick(&self, input: &[u8]) -> Result<Option<Script>, String> {
        let Some((method, target)) = next_request(input)? else { return Ok(None) };
        let mut parts: Vec<Script> =
            self.scripts.iter().flat_map(|script| self.parts(script, &method, &target)).collect();
        if parts.is_empty() {
            return Err(format!("no script expects {method} {target}"));
        }
        let mut seen = self.seen.lock().expect("no thread panics with the lock");
        let times = seen.entry((method, target)).or_default();
        let part = parts.swap_remove((*times).min(parts.len() - 1));
        *times += 1;
        Ok(Some(part))
    }

    /// Returns the method and target of each request that arrived, with the number of arrivals.
    ///
    /// # Panics
    /// Panics if another thread panicked here.
    pub fn seen(&self) -> BTreeMap<(String, String), usize> {
        self.seen.lock().expect("no thread panics with the lock").clone()
    }

    /// Returns the parts of a script that respond to this request.
    fn parts(&self, script: &Script, method: &str, target: &str) -> Vec<Script> {
        let mut parts = Vec::new();
        let mut part: Option<Script> = None;
        for step in &script.steps {
            if let Some((expected_method, target_text)) = request_of(&step.action) {
                parts.extend(part.take());
                if expected_method == method && self.names.fill(target_text) == target {
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

/// Returns method and target of the request that a step expects.
fn request_of(action: &Action) -> Option<(&str, &str)> {
    match action {
        Action::Message(expected) => match &expected.start {
            ExpectedStart::Request { method, target } => Some((method, target)),
            ExpectedStart::Response { .. } => None,
        },
        _ => None,
    }
}

impl Script {
    /// Returns whether a request can select this script: it begins with a request, or is empty.
    pub fn begins_with_request(&self) -> bool {
        self.steps.first().is_none_or(|step| request_of(&step.action).is_some())
    }
}
