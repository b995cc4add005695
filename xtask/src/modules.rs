//! The modules of one crate, and what paths in them mean.

use std::collections::{BTreeMap, BTreeSet};
use std::ptr;

use crate::defect::Defect;
use crate::outline::{Child, Import, Mention, Outline, Path, Usage};
use crate::tree::Tree;

/// The outlines of all sources, by their paths.
pub(crate) type Outlines = BTreeMap<String, Outline>;

/// Outlines each source of a tree.
pub(crate) fn outlines(tree: &Tree) -> Outlines {
    tree.sources.iter().map(|(path, file)| (path.clone(), Outline::of(&file.syntax))).collect()
}

/// The modules of the crate that has one root file, such as `src/lib.rs`.
pub(crate) struct Modules<'a> {
    list: Vec<Module<'a>>,
    /// Macros in the root of the crate, and the modules that define them.
    exported: BTreeMap<&'a str, Id>,
    /// Modules without a file.
    pub(crate) missing: Vec<Defect>,
}

/// An index into the modules of a crate.
pub(crate) type Id = usize;

/// The imports that are being followed, by their addresses.
type Trail = Vec<*const Import>;

/// A module of a crate.
pub(crate) struct Module<'a> {
    /// The file that contains the module.
    pub(crate) file: &'a str,
    pub(crate) outline: &'a Outline,
    /// Whether this module, or a module around it, is for tests only.
    pub(crate) is_test: bool,
    parent: Option<Id>,
    children: BTreeMap<&'a str, Id>,
    /// The imports, by the names that they have in this module.
    imports: BTreeMap<&'a str, Vec<&'a Import>>,
}

impl Module<'_> {
    /// Returns whether a path starts with `crate`, `super` or `self`, or with a name that this
    /// module imports privately.
    pub(crate) fn starts_with_import(&self, path: &Path) -> bool {
        let first = path.segments[0].as_str();
        matches!(first, "crate" | "super" | "self")
            || self.imports.get(first).is_some_and(|all| all.iter().any(|i| !i.is_public))
    }
}

/// The target of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Target {
    Module(Id),
    /// An item that this module defines, perhaps by a macro.
    Item(Id),
    /// An item or a module of another crate.
    External,
}

impl Target {
    /// Returns the module itself, or the module that defines the item.
    pub(crate) fn module(self) -> Option<Id> {
        match self {
            Target::Module(id) | Target::Item(id) => Some(id),
            Target::External => None,
        }
    }
}

/// Where a file looks for the files of its modules.
struct Place<'a> {
    file: &'a str,
    /// The folder for `mod x;`.
    folder: String,
    /// The folder that `#[path]` starts from.
    path_folder: String,
}

impl<'a> Modules<'a> {
    /// Follows `mod` declarations from a root file. None if there is no such file.
    pub(crate) fn load(outlines: &'a Outlines, root: &str) -> Option<Modules<'a>> {
        let (file, outline) = outlines.get_key_value(root)?;
        let mut modules =
            Modules { list: Vec::new(), exported: BTreeMap::new(), missing: Vec::new() };
        let folder = parent_folder(file).to_owned();
        let place = Place { file, path_folder: folder.clone(), folder };
        modules.add(outlines, outline, place, None, false);
        Some(modules)
    }

    /// Returns each module with its number.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (Id, &Module<'a>)> {
        self.list.iter().enumerate()
    }

