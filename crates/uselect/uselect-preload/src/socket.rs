//! The calls that open sockets, and those that change a socket in a way that no hook of the kernel
//! reports.

use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::slice;

use libc::{cmsghdr, msghdr, sockaddr, sockaddr_storage, socklen_t, ssize_t};

use crate::fd_kind::{self, FdKind};
use crate::libc_next::{self, preserve_errno};
use crate::pointer::can_read;
use crate::process::{self, RegisteredProcess};
use crate::reentry::ReentryGuard;
use crate::{epoll_ownership, fd_table, instance};

/// socket(2).
///
/// # Safety
/// That of socket(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    // SAFETY: by this function's contract.
    let call = || unsafe { libc_next::socket(domain, kind, protocol) };
    let is_internet = domain == libc::AF_INET || domain == libc::AF_INET6;
    let is_stream = kind & !(libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK) == libc::SOCK_STREAM;
    if is_internet && is_stream && (protocol == 0 || protocol == libc::IPPROTO_TCP) {
        return open(call);
    }
    let fd = call();
    fd_table::set(fd, FdKind::Other);
    fd
}

/// accept(2).
///
/// # Safety
/// That of accept(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn accept(
    listener: c_int,
    address: *mut sockaddr,
    bytes: *mut socklen_t,
) -> c_int {
    // SAFETY: by this function's contract, which is that of accept4(2) without flags.
    unsafe { accept4(listener, address, bytes, 0) }
}

/// accept4(2), always with a buffer for the address: the eBPF program runs when the kernel looks up
/// the address.
///
/// # Safety
/// That of accept4(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn accept4(
    listener: c_int,
    address: *mut sockaddr,
    bytes: *mut socklen_t,
    flags: c_int,
) -> c_int {
    let is_tcp = match fd_kind::get(listener) {
        FdKind::Unknown => classify(listener) != FdKind::Other,
        FdKind::Other | FdKind::Epoll | FdKind::InheritedEpoll => false,
        FdKind::Untracked | FdKind::Tracked | FdKind::Listener => true,
    };
    if !is_tcp {
        // SAFETY: by this function's contract.
        let fd = unsafe { libc_next::accept4(listener, address, bytes, flags) };
        fd_table::set(fd, FdKind::Unknown);
        return fd;
    }
    let fd = open(|| {
        if !address.is_null() {
            // SAFETY: by this function's contract.
            return unsafe { libc_next::accept4(listener, address, bytes, flags) };
        }
        let mut buffer = MaybeUninit::<sockaddr_storage>::uninit();
        let mut bytes = size_of_val(&buffer) as socklen_t;
        // SAFETY: the buffer has the length that is passed.
        unsafe { libc_next::accept4(listener, buffer.as_mut_ptr().cast(), &raw mut bytes, flags) }
    });
    // The kernel does not report that the queue became empty.
    refresh(listener);
    fd
}

/// listen(2).
///
/// # Safety
/// That of listen(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn listen(fd: c_int, backlog: c_int) -> c_int {
    if fd_kind::get(fd) == FdKind::Tracked {
        fd_table::set(fd, FdKind::Listener);
    }
    // SAFETY: by this function's contract.
    unsafe { libc_next::listen(fd, backlog) }
}

/// connect(2). A connect to AF_UNSPEC dissolves a connection.
///
/// # Safety
/// That of connect(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn connect(
    fd: c_int,
    address: *const sockaddr,
    bytes: socklen_t,
) -> c_int {
    // SAFETY: by this function's contract.
    let code = unsafe { libc_next::connect(fd, address, bytes) };
    refresh(fd);
    code
}

/// shutdown(2).
///
/// # Safety
/// That of shutdown(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn shutdown(fd: c_int, how: c_int) -> c_int {
    // SAFETY: by this function's contract.
    let code = unsafe { libc_next::shutdown(fd, how) };
    refresh(fd);
    code
}

/// getsockopt(2). SO_ERROR clears the error.
///
/// # Safety
/// That of getsockopt(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn getsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    bytes: *mut socklen_t,
) -> c_int {
    // SAFETY: by this function's contract.
    let code = unsafe { libc_next::getsockopt(fd, level, name, value, bytes) };
    if level == libc::SOL_SOCKET && name == libc::SO_ERROR {
        refresh(fd);
    }
    code
}

/// setsockopt(2). Buffer sizes and watermarks decide when a socket is ready.
///
/// # Safety
/// That of setsockopt(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn setsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *const c_void,
    bytes: socklen_t,
) -> c_int {
    // SAFETY: by this function's contract.
    let code = unsafe { libc_next::setsockopt(fd, level, name, value, bytes) };
    let affects_readiness = match level {
        libc::SOL_SOCKET => READINESS_OPTIONS.contains(&name),
        libc::IPPROTO_TCP => !matches!(name, libc::TCP_NODELAY | libc::TCP_CORK),
        _ => false,
    };
    if affects_readiness {
        refresh(fd);
    }
    code
}

const READINESS_OPTIONS: [c_int; 6] = [
    libc::SO_RCVBUF,
    libc::SO_SNDBUF,
    libc::SO_RCVBUFFORCE,
    libc::SO_SNDBUFFORCE,
    libc::SO_RCVLOWAT,
    libc::SO_OOBINLINE,
];

