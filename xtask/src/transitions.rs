//! Assertions at state transitions, by crate. This is a report, not a rule.
//!
//! A transition is a function that assigns a field whose name ends in `state`, `stage` or `phase`.
//! It is asserted if the function contains an assertion.

use std::collections::BTreeMap;

use syn::visit::{self, Visit};

use crate::attributes;
use crate::tree::Tree;

/// Endings of the names of fields that hold states.
const FIELDS: [&str; 3] = ["state", "stage", "phase"];

/// The counts of a crate.
#[derive(Default, Clone, Copy, Debug, PartialEq, Eq)]
struct Counts {
    transitions: usize,
    asserted: usize,
    assertions: usize,
}

/// Returns one line for each crate, also for those without transitions.
pub(crate) fn report(tree: &Tree) -> String {
    let mut crates: BTreeMap<&str, Counts> = BTreeMap::new();
    for (path, source) in &tree.sources {
        let Some((folder, inside)) = path.split_once("/src/") else { continue };
        if folder.starts_with("crates/") && !inside.ends_with("tests.rs") {
            let counts = crates.entry(folder).or_default();
            Functions { counts }.visit_file(&source.syntax);
        }
    }
    let row = |(folder, counts): (&&str, &Counts)| {
        let Counts { transitions, asserted, assertions } = counts;
        let name = folder.trim_start_matches("crates/");
        format!(
            "{name:<24} {asserted:>3} of {transitions:>3} transitions, {assertions:>4} assertions\n"
        )
    };
    let rows: String = crates.iter().map(row).collect();
    format!("functions that change a state and contain an assertion; all assertions\n{rows}")
}

/// Visits the functions that are not for tests only.
struct Functions<'c> {
    counts: &'c mut Counts,
}

impl Functions<'_> {
    fn count(&mut self, block: &syn::Block) {
        let mut body = Body::default();
        body.visit_block(block);
        self.counts.transitions += usize::from(body.changes_state);
        self.counts.asserted += usize::from(body.changes_state && body.assertions > 0);
        self.counts.assertions += body.assertions;
    }
}

impl<'ast> Visit<'ast> for Functions<'_> {
    fn visit_item(&mut self, item: &'ast syn::Item) {
        if !attributes::are_test_only(attributes::of_item(item)) {
            visit::visit_item(self, item);
        }
    }

    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        self.count(&item.block);
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        self.count(&item.block);
    }

    fn visit_trait_item_fn(&mut self, item: &'ast syn::TraitItemFn) {
        item.default.iter().for_each(|block| self.count(block));
    }
}

/// The assertions and state changes of a function's body.
#[derive(Default)]
struct Body {
    changes_state: bool,
    assertions: usize,
}

impl<'ast> Visit<'ast> for Body {
    fn visit_expr_assign(&mut self, assign: &'ast syn::ExprAssign) {
        if let syn::Expr::Field(field) = &*assign.left
            && let syn::Member::Named(name) = &field.member
        {
            let name = name.to_string();
            self.changes_state |= FIELDS.iter().any(|ending| name.ends_with(ending));
        }
        visit::visit_expr_assign(self, assign);
    }

    fn visit_macro(&mut self, mac: &'ast syn::Macro) {
        let name = mac.path.segments.last().map(|segment| segment.ident.to_string());
        let name = name.unwrap_or_default();
        let is_assertion = name.trim_start_matches("debug_").starts_with("assert");
        self.assertions += usize::from(is_assertion || name == "unreachable");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::test_tree;

    #[test]
    fn transitions_are_counted_with_and_without_assertions() {
        let text = "
            fn one(a: &mut A) { assert!(a.ok); a.state = 1; }
            impl A { fn two(&mut self) { self.read_state = 1; } fn three(&self) { debug_assert!(true); } }
            #[cfg(test)] mod tests { fn four(a: &mut A) { a.state = 2; } }
        ";
        let report = report(&test_tree(&[("crates/os/a/src/lib.rs", text)]));
        let row = "os/a                       1 of   2 transitions,    2 assertions\n";
        assert!(report.ends_with(row), "{report}");
    }
}