    pub(crate) fn get(&self, id: Id) -> &Module<'a> {
        &self.list[id]
    }

    /// Returns whether `inner` is `outer`, or is inside it at any depth.
    pub(crate) fn is_within(&self, inner: Id, outer: Id) -> bool {
        let mut id = Some(inner);
        while let Some(at) = id {
            if at == outer {
                return true;
            }
            id = self.list[at].parent;
        }
        false
    }

    fn add(
        &mut self,
        outlines: &'a Outlines,
        outline: &'a Outline,
        place: Place<'a>,
        parent: Option<Id>,
        is_test: bool,
    ) -> Id {
        let id = self.list.len();
        let mut imports: BTreeMap<&str, Vec<&Import>> = BTreeMap::new();
        for import in &outline.imports {
            if let Some(name) = &import.name {
                imports.entry(name).or_default().push(import);
            }
        }
        self.exported.extend(outline.exported.iter().map(|name| (name.as_str(), id)));
        let children = BTreeMap::new();
        self.list.push(Module { file: place.file, outline, is_test, parent, children, imports });
        for child in &outline.children {
            let is_test = is_test || child.is_test;
            let added = if let Some(body) = &child.body {
                let folder = join(&place.folder, &child.name);
                let inner = Place { file: place.file, path_folder: folder.clone(), folder };
                self.add(outlines, body, inner, Some(id), is_test)
            } else if let Some((file, inner)) = find_file(outlines, &place, child) {
                self.add(outlines, &outlines[file], inner, Some(id), is_test)
            } else {
                let wrong = format!("no file for the module {}", child.name);
                let expected = format!("{}.rs", join(&place.folder, &child.name));
                self.missing.push(Defect::new(place.file, child.line, wrong, expected));
                continue;
            };
            self.list[id].children.entry(&child.name).or_insert(added);
        }
        id
    }

    /// Returns the targets of an import: a module and an item may have the same name.
    pub(crate) fn resolve_import(&self, module: Id, import: &Import) -> Vec<Target> {
        self.resolve(module, &import.path, &mut vec![ptr::from_ref(import)])
    }

    /// Returns the target of a path in code. A single name may be a variable, a type parameter, or
    /// a name of the prelude, and then has no target.
    pub(crate) fn resolve_mention(&self, module: Id, mention: &Mention) -> Option<Target> {
        let found = self.resolve_path(module, &mention.path);
        if found.is_none() && mention.usage == Usage::Macro && mention.path.segments.len() == 1 {
            return self.macro_in_scope(module, &mention.path.segments[0]);
        }
        found
    }

    /// Returns the target of a path, by imports and definitions.
    pub(crate) fn resolve_path(&self, module: Id, path: &Path) -> Option<Target> {
        let found = self.resolve(module, path, &mut Vec::new());
        let item = found.iter().find(|found| !matches!(found, Target::Module(_)));
        item.or(found.first()).copied()
    }

    /// Finds a `macro_rules!` that is in scope because it is defined before a `mod` declaration.
    fn macro_in_scope(&self, module: Id, name: &str) -> Option<Target> {
        let mut id = Some(module);
        while let Some(at) = id {
            if self.list[at].outline.macros.contains(name) {
                return Some(Target::Item(at));
            }
            id = self.list[at].parent;
        }
        None
    }

    /// Resolves a path. An import that leads back to itself has no target.
    fn resolve(&self, module: Id, path: &Path, trail: &mut Trail) -> Vec<Target> {
        let mut at = module;
        let mut is_anchored = false;
        let mut rest = path.segments.as_slice();
        while let [first, after @ ..] = rest {
            match first.as_str() {
                "crate" => at = 0,
                "super" => at = self.list[at].parent.unwrap_or(at),
                "self" if !is_anchored => {}
                "Self" => return Vec::new(),
                _ => break,
            }
            is_anchored = true;
            rest = after;
        }
        while let [name, after @ ..] = rest {
            let mut found = self.look_up(at, name, !is_anchored, trail);
            if found.is_empty() {
                // An unknown first name is another crate. An unknown later name is an item that a
                // macro of the module generates.
                return if is_anchored { vec![Target::Item(at)] } else { Vec::new() };
            }
            is_anchored = true;
            rest = after;
            if rest.is_empty() {
                found.sort();
                found.dedup();
                return found;
            }
            match found.iter().find(|found| matches!(found, Target::Module(_))) {
                Some(Target::Module(id)) => at = *id,
                _ => return vec![found[0]],
            }
        }
        vec![Target::Module(at)]
    }

    /// Looks up a name in a module. `is_inside`: the name is used in that module, so imports inside
    /// functions count too.
    fn look_up(&self, id: Id, name: &str, is_inside: bool, trail: &mut Trail) -> Vec<Target> {
        let module = &self.list[id];
        let mut found: Vec<Target> =
            module.children.get(name).map(|child| Target::Module(*child)).into_iter().collect();
        if module.outline.items.contains(name) {
            found.push(Target::Item(id));
            return found;
        }
        if id == 0
            && !is_inside
            && let Some(definer) = self.exported.get(name)
        {
            found.push(Target::Item(*definer));
            return found;
        }
        let named = module.imports.get(name).map(Vec::as_slice).unwrap_or_default();
        for import in named.iter().filter(|import| is_inside || !import.is_local) {
            found.extend(self.follow(id, import, trail).unwrap_or_default());
        }
        if !found.is_empty() {
            return found;
        }
        for import in module.outline.imports.iter().filter(|import| import.is_glob) {
            for target in self.follow(id, import, trail).unwrap_or_default() {
                if let Target::Module(target) = target
                    && (is_inside || !import.is_local)
                {
                    trail.push(import);
                    found.extend(self.look_up(target, name, false, trail));
                    trail.pop();
                }
            }
        }
        found
    }

    /// Returns the targets of an import; `None` if the import is being followed already.
    fn follow(&self, id: Id, import: &Import, trail: &mut Trail) -> Option<Vec<Target>> {
        if trail.contains(&ptr::from_ref(import)) {
            return None;
        }
        trail.push(import);
        let mut found = self.resolve(id, &import.path, trail);
        trail.pop();
        if found.is_empty() {
            found.push(Target::External);
        }
        Some(found)
    }

    /// Returns the files of the crate, and for each whether it has only modules for tests.
    pub(crate) fn files(&self) -> BTreeMap<&'a str, bool> {
        let mut files = BTreeMap::new();
        for module in &self.list {
            *files.entry(module.file).or_insert(true) &= module.is_test;
        }
        files
    }
}

