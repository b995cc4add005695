//! Rule: a predicate changes nothing: `is_…`, `has_…` and the like do not take `&mut self`.

use syn::visit::{self, Visit};

use crate::defect::Defect;
use crate::tree::Tree;

const PREFIXES: [&str; 7] = ["is_", "has_", "may_", "can_", "lacks_", "needs_", "are_"];

/// Returns the predicates that may change their object.
pub(super) fn check(tree: &Tree) -> Vec<Defect> {
    let mut defects = Vec::new();
    for (path, source) in &tree.sources {
        Predicates { path, defects: &mut defects }.visit_file(&source.syntax);
    }
    defects
}

struct Predicates<'d> {
    path: &'d str,
    defects: &'d mut Vec<Defect>,
}

impl<'ast> Visit<'ast> for Predicates<'_> {
    fn visit_signature(&mut self, signature: &'ast syn::Signature) {
        let name = signature.ident.to_string();
        let is_predicate = PREFIXES.iter().any(|prefix| name.starts_with(prefix));
        let changes =
            signature.receiver().is_some_and(|receiver| is_mutable_reference(&receiver.ty));
        if is_predicate && changes {
            let line = signature.ident.span().start().line;
            let wrong = format!("{name} takes &mut self");
            self.defects.push(Defect::new(self.path, line, wrong, "&self, or a verb as the name"));
        }
        visit::visit_signature(self, signature);
    }
}

/// Returns whether the type of `self` is `&mut Self`, perhaps pinned.
fn is_mutable_reference(of: &syn::Type) -> bool {
    match of {
        syn::Type::Reference(reference) => reference.mutability.is_some(),
        syn::Type::Path(path) => path.path.segments.last().is_some_and(|last| {
            let syn::PathArguments::AngleBracketed(inner) = &last.arguments else { return false };
            inner.args.iter().any(|argument| {
                matches!(argument, syn::GenericArgument::Type(of) if is_mutable_reference(of))
            })
        }),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::test_tree;

    fn defects(text: &str) -> Vec<String> {
        check(&test_tree(&[("a.rs", text)])).iter().map(Defect::to_string).collect()
    }

    #[test]
    fn a_predicate_that_changes_its_object_is_found() {
        let expected = ["a.rs:1: is_done takes &mut self (expected: &self, or a verb as the name)"];
        assert_eq!(defects("impl A { fn is_done(&mut self) -> bool { true } }"), expected);
        for text in [
            "trait A { fn may_end(&mut self) -> bool; }",
            "impl A { fn has_end(self: &mut Self) -> bool { true } }",
            "impl A { fn has_end(self: Pin<&mut Self>) -> bool { true } }",
        ] {
            assert_eq!(defects(text).len(), 1, "{text}");
        }
    }

    #[test]
    fn pure_predicates_and_actions_pass() {
        for text in [
            "impl A { fn is_done(&self) -> bool { true } }",
            "impl A { fn finish(&mut self) -> bool { true } }",
            "impl A { fn is_done(mut self) -> bool { true } }",
            "fn is_done(a: &mut A) -> bool { true }",
        ] {
            assert_eq!(defects(text), [""; 0], "{text}");
        }
    }
}
