//! iolited(8): the shared file cache.
#![forbid(unsafe_code)]

mod access;
mod budget;
mod bytes;
mod cache;
mod daemon;
mod limits;
mod memory;
mod options;
mod packs;
mod pairs;
mod pressure;
mod public;
mod replacement;
mod session;
mod sizing;
mod streams;
mod users;

use std::io::{ErrorKind, Write};
use std::process::ExitCode;
use std::time::Duration;

use millrace_sys::{Signal, Signals};

use crate::daemon::Daemon;
use crate::options::{DaemonOptions, Invocation};

fn main() -> ExitCode {
    let options = match DaemonOptions::parse(std::env::args_os().skip(1)) {
        Ok(Invocation::Serve(options)) => options,
        Ok(Invocation::Print(text)) => return print(&text),
        Err(error) => {
            eprintln!("iolited: {error}");
            return ExitCode::from(2);
        }
    };
    match serve(&options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("iolited: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Writes help or version to standard output. A closed pipe is no error, because a reader may stop
/// early.
fn print(text: &str) -> ExitCode {
    let mut output = std::io::stdout().lock();
    match output.write_all(text.as_bytes()).and_then(|()| output.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            eprintln!("iolited: cannot write to standard output: {error}");
            ExitCode::FAILURE
        }
        _ => ExitCode::SUCCESS,
    }
}

/// Serves until SIGTERM or SIGINT. Nothing has to be saved: all that the cache has is in files.
fn serve(options: &DaemonOptions) -> Result<(), String> {
    let signals = Signals::block().map_err(|error| format!("signals: {error}"))?;
    millrace_sys::ignore_lease_signal();
    // If the limit cannot be raised, fewer pieces are cached.
    let _ = millrace_sys::raise_descriptor_limit();
    let daemon = Daemon::listen(options)?;
    eprintln!("iolited: listening on unix:{}", options.socket.display());
    loop {
        match signals.wait(Duration::from_secs(3600)) {
            Ok(Some(Signal::Terminate | Signal::Interrupt)) => break,
            Ok(_) => {}
            Err(error) => return Err(format!("signals: {error}")),
        }
    }
    daemon.close();
    Ok(())
}
