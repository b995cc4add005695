//! libiolite as C programs use it: compiled against the header, linked with the libraries that
//! cargo built for this test, and run.
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

#[path = "../../../uselect/uselect-c/tests/c/mod.rs"]
mod c;

use std::env;
use std::path::PathBuf;
use std::process::Command;

use c::{compile, run};

const CRATE: &str = env!("CARGO_MANIFEST_DIR");

/// Returns the folder of this package's libraries, in which cargo also puts its tests.
fn libraries() -> PathBuf {
    let test = env::current_exe().unwrap();
    test.parent().unwrap().to_path_buf()
}

/// Returns the arguments of cc for the static library that cargo built.
fn flags() -> Vec<String> {
    let (include, folder) = (format!("-I{CRATE}/include"), format!("-L{}", libraries().display()));
    let library = "-l:libiolite_c.a -lpthread -ldl -lm";
    [include, folder].into_iter().chain(library.split(' ').map(str::to_owned)).collect()
}

#[test]
fn memory_behaves_as_the_man_pages_say() {
    let source = "crates/iolite/iolite-c/tests/caller.c";
    run(&mut Command::new(compile(source, "caller", &flags())));
}

#[test]
fn pools_and_channels_behave_as_the_man_pages_say() {
    let source = "crates/iolite/iolite-c/tests/channels.c";
    run(&mut Command::new(compile(source, "channels", &flags())));
}
