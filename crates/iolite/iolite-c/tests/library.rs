//! libiolite as C programs use it: compiled against the header, linked with the libraries that
//! cargo built for this test, and run.
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

#[path = "../../../uselect/uselect-c/tests/c/mod.rs"]
mod c;
#[path = "../../../uselect/uselect-c/tests/c/documented.rs"]
mod documented;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

use c::{ROOT, compile, run};
use documented::Library;

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

/// Returns the program in the last section EXAMPLES of a man page.
fn example(page: &str) -> String {
    let text = fs::read_to_string(Path::new(ROOT).join("man").join(page)).unwrap();
    let (_, examples) = text.rsplit_once(".SH EXAMPLES").unwrap();
    let (_, program) = examples.split_once(".nf\n").unwrap();
    let (program, _) = program.split_once(".fi\n").unwrap();
    program.replace("\\-", "-").replace("\\(aq", "'").replace("\\e", "\\").replace("\\&", "")
}

#[test]
fn the_example_of_the_man_page_passes_an_aggregate_to_another_process() {
    let source = Path::new(env!("CARGO_TARGET_TMPDIR")).join("example.c");
    fs::write(&source, example("iolite.7")).unwrap();
    let program = compile(source.to_str().unwrap(), "example", &flags());
    let output = run(&mut Command::new(program));
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