/// Returns the files below a folder that belong to no module of these crates.
pub(crate) fn strays<'a>(
    outlines: &'a Outlines,
    folder: &str,
    crates: &[Modules<'_>],
) -> Vec<&'a str> {
    let known: BTreeSet<&str> = crates.iter().flat_map(|c| c.files().into_keys()).collect();
    let below = format!("{folder}/");
    outlines
        .keys()
        .map(String::as_str)
        .filter(|file| file.starts_with(&below) && !known.contains(file))
        .collect()
}

/// Finds the file of `mod x;`, and where that file looks for its own.
fn find_file<'a>(
    outlines: &'a Outlines,
    place: &Place<'_>,
    child: &Child,
) -> Option<(&'a str, Place<'a>)> {
    let plain = join(&place.folder, &child.name);
    let (path, folder) = match &child.path {
        Some(path) => {
            let path = join(&place.path_folder, path);
            let folder = parent_folder(&path).to_owned();
            (path, folder)
        }
        None if outlines.contains_key(&format!("{plain}.rs")) => (format!("{plain}.rs"), plain),
        None => (format!("{plain}/mod.rs"), plain),
    };
    let (file, _) = outlines.get_key_value(&path)?;
    let path_folder = parent_folder(file).to_owned();
    Some((file, Place { file, folder, path_folder }))
}

fn parent_folder(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(folder, _)| folder)
}

