//! The program millrace: command line, supervision of the workers, admin server, `doctor` and
//! `demo`. The crate `millrace-proxy` handles requests.
#![forbid(unsafe_code)]

mod acme;
mod active_config;
mod admin;
mod cache;
mod cache_cli;
mod cache_metrics;
mod calibrate;
mod certificates;
mod cgi;
mod cgi_folders;
mod command;
mod config_source;
mod congestion;
mod console;
mod demo;
mod demo_site;
mod disks;
mod doctor;
mod engines;
mod file_stamps;
mod finding;
mod folders;
mod health_checks;
mod hot_bodies;
mod http;
mod inherited_sockets;
mod listeners;
mod metrics;
mod outages;
mod panics;
mod pipeline_tests;
mod preflight;
mod privileges;
mod program_error;
mod reload_counters;
mod ring_reservation;
mod splice_thresholds;
mod startup;
mod supervisor;
mod supervisor_requests;
mod systemd;
mod takeover;
mod threads;
mod uploads;
mod uselectd_watch;
mod users;
mod verifier;
mod worker_mailboxes;
mod worker_pool;

use std::process::ExitCode;

fn main() -> ExitCode {
    let words: Vec<_> = std::env::args_os().collect();
    if let Some(status) = millrace_cgi::run_if_launcher(&words, cgi_folders::find) {
        return ExitCode::from(status);
    }
    match command::run(words) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            console::log(&error.to_string());
            ExitCode::from(error.exit_status())
        }
    }
}
