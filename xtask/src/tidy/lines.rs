//! Rule: lines of documents are at most 100 columns wide, so that they can be read beside code.

use crate::defect::Defect;
use crate::tree::Tree;

const COLUMNS_MAX: usize = 100;

/// Pages that programs write.
const GENERATED: [&str; 2] = ["docs/reference.md", "docs/metrics.md"];

/// Returns the lines that are too long. Tables and code are as wide as they have to be, and so is a
/// line without a blank to break it at, such as a link.
pub(super) fn check(tree: &Tree) -> Vec<Defect> {
    let mut defects = Vec::new();
    let is_checked = |path: &str| path.ends_with(".md") && !GENERATED.contains(&path);
    for (path, text) in tree.texts.iter().filter(|(path, _)| is_checked(path)) {
        let mut is_fenced = false;
        for (number, line) in text.lines().enumerate() {
            let words = line.trim_start_matches([' ', '*', '>', '-']);
            is_fenced ^= words.starts_with("```");
            let is_code = is_fenced || line.starts_with("    ") || words.starts_with('|');
            let columns = line.chars().count();
            if columns > COLUMNS_MAX && !is_code && words.contains(' ') {
                let expected = format!("at most {COLUMNS_MAX}");
                let wrong = format!("line of {columns} columns");
                defects.push(Defect::new(path, number + 1, wrong, expected));
            }
        }
    }
    defects
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::test_tree;

    fn defects(text: &str) -> Vec<String> {
        check(&test_tree(&[("a.md", text)])).iter().map(Defect::to_string).collect()
    }

    #[test]
    fn a_long_line_is_found() {
        let line = |columns: usize| format!("é {}", "x".repeat(columns - 2));
        assert_eq!(defects(&line(100)), [""; 0]);
        let expected = ["a.md:2: line of 101 columns (expected: at most 100)"];
        assert_eq!(defects(&format!("\n{}", line(101))), expected);
        assert_eq!(defects(&format!("- {}", line(101))).len(), 1);
    }

    #[test]
    fn tables_code_and_links_may_be_long() {
        let long = "x y".repeat(50);
        for text in [
            format!("| {long} |"),
            format!("    {long}"),
            format!("```\n{long}\n```"),
            format!("* {}", "x".repeat(150)),
        ] {
            assert_eq!(defects(&text), [""; 0], "{text}");
        }
        assert_eq!(defects(&format!("```\ncode\n```\n{long}")).len(), 1);
    }
}
