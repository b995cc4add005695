//! What opens sockets, and what changes them in ways that no hook of the kernel tells of.

use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::slice;

use libc::{cmsghdr, msghdr, sockaddr, sockaddr_storage, socklen_t, ssize_t};

use crate::inside::Inside;
use crate::kinds::{self, Kind};
use crate::pointer::can_read;
use crate::process::{self, Process};
use crate::real::{self, aside};
use crate::{instance, ours, table};

/// socket(2).
///
/// # Safety
/// As for socket(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    // SAFETY: by this function's contract.
    let call = || unsafe { real::socket(domain, kind, protocol) };
    let is_internet = domain == libc::AF_INET || domain == libc::AF_INET6;
    let is_stream = kind & !(libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK) == libc::SOCK_STREAM;
    if is_internet && is_stream && (protocol == 0 || protocol == libc::IPPROTO_TCP) {
        return open(call);
    }
    let fd = call();
    table::set(fd, Kind::Other);
    fd
}

/// accept(2).
///
/// # Safety
/// As for accept(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn accept(
    listener: c_int,
    address: *mut sockaddr,
    bytes: *mut socklen_t,
) -> c_int {
    // SAFETY: by this function's contract, which is that of accept4(2) without flags.
    unsafe { accept4(listener, address, bytes, 0) }
}

/// accept4(2), always with room for the address: the kernel's program runs when that is looked for.
///
/// # Safety
/// As for accept4(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn accept4(
    listener: c_int,
    address: *mut sockaddr,
    bytes: *mut socklen_t,
    flags: c_int,
) -> c_int {
    let is_tcp = match kinds::kind(listener) {
        Kind::Unknown => learn(listener) != Kind::Other,
        Kind::Other | Kind::Epoll | Kind::Inherited => false,
        Kind::Left | Kind::Tracked | Kind::Listener => true,
    };
    if !is_tcp {
        // SAFETY: by this function's contract.
        let fd = unsafe { real::accept4(listener, address, bytes, flags) };
        table::set(fd, Kind::Unknown);
        return fd;
    }
    let fd = open(|| {
        if !address.is_null() {
            // SAFETY: by this function's contract.
            return unsafe { real::accept4(listener, address, bytes, flags) };
        }
        let mut room = MaybeUninit::<sockaddr_storage>::uninit();
        let mut bytes = size_of_val(&room) as socklen_t;
        // SAFETY: there is room for as many bytes as it is told.
        unsafe { real::accept4(listener, room.as_mut_ptr().cast(), &raw mut bytes, flags) }
    });
    // Of the queue that became empty nothing tells.
    refresh(listener);
    fd
}

/// listen(2).
///
/// # Safety
/// As for listen(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn listen(fd: c_int, backlog: c_int) -> c_int {
    if kinds::kind(fd) == Kind::Tracked {
        table::set(fd, Kind::Listener);
    }
    // SAFETY: by this function's contract.
    unsafe { real::listen(fd, backlog) }
}

/// connect(2). To connect to nothing (AF_UNSPEC) takes back what the socket was.
///
/// # Safety
/// As for connect(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn connect(
    fd: c_int,
    address: *const sockaddr,
    bytes: socklen_t,
) -> c_int {
    // SAFETY: by this function's contract.
    let code = unsafe { real::connect(fd, address, bytes) };
    refresh(fd);
    code
}

/// shutdown(2).
///
/// # Safety
/// As for shutdown(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn shutdown(fd: c_int, how: c_int) -> c_int {
    // SAFETY: by this function's contract.
    let code = unsafe { real::shutdown(fd, how) };
    refresh(fd);
    code
}

/// getsockopt(2). SO_ERROR takes the error.
///
/// # Safety
/// As for getsockopt(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn getsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    bytes: *mut socklen_t,
) -> c_int {
    // SAFETY: by this function's contract.
    let code = unsafe { real::getsockopt(fd, level, name, value, bytes) };
    if level == libc::SOL_SOCKET && name == libc::SO_ERROR {
        refresh(fd);
    }
    code
}

/// setsockopt(2). Buffers and marks decide when a socket is ready.
///
/// # Safety
/// As for setsockopt(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn setsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *const c_void,
    bytes: socklen_t,
) -> c_int {
    // SAFETY: by this function's contract.
    let code = unsafe { real::setsockopt(fd, level, name, value, bytes) };
    let decides = match level {
        libc::SOL_SOCKET => DECIDING.contains(&name),
        libc::IPPROTO_TCP => !matches!(name, libc::TCP_NODELAY | libc::TCP_CORK),
        _ => false,
    };
    if decides {
        refresh(fd);
    }
    code
}

const DECIDING: [c_int; 6] = [
    libc::SO_RCVBUF,
    libc::SO_SNDBUF,
    libc::SO_RCVBUFFORCE,
    libc::SO_SNDBUFFORCE,
    libc::SO_RCVLOWAT,
    libc::SO_OOBINLINE,
];

