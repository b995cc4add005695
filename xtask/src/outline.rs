//! The definitions, imports and paths of a file, as they are written. `modules.rs` resolves the
//! paths.

use std::collections::BTreeSet;

use proc_macro2::{Ident, TokenStream, TokenTree};
use syn::ext::IdentExt;
use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{Item, UseTree};

use crate::attributes;

/// One module without the code that is for tests only.
#[derive(Default)]
pub(crate) struct Outline {
    /// The names of items, without modules, imports, and items that macros generate.
    pub(crate) items: BTreeSet<String>,
    /// Names of `macro_rules!`.
    pub(crate) macros: BTreeSet<String>,
    /// Those of `macros` that `#[macro_export]` puts into the root of the crate.
    pub(crate) exported: BTreeSet<String>,
    pub(crate) imports: Vec<Import>,
    pub(crate) mentions: Vec<Mention>,
    pub(crate) children: Vec<Child>,
    /// The types of the `impl` blocks; `_` for a type that is not a path.
    pub(crate) impls: Vec<Path>,
}

/// A path as it is written, such as `super::pool::Pool`. It never starts with `::`.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Path {
    pub(crate) segments: Vec<String>,
    pub(crate) line: usize,
}

/// One name of a `use` declaration.
#[derive(Debug)]
pub(crate) struct Import {
    pub(crate) path: Path,
    /// The name under which this module imports it; `None` for `*` and `_`.
    pub(crate) name: Option<String>,
    pub(crate) is_glob: bool,
    /// Whether the import has a visibility, such as `pub(crate)`.
    pub(crate) is_public: bool,
    /// Whether the import is in the body of a function, where no other module can use it.
    pub(crate) is_local: bool,
}

/// How a path is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Usage {
    Called,
    /// As a value, or in a pattern.
    Value,
    /// As a type or trait.
    Type,
    /// As the name of a macro.
    Macro,
    /// Among the arguments or the definition of a macro, so its meaning is not known. A variable of
    /// the macro starts with `$`; `$crate` is written as `crate`.
    Tokens,
}

/// A path in code.
#[derive(Debug)]
pub(crate) struct Mention {
    pub(crate) path: Path,
    pub(crate) usage: Usage,
}

/// A `mod` in a module.
pub(crate) struct Child {
    pub(crate) name: String,
    pub(crate) line: usize,
    pub(crate) is_test: bool,
    /// The value of `#[path]`.
    pub(crate) path: Option<String>,
    /// None if it has a file of its own.
    pub(crate) body: Option<Outline>,
}

impl Outline {
    /// Outlines the module of a file.
    pub(crate) fn of(file: &syn::File) -> Outline {
        let mut collector = Collector::default();
        if !attributes::are_test_only(&file.attrs) {
            collector.visit_file(file);
        }
        collector.outline
    }
}

#[derive(Default)]
struct Collector {
    outline: Outline,
    /// The number of blocks around the current position of the visit.
    depth: usize,
}

impl Collector {
    fn define(&mut self, item: &Item) {
        let name = match item {
            Item::Const(item) => &item.ident,
            Item::Enum(item) => &item.ident,
            Item::Fn(item) => &item.sig.ident,
            Item::Static(item) => &item.ident,
            Item::Struct(item) => &item.ident,
            Item::Trait(item) => &item.ident,
            Item::TraitAlias(item) => &item.ident,
            Item::Type(item) => &item.ident,
            Item::Union(item) => &item.ident,
            Item::Macro(item) => {
                let Some(name) = &item.ident else { return };
                self.outline.macros.insert(plain(name));
                if item.attrs.iter().any(|a| a.path().is_ident("macro_export")) {
                    self.outline.exported.insert(plain(name));
                }
                name
            }
            _ => return,
        };
        self.outline.items.insert(plain(name));
    }

    fn mention(&mut self, path: &syn::Path, usage: Usage) {
        self.mention_names(path.segments.iter(), path, usage);
    }

