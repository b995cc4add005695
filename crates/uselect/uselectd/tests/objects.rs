//! The committed object matches its sources, both sides have the same memory layout, and the
//! verifier has little work.

#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

mod common;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::mem::offset_of;
use std::path::{Path, PathBuf};
use std::process::Command;

use aya::programs::{ProgramInfo, loaded_programs};
use sha2::{Digest, Sha256};
use uselect::Backend;
use uselect::layout::{
    PROBES, REGIONS, ReadOnlyPages, SLEEPERS, SOCKETS, SleeperFlag, SocketNumbers, THREADS,
    ThreadSlot, UNCERTAIN, WritablePages,
};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("programs")
}

#[test]
fn the_object_matches_its_sources() {
    let made = std::fs::read_to_string(folder().join("../objects/uselect.made")).unwrap();
    let mut compared = 0;
    for line in made.lines() {
        let Some((sum, name)) = line.split_once("  ") else { continue };
        let mut found = String::new();
        for byte in Sha256::digest(std::fs::read(folder().join(name)).unwrap()) {
            write!(found, "{byte:02x}").unwrap();
        }
        assert_eq!(found, sum, "{name} has changed: run scripts/bpf-objects");
        compared += 1;
    }
    let headers = folder().join("libbpf/bpf");
    let sources = [folder(), headers].map(|path| count_sources(&path)).iter().sum::<usize>();
    assert_eq!(compared, sources + 1, "the sources and the object");
    let script = folder().join("../../../../scripts/bpf-objects");
    let output = Command::new(script).arg("--check").output().unwrap();
    print!("{}", String::from_utf8_lossy(&output.stdout));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// Returns the number of C files in a directory, without subdirectories.
fn count_sources(path: &Path) -> usize {
    let entries = std::fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path());
    entries.filter(|path| path.extension().is_some_and(|end| end == "h" || end == "c")).count()
}

#[test]
fn both_sides_have_the_same_layout() {
    let fields = [
        ("uselect_read_only_pages, generations", offset_of!(ReadOnlyPages, generations)),
        ("uselect_read_only_pages, word", offset_of!(ReadOnlyPages, word)),
        ("uselect_read_only_pages, numbers", offset_of!(ReadOnlyPages, numbers)),
        ("uselect_socket_numbers, send_space", offset_of!(SocketNumbers, send_space)),
        ("uselect_socket_numbers, cwnd", offset_of!(SocketNumbers, cwnd)),
        ("uselect_socket_numbers, rtt_us", offset_of!(SocketNumbers, rtt_us)),
        ("uselect_sleeper, changed_words", offset_of!(SleeperFlag, changed_words)),
        ("uselect_thread_slot, armed", offset_of!(ThreadSlot, armed)),
        ("uselect_thread_slot, taken", offset_of!(ThreadSlot, taken)),
        ("uselect_thread_slot, generation", offset_of!(ThreadSlot, generation)),
        ("uselect_writable_pages, active", offset_of!(WritablePages, active)),
        ("uselect_writable_pages, read", offset_of!(WritablePages, read)),
        ("uselect_writable_pages, write", offset_of!(WritablePages, write)),
        ("uselect_writable_pages, except", offset_of!(WritablePages, except)),
        ("uselect_writable_pages, changed", offset_of!(WritablePages, changed)),
        ("uselect_writable_pages, descriptor", offset_of!(WritablePages, descriptor)),
        ("uselect_writable_pages, index", offset_of!(WritablePages, index)),
        ("uselect_writable_pages, interest", offset_of!(WritablePages, interest)),
        ("uselect_writable_pages, threshold", offset_of!(WritablePages, threshold)),
        ("uselect_writable_pages, slot", offset_of!(WritablePages, slot)),
    ];
    let mut source_text = String::from("#include \"layout.h\"\n");
    let mut assert_equal = |expression: &str, value: usize| {
        writeln!(source_text, "_Static_assert({expression} == {value}, \"{expression}\");")
            .unwrap();
    };
    for (field, offset) in fields {
        assert_equal(&format!("__builtin_offsetof(struct {field})"), offset);
    }
    assert_equal("sizeof(struct uselect_read_only_pages)", size_of::<ReadOnlyPages>());
    assert_equal("sizeof(struct uselect_sleeper)", size_of::<SleeperFlag>());
    assert_equal("sizeof(struct uselect_writable_pages)", size_of::<WritablePages>());
    assert_equal("USELECT_SOCKETS", SOCKETS);
    assert_equal("USELECT_THREADS", THREADS);
    assert_equal("USELECT_PROBES", PROBES);
    assert_equal("USELECT_REGIONS", REGIONS as usize);
    assert_equal("USELECT_SLEEPERS", SLEEPERS);
    assert_equal("USELECT_UNCERTAIN", UNCERTAIN as usize);
    let source = std::env::temp_dir().join(format!("uselect-layout-{}.c", std::process::id()));
    std::fs::write(&source, source_text).unwrap();
    let mut compiler = Command::new("cc");
    compiler.arg("-fsyntax-only").arg("-I").arg(folder()).arg(&source);
    let output = compiler.output().unwrap();
    std::fs::remove_file(&source).unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// Limit of the instructions that the verifier processes on all paths of a program together. The
/// kernel rejects a program at one million (since Linux 5.2), and each start of the daemon waits
/// for the verifier. The counts differ a little between versions of the kernel.
const VERIFIED_MAX: u32 = 30_000;

#[test]
fn programs_stay_below_the_verifier_budget() {
    // The daemon is a thread of this process, so its programs can be distinguished from those of
    // other daemons.
    if common::tracker().is_none_or(|tracker| tracker.backend() == Backend::Multishot) {
        return;
    }
    let infos = std::fs::read_dir("/proc/self/fdinfo").unwrap().flatten();
    let id = |info: String| {
        info.lines().find_map(|line| line.strip_prefix("prog_id:")?.trim().parse().ok())
    };
    let ours: Vec<u32> =
        infos.filter_map(|entry| id(std::fs::read_to_string(entry.path()).ok()?)).collect();
    let is_ours = |program: &ProgramInfo| ours.contains(&program.id());
    let mut verified = BTreeMap::new();
    for program in loaded_programs().flatten().filter(is_ours) {
        let name = program.name_as_str().unwrap().to_owned();
        // The kernel reports the count since Linux 5.16.
        verified.insert(name, program.verified_instruction_count().unwrap());
    }
    let source = std::fs::read_to_string(folder().join("uselect.bpf.c")).unwrap();
    let programs = source.lines().filter(|line| line.starts_with("SEC(")).count();
    assert_eq!(verified.len(), programs, "{verified:?}");
    assert!(verified.values().all(|count| *count < VERIFIED_MAX), "{verified:?}");
}
