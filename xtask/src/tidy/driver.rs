//! Rule: the stage driver alone calls a stage's `on`, and no stage uses the driver. So a request's
//! way is in one file, and nothing re-enters it.

use crate::defect::Defect;
use crate::modules::{Found, Id, Module, Modules, Outlines};
use crate::outline::{How, Path};
use crate::packages::Package;

/// The package that has the stages.
const PACKAGE: &str = "crates/proxy/proxy";
/// The driver.
const DRIVER: &str = "crates/proxy/proxy/src/worker/driver.rs";
/// The folder of the stages, and the file of their parent if it is not in the folder.
const STAGES: &str = "crates/proxy/proxy/src/stage/";
const STAGES_PARENT: &str = "crates/proxy/proxy/src/stage.rs";

/// The function that takes an exchange through a stage.
const ENTRY: &str = "on";

/// Returns the places outside the driver that enter a stage, and those in stages that use the
/// driver. A tree without a driver that calls stages is a defect too: there the rule shows nothing.
pub(super) fn check(packages: &[Package], outlines: &Outlines) -> Vec<Defect> {
    let mut defects = Vec::new();
    let mut is_driven = false;
    for package in packages.iter().filter(|package| package.folder == PACKAGE) {
        for modules in package.crates(outlines) {
            let mut search = Search {
                has_methods: modules
                    .iter()
                    .any(|(_, module)| is_stage(module.file) && module.outline.has_method_on),
                modules: &modules,
                defects: &mut defects,
                is_driven: &mut is_driven,
            };
            for (id, module) in modules.iter().filter(|(_, module)| !module.is_test) {
                search.module(id, module);
            }
        }
    }
    if !is_driven {
        let wrong = format!("no call of a stage's `{ENTRY}`");
        defects.push(Defect::new(DRIVER, 1, wrong, "the driver, which alone calls the stages"));
    }
    defects
}

fn is_stage(file: &str) -> bool {
    file.starts_with(STAGES) || file == STAGES_PARENT
}

struct Search<'s, 'a> {
    modules: &'s Modules<'a>,
    /// Some stage has a method `on`. The type before `.on(…)` is not known: each is taken for it.
    has_methods: bool,
    defects: &'s mut Vec<Defect>,
    is_driven: &'s mut bool,
}

impl Search<'_, '_> {
    fn module(&mut self, id: Id, module: &Module<'_>) {
        for import in &module.outline.imports {
            for found in self.modules.imported(id, import) {
                self.uses_driver(module, found, &import.path);
                if self.is_entry(&import.path, found) && module.file != DRIVER {
                    self.report(module, &import.path, "imports");
                }
            }
        }
        for mention in &module.outline.mentions {
            if mention.how == How::Method {
                let is_entry = mention.path.segments[0] == ENTRY && self.has_methods;
                self.enters(module, is_entry, mention.how, &mention.path);
            } else if let Some(found) = self.modules.mentioned(id, mention) {
                self.uses_driver(module, found, &mention.path);
                let is_entry = self.is_entry(&mention.path, found);
                self.enters(module, is_entry, mention.how, &mention.path);
            }
        }
    }

    /// Tells whether a path ends in `on` and what it names is defined among the stages.
    fn is_entry(&self, path: &Path, found: Found) -> bool {
        path.segments.last().is_some_and(|last| last == ENTRY)
            && found.module().is_some_and(|id| is_stage(self.modules.get(id).file))
    }

    fn enters(&mut self, module: &Module<'_>, is_entry: bool, how: How, path: &Path) {
        if !is_entry {
            return;
        }
        let is_call = matches!(how, How::Called | How::Method);
        if module.file == DRIVER {
            *self.is_driven |= is_call;
        } else {
            self.report(module, path, if is_call { "calls" } else { "names" });
        }
    }

    fn report(&mut self, module: &Module<'_>, path: &Path, verb: &str) {
        let wrong = format!("{verb} {}, which enters a stage", path.segments.join("::"));
        let expected = format!("only {DRIVER} enters stages");
        self.defects.push(Defect::new(module.file, path.line, wrong, expected));
    }

