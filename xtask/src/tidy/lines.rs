//! Rule: lines of documents and of comments are at most 100 columns wide, and no file is empty.
//! Rust code is formatted by rustfmt, which does not break comments.

use crate::defect::Defect;
use crate::tree::Tree;

const COLUMNS_MAX: usize = 100;

/// Pages that programs write.
const GENERATED: [&str; 2] = ["docs/reference.md", "docs/metrics.md"];

/// Beginnings of comments that occupy whole lines.
const COMMENTS: [&str; 6] = ["/// ", "//! ", "// ", "# ", "/* ", "* "];

/// The beginning of a comment that a program reads as one line.
const READ_BY_PROGRAM: &str = "# cases: ";

/// Inputs of fuzz targets, and results with notes of one line each.
const DATA: [&str; 2] = ["fuzz/corpus/", "peers/results/"];

/// Returns the lines that are too long, and the empty files. Tables and code are as wide as they
/// have to be, and so is a line without a blank to break it at, such as a link.
pub(super) fn check(tree: &Tree) -> Vec<Defect> {
    let mut defects = Vec::new();
    let sources = tree.sources.iter().map(|(path, source)| (path, &source.text));
    for (path, text) in sources.chain(&tree.texts).chain(&tree.manifests) {
        let is_document = path.ends_with(".md");
        let is_data = path.ends_with(".patch") || DATA.iter().any(|data| path.starts_with(data));
        if is_data || GENERATED.contains(&path.as_str()) {
            continue;
        }
        if text.trim().is_empty() {
            defects.push(Defect::new(path, 1, "the file is empty", "content, or no file"));
        }
        let mut is_fenced = false;
        for (number, line) in text.lines().enumerate() {
            let prose = if is_document { Some(line) } else { comment(line) };
            let Some(prose) = prose else { continue };
            let words = prose.trim_start_matches([' ', '*', '>', '-']);
            is_fenced ^= words.starts_with("```");
            let is_code = is_fenced || prose.starts_with("    ") || words.starts_with('|');
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

/// Returns the text of a line that is a comment.
fn comment(line: &str) -> Option<&str> {
    let line = line.trim_start();
    if line.starts_with(READ_BY_PROGRAM) {
        return None;
    }
    COMMENTS.iter().find_map(|sign| line.strip_prefix(sign))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::test_tree;

    fn defects(text: &str) -> Vec<String> {
        check(&test_tree(&[("a.md", text)])).iter().map(Defect::to_string).collect()
    }

    #[test]
    fn an_empty_file_is_found() {
        assert_eq!(defects("\n"), ["a.md:1: the file is empty (expected: content, or no file)"]);
        let of_program = check(&test_tree(&[("peers/a", "")]));
        assert_eq!(of_program.len(), 1);
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
    fn a_long_comment_is_found() {
        let long = "x y".repeat(50);
        for (path, text) in [
            ("a.rs", format!("    /// {long}\n    fn f() {{}}")),
            ("scripts/a", format!("# {long}")),
            ("a.h", format!("/*\n * {long}\n */")),
            ("Cargo.toml", format!("# {long}")),
        ] {
            assert_eq!(check(&test_tree(&[(path, &text)])).len(), 1, "{text}");
        }
        for (path, text) in [
            ("a.rs", format!("/// | {long} |\nfn f() {{}}")),
            ("scripts/a", format!("#     {long}\necho {long}")),
            ("peers/start/a", format!("# cases: {long}")),
            ("a.patch", format!(" /// {long}")),
        ] {
            assert_eq!(check(&test_tree(&[(path, &text)])), [], "{text}");
        }
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
