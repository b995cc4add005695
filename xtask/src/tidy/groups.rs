//! Rule: crates are in groups, `crates/GROUP/CRATE`, and use only their own group and those before
//! it. Within a group cargo refuses cycles.

use std::collections::BTreeMap;

use crate::defect::Defect;
use crate::packages::Package;

/// The groups, in order.
const GROUPS: [&str; 10] =
    ["os", "uselect", "engine", "splice", "iolite", "http", "cache", "serve", "proxy", "test"];

/// The group that tests of every crate may use.
const TEST: &str = "test";

/// Packages outside groups, which may use all.
const LAST: [&str; 2] = ["tests", "xtask"];

/// Folders whose packages are not called `millrace-FOLDER`, and the names of these packages. Users
/// install or link most of them by these names.
const NAMES: [(&str, &str); 10] = [
    ("uselect", "uselect"),
    ("uselect-c", "uselect-c"),
    ("uselect-preload", "uselect-preload"),
    ("uselectd", "uselectd"),
    ("iolite", "iolite"),
    ("iolite-c", "iolite-c"),
    ("iolited", "iolited"),
    ("splice-c", "mrsplice"),
    ("millrace", "millrace"),
    ("xtask", "xtask"),
];

/// Returns the packages whose place, name or dependencies break the rule.
pub(super) fn check(packages: &[Package]) -> Vec<Defect> {
    let mut defects = Vec::new();
    let by_name: BTreeMap<&str, &Package> =
        packages.iter().map(|package| (package.manifest.name.as_str(), package)).collect();
    for package in packages.iter().filter(|package| is_checked(package)) {
        check_name(package, &mut defects);
        let Some(rank) = rank(package) else {
            let expected = format!("crates/GROUP/CRATE, GROUP one of {}", GROUPS.join(", "));
            let wrong = format!("{} stands in no known group", package.folder);
            defects.push(Defect::new(&package.manifest_path(), 1, wrong, expected));
            continue;
        };
        for dependency in &package.manifest.dependencies {
            let Some(used) = by_name.get(dependency.package.as_str()) else { continue };
            // A dependency outside all groups is reported at its own manifest.
            let Some(used_rank) = self::rank(used) else { continue };
            let is_for_tests = dependency.is_dev && group(used) == Some(TEST);
            if used_rank > rank && !is_for_tests {
                let wrong = format!("{} uses {}", package.folder, used.folder);
                let path = package.manifest_path();
                defects.push(Defect::new(
                    &path,
                    dependency.line,
                    wrong,
                    allowed(rank, dependency.is_dev),
                ));
            }
        }
    }
    defects
}

/// Returns whether the rule applies to a package. It does not apply to fuzz targets, which may use
/// all packages.
fn is_checked(package: &Package) -> bool {
    package.folder.starts_with("crates/") || LAST.contains(&package.folder.as_str())
}

fn check_name(package: &Package, defects: &mut Vec<Defect>) {
    let folder = package.folder_name();
    let expected = NAMES
        .iter()
        .find(|(named, _)| *named == folder)
        .map_or_else(|| format!("millrace-{folder}"), |(_, name)| (*name).to_owned());
    let manifest = &package.manifest;
    if manifest.name != expected {
        let wrong = format!("the package in {} is called {}", package.folder, manifest.name);
        defects.push(Defect::new(&package.manifest_path(), manifest.name_line, wrong, expected));
    }
}

/// Returns the group of a crate; `None` if it is in no known group.
fn group(package: &Package) -> Option<&str> {
    let (group, folder) = package.folder.strip_prefix("crates/")?.split_once('/')?;
    (!folder.contains('/') && GROUPS.contains(&group)).then_some(group)
}

/// Returns the place of a package in the order of groups.
fn rank(package: &Package) -> Option<usize> {
    match group(package) {
        Some(group) => GROUPS.iter().position(|known| *known == group),
        None => LAST.contains(&package.folder.as_str()).then_some(GROUPS.len()),
    }
}

