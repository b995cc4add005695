//! docs/refused.md: the valid messages that are refused all the same.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use super::case::Case;

/// Compares the table with the corpus: a row for each case marked `valid`, and no other row.
///
/// A row is `| name of the case | section | status | reason |`; other lines are prose.
///
/// # Errors
/// Names the rows that are missing, superfluous or without a section or a reason.
pub fn compare(file: &Path, cases: &[Case]) -> Result<(), String> {
    let text = fs::read_to_string(file).map_err(|error| format!("{}: {error}", file.display()))?;
    let mut rows = BTreeSet::new();
    let mut wrong = Vec::new();
    // The first two lines are the heading and the rule below it.
    for line in text.lines().filter(|line| line.starts_with("| ")).skip(2) {
        let cells: Vec<_> = line.trim_matches('|').split('|').map(str::trim).collect();
        let [name, section, _, reason] = cells[..] else {
            wrong.push(format!("not four cells: {line}"));
            continue;
        };
        if !section.starts_with("RFC ") || reason.is_empty() {
            wrong.push(format!("no section or no reason: {line}"));
        }
        rows.insert(name.to_owned());
    }
    let valid: BTreeSet<_> =
        cases.iter().filter(|case| case.valid).map(|case| case.name.clone()).collect();
    wrong.extend(valid.difference(&rows).map(|name| format!("valid and refused, no row: {name}")));
    wrong.extend(rows.difference(&valid).map(|name| format!("a row without a case: {name}")));
    if wrong.is_empty() { Ok(()) } else { Err(wrong.join("\n")) }
}
