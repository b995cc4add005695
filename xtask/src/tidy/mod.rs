//! `cargo xtask tidy`: the rules that the structure and the language of the tree obey.

mod budgets;
mod collisions;
mod cycles;
mod driver;
mod groups;
mod lines;
mod links;
mod ports;
mod predicates;
mod sizes;
mod words;

use crate::defect::Defect;
use crate::modules;
use crate::packages;
use crate::tree::Tree;

/// A group of rules about one subject, which is checked as one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rule {
    /// Files of one crate do not import each other in a circle.
    Cycles,
    /// A crate uses its own group and earlier ones.
    Groups,
    /// Only the driver names items of a stage.
    Driver,
    /// Types, functions and files stay small.
    Sizes,
    /// Predicates change nothing.
    Predicates,
    /// At most two types have one name, and these are in different crates.
    Collisions,
    /// Prose uses plain English and standard terms.
    Words,
    /// Links of documents lead somewhere.
    Links,
    /// Documents stay short.
    Budgets,
    /// Tests use no default port.
    Ports,
    /// Lines of documents and comments are not too wide.
    Lines,
}

impl Rule {
    pub(crate) const ALL: [Rule; 11] = [
        Rule::Cycles,
        Rule::Groups,
        Rule::Driver,
        Rule::Sizes,
        Rule::Predicates,
        Rule::Collisions,
        Rule::Words,
        Rule::Links,
        Rule::Budgets,
        Rule::Ports,
        Rule::Lines,
    ];

    fn name(self) -> &'static str {
        match self {
            Rule::Cycles => "cycles",
            Rule::Groups => "groups",
            Rule::Driver => "driver",
            Rule::Sizes => "sizes",
            Rule::Predicates => "predicates",
            Rule::Collisions => "collisions",
            Rule::Words => "words",
            Rule::Links => "links",
            Rule::Budgets => "budgets",
            Rule::Ports => "ports",
            Rule::Lines => "lines",
        }
    }

    /// Parses names with commas between them.
    ///
    /// # Errors
    ///
    /// A message with the unknown name, and the names of all rules.
    pub(crate) fn parse_list(names: &str) -> Result<Vec<Rule>, String> {
        names
            .split(',')
            .map(|name| {
                Rule::ALL.into_iter().find(|rule| rule.name() == name).ok_or_else(|| {
                    let all = Rule::ALL.map(Rule::name).join(", ");
                    format!("--only: unknown rule {name:?} (expected: {all})")
                })
            })
            .collect()
    }
}

/// The rules to check, and how.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Choice {
    pub(crate) rules: Vec<Rule>,
    /// Whether [`Rule::Cycles`] also counts uses without an import.
    pub(crate) is_strict: bool,
}

/// Returns the defects by these rules, sorted by place. Files that cannot be parsed are always
/// reported, since no rule can check them.
pub(crate) fn check(tree: &Tree, choice: &Choice) -> Vec<Defect> {
    let (packages, mut defects) = packages::of(tree);
    defects.extend(tree.unparsed.iter().cloned());
    let outlines = modules::outlines(tree);
    for rule in &choice.rules {
        defects.extend(match rule {
            Rule::Cycles => cycles::check(&packages, &outlines, choice.is_strict),
            Rule::Groups => groups::check(&packages),
            Rule::Driver => driver::check(&packages, &outlines),
            Rule::Sizes => sizes::check(tree),
            Rule::Predicates => predicates::check(tree),
            Rule::Collisions => collisions::check(tree),
            Rule::Words => words::check(tree),
            Rule::Links => links::check(tree),
            Rule::Budgets => budgets::check(tree),
            Rule::Ports => ports::check(tree),
            Rule::Lines => lines::check(tree),
        });
    }
    defects.sort();
    defects.dedup();
    defects
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::test_tree;

    #[test]
    fn defects_of_all_rules_are_sorted_by_place() {
        let tree = test_tree(&[
            ("crates/z/z/Cargo.toml", "[package]\nname = \"millrace-z\"\n"),
            ("crates/os/a/Cargo.toml", "[package]\nname = \"millrace-a\"\n"),
            ("crates/os/a/src/lib.rs", &"//\n".repeat(801)),
            ("crates/os/a/src/stray.rs", "//\n"),
        ]);
        let paths = |rules: &[Rule]| -> Vec<String> {
            let choice = Choice { rules: rules.to_vec(), is_strict: false };
            check(&tree, &choice).into_iter().map(|defect| defect.path).collect()
        };
        assert_eq!(
            paths(&Rule::ALL),
            [
                "crates/os/a/src/lib.rs",
                "crates/os/a/src/stray.rs",
                "crates/proxy/proxy/src/worker/driver.rs",
                "crates/z/z/Cargo.toml"
            ]
        );
        assert_eq!(paths(&[Rule::Sizes]), ["crates/os/a/src/lib.rs"]);
    }

    #[test]
    fn files_that_cannot_be_parsed_are_reported_by_every_choice() {
        let tree = Tree::from_texts([
            ("crates/os/a/src/lib.rs".to_owned(), "fn".to_owned()),
            ("crates/os/a/Cargo.toml".to_owned(), "[".to_owned()),
        ]);
        let choice = Choice { rules: vec![Rule::Sizes], is_strict: false };
        let defects = check(&tree, &choice);
        assert_eq!(defects.len(), 2, "{defects:?}");
    }
}
