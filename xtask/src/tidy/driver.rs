//! Rule: only the stage driver names items of a stage, and only the worker's loop names the driver.
//! So the path of a request is in one file, and no other code enters it.
//!
//! Every import and every path counts, also among the tokens of macros. A function that is never
//! named cannot be called. `mod` declarations and code for tests do not count. The driver and the
//! stages must not define anything that lets other files call a function without naming its stage:
//! a re-export by the driver, a macro, or an `impl` for a type of another file.

use crate::defect::Defect;
use crate::modules::{Id, Module, Modules, Outlines, Target};
use crate::outline::{Path, Usage};
use crate::packages::Package;

/// The package that has the stages.
const PACKAGE: &str = "crates/proxy/proxy";
/// The driver.
const DRIVER: &str = "crates/proxy/proxy/src/worker/driver.rs";
/// The worker's loop, which hands events to the driver.
const LOOP: &str = "crates/proxy/proxy/src/worker/mod.rs";
/// The folder of the stages.
const STAGES: &str = "crates/proxy/proxy/src/stage/";
/// The parent module of the stages if it is not `stage/mod.rs`.
const STAGES_PARENT: &str = "crates/proxy/proxy/src/stage.rs";

/// The function that takes an exchange through a stage. The stage itself must not call it either.
const ENTRY: &str = "on";

/// Returns the places that break the rule. A tree without a driver that calls stages is a defect
/// too, since the rule would then check nothing.
pub(super) fn check(packages: &[Package], outlines: &Outlines) -> Vec<Defect> {
    let mut search = Search { defects: Vec::new(), is_driven: false };
    for package in packages.iter().filter(|package| package.folder == PACKAGE) {
        for modules in package.crates(outlines) {
            for (id, module) in modules.iter().filter(|(_, module)| !module.is_test) {
                search.check_names(&modules, id, module);
                search.check_definitions(&modules, id, module);
            }
        }
    }
    let Search { mut defects, is_driven } = search;
    if !is_driven {
        let wrong = format!("no call of a stage's `{ENTRY}`");
        defects.push(Defect::new(DRIVER, 1, wrong, "the driver, which alone calls the stages"));
    }
    defects
}

/// Returns the stage that a file belongs to, such as `parse`; None if it belongs to none. The
/// parent of the stages counts as one.
fn stage_of(file: &str) -> Option<&str> {
    if file == STAGES_PARENT {
        return Some("mod");
    }
    file.strip_prefix(STAGES)?.split(['/', '.']).next()
}

/// Returns whether a name is part of the paths to the stages or the driver that the file must not
/// name. A macro could build such a path from it.
fn may_name_forbidden(file: &str, name: &str) -> bool {
    match name {
        "stage" => file != DRIVER,
        "driver" => ![DRIVER, LOOP].contains(&file),
        _ => false,
    }
}

struct Search {
    defects: Vec<Defect>,
    /// Whether the driver calls a stage.
    is_driven: bool,
}

impl Search {
    fn report(&mut self, module: &Module<'_>, path: &Path, wrong: &str, expected: String) {
        let wrong = format!("{} {wrong}", path.segments.join("::"));
        self.defects.push(Defect::new(module.file, path.line, wrong, expected));
    }

    /// Checks the imports and paths of a module.
    fn check_names(&mut self, modules: &Modules<'_>, id: Id, module: &Module<'_>) {
        for import in &module.outline.imports {
            for found in modules.resolve_import(id, import) {
                self.check_target(modules, module, &import.path, found);
            }
        }
        for mention in &module.outline.mentions {
            let path = &mention.path;
            if let Some(found) = modules.resolve_mention(id, mention) {
                self.check_target(modules, module, path, found);
                self.is_driven |= module.file == DRIVER
                    && mention.usage == Usage::Called
                    && path.segments.last().is_some_and(|last| last == ENTRY)
                    && found.module().is_some_and(|to| stage_of(modules.get(to).file).is_some());
            } else if mention.usage == Usage::Tokens
                && path.segments.iter().any(|name| may_name_forbidden(module.file, name))
            {
                let expected = "paths that are written out".to_owned();
                self.report(module, path, "in a macro may name a stage or the driver", expected);
            }
        }
    }

    fn check_target(
        &mut self,
        modules: &Modules<'_>,
        module: &Module<'_>,
        path: &Path,
        found: Target,
    ) {
        let Some(to) = found.module().map(|to| modules.get(to).file) else { return };
        if to == DRIVER && ![DRIVER, LOOP].contains(&module.file) {
            self.report(module, path, "names the driver", format!("only {LOOP} names it"));
        }
        let Some(stage) = stage_of(to) else { return };
        let is_own = stage_of(module.file) == Some(stage);
        if is_own && path.segments.last().is_some_and(|last| last == ENTRY) {
            self.report(module, path, "enters its own stage", "NextStep::Reenter".to_owned());
        } else if module.file != DRIVER && !is_own {
            let expected = format!("only {DRIVER} names stages");
            self.report(module, path, "names an item of a stage", expected);
        }
    }

