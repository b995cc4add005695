//! Libraries for C as `make libs` installs them: built with the release profile, found by
//! pkg-config.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use crate::c::{ROOT, run};

/// Returns `make libs` for the top of the sources, without the environment of a surrounding `make
/// test`.
pub(crate) fn make() -> Command {
    let mut make = Command::new("make");
    make.current_dir(ROOT).env_remove("MAKEFLAGS").env_remove("MAKELEVEL").env_remove("DESTDIR");
    make.arg("libs");
    make
}

/// Installs the libraries, once for all tests of a package, and returns the prefix.
pub(crate) fn installed() -> &'static Path {
    static PREFIX: OnceLock<PathBuf> = OnceLock::new();
    PREFIX.get_or_init(|| {
        let folder = concat!("installed-", env!("CARGO_PKG_NAME"));
        let prefix = Path::new(env!("CARGO_TARGET_TMPDIR")).join(folder);
        run(make().arg(format!("PREFIX={}", prefix.display())));
        prefix
    })
}

/// Returns the flags that pkg-config prints for a library.
pub(crate) fn flags(library: &str, options: &[&str]) -> Vec<String> {
    let mut command = Command::new("pkg-config");
    command.env("PKG_CONFIG_PATH", installed().join("lib/pkgconfig"));
    let output = run(command.args(["--cflags", "--libs"]).args(options).arg(library));
    output.split_whitespace().map(str::to_owned).collect()
}

/// Returns a command that runs the program under valgrind with the installed shared libraries.
/// Returns `None`, with a message, if valgrind is missing. An error fails the command, and so does
/// a leak of these kinds.
pub(crate) fn valgrind(program: &Path, kinds: &str) -> Option<Command> {
    if Command::new("valgrind").arg("--version").output().is_err() {
        println!("skipped: valgrind is not installed");
        return None;
    }
    let mut valgrind = Command::new("valgrind");
    valgrind.args(["--quiet", "--error-exitcode=9"]);
    valgrind.args(["--leak-check=full", &format!("--errors-for-leak-kinds={kinds}")]);
    valgrind.arg(program).env("LD_LIBRARY_PATH", installed().join("lib"));
    Some(valgrind)
}
