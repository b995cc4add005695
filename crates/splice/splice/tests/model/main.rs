//! Complete random transfers over a modelled kernel. For all behaviour of peers, readers and the
//! kernel, every byte arrives or is returned exactly once, every end is reported exactly once, and
//! no transfer waits forever.
//!
//! SEEDS=20000 runs that many seeds, SEED=7 one.

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
        let _report = SeedReport(seed);
        let mut model_run = ModelRun::new(seed);
        model_run.run();
        model_run.finish();
        model_run.check();
    }
}

/// Prints the seed if the test panics.
struct SeedReport(u64);

impl Drop for SeedReport {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("seed {}", self.0);
        }
    }
}
