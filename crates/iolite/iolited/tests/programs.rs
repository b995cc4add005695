//! Programs in C that read and write by libiolite, with the daemon and without it: the checks of
//! the man pages, and the examples beside the programs of the same names.
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

#[path = "../../../uselect/uselect-c/tests/c/mod.rs"]
mod c;
mod common;
#[path = "../../iolite-c/tests/linked/mod.rs"]
mod linked;

use std::fmt::Write;
use std::path::Path;
use std::process::{Command, Output};
use std::sync::LazyLock;

use common::{Daemon, Folder, pattern};
use linked::{compile_program, compile_test};

/// The library has to be linked, and nothing here calls it.
use iolite_c as _;

/// Calls `check` with the path of a socket on which the daemon listens, and with one of none.
fn with_and_without_daemon(name: &str, check: impl Fn(&Folder, &Path)) {
    let folder = Folder::new(name);
    let daemon = Daemon::start(&folder, &[]);
    check(&folder, &daemon.socket);
    assert!(daemon.memory().0 > 0, "it has read no file");
    let none = folder.0.join("none");
    check(&folder, &none);
}

#[test]
fn calls_behave_as_the_man_pages_say() {
    let program = compile_test("files");
    with_and_without_daemon("calls", |folder, socket| {
        c::run(Command::new(&program).arg(&folder.0).env("IOLITED_SOCKET", socket));
    });
}

/// Returns lines of words, some of them long.
fn text() -> String {
    let mut text = String::new();
    for (line, numbers) in pattern(1_500_000, 1).chunks(7).enumerate() {
        for number in numbers {
            write!(text, "word{number} ").unwrap();
        }
        if line % 1000 == 999 {
            text += &"long ".repeat(20_000);
        }
        text.push('\n');
    }
    text + "no end of line, word7 "
}

/// Runs a line of the shell in which `$IOL` begins the names of the examples.
fn shell(line: &str, folder: &Folder, socket: &Path) -> Output {
    static BEGIN: LazyLock<String> = LazyLock::new(|| {
        let paths = ["cat", "wc", "grep", "permute"].map(compile_program);
        paths[0].to_str().unwrap().strip_suffix("cat").unwrap().to_owned()
    });
    let mut command = Command::new("sh");
    command.args(["-c", line]).current_dir(&folder.0);
    command.env("IOL", &*BEGIN).env("IOLITED_SOCKET", socket).output().unwrap()
}

#[test]
fn examples_print_what_the_usual_programs_print() {
    let same = [
        ("${IOL}cat text", "cat text"),
        ("${IOL}cat text text short -", "cat text text short </dev/null"),
        ("${IOL}cat <text", "cat text"),
        ("${IOL}wc text", "wc text"),
        ("${IOL}wc -l text", "wc -l text"),
        ("${IOL}wc <short", "wc <short"),
        ("${IOL}grep word7 text", "grep -F word7 text"),
        ("${IOL}grep nothing text", "grep nothing text"),
        ("${IOL}cat text | ${IOL}wc", "wc <text"),
        ("cat text | ${IOL}wc", "wc <text"),
        ("${IOL}cat text | wc", "wc <text"),
        ("${IOL}cat text | ${IOL}grep word255 | ${IOL}wc -l", "grep -c word255 text"),
        ("${IOL}cat text | grep word255 | ${IOL}cat", "grep word255 text"),
        ("${IOL}permute a b c d e f g h | ${IOL}wc", "echo 40320 40320 362880"),
        ("${IOL}permute a bc d e | sort -u | ${IOL}wc", "echo 24 24 144"),
        ("${IOL}cat text | head -n 1", "head -n 1 text"),
    ];
    let text = text();
    with_and_without_daemon("examples", |folder, socket| {
        std::fs::write(folder.0.join("text"), &text).unwrap();
        std::fs::write(folder.0.join("short"), "two words\n").unwrap();
        for (ours, usual) in same {
            let (ours_printed, usual_printed) =
                (shell(ours, folder, socket), shell(usual, folder, socket));
            assert!(usual_printed.stderr.is_empty() && ours_printed.stderr.is_empty());
            assert_eq!(ours_printed.status, usual_printed.status, "{ours}");
            let (printed, expected) = (ours_printed.stdout, usual_printed.stdout);
            // wc pads its numbers.
            let is_same = printed == expected
                || String::from_utf8_lossy(&printed)
                    .split_whitespace()
                    .eq(String::from_utf8_lossy(&expected).split_whitespace());
            assert!(is_same, "{ours}: {} bytes, not {}", printed.len(), expected.len());
        }
    });
}

#[test]
fn examples_report_wrong_input() {
    let folder = Folder::new("wrong-input");
    let wrong = [
        ("${IOL}cat missing", "missing: No such file or directory\n", 1),
        ("${IOL}wc missing", "missing: No such file or directory\n", 1),
        ("${IOL}wc -x", "usage: wc [-l] [FILE]\n", 1),
        ("${IOL}grep", "usage: grep STRING [FILE]\n", 2),
        ("${IOL}grep x missing", "missing: No such file or directory\n", 2),
        ("${IOL}permute", "usage: permute WORD... (expected: 1 to 12 words)\n", 2),
        ("echo x | ${IOL}cat >/dev/full", "iol_write: No space left on device\n", 1),
        ("${IOL}cat .", "iol_read: Is a directory\n", 1),
    ];
    for (line, message, code) in wrong {
        let output = shell(line, &folder, Path::new("none"));
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(errors.ends_with(message), "{line}: {errors}");
        assert_eq!(output.status.code(), Some(code), "{line}");
    }
}
