//! Rule: one word has one meaning. The name of a type is defined once in a crate, and in at most
//! two crates.

use std::collections::{BTreeMap, BTreeSet};

use syn::Item;

use crate::attributes;
use crate::defect::Defect;
use crate::tree::Tree;

const CRATES_MAX: usize = 2;

/// Names that mean the same in every crate.
const SHARED: [&str; 2] = ["Error", "Result"];

/// Returns the types that share a name, and the places of the others.
pub(super) fn check(tree: &Tree) -> Vec<Defect> {
    let mut places: BTreeMap<String, Vec<(&str, &str, usize)>> = BTreeMap::new();
    for (path, source) in &tree.sources {
        let Some((folder, inside)) = path.split_once("/src/") else { continue };
        if folder.starts_with("crates/") && !inside.ends_with("tests.rs") {
            for (name, line) in types(&source.syntax.items) {
                places.entry(name).or_default().push((folder, path, line));
            }
        }
    }
    let mut defects = Vec::new();
    for (name, places) in places.iter().filter(|(name, _)| !SHARED.contains(&name.as_str())) {
        let crates: BTreeSet<&str> = places.iter().map(|(folder, ..)| *folder).collect();
        for (at, (folder, path, line)) in places.iter().enumerate() {
            let other = places[..at].iter().find(|(earlier, ..)| earlier == folder);
            let wrong = match other {
                Some((_, other, line)) => format!("{name} is also a type of {other}:{line}"),
                None if crates.len() > CRATES_MAX => {
                    format!("{name} is a type of {} crates", crates.len())
                }
                None => continue,
            };
            defects.push(Defect::new(path, *line, wrong, "a more precise name"));
        }
    }
    defects
}

/// Returns the types of a file that are not for tests only, with their lines.
fn types(items: &[Item]) -> Vec<(String, usize)> {
    let mut found = Vec::new();
    for item in items.iter().filter(|item| !attributes::are_test_only(attributes::of_item(item))) {
        let name = match item {
            Item::Struct(item) => &item.ident,
            Item::Enum(item) => &item.ident,
            Item::Union(item) => &item.ident,
            Item::Trait(item) => &item.ident,
            Item::Type(item) => &item.ident,
            Item::Mod(module) => {
                let inner = module.content.as_ref().map(|(_, items)| types(items));
                found.extend(inner.unwrap_or_default());
                continue;
            }
            _ => continue,
        };
        found.push((name.to_string(), name.span().start().line));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::test_tree;

    fn defects(texts: &[(&str, &str)]) -> Vec<String> {
        check(&test_tree(texts)).iter().map(Defect::to_string).collect()
    }

    #[test]
    fn two_types_of_one_name_in_a_crate_are_found() {
        let found = defects(&[
            ("crates/os/a/src/one.rs", "struct Place;"),
            ("crates/os/a/src/two.rs", "mod m { enum Place {} }"),
        ]);
        let expected = "crates/os/a/src/two.rs:1: Place is also a type of \
                        crates/os/a/src/one.rs:1 (expected: a more precise name)";
        assert_eq!(found, [expected]);
    }

    #[test]
    fn a_name_is_a_type_of_at_most_two_crates() {
        let files = ["crates/os/a/src/a.rs", "crates/os/b/src/b.rs", "crates/os/c/src/c.rs"];
        let texts = files.map(|file| (file, "pub(crate) struct Place;"));
        assert_eq!(defects(&texts[..2]), [""; 0]);
        assert_eq!(defects(&texts).len(), 3);
        assert_eq!(defects(&files.map(|file| (file, "struct Error;"))), [""; 0]);
        assert_eq!(defects(&files.map(|file| (file, "#[cfg(test)] struct Place;"))), [""; 0]);
    }
}
