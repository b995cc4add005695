//! libiolite as C programs use it: compiled against the header, linked with the libraries that
//! cargo built for this test, and run.
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

#[path = "../../../uselect/uselect-c/tests/c/mod.rs"]
mod c;
#[path = "../../../uselect/uselect-c/tests/c/documented.rs"]
mod documented;
mod linked;

use std::fs;
use std::path::Path;
use std::process::Command;

use c::{ROOT, run};
use documented::Library;
use linked::{CRATE, compile_example, compile_test, libraries};

#[test]
fn memory_behaves_as_the_man_pages_say() {
    run(&mut Command::new(compile_test("caller")));
}

#[test]
fn pools_and_channels_behave_as_the_man_pages_say() {
    run(&mut Command::new(compile_test("channels")));
}

#[test]
fn files_and_pipes_behave_as_the_man_pages_say_without_the_daemon() {
    let mut program = Command::new(compile_test("files"));
    run(program.arg(env!("CARGO_TARGET_TMPDIR")).env("IOLITED_SOCKET", "/no/socket"));
}

#[test]
fn the_example_of_the_man_page_passes_an_aggregate_to_another_process() {
    let output = run(&mut Command::new(compile_example("iolite.7")));
    assert_eq!(output, "hello, world\n");
}

fn library() -> Library {
    Library { header: Path::new(CRATE).join("include/iolite.h"), prefix: "iol_" }
}

#[test]
fn structures_in_the_man_pages_match_the_header() {
    assert_eq!(library().assert_structures(), 5, "structures in the header");
}

#[test]
fn functions_are_exported_and_have_man_pages() {
    assert!(library().functions().contains("iol_channel_send"));
    library().assert_functions(&libraries().join("libiolite_c.so"));
}

#[test]
fn functions_are_in_the_index_of_the_man_pages() {
    let page = fs::read_to_string(Path::new(ROOT).join("man/iolite.7")).unwrap();
    let (_, index) = page.split_once(".SH FUNCTIONS\n").unwrap();
    let (index, _) = index.split_once(".SH").unwrap();
    let listed: Vec<&str> = index.split([',', ' ', '\n']).collect();
    for name in library().functions() {
        assert!(listed.contains(&name.as_str()), "{name} is missing");
    }
}