/// sendmsg(2). An epoll descriptor that is passed to another process is handed over to the kernel.
///
/// # Safety
/// That of sendmsg(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn sendmsg(
    fd: c_int,
    message: *const msghdr,
    flags: c_int,
) -> ssize_t {
    // A TCP socket cannot pass descriptors, and only epoll descriptors matter.
    let may_pass =
        !matches!(fd_kind::get(fd), FdKind::Untracked | FdKind::Tracked | FdKind::Listener)
            && instance::has_any();
    if may_pass && can_read(message, 1) {
        // SAFETY: it can be read, and any bytes are a message.
        let message = unsafe { message.read_unaligned() };
        hand_over_passed(message.msg_control.cast(), message.msg_controllen);
    }
    // SAFETY: by this function's contract.
    unsafe { libc_next::sendmsg(fd, message, flags) }
}

/// Hands over the epoll descriptors in control messages. If the pointer is bad, or the messages are
/// malformed, the kernel fails the call.
fn hand_over_passed(control: *const u8, bytes: usize) {
    if bytes == 0 || bytes > CONTROL_MAX || !can_read(control, bytes) {
        return;
    }
    // SAFETY: this many bytes can be read, as checked above.
    let mut left = unsafe { slice::from_raw_parts(control, bytes) };
    while let Some(header) = left.first_chunk::<{ size_of::<cmsghdr>() }>() {
        // SAFETY: it has this many bytes, and any bytes are a header.
        let header = unsafe { header.as_ptr().cast::<cmsghdr>().read_unaligned() };
        // The kernel rejects a message that is shorter than its header, or longer than what is
        // left.
        let Some(data) = left.get(size_of::<cmsghdr>()..header.cmsg_len) else { return };
        if header.cmsg_level == libc::SOL_SOCKET && header.cmsg_type == libc::SCM_RIGHTS {
            let (fds, _) = data.as_chunks();
            fds.iter().for_each(|fd| epoll_ownership::hand_over(c_int::from_ne_bytes(*fd)));
        }
        let next = header.cmsg_len.next_multiple_of(size_of::<usize>());
        left = left.get(next..).unwrap_or_default();
    }
}

/// The longest control data that is searched for descriptors. The kernel's own limit is lower by
/// default (sysctl net.core.optmem_max).
const CONTROL_MAX: usize = 1 << 20;

/// Runs a call that opens a TCP socket.
fn open(call: impl FnOnce() -> c_int) -> c_int {
    let process = match preserve_errno(process::register) {
        Some(process) if process.can_track() => process,
        unavailable => {
            let fd = call();
            // While another thread registers, the socket stays unknown and is classified at its
            // first wait.
            fd_table::set(
                fd,
                if unavailable.is_some() { FdKind::Untracked } else { FdKind::Unknown },
            );
            return fd;
        }
    };
    let fd = process.tracker.open(call);
    let is_tracked = fd >= 0 && process.tracker.is_tracked(fd);
    fd_table::set(fd, if is_tracked { FdKind::Tracked } else { FdKind::Unknown });
    fd
}

/// Returns the kind of a descriptor. Classifies a descriptor of unknown kind first, and tracks it
/// if it is a TCP socket that can be tracked.
#[inline]
pub(crate) fn classify(fd: c_int) -> FdKind {
    match fd_kind::get(fd) {
        FdKind::Unknown => preserve_errno(|| classify_unknown(fd)),
        kind => kind,
    }
}

#[cold]
fn classify_unknown(fd: c_int) -> FdKind {
    let kind = match socket_option(fd, libc::SO_PROTOCOL) {
        // The descriptor is not open now.
        None if libc_next::errno() == libc::EBADF => return FdKind::Unknown,
        Some(libc::IPPROTO_TCP) => match process::register() {
            // Another thread registers.
            None => return FdKind::Unknown,
            Some(process) if process.can_track() && track_existing(process, fd) => FdKind::Tracked,
            Some(_) => FdKind::Untracked,
        },
        _ => FdKind::Other,
    };
    fd_table::set(fd, kind);
    kind
}

/// Tracks an open socket, except for listeners: another process may accept from one too, and then
/// the kernel does not report to this process that the queue became empty.
fn track_existing(process: &RegisteredProcess, fd: c_int) -> bool {
    socket_option(fd, libc::SO_ACCEPTCONN) == Some(0) && process.tracker.track(fd)
}

fn socket_option(fd: c_int, name: c_int) -> Option<c_int> {
    let mut value: c_int = 0;
    let mut bytes = size_of_val(&value) as socklen_t;
    let value_address = (&raw mut value).cast();
    // SAFETY: the buffer has the length that is passed.
    let code =
        unsafe { libc_next::getsockopt(fd, libc::SOL_SOCKET, name, value_address, &raw mut bytes) };
    (code == 0).then_some(value)
}

/// Updates the recorded state of a tracked socket.
fn refresh(fd: c_int) {
    if matches!(fd_kind::get(fd), FdKind::Tracked | FdKind::Listener)
        && let Some(process) = process::registered()
    {
        preserve_errno(|| process.tracker.refresh(fd));
    }
}

/// Prepares a descriptor for a wait, and returns whether it is tracked. A new descriptor is
/// classified.
pub(crate) fn prepare_wait(fd: c_int, _inside: &ReentryGuard) -> bool {
    match classify(fd) {
        FdKind::Tracked | FdKind::Listener => return true,
        // A wait for an epoll descriptor sees only the events of the kernel's instance.
        FdKind::Epoll | FdKind::InheritedEpoll => epoll_ownership::hand_over(fd),
        FdKind::Unknown | FdKind::Other | FdKind::Untracked => {}
    }
    false
}

/// Prepares all of these descriptors, and returns whether any is tracked.
pub(crate) fn prepare_waits(fds: impl Iterator<Item = c_int>, guard: &ReentryGuard) -> bool {
    fds.fold(false, |is_any, fd| prepare_wait(fd, guard) | is_any)
}
