//! Counts the instructions that a request costs in the stages of the proxy. Fixed scripts run over
//! the simulator under callgrind, and the counts are compared with the baseline
//! (docs/measuring/cost.md).
//!
//! Then it counts messages at half and at full size, to check that the work for them is linear.
//!
//! Without arguments it does both. `--accept` writes the baseline, `--linear` does only the second
//! part. `play SCRIPT COUNT` and `play-linear` run under callgrind.

mod count;
mod linear;
mod play;
mod script;

use std::process::ExitCode;

use millrace_tests::counts::{self, Table, Verdict};

fn main() -> ExitCode {
    // Cargo passes `--bench` to every bench.
    let words: Vec<String> = std::env::args().skip(1).filter(|word| word != "--bench").collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words[..] {
        [] => {
            let codes = [compare(false), linear::check()];
            let failed = codes.into_iter().find(|code| *code != ExitCode::SUCCESS);
            failed.unwrap_or(ExitCode::SUCCESS)
        }
        ["--accept"] => compare(true),
        ["--linear"] => linear::check(),
        [linear::PLAY] => linear::play(),
        ["play", name, exchanges] => play_one(name, exchanges),
        _ => {
            eprintln!("icount: unknown arguments (expected: none, --accept or --linear)");
            ExitCode::from(2)
        }
    }
}

fn play_one(name: &str, exchanges: &str) -> ExitCode {
    let scripts = script::all();
    let script = scripts.iter().find(|script| script.name == name).expect("a script's name");
    play::play(script, exchanges.parse().expect("a number of exchanges"));
    ExitCode::SUCCESS
}

/// Counts every script, then compares the counts with the baseline or replaces it.
fn compare(accept: bool) -> ExitCode {
    let maker = match count::maker() {
        Ok(maker) => maker,
        Err(why) => {
            println!("icount: skipped: {why}");
            return ExitCode::SUCCESS;
        }
    };
    let counted = match count::count(&script::all()) {
        Ok(rows) => Table { maker, rows },
        Err(why) => {
            eprintln!("icount: {why}");
            return ExitCode::FAILURE;
        }
    };
    let baseline = Table::read();
    print!("{}", counts::report(&baseline, &counted));
    if accept {
        counted.write();
        println!("icount: the baseline is updated; commit it");
        return ExitCode::SUCCESS;
    }
    match counts::verdict(&baseline, &counted) {
        Verdict::WithinTolerance => ExitCode::SUCCESS,
        Verdict::Incomparable => {
            println!("icount: not compared: another toolchain made the baseline");
            println!("  baseline: {}\n  here:     {}", baseline.maker, counted.maker);
            ExitCode::SUCCESS
        }
        Verdict::TooExpensive => {
            eprintln!(
                "icount: more than {} % above the baseline, or other rows",
                counts::TOLERANCE_PERCENT
            );
            eprintln!("  find out why (docs/measuring/cost.md), or: make icount ACCEPT=1");
            ExitCode::FAILURE
        }
    }
}
