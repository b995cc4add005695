//! Libraries for C as `make libs` installs them: built by the release profile, found by pkg-config.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use crate::c::{ROOT, run};

/// `make libs` at the top of the sources, without what a `make test` around us tells it.
pub(crate) fn make() -> Command {
    let mut make = Command::new("make");
    make.current_dir(ROOT).env_remove("MAKEFLAGS").env_remove("MAKELEVEL").env_remove("DESTDIR");
    make.arg("libs");
    make
}

/// Where they are installed, for all tests of a package.
pub(crate) fn installed() -> &'static Path {
    static PREFIX: OnceLock<PathBuf> = OnceLock::new();
    PREFIX.get_or_init(|| {
        let folder = concat!("installed-", env!("CARGO_PKG_NAME"));
        let prefix = Path::new(env!("CARGO_TARGET_TMPDIR")).join(folder);
        run(make().arg(format!("PREFIX={}", prefix.display())));
        prefix
    })
}

/// What pkg-config says of a library.
pub(crate) fn flags(library: &str, options: &[&str]) -> Vec<String> {
    let mut command = Command::new("pkg-config");
    command.env("PKG_CONFIG_PATH", installed().join("lib/pkgconfig"));
    let said = run(command.args(["--cflags", "--libs"]).args(options).arg(library));
    said.split_whitespace().map(str::to_owned).collect()
}

/// The program's call under valgrind, with the shared libraries as they were installed; `None`, and
/// said, where there is no valgrind. Whatever it finds fails the call, leaks among it if they are of
/// these kinds.
pub(crate) fn valgrind(program: &Path, kinds: &str) -> Option<Command> {
    if Command::new("valgrind").arg("--version").output().is_err() {
        println!("skipped: there is no valgrind");
        return None;
    }
    let mut valgrind = Command::new("valgrind");
    valgrind.args(["--quiet", "--error-exitcode=9"]);
    valgrind.args(["--leak-check=full", &format!("--errors-for-leak-kinds={kinds}")]);
    valgrind.arg(program).env("LD_LIBRARY_PATH", installed().join("lib"));
    Some(valgrind)
}
