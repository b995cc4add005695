//! Random transfers over connections of this machine, sixteen at a time: sizes, limits, pieces,
//! aborts of either side, half closes, unsplices at any moment, slow readers. Every byte is
//! compared, also those that the application carries on after an unsplice, and afterwards no
//! descriptor is open that was not before. The splicer has turns only when poll(2) says that its
//! descriptor is readable: where that is not said when it should be, a transfer stands for ever.
//!
//! With ORIGIN_NAMESPACE and CLIENT_NAMESPACE, files for setns(2), peers are there, from where we are
//! ORIGIN_SIDE and CLIENT_SIDE.
//!
//! TRANSFERS=10000 plays so many; SEED=7 begins with another seed. What the kernel does between two
//! calls is not ours to repeat: a seed gives the same questions, not the same answers.

mod peer;
mod peer_host;
mod stress_transfer;

use millrace_splice::{Linux, Splicer};
use peer_host::PeerHost;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use stress_transfer::{Splices, StressTransfer};

const TRANSFERS: u64 = 200;
const AT_A_TIME: usize = 16;
const PIPES_MAX: usize = 8;

#[test]
fn transfers_over_loopback() {
    let number = |name: &str, otherwise| {
        std::env::var(name).map_or(otherwise, |text| text.parse().expect("a number"))
    };
    let first = number("SEED", 0);
    let mut seeds = first..first + number("TRANSFERS", TRANSFERS);
    let places = ["ORIGIN", "CLIENT"].map(PeerHost::of);
    let before = millrace_sys::descriptor_count().unwrap();
    // Fewer pipes than could be used: some bytes are copied.
    let mut splicer: Splices = Splicer::new(Linux::new().unwrap(), PIPES_MAX);
    let mut lives: Vec<StressTransfer> = Vec::new();
    loop {
        while lives.len() < AT_A_TIME {
            let Some(seed) = seeds.next() else { break };
            lives.push(StressTransfer::new(seed, &places, &mut splicer));
        }
        if lives.is_empty() {
            break;
        }
        for life in &mut lives {
            life.step(&mut splicer);
        }
        // The peers are on this thread, too: they cannot be waited for any longer.
        let wait_ms = i64::from(lives.iter().all(StressTransfer::is_waiting));
        if is_readable(&splicer, wait_ms) {
            splicer.forward(Some(0)).unwrap();
            while let Some(notice) = splicer.next_notice() {
                let life = lives.iter_mut().find(|life| life.has_handle(notice.handle()));
                life.expect("it is alive").handle_notice(notice);
            }
        }
        lives.retain_mut(|life| !life.finish(&mut splicer));
    }
    let (open, free) = splicer.pipes();
    assert_eq!((splicer.transfers(), free), (0, open), "nobody holds a pipe");
    drop(splicer);
    let after = millrace_sys::descriptor_count().unwrap();
    assert_eq!(after, before, "every descriptor is closed");
}

/// Whether it is worth a turn, within so many milliseconds.
fn is_readable(splicer: &Splices, wait_ms: i64) -> bool {
    let fd = splicer.fd();
    let wait = Timespec { tv_sec: 0, tv_nsec: wait_ms * 1_000_000 };
    poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&wait)).expect("the descriptor is open") > 0
}
