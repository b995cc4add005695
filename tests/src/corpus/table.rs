//! docs/refused.md: the valid messages that are refused.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use super::case::{Case, Outcome};

/// Compares the table with the corpus. There must be a row for each case marked `valid`, and no
/// other row.
///
/// A row is `| name of the case | section | status | reason |`; other lines are prose. The lines
/// below the next heading are about responses.
///
/// # Errors
/// Returns the rows that are missing, superfluous or without a section or a reason.
pub fn compare(file: &Path, cases: &[Case]) -> Result<(), String> {
    let text = fs::read_to_string(file).map_err(|error| format!("{}: {error}", file.display()))?;
    let mut rows = BTreeSet::new();
    let mut wrong = Vec::new();
    // The first two lines are the heading and the rule below it.
    let lines = text.lines().take_while(|line| !line.starts_with("## "));
    for line in lines.filter(|line| line.starts_with("| ")).skip(2) {
        let cells: Vec<_> = line.trim_matches('|').split('|').map(str::trim).collect();
        let [name, section, status, reason] = cells[..] else {
            wrong.push(format!("not four cells: {line}"));
            continue;
        };
        if !section.starts_with("RFC ") || reason.is_empty() {
            wrong.push(format!("no section or no reason: {line}"));
        }
        rows.insert(format!("{name} ({status})"));
    }
    let valid = cases.iter().filter(|case| case.valid);
    let valid: BTreeSet<_> =
        valid.map(|case| format!("{} ({})", case.name, status(case))).collect();
    wrong.extend(valid.difference(&rows).map(|name| format!("valid and refused, no row: {name}")));
    wrong.extend(rows.difference(&valid).map(|name| format!("a row without a case: {name}")));
    if wrong.is_empty() { Ok(()) } else { Err(wrong.join("\n")) }
}

/// Returns the status of the refusal in a case, or 0 if there is none.
fn status(case: &Case) -> u16 {
    let mut refusals = case.outcomes.iter().filter_map(|outcome| match outcome {
        Outcome::Refused(own) | Outcome::Cut(own) | Outcome::Served(own) => Some(own.status),
        _ => None,
    });
    refusals.next_back().unwrap_or(0)
}
