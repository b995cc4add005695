//! libmrsplice as `make libs` installs it: built by the release profile, found by pkg-config.
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

mod c;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use c::{ROOT, compile, run};

/// `make` at the top of the sources, without what a `make test` around us tells it.
fn make() -> Command {
    let mut make = Command::new("make");
    make.current_dir(ROOT).env_remove("MAKEFLAGS").env_remove("MAKELEVEL").arg("libs");
    make
}

/// Where the library is installed, for all tests.
fn installed() -> &'static Path {
    static PREFIX: OnceLock<PathBuf> = OnceLock::new();
    PREFIX.get_or_init(|| {
        let prefix = Path::new(env!("CARGO_TARGET_TMPDIR")).join("installed");
        run(make().arg(format!("PREFIX={}", prefix.display())));
        prefix
    })
}

/// What pkg-config says of the library.
fn flags(options: &[&str]) -> Vec<String> {
    let mut command = Command::new("pkg-config");
    command.env("PKG_CONFIG_PATH", installed().join("lib/pkgconfig"));
    let said = run(command.args(["--cflags", "--libs"]).args(options).arg("mrsplice"));
    said.split_whitespace().map(str::to_owned).collect()
}

#[test]
fn memory_is_used_as_it_should_be() {
    let program = compile("crates/memory/splice-c/tests/caller.c", "caller-shared", &flags(&[]));
    let mut valgrind = Command::new("valgrind");
    if valgrind.arg("--version").output().is_err() {
        println!("skipped: there is no valgrind");
        return;
    }
    run(Command::new("valgrind")
        .args(["--quiet", "--error-exitcode=9", "--leak-check=full", "--errors-for-leak-kinds=all"])
        .arg(program)
        .env("LD_LIBRARY_PATH", installed().join("lib")));
}
