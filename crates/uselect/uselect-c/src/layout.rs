//! The structures of `include/uselect.h`, which describes each field. C and Rust have to agree on
//! them byte by byte: the header asserts the sizes of its side, this module those of ours, and the
//! places of the fields that only padding could move.

use std::ffi::c_char;
use std::mem::{align_of, offset_of, size_of};

use libc::{epoll_event, pollfd};
use uselect::PollFd;

/// `USELECT_BACKEND_AUTO`.
pub(crate) const AUTO: u32 = 0;
/// `USELECT_BACKEND_BPF`.
pub(crate) const BPF: u32 = 1;
/// `USELECT_BACKEND_MULTISHOT`.
pub(crate) const MULTISHOT: u32 = 2;
/// `USELECT_BACKEND_CALLS`.
pub(crate) const CALLS: u32 = 3;

/// `USELECT_MODE_EXACT`.
pub(crate) const EXACT: u32 = 0;
/// `USELECT_MODE_LEAN`.
pub(crate) const LEAN: u32 = 1;

/// `struct uselect_options`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Options {
    pub(crate) socket: *const c_char,
    pub(crate) backend: u32,
    pub(crate) mode: u32,
}

/// `struct uselect_info`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Info {
    pub(crate) events: u32,
    pub(crate) edges: u32,
    pub(crate) readable: u32,
    pub(crate) room: u32,
    pub(crate) window: u32,
    pub(crate) rtt_us: u32,
}

/// `struct uselect_change`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Change {
    pub(crate) data: u64,
    pub(crate) events: u32,
    pub(crate) edges: u32,
}

/// `struct uselect_stats`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Stats {
    pub(crate) waits: u64,
    pub(crate) without_call: u64,
    pub(crate) sleeps: u64,
}

const _: () = {
    // Sets of select(2) are made of words of this size, and regions too.
    assert!(size_of::<usize>() == 8);
    assert!(size_of::<Options>() == 16);
    assert!(size_of::<Info>() == 24);
    assert!(size_of::<Change>() == 16);
    assert!(size_of::<Stats>() == 24);
    assert!(offset_of!(Options, backend) == 8);
    assert!(offset_of!(Change, events) == 8);
    // C's entries of poll(2) are taken as the library's.
    assert!(size_of::<PollFd>() == size_of::<pollfd>());
    assert!(align_of::<PollFd>() == align_of::<pollfd>());
    assert!(offset_of!(PollFd, events) == offset_of!(pollfd, events));
    assert!(offset_of!(PollFd, revents) == offset_of!(pollfd, revents));
    assert!(offset_of!(epoll_event, events) == 0);
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_header_has_the_same_constants() {
        let header = include_str!("../include/uselect.h");
        for (name, value) in [
            ("USELECT_BACKEND_AUTO", AUTO),
            ("USELECT_BACKEND_BPF", BPF),
            ("USELECT_BACKEND_MULTISHOT", MULTISHOT),
            ("USELECT_BACKEND_CALLS", CALLS),
            ("USELECT_MODE_EXACT", EXACT),
            ("USELECT_MODE_LEAN", LEAN),
        ] {
            let line = format!("  {name} = {value}, //");
            let is_there = |found: &str| found.split_whitespace().eq(line.split_whitespace());
            let starts = |text: &str| text.find("//").is_some_and(|at| is_there(&text[..at + 2]));
            assert!(header.lines().any(starts), "{line}");
        }
        let default = format!("NULL: {}", uselect::DEFAULT_SOCKET);
        assert!(header.contains(&default), "{default}");
    }
}
