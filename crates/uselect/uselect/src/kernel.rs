//! System calls of this crate, except io_uring: one function each.
//!
//! The crate does not use `millrace-sys`, because the library is linked into other programs, which
//! do not need the rest of that crate.

mod epoll;

use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::ops::Deref;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU8, AtomicU64};
use std::time::{Duration, Instant};

pub(crate) use rustix::io::Errno;
use rustix::io::retry_on_intr;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous, munmap};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendFlags,
    SocketAddrAny, SocketAddrUnix, SocketFlags, SocketType, ipproto, sockopt,
};
use rustix::param::page_size;

pub(crate) use self::epoll::{Epoll, EpollEvent};
use crate::bits;
use crate::internal_fd::InternalFd;
use crate::pollfd::PollFd;

pub(crate) type Result<T, E = Errno> = std::result::Result<T, E>;

/// A type that may be read in memory that other processes and the kernel write at any time.
///
/// # Safety
/// Any bytes are a valid value. The type consists of atomics, and of padding that is never read.
pub(crate) unsafe trait SharedMemory {}

// SAFETY: atomics and padding only.
unsafe impl SharedMemory for crate::layout::ReadOnlyPages {}
// SAFETY: atomics and padding only.
unsafe impl SharedMemory for crate::layout::WritablePages {}
// SAFETY: an atomic.
unsafe impl SharedMemory for AtomicU64 {}
// SAFETY: an atomic.
unsafe impl SharedMemory for AtomicU8 {}

/// A memory mapping that holds one `T`.
pub(crate) struct Mapping<T> {
    start: NonNull<T>,
    bytes: usize,
    marker: PhantomData<T>,
}

// SAFETY: the mapping belongs to no thread, and its contents are atomics.
unsafe impl<T: Sync> Send for Mapping<T> {}
// SAFETY: as above; only `&T` is handed out.
unsafe impl<T: Sync> Sync for Mapping<T> {}

impl<T: SharedMemory> Mapping<T> {
    /// Maps a `T` of the file `fd` that begins at `offset`, a multiple of the page size. The
    /// mapping may be written only if `is_writable`.
    pub(crate) fn new(fd: BorrowedFd<'_>, offset: u64, is_writable: bool) -> Result<Self> {
        let bytes = size_of::<T>().next_multiple_of(page_size());
        let write = if is_writable { ProtFlags::WRITE } else { ProtFlags::empty() };
        let (access, flags) = (ProtFlags::READ | write, MapFlags::SHARED);
        // SAFETY: the kernel chooses the address, so no existing mapping changes.
        let start = unsafe { mmap(std::ptr::null_mut(), bytes, access, flags, fd, offset) }?;
        Ok(Self::from_start(start.cast(), bytes))
    }

    fn from_start(start: *mut T, bytes: usize) -> Self {
        let start = NonNull::new(start).expect("mmap(2) never returns address 0");
        assert!(start.is_aligned(), "a mapping begins at a page");
        Self { start, bytes, marker: PhantomData }
    }

    /// Maps private memory that is filled with zeros.
    pub(crate) fn private() -> Result<Self> {
        let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        let bytes = size_of::<T>().next_multiple_of(page_size());
        // SAFETY: the kernel chooses the address, so no existing mapping changes.
        let start = unsafe { mmap_anonymous(std::ptr::null_mut(), bytes, access, flags) }?;
        Ok(Self::from_start(start.cast(), bytes))
    }
}

impl Mapping<AtomicU8> {
    /// Maps a zero byte that is zero again in every child of fork(2) (MADV_WIPEONFORK, since Linux
    /// 4.14).
    pub(crate) fn wiped_on_fork() -> Result<Self> {
        let mapping = Self::private()?;
        let start = mapping.start.as_ptr().cast();
        // SAFETY: the page belongs to this mapping; its bytes change only in children.
        unsafe { madvise(start, mapping.bytes, Advice::LinuxWipeOnFork) }?;
        Ok(mapping)
    }
}

impl<T: SharedMemory> Deref for Mapping<T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: the memory is mapped while `self` lives, aligned, and as long as a `T`. Any bytes
        // are a valid `T`, by the contract of `SharedMemory`.
        unsafe { self.start.as_ref() }
    }
}

