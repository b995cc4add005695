//! libiolite as installed by `make libs`: in the release profile, found by pkg-config.
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

#[path = "../../../uselect/uselect-c/tests/c/mod.rs"]
mod c;
#[path = "../../../uselect/uselect-c/tests/c/installed.rs"]
mod installed;

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use c::{compile, run};
use installed::{flags, installed, valgrind};

const FOLDER: &str = "crates/iolite/iolite-c/tests";
const PROGRAMS: [&str; 3] = ["caller", "channels", "files"];

/// Compiles one of the programs under the name `PROGRAM-VARIANT`.
fn compile_as(program: &str, variant: &str, flags: &[String]) -> PathBuf {
    compile(&format!("{FOLDER}/{program}.c"), &format!("{program}-{variant}"), flags)
}

/// Returns the command of a program; tests/files.c runs without iolited.
fn command(program: PathBuf) -> Command {
    let mut command = Command::new(program);
    command.arg(env!("CARGO_TARGET_TMPDIR")).env("IOLITED_SOCKET", "/no/socket");
    command
}

#[test]
fn the_man_pages_are_installed() {
    for page in ["man7/iolite.7", "man3/iol_slab_create.3", "man3/iol_channel_flush.3"] {
        let text = fs::read_to_string(installed().join("share/man").join(page)).unwrap();
        assert!(text.starts_with(".TH"), "{page}");
    }
}

#[test]
fn the_static_library_is_linked_into_static_programs_and_others() {
    let needs = flags("iolite", &["--static"]);
    let with_shared: Vec<_> =
        needs.iter().map(|flag| flag.replace("-liolite", "-l:libiolite.a")).collect();
    let with_none = [&["-static".to_owned()], &needs[..]].concat();
    for program in PROGRAMS {
        run(&mut command(compile_as(program, "static", &with_shared)));
        run(&mut command(compile_as(program, "all-static", &with_none)));
    }
}

#[test]
fn valgrind_finds_no_memory_error() {
    let program = compile_as("caller", "shared", &flags("iolite", &[]));
    valgrind(&program, "all").iter_mut().for_each(|command| _ = run(command));
    // The library never frees its connection to iolited, and what that needs.
    let program = compile_as("files", "shared", &flags("iolite", &[]));
    if let Some(command) = &mut valgrind(&program, "definite") {
        command.arg(env!("CARGO_TARGET_TMPDIR")).env("IOLITED_SOCKET", "/no/socket");
        run(command);
    }
}

#[test]
fn a_program_is_linked_with_the_library_of_streams() {
    let library = format!("-L{}", installed().join("lib").display());
    let flags = [&library, "-Wl,--no-as-needed", "-liolite-stdio"].map(str::to_owned);
    let program = compile("crates/iolite/iolited/tests/stdio.c", "stdio-linked", &flags);
    let mut shell = Command::new("sh");
    shell.args(["-c", "\"$0\" print | \"$0\" copy | tail -n 1"]).arg(program);
    shell.env("IOLITED_SOCKET", "/no/socket");
    let printed = run(shell.env("LD_LIBRARY_PATH", installed().join("lib")));
    assert_eq!(printed, "line 99999 of some text, c7d83aef\n");
}

/// valgrind 3.19 has no pidfd_open(2), which channels need.
#[test]
fn sanitizers_find_no_memory_error_and_no_leak() {
    let sanitize = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"];
    for program in PROGRAMS {
        let flags = [flags("iolite", &[]), sanitize.map(str::to_owned).to_vec()].concat();
        let mut command = command(compile_as(program, "sanitized", &flags));
        run(command.env("LD_LIBRARY_PATH", installed().join("lib")));
    }
}
