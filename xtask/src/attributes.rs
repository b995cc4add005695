//! Which code is for tests only.

use syn::{
    Attribute, Expr, ForeignItem, ImplItem, Item, Meta, Stmt, Token, TraitItem,
    punctuated::Punctuated,
};

/// Returns whether attributes restrict code to tests: `#[test]`, `#[bench]`, `#[cfg(test)]` and
/// `#[cfg(doctest)]`. `any(test, …)` does so only if each of its parts does.
pub(crate) fn are_test_only(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        let path = attribute.path();
        path.is_ident("test")
            || path.is_ident("bench")
            || path.is_ident("cfg")
                && attribute.parse_args::<Meta>().is_ok_and(|predicate| needs_test(&predicate))
    })
}

fn needs_test(predicate: &Meta) -> bool {
    let parts = |list: &syn::MetaList| {
        list.parse_args_with(Punctuated::<Meta, Token![,]>::parse_terminated).unwrap_or_default()
    };
    match predicate {
        Meta::Path(path) => path.is_ident("test") || path.is_ident("doctest"),
        Meta::List(list) if list.path.is_ident("all") => parts(list).iter().any(needs_test),
        Meta::List(list) if list.path.is_ident("any") => {
            let parts = parts(list);
            !parts.is_empty() && parts.iter().all(needs_test)
        }
        _ => false,
    }
}

/// Returns the attributes of an item; none if syn does not know its kind.
pub(crate) fn of_item(item: &Item) -> &[Attribute] {
    match item {
        Item::Const(item) => &item.attrs,
        Item::Enum(item) => &item.attrs,
        Item::ExternCrate(item) => &item.attrs,
        Item::Fn(item) => &item.attrs,
        Item::ForeignMod(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        Item::Macro(item) => &item.attrs,
        Item::Mod(item) => &item.attrs,
        Item::Static(item) => &item.attrs,
        Item::Struct(item) => &item.attrs,
        Item::Trait(item) => &item.attrs,
        Item::TraitAlias(item) => &item.attrs,
        Item::Type(item) => &item.attrs,
        Item::Union(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        _ => &[],
    }
}

/// Returns the attributes of an item of an `impl`.
pub(crate) fn of_impl_item(item: &ImplItem) -> &[Attribute] {
    match item {
        ImplItem::Const(item) => &item.attrs,
        ImplItem::Fn(item) => &item.attrs,
        ImplItem::Type(item) => &item.attrs,
        ImplItem::Macro(item) => &item.attrs,
        _ => &[],
    }
}

/// Returns the attributes of an item of a trait.
pub(crate) fn of_trait_item(item: &TraitItem) -> &[Attribute] {
    match item {
        TraitItem::Const(item) => &item.attrs,
        TraitItem::Fn(item) => &item.attrs,
        TraitItem::Type(item) => &item.attrs,
        TraitItem::Macro(item) => &item.attrs,
        _ => &[],
    }
}

/// Returns the attributes of an item of an `extern` block.
pub(crate) fn of_foreign_item(item: &ForeignItem) -> &[Attribute] {
    match item {
        ForeignItem::Fn(item) => &item.attrs,
        ForeignItem::Static(item) => &item.attrs,
        ForeignItem::Type(item) => &item.attrs,
        ForeignItem::Macro(item) => &item.attrs,
        _ => &[],
    }
}

/// Returns the attributes of a statement.
pub(crate) fn of_statement(statement: &Stmt) -> &[Attribute] {
    match statement {
        Stmt::Local(local) => &local.attrs,
        Stmt::Item(item) => of_item(item),
        Stmt::Macro(mac) => &mac.attrs,
        Stmt::Expr(expression, _) => match expression {
            Expr::Assign(e) => &e.attrs,
            Expr::Block(e) => &e.attrs,
            Expr::Call(e) => &e.attrs,
            Expr::ForLoop(e) => &e.attrs,
            Expr::If(e) => &e.attrs,
            Expr::Macro(e) => &e.attrs,
            Expr::Match(e) => &e.attrs,
            Expr::MethodCall(e) => &e.attrs,
            Expr::Return(e) => &e.attrs,
            _ => &[],
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_code_that_needs_test_is_test_only() {
        for (text, expected) in [
            ("#[cfg(test)] fn f() {}", true),
            ("#[cfg(all(test, unix))] fn f() {}", true),
            ("#[cfg(any(test, all(test, unix)))] fn f() {}", true),
            ("#[test] fn f() {}", true),
            ("#[cfg(any(test, feature = \"corpus\"))] fn f() {}", false),
            ("#[cfg(not(test))] fn f() {}", false),
            ("#[cfg(any())] fn f() {}", false),
            ("#[cfg(doctest)] struct S;", true),
            ("#[inline] fn f() {}", false),
        ] {
            let item: Item = syn::parse_str(text).unwrap();
            assert_eq!(are_test_only(of_item(&item)), expected, "{text}");
        }
    }
}
