//! Counts the instructions of each exchange by running this program under callgrind.

use std::collections::HashMap;
use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use super::play::{PART_ENDS, READ};
use super::site::{SITES, number_of};
use crate::border;

/// A run of this program under callgrind.
pub(super) struct Run {
    child: Child,
    profile: PathBuf,
}

impl Run {
    /// Starts this program with these arguments, and this variable in its environment.
    ///
    /// # Errors
    /// Returns why valgrind does not start.
    pub(super) fn start(
        arguments: &[&str],
        variable: (&str, &str),
        index: usize,
    ) -> Result<Self, String> {
        let program = std::env::current_exe().map_err(|error| error.to_string())?;
        let profile = program.with_file_name(format!("growth-{}-{index}.out", std::process::id()));
        let valgrind = Command::new("valgrind")
            .env_clear()
            .envs(std::env::var_os("PATH").map(|path| ("PATH", path)))
            .envs([variable])
            .args(["--tool=callgrind", "--collect-atstart=no", "--combine-dumps=yes"])
            .args(border::SWITCHES.map(|pattern| format!("--toggle-collect={pattern}")))
            .arg(format!("--toggle-collect={READ}"))
            .arg(format!("--dump-before={PART_ENDS}"))
            .arg(format!("--callgrind-out-file={}", profile.display()))
            .arg(&program)
            .args(arguments)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn();
        let child = valgrind.map_err(|error| {
            format!("valgrind does not start: {error} (scripts/setup test installs it)")
        })?;
        Ok(Self { child, profile })
    }

    /// Returns the instructions of each exchange.
    ///
    /// # Errors
    /// Returns the output of the run if it failed.
    pub(super) fn end(self) -> Result<Vec<u64>, String> {
        let output = self.child.wait_with_output().map_err(|error| error.to_string())?;
        let profile = fs::read_to_string(&self.profile).unwrap_or_default();
        let _ = fs::remove_file(&self.profile);
        if !output.status.success() {
            let [out, err] = [output.stdout, output.stderr];
            let [out, err] = [&out, &err].map(|text| String::from_utf8_lossy(text));
            return Err(format!("a run under callgrind failed: {}\n{out}\n{err}", output.status));
        }
        Ok(counts(&profile))
    }
}

/// Returns the instructions of each exchange in a profile. They are the inclusive costs of the call
/// sites in each part except the first, which ends before the first exchange.
fn counts(profile: &str) -> Vec<u64> {
    let mut functions: HashMap<&str, usize> = HashMap::new();
    let mut parts: Vec<[u64; SITES]> = Vec::new();
    let mut site = None;
    for line in profile.lines() {
        if line.starts_with("part: ") {
            parts.push([0; SITES]);
            site = None;
        } else if let Some((kind, function)) = function_of(line) {
            // Callgrind writes the name of a function only where its number first occurs.
            let (number, name) = function.split_once(' ').unwrap_or((function, ""));
            if let Some(site) = number_of(name) {
                functions.insert(number, site);
            }
            if kind == "fn" {
                site = functions.get(number).copied();
            }
        } else if let (Some(site), Some(part)) = (site, parts.last_mut()) {
            part[site] += cost_of(line);
        }
    }
    parts.into_iter().skip(1).flatten().collect()
}

/// Parses a line that begins the lines of a function (`fn`) or names a callee (`cfn`).
fn function_of(line: &str) -> Option<(&str, &str)> {
    line.split_once('=').filter(|(kind, _)| matches!(*kind, "fn" | "cfn"))
}

/// Returns the cost in a line with a position and a cost; 0 for any other line.
fn cost_of(line: &str) -> u64 {
    let is_position =
        line.starts_with(|first: char| first.is_ascii_digit() || "+-*".contains(first));
    let cost = line.split_once(' ').filter(|_| is_position).map(|(_, cost)| cost);
    cost.and_then(|cost| cost.parse().ok()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_profile_has_the_inclusive_cost_of_each_site() {
        let site = "millrace_tests::growth::site";
        let profile = format!(
            "version: 1\npart: 1\nfn=(1) main\n5 7\n\
             part: 2\nfn=(2) {site}::row0::at1\ncfn=(3) turn\ncalls=2 0\n12 40\n+1 2\n\
             fn=(3)\n3 99\nfn=(1)\ncfn=(4) {site}::row15::at15\ncalls=1 1\n4 5\n\ntotals: 99\n\
             part: 3\nfn=(4)\ncfn=(3)\ncalls=1 0\n* 8\ntotals: 8\n"
        );
        let counts = counts(&profile);
        assert_eq!(counts.len(), 2 * SITES);
        assert_eq!((counts[1], counts[255], counts[256], counts[511]), (42, 0, 0, 8));
    }
}
