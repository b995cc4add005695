//! uselectd: loads the programs of user-level connection tracking and hands processes their memory.

use std::path::PathBuf;
use std::process::ExitCode;

use millrace_bpf::{Daemon, Error, Policy};
use rustix::thread::{CapabilitySet, CapabilitySets};

const USAGE: &str = "usage: uselectd [--socket PATH] [--allow-user UID]...
  --socket PATH      where processes ask; /run/uselectd.sock
  --allow-user UID   who may; root alone unless said";

fn main() -> ExitCode {
    if std::env::args().skip(1).any(|word| word == "--help") {
        println!("{USAGE}");
        return ExitCode::SUCCESS;
    }
    let (socket, policy) = match options(std::env::args().skip(1)) {
        Ok(options) => options,
        Err(mistake) => {
            eprintln!("uselectd: {mistake}\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    match serve(&socket, policy) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("uselectd: {error}");
            ExitCode::FAILURE
        }
    }
}

fn serve(socket: &std::path::Path, policy: Policy) -> Result<(), Error> {
    let mut daemon = Daemon::new(socket, policy)?;
    drop_privileges()?;
    eprintln!("uselectd: listening on unix:{}", socket.display());
    daemon.run()
}

fn options(mut words: impl Iterator<Item = String>) -> Result<(PathBuf, Policy), String> {
    let (mut socket, mut users) = (PathBuf::from(uselect::SOCKET), Vec::new());
    while let Some(word) = words.next() {
        let value = words.next().ok_or_else(|| format!("{word} wants a value"));
        match word.as_str() {
            "--socket" => socket = value?.into(),
            "--allow-user" => {
                let value = value?;
                let user = value.parse().map_err(|_| {
                    format!("--allow-user {value}: a user id is a number from 0 to 4294967295")
                })?;
                users.push(user);
            }
            _ => return Err(format!("{word} is no option")),
        }
    }
    if users.is_empty() {
        users.push(0);
    }
    Ok((socket, Policy { users }))
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
