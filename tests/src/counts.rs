//! The baseline of `make icount`: a table with a row for each script, below a line that names the
//! toolchain.

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

/// Growth of a row in per cent above which the check fails, and decrease above which the report
/// mentions it.
pub const TOLERANCE_PERCENT: u64 = 2;

/// Instructions per exchange, in the order of the scripts.
pub struct Table {
    /// The toolchain, and everything else that affects the counts without being code of the
    /// project.
    pub maker: String,
    /// Names and counts of the scripts.
    pub rows: Vec<(String, u64)>,
}

/// The result of a comparison with the baseline.
#[derive(PartialEq, Eq, Debug)]
pub enum Verdict {
    /// No row grew beyond the tolerance.
    WithinTolerance,
    /// A row grew beyond the tolerance, or the tables have different scripts.
    TooExpensive,
    /// Different toolchains made the two tables.
    Incomparable,
}

const MADE_BY: &str = "# made by: ";
const HEAD: &str = "\
# Instructions that the stages of one worker take per exchange, by script (make icount).
# What is counted, and how to read it: docs/measuring/cost.md. Written by: make icount ACCEPT=1
";

impl Table {
    /// Reads the committed baseline; it is empty if there is none.
    pub fn read() -> Self {
        Self::parse(&fs::read_to_string(path()).unwrap_or_default())
    }

    /// Replaces the baseline.
    ///
    /// # Panics
    /// Panics if the project's folder cannot be written.
    pub fn write(&self) {
        fs::write(path(), self.text()).expect("the project is in a folder that can be written");
    }

    fn parse(text: &str) -> Self {
        let maker = text.lines().find_map(|line| line.strip_prefix(MADE_BY)).unwrap_or_default();
        let rows = text.lines().filter(|line| !line.starts_with('#')).filter_map(|line| {
            let (name, count) = line.split_once(' ')?;
            Some((name.to_owned(), count.trim().parse().ok()?))
        });
        Self { maker: maker.to_owned(), rows: rows.collect() }
    }

    fn text(&self) -> String {
        let mut text = format!("{HEAD}{MADE_BY}{}\n", self.maker);
        for (name, count) in &self.rows {
            let _ = writeln!(text, "{name:<20} {count:>7}");
        }
        text
    }

    fn row(&self, name: &str) -> Option<u64> {
        self.rows.iter().find(|row| row.0 == name).map(|row| row.1)
    }
}

fn path() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/icount/baseline.txt")
}

/// Compares `counted` with the baseline.
pub fn verdict(baseline: &Table, counted: &Table) -> Verdict {
    if baseline.maker != counted.maker {
        return Verdict::Incomparable;
    }
    let names = |table: &Table| table.rows.iter().map(|row| row.0.clone()).collect::<Vec<_>>();
    let holds = counted.rows.iter().all(|(name, count)| {
        baseline.row(name).is_some_and(|before| count * 100 <= before * (100 + TOLERANCE_PERCENT))
    });
    if holds && names(baseline) == names(counted) {
        Verdict::WithinTolerance
    } else {
        Verdict::TooExpensive
    }
}

/// Returns both tables side by side, and marks rows that differ by more than the tolerance.
pub fn report(baseline: &Table, counted: &Table) -> String {
    let mut text = format!("{:<20} {:>8} {:>8}\n", "instructions", "baseline", "now");
    for (name, count) in &counted.rows {
        let Some(before) = baseline.row(name) else {
            let _ = writeln!(text, "{name:<20} {:>8} {count:>8}  new", "-");
            continue;
        };
        let percent = (*count as f64 / before as f64 - 1.0) * 100.0;
        let word = match percent {
            _ if percent > TOLERANCE_PERCENT as f64 => "  above the tolerance",
            _ if percent < -(TOLERANCE_PERCENT as f64) => {
                "  cheaper: make icount ACCEPT=1 records it"
            }
            _ => "",
        };
        let _ = writeln!(text, "{name:<20} {before:>8} {count:>8} {percent:>+7.2} %{word}");
    }
    for (name, before) in &baseline.rows {
        if counted.row(name).is_none() {
            let _ = writeln!(text, "{name:<20} {before:>8} {:>8}  gone", "-");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(rows: &[(&str, u64)]) -> Table {
        let rows = rows.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect();
        Table { maker: "rustc 1, valgrind 1".to_owned(), rows }
    }

    #[test]
    fn a_written_table_is_read_back() {
        let written = table(&[("a", 12), ("b-1k", 34_567)]);
        let read = Table::parse(&written.text());
        assert_eq!((read.maker, read.rows), (written.maker, written.rows));
    }

    #[test]
    fn the_committed_baseline_has_rows_and_a_toolchain() {
        let baseline = Table::read();
        assert!(baseline.maker.starts_with("rustc "), "made by {:?}", baseline.maker);
        assert!(!baseline.rows.is_empty());
    }

    #[test]
    fn growth_up_to_the_tolerance_passes() {
        let baseline = table(&[("a", 1000), ("b", 2000)]);
        assert_eq!(
            verdict(&baseline, &table(&[("a", 1020), ("b", 1000)])),
            Verdict::WithinTolerance
        );
        assert_eq!(verdict(&baseline, &table(&[("a", 1021), ("b", 1000)])), Verdict::TooExpensive);
        let report = report(&baseline, &table(&[("a", 1021), ("b", 1000)]));
        assert!(report.contains("above") && report.contains("cheaper"), "{report}");
    }

    #[test]
    fn new_and_removed_scripts_have_to_be_accepted() {
        let baseline = table(&[("a", 1000)]);
        assert_eq!(verdict(&baseline, &table(&[("a", 1000), ("b", 1)])), Verdict::TooExpensive);
        assert_eq!(verdict(&baseline, &table(&[])), Verdict::TooExpensive);
    }

    #[test]
    fn another_toolchain_is_not_compared() {
        let mut counted = table(&[("a", 9999)]);
        counted.maker.push('1');
        assert_eq!(verdict(&table(&[("a", 1000)]), &counted), Verdict::Incomparable);
    }
}
