//! A header, the man pages and a shared library that tell the same.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::c::{ROOT, run};

/// A library for C as it is described.
pub(crate) struct Library {
    pub(crate) header: PathBuf,
    /// What the names of its functions begin with.
    pub(crate) prefix: &'static str,
}

impl Library {
    fn header(&self) -> String {
        fs::read_to_string(&self.header).expect("the header is there")
    }

    /// The functions that the header declares.
    pub(crate) fn functions(&self) -> BTreeSet<String> {
        let header = self.header();
        let code = header.lines().map(code);
        let names = code.filter_map(|line| line.split_once('(')?.0.rsplit([' ', '*']).next());
        names.filter(|name| name.starts_with(self.prefix)).map(str::to_owned).collect()
    }

    /// Each function has a man page of its own, or a link to one, and `file` exports it and nothing
    /// else.
    pub(crate) fn assert_functions(&self, file: &Path) {
        let functions = self.functions();
        for name in &functions {
            let text = page(name).unwrap_or_default();
            assert!(text.contains(&format!("{name}(")), "{name} is not in its man page");
        }
        let mut nm = Command::new("nm");
        nm.args(["--dynamic", "--defined-only", "--format=just-symbols"]).arg(file);
        let exported: BTreeSet<String> = run(&mut nm).lines().map(str::to_owned).collect();
        assert_eq!(exported, functions);
    }

    /// Each of the header's structures is in the man page of a function as it is there; gives how
    /// many there are.
    pub(crate) fn assert_structures(&self) -> usize {
        let (header, mut count) = (self.header(), 0);
        let pages: Vec<String> =
            self.functions().iter().filter_map(|name| page(name)).map(|text| bare(&text)).collect();
        for (at, _) in header.match_indices(&format!("struct {}", self.prefix)) {
            let (name, rest) = header[at..].split_once('\n').expect("lines end");
            if name.ends_with('{') {
                let fields = rest.split_once("\n};").expect("structures end").0;
                let structure = bare(&format!("{name}{fields}}};"));
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

/// A line without its comment.
fn code(line: &str) -> &str {
    line.split("//").next().unwrap_or_default()
}

/// Text without comments and white space.
fn bare(text: &str) -> String {
    text.lines()
        .map(code)
        .flat_map(str::chars)
        .filter(|character| !character.is_whitespace())
        .collect()
}