impl<T> Drop for Mapping<T> {
    fn drop(&mut self) {
        // SAFETY: references borrow `self`, so none exists any more.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}

/// Returns the ID of the calling thread, by which the eBPF programs find its slot.
pub(crate) fn thread_id() -> u32 {
    rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs()
}

/// Opens a TCP socket with close-on-exec; non-blocking unless `is_blocking`.
pub(crate) fn tcp_socket(family: AddressFamily, is_blocking: bool) -> Result<OwnedFd> {
    let flags = flags(is_blocking);
    rustix::net::socket_with(family, SocketType::STREAM, flags, Some(ipproto::TCP))
}

/// Returns whether a thread of this process has ended.
pub(crate) fn has_thread_ended(thread: u32) -> bool {
    let (process, none) = (rustix::process::getpid().as_raw_pid(), 0);
    // SAFETY: the call takes only numbers, and signal 0 is not sent.
    let result = unsafe { libc::syscall(libc::SYS_tgkill, process, thread, none) };
    result < 0 && std::io::Error::last_os_error().raw_os_error() == Some(libc::ESRCH)
}

/// Accepts a connection, always with a buffer for the address: the eBPF program runs when the
/// kernel looks up the address.
pub(crate) fn accept(
    listener: BorrowedFd<'_>,
    is_blocking: bool,
) -> Result<(OwnedFd, Option<SocketAddrAny>)> {
    rustix::net::acceptfrom_with(listener, flags(is_blocking))
}

fn flags(is_blocking: bool) -> SocketFlags {
    let wait = if is_blocking { SocketFlags::empty() } else { SocketFlags::NONBLOCK };
    SocketFlags::CLOEXEC | wait
}

/// Runs the eBPF programs for a socket in any state, by getsockname(2), which does nothing else. A
/// receive of 0 bytes would run them too, but it would clear a pending error.
pub(crate) fn run_programs(socket: BorrowedFd<'_>) {
    // The programs have run, whatever the result.
    let _ = rustix::net::getsockname(socket);
}

/// Returns whether a descriptor is a TCP socket.
pub(crate) fn is_tcp(fd: BorrowedFd<'_>) -> bool {
    sockopt::socket_protocol(fd).is_ok_and(|protocol| protocol == Some(ipproto::TCP))
}

/// Connects to a Unix socket, with close-on-exec. Fails with EAGAIN if that takes longer than about
/// `time`.
pub(crate) fn connect(path: &Path, time: Duration) -> Result<OwnedFd> {
    let address = SocketAddrUnix::new(path)?;
    let flags = SocketFlags::CLOEXEC;
    let fd = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    sockopt::set_socket_timeout(&fd, sockopt::Timeout::Send, Some(time))?;
    let end = Instant::now() + time;
    loop {
        match rustix::net::connect(&fd, &address) {
            // Repeated signals must not extend the wait without limit.
            Err(Errno::INTR) if Instant::now() < end => {}
            Err(Errno::INTR) => return Err(Errno::AGAIN),
            connected => return connected.map(|()| fd),
        }
    }
}

pub(crate) fn send(fd: BorrowedFd<'_>, bytes: &[u8]) -> Result<usize> {
    retry_on_intr(|| rustix::net::send(fd, bytes, SendFlags::NOSIGNAL))
}

/// Receives bytes, and up to `COUNT` descriptors that come with them. Fails with EAGAIN if nothing
/// arrives within `time`.
pub(crate) fn receive<const COUNT: usize>(
    fd: BorrowedFd<'_>,
    bytes: &mut [u8],
    descriptors: &mut Vec<OwnedFd>,
    time: Duration,
) -> Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
    const { assert!(COUNT <= 8) };
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
    let end = Instant::now() + time;
    let received = loop {
        let mut fds = [PollFd { fd: fd.as_raw_fd(), events: bits::IN as u16, revents: 0 }];
        let left = end.saturating_duration_since(Instant::now());
        let is_over = ppoll(&mut fds, Some(left), None) == Ok(0);
        let mut parts = [std::io::IoSliceMut::new(bytes)];
        match rustix::net::recvmsg(fd, &mut parts, &mut control, flags) {
            Err(Errno::INTR | Errno::AGAIN) if !is_over => {}
            received => break received?,
        }
    };
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(received_fds) = message {
            descriptors.extend(received_fds);
        }
    }
    match received.flags.contains(ReturnFlags::CTRUNC) {
        true => Err(Errno::MFILE),
        false => Ok(received.bytes),
    }
}

