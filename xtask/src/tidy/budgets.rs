//! Rule: documents stay short enough to be read. Words are counted as wc(1) does.

use crate::defect::Defect;
use crate::tree::Tree;

/// The words that all documents and man pages may have together, without generated ones.
const WORDS_MAX: usize = 75_000;

/// The words that one document may have, by the beginning of its path; the first row that fits
/// counts.
const BUDGETS: [(&str, usize); 4] = [
    ("README.md", 900),
    ("ARCHITECTURE.md", 4_500),
    ("docs/measuring/", 200),
    ("docs/design/", 1_600),
];

/// Pages that the program writes.
const GENERATED: [&str; 4] =
    ["docs/reference.md", "docs/metrics.md", "man/millrace.1", "man/millrace.toml.5"];

/// Returns the documents that are too long.
pub(super) fn check(tree: &Tree) -> Vec<Defect> {
    let mut defects = Vec::new();
    let mut sum = 0;
    for (path, text) in tree.texts.iter().filter(|(path, _)| is_document(path)) {
        let words = words(path, text);
        sum += words;
        let budget = BUDGETS.iter().find(|(prefix, _)| path.starts_with(prefix));
        if let Some((_, most)) = budget
            && words > *most
        {
            let expected = format!("at most {most}");
            defects.push(Defect::new(path, 1, format!("document of {words} words"), expected));
        }
    }
    if sum > WORDS_MAX {
        let wrong = format!("documents of {sum} words in all");
        defects.push(Defect::new("docs", 1, wrong, format!("at most {WORDS_MAX}")));
    }
    defects
}

fn is_document(path: &str) -> bool {
    let is_man_page = path.starts_with("man/");
    (is_man_page || path.ends_with(".md")) && !GENERATED.contains(&path)
}

/// Counts words. Programs write the tables in `docs/measuring`, and the lines between the marker
/// lines `<!-- … begin -->` and `<!-- … end -->`. These do not count.
fn words(path: &str, text: &str) -> usize {
    let has_generated_parts = path.starts_with("docs/measuring/");
    let mut is_generated = false;
    let mut sum = 0;
    for line in text.lines() {
        let line = line.trim();
        if has_generated_parts && line.starts_with("<!--") {
            is_generated = line.ends_with("begin -->");
        } else if !(has_generated_parts && (is_generated || line.starts_with('|'))) {
            sum += line.split_whitespace().count();
        }
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::test_tree;

    fn defects(texts: &[(&str, &str)]) -> Vec<String> {
        check(&test_tree(texts)).iter().map(Defect::to_string).collect()
    }

    #[test]
    fn a_document_over_its_budget_is_found() {
        let words = |count: usize| "word ".repeat(count);
        for (path, most) in BUDGETS {
            let path = if path.ends_with('/') { format!("{path}a.md") } else { path.to_owned() };
            assert_eq!(defects(&[(&path, &words(most))]), [""; 0], "{path}");
            let expected =
                format!("{path}:1: document of {} words (expected: at most {most})", most + 1);
            assert_eq!(defects(&[(&path, &words(most + 1))]), [expected]);
        }
    }

    #[test]
    fn all_documents_together_have_a_budget() {
        let half = "word ".repeat(WORDS_MAX / 2);
        let more = half.clone() + "word";
        assert_eq!(defects(&[("man/a.3", &half), ("docs/a.md", &half)]), [""; 0]);
        let expected = format!(
            "docs:1: documents of {} words in all (expected: at most {WORDS_MAX})",
            WORDS_MAX + 1
        );
        assert_eq!(defects(&[("man/a.3", &half), ("docs/a.md", &more)]), [expected]);
        assert_eq!(defects(&[("docs/reference.md", &more), ("docs/a.md", &more)]), [""; 0]);
        let table = format!("| {half} |\nword\n");
        assert_eq!(defects(&[("docs/measuring/a.md", &table)]), [""; 0]);
        let figure = format!("<!-- a: begin -->\n{half}\n<!-- a: end -->\nword\n");
        assert_eq!(defects(&[("docs/measuring/a.md", &figure)]), [""; 0]);
    }
}
