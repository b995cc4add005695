//! Runs the program.

use std::process::Command;

/// Runs a command of the program. Returns its exit status, standard output and standard error.
pub(crate) fn run(command: &str, arguments: &[&str]) -> (Option<i32>, String, String) {
    let mut program = Command::new(env!("CARGO_BIN_EXE_millrace-lab"));
    let output = program.arg(command).args(arguments).output().expect("the program starts");
    let text = |bytes| String::from_utf8(bytes).expect("the program prints UTF-8");
    (output.status.code(), text(output.stdout), text(output.stderr))
}