/// Returns whether the peer of a Unix connection has closed it. Does not wait.
pub(crate) fn is_peer_closed(fd: BorrowedFd<'_>) -> bool {
    let mut fds = [PollFd { fd: fd.as_raw_fd(), events: 0, revents: 0 }];
    ppoll(&mut fds, Some(Duration::ZERO), None).is_ok_and(|count| count > 0)
}

/// Borrows a descriptor, given by its number, for one call. The caller guarantees that the number
/// is the intended descriptor. If it is not open, the kernel returns EBADF.
pub(crate) fn borrow_fd<'a>(fd: i32) -> Option<BorrowedFd<'a>> {
    // SAFETY: the number is not -1. If it is not open, the call that uses it fails.
    (fd >= 0).then(|| unsafe { BorrowedFd::borrow_raw(fd) })
}

/// A signal set in the kernel's layout: bit n - 1 is signal n.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(transparent)]
pub struct SignalSet(pub u64);

/// Signals that an instruction causes; they cannot be blocked usefully.
const SYNCHRONOUS: [i32; 6] =
    [libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE, libc::SIGTRAP, libc::SIGSYS];

/// Runs `work` with all signals of this thread blocked, then unblocks them. Returns whether a
/// signal handler ran when they were unblocked: a system call in place of `work` would have failed
/// with EINTR. Returns `None` without running `work` if a seccomp filter refuses to change the
/// mask.
///
/// While signals are blocked, the kernel does not drop ignored ones at once. In a program of
/// several threads, such a signal may then interrupt epoll_wait(2) in another thread.
pub(crate) fn with_signals_blocked(work: impl FnOnce()) -> Option<bool> {
    let synchronous = SYNCHRONOUS.iter().fold(0, |set, signal| set | 1 << (signal - 1));
    let before = set_mask(SignalSet(!synchronous))?;
    work();
    // Delivers the pending signals. Restoring the mask alone would not show whether one was
    // handled.
    let is_interrupted = ppoll(&mut [], Some(Duration::ZERO), Some(&before)) == Err(Errno::INTR);
    set_mask(before);
    Some(is_interrupted)
}

/// Sets the signal mask (rt_sigprocmask(2)) and returns the previous one.
fn set_mask(mask: SignalSet) -> Option<SignalSet> {
    let mut before = SignalSet::default();
    // SAFETY: both sets outlive the call and have the size that is passed.
    let done = result(unsafe {
        libc::syscall(
            libc::SYS_rt_sigprocmask,
            libc::SIG_SETMASK,
            &raw const mask,
            &raw mut before,
            size_of::<SignalSet>(),
        )
    });
    done.ok().map(|_| before)
}

/// Yields the processor to other threads (sched_yield(2)).
pub(crate) fn sched_yield() {
    // SAFETY: the call takes no arguments.
    unsafe { libc::syscall(libc::SYS_sched_yield) };
}

/// Calls poll(2), or ppoll(2) with a mask. Makes the system call directly: a preloaded library may
/// replace the function of the C library, and that of `rustix` takes no mask.
pub(crate) fn ppoll(
    fds: &mut [PollFd],
    timeout: Option<Duration>,
    mask: Option<&SignalSet>,
) -> Result<usize> {
    let mut timeout = KernelTimespec::new(timeout);
    // SAFETY: `PollFd` has the layout of `struct pollfd`, and the length is passed. Timeout and
    // mask are null or outlive the call, and the size of the mask is passed.
    result(unsafe {
        libc::syscall(
            libc::SYS_ppoll,
            fds.as_mut_ptr(),
            fds.len(),
            timeout.as_mut_ptr(),
            mask.map_or(ptr::null(), ptr::from_ref),
            size_of::<SignalSet>(),
        )
    })
}

