//! millrace, the program: command line, supervision of the workers, the admin address, `doctor`
//! and `demo`. What happens to a request is in `millrace-proxy`.
#![forbid(unsafe_code)]

mod admin;
mod ask;
mod beginning;
mod calibrate;
mod command;
mod congestion;
mod crew;
mod demo;
mod disks;
mod doctor;
mod engines;
mod errands;
mod failure;
mod finding;
mod health_checks;
mod host;
mod http;
mod inherited;
mod listeners;
mod metrics;
mod outages;
mod posts;
mod privileges;
mod reload;
mod reloads;
mod restart;
mod rings;
mod say;
mod site;
mod source;
mod storage;
mod stored;
mod supervisor;
mod systemd;
mod takeover;
mod threads;
mod thresholds;
mod tracking;
mod users;
mod verifier;

use std::process::ExitCode;

fn main() -> ExitCode {
    match command::run(std::env::args_os()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            say::error(&failure.to_string());
            ExitCode::from(failure.status())
        }
    }
}
