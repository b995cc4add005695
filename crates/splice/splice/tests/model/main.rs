//! Whole lives of transfers over a modelled kernel, invented by seeds: whatever peers, readers and
//! the kernel do, every byte arrives or is given back, once, every end is told, once, and nobody
//! waits for ever.
//!
//! SEEDS=20000 plays so many, SEED=7 one.

mod check;
mod kernel;
mod model_run;

use model_run::ModelRun;

const SEEDS: u64 = 2000;

#[test]
fn transfers_over_a_modelled_kernel() {
    let number = |name| std::env::var(name).ok().map(|text| text.parse().expect("a number"));
    let seeds = match number("SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("SEEDS").unwrap_or(SEEDS),
    };
    for seed in seeds {
        let _told = SeedReport(seed);
        let mut play = ModelRun::new(seed);
        play.run();
        play.finish();
        play.check();
    }
}

/// Says which seed failed.
struct SeedReport(u64);

impl Drop for SeedReport {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("seed {}", self.0);
        }
    }
}
