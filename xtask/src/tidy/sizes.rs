//! Rule: types, functions and files are small enough to be read.
//!
//! What macros make of a table of rows is not seen, and need not be small.

use syn::spanned::Spanned;
use syn::visit::{self, Visit};

use crate::defect::Defect;
use crate::tree::Tree;

/// Fields of a struct, a union or a variant of an enum.
const FIELDS_MAX: usize = 25;
/// Lines of a function, from its `fn` to its closing brace.
const FUNCTION_LINES_MAX: usize = 70;
/// Lines of a file.
const FILE_LINES_MAX: usize = 800;

/// Returns what is too large.
pub(super) fn check(tree: &Tree) -> Vec<Defect> {
    let mut defects = Vec::new();
    for (path, source) in &tree.sources {
        let lines = source.text.lines().count();
        if lines > FILE_LINES_MAX {
            let expected = format!("at most {FILE_LINES_MAX}");
            defects.push(Defect::new(path, 1, format!("file of {lines} lines"), expected));
        }
        Sizes { path, defects: &mut defects }.visit_file(&source.syntax);
    }
    defects
}

struct Sizes<'d> {
    path: &'d str,
    defects: &'d mut Vec<Defect>,
}

impl Sizes<'_> {
    fn fields(&mut self, name: &syn::Ident, fields: usize) {
        if fields > FIELDS_MAX {
            let line = name.span().start().line;
            let wrong = format!("{name} has {fields} fields");
            let expected = format!("at most {FIELDS_MAX}");
            self.defects.push(Defect::new(self.path, line, wrong, expected));
        }
    }

    fn function(&mut self, signature: &syn::Signature, body: &syn::Block) {
        let first = signature.fn_token.span().start().line;
        let lines = body.brace_token.span.close().end().line - first + 1;
        if lines > FUNCTION_LINES_MAX {
            let wrong = format!("{} has {lines} lines", signature.ident);
            let expected = format!("at most {FUNCTION_LINES_MAX}");
            self.defects.push(Defect::new(self.path, first, wrong, expected));
        }
    }
}

impl<'ast> Visit<'ast> for Sizes<'_> {
    fn visit_item_struct(&mut self, item: &'ast syn::ItemStruct) {
        self.fields(&item.ident, item.fields.len());
        visit::visit_item_struct(self, item);
    }

    fn visit_item_union(&mut self, item: &'ast syn::ItemUnion) {
        self.fields(&item.ident, item.fields.named.len());
        visit::visit_item_union(self, item);
    }

    fn visit_variant(&mut self, variant: &'ast syn::Variant) {
        self.fields(&variant.ident, variant.fields.len());
        visit::visit_variant(self, variant);
    }

    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        self.function(&item.sig, &item.block);
        visit::visit_item_fn(self, item);
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        self.function(&item.sig, &item.block);
        visit::visit_impl_item_fn(self, item);
    }

    fn visit_trait_item_fn(&mut self, item: &'ast syn::TraitItemFn) {
        if let Some(body) = &item.default {
            self.function(&item.sig, body);
        }
        visit::visit_trait_item_fn(self, item);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::planted;

    fn defects(text: &str) -> Vec<String> {
        check(&planted(&[("a.rs", text)])).iter().map(Defect::to_string).collect()
    }

    /// A function of so many lines, with something before and after it.
    fn function(lines: usize, before: &str, after: &str) -> String {
        format!("{before}fn f() {{{}}}{after}", "\n".repeat(lines - 1))
    }

    #[test]
    fn functions_have_at_most_70_lines() {
        for (before, after) in [
            ("", ""),
            ("/// Doc.\n#[inline]\npub const ", "\n\n\n"),
            ("impl S { ", "}"),
            ("trait T { ", "}"),
            ("mod m { ", "}"),
            ("#[cfg(test)] mod m { ", "}"),
            ("fn g() { ", "}"),
        ] {
            let longer = defects(&function(71, before, after));
            let line = before.matches('\n').count() + 1;
            let expected = format!("a.rs:{line}: f has 71 lines (expected: at most 70)");
            assert!(longer.contains(&expected), "{before}: {longer:?}");
            if !before.contains("fn g") {
                assert_eq!(defects(&function(70, before, after)), [""; 0], "{before}");
            }
        }
        assert_eq!(defects("trait T { fn f(); }"), [""; 0]);
    }

    #[test]
    fn types_have_at_most_25_fields() {
        let named = |count: usize| (0..count).map(|n| format!("f{n}: u8,")).collect::<String>();
        for (before, after) in
            [("struct S { ", "}"), ("enum E { A, S { ", "}}"), ("union S { ", "}")]
        {
            let text = |count| format!("\n{before}{}{after}", named(count));
            assert_eq!(defects(&text(25)), [""; 0], "{before}");
            assert_eq!(defects(&text(26)), ["a.rs:2: S has 26 fields (expected: at most 25)"]);
        }
        assert_eq!(defects(&format!("struct S({});", "u8,".repeat(26))).len(), 1);
        assert_eq!(defects(&format!("enum E {{ S({}) }}", "u8,".repeat(26))).len(), 1);
        let variants: String = (0..99).map(|n| format!("V{n},")).collect();
        assert_eq!(defects(&format!("enum E {{ {variants} }}")), [""; 0]);
    }

    #[test]
    fn files_have_at_most_800_lines() {
        assert_eq!(defects(&"\n".repeat(800)), [""; 0]);
        assert_eq!(
            defects(&"\n".repeat(801)),
            ["a.rs:1: file of 801 lines (expected: at most 800)"]
        );
        assert_eq!(defects(&("\n".repeat(800) + "// End.")).len(), 1);
    }

    #[test]
    fn tables_of_rows_are_exempt() {
        let rows: String = (0..99).map(|n| format!("f{n}: u8,\n")).collect();
        assert_eq!(defects(&format!("counters! {{ struct S {{\n{rows}}} }}")), [""; 0]);
        let body = function(71, "", "");
        assert_eq!(defects(&format!("macro_rules! m {{ () => {{ {body} }} }}")), [""; 0]);
    }
}
