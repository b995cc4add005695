//! The filters of examples/iolite: their output is that of the ordinary programs, with the daemon
//! and without it, with an ordinary program at either end of a pipe, and without libiolite.
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

#[path = "../../../uselect/uselect-c/tests/c/mod.rs"]
#[allow(dead_code, reason = "this test uses a part")]
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
use linked::{compile_example, flags};

/// The filters. `permute` has no ordinary program.
const NAMES: [&str; 4] = ["cat", "grep", "permute", "wc"];

/// Returns the path of a filter, with libiolite or without; all are compiled once.
fn filter(name: &str, has_library: bool) -> &'static Path {
    static COMPILED: OnceLock<[[PathBuf; 4]; 2]> = OnceLock::new();
    let compile_all = |prefix: &str, flags: &[String]| {
        let source = |name: &str| format!("examples/iolite/{name}.c");
        NAMES.map(|name| compile(&source(name), &format!("{prefix}-{name}"), flags))
    };
    let at = NAMES.iter().position(|of| *of == name).unwrap();
    let compiled = COMPILED.get_or_init(|| {
        [compile_all("ordinary", &["-DORDINARY".to_owned()]), compile_all("iolite", &flags())]
    });
    &compiled[usize::from(has_library)][at]
}

/// The files of a test, and the daemon, or none.
struct Place {
    folder: Folder,
    daemon: Option<Daemon>,
    /// The filters are those with libiolite.
    has_library: bool,
}

impl Place {
    /// Returns a place with the daemon, one without, and one for filters without libiolite.
    fn all(name: &str) -> [Self; 3] {
        [(true, true), (false, true), (false, false)].map(|(has_daemon, has_library)| {
            let folder = Folder::new(&format!("{name}-{has_daemon}-{has_library}"));
            let daemon = has_daemon.then(|| Daemon::start(&folder, &[]));
            let place = Self { folder, daemon, has_library };
            place.write("big", text(200_000).as_bytes());
            place.write("small", b"a line\nand the last one without an end");
            place.write("empty", b"");
            // One long line, and short ones with bytes of any value.
            let long = [&b"needle"[..], &[b'x'; 5 << 20], b"\nneedle\xff\x01\n\n\n"].concat();
            place.write("long", &long);
            place
        })
    }

    fn write(&self, name: &str, bytes: &[u8]) {
        std::fs::write(path(&self.folder, name), bytes).unwrap();
    }

    /// Runs a line of sh(1) in the folder. In it, `$cat` and the like are filters, if `is_ours`, or
    /// the ordinary programs; `$our_cat` and `$their_cat` are always one of them.
    fn run(&self, line: &str, is_ours: bool) -> Output {
        let mut command = Command::new("sh");
        command.args(["-c", line]).current_dir(&self.folder.0).env("LC_ALL", "C");
        for name in NAMES {
            let ours = filter(name, self.has_library);
            command.env(name, if is_ours { ours } else { Path::new(name) });
            command.env(format!("our_{name}"), ours).env(format!("their_{name}"), name);
        }
        let socket = self.daemon.as_ref().map_or(Path::new("/no/socket"), |of| &of.socket);
        command.env("IOLITED_SOCKET", socket).stdin(Stdio::null());
        command.output().unwrap()
    }

    /// Asserts that a line of filters has the output and the exit status of ordinary programs.
    /// Returns the output. The padding of numbers by wc(1) does not count.
    fn assert_same(&self, line: &str) -> Output {
        let (ours, theirs) = (self.run(line, true), self.run(line, false));
        let normal = |output: &Output| match line.contains("wc") {
            true => words(&output.stdout),
            false => output.stdout.clone(),
        };
        assert!(normal(&ours) == normal(&theirs), "{line}: {ours:.300?}\n{theirs:.300?}");
        assert_eq!(ours.status, theirs.status, "{line}");
        ours
    }
}

/// Returns the words of each line, with one space between them.
fn words(text: &[u8]) -> Vec<u8> {
    let text = String::from_utf8_lossy(text);
    let line = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
    text.lines().map(line).collect::<Vec<_>>().join("\n").into_bytes()
}

/// Returns lines of text. A needle is in one of about 50.
fn text(lines: u64) -> String {
    let (mut text, mut state) = (String::new(), 1_u64);
    for number in 0..lines {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        let (indent, word) = ((state >> 60) as usize, state >> 40);
        let needle = if word.is_multiple_of(50) { "needle" } else { "" };
        writeln!(text, "{:indent$}{number}\tword {word:x} {needle}", "").unwrap();
    }
    text
}

