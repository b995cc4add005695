//! The system calls: which of them write to sockets, and their names.

use libc::c_long;

use crate::profile::layout::{
    CALL_NAMESPACE, CALL_OTHER, CALL_SEND, CALL_WRITE_FIRST, CALL_WRITE_THIRD, CALLS,
};

/// Returns the kind of each system call for the programs.
pub(crate) fn kinds() -> [u8; CALLS] {
    let mut kinds = [CALL_OTHER; CALLS];
    for (kind, numbers) in KINDS {
        for number in *numbers {
            kinds[*number as usize] = *kind;
        }
    }
    kinds
}

/// Returns the name of a system call; its number if it is not among the named ones.
pub(crate) fn name(number: usize) -> String {
    match NAMED.iter().find(|(named, _)| *named == number as c_long) {
        Some((_, name)) => name.trim_start_matches("SYS_").to_owned(),
        None => number.to_string(),
    }
}

/// A send(2) is sendto(2), too. vmsplice(2) and tee(2) write to pipes only.
const KINDS: &[(u8, &[c_long])] = &[
    (CALL_SEND, &[libc::SYS_sendto, libc::SYS_sendmsg, libc::SYS_sendmmsg]),
    (CALL_WRITE_FIRST, &[libc::SYS_write, libc::SYS_writev, libc::SYS_sendfile]),
    (CALL_WRITE_THIRD, &[libc::SYS_splice]),
    (CALL_NAMESPACE, &[libc::SYS_setns, libc::SYS_unshare]),
];

macro_rules! named {
    ($($name:ident)*) => { &[$((libc::$name, stringify!($name))),*] };
}

/// System calls that servers and their clients make often.
const NAMED: &[(c_long, &str)] = named! {
    SYS_accept SYS_accept4 SYS_bind SYS_bpf SYS_brk SYS_clock_nanosleep SYS_clone SYS_clone3
    SYS_close SYS_connect SYS_dup SYS_epoll_create1 SYS_epoll_ctl SYS_epoll_pwait SYS_epoll_pwait2
    SYS_eventfd2 SYS_execve SYS_exit SYS_exit_group SYS_fallocate SYS_fcntl SYS_fdatasync SYS_fstat
    SYS_fsync SYS_ftruncate SYS_futex SYS_getpeername SYS_getpid SYS_getppid SYS_getrandom
    SYS_getsockname SYS_getsockopt SYS_io_uring_enter SYS_io_uring_register SYS_io_uring_setup
    SYS_ioctl SYS_kill SYS_listen SYS_lseek SYS_madvise SYS_mmap SYS_mprotect SYS_mremap SYS_munmap
    SYS_nanosleep SYS_newfstatat SYS_openat SYS_pipe2 SYS_ppoll SYS_pread64 SYS_preadv SYS_pselect6
    SYS_pwrite64 SYS_pwritev SYS_read SYS_readv SYS_recvfrom SYS_recvmmsg SYS_recvmsg
    SYS_rt_sigaction SYS_rt_sigprocmask SYS_rt_sigreturn SYS_sched_yield SYS_sendfile SYS_sendmmsg
    SYS_sendmsg SYS_sendto SYS_setns SYS_setsockopt SYS_shutdown SYS_socket SYS_socketpair
    SYS_splice SYS_statx SYS_tee SYS_timerfd_settime SYS_unshare SYS_vmsplice SYS_wait4 SYS_write
    SYS_writev
    // Only some architectures have these.
    SYS_epoll_wait SYS_open SYS_poll SYS_select
};
