//! Random transfers over loopback connections, sixteen at a time, with random sizes, limits,
//! pieces, aborts, half closes, unsplices and slow readers. Every byte is compared, also those that
//! the application forwards after an unsplice. At the end, no descriptor may be left open. The
//! splicer runs only when poll(2) reports its descriptor, so a missing wake-up stalls a transfer
//! forever.
//!
//! With ORIGIN_NAMESPACE and CLIENT_NAMESPACE, files for setns(2), the peers are in these network
//! namespaces and reach this process at ORIGIN_SIDE and CLIENT_SIDE.
//!
//! TRANSFERS=10000 runs that many transfers; SEED=7 starts with another seed. A seed determines the
//! requests, but not the timing of the kernel.

mod peer;
mod peer_host;
mod stress_transfer;

use millrace_splice::{Linux, Splicer};
use peer_host::PeerHost;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use stress_transfer::{Splices, StressTransfer};

const TRANSFERS: u64 = 200;
const CONCURRENT: usize = 16;
const PIPES_MAX: usize = 8;

#[test]
fn transfers_over_loopback() {
    let number = |name: &str, otherwise| {
        std::env::var(name).map_or(otherwise, |text| text.parse().expect("a number"))
    };
    let first = number("SEED", 0);
    let mut seeds = first..first + number("TRANSFERS", TRANSFERS);
    let hosts = ["ORIGIN", "CLIENT"].map(PeerHost::of);
    let before = millrace_sys::descriptor_count().unwrap();
    // With so few pipes, some bytes are copied.
    let mut splicer: Splices = Splicer::new(Linux::new().unwrap(), PIPES_MAX);
    let mut transfers: Vec<StressTransfer> = Vec::new();
    loop {
        while transfers.len() < CONCURRENT {
            let Some(seed) = seeds.next() else { break };
            transfers.push(StressTransfer::new(seed, &hosts, &mut splicer));
        }
        if transfers.is_empty() {
            break;
        }
        for transfer in &mut transfers {
            transfer.step(&mut splicer);
        }
        // The peers are on this thread, so a wait has to be short.
        let wait_ms = i64::from(transfers.iter().all(StressTransfer::is_waiting));
        if is_readable(&splicer, wait_ms) {
            splicer.forward(Some(0)).unwrap();
            while let Some(notice) = splicer.next_notice() {
                let transfer =
                    transfers.iter_mut().find(|transfer| transfer.has_handle(notice.handle()));
                transfer.expect("the transfer is running").handle_notice(notice);
            }
        }
        transfers.retain_mut(|transfer| !transfer.finish(&mut splicer));
    }
    let (open, free) = splicer.pipes();
    assert_eq!((splicer.transfers(), free), (0, open), "no transfer holds a pipe");
    drop(splicer);
    let after = millrace_sys::descriptor_count().unwrap();
    assert_eq!(after, before, "every descriptor is closed");
}

/// Returns whether the splicer has work within `wait_ms`.
fn is_readable(splicer: &Splices, wait_ms: i64) -> bool {
    let fd = splicer.fd();
    let wait = Timespec { tv_sec: 0, tv_nsec: wait_ms * 1_000_000 };
    poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&wait)).expect("the descriptor is open") > 0
}
