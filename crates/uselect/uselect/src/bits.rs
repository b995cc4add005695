//! Bits of poll(2), which are those of epoll(7), as the kernel's programs write them too.

/// There is something to be read, or a connection to be accepted.
pub const IN: u32 = 0x001;
/// Urgent data.
pub const PRI: u32 = 0x002;
/// There is room to send.
pub const OUT: u32 = 0x004;
/// An error; told though nobody asks.
pub const ERR: u32 = 0x008;
/// Nothing moves any more; told though nobody asks.
pub const HUP: u32 = 0x010;
/// It is not open (poll(2) alone).
pub const NVAL: u32 = 0x020;
/// As [`IN`].
pub const RDNORM: u32 = 0x040;
/// As [`OUT`].
pub const WRNORM: u32 = 0x100;
/// The peer sends nothing more.
pub const RDHUP: u32 = 0x2000;

/// How a [`crate::Watcher`] tells, as epoll_ctl(2) has it: by the kernel alone, and to one of those
/// that wait,
pub const EXCLUSIVE: u32 = 1 << 28;
/// by the kernel alone, and keeping the machine awake,
pub const WAKEUP: u32 = 1 << 29;
/// once, until it is changed,
pub const ONCE: u32 = 1 << 30;
/// each event once.
pub const EDGE: u32 = 1 << 31;

/// What is told though nobody asks.
pub(crate) const ALWAYS_REPORTED: u32 = ERR | HUP;
/// What says that a read would not wait, and a write.
pub(crate) const READABLE: u32 = IN | RDNORM;
pub(crate) const WRITABLE: u32 = OUT | WRNORM;
