//! Help, version, and errors about missing privileges.

#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

use std::process::{Command, Output};

use rustix::thread::{CapabilitySet, remove_capability_from_bounding_set};

fn run_uselectd(options: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_uselectd")).args(options).output().unwrap()
}

fn text(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes).unwrap()
}

#[test]
fn help_and_version_are_printed() {
    let output = run_uselectd(&["--version"]);
    assert!(output.status.success() && output.stderr.is_empty());
    assert_eq!(text(output.stdout), concat!("uselectd ", env!("CARGO_PKG_VERSION"), "\n"));
    let output = run_uselectd(&["--help"]);
    let help = text(output.stdout);
    assert!(output.status.success() && output.stderr.is_empty());
    for option in ["--socket PATH", "--allow-user USER", "--help", "--version"] {
        assert!(help.lines().any(|line| line.trim_start().starts_with(option)), "{help}");
    }
}

#[test]
fn help_that_cannot_be_written_is_an_error() {
    let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_uselectd"));
    let output = command.arg("--help").stdout(full).output().unwrap();
    let stderr = text(output.stderr);
    assert!(stderr.starts_with("uselectd: cannot write to standard output: "), "{stderr}");
    assert_eq!((stderr.lines().count(), output.status.code()), (1, Some(1)));
}

/// Root starts the daemon without some of root's capabilities, which are removed from the bounding
/// set.
#[test]
fn missing_capabilities_are_named() {
    let output = std::thread::spawn(|| {
        for capability in [CapabilitySet::BPF, CapabilitySet::PERFMON] {
            // This fails for an ordinary user, who has no capabilities anyway.
            let _ = remove_capability_from_bounding_set(capability);
        }
        run_uselectd(&["--socket", "/no/such/folder/socket"])
    });
    let output = output.join().unwrap();
    let stderr = text(output.stderr);
    let missing = "uselectd: missing CAP_BPF, CAP_PERFMON";
    assert!(stderr.starts_with(missing) && stderr.lines().count() == 1, "{stderr}");
    assert_eq!(output.status.code(), Some(1));
}

/// Root of a user namespace has the capabilities, but they do not permit it to load programs.
#[test]
fn root_of_a_user_namespace_is_refused() {
    let mut unshare = Command::new("unshare");
    let uselectd = env!("CARGO_BIN_EXE_uselectd");
    unshare.args(["--user", "--map-root-user", uselectd, "--socket", "/no/such/folder/socket"]);
    let output = unshare.output().unwrap();
    let stderr = text(output.stderr);
    if !stderr.starts_with("uselectd: ") {
        return println!("skipped: {stderr}");
    }
    assert_eq!(stderr, "uselectd: unsupported user namespace (expected: the initial one)\n");
    assert_eq!(output.status.code(), Some(1));
}
