//! uselectd(8): the daemon of user-level connection tracking.

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
        Err(error) => {
            eprintln!("uselectd: {error}");
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

/// Writes help or version to standard output. A closed pipe is no error, because a reader may stop
/// early.
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
    let shutdown = block_termination_signals()?;
    raise_fd_limit();
    let mut daemon = Daemon::new(&options.socket, options.policy)?;
    drop_privileges()?;
    eprintln!("uselectd: listening on unix:{}", options.socket.display());
    daemon.run(Some(shutdown.as_fd()))
}

/// Raises the soft limit of descriptors to the hard limit. A client takes up to seven descriptors,
/// so all clients together need more than the usual soft limit of 1,024.
fn raise_fd_limit() {
    let limits = getrlimit(Resource::Nofile);
    // If the limit cannot be raised, the daemon replies `Failed` when descriptors run out.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limits.maximum, ..limits });
}
