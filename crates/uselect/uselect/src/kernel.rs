//! The one door to Linux of this crate but for io_uring: what it asks of the kernel, a function a
//! call.
//!
//! Not by `millrace-sys`: the library is linked into other people's programs, which have no use for
//! the rest of that crate.

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

/// What may be seen in memory that others write to at any time.
///
/// # Safety
/// Any bytes are one, and but for padding, which nobody reads, it is made of atomics alone.
pub(crate) unsafe trait SharedMemory {}

// SAFETY: atomics and padding.
unsafe impl SharedMemory for crate::layout::ReadOnlyPages {}
// SAFETY: atomics and padding.
unsafe impl SharedMemory for crate::layout::WritablePages {}
// SAFETY: they are atomics.
unsafe impl SharedMemory for AtomicU64 {}
// SAFETY: they are atomics.
unsafe impl SharedMemory for AtomicU8 {}

/// Memory that is shared, seen as one `T`.
pub(crate) struct Mapping<T> {
    start: NonNull<T>,
    bytes: usize,
    marker: PhantomData<T>,
}

// SAFETY: the mapping is memory like any other, and what is in it are atomics.
unsafe impl<T: Sync> Send for Mapping<T> {}
// SAFETY: as above; only `&T` is handed out.
unsafe impl<T: Sync> Sync for Mapping<T> {}

impl<T: SharedMemory> Mapping<T> {
    /// Maps a `T` that begins at `offset`, a multiple of the page's size, of what `fd` is. Nothing
    /// may be stored there unless `is_writable`.
    pub(crate) fn new(fd: BorrowedFd<'_>, offset: u64, is_writable: bool) -> Result<Self> {
        let bytes = size_of::<T>().next_multiple_of(page_size());
        let write = if is_writable { ProtFlags::WRITE } else { ProtFlags::empty() };
        let (access, flags) = (ProtFlags::READ | write, MapFlags::SHARED);
        // SAFETY: the kernel picks the address, so nothing that is mapped is touched.
        let start = unsafe { mmap(std::ptr::null_mut(), bytes, access, flags, fd, offset) }?;
        Ok(Self::from_start(start.cast(), bytes))
    }

    fn from_start(start: *mut T, bytes: usize) -> Self {
        let start = NonNull::new(start).expect("mmap gives no address 0");
        assert!(start.is_aligned(), "pages are aligned for everything");
        Self { start, bytes, marker: PhantomData }
    }

    /// Memory of the process's own, of which all bytes are 0.
    pub(crate) fn private() -> Result<Self> {
        let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        let bytes = size_of::<T>().next_multiple_of(page_size());
        // SAFETY: the kernel picks the address, so nothing that is mapped is touched.
        let start = unsafe { mmap_anonymous(std::ptr::null_mut(), bytes, access, flags) }?;
        Ok(Self::from_start(start.cast(), bytes))
    }
}

impl Mapping<AtomicU8> {
    /// A byte that is 0, in every child of fork(2) again (MADV_WIPEONFORK, since Linux 4.14).
    pub(crate) fn wiped_on_fork() -> Result<Self> {
        let mapping = Self::private()?;
        let start = mapping.start.as_ptr().cast();
        // SAFETY: the page is the mapping's own; its bytes change in children alone.
        unsafe { madvise(start, mapping.bytes, Advice::LinuxWipeOnFork) }?;
        Ok(mapping)
    }
}

impl<T: SharedMemory> Deref for Mapping<T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: the memory is mapped as long as `self` lives, aligned, as long as a `T`, and any
        // bytes are a `T`, as `Shared` says.
        unsafe { self.start.as_ref() }
    }
}

