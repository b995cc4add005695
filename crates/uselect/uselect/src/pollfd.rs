//! `PollFd`: an entry of poll(2) and upoll.

/// An entry of a wait; `struct pollfd` of poll(2).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(C)]
pub struct PollFd {
    /// The descriptor; a negative one is skipped.
    pub fd: i32,
    /// The requested events, as bits of poll(2). Errors and hang-ups are always reported.
    pub events: u16,
    /// The events that are ready.
    pub revents: u16,
}
