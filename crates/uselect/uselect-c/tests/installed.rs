//! libuselect as `make libs` installs it: built by the release profile, found by pkg-config.
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

mod c;
#[path = "c/installed.rs"]
mod installed;
#[path = "c/served.rs"]
mod served;

use std::path::PathBuf;
use std::process::Command;

use c::{compile, run};
use installed::{flags, installed, valgrind};
use served::{BACKENDS, options};

const SUPPRESSIONS: &str =
    concat!("--suppressions=", env!("CARGO_MANIFEST_DIR"), "/tests/null-event.supp");

/// Compiles the test programs with the flags of the library.
fn programs(name: &str, flags: &[String]) -> [PathBuf; 2] {
    let with_threads = [flags, &["-pthread".to_owned()]].concat();
    ["caller", "instances"].map(|program| {
        let source = format!("crates/uselect/uselect-c/tests/{program}.c");
        compile(&source, &format!("uselect-{program}-{name}"), &with_threads)
    })
}

#[test]
fn the_static_library_links_into_static_and_dynamic_programs() {
    let needs = flags("uselect", &["--static"]);
    let with_shared: Vec<_> =
        needs.iter().map(|flag| flag.replace("-luselect", "-l:libuselect.a")).collect();
    let with_none = [&["-static".to_owned()], &needs[..]].concat();
    let programs = [programs("static", &with_shared), programs("all-static", &with_none)].concat();
    for options in BACKENDS.iter().filter_map(|backend| options(backend)) {
        programs.iter().for_each(|program| _ = run(Command::new(program).args(&options)));
    }
}

#[test]
fn valgrind_finds_no_errors() {
    let programs = programs("shared", &flags("uselect", &[]));
    // Without tracking, the system calls would get the bad arguments that the programs pass on
    // purpose.
    let tracking = BACKENDS.iter().filter(|backend| **backend != "calls");
    for options in tracking.filter_map(|backend| options(backend)) {
        // The tracker is never freed.
        let commands =
            programs.iter().filter_map(|program| valgrind(program, "definite,indirect,possible"));
        for mut command in commands {
            run(command.env("VALGRIND_OPTS", SUPPRESSIONS).args(&options));
        }
    }
}

#[test]
fn all_files_are_installed() {
    let prefix = installed();
    for file in ["lib/libuselect.so.0", "include/uselect.h", "share/man/man7/uselect.7"] {
        assert!(prefix.join(file).exists(), "{file}");
    }
    for page in ["uselect", "upselect", "uppoll", "uepoll_pwait", "uselect_stats"] {
        let text =
            std::fs::read_to_string(prefix.join(format!("share/man/man3/{page}.3"))).unwrap();
        assert!(text.starts_with(".TH"), "{page}");
    }
}
