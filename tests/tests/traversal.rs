//! Files that must not be sent, requested from the real program in many forms, on each engine.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::env;
use std::fs;

use millrace_tests::corpus::random::Random;
use millrace_tests::real;
use millrace_tests::traversal::{PUBLIC, Server, Site, WITHHELD, target};

/// The results of a run.
#[derive(Default)]
struct Counts {
    statuses: BTreeMap<u16, u64>,
    public: u64,
    /// Targets whose responses have a content of [`WITHHELD`].
    leaks: Vec<String>,
}

/// Requests random targets.
fn attack(server: &Server, seed: u64, targets: u64) -> Counts {
    let mut counts = Counts::default();
    let mut connection = server.connect();
    for number in 0..targets {
        let mut random = Random::of(seed, number);
        let target = target(&mut random);
        let response = connection.get(&target);
        let name = || format!("SEED={seed}, {number}: {}", target.escape_ascii());
        let response = response.unwrap_or_else(|error| panic!("{}: {error}", name()));
        let text = String::from_utf8_lossy(&response.bytes);
        *counts.statuses.entry(response.status).or_default() += 1;
        counts.public += u64::from(text.contains(PUBLIC));
        if WITHHELD.iter().any(|content| text.contains(content)) {
            counts.leaks.push(name());
        }
        if response.closes {
            connection = server.connect();
        }
    }
    counts
}

fn number(name: &str) -> Option<u64> {
    env::var(name).ok().and_then(|text| text.parse().ok())
}

/// `MUTANTS` sets the number of targets, `SEED` the seed.
#[test]
fn no_target_reaches_a_file_that_must_not_be_sent() {
    let (seed, targets) = (number("SEED").unwrap_or(1), number("MUTANTS").unwrap_or(6_000));
    let site = Site::new("traversal");
    let folder = site.served().display().to_string();
    for engine in real::engines() {
        let server = Server::start(&[
            "serve",
            &folder,
            "--hide",
            "*.key",
            "--listing",
            "--listen",
            "127.0.0.1:0",
            "--engine",
            &engine,
        ]);
        let counts = attack(&server, seed, targets);
        println!(
            "attack: {engine}, {targets} paths of files, {} with a public file, by status {:?}",
            counts.public, counts.statuses
        );
        assert_eq!(counts.leaks, Vec::<String>::new());
        let of_status = |status| counts.statuses.get(&status).copied().unwrap_or_default();
        assert!(counts.public >= targets / 50, "a server that refuses everything shows nothing");
        for status in [400, 403, 404] {
            assert!(of_status(status) >= targets / 100, "{status}: {:?}", counts.statuses);
        }
    }
}

/// Proves that the check can fail: a server of the folder above, which withholds no program, sends
/// the files.
#[test]
fn a_server_that_withholds_nothing_is_detected() {
    let site = Site::new("traversal-open");
    let file = site.above().join("millrace.toml");
    let (above, served) = (site.above().display(), site.served().display().to_string());
    let text = format!(
        "[[serve]]\nlisten = \"127.0.0.1:0\"\nfolder = \"{served}\"\nprogram-extensions = []\n\
         allow-path = \"{above}\"\n"
    );
    fs::write(&file, text).unwrap();
    let server = Server::start(&["run", &file.display().to_string()]);
    let counts = attack(&server, 1, 2_000);
    for [what, path] in [["outside", "secret.txt"], ["program", "app.php"]] {
        let is_seen = counts.leaks.iter().any(|leak| leak.contains(path));
        assert!(is_seen, "{what}: {:?}", counts.leaks);
    }
}
