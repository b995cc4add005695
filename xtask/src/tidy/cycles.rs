//! Rule: no file uses itself by way of other files of its crate.
//!
//! A file uses the file that defines what it imports by `use`, or names by a path that starts with
//! `crate`, `super`, `self` or an imported name. `mod` declarations and code for tests do not
//! count. A module's `pub use` of an item below it does not count either: a file that imports the
//! name from that module uses the file that defines the item.
//!
//! A strict check also counts names that a file uses without importing them privately: its own
//! modules, as in `child::f()`, names that it re-exports by `pub use`, and macros that are in scope
//! because of their position.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::defect::Defect;
use crate::modules::{self, Id, Modules, Outlines, Target};
use crate::outline::{Mention, Path, Usage};
use crate::packages::Package;

/// Returns the cycles of each crate, and the modules and files that the rule could not check.
pub(super) fn check(packages: &[Package], outlines: &Outlines, is_strict: bool) -> Vec<Defect> {
    let mut defects = Vec::new();
    for package in packages {
        let crates = package.crates(outlines);
        for modules in &crates {
            defects.extend(modules.missing.iter().cloned());
            let graph = Graph::of(modules, is_strict);
            defects.extend(graph.cycles().iter().map(|cycle| graph.report(package, cycle)));
        }
        let sources = format!("{}/src", package.folder);
        for file in modules::strays(outlines, &sources, &crates) {
            defects.push(Defect::new(file, 1, "belongs to no module", "a mod declaration"));
        }
    }
    defects
}

/// The files of a crate, and for each the files that it uses.
#[derive(Default)]
struct Graph<'a> {
    edges: BTreeMap<&'a str, BTreeMap<&'a str, Edge>>,
}

/// The place where a file first uses another one.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Edge {
    line: usize,
    path: String,
}

impl<'a> Graph<'a> {
    fn of(modules: &Modules<'a>, is_strict: bool) -> Graph<'a> {
        let mut graph = Graph::default();
        for (id, module) in modules.iter().filter(|(_, module)| !module.is_test) {
            for import in &module.outline.imports {
                for found in modules.resolve_import(id, import) {
                    let is_own = |target| modules.is_within(target, id);
                    if !(import.is_public && found.module().is_some_and(is_own)) {
                        graph.add(modules, id, found, &import.path);
                    }
                }
            }
            for mention in &module.outline.mentions {
                if (is_strict && names_item(mention) || module.starts_with_import(&mention.path))
                    && let Some(found) = modules.resolve_mention(id, mention)
                {
                    graph.add(modules, id, found, &mention.path);
                }
            }
        }
        graph
    }

    fn add(&mut self, modules: &Modules<'a>, from: Id, found: Target, path: &Path) {
        let Some(to) = found.module() else { return };
        let (from, to) = (modules.get(from).file, modules.get(to).file);
        if from == to {
            return;
        }
        let edge = Edge { line: path.line, path: path.segments.join("::") };
        let edges = self.edges.entry(from).or_default();
        if edges.get(to).is_none_or(|first| edge < *first) {
            edges.insert(to, edge);
        }
    }

    fn uses(&self, from: &str) -> impl Iterator<Item = (&'a str, &Edge)> {
        self.edges.get(from).into_iter().flatten().map(|(to, edge)| (*to, edge))
    }

    /// Returns the sets of files that all reach each other.
    fn cycles(&self) -> Vec<BTreeSet<&'a str>> {
        let reached: BTreeMap<&str, BTreeSet<&str>> =
            self.edges.keys().map(|from| (*from, self.reached(from))).collect();
        let mut cycles: Vec<BTreeSet<&str>> = Vec::new();
        for (file, below) in &reached {
            if below.contains(file) && !cycles.iter().any(|cycle| cycle.contains(file)) {
                let both = |other: &&&str| reached.get(*other).is_some_and(|r| r.contains(file));
                cycles.push(below.iter().filter(both).copied().collect());
            }
        }
        cycles
    }

