//! Runs a test in every mode, each in a process of its own, because a process has one mode.

use std::process::Command;

/// Returns true if MODE selects the mode, so that this process runs the test itself. Otherwise runs
/// the test in each mode in a process of its own, in which no other test opens or closes
/// descriptors: they would get the numbers that the test expects to be reused.
pub(crate) fn runs_here(test: &str) -> bool {
    if std::env::var_os("MODE").is_some() {
        return true;
    }
    for mode in ["exact", "lean", "multishot"] {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", test, "--nocapture"]).env("MODE", mode);
        let output = command.output().unwrap();
        let text = [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).unwrap());
        println!("{mode}\n{}", text.concat());
        // A name without a test would also succeed.
        assert!(output.status.success() && text[0].contains("1 passed"), "{mode}");
    }
    false
}
