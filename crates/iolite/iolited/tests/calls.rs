//! The calls of libiolite for files and pipes, as C programs use them with the daemon.
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

#[path = "../../../uselect/uselect-c/tests/c/mod.rs"]
mod c;
mod common;
#[path = "../../iolite-c/tests/linked/mod.rs"]
#[allow(dead_code, reason = "this test uses a part")]
mod linked;

use std::path::Path;
use std::process::Command;

use c::{compile, run};
use common::{Daemon, Folder};
use linked::flags;

const FILES: &str = "crates/iolite/iolite-c/tests/files.c";

/// Runs tests/files.c of iolite-c with a daemon.
fn check(program: &Path, name: &str) {
    let folder = Folder::new(name);
    let daemon = Daemon::start(&folder, &[]);
    let mut command = Command::new(program);
    run(command.arg(&folder.0).arg("shared").env("IOLITED_SOCKET", &daemon.socket));
}

#[test]
fn files_and_pipes_behave_as_the_man_pages_say_with_the_daemon() {
    check(&compile(FILES, "files-daemon", &flags()), "calls");
}

#[test]
fn sanitizers_find_no_memory_error_and_no_leak() {
    let sanitize = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"];
    let flags = [sanitize.map(str::to_owned).to_vec(), flags()].concat();
    check(&compile(FILES, "files-daemon-sanitized", &flags), "calls-sanitized");
}
