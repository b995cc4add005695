//! libiolite-stdio: ordinary programs, and the stages of gcc, whose streams carry aggregates.
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

#[path = "../../../uselect/uselect-c/tests/c/mod.rs"]
mod c;
mod common;
#[path = "../../iolite-c/tests/linked/mod.rs"]
#[allow(dead_code, reason = "this test uses a part")]
mod linked;

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;

use c::compile;
use common::{Daemon, Folder, path};
use linked::{CRATE, libraries};

/// Compiles the library, beside which it finds libiolite, and returns its path.
fn library() -> &'static Path {
    static COMPILED: OnceLock<PathBuf> = OnceLock::new();
    COMPILED.get_or_init(|| {
        let include = format!("-I{CRATE}/include");
        let flags = ["-shared", "-fPIC", "-Wl,-rpath,$ORIGIN", &include, "-ldl"];
        let source = "crates/iolite/iolite-stdio/iolite-stdio.c";
        let compiled = compile(source, "libiolite-stdio.so.0", &flags.map(str::to_owned));
        let iolite = compiled.with_file_name("libiolite.so.0");
        // A link of another run may be there.
        let _ = std::fs::remove_file(&iolite);
        std::os::unix::fs::symlink(libraries().join("libiolite_c.so"), iolite).unwrap();
        compiled
    })
}

/// Returns the program of this folder, which does not know the library.
fn program() -> &'static Path {
    static COMPILED: OnceLock<PathBuf> = OnceLock::new();
    let source = "crates/iolite/iolited/tests/stdio.c";
    COMPILED.get_or_init(|| compile(source, "iolite-stdio-test", &[]))
}

/// Runs a line of sh(1) in a folder: with the library, if `preload`, and by the daemon, if there is
/// one.
fn run(folder: &Folder, daemon: Option<&Daemon>, line: &str, preload: bool) -> Output {
    let mut command = Command::new("sh");
    command.args(["-c", line]).current_dir(&folder.0).stdin(Stdio::null());
    command.env("test", program()).env("LC_ALL", "C");
    command.env("IOLITED_SOCKET", daemon.map_or(Path::new("/no/socket"), |of| &of.socket));
    if preload {
        command.env("LD_PRELOAD", library());
    }
    command.output().unwrap()
}

#[test]
fn streams_carry_the_bytes_of_ordinary_ones() {
    let folder = Folder::new("stdio-bytes");
    let daemon = Daemon::start(&folder, &[]);
    for line in [
        "$test print | $test copy | cksum",
        "$test print | $test copy | $test copy | cksum",
        "$test print | cat | $test copy | cksum",
        "$test print | $test copy > copy; cksum copy",
        "$test print > lines; $test copy < lines | cksum",
        "$test print | $test copy | head -n 2000 | cksum",
    ] {
        let ordinary = run(&folder, None, line, false);
        assert!(ordinary.status.success(), "{ordinary:?}");
        for daemon in [Some(&daemon), None] {
            let ours = run(&folder, daemon, line, true);
            assert_eq!((ours.status, &ours.stdout), (ordinary.status, &ordinary.stdout), "{line}");
        }
    }
}

#[test]
fn two_programs_with_the_library_have_a_channel() {
    let folder = Folder::new("stdio-channel");
    let daemon = Daemon::start(&folder, &[]);
    let line = "$test print | $test copy > /dev/null";
    let sockets = |daemon, preload| {
        let output = run(&folder, daemon, line, preload);
        let message = String::from_utf8(output.stderr).unwrap();
        message.trim().strip_prefix("sockets: ").expect("their number").to_owned()
    };
    assert_eq!(sockets(None, false), "0");
    assert_eq!(sockets(None, true), "0");
    // The connection to the daemon, and the channel.
    assert_eq!(sockets(Some(&daemon), true), "2");
}

#[test]
fn calls_on_streams_have_the_results_of_ordinary_ones() {
    let folder = Folder::new("stdio-calls");
    let output = run(&folder, None, "$test print | $test results | cat", true);
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "to a child\nto another child\nthe end\n");
}

#[test]
fn the_stages_of_gcc_make_the_same_object_file() {
    let folder = Folder::new("stdio-gcc");
    let daemon = Daemon::start(&folder, &[]);
    let mut source = String::new();
    for number in 0..600 {
        writeln!(
            source,
            "int f{number}(int a) {{ return a * {number} + (a >> {}); }}",
            number % 31
        )
        .unwrap();
    }
    std::fs::write(path(&folder, "source.c"), source).unwrap();
    let compiled = |daemon, preload| {
        let line = "gcc -pipe -c source.c -o object && cat object && rm object";
        let output = run(&folder, daemon, line, preload);
        assert!(output.status.success() && output.stderr.is_empty(), "{output:.300?}");
        output.stdout
    };
    let ordinary = compiled(None, false);
    assert!(compiled(Some(&daemon), true) == ordinary);
    assert!(compiled(None, true) == ordinary);
    // The pipe has carried more than the bytes before the library is loaded.
    let listing = run(&folder, None, "gcc -S -o - source.c | wc -c", false);
    let bytes: u64 = String::from_utf8(listing.stdout).unwrap().trim().parse().unwrap();
    assert!(bytes > 200_000, "{bytes}");
}
