//! docs/refused.md: the valid messages that are refused.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use super::case::{Case, Outcome};

/// Compares the table with the corpus. Each case of a refused valid message names its row, and each
/// row has a case.
///
/// A row is `| name | section | status | reason |`; other lines are prose. The lines
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
    let valid: BTreeSet<_> = cases
        .iter()
        .filter_map(|case| Some(format!("{} ({})", case.valid.as_ref()?, status(case))))
        .collect();
    wrong.extend(valid.difference(&rows).map(|row| format!("a case without a row: {row}")));
    wrong.extend(rows.difference(&valid).map(|row| format!("a row without a case: {row}")));
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
