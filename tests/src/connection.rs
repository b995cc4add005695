//! Whole connections through the proxy in the simulator, made from the bytes of a fuzzer. The bytes
//! define the requests of one client, the responses of the origin, how both are split, and when
//! each side ends.
//!
//! The checks are those of the hostile corpus for the real program (`corpus/`). The origin sees
//! only requests with one meaning, and the client only responses with one meaning. Each side sees
//! only bytes that the other side sent. Every wait ends, nothing leaks, nothing panics.

mod actors;
mod check;
mod script;

use std::cell::RefCell;
use std::sync::Arc;
use std::time::Duration;

use millrace_config::{self as config, Config, ListenAddress};
use millrace_dns::ResolverConfig;
use millrace_engine::{Address, mailbox, mailbox_mesh};
use millrace_proxy::{Setup, SharedState, Worker, WorkerMessage};
use millrace_sim::{Faults, RunOutcome, World, run};
use millrace_splice::Thresholds;

pub use script::{HOST, OWN, encode_case};

use crate::corpus::literal::Role;
use crate::simulated::RunningWorker;
use actors::{Actors, address};
use script::Script;

/// Limit of a connection in virtual time, beyond every deadline of the configuration.
const TIME: Duration = Duration::from_secs(120);

/// The shortest limits that do not end an exchange that makes progress.
const LIMITS: [&str; 17] = [
    "connections=8",
    "fields=64",
    "response_fields=80",
    "request_head_bytes=4096",
    "response_head_bytes=4096",
    "target_bytes=1024",
    "head_ms=2000",
    "idle_ms=2000",
    "body_ms=2000",
    "send_ms=2000",
    "connect_ms=1000",
    "first_byte_ms=2000",
    "response_ms=2000",
    "tunnel_idle_ms=2000",
    "origin_idle_ms=2000",
    "name_ms=500",
    "drain_ms=4000",
];

/// Plays a connection described by arbitrary bytes (`script.rs` has their format).
///
/// # Panics
/// Panics if a check fails. The message says which.
pub fn fuzz_connection(data: &[u8]) {
    let script = Script::parse(data);
    let faults = if script.has_faults { Faults::Benign } else { Faults::None };
    let world = World::new(script.seed, faults);
    let mut actors = Actors::new(&world, &script);
    let config = configuration(script.role);
    let (mut outbox, inbox) = mailbox(4);
    let mail = mailbox_mesh(1, 4).pop().expect("one worker's mail");
    let shared = SharedState::new(1, "millrace".to_owned(), None, None, |_| {}, None);
    let listener = world.listen(&Address::Tcp(address(OWN)));
    let setup = Setup {
        config,
        index: 0,
        listeners: vec![(0, listener)],
        inbox,
        mail,
        shared,
        names: Arc::new(ResolverConfig::parse(b"", b"", &[])),
        verifier: millrace_proxy::auth::VerifierHandle::unavailable(),
        descriptors: 64,
        thresholds: Thresholds::FIXED,
    };
    let engine = world.engine(1 << 20);
    let worker = Worker::new(engine, setup).expect("the engine takes the listener");
    let mut running = RunningWorker(worker);
    let over = actors.over.clone();
    let ended = run(&world, &mut [&mut running], &mut [&mut actors], TIME, &mut |_| over.get());
    assert_eq!(
        ended,
        RunOutcome::Done,
        "the client's connection does not end{}",
        describe(&world, &actors)
    );
    assert!(outbox.send(WorkerMessage::Drain).is_ok(), "the mailbox has room for a message");
    outbox.flush();
    let ended = run(&world, &mut [&mut running], &mut [&mut actors], TIME, &mut |_| false);
    assert_eq!(ended, RunOutcome::Done, "the worker does not drain{}", describe(&world, &actors));
    let live = running.0.live_objects();
    assert_eq!(live, [0; 4], "objects are left{}", describe(&world, &actors));
    drop(running.0.finish());
    actors.close(&world);
    let leaks = world.leaks();
    assert!(leaks.is_empty(), "left behind: {leaks:?}{}", describe(&world, &actors));
    if let Err(why) = check::check(&script, &actors) {
        panic!("{why}{}", describe(&world, &actors));
    }
}

/// Describes the run for the message of a failure.
fn describe(world: &World, actors: &Actors) -> String {
    format!("\n{}\n{}", world.trace(), actors.state())
}

/// Returns the configuration of a role, made once per thread: parsing it would take longer than
/// most runs. It has no cache, because the checks cover only what passes through.
fn configuration(role: Role) -> Arc<Config> {
    thread_local! {
        static MADE: RefCell<Vec<(Role, Arc<Config>)>> = const { RefCell::new(Vec::new()) };
    }
    MADE.with(|made| {
        let made = &mut *made.borrow_mut();
        if let Some((_, config)) = made.iter().find(|(other, _)| *other == role) {
            return config.clone();
        }
        let mut words = match role {
            Role::Boost => {
                vec!["boost".to_owned(), "--origin".to_owned(), format!("http://{HOST}")]
            }
            Role::Forward => vec!["forward".to_owned()],
        };
        for word in ["--listen", OWN, "--workers", "1", "--access-log", "off", "--no-cache"] {
            words.push(word.to_owned());
        }
        for limit in LIMITS {
            words.extend(["--limit".to_owned(), limit.to_owned()]);
        }
        let config = config::from_arguments(words).unwrap_or_else(|wrong| panic!("{wrong}"));
        let listens = &config.listeners[0].address;
        assert!(matches!(listens, ListenAddress::Tcp(it) if *it == address(OWN)), "{listens}");
        let config = Arc::new(config);
        made.push((role, config.clone()));
        config
    })
}