impl<T> Drop for Mapping<T> {
    fn drop(&mut self) {
        // SAFETY: nobody has a reference any more, as they borrow `self`.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}

/// The number by which the kernel's programs know the thread that runs.
pub(crate) fn thread_id() -> u32 {
    rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs()
}

/// A TCP socket, closed on exec, non-blocking if asked for.
pub(crate) fn tcp_socket(family: AddressFamily, is_blocking: bool) -> Result<OwnedFd> {
    let flags = flags(is_blocking);
    rustix::net::socket_with(family, SocketType::STREAM, flags, Some(ipproto::TCP))
}

/// Whether a thread of this process has ended.
pub(crate) fn has_thread_ended(thread: u32) -> bool {
    let (process, none) = (rustix::process::getpid().as_raw_pid(), 0);
    // SAFETY: it takes nothing but numbers, and there is no signal of that number.
    let result = unsafe { libc::syscall(libc::SYS_tgkill, process, thread, none) };
    result < 0 && std::io::Error::last_os_error().raw_os_error() == Some(libc::ESRCH)
}

/// Always with room for the address: the kernel's program runs when that is looked for.
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

/// Makes the kernel look at a socket, whatever its state is: asks for its name (getsockname(2)),
/// which calls the programs and does nothing else. A receive of 0 bytes would call them too, but it
/// takes a kept error.
pub(crate) fn run_programs(socket: BorrowedFd<'_>) {
    // Whatever it gives, the programs have run.
    let _ = rustix::net::getsockname(socket);
}

/// Whether it is a TCP socket.
pub(crate) fn is_tcp(fd: BorrowedFd<'_>) -> bool {
    sockopt::socket_protocol(fd).is_ok_and(|protocol| protocol == Some(ipproto::TCP))
}

/// Connects to a Unix socket, closed on exec. Where that would have to wait for longer than about
/// `time`: EAGAIN.
pub(crate) fn connect(path: &Path, time: Duration) -> Result<OwnedFd> {
    let address = SocketAddrUnix::new(path)?;
    let flags = SocketFlags::CLOEXEC;
    let fd = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    sockopt::set_socket_timeout(&fd, sockopt::Timeout::Send, Some(time))?;
    let end = Instant::now() + time;
    loop {
        match rustix::net::connect(&fd, &address) {
            // Signals must not make it wait for ever.
            Err(Errno::INTR) if Instant::now() < end => {}
            Err(Errno::INTR) => return Err(Errno::AGAIN),
            connected => return connected.map(|()| fd),
        }
    }
}

pub(crate) fn send(fd: BorrowedFd<'_>, bytes: &[u8]) -> Result<usize> {
    retry_on_intr(|| rustix::net::send(fd, bytes, SendFlags::NOSIGNAL))
}

/// Receives bytes, and up to `COUNT` descriptors that come with them. Where nothing comes within
/// `time`: EAGAIN.
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
        if let RecvAncillaryMessage::ScmRights(came) = message {
            descriptors.extend(came);
        }
    }
    match received.flags.contains(ReturnFlags::CTRUNC) {
        true => Err(Errno::MFILE),
        false => Ok(received.bytes),
    }
}

/// Whether the other side of a Unix connection is gone. Does not wait.
pub(crate) fn is_peer_closed(fd: BorrowedFd<'_>) -> bool {
    let mut fds = [PollFd { fd: fd.as_raw_fd(), events: 0, revents: 0 }];
    ppoll(&mut fds, Some(Duration::ZERO), None).is_ok_and(|count| count > 0)
}

/// Borrows a descriptor for a call by its number, which a caller has named. What that number is,
/// is the caller's to know; the kernel says EBADF if it is nothing.
pub(crate) fn borrow_fd<'a>(fd: i32) -> Option<BorrowedFd<'a>> {
    // SAFETY: it is not -1; a number that is not open is an error of the call that gets it, as with
    // poll(2) itself.
    (fd >= 0).then(|| unsafe { BorrowedFd::borrow_raw(fd) })
}

/// A set of signals as the kernel has it: bit n - 1 for signal n.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(transparent)]
pub struct SignalSet(pub u64);

/// Signals that an instruction causes, which cannot wait.
const SYNCHRONOUS: [i32; 6] =
    [libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE, libc::SIGTRAP, libc::SIGSYS];