#[test]
fn filters_of_files_have_the_output_of_ordinary_programs() {
    for place in Place::all("filters-files") {
        for file in ["big", "small", "empty", "long"] {
            for line in [
                format!("$cat {file}"),
                format!("$cat < {file}"),
                format!("$cat {file} small - {file} < small"),
                format!("$grep -aF needle {file}"),
                format!("$grep -aF needle < {file}"),
                format!("$grep -aF e {file}"),
                format!("$grep -aF '' {file}"),
                format!("$grep -aF -- -none {file}"),
                format!("$wc -lc {file}"),
                format!("$wc -l < {file}"),
                format!("$wc -c {file} small empty"),
            ] {
                place.assert_same(&line);
            }
        }
        let counted = place.assert_same("$wc big small - < small");
        assert_eq!(counted.stdout.iter().filter(|byte| **byte == b'\n').count(), 4);
        if let Some(daemon) = &place.daemon {
            // The filters have read the files from its memory.
            let long = std::fs::metadata(path(&place.folder, "long")).unwrap().len();
            assert!(daemon.memory().0 >= long);
        }
    }
}

#[test]
fn filters_in_pipes_have_the_output_of_ordinary_programs() {
    for place in Place::all("filters-pipes") {
        for line in [
            "$cat big | $wc",
            "$cat big | $grep -aF needle",
            "$cat big long big | $grep -aF needle | $wc -lc",
            "$cat big | $cat | $cat | cksum",
            "$their_cat big | $wc",
            "$cat big | $their_wc",
            "$their_cat big | $grep -aF needle",
            "$cat big | $their_grep -aF needle | $cat",
            "(cat big; $cat long; cat big) | $cat | cksum",
            "$cat big big big | (head -c 100000 | cksum)",
            "$cat empty | $wc",
        ] {
            place.assert_same(line);
        }
    }
}

#[test]
fn permute_prints_each_permutation_once() {
    for place in Place::all("filters-permute") {
        let printed = place.run("$permute a b '' c", true);
        let mut lines: Vec<&[u8]> = printed.stdout.split_inclusive(|byte| *byte == b'\n').collect();
        assert_eq!(lines.len(), 24);
        lines.sort_unstable();
        let short = ["abc\n", "acb\n", "bac\n", "bca\n", "cab\n", "cba\n"];
        assert_eq!(lines, short.map(|line| [line.as_bytes(); 4]).concat());
        // 8! lines of 8 words of 4 bytes.
        let eight = "one_ two_ thre four five six_ seve nine";
        for wc in ["$our_wc", "$their_wc"] {
            let counted = place.run(&format!("$permute {eight} | {wc}"), true);
            assert_eq!(words(&counted.stdout), b"40320 40320 1330560");
        }
        let different = place.run(&format!("$permute {eight} | sort -u | $our_wc -l"), true);
        assert_eq!(words(&different.stdout), b"40320");
    }
}

#[test]
fn errors_name_the_file_or_the_option() {
    let [with_daemon, without_daemon, _] = Place::all("filters-errors");
    for place in [with_daemon, without_daemon] {
        for (line, status, error) in [
            ("$cat none small", 1, "iolite-cat: none: No such file or directory\n"),
            ("$cat / small", 1, "iolite-cat: /: Is a directory\n"),
            ("$cat small > /dev/full", 1, "iolite-cat: write error: no space on the device"),
            ("$cat -n small", 1, "invalid option -- 'n'\niolite-cat: usage: cat [FILE]...\n"),
            ("$wc none small", 1, "iolite-wc: none: No such file or directory\n"),
            ("$wc / small", 1, "iolite-wc: /: Is a directory\n"),
            ("$wc small > /dev/full", 1, "iolite-wc: write error: No space left on device\n"),
            ("$wc -x", 1, "invalid option -- 'x'\niolite-wc: usage: wc [-clw] [FILE]...\n"),
            ("$grep e none", 2, "iolite-grep: none: No such file or directory\n"),
            ("$grep -x e", 2, "'x'\niolite-grep: usage: grep [-aF] STRING [FILE]\n"),
            ("$grep", 2, "iolite-grep: usage: grep [-aF] STRING [FILE]\n"),
            ("$grep 'a\nb' small", 2, "(expected: one line)\n"),
            ("$grep e small > /dev/full", 2, "iolite-grep: write error: no space on the device"),
        ] {
            let ours = place.run(line, true);
            let message = String::from_utf8_lossy(&ours.stderr);
            assert!(message.contains(error), "{line}: {message}");
            assert_eq!(ours.status.code(), Some(status), "{line}");
            // Options differ on purpose.
            if !line.contains(" -") && !line.contains('\'') {
                assert_eq!(place.run(line, false).status.code(), Some(status), "{line}");
            }
        }
        assert_eq!(place.run("$permute", true).status.code(), Some(1));
    }
}

#[test]
fn the_filter_of_the_man_page_converts_all_bytes() {
    let program = compile_example("iol_write.3");
    for place in Place::all("man-page").into_iter().filter(|place| place.has_library) {
        std::fs::copy(&program, path(&place.folder, "upper")).unwrap();
        for line in
            ["./upper < big", "./upper < small", "./upper < empty", "./upper < long | ./upper"]
        {
            let converted = place.run(&format!("{line} | cksum"), true);
            let name = line.split(' ').nth(2).unwrap();
            let expected = place.run(&format!("LC_ALL=C tr a-z A-Z < {name} | cksum"), false);
            assert!(converted.status.success() && converted.stderr.is_empty(), "{converted:?}");
            assert_eq!(converted.stdout, expected.stdout, "{line}");
        }
    }
}
