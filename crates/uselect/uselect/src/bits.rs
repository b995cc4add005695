//! Event bits of poll(2), which are those of epoll(7). The eBPF programs write the same bits.

/// POLLIN: bytes can be received, or a connection accepted.
pub const IN: u32 = 0x001;
/// POLLPRI: urgent data.
pub const PRI: u32 = 0x002;
/// POLLOUT: there is send space.
pub const OUT: u32 = 0x004;
/// POLLERR: an error; always reported.
pub const ERR: u32 = 0x008;
/// POLLHUP: both directions have ended; always reported.
pub const HUP: u32 = 0x010;
/// POLLNVAL: the descriptor is not open (poll(2) only).
pub const NVAL: u32 = 0x020;
/// POLLRDNORM: like [`IN`].
pub const RDNORM: u32 = 0x040;
/// POLLWRNORM: like [`OUT`].
pub const WRNORM: u32 = 0x100;
/// POLLRDHUP: the peer has ended its direction.
pub const RDHUP: u32 = 0x2000;

/// EPOLLEXCLUSIVE: an event wakes one or more, not necessarily all, of the epoll instances that
/// contain the descriptor. A [`crate::Watcher`] passes the descriptor to its epoll instance.
pub const EXCLUSIVE: u32 = 1 << 28;
/// EPOLLWAKEUP: an event keeps the machine awake until it is processed. A [`crate::Watcher`] passes
/// the descriptor to its epoll instance.
pub const WAKEUP: u32 = 1 << 29;
/// EPOLLONESHOT: a descriptor is reported once, until it is modified.
pub const ONESHOT: u32 = 1 << 30;
/// EPOLLET: a descriptor is reported once for each event.
pub const EDGE: u32 = 1 << 31;

/// Bits that are reported even if they are not requested.
pub(crate) const ALWAYS_REPORTED: u32 = ERR | HUP;
/// Bits that mean that a read would not block.
pub(crate) const READABLE: u32 = IN | RDNORM;
/// Bits that mean that a write would not block.
pub(crate) const WRITABLE: u32 = OUT | WRNORM;