fn allowed(rank: usize, is_dev: bool) -> String {
    let test = if is_dev { format!(", {TEST}") } else { String::new() };
    format!("crates of {}{test}", GROUPS[..=rank].join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packages;
    use crate::tree::test_tree;

    const SYS: (&str, &str) = ("crates/os/sys/Cargo.toml", "[package]\nname = \"millrace-sys\"\n");
    const SIM: (&str, &str) =
        ("crates/test/sim/Cargo.toml", "[package]\nname = \"millrace-sim\"\n");
    const STORE: (&str, &str) =
        ("crates/cache/store/Cargo.toml", "[package]\nname = \"millrace-store\"\n");

    fn defects(path: &str, text: &str) -> Vec<String> {
        let (packages, defects) = packages::of(&test_tree(&[SYS, SIM, STORE, (path, text)]));
        assert_eq!(defects, []);
        check(&packages).iter().map(Defect::to_string).collect()
    }

    fn engine(dependencies: &str) -> Vec<String> {
        let text = format!("[package]\nname = \"millrace-engine\"\n{dependencies}");
        defects("crates/engine/engine/Cargo.toml", &text)
    }

    #[test]
    fn a_later_group_is_a_defect() {
        assert_eq!(
            engine("[dependencies]\nmillrace-store.workspace = true\n"),
            ["crates/engine/engine/Cargo.toml:4: crates/engine/engine uses crates/cache/store \
              (expected: crates of os, uselect, engine)"]
        );
        for dependencies in [
            "[dependencies]\nx = { package = \"millrace-store\", path = \"x\" }\n",
            "[build-dependencies]\nmillrace-store = { path = \"x\" }\n",
            "[target.'cfg(unix)'.dependencies]\nmillrace-store.workspace = true\n",
            "[dependencies]\nmillrace-sim.workspace = true\n",
            "[build-dependencies]\nmillrace-sim.workspace = true\n",
            "[dev-dependencies]\nmillrace-store.workspace = true\n",
        ] {
            assert_eq!(engine(dependencies).len(), 1, "{dependencies}");
        }
    }

    #[test]
    fn earlier_groups_and_crates_for_tests_are_allowed() {
        for dependencies in [
            "",
            "[dependencies]\nmillrace-sys.workspace = true\nlibc = \"0.2\"\n",
            "[dev-dependencies]\nmillrace-sim.workspace = true\n",
        ] {
            assert_eq!(engine(dependencies), [""; 0], "{dependencies}");
        }
        let all =
            "\n[dependencies]\nmillrace-sim.workspace = true\nmillrace-store.workspace = true\n";
        let tests = format!("[package]\nname = \"millrace-tests\"{all}");
        assert_eq!(defects("tests/Cargo.toml", &tests), [""; 0]);
        let xtask = format!("[package]\nname = \"xtask\"{all}");
        assert_eq!(defects("xtask/Cargo.toml", &xtask), [""; 0]);
        let fuzz = format!("[package]\nname = \"fuzz\"{all}");
        assert_eq!(defects("fuzz/Cargo.toml", &fuzz), [""; 0]);
    }

    #[test]
    fn the_tests_are_used_by_no_crate() {
        let sim = "[dev-dependencies]\nmillrace-tests.workspace = true\n";
        let tree = test_tree(&[
            ("tests/Cargo.toml", "[package]\nname = \"millrace-tests\"\n"),
            (SIM.0, &format!("{}{sim}", SIM.1)),
        ]);
        assert_eq!(check(&packages::of(&tree).0).len(), 1);
    }

    #[test]
    fn a_crate_outside_the_groups_is_a_defect() {
        for folder in ["crates/memory/x", "crates/x", "crates/os/x/y"] {
            let name = folder.rsplit('/').next().unwrap();
            let text = format!("[package]\nname = \"millrace-{name}\"\n");
            assert_eq!(defects(&format!("{folder}/Cargo.toml"), &text).len(), 1, "{folder}");
        }
    }

    #[test]
    fn names_follow_folders() {
        for (folder, name, count) in [
            ("engine/engine", "millrace-engine", 0),
            ("engine/engine", "engine", 1),
            ("engine/engine", "millrace-event", 1),
            ("splice/splice-c", "mrsplice", 0),
            ("splice/splice-c", "millrace-splice-c", 1),
            ("uselect/uselectd", "uselectd", 0),
            ("uselect/uselectd", "millrace-uselectd", 1),
            ("proxy/millrace", "millrace", 0),
        ] {
            let text = format!("[package]\nname = \"{name}\"\n");
            let path = format!("crates/{folder}/Cargo.toml");
            assert_eq!(defects(&path, &text).len(), count, "{folder} {name}");
        }
    }
}
