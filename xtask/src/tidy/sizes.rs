//! Rule: types, functions and files are small enough to be read.
//!
//! Types and functions that are written out among the tokens of a macro count like others. The
//! macros of [`TABLES`] are exempt: their tables of rows may be long, and may generate large types.

use std::fmt::Display;

use proc_macro2::{Delimiter, Group, TokenStream, TokenTree};
use syn::spanned::Spanned;
use syn::visit::{self, Visit};

use crate::defect::Defect;
use crate::outline::is_punct;
use crate::tree::Tree;

/// Fields of a struct, a union or a variant of an enum.
const FIELDS_MAX: usize = 25;
/// Lines of a function, from its `fn` to its closing brace.
const FUNCTION_LINES_MAX: usize = 70;
/// Lines of a file.
const FILE_LINES_MAX: usize = 800;

/// The macros whose tables of rows may have any length.
const TABLES: [&str; 4] = ["counters", "limits", "names", "reasons"];

/// Returns the files, functions and types that are too large.
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
        self.lines(&signature.ident, first, body.brace_token.span.close().end().line);
    }

    fn lines(&mut self, name: &impl Display, first: usize, last: usize) {
        let lines = last - first + 1;
        if lines > FUNCTION_LINES_MAX {
            let wrong = format!("{name} has {lines} lines");
            let expected = format!("at most {FUNCTION_LINES_MAX}");
            self.defects.push(Defect::new(self.path, first, wrong, expected));
        }
    }

    /// Checks the lines of a macro call among items. Calls inside functions are limited by the
    /// function.
    fn call(&mut self, mac: &syn::Macro) {
        if let Some(name) = mac.path.segments.last()
            && !TABLES.iter().any(|table| name.ident == table)
        {
            let last = mac.delimiter.span().close().end().line;
            self.lines(&format!("{}!", name.ident), name.ident.span().start().line, last);
        }
    }

    /// Finds functions and types among the tokens of a macro. `is_table`: the tokens define a macro
    /// of `TABLES`, whose types may have generated fields.
    fn scan(&mut self, tokens: &TokenStream, is_table: bool) {
        let tokens: Vec<TokenTree> = tokens.clone().into_iter().collect();
        for (at, token) in tokens.iter().enumerate() {
            match token {
                TokenTree::Group(group) => self.scan(&group.stream(), is_table),
                TokenTree::Ident(keyword) => {
                    // For `$name`, the name after `$`.
                    let name = at + 1 + usize::from(is_punct(tokens.get(at + 1), '$'));
                    let Some(TokenTree::Ident(name)) = tokens.get(name) else { continue };
                    if keyword == "fn" {
                        if let Some(body) = body(&tokens[at..], false) {
                            let last = body.span_close().end().line;
                            self.lines(name, keyword.span().start().line, last);
                        }
                    } else if keyword == "struct" || keyword == "union" {
                        if let Some(body) = body(&tokens[at..], true) {
                            self.rows(name, body, is_table);
                        }
                    } else if keyword == "enum"
                        && let Some(body) = body(&tokens[at..], false)
                    {
                        self.variants(body, is_table);
                    }
                }
                _ => {}
            }
        }
    }

    fn variants(&mut self, body: &Group, is_table: bool) {
        let tokens: Vec<TokenTree> = body.stream().into_iter().collect();
        for pair in tokens.windows(2) {
            if let [TokenTree::Ident(name), TokenTree::Group(fields)] = pair {
                self.rows(name, fields, is_table);
            }
        }
    }

    /// Checks fields among tokens. The number of fields that `$(…)*` generates is not known, so
    /// only a table may contain it.
    fn rows(&mut self, name: &proc_macro2::Ident, fields: &Group, is_table: bool) {
        let (mut count, mut depth, mut is_between, mut is_repeated) = (0, 0, true, false);
        let mut before = None;
        for token in fields.stream() {
            let is_arrow = is_punct(before.as_ref(), '-');
            let is_group = matches!(&token, TokenTree::Group(_));
            is_repeated |= is_group && is_punct(before.as_ref(), '$');
            match &token {
                TokenTree::Punct(punct) if punct.as_char() == '<' => depth += 1,
                TokenTree::Punct(punct) if punct.as_char() == '>' && !is_arrow => depth -= 1,
                _ => {}
            }
            let is_comma = depth == 0 && is_punct(Some(&token), ',');
            count += usize::from(is_between && !is_comma);
            is_between = is_comma;
            before = Some(token);
        }
        self.fields(name, count);
        if is_repeated && !is_table {
            let wrong = format!("a macro generates fields of {name} from rows");
            let expected = format!("fields that are written out, or one of {}", TABLES.join(", "));
            self.defects.push(Defect::new(self.path, name.span().start().line, wrong, expected));
        }
    }
}

