//! libmrsplice as `make libs` installs it: built by the release profile, found by pkg-config.
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

mod c;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use c::{ROOT, compile, run};

/// `make libs` at the top of the sources, without what a `make test` around us tells it.
fn make() -> Command {
    let mut make = Command::new("make");
    make.current_dir(ROOT).env_remove("MAKEFLAGS").env_remove("MAKELEVEL").env_remove("DESTDIR");
    make.arg("libs");
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
fn a_prefix_that_pkg_config_cannot_carry_is_refused_before_anything_is_written() {
    let destination = Path::new(env!("CARGO_TARGET_TMPDIR")).join("nowhere");
    for prefix in ["/pre fix", "/a&b", "/a|b", "/a:b", "/größe", "relative", "~/mr", "/a\n/b"] {
        let mut refused = make();
        refused.arg(format!("PREFIX={prefix}")).arg(format!("DESTDIR={}", destination.display()));
        let output = refused.output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && said.contains("PREFIX"), "{prefix}: {said}");
    }
    let two = Command::new(format!("{ROOT}/scripts/libs")).args(["/a", "/b"]).output().unwrap();
    assert_eq!(two.status.code(), Some(2));
    assert!(!destination.exists());
}

#[test]
fn a_package_is_made_below_destdir_and_an_environment_installs_nothing() {
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
    let source = "crates/memory/splice-c/tests/caller.c";
    let needs = flags(&["--static"]);
    let with_shared: Vec<_> =
        needs.iter().map(|flag| flag.replace("-lmrsplice", "-l:libmrsplice.a")).collect();
    let with_none = [&["-static".to_owned()], &needs[..]].concat();
    run(&mut Command::new(compile(source, "caller-static", &with_shared)));
    run(&mut Command::new(compile(source, "caller-all-static", &with_none)));
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
