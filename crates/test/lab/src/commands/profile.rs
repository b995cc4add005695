//! `profile`: prints where the CPU time of a process, cgroup, core or network namespace goes.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use millrace_lab::profile::{ALLOWED, Profile, Profiler, Selection};
use millrace_sys::{Signal, Signals};

use crate::commands::fail;

const USAGE: &str = "\
Usage: millrace-lab profile SELECTION [--seconds S]
Measures where CPU time goes, until SIGTERM or SIGINT, and prints it. Needs root.
  --seconds S   end after this time, such as 2 or 0.5
";

/// The arguments of the command.
struct ProfileOptions {
    selection: Selection,
    time: Option<Duration>,
}

/// Runs the command with its arguments.
pub(crate) fn run(mut arguments: impl Iterator<Item = String>) -> ExitCode {
    let options = match parse(&mut arguments) {
        Ok(Some(options)) => options,
        Ok(None) => {
            println!("{USAGE}SELECTION is {ALLOWED}.");
            return ExitCode::SUCCESS;
        }
        Err(error) => return fail("profile", 2, error),
    };
    match measure(&options) {
        Ok(profile) => {
            print!("{profile}");
            ExitCode::SUCCESS
        }
        Err(error) => fail("profile", 1, error),
    }
}

/// Returns the options; `None` if help is wanted.
fn parse(arguments: &mut dyn Iterator<Item = String>) -> Result<Option<ProfileOptions>, String> {
    let (mut selection, mut time) = (None, None);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--help" => return Ok(None),
            "--seconds" => {
                let value = arguments.next().ok_or("--seconds needs a value")?;
                let seconds = value.parse().ok().map(Duration::try_from_secs_f64);
                let Some(Ok(seconds)) = seconds else {
                    return Err(format!("--seconds: {value:?} is no time"));
                };
                time = Some(seconds);
            }
            option if option.starts_with('-') => {
                let allowed = "--seconds, --help";
                return Err(format!("{option:?} is no option (expected: {allowed})"));
            }
            _ if selection.is_none() => selection = Some(Selection::parse(&argument)?),
            _ => return Err(format!("{argument:?} is too much (expected: one selection)")),
        }
    }
    let selection = selection.ok_or("a selection is needed (expected: pid:NUMBER or the like)")?;
    Ok(Some(ProfileOptions { selection, time }))
}

fn measure(options: &ProfileOptions) -> Result<Profile, String> {
    let signals = Signals::block().map_err(|error| format!("signals: {error}"))?;
    let profiler = Profiler::start(&options.selection)?;
    eprintln!("profile: measuring");
    let begun = Instant::now();
    loop {
        let left = options.time.map_or(Duration::MAX, |time| time.saturating_sub(begun.elapsed()));
        if left.is_zero() {
            break;
        }
        let signal = signals.wait(left.min(Duration::from_secs(1)));
        if matches!(signal, Ok(Some(Signal::Terminate | Signal::Interrupt)) | Err(_)) {
            break;
        }
    }
    profiler.stop()
}
