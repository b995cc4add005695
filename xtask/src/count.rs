//! `cargo xtask count`: lines of code of each crate, without tests, comments and blank lines.

use std::collections::{BTreeMap, BTreeSet};

use proc_macro2::{Delimiter, TokenStream, TokenTree};
use syn::spanned::Spanned;
use syn::visit::{self, Visit};

use crate::attributes;
use crate::modules;
use crate::packages;
use crate::tree::{Source, Tree};

/// Folders of a package that hold no product code.
const UNCOUNTED: [&str; 3] = ["tests/", "benches/", "examples/"];

/// Returns a table: the crates in `crates/` and their sum, then the other packages.
///
/// # Errors
///
/// The first file that cannot be parsed, and so would be left out.
pub(crate) fn table(tree: &Tree) -> Result<String, String> {
    let (packages, defects) = packages::of(tree);
    if let Some(defect) = defects.iter().chain(&tree.unparsed).next() {
        return Err(defect.to_string());
    }
    let outlines = modules::outlines(tree);
    // Whether a file is for tests only, in every crate that contains it.
    let mut are_for_tests: BTreeMap<&str, bool> = BTreeMap::new();
    for modules in packages.iter().flat_map(|package| package.crates(&outlines)) {
        for (file, is_for_tests) in modules.files() {
            *are_for_tests.entry(file).or_insert(true) &= is_for_tests;
        }
    }
    let mut counts = vec![0; packages.len()];
    for (path, source) in &tree.sources {
        // A package may be in another package's folder.
        let owner = packages
            .iter()
            .enumerate()
            .filter_map(|(at, p)| Some((at, path.strip_prefix(&p.folder)?.strip_prefix('/')?)))
            .min_by_key(|(_, inside)| inside.len());
        if let Some((at, inside)) = owner
            && !UNCOUNTED.iter().any(|folder| inside.starts_with(folder))
            && !are_for_tests.get(path.as_str()).is_some_and(|is_for_tests| *is_for_tests)
        {
            counts[at] += code_lines(source);
        }
    }
    let rows = || packages.iter().zip(&counts);
    let is_crate = |folder: &str| folder.starts_with("crates/");
    let crates = rows().filter(|(package, _)| is_crate(&package.folder));
    let others = rows().filter(|(package, _)| !is_crate(&package.folder));
    let sum: usize = crates.clone().map(|(_, count)| count).sum();
    let table = crates
        .map(|(package, count)| row(&package.manifest.name, *count))
        .chain([row("sum of crates/", sum)])
        .chain(others.map(|(package, count)| row(&package.manifest.name, *count)));
    Ok(table.collect())
}

fn row(name: &str, lines: usize) -> String {
    format!("{name:<20} {lines:>7}\n")
}

/// Returns the number of lines that are neither blank, nor comments alone, nor for tests only.
fn code_lines(source: &Source) -> usize {
    if attributes::are_test_only(&source.syntax.attrs) {
        return 0;
    }
    let mut lines = BTreeSet::new();
    mark(source.tokens.clone(), &mut lines);
    for (at, text) in source.text.lines().enumerate() {
        if text.trim().is_empty() {
            lines.remove(&(at + 1));
        }
    }
    TestLineRemover { lines: &mut lines }.visit_file(&source.syntax);
    lines.len()
}

/// Adds the lines of tokens, except doc comments, which the parser sees as attributes. All lines of
/// a literal are added.
fn mark(tokens: TokenStream, lines: &mut BTreeSet<usize>) {
    let mut tokens = tokens.into_iter().peekable();
    while let Some(token) = tokens.next() {
        if let TokenTree::Punct(hash) = &token
            && hash.as_char() == '#'
        {
            let mut after = tokens.clone();
            let mut next = after.next();
            if matches!(&next, Some(TokenTree::Punct(mark)) if mark.as_char() == '!') {
                next = after.next();
            }
            if next.is_some_and(|next| is_doc(&next)) {
                tokens = after;
                continue;
            }
        }
        let span = token.span();
        if let TokenTree::Group(group) = &token {
            lines.insert(span.start().line);
            mark(group.stream(), lines);
            lines.insert(span.end().line);
        } else {
            lines.extend(span.start().line..=span.end().line);
        }
    }
}

/// Returns whether a token is the `[doc = "…"]` of a doc comment.
fn is_doc(token: &TokenTree) -> bool {
    let TokenTree::Group(group) = token else { return false };
    let mut tokens = group.stream().into_iter();
    group.delimiter() == Delimiter::Bracket
        && matches!(tokens.next(), Some(TokenTree::Ident(name)) if name == "doc")
        && matches!(tokens.next(), Some(TokenTree::Punct(mark)) if mark.as_char() == '=')
        && matches!(tokens.next(), Some(TokenTree::Literal(_)))
}

