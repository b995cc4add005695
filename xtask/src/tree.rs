//! The files that rules look at, read and parsed once.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::ErrorKind;
use std::path::Path;
use std::process::Command;
use std::str::FromStr;

use proc_macro2::TokenStream;

use crate::defect::Defect;

/// The folders with sources of this project. `peers/` has programs for comparison.
const FOLDERS: [&str; 4] = ["crates/", "tests/", "xtask/", "fuzz/"];

/// Folders that git does not track.
const IGNORED: [&str; 5] = [".git", "target", "node_modules", "__pycache__", "out"];

/// The files of a tree, by their paths from its root.
#[derive(Default)]
pub(crate) struct Tree {
    pub(crate) sources: BTreeMap<String, Source>,
    pub(crate) manifests: BTreeMap<String, String>,
    /// Other files of text: documents, scripts, programs in C, scenarios.
    pub(crate) texts: BTreeMap<String, String>,
    /// The path of every file, also of those that are not read.
    pub(crate) paths: BTreeSet<String>,
    /// The Rust files that cannot be parsed. They are not in `sources`.
    pub(crate) unparsed: Vec<Defect>,
}

/// A file of Rust.
pub(crate) struct Source {
    pub(crate) text: String,
    pub(crate) tokens: TokenStream,
    pub(crate) syntax: syn::File,
}

impl Tree {
    /// Reads the files that git tracks, and new ones that it does not ignore.
    ///
    /// # Errors
    ///
    /// A message that names the folder or file that cannot be read.
    pub(crate) fn read(root: &Path) -> Result<Tree, String> {
        let mut texts = Vec::new();
        let mut others = BTreeMap::new();
        let mut unread = BTreeSet::new();
        for path in listed(root)? {
            // The target of a link is read under its own path.
            if root.join(&path).is_symlink() {
                unread.insert(path);
                continue;
            }
            match fs::read_to_string(root.join(&path)) {
                Ok(text) if is_ours(&path) => texts.push((path, text)),
                Ok(text) => {
                    others.insert(path, text);
                }
                // Git lists a removed file until the removal is staged.
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) if error.kind() == ErrorKind::InvalidData => {
                    unread.insert(path);
                }
                Err(error) => return Err(format!("{}: {error}", root.join(&path).display())),
            }
        }
        let mut tree = Tree::from_texts(texts);
        tree.paths.extend(others.keys().cloned());
        tree.texts.append(&mut others);
        tree.paths.append(&mut unread);
        Ok(tree)
    }

    /// Makes a tree from the paths and texts of files.
    pub(crate) fn from_texts(texts: impl IntoIterator<Item = (String, String)>) -> Tree {
        let mut tree = Tree::default();
        for (path, text) in texts {
            tree.paths.insert(path.clone());
            if path.rsplit('/').next() == Some("Cargo.toml") {
                tree.manifests.insert(path, text);
                continue;
            }
            if !path.ends_with(".rs") {
                tree.texts.insert(path, text);
                continue;
            }
            match Source::parse(text) {
                Ok(source) => {
                    tree.sources.insert(path, source);
                }
                Err((line, message)) => {
                    let wrong = format!("cannot be parsed: {message}");
                    tree.unparsed.push(Defect::new(&path, line, wrong, "Rust that syn parses"));
                }
            }
        }
        tree
    }
}

impl Source {
    /// Parses a file.
    ///
    /// # Errors
    ///
    /// Returns the line, and what is wrong in it.
    fn parse(text: String) -> Result<Source, (usize, String)> {
        let tokens = TokenStream::from_str(&text)
            .map_err(|error| (error.span().start().line, error.to_string()))?;
        let syntax = syn::parse2(tokens.clone())
            .map_err(|error| (error.span().start().line, error.to_string()))?;
        Ok(Source { text, tokens, syntax })
    }
}

/// Returns whether the rules about sources and manifests apply to a file.
fn is_ours(path: &str) -> bool {
    path == "Cargo.toml" || FOLDERS.iter().any(|folder| path.starts_with(folder))
}

/// Returns the paths of the files that git tracks, and of those that are new and not ignored, so
/// that a rule sees a file before its first commit. Without git, returns all files but those below
/// folders that git would ignore.
fn listed(root: &Path) -> Result<Vec<String>, String> {
    let output = Command::new("git")
        .arg("-C")
        .arg(root)
        .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
        .output();
    let mut paths = match output {
        Ok(output) if output.status.success() => {
            let names = String::from_utf8(output.stdout)
                .map_err(|_| format!("{}: a path is not UTF-8", root.display()))?;
            names.split_terminator('\0').map(str::to_owned).collect()
        }
        Ok(output) => {
            let message = String::from_utf8_lossy(&output.stderr);
            return Err(format!("{}: {}", root.display(), message.trim_end()));
        }
        Err(error) if error.kind() == ErrorKind::NotFound => {
            let mut paths = Vec::new();
            walk(root, "", &mut paths).map_err(|error| format!("{}: {error}", root.display()))?;
            paths
        }
        Err(error) => return Err(format!("git: {error}")),
    };
    // In a subfolder, git would list only a part of the tree, and the rules would not check the
    // rest.
    if !paths.iter().any(|path| path.starts_with(FOLDERS[0])) {
        let folder = FOLDERS[0];
        return Err(format!("{}: no {folder} (expected: the root of a tree)", root.display()));
    }
    // A file in conflict is listed once for each of its stages.
    paths.sort();
    paths.dedup();
    Ok(paths)
}

/// Adds the files below a folder of the tree; `inside` is empty or ends with a slash.
fn walk(root: &Path, inside: &str, paths: &mut Vec<String>) -> std::io::Result<()> {
    for entry in fs::read_dir(root.join(inside))? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if !entry.file_type()?.is_dir() {
            paths.push(format!("{inside}{name}"));
        } else if !IGNORED.contains(&name.as_str()) {
            walk(root, &format!("{inside}{name}/"), paths)?;
        }
    }
    Ok(())
}

/// Makes a tree for a test.
#[cfg(test)]
pub(crate) fn test_tree(texts: &[(&str, &str)]) -> Tree {
    let tree = Tree::from_texts(texts.iter().map(|(path, text)| ((*path).into(), (*text).into())));
    assert_eq!(tree.unparsed, []);
    tree
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_git_the_same_files_are_found() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let mut walked = Vec::new();
        walk(&root, "", &mut walked).unwrap();
        let sources = |paths: &[String]| -> BTreeSet<String> {
            let is_source = |path: &&String| path.ends_with(".rs") && is_ours(path);
            paths.iter().filter(is_source).cloned().collect()
        };
        assert_eq!(sources(&walked), sources(&listed(&root).unwrap()));
    }

    #[test]
    fn a_file_that_is_not_rust_is_a_defect() {
        let tree = Tree::from_texts([("a.rs".into(), "fn a() {}\nfn b( {}\n".into())]);
        assert_eq!(tree.unparsed.len(), 1);
        assert_eq!((tree.unparsed[0].path.as_str(), tree.unparsed[0].line), ("a.rs", 2));
    }
}
