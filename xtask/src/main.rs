//! Checks and reports about the repository: `cargo xtask COMMAND`. No command changes the tree.

#![forbid(unsafe_code)]

mod attributes;
mod count;
mod defect;
mod manifest;
mod modules;
mod outline;
mod packages;
mod prose;
mod tidy;
mod transitions;
mod tree;

use std::env;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use tree::Tree;

const HELP: &str = "\
Usage: cargo xtask COMMAND [OPTION…]

  tidy              Report what breaks the rules of the source tree; exit status 1 if anything does
    --only RULE,…   Check only these: cycles, groups, driver, sizes, predicates, collisions, words,
                    links, budgets, ports, lines [default: all]
    --edges         Print below each cycle which of its files use which
    --strict        Also report cycles by paths without a `use`, such as `child::f()` in a parent
  count             Print the lines of code of each crate, without tests and comments
  transitions       Print, for each crate, how many functions that change a state have an assertion

  --root DIR        The tree to read [default: the one that xtask belongs to]
";

/// The exit status for a wrong command line, or a tree that cannot be read.
const EXIT_MISUSE: u8 = 2;

/// The command that the command line selects, with its options.
#[derive(Debug, PartialEq)]
enum Command {
    Help,
    Tidy { choice: tidy::Choice, prints_edges: bool, root: Option<PathBuf> },
    Count { root: Option<PathBuf> },
    Transitions { root: Option<PathBuf> },
}

fn main() -> ExitCode {
    match parse(env::args().skip(1)).and_then(run) {
        Ok((text, status)) => {
            // A reader such as head(1) may have closed the pipe. That is no error.
            let _ = io::stdout().write_all(text.as_bytes());
            status
        }
        Err(message) => {
            eprintln!("xtask: {message}");
            ExitCode::from(EXIT_MISUSE)
        }
    }
}

fn parse(arguments: impl Iterator<Item = String>) -> Result<Command, String> {
    let mut arguments = arguments;
    let command = match arguments.next().as_deref() {
        None | Some("help" | "--help" | "-h") => return Ok(Command::Help),
        Some(name @ ("tidy" | "count" | "transitions")) => name.to_owned(),
        Some(name) => {
            let expected = "tidy, count, transitions";
            return Err(format!("unknown command {name:?} (expected: {expected})"));
        }
    };
    let mut root = None;
    let mut prints_edges = false;
    let mut choice = tidy::Choice { rules: tidy::Rule::ALL.to_vec(), is_strict: false };
    while let Some(option) = arguments.next() {
        let (name, value) = match option.split_once('=') {
            Some((name, value)) => (name, Some(value.to_owned())),
            None => (option.as_str(), None),
        };
        match name {
            "--help" | "-h" => return Ok(Command::Help),
            "--root" => {
                let value = value.or_else(|| arguments.next());
                root = Some(value.ok_or("--root: missing value (expected: a folder)")?.into());
            }
            "--only" if command == "tidy" => {
                let value = value.or_else(|| arguments.next());
                choice.rules = tidy::Rule::parse_list(&value.unwrap_or_default())?;
            }
            "--edges" if command == "tidy" && value.is_none() => prints_edges = true,
            "--strict" if command == "tidy" && value.is_none() => choice.is_strict = true,
            _ => {
                let expected =
                    if command == "tidy" { "--only, --edges, --strict, --root" } else { "--root" };
                return Err(format!("{command}: unknown option {name:?} (expected: {expected})"));
            }
        }
    }
    Ok(match command.as_str() {
        "tidy" => Command::Tidy { choice, prints_edges, root },
        "transitions" => Command::Transitions { root },
        _ => Command::Count { root },
    })
}

/// Returns what to print and the exit status.
fn run(command: Command) -> Result<(String, ExitCode), String> {
    match command {
        Command::Help => Ok((HELP.to_owned(), ExitCode::SUCCESS)),
        Command::Tidy { choice, prints_edges, root } => {
            let defects = tidy::check(&Tree::read(&folder(root))?, &choice);
            let mut text = String::new();
            for defect in &defects {
                text += &format!("{defect}\n");
                for detail in defect.details.iter().filter(|_| prints_edges) {
                    text += &format!("    {detail}\n");
                }
            }
            let status = if defects.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE };
            Ok((text, status))
        }
        Command::Transitions { root } => {
            Ok((transitions::report(&Tree::read(&folder(root))?), ExitCode::SUCCESS))
        }
        Command::Count { root } => {
            Ok((count::table(&Tree::read(&folder(root))?)?, ExitCode::SUCCESS))
        }
    }
}

/// Returns the tree to read: by default, the one from which cargo runs xtask. Cargo passes the
/// folder in CARGO_MANIFEST_DIR. A folder set at compile time would be wrong if several trees share
/// a target folder.
fn folder(root: Option<PathBuf>) -> PathBuf {
    root.or_else(|| Some(PathBuf::from(env::var_os("CARGO_MANIFEST_DIR")?).join("..")))
        .unwrap_or_else(|| PathBuf::from("."))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<Command, String> {
        parse(line.split_whitespace().map(str::to_owned))
    }

    #[test]
    fn without_a_command_there_is_help() {
        assert_eq!(parsed(""), Ok(Command::Help));
        assert_eq!(parsed("tidy --help"), Ok(Command::Help));
    }

    #[test]
    fn rules_and_root_are_chosen() {
        let rules = vec![tidy::Rule::Cycles, tidy::Rule::Sizes];
        let choice = tidy::Choice { rules, is_strict: true };
        let expected =
            Ok(Command::Tidy { choice, prints_edges: false, root: Some(PathBuf::from("x")) });
        assert_eq!(parsed("tidy --strict --only cycles,sizes --root x"), expected);
        assert_eq!(parsed("tidy --only=cycles,sizes --root=x --strict"), expected);
        assert_eq!(parsed("count"), Ok(Command::Count { root: None }));
    }

    #[test]
    fn mistakes_are_named() {
        for (line, message) in [
            ("lint", r#"unknown command "lint" (expected: tidy, count, transitions)"#),
            ("count --only x", r#"count: unknown option "--only" (expected: --root)"#),
            (
                "tidy -v",
                r#"tidy: unknown option "-v" (expected: --only, --edges, --strict, --root)"#,
            ),
            (
                "tidy --only x",
                r#"--only: unknown rule "x" (expected: cycles, groups, driver, sizes, predicates, collisions, words, links, budgets, ports, lines)"#,
            ),
            ("tidy --root", "--root: missing value (expected: a folder)"),
        ] {
            assert_eq!(parsed(line), Err(message.to_owned()), "{line}");
        }
    }
}
