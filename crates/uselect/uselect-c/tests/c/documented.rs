//! Compares a header, its man pages and a shared library.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::c::{ROOT, run};

/// A library for C and its documentation.
pub(crate) struct Library {
    pub(crate) header: PathBuf,
    /// The prefix of the names of its functions.
    pub(crate) prefix: &'static str,
}

impl Library {
    fn header(&self) -> String {
        fs::read_to_string(&self.header).expect("the header exists")
    }

    /// Returns the functions that the header declares.
    pub(crate) fn functions(&self) -> BTreeSet<String> {
        let header = self.header();
        let without_comment = header.lines().map(without_comment);
        let names =
            without_comment.filter_map(|line| line.split_once('(')?.0.rsplit([' ', '*']).next());
        names.filter(|name| name.starts_with(self.prefix)).map(str::to_owned).collect()
    }

    /// Asserts that each function has a man page or a link to one, and that `file` exports exactly
    /// these functions.
    pub(crate) fn assert_functions(&self, file: &Path) {
        let functions = self.functions();
        for name in &functions {
            let text = page(name).unwrap_or_default();
            assert!(text.contains(&format!("{name}(")), "{name} is not documented");
        }
        let mut nm = Command::new("nm");
        nm.args(["--dynamic", "--defined-only", "--format=just-symbols"]).arg(file);
        let exported: BTreeSet<String> = run(&mut nm).lines().map(str::to_owned).collect();
        assert_eq!(exported, functions);
    }

    /// Asserts that the man page of a function shows each structure of the header, with the same
    /// fields. Returns the number of structures.
    pub(crate) fn assert_structures(&self) -> usize {
        let (header, mut count) = (self.header(), 0);
        let pages: Vec<String> = self
            .functions()
            .iter()
            .filter_map(|name| page(name))
            .map(|text| normalize(&text))
            .collect();
        for (at, _) in header.match_indices(&format!("struct {}", self.prefix)) {
            let (name, rest) = header[at..].split_once('\n').expect("lines end");
            if name.ends_with('{') {
                let fields = rest.split_once("\n};").expect("structures end").0;
                let structure = normalize(&format!("{name}{fields}}};"));
                assert!(pages.iter().any(|page| page.contains(&structure)), "{structure}");
                count += 1;
            }
        }
        count
    }
}

fn page(function: &str) -> Option<String> {
    fs::read_to_string(Path::new(ROOT).join("man").join(format!("{function}.3"))).ok()
}

/// Removes the comment of a line.
fn without_comment(line: &str) -> &str {
    line.split("//").next().unwrap_or_default()
}

/// Removes comments and white space.
fn normalize(text: &str) -> String {
    text.lines()
        .map(without_comment)
        .flat_map(str::chars)
        .filter(|character| !character.is_whitespace())
        .collect()
}
