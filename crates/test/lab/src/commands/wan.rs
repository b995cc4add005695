//! `wan`: carries packets between two network namespaces as a wide area network would.

use std::io::pipe;
use std::os::fd::AsFd;
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use millrace_lab::wan::carrier::{Carrier, Counts};
use millrace_lab::wan::emulator::Emulator;
use millrace_lab::wan::link::LinkSettings;
use millrace_lab::wan::settings::PathSettings;
use millrace_lab::wan::{link, settings};
use millrace_sys::{Signal, Signals};

use crate::commands::fail;

const USAGE: &str = "\
Usage: millrace-lab wan --clients LINK --servers LINK [OPTION]...
Makes a device wan0 in each of two network namespaces, and carries packets between them until
SIGTERM or SIGINT. Each connection has a queue and a rate of its own. Needs root.
  --clients LINK   the link of the clients
  --servers LINK   the link of the servers
  --path PATH      the path in both directions; later options change it
  --up PATH        the path to the servers
  --down PATH      the path to the clients
  --seed N         the seed of all draws [default: 1]
";

/// The arguments of the command.
struct WanOptions {
    clients: LinkSettings,
    servers: LinkSettings,
    up: PathSettings,
    down: PathSettings,
    seed: u64,
}

/// Runs the command with its arguments.
pub(crate) fn run(mut arguments: impl Iterator<Item = String>) -> ExitCode {
    let options = match parse(&mut arguments) {
        Ok(Some(options)) => options,
        Ok(None) => {
            print!("{USAGE}LINK is {}.\nPATH is {}.\n", link::ALLOWED, settings::ALLOWED);
            return ExitCode::SUCCESS;
        }
        Err(error) => return fail("wan", 2, error),
    };
    match carry(options) {
        Ok(counts) => {
            println!("wan: {counts}");
            ExitCode::SUCCESS
        }
        Err(error) => fail("wan", 1, error),
    }
}

/// Returns the options; `None` if help is wanted.
fn parse(arguments: &mut dyn Iterator<Item = String>) -> Result<Option<WanOptions>, String> {
    let (mut clients, mut servers, mut seed) = (None, None, 1);
    let (mut up, mut down) = (PathSettings::default(), PathSettings::default());
    while let Some(name) = arguments.next() {
        if name == "--help" {
            return Ok(None);
        }
        let value = arguments.next().ok_or_else(|| format!("{name} needs a value"))?;
        match name.as_str() {
            "--clients" => clients = Some(LinkSettings::parse(&value)?),
            "--servers" => servers = Some(LinkSettings::parse(&value)?),
            "--path" => {
                up.apply(&value)?;
                down.apply(&value)?;
            }
            "--up" => up.apply(&value)?,
            "--down" => down.apply(&value)?,
            "--seed" => {
                let wrong = |_| format!("--seed: {value:?} is no number");
                seed = value.parse().map_err(wrong)?;
            }
            _ => {
                let allowed = "--clients, --servers, --path, --up, --down, --seed, --help";
                return Err(format!("{name:?} is no option (expected: {allowed})"));
            }
        }
    }
    let needed = |name: &str| format!("{name} is needed");
    Ok(Some(WanOptions {
        clients: clients.ok_or_else(|| needed("--clients"))?,
        servers: servers.ok_or_else(|| needed("--servers"))?,
        up,
        down,
        seed,
    }))
}

fn carry(options: WanOptions) -> Result<Counts, String> {
    let signals = Signals::block().map_err(|error| format!("signals: {error}"))?;
    let clients = options.clients.open(&options.servers)?;
    let servers = options.servers.open(&options.clients)?;
    let emulator = Emulator::new(options.up, options.down, options.seed);
    let mut carrier = Carrier::new(clients, servers, emulator);
    let (end, ending) = pipe().map_err(|error| error.to_string())?;
    println!("wan: ready");
    thread::scope(|scope| {
        let carrier = scope.spawn(move || carrier.run(end.as_fd()));
        while !carrier.is_finished() {
            let signal = signals.wait(Duration::from_secs(1));
            if matches!(signal, Ok(Some(Signal::Terminate | Signal::Interrupt)) | Err(_)) {
                break;
            }
        }
        drop(ending);
        let counts = carrier.join().expect("the carrier has not panicked");
        counts.map_err(|error| error.to_string())
    })
}