    /// Adds a path with these segments. `start` gives its line, and whether it is global.
    fn mention_names<'s>(
        &mut self,
        segments: impl Iterator<Item = &'s syn::PathSegment>,
        start: &syn::Path,
        usage: Usage,
    ) {
        if start.leading_colon.is_none() {
            let segments = segments.map(|segment| plain(&segment.ident)).collect();
            let path = Path { segments, line: start.span().start().line };
            self.outline.mentions.push(Mention { path, usage });
        }
    }

    fn import(&mut self, tree: &UseTree, prefix: &mut Vec<String>, is_public: bool) {
        let (last, name) = match tree {
            UseTree::Path(path) => {
                prefix.push(plain(&path.ident));
                self.import(&path.tree, prefix, is_public);
                prefix.pop();
                return;
            }
            UseTree::Group(group) => {
                for tree in &group.items {
                    self.import(tree, prefix, is_public);
                }
                return;
            }
            UseTree::Name(name) => (Some(&name.ident), Some(plain(&name.ident))),
            UseTree::Rename(name) => (Some(&name.ident), Some(plain(&name.rename))),
            UseTree::Glob(_) => (None, None),
        };
        let mut segments = prefix.clone();
        let mut name = name;
        match last {
            // `a::{self}` is `a`.
            Some(last) if last == "self" && !prefix.is_empty() => {
                name = name.filter(|name| name != "self").or_else(|| prefix.last().cloned());
            }
            Some(last) => segments.push(plain(last)),
            None => {}
        }
        self.outline.imports.push(Import {
            path: Path { segments, line: tree.span().start().line },
            name: name.filter(|name| name != "_"),
            is_glob: last.is_none(),
            is_public,
            is_local: self.depth > 0,
        });
    }

    /// Finds paths among tokens. A single name counts too, since it may name an item or a module.
    fn scan(&mut self, tokens: &TokenStream) {
        let tokens: Vec<TokenTree> = tokens.clone().into_iter().collect();
        let mut at = 0;
        while at < tokens.len() {
            match &tokens[at] {
                TokenTree::Group(group) => self.scan(&group.stream()),
                TokenTree::Ident(first) => {
                    let line = first.span().start().line;
                    let start = at;
                    let mut segments = vec![plain(first)];
                    while let Some(TokenTree::Ident(next)) = tokens.get(at + 3)
                        && is_separator(&tokens, at + 1)
                    {
                        segments.push(plain(next));
                        at += 3;
                    }
                    self.scanned(&tokens[..start], Path { segments, line });
                }
                _ => {}
            }
            at += 1;
        }
    }

    /// Adds a path that follows these tokens, unless they show that it is no path.
    fn scanned(&mut self, before: &[TokenTree], mut path: Path) {
        let is = |back: usize, sign| {
            before.len().checked_sub(back).is_some_and(|at| is_punct(before.get(at), sign))
        };
        // The tokens are no path, or one that starts with `::`, if they follow a `.`, a `'` or a
        // `::`. But behind `..`, the end of a range may be a path.
        if is(1, '.') && !is(2, '.') || is(1, '\'') || is(1, ':') && is(2, ':') {
            return;
        }
        if is(1, '$') && path.segments[0] != "crate" {
            path.segments[0].insert(0, '$');
        }
        // `crate`, `super` and `self` alone, as in `pub(crate)` and `self.field`, name no item.
        if path.segments.len() > 1 || !matches!(&*path.segments[0], "crate" | "super" | "self") {
            self.outline.mentions.push(Mention { path, usage: Usage::Tokens });
        }
    }
}

/// Returns whether a token is this punctuation.
pub(crate) fn is_punct(token: Option<&TokenTree>, sign: char) -> bool {
    matches!(token, Some(TokenTree::Punct(punct)) if punct.as_char() == sign)
}

/// Returns whether `::` is at an index.
fn is_separator(tokens: &[TokenTree], at: usize) -> bool {
    is_punct(tokens.get(at), ':') && is_punct(tokens.get(at + 1), ':')
}

/// Returns a name without `r#`: `r#x` and `x` are the same name.
fn plain(name: &Ident) -> String {
    name.unraw().to_string()
}

