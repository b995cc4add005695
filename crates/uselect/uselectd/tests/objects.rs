//! That what is loaded is what the sources say, that both sides mean the same memory, and what the
//! kernel's verifier has to do.

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
    DOUBT, PROBES, REGIONS, ReadOnlyPages, SLEEPERS, SOCKETS, SleeperFlag, SocketNumbers, THREADS,
    ThreadSlot, WritablePages,
};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("programs")
}

#[test]
fn the_object_was_built_from_these_sources() {
    let made = std::fs::read_to_string(folder().join("../objects/uselect.made")).unwrap();
    let mut compared = 0;
    for line in made.lines() {
        let Some((sum, name)) = line.split_once("  ") else { continue };
        let mut found = String::new();
        for byte in Sha256::digest(std::fs::read(folder().join(name)).unwrap()) {
            write!(found, "{byte:02x}").unwrap();
        }
        assert_eq!(found, sum, "{name} has changed: scripts/bpf-objects builds the object anew");
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

/// The number of files in C, not in subdirectories.
fn count_sources(path: &Path) -> usize {
    let entries = std::fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path());
    entries.filter(|path| path.extension().is_some_and(|end| end == "h" || end == "c")).count()
}

#[test]
fn both_sides_have_the_same_layout() {
    let fields = [
        ("uselect_shown, generations", offset_of!(ReadOnlyPages, generations)),
        ("uselect_shown, word", offset_of!(ReadOnlyPages, word)),
        ("uselect_shown, numbers", offset_of!(ReadOnlyPages, numbers)),
        ("uselect_numbers, room", offset_of!(SocketNumbers, room)),
        ("uselect_numbers, window", offset_of!(SocketNumbers, window)),
        ("uselect_numbers, rtt_us", offset_of!(SocketNumbers, rtt_us)),
        ("uselect_sleeper, changed_words", offset_of!(SleeperFlag, changed_words)),
        ("uselect_slot, armed", offset_of!(ThreadSlot, armed)),
        ("uselect_slot, taken", offset_of!(ThreadSlot, taken)),
        ("uselect_slot, generation", offset_of!(ThreadSlot, generation)),
        ("uselect_own, active", offset_of!(WritablePages, active)),
        ("uselect_own, read", offset_of!(WritablePages, read)),
        ("uselect_own, write", offset_of!(WritablePages, write)),
        ("uselect_own, except", offset_of!(WritablePages, except)),
        ("uselect_own, changed", offset_of!(WritablePages, changed)),
        ("uselect_own, descriptor", offset_of!(WritablePages, descriptor)),
        ("uselect_own, index", offset_of!(WritablePages, index)),
        ("uselect_own, interest", offset_of!(WritablePages, interest)),
        ("uselect_own, threshold", offset_of!(WritablePages, threshold)),
        ("uselect_own, slot", offset_of!(WritablePages, slot)),
    ];
    let mut asserted = String::from("#include \"layout.h\"\n");
    let mut expect = |what: &str, number: usize| {
        writeln!(asserted, "_Static_assert({what} == {number}, \"{what}\");").unwrap();
    };
    for (field, offset) in fields {
        expect(&format!("__builtin_offsetof(struct {field})"), offset);
    }
    expect("sizeof(struct uselect_shown)", size_of::<ReadOnlyPages>());
    expect("sizeof(struct uselect_sleeper)", size_of::<SleeperFlag>());
    expect("sizeof(struct uselect_own)", size_of::<WritablePages>());
    expect("USELECT_SOCKETS", SOCKETS);
    expect("USELECT_THREADS", THREADS);
    expect("USELECT_PROBES", PROBES);
    expect("USELECT_REGIONS", REGIONS as usize);
    expect("USELECT_SLEEPERS", SLEEPERS);
    expect("USELECT_DOUBT", DOUBT as usize);
    let source = std::env::temp_dir().join(format!("uselect-layout-{}.c", std::process::id()));
    std::fs::write(&source, asserted).unwrap();
    let mut compiler = Command::new("cc");
    compiler.arg("-fsyntax-only").arg("-I").arg(folder()).arg(&source);
    let output = compiler.output().unwrap();
    std::fs::remove_file(&source).unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// Instructions that the verifier goes through, by all ways through a program together. The kernel
/// refuses from a million on (since Linux 5.2; other versions count somewhat more or less), and each
/// start of the daemon takes that long.
const VERIFIED_MAX: u32 = 30_000;

#[test]
fn the_verifier_is_soon_through() {
    // Of several daemons on the machine ours is a thread here.
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
        // Since Linux 5.16.
        verified.insert(name, program.verified_instruction_count().unwrap());
    }
    let source = std::fs::read_to_string(folder().join("uselect.bpf.c")).unwrap();
    let programs = source.lines().filter(|line| line.starts_with("SEC(")).count();
    assert_eq!(verified.len(), programs, "{verified:?}");
    assert!(verified.values().all(|count| *count < VERIFIED_MAX), "{verified:?}");
}
