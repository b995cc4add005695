//! C programs that are linked with the libraries that cargo built for the test.

use std::path::{Path, PathBuf};
use std::{env, fs};

use crate::c::{ROOT, compile};

/// The folder of iolite-c. Tests of its sibling crates use this module, too.
pub(crate) const CRATE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../iolite-c");

/// Returns the folder of the libraries, in which cargo also puts tests.
pub(crate) fn libraries() -> PathBuf {
    let test = env::current_exe().unwrap();
    test.parent().unwrap().to_path_buf()
}

/// Returns the arguments of cc for the static library that cargo built.
pub(crate) fn flags() -> Vec<String> {
    let (include, folder) = (format!("-I{CRATE}/include"), format!("-L{}", libraries().display()));
    let library = "-l:libiolite_c.a -lpthread -ldl -lm";
    [include, folder].into_iter().chain(library.split(' ').map(str::to_owned)).collect()
}

/// Compiles a program of this folder.
pub(crate) fn compile_test(name: &str) -> PathBuf {
    compile(&format!("crates/iolite/iolite-c/tests/{name}.c"), name, &flags())
}

/// Compiles the program in the last section EXAMPLES of a man page.
pub(crate) fn compile_example(page: &str) -> PathBuf {
    let text = fs::read_to_string(Path::new(ROOT).join("man").join(page)).unwrap();
    let (_, examples) = text.rsplit_once(".SH EXAMPLES").unwrap();
    let (_, program) = examples.split_once(".nf\n").unwrap();
    let (program, _) = program.split_once(".fi\n").unwrap();
    let program =
        program.replace("\\-", "-").replace("\\(aq", "'").replace("\\e", "\\").replace("\\&", "");
    let source = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{page}.c"));
    fs::write(&source, program).unwrap();
    compile(source.to_str().unwrap(), page, &flags())
}
