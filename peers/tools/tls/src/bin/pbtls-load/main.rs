//! `pbtls-load`: closed loop and fixed rate over TLS, as `pbload` does without.

#![forbid(unsafe_code)]

mod client;
mod counts;
mod options;
mod request;
mod tickets;

use std::io;
use std::num::NonZeroU64;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use pbtls::provider::{Pinned, certificates, provider};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustls::ClientConfig;
use rustls::client::Resumption;

use client::{Client, Phase};
use options::{HELP, Options};
use request::Requests;
use tickets::Tickets;

fn main() -> ExitCode {
    if std::env::args().any(|word| word == "--help") {
        println!("{HELP}");
        return ExitCode::SUCCESS;
    }
    let options = match Options::parse(std::env::args().skip(1)) {
        Ok(options) => options,
        Err(error) => {
            eprintln!("pbtls-load: {error}");
            return ExitCode::from(2);
        }
    };
    match run(options) {
        Ok(0) => ExitCode::SUCCESS,
        Ok(_) => ExitCode::from(3),
        Err(error) => {
            eprintln!("pbtls-load: {error}");
            ExitCode::from(3)
        }
    }
}

/// Makes all phases. Returns the number of errors.
fn run(options: Options) -> io::Result<u64> {
    let limit = getrlimit(Resource::Nofile).maximum;
    setrlimit(Resource::Nofile, Rlimit { current: limit, maximum: limit })?;
    // Events at a fixed rate are due at once.
    rustix::thread::set_current_timer_slack(NonZeroU64::new(1))?;
    if options.verifies {
        pbtls::stream::stream();
    }
    let config = config(&options)?;
    // No URL of an earlier run, as a cache may have it.
    let first = SystemTime::now().duration_since(UNIX_EPOCH).map_err(io::Error::other)?;
    let requests = Requests::new(&options, options.set_up_bytes, first.as_nanos() as u64);
    let (is_driven, sets_up, resets) = (options.is_driven, options.sets_up, options.resets);
    let count = options.connections;
    let mut phase =
        Phase { rate: options.rate, seconds: options.seconds, active: count, spins: false };
    let mut client = Client::new(options, config, requests)?;
    if sets_up {
        client.set_up()?;
    }
    let mut errors = 0;
    loop {
        if is_driven {
            eprintln!("warm");
            let mut line = String::new();
            if io::stdin().read_line(&mut line)? == 0 {
                break;
            }
            if let Some(bytes) = change(&mut phase, &line, count) {
                client.set_size(bytes);
            }
        }
        errors += client.phase(phase)?;
        if !is_driven {
            break;
        }
    }
    if resets {
        client.reset();
    }
    Ok(errors)
}

/// Applies a line "RATE SECONDS [ACTIVE [BYTES [SPIN]]]". Returns BYTES unless it is 0.
fn change(phase: &mut Phase, line: &str, count: usize) -> Option<usize> {
    let mut words = line.split_whitespace().map(|word| word.parse::<f64>().unwrap_or(0.0));
    phase.rate = words.next().unwrap_or(phase.rate);
    phase.seconds = words.next().unwrap_or(phase.seconds);
    phase.active = match words.next().unwrap_or(0.0) as usize {
        active if active > 0 && active <= count => active,
        _ => count,
    };
    let bytes = words.next().unwrap_or(0.0) as usize;
    phase.spins = words.next().unwrap_or(0.0) != 0.0;
    (bytes > 0).then_some(bytes)
}

fn config(options: &Options) -> io::Result<ClientConfig> {
    let provider = provider(vec![options.group]);
    let certificate = certificates(&options.certificate)?.swap_remove(0);
    let verifier = Pinned { certificate, provider: Arc::clone(&provider) };
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(io::Error::other)?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier))
        .with_no_client_auth();
    config.resumption = if options.resumes {
        Resumption::store(Arc::new(Tickets::default()))
    } else {
        Resumption::disabled()
    };
    Ok(config)
}