/// sendmsg(2). An epoll descriptor that is passed on waits for the kernel alone from now on.
///
/// # Safety
/// As for sendmsg(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn sendmsg(
    fd: c_int,
    message: *const msghdr,
    flags: c_int,
) -> ssize_t {
    // A TCP socket passes no descriptors on, and this concerns epoll descriptors alone.
    let may_pass = !matches!(kinds::kind(fd), Kind::Left | Kind::Tracked | Kind::Listener)
        && instance::has_been();
    if may_pass && can_read(message, 1) {
        // SAFETY: it can be read, and any bytes are a message.
        let message = unsafe { message.read_unaligned() };
        pass(message.msg_control.cast(), message.msg_controllen);
    }
    // SAFETY: by this function's contract.
    unsafe { real::sendmsg(fd, message, flags) }
}

/// Looks for epoll descriptors in control messages. If the pointer is bad, or the messages are
/// malformed, the kernel fails the call.
fn pass(control: *const u8, bytes: usize) {
    if bytes == 0 || bytes > CONTROL_MAX || !can_read(control, bytes) {
        return;
    }
    // SAFETY: as many bytes can be read, by the check above.
    let mut left = unsafe { slice::from_raw_parts(control, bytes) };
    while let Some(header) = left.first_chunk::<{ size_of::<cmsghdr>() }>() {
        // SAFETY: they are as many bytes, and any are a header.
        let header = unsafe { header.as_ptr().cast::<cmsghdr>().read_unaligned() };
        // The kernel rejects a message that is shorter than its header, or longer than what is
        // left.
        let Some(data) = left.get(size_of::<cmsghdr>()..header.cmsg_len) else { return };
        if header.cmsg_level == libc::SOL_SOCKET && header.cmsg_type == libc::SCM_RIGHTS {
            let (fds, _) = data.as_chunks();
            fds.iter().for_each(|fd| ours::hand_over(c_int::from_ne_bytes(*fd)));
        }
        let next = header.cmsg_len.next_multiple_of(size_of::<usize>());
        left = left.get(next..).unwrap_or_default();
    }
}

/// The kernel's own limit is lower by default (sysctl net.core.optmem_max).
const CONTROL_MAX: usize = 1 << 20;

/// Makes a call that gives a TCP socket.
fn open(call: impl FnOnce() -> c_int) -> c_int {
    let process = match aside(process::make) {
        Some(process) if process.tracks() => process,
        none => {
            let fd = call();
            // While another thread registers, that is found out when it is waited for.
            table::set(fd, if none.is_some() { Kind::Left } else { Kind::Unknown });
            return fd;
        }
    };
    let fd = process.tracker.open(call);
    let is_tracked = fd >= 0 && process.tracker.is_tracked(fd);
    table::set(fd, if is_tracked { Kind::Tracked } else { Kind::Unknown });
    fd
}

/// What a descriptor is that the program waits for. One that is seen for the first time is looked
/// at, and if it is a TCP socket it is in memory from now on, unless another process has it there.
#[inline]
pub(crate) fn learn(fd: c_int) -> Kind {
    match kinds::kind(fd) {
        Kind::Unknown => aside(|| look(fd)),
        kind => kind,
    }
}

#[cold]
fn look(fd: c_int) -> Kind {
    let kind = match option(fd, libc::SO_PROTOCOL) {
        // Not open, now.
        None if real::errno() == libc::EBADF => return Kind::Unknown,
        Some(libc::IPPROTO_TCP) => match process::make() {
            // Another thread makes it.
            None => return Kind::Unknown,
            Some(process) if process.tracks() && may_adopt(process, fd) => Kind::Tracked,
            Some(_) => Kind::Left,
        },
        _ => Kind::Other,
    };
    table::set(fd, kind);
    kind
}

/// A listener that another process may accept from as well has a queue that gets empty without a
/// word to us, and who has not made it cannot know that.
fn may_adopt(process: &Process, fd: c_int) -> bool {
    option(fd, libc::SO_ACCEPTCONN) == Some(0) && process.tracker.track(fd)
}

fn option(fd: c_int, name: c_int) -> Option<c_int> {
    let mut value: c_int = 0;
    let mut bytes = size_of_val(&value) as socklen_t;
    let place = (&raw mut value).cast();
    // SAFETY: there is room for as many bytes as it is told.
    let code = unsafe { real::getsockopt(fd, libc::SOL_SOCKET, name, place, &raw mut bytes) };
    (code == 0).then_some(value)
}

/// Has the kernel look at a socket again that is in memory.
fn refresh(fd: c_int) {
    if matches!(kinds::kind(fd), Kind::Tracked | Kind::Listener)
        && let Some(process) = process::made()
    {
        aside(|| process.tracker.refresh(fd));
    }
}

/// Whether memory knows of a descriptor that is waited for, which is looked at if it is new.
pub(crate) fn learn_waited(fd: c_int, _inside: &Inside) -> bool {
    match learn(fd) {
        Kind::Tracked | Kind::Listener => return true,
        // Who waits for an epoll descriptor sees what the kernel knows of it.
        Kind::Epoll | Kind::Inherited => ours::hand_over(fd),
        Kind::Unknown | Kind::Other | Kind::Left => {}
    }
    false
}

/// The same of any of these, each of which is looked at.
pub(crate) fn learn_all(fds: impl Iterator<Item = c_int>, inside: &Inside) -> bool {
    fds.fold(false, |is_any, fd| learn_waited(fd, inside) | is_any)
}
