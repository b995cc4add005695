//! Rule: no test depends on a port that another program may use: tests do not contain the default
//! ports of millrace. A comment `default port: …` exempts a line that only parses such a port.

use crate::defect::Defect;
use crate::tree::Tree;

const DEFAULT_PORTS: [&str; 2] = ["3128", "8080"];

/// A comment that exempts its line.
const MARKER: &str = "default port:";

/// Returns the default ports in tests.
pub(super) fn check(tree: &Tree) -> Vec<Defect> {
    let mut defects = Vec::new();
    let sources = tree.sources.iter().map(|(path, source)| (path, &source.text));
    for (path, text) in sources.chain(&tree.texts).filter(|(path, _)| is_test(path)) {
        for (number, line) in text.lines().enumerate().filter(|(_, line)| !line.contains(MARKER)) {
            for port in DEFAULT_PORTS.iter().filter(|port| has_number(line, port)) {
                let wrong = format!("{port} is a default port");
                defects.push(Defect::new(path, number + 1, wrong, "port 0, or a reserved port"));
            }
        }
    }
    defects
}

/// Returns whether a file belongs to tests. In messages of the hostile corpus, ports are only text.
fn is_test(path: &str) -> bool {
    let is_in_tests = path.starts_with("tests/")
        || path.starts_with("crates/") && path.contains("/tests/") && !path.contains("/src/");
    let is_data = path.starts_with("tests/corpus/") || path.ends_with(".json");
    is_in_tests && !is_data && !path.ends_with(".md")
}

/// Returns whether a line contains a number that is not a part of a longer one.
fn has_number(line: &str, number: &str) -> bool {
    line.match_indices(number).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        let after = line[at + number.len()..].chars().next();
        ![before, after].iter().flatten().any(|c| c.is_ascii_alphanumeric() || *c == '_')
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::test_tree;

    fn defects(path: &str, text: &str) -> Vec<String> {
        check(&test_tree(&[(path, text)])).iter().map(Defect::to_string).collect()
    }

    #[test]
    fn default_ports_in_tests_are_found() {
        for (path, text) in [
            ("tests/interop/test_a.py", "create_server((\"127.0.0.1\", 8080))"),
            ("tests/scenarios/a.scn", "listen 127.0.0.1:3128\n"),
            ("crates/proxy/millrace/tests/a.rs", "const A: &str = \"127.0.0.1:8080\";"),
        ] {
            let found = defects(path, text);
            assert_eq!(found.len(), 1, "{path}: {found:?}");
        }
    }

    #[test]
    fn other_numbers_and_files_pass() {
        for (path, text) in [
            ("tests/interop/test_a.py", "count = 18080 + 0x8080"),
            ("tests/interop/test_a.py", "port = 8080  # default port: only parsed"),
            ("crates/proxy/config/src/lib.rs", "const A: u16 = 8080;"),
        ] {
            assert_eq!(defects(path, text), [""; 0], "{path}");
        }
    }
}