/// Has signals to this thread wait until `work` is done: whether one came that was handled then,
/// which would have ended a call. `None`, and nothing is done, where a program may not hold them.
///
/// One that is ignored waits as well; in a program of several threads the kernel may give it to
/// another one, whose epoll_wait(2) then ends.
pub(crate) fn with_signals_blocked(work: impl FnOnce()) -> Option<bool> {
    let caused = SYNCHRONOUS.iter().fold(0, |set, signal| set | 1 << (signal - 1));
    let before = set_mask(SignalSet(!caused))?;
    work();
    // Lets them through. Not by the mask alone: that does not tell.
    let is_interrupted = ppoll(&mut [], Some(Duration::ZERO), Some(&before)) == Err(Errno::INTR);
    set_mask(before);
    Some(is_interrupted)
}

/// rt_sigprocmask(2): the mask of before.
fn set_mask(mask: SignalSet) -> Option<SignalSet> {
    let mut before = SignalSet::default();
    // SAFETY: both sets outlive the call and are as long as is said.
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

/// sched_yield(2): whoever else wants this processor goes first.
pub(crate) fn sched_yield() {
    // SAFETY: it takes nothing.
    unsafe { libc::syscall(libc::SYS_sched_yield) };
}

/// poll(2), or with a mask ppoll(2). Not by the C library, in which another program may have put
/// something of its own in its place; nor by `rustix`, which has no masks.
pub(crate) fn ppoll(
    fds: &mut [PollFd],
    timeout: Option<Duration>,
    mask: Option<&SignalSet>,
) -> Result<usize> {
    let mut timeout = KernelTimespec::new(timeout);
    // SAFETY: `PollFd` is `struct pollfd`, and the kernel gets as many as there are; time and mask
    // are null or outlive the call, and the mask is as long as is said.
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

/// `struct __kernel_timespec`, where there is one.
struct KernelTimespec(Option<[i64; 2]>);

impl KernelTimespec {
    /// What is longer than the kernel can say is for ever.
    fn new(timeout: Option<Duration>) -> Self {
        Self(timeout.and_then(|timeout| {
            Some([timeout.as_secs().try_into().ok()?, timeout.subsec_nanos().into()])
        }))
    }

    /// ppoll(2) stores there what is left, and goes on with that when it was interrupted.
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

/// A counter that can be waited for (eventfd(2)), closed on exec, that no call waits for.
pub(crate) fn eventfd() -> Result<InternalFd> {
    let flags = rustix::event::EventfdFlags::CLOEXEC | rustix::event::EventfdFlags::NONBLOCK;
    InternalFd::from_result(rustix::event::eventfd(0, flags))
}

/// Makes it readable, if it is not already.
pub(crate) fn signal_eventfd(eventfd: &InternalFd) {
    let _ = rustix::io::write(eventfd, &1_u64.to_ne_bytes());
}

/// Makes it unreadable.
pub(crate) fn drain_eventfd(eventfd: &InternalFd) {
    let _ = rustix::io::read(eventfd, &mut [0; 8]);
}

/// How often this thread had to leave the processor to somebody else; 0 where a program may not ask
/// (seccomp(2)).
pub(crate) fn involuntary_switches() -> u64 {
    let mut usage = MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: there is room for what the kernel writes.
    unsafe { libc::getrusage(libc::RUSAGE_THREAD, usage.as_mut_ptr()) };
    // SAFETY: all bytes were zeroed, which is a `rusage`, and then written by the kernel, or not.
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
        // SAFETY: there is a thread that runs.
        let own = unsafe { libc::pthread_self() };
        // SAFETY: it has not been joined.
        assert_eq!(unsafe { libc::pthread_kill(own, signal) }, 0);
    }

    #[test]
    fn a_signal_that_was_held_is_told_of_if_it_is_handled() {
        let handled = || SIGNALS.load(Ordering::SeqCst);
        // SAFETY: the handler only counts.
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
        // One that is ignored, and one that the caller holds, are none.
        assert_eq!(with_signals_blocked(|| raise(libc::SIGURG)), Some(false));
        assert_eq!(with_signals_blocked(|| raise(libc::SIGUSR1)), Some(false));
        assert_eq!(handled(), 1);
        // SAFETY: no handler is left; the one that waits is dropped.
        unsafe { libc::signal(libc::SIGUSR1, libc::SIG_IGN) };
        assert_eq!(set_mask(first), Some(blocked));
    }
}
