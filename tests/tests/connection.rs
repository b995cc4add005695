//! The fuzz target `connection` without a fuzzer, with the hostile corpus and its own corpus as
//! input.
#![forbid(unsafe_code)]

use std::path::Path;
use std::{env, fs};

use millrace_tests::connection::{encode_case, fuzz_connection};
use millrace_tests::corpus::case::{self, Case};
use millrace_tests::corpus::literal::Role;

fn cases() -> Vec<Case> {
    case::load(&Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus"))
}

/// Plays each case of the hostile corpus as a connection, in both roles. `CONNECTIONS` names a
/// folder to write them to, as seeds for a fuzzer.
#[test]
fn every_case_of_the_hostile_corpus_as_a_connection() {
    let folder = env::var_os("CONNECTIONS");
    let mut played = 0;
    for (index, case) in cases().iter().enumerate() {
        for role in [Role::Boost, Role::Forward].into_iter().filter(|role| case.runs(*role)) {
            for cut in [false, true] {
                let Some(script) = encode_case(case, role, cut) else { continue };
                if let Some(folder) = folder.as_ref().filter(|_| !cut) {
                    let file = Path::new(folder).join(format!("case-{index}-{role:?}"));
                    fs::write(file, &script).expect("the folder of CONNECTIONS can be written to");
                }
                println!("{} ({role:?})", case.name);
                fuzz_connection(&script);
                played += 1;
            }
        }
    }
    assert!(played > 1000, "only {played} cases are short enough");
}

#[test]
fn the_corpus_of_the_target() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus/connection");
    let files = fs::read_dir(folder).expect("the corpus is there");
    let mut files: Vec<_> = files.map(|file| file.expect("readable").path()).collect();
    files.sort();
    assert!(files.len() >= 10, "the corpus of the target is there");
    for file in files {
        println!("{}", file.display());
        fuzz_connection(&fs::read(file).expect("readable"));
    }
}
