//! uselectd: loads the programs of user-level connection tracking and hands processes their memory.

mod options;

use std::os::fd::AsFd;
use std::process::ExitCode;

use millrace_bpf::{Daemon, Error, ending_signals};
use options::{Options, help};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::thread::{CapabilitySet, CapabilitySets};

fn main() -> ExitCode {
    if std::env::args_os().skip(1).any(|word| word == "--help") {
        print!("{}", help());
        return ExitCode::SUCCESS;
    }
    let options = match Options::parse(std::env::args_os().skip(1)) {
        Ok(options) => options,
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

fn serve(options: Options) -> Result<(), Error> {
    let end = ending_signals()?;
    allow_descriptors();
    let mut daemon = Daemon::new(&options.socket, options.policy)?;
    drop_privileges()?;
    eprintln!("uselectd: listening on unix:{}", options.socket.display());
    daemon.run_until(end.as_fd())
}

/// A process has up to seven: what is usual, 1,024, is less than all of them together.
fn allow_descriptors() {
    let limits = getrlimit(Resource::Nofile);
    // What is not allowed stays as it is; who finds no room is told so.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limits.maximum, ..limits });
}

/// Keeps what registering takes: maps and programs, tracing, and cgroups' programs.
fn drop_privileges() -> Result<(), Error> {
    let wanted = CapabilitySet::BPF | CapabilitySet::PERFMON | CapabilitySet::NET_ADMIN;
    let kept = rustix::thread::capabilities(None)?.permitted & wanted;
    let sets =
        CapabilitySets { effective: kept, permitted: kept, inheritable: CapabilitySet::empty() };
    rustix::thread::set_no_new_privs(true)?;
    Ok(rustix::thread::set_capabilities(None, sets)?)
}
