//! `millrace-lab COMMAND`: instruments and comparisons for figures about millrace.

#![forbid(unsafe_code)]

use std::process::ExitCode;

mod commands;

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    match arguments.next().as_deref() {
        Some("eviction") => commands::eviction::run(arguments),
        Some("load") => commands::load::run(arguments),
        Some("profile") => commands::profile::run(arguments),
        Some("wan") => commands::wan::run(arguments),
        other => {
            let given = other.unwrap_or_default();
            let expected = "eviction, load, profile, wan";
            eprintln!("millrace-lab: {given:?} is no command (expected: {expected})");
            ExitCode::from(2)
        }
    }
}
