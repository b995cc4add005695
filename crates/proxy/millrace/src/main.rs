//! millrace, the program: command line, supervision of the workers, the admin address, `doctor`
//! and `demo`. What happens to a request is in `millrace-proxy`.
#![forbid(unsafe_code)]

mod admin;
mod beginning;
mod cache;
mod cache_cli;
mod cache_metrics;
mod calibrate;
mod command;
mod config_source;
mod congestion;
mod demo;
mod demo_site;
mod disks;
mod doctor;
mod engines;
mod errands;
mod failure;
mod finding;
mod health_checks;
mod hot_bodies;
mod http;
mod inherited;
mod listeners;
mod metrics;
mod outages;
mod posts;
mod preflight;
mod print;
mod privileges;
mod reload;
mod reloads;
mod restart;
mod rings;
mod supervisor;
mod systemd;
mod takeover;
mod threads;
mod thresholds;
mod tracking;
mod users;
mod verifier;
mod worker_pool;

use std::process::ExitCode;

fn main() -> ExitCode {
    match command::run(std::env::args_os()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            print::error(&failure.to_string());
            ExitCode::from(failure.status())
        }
    }
}