/// A visitor that removes the lines of code for tests only.
struct TestLineRemover<'l> {
    lines: &'l mut BTreeSet<usize>,
}

impl TestLineRemover<'_> {
    fn remove(&mut self, code: &impl Spanned) {
        let span = code.span();
        for line in span.start().line..=span.end().line {
            self.lines.remove(&line);
        }
    }
}

impl<'ast> Visit<'ast> for TestLineRemover<'_> {
    fn visit_item(&mut self, item: &'ast syn::Item) {
        if attributes::are_test_only(attributes::of_item(item)) {
            self.remove(item);
        } else {
            visit::visit_item(self, item);
        }
    }

    fn visit_impl_item(&mut self, item: &'ast syn::ImplItem) {
        if attributes::are_test_only(attributes::of_impl_item(item)) {
            self.remove(item);
        } else {
            visit::visit_impl_item(self, item);
        }
    }

    fn visit_trait_item(&mut self, item: &'ast syn::TraitItem) {
        if attributes::are_test_only(attributes::of_trait_item(item)) {
            self.remove(item);
        } else {
            visit::visit_trait_item(self, item);
        }
    }

    fn visit_stmt(&mut self, statement: &'ast syn::Stmt) {
        if attributes::are_test_only(attributes::of_statement(statement)) {
            self.remove(statement);
        } else {
            visit::visit_stmt(self, statement);
        }
    }

    fn visit_field(&mut self, field: &'ast syn::Field) {
        if attributes::are_test_only(&field.attrs) {
            self.remove(field);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::test_tree;

    fn counted(text: &str) -> usize {
        code_lines(&test_tree(&[("a.rs", text)]).sources["a.rs"])
    }

    #[test]
    fn blank_lines_and_comments_do_not_count() {
        assert_eq!(counted("//! Doc.\n\n// Why.\n/// Doc.\n/* more\nof it */\nfn f() {\n\n}\n"), 2);
        assert_eq!(counted("/** Doc\n * of two. */\nfn f() {} // Why.\n"), 1);
        assert_eq!(counted("#[doc(hidden)]\nfn f() {}\n"), 2);
        assert_eq!(counted("enum E {\n    /// Doc.\n    V,\n}\n"), 3);
    }

    #[test]
    fn literals_count_by_their_lines() {
        assert_eq!(counted("const A: &str = \"\none // two\n\nthree\";\n"), 3);
    }

    #[test]
    fn code_for_tests_does_not_count() {
        assert_eq!(counted("fn f() {}\n#[cfg(test)]\nmod tests {\n    fn g() {}\n}\n"), 1);
        assert_eq!(counted("#![cfg(test)]\nfn f() {}\n"), 0);
        assert_eq!(counted("impl S {\n    #[cfg(test)]\n    fn f() {}\n    fn g() {}\n}\n"), 3);
        assert_eq!(counted("#[cfg(not(test))]\nfn f() {}\n"), 2);
    }

    #[test]
    fn crates_and_others_are_summed_apart() {
        let tree = test_tree(&[
            ("crates/os/a/Cargo.toml", "[package]\nname = \"a\"\n"),
            ("crates/os/a/src/lib.rs", "mod b;\n#[cfg(test)]\nmod t;\n"),
            ("crates/os/a/src/b.rs", "fn f() {}\n"),
            ("crates/os/a/src/t.rs", "fn f() {}\n"),
            ("crates/os/a/tests/x.rs", "fn f() {}\n"),
            ("crates/os/b/Cargo.toml", "[package]\nname = \"b\"\n"),
            ("crates/os/b/src/main.rs", "fn main() {\n}\n"),
            ("tests/Cargo.toml", "[package]\nname = \"t\"\n"),
            ("tests/src/lib.rs", "fn f() {}\n"),
        ]);
        let table = table(&tree).unwrap();
        let rows: Vec<Vec<&str>> =
            table.lines().map(|line| line.split_whitespace().collect()).collect();
        let sum = vec!["sum", "of", "crates/", "4"];
        assert_eq!(rows, [vec!["a", "2"], vec!["b", "2"], sum, vec!["t", "1"]]);
    }

    #[test]
    fn a_file_that_cannot_be_parsed_is_an_error() {
        let tree = Tree::from_texts([("a.rs".to_owned(), "fn".to_owned())]);
        assert!(table(&tree).unwrap_err().starts_with("a.rs:1: cannot be parsed"));
    }
}