    /// Returns the files that a file uses, directly or not.
    fn reached(&self, from: &'a str) -> BTreeSet<&'a str> {
        let mut reached = BTreeSet::new();
        let mut queue = vec![from];
        while let Some(file) = queue.pop() {
            queue.extend(self.uses(file).map(|(to, _)| to).filter(|to| reached.insert(*to)));
        }
        reached
    }

    /// Returns the shortest path from a file of a cycle back to the file, which is both its first
    /// and its last element.
    fn shortest_from(&self, start: &'a str) -> Vec<&'a str> {
        let mut before: BTreeMap<&str, &str> = BTreeMap::new();
        let mut queue = VecDeque::from([start]);
        while let Some(file) = queue.pop_front() {
            for (to, _) in self.uses(file) {
                if !before.contains_key(to) {
                    before.insert(to, file);
                    queue.push_back(to);
                }
            }
        }
        let mut path_back = vec![start];
        let mut at = start;
        while let Some(previous) = before.get(at) {
            path_back.push(previous);
            at = previous;
            if at == start {
                break;
            }
        }
        path_back.reverse();
        path_back
    }

    fn report(&self, package: &Package, cycle: &BTreeSet<&'a str>) -> Defect {
        let short = |file: &'a str| {
            let inside = file.strip_prefix(&package.folder).and_then(|f| f.strip_prefix("/src/"));
            inside.unwrap_or(file)
        };
        let paths_back = cycle.iter().map(|file| self.shortest_from(file));
        let path_back = paths_back.min_by_key(Vec::len).unwrap_or_default();
        let mut wrong = format!("import cycle of {} files: ", cycle.len());
        let mut first_line = 1;
        for (at, step) in path_back.windows(2).enumerate() {
            let edge = &self.edges[step[0]][step[1]];
            if at == 0 {
                first_line = edge.line;
            }
            wrong += &format!("{}:{} ({}) -> ", short(step[0]), edge.line, edge.path);
        }
        wrong += short(path_back[0]);
        let others: Vec<&str> =
            cycle.iter().filter(|file| !path_back.contains(file)).map(|file| short(file)).collect();
        if !others.is_empty() {
            wrong += &format!("; also in it: {}", others.join(", "));
        }
        let mut defect = Defect::new(path_back[0], first_line, wrong, "no cycle");
        for from in cycle {
            for (to, edge) in self.uses(from).filter(|(to, _)| cycle.contains(to)) {
                let Edge { line, path } = edge;
                defect.details.push(format!("{}:{line} ({path}) -> {}", short(from), short(to)));
            }
        }
        defect
    }
}

/// Returns whether a path is likely to name an item. A single name in lower case that is not called
/// is nearly always a variable.
fn names_item(mention: &Mention) -> bool {
    let segments = &mention.path.segments;
    !matches!(mention.usage, Usage::Value | Usage::Tokens)
        || segments.len() > 1
        || segments[0].starts_with(|c: char| c.is_uppercase())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::modules::outlines;
    use crate::packages;
    use crate::tree::test_tree;

    fn defects(sources: &[(&str, &str)]) -> Vec<String> {
        found(sources, false)
    }

    fn found(sources: &[(&str, &str)], is_strict: bool) -> Vec<String> {
        let mut texts = vec![("c/Cargo.toml".to_owned(), "[package]\nname = \"c\"\n")];
        texts.extend(sources.iter().map(|(name, text)| (format!("c/src/{name}"), *text)));
        let texts: Vec<_> = texts.iter().map(|(path, text)| (path.as_str(), *text)).collect();
        let tree = test_tree(&texts);
        let (packages, _) = packages::of(&tree);
        check(&packages, &outlines(&tree), is_strict).iter().map(Defect::to_string).collect()
    }

    /// Returns the defects of a crate with a root and two modules of these texts.
    fn two(root: &str, a: &str, b: &str) -> Vec<String> {
        defects(&[("lib.rs", &format!("mod a; mod b; {root}")), ("a.rs", a), ("b.rs", b)])
    }

    const B_USES_A: &str = "use crate::a::A; pub struct B;";

    #[test]
    fn two_files_that_import_each_other_are_a_cycle() {
        assert_eq!(
            two("", "\nuse crate::b::B;\npub struct A;", B_USES_A),
            ["c/src/a.rs:2: import cycle of 2 files: a.rs:2 (crate::b::B) -> b.rs:1 \
                 (crate::a::A) -> a.rs (expected: no cycle)"]
        );
    }

    #[test]
    fn each_way_to_name_an_item_counts() {
        for a in [
            "use super::b::B; pub struct A;",
            "use crate::b; pub struct A(b::B);",
            "use crate::b::*; pub struct A;",
            "pub struct A(crate::b::B);",
            "pub struct A; fn f() { super::b::f() }",
            "pub struct A; fn f() { use crate::b::B; }",
            "pub struct A; fn f() { assert!(crate::b::f()) }",
            "pub struct A; impl From<crate::b::B> for A {}",
            "pub struct A; macro_rules! m { () => { $crate::b::f() } }",
            "pub struct A; mod inner { use super::super::b::B; }",
            "pub(crate) use crate::b::B; pub struct A;",
            "#[cfg(not(test))] use crate::b::B; pub struct A;",
            "#[cfg(any(test, unix))] use crate::b::B; pub struct A;",
        ] {
            assert_eq!(two("", a, B_USES_A).len(), 1, "{a}");
        }
    }

    #[test]
    fn uses_that_do_not_count_make_no_cycle() {
        for a in [
            "pub struct A;",
            "use std::b::B; pub struct A;",
            "use ::b::B; pub struct A;",
            "#[cfg(test)] use crate::b::B; pub struct A;",
            "pub struct A; #[cfg(test)] mod tests { use crate::b::B; }",
            "pub struct A; #[test] fn f() { crate::b::f() }",
            "pub struct A; fn f(crate_b: u8) { let b = crate_b; b.f() }",
            "/// See [`crate::b::B`].\npub struct A;",
        ] {
            assert_eq!(two("", a, B_USES_A), [""; 0], "{a}");
        }
    }

    #[test]
    fn a_reexport_leads_to_the_file_that_defines() {
        let a = "use crate::B; pub struct A;";
        assert_eq!(two("pub use b::B;", a, B_USES_A).len(), 1);
        assert_eq!(two("pub(crate) use b::*;", a, B_USES_A).len(), 1);
        // Neither file uses the other, and the root uses none.
        assert_eq!(two("pub use a::A; pub use b::B;", a, "pub struct B;"), [""; 0]);
        assert_eq!(two("pub use a::A; pub struct C;", "use crate::C; pub struct A;", ""), [""; 0]);
    }

    /// Finds the cycles of a root and its child, which uses `C` of the root: the checks as usual,
    /// then the strict ones.
    fn parent(root: &str) -> [usize; 2] {
        let root = format!("mod a; {root}");
        let sources = [("lib.rs", root.as_str()), ("a.rs", "pub struct A; use super::C;")];
        [false, true].map(|is_strict| found(&sources, is_strict).len())
    }

    #[test]
    fn a_parent_that_imports_from_its_child_is_in_a_cycle_with_it() {
        for root in [
            "pub struct C; use a::A;",
            "pub struct C; use self::a;",
            "pub struct C; fn f() { self::a::f() }",
            "pub struct C; fn f() { crate::a::f() }",
        ] {
            assert_eq!(parent(root), [1, 1], "{root}");
        }
        assert_eq!(parent("pub struct C; pub use a::A;"), [0, 0]);
    }

    #[test]
    fn a_strict_check_counts_uses_without_an_import() {
        for root in [
            "pub struct C; fn f() { a::f() }",
            "pub struct C; pub use a::A; fn f(a: A) {}",
            "pub struct C; pub(crate) use a::A; fn f() { A::new() }",
            "pub struct C; pub(crate) use a::*; fn f() -> A {}",
        ] {
            assert_eq!(parent(root), [0, 1], "{root}");
        }
        let root = "macro_rules! m { () => {} } mod x; use x::g;";
        let sources = [("lib.rs", root), ("x.rs", "m!{} pub fn g() {}")];
        assert_eq!([false, true].map(|is_strict| found(&sources, is_strict).len()), [0, 1]);
        let variable = "pub struct C; pub use a::a; fn f(b: u8) { let a = b; g(a) }";
        assert_eq!(parent(variable), [0, 0]);
    }

    #[test]
    fn the_shortest_loop_of_a_cycle_is_shown() {
        let found = defects(&[
            ("lib.rs", "mod a; mod b; mod d; mod e;"),
            ("a.rs", "use crate::b::B; pub struct A;"),
            ("b.rs", "use crate::d::D; pub struct B;"),
            ("d.rs", "use crate::a::A; use crate::e::E; pub struct D;"),
            ("e.rs", "use crate::d::D; pub struct E;"),
        ]);
        assert_eq!(
            found,
            ["c/src/d.rs:1: import cycle of 4 files: d.rs:1 (crate::e::E) -> e.rs:1 \
                 (crate::d::D) -> d.rs; also in it: a.rs, b.rs (expected: no cycle)"]
        );
    }

    #[test]
    fn details_are_the_edges_within_a_cycle() {
        let tree = test_tree(&[
            ("c/Cargo.toml", "[package]\nname = \"c\"\n"),
            ("c/src/lib.rs", "mod a; mod b; mod d;"),
            ("c/src/a.rs", "use crate::b::B; use crate::d::D; pub struct A;"),
            ("c/src/b.rs", "use crate::a::A; pub struct B;"),
            ("c/src/d.rs", "pub struct D;"),
        ]);
        let found = check(&packages::of(&tree).0, &outlines(&tree), false);
        assert_eq!(
            found[0].details,
            ["a.rs:1 (crate::b::B) -> b.rs", "b.rs:1 (crate::a::A) -> a.rs"]
        );
    }

    #[test]
    fn two_cycles_are_two_defects() {
        let found = defects(&[
            ("lib.rs", "mod a; mod b; mod d; mod e;"),
            ("a.rs", "use crate::b::B; pub struct A;"),
            ("b.rs", "use crate::a::A; use crate::d::D; pub struct B;"),
            ("d.rs", "use crate::e::E; pub struct D;"),
            ("e.rs", "use crate::d::D; pub struct E;"),
        ]);
        assert_eq!(found.len(), 2);
    }

    #[test]
    fn files_and_modules_without_each_other_are_defects() {
        assert_eq!(
            defects(&[("lib.rs", "mod gone;"), ("stray.rs", "")]),
            [
                "c/src/lib.rs:1: no file for the module gone (expected: c/src/gone.rs)",
                "c/src/stray.rs:1: belongs to no module (expected: a mod declaration)"
            ]
        );
    }
}
