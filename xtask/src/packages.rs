//! The packages of a tree: their manifests, and which files they are built from.

use std::collections::BTreeSet;

use crate::defect::Defect;
use crate::manifest::{self, Manifest};
use crate::modules::{Modules, Outlines};
use crate::tree::Tree;

/// A package, which may hold several crates: a library and programs.
pub(crate) struct Package {
    /// The path from the root of the tree.
    pub(crate) folder: String,
    pub(crate) manifest: Manifest,
}

impl Package {
    pub(crate) fn manifest_path(&self) -> String {
        format!("{}/Cargo.toml", self.folder)
    }

    /// Returns the last name of the folder.
    pub(crate) fn folder_name(&self) -> &str {
        self.folder.rsplit('/').next().unwrap_or_default()
    }

    /// Loads the modules of the library, each program and the build script. Tests, benches and
    /// examples are separate crates, whose modules no rule checks.
    pub(crate) fn crates<'a>(&self, outlines: &'a Outlines) -> Vec<Modules<'a>> {
        self.roots(outlines).iter().filter_map(|root| Modules::load(outlines, root)).collect()
    }

    /// Returns the root files of the library, each program and the build script.
    fn roots(&self, outlines: &Outlines) -> BTreeSet<String> {
        let mut roots: BTreeSet<String> = ["src/lib.rs", "src/main.rs", "build.rs"]
            .into_iter()
            .map(str::to_owned)
            .chain(self.manifest.targets.iter().cloned())
            .map(|path| format!("{}/{path}", self.folder))
            .filter(|path| outlines.contains_key(path))
            .collect();
        // src/bin/NAME.rs and src/bin/NAME/main.rs are programs.
        let programs = format!("{}/src/bin/", self.folder);
        roots.extend(outlines.keys().filter_map(|path| {
            let name = path.strip_prefix(&programs)?;
            let is_root = name.matches('/').count() == usize::from(name.ends_with("/main.rs"));
            is_root.then(|| path.clone())
        }));
        roots
    }
}

/// Returns the packages of a tree, in the order of their folders, and the manifests that cannot be
/// parsed.
pub(crate) fn of(tree: &Tree) -> (Vec<Package>, Vec<Defect>) {
    let mut packages = Vec::new();
    let mut defects = Vec::new();
    let renames = tree.manifests.get("Cargo.toml").map(|text| manifest::renames(text));
    let renames = renames.unwrap_or_default();
    for (path, text) in &tree.manifests {
        let Some(folder) = path.strip_suffix("/Cargo.toml") else { continue };
        match manifest::parse(text, &renames) {
            Ok(Some(manifest)) => packages.push(Package { folder: folder.to_owned(), manifest }),
            Ok(None) => {}
            Err((line, message)) => {
                defects.push(Defect::new(path, line, message, "a manifest of cargo"));
            }
        }
    }
    (packages, defects)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::modules::outlines;
    use crate::tree::test_tree;

    #[test]
    fn roots_are_found_where_cargo_finds_them() {
        let tree = test_tree(&[
            ("crates/a/b/Cargo.toml", "[package]\nname = \"b\"\n[[bin]]\npath = \"src/x/y.rs\"\n"),
            ("crates/a/b/src/lib.rs", ""),
            ("crates/a/b/src/x/y.rs", ""),
            ("crates/a/b/src/bin/one.rs", ""),
            ("crates/a/b/src/bin/two/main.rs", ""),
            ("crates/a/b/src/bin/two/part.rs", ""),
            ("crates/a/b/tests/t.rs", ""),
            ("Cargo.toml", "[workspace]"),
        ]);
        let (packages, defects) = of(&tree);
        assert_eq!(defects, []);
        assert_eq!(packages.len(), 1);
        let roots = packages[0].roots(&outlines(&tree));
        let names: Vec<_> = roots.iter().map(|root| &root["crates/a/b/src/".len()..]).collect();
        assert_eq!(names, ["bin/one.rs", "bin/two/main.rs", "lib.rs", "x/y.rs"]);
    }
}
