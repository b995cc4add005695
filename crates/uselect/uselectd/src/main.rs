//! uselectd: loads the programs of user-level connection tracking and hands processes their memory.

mod options;

use std::io::{ErrorKind, Write};
use std::os::fd::AsFd;
use std::process::ExitCode;

use options::{DaemonOptions, Invocation};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use uselectd::{Daemon, Error, block_termination_signals, check_privileges, drop_privileges};

fn main() -> ExitCode {
    let options = match DaemonOptions::parse(std::env::args_os().skip(1)) {
        Ok(Invocation::Serve(options)) => options,
        Ok(Invocation::Print(text)) => return print(&text),
        Err(mistake) => {
            eprintln!("uselectd: {mistake}");
            return ExitCode::from(2);
        }
    };
    match serve(options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("uselectd: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Writes help or version to standard output. A reader may close its pipe early; any other failure
/// is an error.
fn print(text: &str) -> ExitCode {
    let mut output = std::io::stdout().lock();
    match output.write_all(text.as_bytes()).and_then(|()| output.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            eprintln!("uselectd: cannot write to standard output: {error}");
            ExitCode::FAILURE
        }
        _ => ExitCode::SUCCESS,
    }
}

fn serve(options: DaemonOptions) -> Result<(), Error> {
    check_privileges()?;
    let end = block_termination_signals()?;
    raise_fd_limit();
    let mut daemon = Daemon::new(&options.socket, options.policy)?;
    drop_privileges()?;
    eprintln!("uselectd: listening on unix:{}", options.socket.display());
    daemon.run(Some(end.as_fd()))
}

/// A process has up to seven: what is usual, 1,024, is less than all of them together.
fn raise_fd_limit() {
    let limits = getrlimit(Resource::Nofile);
    // What is not allowed stays as it is; who finds no room is told so.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limits.maximum, ..limits });
}