/// Returns the body of the item that starts here: its braces or, for a type, its parentheses.
/// Returns `None` if the item has none.
fn body(tokens: &[TokenTree], is_type: bool) -> Option<&Group> {
    let mut tokens = tokens.iter();
    tokens.find_map(|token| match token {
        TokenTree::Punct(punct) if punct.as_char() == ';' => Some(None),
        TokenTree::Group(group) => match group.delimiter() {
            Delimiter::Brace => Some(Some(group)),
            Delimiter::Parenthesis if is_type => Some(Some(group)),
            _ => None,
        },
        _ => None,
    })?
}

impl<'ast> Visit<'ast> for Sizes<'_> {
    fn visit_item_macro(&mut self, item: &'ast syn::ItemMacro) {
        match &item.ident {
            Some(name) => {
                self.scan(&item.mac.tokens, TABLES.iter().any(|table| name == table));
            }
            None => {
                self.call(&item.mac);
                self.visit_macro(&item.mac);
            }
        }
    }

    fn visit_impl_item_macro(&mut self, item: &'ast syn::ImplItemMacro) {
        self.call(&item.mac);
        self.visit_macro(&item.mac);
    }

    fn visit_trait_item_macro(&mut self, item: &'ast syn::TraitItemMacro) {
        self.call(&item.mac);
        self.visit_macro(&item.mac);
    }

    fn visit_macro(&mut self, mac: &'ast syn::Macro) {
        self.scan(&mac.tokens, false);
    }

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
    use crate::tree::test_tree;

    fn defects(text: &str) -> Vec<String> {
        check(&test_tree(&[("a.rs", text)])).iter().map(Defect::to_string).collect()
    }

    /// A function of `lines` lines, with texts before and after it.
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
    fn items_in_macros_have_the_same_limits() {
        let fields = |count: usize| (0..count).map(|n| format!("f{n}: M<u8, u8>,"));
        let fields = |count| fields(count).collect::<String>();
        for (before, after) in [
            ("struct S { ", "}"),
            ("struct $S<T: U> { ", "}"),
            ("enum E { A, S { ", "}}"),
            ("mod m { union S { ", "}}"),
        ] {
            for outer in ["plain! {", "macro_rules! m { () => {", "fn f() { vec! {"] {
                let closing = "}".repeat(outer.matches('{').count());
                let text = |count| format!("{outer}\n{before}{}{after}{closing}", fields(count));
                assert_eq!(defects(&text(25)), [""; 0], "{}", text(25));
                assert_eq!(defects(&text(26)), ["a.rs:2: S has 26 fields (expected: at most 25)"]);
            }
        }
        assert_eq!(defects(&format!("m! {{ struct S({}); }}", "u8,".repeat(26))).len(), 1);
        for (before, after) in [
            ("macro_rules! m { () => {", "}}"),
            ("const X: u8 = m! { m! {", "}};"),
            ("m! { trait T { fn g(); ", "}}"),
        ] {
            let longer = defects(&function(71, before, after));
            let expected = "a.rs:1: f has 71 lines (expected: at most 70)".to_owned();
            assert!(longer.contains(&expected), "{before}: {longer:?}");
            assert_eq!(defects(&function(70, before, after)), [""; 0], "{before}");
        }
        let rows = format!("counters! {{ fn f(x: fn(u8)) -> u8; {{{}}} }}", "\n".repeat(99));
        assert_eq!(defects(&rows), [""; 0], "the braces are not the function's");
    }

    #[test]
    fn only_known_tables_of_rows_are_exempt() {
        let rows = |name: &str, count: usize| format!("{name}! {{{}}}", "\n".repeat(count - 1));
        assert_eq!(defects(&rows("counters", 99)), [""; 0]);
        assert_eq!(defects(&rows("other", 70)), [""; 0]);
        let found = defects(&rows("other", 71));
        assert_eq!(found, ["a.rs:1: other! has 71 lines (expected: at most 70)"]);
        let inner = format!("impl S {{ {} }}", rows("other", 71));
        assert_eq!(defects(&inner).len(), 1);
        let maker = |name: &str| {
            format!("macro_rules! {name} {{ ($($n:ident)*) => {{ struct S {{ $($n: u8,)* }} }} }}")
        };
        assert_eq!(defects(&maker("counters")), [""; 0]);
        assert_eq!(defects(&maker("other")).len(), 1);
    }
}
