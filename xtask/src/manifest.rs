//! The parts of a `Cargo.toml` that the rules check.

use std::collections::BTreeMap;
use std::ops::Range;

use toml::Spanned;
use toml::de::{DeString, DeTable, DeValue};

/// The manifest of a package.
#[derive(Debug, Default)]
pub(crate) struct Manifest {
    pub(crate) name: String,
    pub(crate) name_line: usize,
    pub(crate) dependencies: Vec<Dependency>,
    /// The paths of `[lib]` and `[[bin]]`, from the folder of the package.
    pub(crate) targets: Vec<String>,
}

/// A dependency on a package.
#[derive(Debug, PartialEq)]
pub(crate) struct Dependency {
    /// The name of the package, not the name under which it is imported.
    pub(crate) package: String,
    pub(crate) is_dev: bool,
    pub(crate) line: usize,
}

/// The names of the packages that a workspace imports under other names, by those other names.
pub(crate) type Renames = BTreeMap<String, String>;

/// Returns the renamed packages of `[workspace.dependencies]`. A manifest that cannot be parsed has
/// none.
pub(crate) fn renames(text: &str) -> Renames {
    let Ok(document) = DeTable::parse(text) else { return Renames::new() };
    let dependencies = table(document.get_ref(), "workspace")
        .and_then(|workspace| table(workspace, "dependencies"));
    let renamed = |(key, value): (&Spanned<DeString<'_>>, &Spanned<DeValue<'_>>)| {
        Some((key.get_ref().to_string(), package(value.get_ref())?.to_owned()))
    };
    dependencies.into_iter().flat_map(DeTable::iter).filter_map(renamed).collect()
}

/// Parses a manifest. Returns `None` if it has a workspace but no package.
///
/// # Errors
///
/// Returns the line, and what is wrong in it.
pub(crate) fn parse(text: &str, renames: &Renames) -> Result<Option<Manifest>, (usize, String)> {
    let line = |at: Range<usize>| text[..at.start].matches('\n').count() + 1;
    let document = DeTable::parse(text)
        .map_err(|error| (error.span().map_or(1, line), error.message().to_owned()))?;
    let document = document.get_ref();
    let Some(name) = table(document, "package").and_then(|package| package.get("name")) else {
        return Ok(None);
    };
    let mut manifest = Manifest {
        name: name.get_ref().as_str().unwrap_or_default().to_owned(),
        name_line: line(name.span()),
        ..Manifest::default()
    };
    let mut add = |holder: &DeTable<'_>| {
        for (section, is_dev) in
            [("dependencies", false), ("build-dependencies", false), ("dev-dependencies", true)]
        {
            for (key, value) in table(holder, section).into_iter().flat_map(DeTable::iter) {
                let value = value.get_ref();
                let is_inherited = value.get("workspace").is_some();
                let renamed = renames.get(key.get_ref().as_ref()).filter(|_| is_inherited);
                let package =
                    package(value).or(renamed.map(String::as_str)).unwrap_or(key.get_ref());
                let package = package.to_owned();
                manifest.dependencies.push(Dependency { package, is_dev, line: line(key.span()) });
            }
        }
    };
    add(document);
    for (_, target) in table(document, "target").into_iter().flat_map(DeTable::iter) {
        if let DeValue::Table(target) = target.get_ref() {
            add(target);
        }
    }
    let lib = table(document, "lib").into_iter();
    let bins = document.get("bin").and_then(|bins| bins.get_ref().as_array()).into_iter();
    let bins = bins.flat_map(|bins| bins.iter()).filter_map(|bin| bin.get_ref().as_table());
    manifest.targets = lib
        .chain(bins)
        .filter_map(|target| target.get("path")?.get_ref().as_str().map(str::to_owned))
        .collect();
    Ok(Some(manifest))
}

/// Returns the name of the package if the dependency is renamed (`package = "…"`).
fn package<'t>(dependency: &'t DeValue<'_>) -> Option<&'t str> {
    dependency.get("package")?.get_ref().as_str()
}

fn table<'t, 'i>(holder: &'t DeTable<'i>, name: &str) -> Option<&'t DeTable<'i>> {
    holder.get(name)?.get_ref().as_table()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_dependencies_and_targets_are_read() {
        let text = "\
[package]
name = \"a\"
[lib]
path = \"src/odd.rs\"
[[bin]]
name = \"b\"
path = \"src/b.rs\"
[dependencies]
c.workspace = true
d = { package = \"e\", path = \"../e\" }
h.workspace = true
[target.'cfg(unix)'.build-dependencies]
f = \"1\"
[dev-dependencies]
g = \"1\"
";
        let workspace = "[workspace.dependencies]\nh = { package = \"i\" }\nc = \"1\"\n";
        let manifest = parse(text, &renames(workspace)).unwrap().unwrap();
        assert_eq!((manifest.name.as_str(), manifest.name_line), ("a", 2));
        assert_eq!(manifest.targets, ["src/odd.rs", "src/b.rs"]);
        let dependencies: Vec<_> =
            manifest.dependencies.iter().map(|d| (d.package.as_str(), d.is_dev, d.line)).collect();
        assert_eq!(
            dependencies,
            [
                ("c", false, 9),
                ("e", false, 10),
                ("i", false, 11),
                ("g", true, 15),
                ("f", false, 13)
            ]
        );
    }

    #[test]
    fn a_workspace_alone_is_no_package() {
        assert!(parse("[workspace]\nmembers = []\n", &Renames::new()).unwrap().is_none());
    }

    #[test]
    fn mistakes_have_their_line() {
        assert_eq!(parse("[package]\nname =\n", &Renames::new()).unwrap_err().0, 2);
    }
}
