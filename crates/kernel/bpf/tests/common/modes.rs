//! Tests in every mode: a process has one.

/// Runs a test of this program again, in lean mode and by multishot, each in a process of its own;
/// nothing in such a process itself, nor where a mode is asked for.
pub(crate) fn again(test: &str) {
    if std::env::var_os("MODE").is_some() {
        return;
    }
    for mode in ["lean", "multishot"] {
        let mut other = std::process::Command::new(std::env::current_exe().unwrap());
        other.args(["--exact", test, "--nocapture"]).env("MODE", mode);
        assert!(other.status().unwrap().success(), "{mode}");
    }
}
