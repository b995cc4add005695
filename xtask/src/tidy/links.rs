//! Rule: links of documents lead somewhere, and so do the paths of documents in prose.

use std::collections::BTreeSet;

use crate::defect::Defect;
use crate::tree::Tree;

/// Files that name documents which are not in the tree: examples in the tests of this program,
/// documents of the past, and documents of other projects.
const UNCHECKED: [&str; 3] = ["xtask/", "CHANGELOG.md", "STYLE.md"];

/// Returns the links whose file or heading does not exist.
pub(super) fn check(tree: &Tree) -> Vec<Defect> {
    let mut defects = Vec::new();
    let sources = tree.sources.iter().map(|(path, source)| (path, &source.text));
    for (path, text) in sources.chain(&tree.texts) {
        if path.ends_with(".md") {
            check_links(tree, path, text, &mut defects);
        }
        if !UNCHECKED.iter().any(|unchecked| path.starts_with(unchecked)) {
            check_paths(tree, path, text, &mut defects);
        }
    }
    defects
}

/// Returns the targets of `[text](target)`, and of a line `[name]: target`.
fn targets(line: &str) -> Vec<&str> {
    let inline = line.split("](").skip(1).filter_map(|part| Some(part.split_once(')')?.0));
    let is_definition = line.trim_start().starts_with('[');
    let definition =
        line.split_once("]: ").filter(|_| is_definition).map(|(_, target)| target.trim());
    inline.chain(definition).collect()
}

/// Checks the links of a document.
fn check_links(tree: &Tree, path: &str, text: &str, defects: &mut Vec<Defect>) {
    for (number, line) in text.lines().enumerate() {
        for target in targets(line) {
            if target.contains("://") || target.starts_with("mailto:") {
                continue;
            }
            let (file, heading) = target.split_once('#').unwrap_or((target, ""));
            let file = if file.is_empty() { path.to_owned() } else { beside(path, file) };
            let is_folder =
                || tree.paths.range(format!("{file}/")..).next().is_some_and(|p| is_in(p, &file));
            let wrong = if !tree.paths.contains(&file) && !is_folder() {
                format!("link to {target}, which does not exist")
            } else if !heading.is_empty() && !headings(tree, &file).contains(heading) {
                format!("link to {target}, a heading that does not exist")
            } else {
                continue;
            };
            defects.push(Defect::new(path, number + 1, wrong, "a file or heading of the tree"));
        }
    }
}

/// Checks each `docs/….md` in any text.
fn check_paths(tree: &Tree, path: &str, text: &str, defects: &mut Vec<Defect>) {
    let is_of_path = |c: char| c.is_ascii_alphanumeric() || "/._-".contains(c);
    for (number, line) in text.lines().enumerate() {
        // Man pages escape hyphens.
        let line = line.replace("\\-", "-");
        for (at, _) in line.match_indices("docs/") {
            // `../docs/…` and `](docs/…)` are links of documents.
            let before = &line[..at];
            if before.ends_with(is_of_path) || before.ends_with("](") {
                continue;
            }
            let end = line[at..].find(|c| !is_of_path(c)).map_or(line.len(), |length| at + length);
            let target = line[at..end].trim_end_matches('.');
            if target.ends_with(".md") && !tree.paths.contains(target) {
                let wrong = format!("{target} does not exist");
                defects.push(Defect::new(path, number + 1, wrong, "a document of the tree"));
            }
        }
    }
}

fn is_in(path: &str, folder: &str) -> bool {
    path.strip_prefix(folder).is_some_and(|rest| rest.starts_with('/'))
}

/// Resolves a target against the folder of the document that links to it.
fn beside(path: &str, target: &str) -> String {
    let folder = path.rsplit_once('/').map_or("", |(folder, _)| folder);
    let mut parts: Vec<&str> = folder.split('/').filter(|part| !part.is_empty()).collect();
    for part in target.trim_end_matches('/').split('/') {
        match part {
            "." | "" => {}
            ".." => drop(parts.pop()),
            name => parts.push(name),
        }
    }
    parts.join("/")
}

/// Returns the headings of a document as links name them.
fn headings(tree: &Tree, path: &str) -> BTreeSet<String> {
    let text = tree.texts.get(path).map_or("", String::as_str);
    let titles = text.lines().filter(|line| line.starts_with('#'));
    let slug = |title: &str| -> String {
        let title = title.trim_start_matches('#').trim().to_lowercase();
        let kept = title.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
        kept.map(|c| if c == ' ' { '-' } else { c }).collect()
    };
    titles.map(slug).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::test_tree;

    fn defects(text: &str) -> Vec<String> {
        let tree = test_tree(&[
            ("docs/a.md", text),
            ("docs/b.md", "# A title: one\n"),
            ("README.md", ""),
            ("a.rs", "// docs/a.md\n"),
        ]);
        check(&tree).iter().map(Defect::to_string).collect()
    }

    #[test]
    fn dead_links_are_found() {
        for (text, expected) in [
            ("[x](c.md)", "link to c.md, which does not exist"),
            ("\n[x]: c.md", "link to c.md, which does not exist"),
            ("\n[x](b.md#no)", "link to b.md#no, a heading that does not exist"),
            ("[x](../docs/c.md)", "link to ../docs/c.md, which does not exist"),
            ("see docs/c.md.", "docs/c.md does not exist"),
            ("a sentence (docs/c.md)", "docs/c.md does not exist"),
            (r"see docs/c\-d.md.", "docs/c-d.md does not exist"),
        ] {
            let found = defects(text);
            assert_eq!(found.len(), 1, "{text}: {found:?}");
            assert!(found[0].contains(expected), "{found:?}");
        }
    }

    #[test]
    fn live_links_pass() {
        let text = "[x](b.md) [y](b.md#a-title-one) [z](../README.md) [u](https://a.test/x.md) \
                    [folder](../docs/) docs/b.md";
        assert_eq!(defects(text), [""; 0]);
    }
}
