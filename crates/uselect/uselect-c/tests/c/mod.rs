//! Helpers of tests of libraries for C: the compiler, and commands.

use std::path::{Path, PathBuf};
use std::process::Command;

pub(crate) const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../..");

/// Compiles a program called `name` with the flags of the library. Each warning is an error.
pub(crate) fn compile(source: &str, name: &str, flags: &[String]) -> PathBuf {
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let mut cc = Command::new("cc");
    cc.args(["-std=c11", "-Wall", "-Wextra", "-Werror", "-g", "-O1", "-o"]);
    run(cc.arg(&program).arg(Path::new(ROOT).join(source)).args(flags));
    program
}

/// Runs a command that must succeed, and returns its output.
pub(crate) fn run(command: &mut Command) -> String {
    let output = command.output().expect("the command starts");
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {}\n{stdout}{stderr}", output.status);
    stdout
}