    fn uses_driver(&mut self, module: &Module<'_>, found: Found, path: &Path) {
        let is_driver = found.module().is_some_and(|id| self.modules.get(id).file == DRIVER);
        if is_driver && is_stage(module.file) {
            let wrong = format!("a stage uses the driver by {}", path.segments.join("::"));
            self.defects.push(Defect::new(
                module.file,
                path.line,
                wrong,
                "a Step that is returned",
            ));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::modules::outlines;
    use crate::packages;
    use crate::tree::planted;

    const CALLS: &str = "use crate::stage; pub(crate) fn drive() { stage::parse::on() }";

    /// Finds the defects of a proxy of a driver, a stage, the parent of the stages, and another
    /// file, `end.rs`.
    fn defects(driver: &str, stage: &str, parent: &str, other: &str) -> Vec<String> {
        let tree = planted(&[
            ("crates/proxy/proxy/Cargo.toml", "[package]\nname = \"millrace-proxy\"\n"),
            ("crates/proxy/proxy/src/lib.rs", "mod stage; mod worker; mod end;"),
            ("crates/proxy/proxy/src/worker/mod.rs", "mod driver;"),
            (DRIVER, driver),
            ("crates/proxy/proxy/src/stage/mod.rs", &format!("pub(crate) mod parse; {parent}")),
            ("crates/proxy/proxy/src/stage/parse.rs", stage),
            ("crates/proxy/proxy/src/end.rs", other),
        ]);
        let found = check(&packages::of(&tree).0, &outlines(&tree));
        found.iter().map(Defect::to_string).collect()
    }

    const STAGE: &str = "pub(crate) fn on() {} pub(crate) struct Parse;";

    #[test]
    fn the_driver_may_call_stages() {
        for driver in [
            CALLS,
            "fn drive() { crate::stage::parse::on() }",
            "use crate::stage::parse::on; fn drive() { on() }",
            "use crate::stage::parse; fn drive() { parse::on() }",
        ] {
            assert_eq!(defects(driver, STAGE, "", "fn f(on: bool) { g(on) }"), [""; 0], "{driver}");
        }
    }

    #[test]
    fn nothing_else_enters_a_stage() {
        for other in [
            "fn f() { crate::stage::parse::on() }",
            "use crate::stage; fn f() { stage::parse::on() }",
            "use crate::stage::parse as p; fn f() { p::on() }",
            "use crate::stage::parse::on;",
            "use crate::stage::parse::on as enter;",
            "use crate::stage::parse::*; fn f() { on() }",
            "const F: fn() = crate::stage::parse::on;",
            "use crate::stage::parse; fn f() { g(parse::on) }",
            "fn f() { m!(crate::stage::parse::on()) }",
            "fn f() { crate::stage::parse::Parse::on() }",
            "use crate::stage::parse::Parse; fn f() { <Parse as Stage>::on() }",
        ] {
            assert_eq!(defects(CALLS, STAGE, "", other).len(), 1, "{other}");
        }
        assert_eq!(
            defects(CALLS, STAGE, "", "\nfn f() { crate::stage::parse::on() }"),
            ["crates/proxy/proxy/src/end.rs:2: calls crate::stage::parse::on, which enters a \
                 stage (expected: only crates/proxy/proxy/src/worker/driver.rs enters stages)"]
        );
    }

    #[test]
    fn stages_do_not_enter_each_other() {
        let again = "pub(crate) fn on() { on() }";
        assert_eq!(defects(CALLS, again, "", "").len(), 1);
        assert_eq!(defects(CALLS, STAGE, "fn f() { parse::on() }", "").len(), 1);
        assert_eq!(defects(CALLS, STAGE, "pub(crate) use parse::on;", "").len(), 1);
    }

    #[test]
    fn methods_of_stages_are_entries_too() {
        let stage = "pub(crate) struct Parse; impl Parse { pub(crate) fn on(&self) {} }";
        let driver = "fn drive(p: crate::stage::parse::Parse) { p.on() }";
        assert_eq!(defects(driver, stage, "", ""), [""; 0]);
        assert_eq!(defects(driver, stage, "", "fn f(x: X) { x.on() }").len(), 1);
        assert_eq!(defects(CALLS, STAGE, "", "fn f(x: X) { x.on() }"), [""; 0]);
    }

    #[test]
    fn other_functions_and_tests_are_free() {
        for other in [
            "fn f() { crate::stage::parse::other() }",
            "fn on() {} fn f() { on(); crate::end::on() }",
            "#[cfg(test)] mod tests { fn f() { crate::stage::parse::on() } }",
        ] {
            assert_eq!(defects(CALLS, STAGE, "", other), [""; 0], "{other}");
        }
    }

    #[test]
    fn a_stage_does_not_use_the_driver() {
        for stage in [
            "use crate::worker::driver; pub(crate) fn on() {}",
            "use crate::worker::driver::drive; pub(crate) fn on() {}",
            "pub(crate) fn on() { crate::worker::driver::drive() }",
        ] {
            assert_eq!(defects(CALLS, stage, "", "").len(), 1, "{stage}");
        }
        assert_eq!(defects(CALLS, STAGE, "", "use crate::worker::driver;"), [""; 0]);
    }

    #[test]
    fn a_driver_that_calls_no_stage_is_a_defect() {
        assert_eq!(defects("fn drive() {}", STAGE, "", "").len(), 1);
        assert_eq!(defects(CALLS, "", "", ""), [""; 0], "a macro may make `on`");
        assert_eq!(check(&[], &Outlines::new()).len(), 1);
    }
}
