//! libmrsplice as installed by `make libs`: in the release profile, found by pkg-config.
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

#[path = "../../../uselect/uselect-c/tests/c/mod.rs"]
mod c;
#[path = "../../../uselect/uselect-c/tests/c/installed.rs"]
mod installed;

use std::fs;
use std::path::Path;
use std::process::Command;

use c::{ROOT, compile, run};
use installed::{flags, make, valgrind};

const CALLER: &str = "crates/splice/splice-c/tests/caller.c";

#[test]
fn a_prefix_with_characters_special_to_pkg_config_is_refused() {
    let destination = Path::new(env!("CARGO_TARGET_TMPDIR")).join("nowhere");
    for prefix in ["/pre fix", "/a&b", "/a|b", "/a:b", "/größe", "relative", "~/mr", "/a\n/b"] {
        let mut refused = make();
        refused.arg(format!("PREFIX={prefix}")).arg(format!("DESTDIR={}", destination.display()));
        let output = refused.output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && stderr.contains("PREFIX"), "{prefix}: {stderr}");
    }
    let two = Command::new(format!("{ROOT}/scripts/libs")).args(["/a", "/b"]).output().unwrap();
    assert_eq!(two.status.code(), Some(2));
    assert!(!destination.exists());
}

#[test]
fn destdir_is_honoured_and_environment_variables_are_ignored() {
    let (destination, prefix) = (Path::new(env!("CARGO_TARGET_TMPDIR")).join("package"), "/a,b@c");
    let _ = fs::remove_dir_all(&destination);
    run(make().env("PREFIX", prefix).env("DESTDIR", &destination));
    assert!(!destination.exists(), "PREFIX was not given to make");
    run(make().arg(format!("PREFIX={prefix}")).arg(format!("DESTDIR={}", destination.display())));
    let packaged = destination.join("a,b@c");
    for page in ["man7/mrsplice.7", "man3/mrsplice_new.3", "man3/mrsplice_fd.3"] {
        let text = fs::read_to_string(packaged.join("share/man").join(page)).unwrap();
        assert!(text.starts_with(".TH"), "{page}");
    }
    let description = fs::read_to_string(packaged.join("lib/pkgconfig/mrsplice.pc")).unwrap();
    assert!(description.starts_with("prefix=/a,b@c\n"), "{description}");
}

#[test]
fn the_static_library_is_linked_into_static_programs_and_others() {
    let needs = flags("mrsplice", &["--static"]);
    let with_shared: Vec<_> =
        needs.iter().map(|flag| flag.replace("-lmrsplice", "-l:libmrsplice.a")).collect();
    let with_none = [&["-static".to_owned()], &needs[..]].concat();
    run(&mut Command::new(compile(CALLER, "caller-static", &with_shared)));
    run(&mut Command::new(compile(CALLER, "caller-all-static", &with_none)));
}

#[test]
fn valgrind_finds_no_memory_error() {
    let program = compile(CALLER, "caller-shared", &flags("mrsplice", &[]));
    valgrind(&program, "all").iter_mut().for_each(|command| _ = run(command));
}
