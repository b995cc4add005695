//! Whole lives of transfers over a modelled kernel, invented by seeds: whatever peers, readers and
//! the kernel do, every byte arrives or is given back, once, every end is told, once, and nobody
//! waits for ever.
//!
//! SEEDS=20000 plays so many, SEED=7 one.

mod check;
mod kernel;
mod play;

use play::Play;

const SEEDS: u64 = 2000;

#[test]
fn transfers_over_a_modelled_kernel() {
    let number = |name| std::env::var(name).ok().map(|text| text.parse().expect("a number"));
    let seeds = match number("SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("SEEDS").unwrap_or(SEEDS),
    };
    for seed in seeds {
        let _told = Told(seed);
        let mut play = Play::new(seed);
        play.run();
        play.let_go();
        play.check();
    }
}

/// Says which seed failed.
struct Told(u64);

impl Drop for Told {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("seed {}", self.0);
        }
    }
}