/// `struct __kernel_timespec`, or no timeout.
struct KernelTimespec(Option<[i64; 2]>);

impl KernelTimespec {
    /// Creates a timeout. One beyond the range of the kernel is unlimited.
    fn new(timeout: Option<Duration>) -> Self {
        Self(timeout.and_then(|timeout| {
            Some([timeout.as_secs().try_into().ok()?, timeout.subsec_nanos().into()])
        }))
    }

    /// Returns the address of the timeout. ppoll(2) stores the remaining time there, and continues
    /// with it after a restart.
    fn as_mut_ptr(&mut self) -> *mut [i64; 2] {
        self.0.as_mut().map_or(ptr::null_mut(), ptr::from_mut)
    }
}

fn result(returned: libc::c_long) -> Result<usize> {
    usize::try_from(returned).map_err(|_| {
        let error = std::io::Error::last_os_error();
        Errno::from_io_error(&error).unwrap_or(Errno::IO)
    })
}

/// Creates a non-blocking eventfd(2) with close-on-exec.
pub(crate) fn eventfd() -> Result<InternalFd> {
    let flags = rustix::event::EventfdFlags::CLOEXEC | rustix::event::EventfdFlags::NONBLOCK;
    InternalFd::from_result(rustix::event::eventfd(0, flags))
}

/// Makes an eventfd readable.
pub(crate) fn signal_eventfd(eventfd: &InternalFd) {
    let _ = rustix::io::write(eventfd, &1_u64.to_ne_bytes());
}

/// Makes an eventfd unreadable.
pub(crate) fn drain_eventfd(eventfd: &InternalFd) {
    let _ = rustix::io::read(eventfd, &mut [0; 8]);
}

/// Returns how often this thread was preempted; 0 if a seccomp filter refuses the call.
pub(crate) fn involuntary_switches() -> u64 {
    let mut usage = MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: the buffer has the size that the kernel writes.
    unsafe { libc::getrusage(libc::RUSAGE_THREAD, usage.as_mut_ptr()) };
    // SAFETY: all bytes were zero, which is a valid `rusage`, and the kernel may have overwritten
    // them.
    unsafe { usage.assume_init() }.ru_nivcsw.unsigned_abs()
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    static SIGNALS: AtomicU32 = AtomicU32::new(0);

    extern "C" fn count(_: libc::c_int) {
        SIGNALS.fetch_add(1, Ordering::SeqCst);
    }

    fn raise(signal: i32) {
        // SAFETY: the call takes no arguments.
        let own = unsafe { libc::pthread_self() };
        // SAFETY: the thread is running.
        assert_eq!(unsafe { libc::pthread_kill(own, signal) }, 0);
    }

    #[test]
    fn a_blocked_signal_is_reported_if_it_is_handled() {
        let handled = || SIGNALS.load(Ordering::SeqCst);
        // SAFETY: the handler only increments an atomic.
        let before =
            unsafe { libc::signal(libc::SIGUSR2, count as *const () as libc::sighandler_t) };
        assert_ne!(before, libc::SIG_ERR);
        let blocked = SignalSet(1 << (libc::SIGUSR1 - 1));
        let first = set_mask(blocked).unwrap();
        assert_eq!(with_signals_blocked(sched_yield), Some(false));
        let work = || {
            raise(libc::SIGUSR2);
            assert_eq!(handled(), 0);
        };
        assert_eq!(with_signals_blocked(work), Some(true));
        assert_eq!(handled(), 1);
        // A signal that is ignored, or that the caller blocks, is not handled.
        assert_eq!(with_signals_blocked(|| raise(libc::SIGURG)), Some(false));
        assert_eq!(with_signals_blocked(|| raise(libc::SIGUSR1)), Some(false));
        assert_eq!(handled(), 1);
        // SAFETY: the signal is ignored from now on, and the pending one is dropped.
        unsafe { libc::signal(libc::SIGUSR1, libc::SIG_IGN) };
        assert_eq!(set_mask(first), Some(blocked));
    }
}