impl<'ast> Visit<'ast> for Collector {
    // Paths in attributes and visibilities do not count.
    fn visit_attribute(&mut self, _: &'ast syn::Attribute) {}

    fn visit_visibility(&mut self, _: &'ast syn::Visibility) {}

    fn visit_item(&mut self, item: &'ast Item) {
        // A module for tests is kept, so that its file is known to belong to the crate.
        if attributes::are_test_only(attributes::of_item(item)) && !matches!(item, Item::Mod(_)) {
            return;
        }
        if self.depth == 0 {
            self.define(item);
        }
        visit::visit_item(self, item);
    }

    fn visit_item_mod(&mut self, module: &'ast syn::ItemMod) {
        let mut collector = Collector::default();
        let body = module.content.as_ref().map(|(_, items)| {
            items.iter().for_each(|item| collector.visit_item(item));
            collector.outline
        });
        let path = module.attrs.iter().find_map(|attribute| match &attribute.meta {
            syn::Meta::NameValue(pair) if pair.path.is_ident("path") => match &pair.value {
                syn::Expr::Lit(syn::ExprLit { lit: syn::Lit::Str(text), .. }) => Some(text.value()),
                _ => None,
            },
            _ => None,
        });
        self.outline.children.push(Child {
            name: plain(&module.ident),
            line: module.mod_token.span.start().line,
            is_test: attributes::are_test_only(&module.attrs),
            path,
            body,
        });
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        if item.leading_colon.is_none() {
            let is_public = !matches!(item.vis, syn::Visibility::Inherited);
            self.import(&item.tree, &mut Vec::new(), is_public);
        }
    }

    fn visit_item_extern_crate(&mut self, item: &'ast syn::ItemExternCrate) {
        if let (true, Some((_, name))) = (item.ident == "self", &item.rename) {
            let path = Path { segments: vec!["crate".into()], line: name.span().start().line };
            self.outline.imports.push(Import {
                path,
                name: Some(plain(name)),
                is_glob: false,
                is_public: !matches!(item.vis, syn::Visibility::Inherited),
                is_local: self.depth > 0,
            });
        }
    }

    fn visit_impl_item(&mut self, item: &'ast syn::ImplItem) {
        if !attributes::are_test_only(attributes::of_impl_item(item)) {
            visit::visit_impl_item(self, item);
        }
    }

    fn visit_trait_item(&mut self, item: &'ast syn::TraitItem) {
        if !attributes::are_test_only(attributes::of_trait_item(item)) {
            visit::visit_trait_item(self, item);
        }
    }

    fn visit_foreign_item(&mut self, item: &'ast syn::ForeignItem) {
        if attributes::are_test_only(attributes::of_foreign_item(item)) {
            return;
        }
        if let syn::ForeignItem::Fn(function) = item {
            self.outline.items.insert(plain(&function.sig.ident));
        }
        visit::visit_foreign_item(self, item);
    }

    fn visit_item_impl(&mut self, item: &'ast syn::ItemImpl) {
        let line = item.impl_token.span.start().line;
        let segments = match &*item.self_ty {
            syn::Type::Path(of) => of.path.segments.iter().map(|s| plain(&s.ident)).collect(),
            _ => vec!["_".to_owned()],
        };
        self.outline.impls.push(Path { segments, line });
        visit::visit_item_impl(self, item);
    }

    fn visit_stmt(&mut self, statement: &'ast syn::Stmt) {
        if !attributes::are_test_only(attributes::of_statement(statement)) {
            visit::visit_stmt(self, statement);
        }
    }

    fn visit_field(&mut self, field: &'ast syn::Field) {
        if !attributes::are_test_only(&field.attrs) {
            visit::visit_field(self, field);
        }
    }

    fn visit_field_value(&mut self, field: &'ast syn::FieldValue) {
        if !attributes::are_test_only(&field.attrs) {
            visit::visit_field_value(self, field);
        }
    }

    fn visit_variant(&mut self, variant: &'ast syn::Variant) {
        if !attributes::are_test_only(&variant.attrs) {
            visit::visit_variant(self, variant);
        }
    }

    fn visit_arm(&mut self, arm: &'ast syn::Arm) {
        if !attributes::are_test_only(&arm.attrs) {
            visit::visit_arm(self, arm);
        }
    }

    fn visit_block(&mut self, block: &'ast syn::Block) {
        self.depth += 1;
        visit::visit_block(self, block);
        self.depth -= 1;
    }

    fn visit_expr_call(&mut self, call: &'ast syn::ExprCall) {
        match &*call.func {
            syn::Expr::Path(function) => {
                self.mention(&function.path, Usage::Called);
                visit_parts(self, function);
            }
            function => self.visit_expr(function),
        }
        call.args.iter().for_each(|argument| self.visit_expr(argument));
    }

    fn visit_expr_path(&mut self, path: &'ast syn::ExprPath) {
        self.mention(&path.path, Usage::Value);
        visit_parts(self, path);
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        self.mention(path, Usage::Type);
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, mac: &'ast syn::Macro) {
        self.mention(&mac.path, Usage::Macro);
        self.scan(&mac.tokens);
    }
}

/// Visits the types within a path in an expression. For `<X as T>::f`, also adds `X::f`, since the
/// file of `X` may define the function.
fn visit_parts(collector: &mut Collector, path: &syn::ExprPath) {
    if let Some(qualified) = &path.qself {
        collector.visit_qself(qualified);
        if let (syn::Type::Path(of), Some(last)) = (&*qualified.ty, path.path.segments.last()) {
            collector.mention_names(of.path.segments.iter().chain([last]), &of.path, Usage::Value);
        }
    }
    path.path.segments.iter().for_each(|segment| collector.visit_path_segment(segment));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outline(text: &str) -> Outline {
        Outline::of(&syn::parse_str(text).unwrap())
    }

    fn imports(text: &str) -> Vec<String> {
        let imports = outline(text).imports;
        imports
            .iter()
            .map(|import| {
                let name = import.name.as_deref().unwrap_or(if import.is_glob { "*" } else { "_" });
                format!("{} as {name}", import.path.segments.join("::"))
            })
            .collect()
    }

    fn mentions(text: &str) -> Vec<String> {
        let mentions = outline(text).mentions;
        mentions.iter().map(|m| format!("{:?} {}", m.usage, m.path.segments.join("::"))).collect()
    }

    #[test]
    fn imports_are_split_into_names() {
        assert_eq!(
            imports("use a::{self, b::{C as D, *}, T as _}; use self::e; use ::f::g;"),
            ["a as a", "a::b::C as D", "a::b as *", "a::T as _", "self::e as e"]
        );
        let outline = outline("pub(crate) use a::B; fn f() { use c::d; }");
        assert_eq!([outline.imports[0].is_public, outline.imports[0].is_local], [true, false]);
        assert_eq!([outline.imports[1].is_public, outline.imports[1].is_local], [false, true]);
    }

    #[test]
    fn paths_are_found_in_code_and_in_macros() {
        assert_eq!(
            mentions(
                "fn f(x: a::B<c::D>) { e::g::<h::I>(j::K); l!(m::n(o), ::p::q, $crate::r::s) }"
            ),
            [
                "Type a::B",
                "Type c::D",
                "Called e::g",
                "Type h::I",
                "Value j::K",
                "Macro l",
                "Tokens m::n",
                "Tokens o",
                "Tokens crate::r::s"
            ]
        );
        assert_eq!(
            mentions("const F: fn() = <x::Y as t::U>::on;"),
            ["Value t::U::on", "Type x::Y", "Value x::Y::on"]
        );
        assert_eq!(mentions("fn f() { x().on(); r#type::y(); }"), ["Called x", "Called type::y"]);
    }

    #[test]
    fn paths_in_macros_are_recognised() {
        for (tokens, expected) in [
            ("on(x, 1)", &["on", "x"][..]),
            ("a.b.c()", &["a"]),
            ("a..b", &["a", "b"]),
            ("'a: loop {}", &["loop"]),
            ("pub(crate) fn", &["pub", "fn"]),
            ("self.a", &[]),
            ("x: r#type::y", &["x", "type::y"]),
            ("a::$b::c", &["a", "$b::c"]),
            ("::a::b", &[]),
            ("a::b::<c::d>()", &["a::b", "c::d"]),
        ] {
            let expected: Vec<_> = expected.iter().map(|path| format!("Tokens {path}")).collect();
            assert_eq!(mentions(&format!("m! {{ {tokens} }}"))[1..], expected, "{tokens}");
        }
    }

    #[test]
    fn impls_are_known_by_their_types() {
        let outline = outline("impl a::B<C> {} impl D for E {} impl F for &G {}");
        let of: Vec<_> = outline.impls.iter().map(|path| path.segments.join("::")).collect();
        assert_eq!(of, ["a::B", "E", "_"]);
    }

    #[test]
    fn code_for_tests_is_left_out() {
        let outline = outline(
            "#[cfg(test)] use a::b; #[cfg(test)] mod tests; #[test] fn f() { c::d() }
             struct S { #[cfg(test)] e: g::H }
             impl S { #[cfg(test)] fn i() { j::k() } }
             fn l() { #[cfg(test)] m::n(); #[cfg(test)] let o = p::q(); }",
        );
        assert!(outline.imports.is_empty());
        let paths: Vec<_> = outline.mentions.iter().map(|m| m.path.segments.join("::")).collect();
        assert_eq!(paths, ["S"]);
        assert!(outline.children[0].is_test);
    }

    #[test]
    fn items_and_modules_are_known() {
        let outline = outline(
            "#[path = \"x/y.rs\"] mod z; mod i { fn j() {} } fn k() { fn hidden() {} }
             #[macro_export] macro_rules! m { () => {} } unsafe extern \"C\" { fn c(); }",
        );
        assert_eq!(outline.items.iter().map(String::as_str).collect::<Vec<_>>(), ["c", "k", "m"]);
        assert!(outline.exported.contains("m"));
        assert_eq!(outline.children[0].path.as_deref(), Some("x/y.rs"));
        assert!(outline.children[1].body.as_ref().unwrap().items.contains("j"));
    }
}
