//! The structures of `include/uselect.h`, which documents their fields. The layouts must be equal
//! byte by byte: the header asserts the sizes of its structures, this module those of its own and
//! the offsets that padding could change.

use std::ffi::c_char;
use std::mem::{align_of, offset_of, size_of};

use libc::{epoll_event, pollfd};
use uselect::PollFd;

/// `USELECT_BACKEND_AUTO`.
pub(crate) const BACKEND_AUTO: u32 = 0;
/// `USELECT_BACKEND_BPF`.
pub(crate) const BACKEND_BPF: u32 = 1;
/// `USELECT_BACKEND_MULTISHOT`.
pub(crate) const BACKEND_MULTISHOT: u32 = 2;
/// `USELECT_BACKEND_CALLS`.
pub(crate) const BACKEND_CALLS: u32 = 3;

/// `USELECT_MODE_EXACT`.
pub(crate) const MODE_EXACT: u32 = 0;
/// `USELECT_MODE_LEAN`.
pub(crate) const MODE_LEAN: u32 = 1;

/// `struct uselect_options`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CInitOptions {
    pub(crate) socket: *const c_char,
    pub(crate) backend: u32,
    pub(crate) mode: u32,
}

/// `struct uselect_info`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CSocketInfo {
    pub(crate) events: u32,
    pub(crate) edges: u32,
    pub(crate) readable: u32,
    pub(crate) send_space: u32,
    pub(crate) cwnd: u32,
    pub(crate) rtt_us: u32,
}

/// `struct uepoll_counted_event`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CCountedEvent {
    pub(crate) data: u64,
    pub(crate) events: u32,
    pub(crate) edges: u32,
}

/// `struct uselect_stats`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CStats {
    pub(crate) waits: u64,
    pub(crate) without_syscall: u64,
    pub(crate) sleeps: u64,
}

const _: () = {
    // Sets of select(2) and the shared memory use words of 64 bits.
    assert!(size_of::<usize>() == 8);
    assert!(size_of::<CInitOptions>() == 16);
    assert!(size_of::<CSocketInfo>() == 24);
    assert!(size_of::<CCountedEvent>() == 16);
    assert!(size_of::<CStats>() == 24);
    assert!(offset_of!(CInitOptions, backend) == 8);
    assert!(offset_of!(CCountedEvent, events) == 8);
    // `struct pollfd` is used as a `PollFd`.
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
            ("USELECT_BACKEND_AUTO", BACKEND_AUTO),
            ("USELECT_BACKEND_BPF", BACKEND_BPF),
            ("USELECT_BACKEND_MULTISHOT", BACKEND_MULTISHOT),
            ("USELECT_BACKEND_CALLS", BACKEND_CALLS),
            ("USELECT_MODE_EXACT", MODE_EXACT),
            ("USELECT_MODE_LEAN", MODE_LEAN),
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