/// Joins a folder and a path from there, which may start with `../`.
fn join(folder: &str, path: &str) -> String {
    let mut parts: Vec<&str> = folder.split('/').filter(|part| !part.is_empty()).collect();
    for part in path.split('/') {
        match part {
            ".." => {
                parts.pop();
            }
            "." => {}
            part => parts.push(part),
        }
    }
    parts.join("/")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::test_tree;

    const TREE: &[(&str, &str)] = &[
        ("src/lib.rs", "mod a; mod n; pub use a::b::Deep; #[path = \"odd/p.rs\"] mod q;"),
        (
            "src/a/mod.rs",
            "pub(crate) mod b; mod c; pub(crate) use c::*; use std::io; pub use self::Loop;
             mod inline { mod far; } struct Own;",
        ),
        ("src/a/b.rs", "pub struct Deep; rows! { Made }"),
        ("src/a/c.rs", "pub(crate) fn globbed() {}"),
        ("src/a/inline/far.rs", ""),
        ("src/n.rs", "mod leaf; #[cfg(test)] mod tests;"),
        ("src/n/leaf.rs", ""),
        ("src/n/tests.rs", ""),
        ("src/odd/p.rs", "mod r; #[macro_export] macro_rules! rows { () => {} }"),
        ("src/odd/r.rs", ""),
        ("src/stray.rs", ""),
    ];

    fn check(with: impl Fn(&Modules<'_>)) {
        let outlines = outlines(&test_tree(TREE));
        let modules = Modules::load(&outlines, "src/lib.rs").unwrap();
        assert_eq!(modules.missing, []);
        with(&modules);
    }

    fn found(modules: &Modules<'_>, file: &str, path: &str) -> Option<String> {
        let id = modules.iter().find(|(_, module)| module.file == file).unwrap().0;
        let segments = path.split("::").map(str::to_owned).collect();
        let mention = Mention { path: Path { segments, line: 1 }, usage: Usage::Value };
        Some(match modules.resolve_mention(id, &mention)? {
            Target::Module(id) => format!("module {}", modules.get(id).file),
            Target::Item(id) => format!("item {}", modules.get(id).file),
            Target::External => "external".to_owned(),
        })
    }

    #[test]
    fn modules_are_found_in_their_files() {
        check(|modules| {
            let files: Vec<_> = modules.files().into_iter().collect();
            assert_eq!(files.len(), TREE.len() - 1);
            assert!(files.iter().all(|(file, is_test)| *is_test == (*file == "src/n/tests.rs")));
        });
    }

    #[test]
    fn paths_lead_to_the_file_that_defines() {
        check(|modules| {
            for (file, path, expected) in [
                ("src/n.rs", "crate::a::Own", Some("item src/a/mod.rs")),
                ("src/n.rs", "crate::a::b::Deep::new", Some("item src/a/b.rs")),
                ("src/n.rs", "crate::Deep", Some("item src/a/b.rs")),
                ("src/n.rs", "crate::a::globbed", Some("item src/a/c.rs")),
                ("src/n.rs", "crate::a::b::Made", Some("item src/a/b.rs")),
                ("src/n.rs", "crate::a::io::Error", Some("external")),
                ("src/n.rs", "super::a", Some("module src/a/mod.rs")),
                ("src/n.rs", "leaf::f", Some("item src/n/leaf.rs")),
                ("src/n.rs", "self::leaf", Some("module src/n/leaf.rs")),
                ("src/n.rs", "std::io::Error", None),
                ("src/n.rs", "crate::rows", Some("item src/odd/p.rs")),
                ("src/n/leaf.rs", "super::super::a::b::Deep", Some("item src/a/b.rs")),
                ("src/a/mod.rs", "globbed", Some("item src/a/c.rs")),
                ("src/a/mod.rs", "Own", Some("item src/a/mod.rs")),
                ("src/a/mod.rs", "unknown", None),
            ] {
                assert_eq!(found(modules, file, path).as_deref(), expected, "{path} in {file}");
            }
        });
    }

    #[test]
    fn a_module_without_a_file_is_a_defect() {
        let outlines = outlines(&test_tree(&[("src/lib.rs", "\nmod gone;")]));
        let modules = Modules::load(&outlines, "src/lib.rs").unwrap();
        let expected = Defect::new("src/lib.rs", 2, "no file for the module gone", "src/gone.rs");
        assert_eq!(modules.missing, [expected]);
    }

    #[test]
    fn a_file_of_no_module_is_a_stray() {
        let outlines = outlines(&test_tree(TREE));
        let modules = Modules::load(&outlines, "src/lib.rs").unwrap();
        assert_eq!(strays(&outlines, "src", &[modules]), ["src/stray.rs"]);
    }
}
