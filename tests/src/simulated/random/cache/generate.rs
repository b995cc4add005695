//! Generates the cache scenario of a seed.

use millrace_disk::SimFaults;
use millrace_sim::{Faults, SeededRandom};

use super::{
    CacheClientPlan, CacheControl, CacheRequest, CacheScenario, CachedResponsePlan, DiskPlan,
};
use crate::simulated::plan::{BodyFraming, Break, BreakKind, HeaderSyntax, Reader};
use crate::simulated::{TlsFault, TlsPlan};

const fn cache_control(
    text: &'static str,
    fresh_s: u64,
    stale_s: u64,
    private: bool,
) -> CacheControl {
    CacheControl { text, fresh_s, stale_s, private }
}

/// The Cache-Control values of responses.
const CONTROLS: [CacheControl; 13] = [
    cache_control("max-age=600", 600, 0, false),
    cache_control("max-age=600", 600, 0, false),
    cache_control("max-age=600", 600, 0, false),
    cache_control("max-age=5", 5, 0, false),
    cache_control("max-age=0", 0, 0, false),
    cache_control("max-age=1, s-maxage=20", 20, 0, false),
    cache_control("no-store", 0, 0, true),
    cache_control("private, max-age=600", 0, 0, true),
    cache_control("max-age=5, stale-while-revalidate=20", 5, 20, false),
    cache_control("max-age=5, stale-if-error=60", 5, 60, false),
    cache_control("max-age=5, must-revalidate", 5, 0, false),
    cache_control("no-cache", 0, 0, false),
    cache_control("public", 0, 0, false),
];

/// Returns the scenario of `seed`.
pub fn random_cache_scenario(seed: u64) -> CacheScenario {
    let mut random = SeededRandom::new(seed ^ 0x4341_4348_4553_4545);
    let worlds = [Faults::None, Faults::Benign, Faults::Benign, Faults::Benign, Faults::Hostile];
    let world = random.choose(&worlds);
    let is_calm = random.chance(400);
    let mut draw = CacheGenerator { random, is_calm, next: 0, urls: 1 };
    let urls = draw.random.between(1, 4) as usize;
    draw.urls = urls;
    let plans = (0..urls).map(|_| draw.url()).collect();
    let clients = draw.random.between(1, 8);
    let client_plans = (0..clients).map(|_| draw.client()).collect();
    let drain_ms = draw.random.chance(100).then(|| draw.random.between(0, 3000));
    let disk = draw.disk();
    let often = if disk.is_some() { 700 } else { 50 };
    let kills = if draw.random.chance(often) { draw.random.between(1, 3) } else { 0 };
    let last = draw.random.choose(&[3000, 30_000]);
    let mut kills_ms: Vec<u64> = (0..kills).map(|_| draw.random.between(0, last)).collect();
    kills_ms.sort_unstable();
    let mut scenario = CacheScenario {
        seed,
        world,
        workers: draw.random.between(1, 3) as usize,
        secured: false,
        origin_tls: None,
        options: draw.options(),
        responses: plans,
        clients: client_plans,
        drain_ms,
        kills_ms,
        disk,
    };
    secure(&mut scenario, is_calm);
    scenario
}

/// Draws the TLS of a scenario, from a random sequence of its own.
fn secure(scenario: &mut CacheScenario, is_calm: bool) {
    let mut random = SeededRandom::new(scenario.seed ^ 0x5345_4355_5245_4453);
    scenario.secured = random.chance(300);
    let mut plan = || TlsPlan {
        old: random.chance(200),
        updates_keys: random.chance(300),
        ..TlsPlan::default()
    };
    scenario.clients.iter_mut().for_each(|client| client.tls = plan());
    let origin_tls = plan();
    let is_faulty = random.chance(400) && !is_calm;
    let fault = is_faulty.then_some(TlsFault::UnannouncedEnd);
    scenario.origin_tls = random.chance(300).then_some(TlsPlan { fault, ..origin_tls });
}

struct CacheGenerator {
    random: SeededRandom,
    /// Whether nothing breaks off and no client leaves early.
    is_calm: bool,
    /// The id of the last generated request.
    next: u32,
    urls: usize,
}

impl CacheGenerator {
    fn options(&mut self) -> Vec<String> {
        let object = self.random.choose(&[20_000, 1 << 30, 1 << 30]);
        let ahead = self.random.choose(&[65_536, 1 << 20]);
        let memory = self.random.choose(&["4M", "8M", "8M"]);
        let mut options = vec![
            format!("--limit=object_bytes={object}"),
            format!("--limit=fill_ahead_bytes={ahead}"),
            format!("--cache-memory={memory}"),
            "--limit=first_byte_ms=10s".to_owned(),
            "--limit=response_ms=10s".to_owned(),
        ];
        if self.random.chance(300) {
            options.push("--cache-finish=off".to_owned());
        }
        if self.random.chance(200) {
            let ms = self.random.choose(&[0, 100, 120_000]);
            options.push(format!("--limit=uncacheable_ms={ms}"));
        }
        if self.random.chance(200) {
            let ms = self.random.choose(&[0, 100, 20_000]);
            options.push(format!("--limit=collapse_wait_ms={ms}"));
        }
        options
    }

