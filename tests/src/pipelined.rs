//! The real program between real clients and origins, with pipelining to the origins. Some origins
//! miscount from the beginning, others do something wrong at a random response. Each client has to
//! get the response to its own request or a clean error, and no POST may arrive twice.

mod client;
mod message;
mod origin;
mod tally;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use millrace_sim::SeededRandom;

use crate::real::process::Process;
use client::run_client;
use origin::{Miscount, Origin, OriginPlan};

pub use tally::Tally;

/// Origins of a round. Two of them miscount in some rounds.
const ORIGINS: usize = 4;
/// Clients of a round. They are more than the connections to the origins, so that these are shared.
const CLIENTS: u64 = 40;
/// The time in which the program has to end.
const PATIENCE: Duration = Duration::from_secs(60);

/// Sends this number of requests through a new process, and to origins that `seed` determines.
///
/// # Errors
/// Describes a response that belongs to another request, or a POST that arrived twice.
pub fn play(program: &Path, engine: &str, seed: u64, requests: u32) -> Result<Tally, String> {
    let mut random = SeededRandom::new(seed);
    let origins: Vec<Arc<Origin>> = (0..ORIGINS)
        .map(|at| Origin::start(draw_plan(&mut random, at), random.below(u64::MAX)))
        .collect::<Result<_, String>>()?;
    let urls: Vec<String> = origins.iter().map(|it| format!("http://{}", it.address())).collect();
    let depth = random.between(2, 8).to_string();
    let connections = format!("origin_connections={}", random.choose(&[2, 2, 4]));
    let mut words: Vec<&str> = vec!["boost", "--origin"];
    let urls = urls.join(",");
    words.extend([&urls[..], "--origin-pipelining", &depth, "--check", "/check"]);
    words.extend(["--listen", "127.0.0.1:0", "--workers", "2", "--engine", engine]);
    for limit in [&connections[..], "pipeline_wait_ms=200", "queue_ms=30s", "check_interval_ms=1h"]
    {
        words.extend(["--limit", limit]);
    }
    let process = Process::start(program, words.iter().map(|&word| word.to_owned()), &[])?;
    origins.iter().try_for_each(|origin| origin.await_test())?;
    let next = AtomicU32::new(1);
    let (address, next) = (process.address(), &next);
    let results: Vec<Result<Tally, String>> = thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS)
            .map(|client| scope.spawn(move || run_client(address, next, requests, client ^ seed)))
            .collect();
        clients.into_iter().map(|it| it.join().expect("a client does not panic")).collect()
    });
    process.stop(PATIENCE)?;
    let mut tally = Tally::default();
    for result in results {
        tally += result.map_err(|why| format!("seed {seed}: {why}"))?;
    }
    for origin in &origins {
        origin.check().map_err(|why| format!("seed {seed}: {why}"))?;
        tally += Tally {
            // Relaxed: the threads that count have ended, or have nothing left to count.
            pipelined: origin.pipelined.load(Ordering::Relaxed),
            faults: origin.faults.load(Ordering::Relaxed),
            ..Tally::default()
        };
    }
    Ok(tally)
}

/// Draws how an origin behaves. The first one is always right, so that requests can be served.
fn draw_plan(random: &mut SeededRandom, at: usize) -> OriginPlan {
    let miscount = random.choose(&[Miscount::Swaps, Miscount::SendsTwo, Miscount::HeadHasBody]);
    let (miscounts, one_of) = (random.chance(300), random.choose(&[0, 50, 500]));
    match at {
        0 => OriginPlan { miscount: None, fault_one_of: 0 },
        _ if miscounts => OriginPlan { miscount: Some(miscount), fault_one_of: 0 },
        _ => OriginPlan { miscount: None, fault_one_of: one_of },
    }
}
