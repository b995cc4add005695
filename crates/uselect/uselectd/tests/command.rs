//! What uselectd says to who starts it, and that it needs no more than it asks for.

#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

use std::process::{Command, Output};

use rustix::thread::{CapabilitySet, remove_capability_from_bounding_set};

fn uselectd(options: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_uselectd")).args(options).output().unwrap()
}

fn text(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes).unwrap()
}

#[test]
fn it_says_its_options_and_its_version() {
    let output = uselectd(&["--version"]);
    assert!(output.status.success() && output.stderr.is_empty());
    assert_eq!(text(output.stdout), concat!("uselectd ", env!("CARGO_PKG_VERSION"), "\n"));
    let output = uselectd(&["--help"]);
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
    let said = text(output.stderr);
    assert!(said.starts_with("uselectd: cannot write to standard output: "), "{said}");
    assert_eq!((said.lines().count(), output.status.code()), (1, Some(1)));
}

/// Root is who starts it here, and may have less than all of root's capabilities: those of what it
/// executes are bounded.
#[test]
fn who_lacks_a_privilege_is_told_which() {
    let output = std::thread::spawn(|| {
        for capability in [CapabilitySet::BPF, CapabilitySet::PERFMON] {
            // An ordinary user has none that could be taken away.
            let _ = remove_capability_from_bounding_set(capability);
        }
        uselectd(&["--socket", "/no/such/folder/socket"])
    });
    let output = output.join().unwrap();
    let said = text(output.stderr);
    let needs = "uselectd: needs root, or CAP_BPF, CAP_PERFMON and CAP_NET_ADMIN; \
                 this process lacks CAP_BPF, CAP_PERFMON";
    assert!(said.starts_with(needs) && said.lines().count() == 1, "{said}");
    assert_eq!(output.status.code(), Some(1));
}

/// Where capabilities are there, and count for nothing.
#[test]
fn root_of_a_user_namespace_is_told_that_it_is_none() {
    let mut unshare = Command::new("unshare");
    let uselectd = env!("CARGO_BIN_EXE_uselectd");
    unshare.args(["--user", "--map-root-user", uselectd, "--socket", "/no/such/folder/socket"]);
    let output = unshare.output().unwrap();
    let said = text(output.stderr);
    if !said.starts_with("uselectd: ") {
        return println!("skipped: {said}");
    }
    assert_eq!(said, "uselectd: runs in a user namespace that is not the first\n");
    assert_eq!(output.status.code(), Some(1));
}
