//! The functions of the C library that this library replaces. dlsym(3) finds each one at its first
//! call. In glibc, it takes the loader's lock, which is recursive, and allocates nothing if the
//! function exists.

use std::ffi::{CStr, c_int, c_long, c_uint, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};

use libc::{
    FILE, epoll_event, fd_set, msghdr, nfds_t, pollfd, sigset_t, size_t, sockaddr, socklen_t,
    ssize_t, timespec, timeval,
};

/// Declares functions with their signatures in the C library. A function that it lacks
/// (epoll_pwait2 exists since glibc 2.35) fails with ENOSYS, as on a kernel without it.
macro_rules! next_functions {
    ($(fn $name:ident($($argument:ident: $kind:ty),*) -> $result:ty;)*) => {$(
        #[doc = concat!("The real `", stringify!($name), "`.")]
        ///
        /// # Safety
        /// That of this function.
        pub(crate) unsafe fn $name($($argument: $kind),*) -> $result {
            static FOUND: AtomicPtr<c_void> = AtomicPtr::new(null_mut());
            let Some(found) = find(&FOUND, concat!(stringify!($name), "\0")) else {
                set_errno(libc::ENOSYS);
                return -1;
            };
            type Function = unsafe extern "C-unwind" fn($($kind),*) -> $result;
            // SAFETY: the C library's function of that name has these arguments.
            let function = unsafe { std::mem::transmute::<*mut c_void, Function>(found) };
            // SAFETY: by this function's contract.
            unsafe { function($($argument),*) }
        }
    )*};
}

next_functions! {
    fn poll(fds: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int;
    fn ppoll(
        fds: *mut pollfd, count: nfds_t, timeout: *const timespec, mask: *const sigset_t
    ) -> c_int;
    fn select(
        count: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set,
        timeout: *mut timeval
    ) -> c_int;
    fn pselect(
        count: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set,
        timeout: *const timespec, mask: *const sigset_t
    ) -> c_int;
    fn epoll_create(size: c_int) -> c_int;
    fn epoll_create1(flags: c_int) -> c_int;
    fn epoll_ctl(epoll: c_int, operation: c_int, fd: c_int, event: *mut epoll_event) -> c_int;
    fn epoll_wait(epoll: c_int, events: *mut epoll_event, max: c_int, timeout: c_int) -> c_int;
    fn epoll_pwait(
        epoll: c_int, events: *mut epoll_event, max: c_int, timeout: c_int, mask: *const sigset_t
    ) -> c_int;
    fn epoll_pwait2(
        epoll: c_int, events: *mut epoll_event, max: c_int, timeout: *const timespec,
        mask: *const sigset_t
    ) -> c_int;
    fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int;
    fn listen(fd: c_int, backlog: c_int) -> c_int;
    fn connect(fd: c_int, address: *const sockaddr, bytes: socklen_t) -> c_int;
    fn accept4(
        fd: c_int, address: *mut sockaddr, bytes: *mut socklen_t, flags: c_int
    ) -> c_int;
    fn shutdown(fd: c_int, how: c_int) -> c_int;
    fn getsockopt(
        fd: c_int, level: c_int, name: c_int, value: *mut c_void, bytes: *mut socklen_t
    ) -> c_int;
    fn setsockopt(
        fd: c_int, level: c_int, name: c_int, value: *const c_void, bytes: socklen_t
    ) -> c_int;
    fn sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t;
    fn close(fd: c_int) -> c_int;
    fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int;
    fn fclose(stream: *mut FILE) -> c_int;
    fn dup(fd: c_int) -> c_int;
    fn dup2(from: c_int, to: c_int) -> c_int;
    fn dup3(from: c_int, to: c_int, flags: c_int) -> c_int;
    fn fcntl(fd: c_int, command: c_int, argument: c_long) -> c_int;
    fn __poll_chk(fds: *mut pollfd, count: nfds_t, timeout: c_int, bytes: size_t) -> c_int;
    fn __ppoll_chk(
        fds: *mut pollfd, count: nfds_t, timeout: *const timespec, mask: *const sigset_t,
        bytes: size_t
    ) -> c_int;
}

fn find(found: &AtomicPtr<c_void>, name: &'static str) -> Option<*mut c_void> {
    let mut address = found.load(Ordering::Relaxed);
    if address.is_null() {
        let name = CStr::from_bytes_with_nul(name.as_bytes()).expect("names end with their 0");
        // SAFETY: the name is a C string. RTLD_NEXT searches the libraries after this one.
        address = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) };
        // If two threads store it, both store the same address.
        found.store(address, Ordering::Relaxed);
    }
    (!address.is_null()).then_some(address)
}

/// Returns the errno of the calling thread.
pub(crate) fn errno() -> c_int {
    // SAFETY: the address is valid while the thread lives.
    unsafe { errno_location().read() }
}

/// Sets the errno of the calling thread.
pub(crate) fn set_errno(errno: c_int) {
    // SAFETY: as in `errno`.
    unsafe { errno_location().write(errno) }
}

/// Runs work that the program did not request, and restores errno.
pub(crate) fn preserve_errno<T>(work: impl FnOnce() -> T) -> T {
    let location = errno_location();
    // SAFETY: as in `errno`.
    let saved = unsafe { location.read() };
    let result = work();
    // SAFETY: as in `errno`; the thread is still the same.
    unsafe { location.write(saved) };
    result
}

fn errno_location() -> *mut c_int {
    // SAFETY: the call takes no arguments and returns the address of the calling thread's errno.
    unsafe { libc::__errno_location() }
}
