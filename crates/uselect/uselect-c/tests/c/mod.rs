//! What tests of libraries for C share: the compiler, and how a program is run.

use std::path::{Path, PathBuf};
use std::process::Command;

pub(crate) const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../..");

/// Compiles a program called `name`, whose every warning is an error, with what `flags` say of the
/// library.
pub(crate) fn compile(source: &str, name: &str, flags: &[String]) -> PathBuf {
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let mut cc = Command::new("cc");
    cc.args(["-std=c11", "-Wall", "-Wextra", "-Werror", "-g", "-O1", "-o"]);
    run(cc.arg(&program).arg(Path::new(ROOT).join(source)).args(flags));
    program
}

/// Runs a command that has to succeed, and gives what it printed.
pub(crate) fn run(command: &mut Command) -> String {
    let output = command.output().expect("it is there");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {}\n{said}{error}", output.status);
    said
}
