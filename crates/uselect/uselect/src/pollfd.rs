//! `PollFd`: what poll(2) and upoll are asked about a descriptor.

/// A descriptor of a wait: `struct pollfd` of poll(2).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(C)]
pub struct PollFd {
    /// Negative: to be passed over.
    pub fd: i32,
    /// What to look for, as poll(2) names it. Errors and hang-ups are always told.
    pub events: u16,
    /// What was found.
    pub revents: u16,
}