    /// Checks that the driver and the stages define nothing that lets other files call a stage
    /// without naming it.
    fn check_definitions(&mut self, modules: &Modules<'_>, id: Id, module: &Module<'_>) {
        let stage = stage_of(module.file);
        if module.file == DRIVER {
            for import in module.outline.imports.iter().filter(|import| import.is_public) {
                let expected = "an import without a visibility".to_owned();
                self.report(module, &import.path, "is re-exported by the driver", expected);
            }
        } else if stage.is_none() {
            return;
        }
        for name in &module.outline.macros {
            let wrong = format!("defines the macro {name}, which can call a stage from elsewhere");
            self.defects.push(Defect::new(module.file, 1, wrong, "a function"));
        }
        for path in &module.outline.impls {
            let is_own =
                modules.resolve_path(id, path).and_then(Target::module).is_some_and(|of| {
                    let of = modules.get(of);
                    of.file == module.file || stage.is_some() && stage_of(of.file) == stage
                });
            if !is_own {
                let expected = "functions that are called by their path".to_owned();
                self.report(module, path, "has an impl here, but is defined elsewhere", expected);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::modules::outlines;
    use crate::packages;
    use crate::tree::test_tree;

    const CALLS: &str = "use crate::stage; pub(crate) fn drive() { stage::parse::on() }";
    const STAGE: &str = "pub(crate) fn on() {} pub(crate) fn begin() {} pub(crate) struct Parse;";
    const LOOP_TEXT: &str = "mod driver; mod drain; fn f() { driver::drive() }";
    const PARENT: &str = "pub(crate) mod parse; pub(crate) mod route;";
    const DRAIN: &str = "crates/proxy/proxy/src/worker/drain.rs";
    const PARSE: &str = "crates/proxy/proxy/src/stage/parse.rs";
    const ROUTE: &str = "crates/proxy/proxy/src/stage/route.rs";
    const STAGES_MOD: &str = "crates/proxy/proxy/src/stage/mod.rs";
    const LIB: &str = "crates/proxy/proxy/src/lib.rs";

    /// Returns the defects of a proxy in which one file has this text, and the others are flawless.
    fn defects(file: &str, text: &str) -> Vec<String> {
        let mut texts = vec![
            ("crates/proxy/proxy/Cargo.toml", "[package]\nname = \"millrace-proxy\"\n"),
            (LIB, "mod exchange; mod stage; mod worker;"),
            ("crates/proxy/proxy/src/exchange.rs", "pub(crate) mod stage { pub struct Step; }"),
            (LOOP, LOOP_TEXT),
            (DRIVER, CALLS),
            (DRAIN, ""),
            (STAGES_MOD, PARENT),
            (PARSE, STAGE),
            (ROUTE, STAGE),
        ];
        texts.retain(|(path, _)| *path != file);
        texts.push((file, text));
        let tree = test_tree(&texts);
        let found = check(&packages::of(&tree).0, &outlines(&tree));
        found.iter().map(Defect::to_string).collect()
    }

    #[track_caller]
    fn assert_defect(file: &str, text: &str) {
        assert!(!defects(file, text).is_empty(), "{text}");
    }

    #[test]
    fn the_driver_may_name_stages() {
        for driver in [
            CALLS,
            "fn drive() { crate::stage::parse::on() }",
            "use crate::stage::parse::on; fn drive() { on() }",
            "use crate::stage::parse; fn drive() { parse::on() }",
            "use crate::stage::parse; fn drive() { m!(parse::begin()); parse::on() }",
        ] {
            assert_eq!(defects(DRIVER, driver), [""; 0], "{driver}");
        }
    }

    #[test]
    fn nothing_else_names_what_is_in_a_stage() {
        for other in [
            "fn f() { crate::stage::parse::on() }",
            "use crate::stage; fn f() { stage::parse::on() }",
            "use crate::stage::parse as p; fn f() { p::on() }",
            "use crate::stage::parse::on;",
            "use crate::stage::parse::on as enter;",
            "use crate::stage::parse::*; fn f() { assert!(on()) }",
            "use crate::*; fn f() { stage::parse::on() }",
            "use crate as root; fn f() { root::stage::parse::on() }",
            "extern crate self as root; fn f() { root::stage::parse::on() }",
            "const F: fn() = crate::stage::parse::on;",
            "fn f() { crate::stage::parse::begin() }",
            "fn f() { crate::r#stage::parse::begin() }",
            "fn f(parse: crate::stage::parse::Parse) {}",
            "use crate::stage::parse::Parse; fn f() { <Parse as Stage>::on() }",
        ] {
            assert_defect(DRAIN, other);
            assert_defect(LIB, &format!("mod exchange; mod stage; mod worker; {other}"));
        }
        assert_defect(DRAIN, "#[path = \"../stage/parse.rs\"] mod p; fn f() { p::on() }");
        assert_eq!(
            defects(DRAIN, "\nfn f() { crate::stage::parse::on() }"),
            [format!(
                "{DRAIN}:2: crate::stage::parse::on names an item of a stage (expected: only \
                 {DRIVER} names stages)"
            )]
        );
    }

    #[test]
    fn macros_cannot_hide_a_stage() {
        for other in [
            "fn f() { m!(crate::stage::parse::on()) }",
            "macro_rules! enter { ($s:ident) => { crate::stage::$s::on } }",
            "macro_rules! enter { ($c:ident) => { $c::stage::parse::on } }",
            "macro_rules! enter { ($a:ident $b:ident) => { crate::$a::$b::on } }
             fn f() { enter!(stage parse) }",
            "m! { use crate::stage as s; }",
            "m! { driver }",
        ] {
            assert_defect(DRAIN, other);
        }
        assert_defect(LOOP, &format!("{LOOP_TEXT} fn g() {{ enter!(stage parse) }}"));
        for other in ["x.stage", "exchange::stage::Step", "crate::exchange::stage::Step", "'stage"]
        {
            let other = format!("use crate::exchange; fn f() {{ m!({other}) }}");
            assert_eq!(defects(DRAIN, &other), [""; 0], "{other}");
        }
    }

    #[test]
    fn stages_name_neither_each_other_nor_their_own_entry() {
        for stage in [
            "fn f() { crate::stage::parse::begin() }",
            "use super::parse;",
            "use super::*;",
            "pub(crate) fn on() { on() }",
            "pub(crate) fn on() { again(on) }",
            "pub(crate) fn on() { assert_eq!(on(core, key, Event::Enter), 1) }",
            "pub(crate) fn on() { enter!(on) }",
            "use self::on as again; pub(crate) fn on() {}",
        ] {
            assert_defect(ROUTE, stage);
        }
        for parent in ["fn f() { parse::on() }", "pub(crate) use parse::on;"] {
            assert_defect(STAGES_MOD, &format!("{PARENT} {parent}"));
        }
        for stage in [
            "fn g() {} fn f() { g(); self::g(); assert!(g()) }",
            "fn g() {} mod inner { use super::*; fn f() { g() } }",
            "struct Route; impl Route { fn new() {} } fn f() { Route::new() }",
        ] {
            assert_eq!(defects(ROUTE, stage), [""; 0], "{stage}");
        }
    }

    #[test]
    fn hiding_the_name_of_a_stage_is_a_defect() {
        for driver in [
            "pub(crate) use crate::stage::parse::on as finish;",
            "pub(super) use crate::stage::parse;",
            "mod inner { pub(crate) use crate::stage::parse::on; }",
            "macro_rules! enter { () => {} }",
            "impl crate::exchange::stage::Step { fn f() {} }",
        ] {
            assert_eq!(defects(DRIVER, &format!("{CALLS} {driver}")).len(), 1, "{driver}");
        }
        for stage in [
            "macro_rules! enter { () => {} }",
            "use crate::exchange::stage::Step; impl Step { fn f(&self) {} }",
            "impl<T> crate::exchange::Any for T {}",
        ] {
            assert_eq!(defects(ROUTE, stage).len(), 1, "{stage}");
        }
    }

    #[test]
    fn other_files_and_tests_are_free() {
        for other in [
            "fn on() {} fn f() { on(); crate::worker::drain::on() }",
            "use crate::exchange::stage::Step; fn f(x: X) { x.on(); m!(Step) }",
            "#[cfg(test)] mod tests { fn f() { crate::stage::parse::on() } }",
        ] {
            assert_eq!(defects(DRAIN, other), [""; 0], "{other}");
        }
    }

    #[test]
    fn the_loop_alone_names_the_driver() {
        for other in [
            "use crate::worker::driver;",
            "use super::driver::drive;",
            "fn f() { super::driver::drive() }",
            "fn f() { m!(crate::worker::driver::drive()) }",
        ] {
            assert_defect(DRAIN, other);
        }
        for stage in
            ["use crate::worker::driver;", "pub(crate) fn on() { crate::worker::driver::drive() }"]
        {
            assert_defect(ROUTE, stage);
        }
        assert_defect(DRAIN, "use crate::worker::driver as d; fn f() { d::drive() }");
    }

    #[test]
    fn a_driver_that_calls_no_stage_is_a_defect() {
        assert_defect(DRIVER, "pub(crate) fn drive() {}");
        assert_eq!(defects(PARSE, ""), [""; 0], "a macro may generate `on`");
        assert_eq!(check(&[], &Outlines::new()).len(), 1);
    }
}