    fn disk(&mut self) -> Option<DiskPlan> {
        if !self.random.chance(400) {
            return None;
        }
        let fails = self.random.chance(300) && !self.is_calm;
        let one_in = |random: &mut SeededRandom| random.choose(&[0, 3, 30]);
        let bytes = self.random.choose(&[1 << 20, 8 << 20]);
        Some(DiskPlan {
            bytes,
            capacity: if self.random.chance(100) { bytes / 4 } else { 2 * bytes },
            faults: SimFaults {
                short: one_in(&mut self.random) as u32,
                read_errors: if fails { one_in(&mut self.random) as u32 } else { 0 },
                write_errors: if fails { one_in(&mut self.random) as u32 } else { 0 },
            },
            rereads: self.random.chance(400),
            loses_power: !self.is_calm && self.random.chance(400),
            flips: !self.is_calm && self.random.chance(300),
        })
    }

    fn url(&mut self) -> Vec<CachedResponsePlan> {
        let varies = self.random.chance(300);
        let one = self.cache_control();
        let changes = self.random.chance(400);
        let count = self.random.between(1, 5);
        let plan = |draw: &mut Self| CachedResponsePlan {
            cache_control: if changes { draw.cache_control() } else { one },
            varies: if draw.random.chance(50) { !varies } else { varies },
            ..draw.response()
        };
        (0..count).map(|_| plan(self)).collect()
    }

    fn cache_control(&mut self) -> CacheControl {
        self.random.choose(&CONTROLS)
    }

    fn response(&mut self) -> CachedResponsePlan {
        let max = self.random.choose(&[10, 5000, 50_000, 600_000]);
        let length = self.random.length(max) - 1;
        let size = self.random.length(70_000).max(16);
        let step = self.random.choose(&[100, 5000]);
        let every = self.random.between(1, 20);
        let how = self.random.choose(&[
            BreakKind::Finish,
            BreakKind::Close,
            BreakKind::Reset,
            BreakKind::Stop,
        ]);
        let at = self.random.length(60_000) - 1;
        let breaks = self.random.chance(120) && !self.is_calm && length > 0;
        let drips = self.random.chance(200) && length / step < 300;
        CachedResponsePlan {
            cache_control: CONTROLS[0],
            status: self.random.choose(&[200, 200, 200, 200, 200, 200, 404, 500, 503]),
            tagged: self.random.chance(600),
            varies: false,
            confirms: self.random.chance(600),
            length,
            frame: match self.random.below(10) {
                0..=5 => BodyFraming::Length,
                6..=8 => BodyFraming::Chunks(size),
                _ => BodyFraming::UntilClose,
            },
            delay_ms: self.random.choose(&[0, 0, 1, 50, 1000, 4000]),
            drip: drips.then_some((step, every)),
            breaks: breaks.then_some(Break { at, how }),
            form: HeaderSyntax::of(length + size + at),
        }
    }

    fn client(&mut self) -> CacheClientPlan {
        let begins = self.random.choose(&[0, 0, 0, 20, 3000, 30_000]);
        let count = self.random.between(1, 6);
        let pipelined = self.random.chance(200);
        let mut requests: Vec<CacheRequest> = (0..count).map(|_| self.request(pipelined)).collect();
        // The proxy closes a client that connects and sends nothing.
        requests[0].pause_ms = 0;
        let bytes = self.random.choose(&[4096, 60_000]);
        let every = self.random.between(1, 100);
        let after = self.random.length(50_000) - 1;
        let stall = self.random.choose(&[50, 1500, 9_000]);
        let leaves = self.random.length(100_000);
        CacheClientPlan {
            tls: TlsPlan::default(),
            begins_ms: self.random.between(0, begins),
            reader: match self.random.below(10) {
                0 | 1 => Reader::Slow(bytes, every),
                2 => Reader::Stalls(after, stall),
                _ => Reader::Eager,
            },
            pipelined,
            requests,
            leaves: (!self.is_calm && self.random.chance(150)).then_some(leaves),
        }
    }

    fn request(&mut self, pipelined: bool) -> CacheRequest {
        self.next += 1;
        let method = match self.random.below(20) {
            0 | 1 => "HEAD",
            2 => "POST",
            _ => "GET",
        };
        let cache_control = match self.random.below(20) {
            0 => "no-cache",
            1 => "max-age=0",
            2 => "only-if-cached",
            3 => "no-store",
            4 => "max-stale",
            _ => "",
        };
        // Bodies have up to 600,000 bytes, so some ranges begin far behind the bytes received so
        // far.
        let max = self.random.choose(&[20_000, 20_000, 600_000]);
        let first = self.random.length(max) - 1;
        let last = first + self.random.length(20_000) - 1;
        let range = method == "GET" && self.random.chance(200);
        let pause = self.random.choose(&[0, 0, 0, 100, 2000, 12_000, 40_000]);
        CacheRequest {
            id: self.next,
            method,
            url: self.random.below(self.urls as u64) as usize,
            language: self.random.below(2) as u8,
            cache_control: if method == "POST" { "" } else { cache_control },
            range: range.then_some((first, last)),
            pause_ms: if pipelined { 0 } else { self.random.between(0, pause) },
        }
    }
}
