//! seccomp(2): restricts the system calls of the process.
//!
//! There are three kinds of calls. Those in `ALLOWED` are allowed, some of them only with the
//! arguments listed in [`conditions`]. Those in `FATAL` are never made by this program unless it is
//! compromised: the first one kills the process, and the kernel logs its number. Every other call
//! fails with ENOSYS, as if the kernel did not have it. Libraries that probe for newer calls expect
//! that, and an attacker gains nothing from it.
//!
//! The lists follow from this program, the Rust standard library and the C library (threads,
//! memory, name lookups of the health checks). A call without conditions costs next to nothing,
//! wherever it is in the list: since Linux 5.11 the kernel keeps a bitmap of such calls and runs no
//! filter for them.

use std::collections::BTreeMap;
use std::mem::size_of;

use libc::c_long;
use rustix::io::Errno;
use seccompiler::SeccompCmpArgLen::{Dword, Qword};
use seccompiler::SeccompCmpOp::{Eq, Le, MaskedEq};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, TargetArch,
};

use millrace_sys::Result;

/// System calls that only some processes of this program make.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ExtraCalls {
    /// The calls of io_uring(7).
    pub rings: bool,
    /// The call of [`SelectSet`](millrace_sys::SelectSet).
    pub select: bool,
    /// The calls of [`write_parts_at`](millrace_sys::write_parts_at) and the other functions for
    /// files.
    pub stores: bool,
    /// The calls of channels to other processes (`crates/iolite/iolite`).
    pub channels: bool,
}

/// Restricts the calling thread, and those that it starts from now on, to the system calls of this
/// program and those of `also`. This cannot be undone. Also sets no_new_privs.
///
/// # Errors
/// ENOSYS: there are no lists for this processor. EINVAL: the kernel is older than Linux 4.17, or
/// has no seccomp filters. EACCES or EPERM: a filter that is in force forbids it.
///
/// # Panics
/// Panics if the lists cannot be compiled to a filter.
pub fn restrict_syscalls(also: ExtraCalls) -> Result<()> {
    let processor = TargetArch::try_from(std::env::consts::ARCH).map_err(|_| Errno::NOSYS)?;
    let fatal = FATAL.iter().chain(FATAL_OF_PROCESSOR).map(|call| (*call, Vec::new()));
    let fatal =
        program(fatal.collect(), SeccompAction::KillProcess, SeccompAction::Allow, processor);
    let missing = SeccompAction::Errno(libc::ENOSYS as u32);
    let allowed = program(allowed(also), SeccompAction::Allow, missing, processor);
    // The fatal filter is installed first, since the other one forbids seccomp(2). If both match,
    // the kernel takes the stricter action.
    rustix::thread::set_no_new_privs(true)?;
    install(&fatal)?;
    install(&allowed)
}

/// Installs a filter for the calling thread. Speculation mitigations stay as they are
/// (SECCOMP_FILTER_FLAG_SPEC_ALLOW). Before Linux 5.16, a filter without this flag enables them,
/// which slows down the whole thread. They protect programs that run untrusted code, which this
/// program does not do. The crate `seccompiler` cannot pass the flag.
fn install(program: &BpfProgram) -> Result<()> {
    let program = libc::sock_fprog {
        len: u16::try_from(program.len()).map_err(|_| Errno::INVAL)?,
        filter: program.as_ptr().cast_mut().cast(),
    };
    let (mode, flags) = (libc::SECCOMP_SET_MODE_FILTER, libc::SECCOMP_FILTER_FLAG_SPEC_ALLOW);
    // SAFETY: the argument names a program of that length; both outlive the call, which copies
    // them; the crate's instructions have the kernel's layout.
    let result = unsafe { libc::syscall(libc::SYS_seccomp, mode, flags, &raw const program) };
    if result == 0 { Ok(()) } else { Err(millrace_sys::last_error()) }
}

const _: () = assert!(size_of::<seccompiler::sock_filter>() == size_of::<libc::sock_filter>());

/// Returns whether [`restrict_syscalls`] has lists for this processor, and the kernel can kill a
/// process that makes a forbidden call.
pub fn can_restrict_syscalls() -> bool {
    const GET_ACTION_AVAILABLE: libc::c_uint = 2;
    let action: u32 = libc::SECCOMP_RET_KILL_PROCESS;
    // SAFETY: the argument is one word, which outlives the call and is only read.
    let found =
        unsafe { libc::syscall(libc::SYS_seccomp, GET_ACTION_AVAILABLE, 0, &raw const action) };
    found == 0 && TargetArch::try_from(std::env::consts::ARCH).is_ok()
}

type SyscallRules = BTreeMap<i64, Vec<SeccompRule>>;

/// Compiles rules to a program. Calls that match no rule get the action `other`.
fn program(
    rules: SyscallRules,
    matched: SeccompAction,
    other: SeccompAction,
    processor: TargetArch,
) -> BpfProgram {
    let filter = SeccompFilter::new(rules, other, matched, processor);
    filter.and_then(BpfProgram::try_from).expect("the lists compile to a filter")
}

fn allowed(also: ExtraCalls) -> SyscallRules {
    let mut rules: SyscallRules = ALLOWED
        .iter()
        .chain(ALLOWED_OF_PROCESSOR)
        .chain(if also.rings { RINGS } else { &[] })
        .chain(if also.select { SELECT } else { &[] })
        .chain(if also.stores { STORES } else { &[] })
        .chain(if also.channels { CHANNELS } else { &[] })
        .map(|call| (*call, Vec::new()))
        .collect();
    rules.extend(conditions(also));
    rules
}

/// A condition on an argument of a call: its position, its width, the comparison, and the value.
type Argument = (u8, SeccompCmpArgLen, SeccompCmpOp, u64);

/// Returns a rule that matches if all `arguments` match.
fn rule(arguments: impl IntoIterator<Item = Argument>) -> SeccompRule {
    let conditions = arguments.into_iter().map(|(place, width, comparison, value)| {
        SeccompCondition::new(place, width, comparison, value)
            .expect("argument positions are below 6")
    });
    SeccompRule::new(conditions.collect()).expect("a rule has at least one condition")
}

/// Returns rules that match if the argument at `place` is one of `values`.
fn one_of(place: u8, values: impl IntoIterator<Item = u64>) -> Vec<SeccompRule> {
    values.into_iter().map(|value| rule([(place, Dword, Eq, value)])).collect()
}

/// Returns the calls that are allowed with certain arguments only.
fn conditions(also: ExtraCalls) -> SyscallRules {
    let not_executable = || vec![rule([(2, Qword, MaskedEq(libc::PROT_EXEC as u64), 0)])];
    let thread = MaskedEq((libc::CLONE_THREAD | NAMESPACES) as u64);
    let own = u64::from(std::process::id());
    SyscallRules::from([
        (libc::SYS_socket, sockets(also)),
        // Written memory never becomes executable.
        (libc::SYS_mmap, not_executable()),
        (libc::SYS_mprotect, not_executable()),
        // Threads are allowed, but no processes or namespaces. A filter cannot see the arguments of
        // clone3(2), so that call fails with ENOSYS, and the C library then uses clone(2).
        (libc::SYS_clone, vec![rule([(0, Qword, thread, libc::CLONE_THREAD as u64)])]),
        // A thread may set its name. Every other operation of prctl(2) fails.
        (libc::SYS_prctl, one_of(0, [libc::PR_SET_NAME as u64])),
        // abort(3) and signals to the process itself; no signals to others.
        (libc::SYS_tgkill, one_of(0, [own])),
        (libc::SYS_kill, one_of(0, [own])),
        // Limits of this process are read, and never set.
        (libc::SYS_prlimit64, vec![rule([(0, Dword, Eq, 0), (2, Qword, Eq, 0)])]),
        (libc::SYS_fcntl, one_of(1, fcntl_commands(also))),
        (libc::SYS_ioctl, one_of(1, IOCTL)),
    ])
}

/// Allows stream and datagram sockets over IP and Unix. Raw sockets, packet sockets and kernel
/// interfaces are not allowed, nor are SCTP and other rare protocols.
fn sockets(also: ExtraCalls) -> Vec<SeccompRule> {
    let families = [libc::AF_UNIX, libc::AF_INET, libc::AF_INET6];
    let kinds = [libc::SOCK_STREAM, libc::SOCK_DGRAM];
    let pairs = families.into_iter().flat_map(|family| kinds.map(|kind| (family, kind)));
    let of_channels = also.channels.then_some((libc::AF_UNIX, libc::SOCK_SEQPACKET));
    pairs
        .chain(of_channels)
        .map(|(family, kind)| {
            rule([
                (0, Dword, Eq, family as u64),
                (1, Dword, MaskedEq(SOCKET_KIND), kind as u64),
                (2, Dword, Le, libc::IPPROTO_UDP as u64),
            ])
        })
        .collect()
}

fn fcntl_commands(also: ExtraCalls) -> impl Iterator<Item = u64> {
    let seals = [libc::F_ADD_SEALS, libc::F_GET_SEALS];
    let of_channels = also.channels.then_some(seals).into_iter().flatten();
    FCNTL.into_iter().chain(of_channels).map(|command| command as u64)
}

/// The bits of a socket's type that are not flags.
const SOCKET_KIND: u64 = 0xf;

const NAMESPACES: i32 = libc::CLONE_NEWNS
    | libc::CLONE_NEWCGROUP
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUSER
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET;

const FCNTL: [i32; 7] = [
    libc::F_GETFL,
    libc::F_SETFL,
    libc::F_GETFD,
    libc::F_SETFD,
    libc::F_DUPFD_CLOEXEC,
    libc::F_SETPIPE_SZ,
    libc::F_GETPIPE_SZ,
];

/// Non-blocking mode, close-on-exec, the number of readable bytes, the number of unacknowledged
/// bytes, and whether a descriptor is a terminal.
#[allow(clippy::unnecessary_cast, reason = "the type depends on the C library")]
const IOCTL: [u64; 5] = [
    libc::FIONBIO as u64,
    libc::FIOCLEX as u64,
    libc::FIONREAD as u64,
    libc::TIOCOUTQ as u64,
    libc::TCGETS as u64,
];

/// io_uring(7). A ring's operations are restricted when it is created. A worker that is restarted
/// creates a new ring.
const RINGS: &[c_long] =
    &[libc::SYS_io_uring_enter, libc::SYS_io_uring_setup, libc::SYS_io_uring_register];

/// pselect6(2). The waiting calls of the other engines are always allowed.
const SELECT: &[c_long] = &[libc::SYS_pselect6];

/// Files that are written at offsets, truncated, locked, and renamed over others: the cache's
/// disks. The program calls mkdirat(2) only for directories that were created before the
/// restriction, and gets EEXIST.
const STORES: &[c_long] = &[
    libc::SYS_pwrite64,
    libc::SYS_pwritev,
    libc::SYS_ftruncate,
    libc::SYS_fdatasync,
    libc::SYS_fsync,
    libc::SYS_flock,
    libc::SYS_mkdirat,
    libc::SYS_renameat,
    libc::SYS_renameat2,
];

/// Memory files, whose size is set before they are sealed, and handles of the processes at the
/// other ends.
const CHANNELS: &[c_long] =
    &[libc::SYS_memfd_create, libc::SYS_ftruncate, libc::SYS_fstatfs, libc::SYS_pidfd_open];

const ALLOWED: &[c_long] = &[
    // The calls of a request. None of these may ever have a condition.
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_ctl,
    libc::SYS_accept4,
    libc::SYS_recvfrom,
    libc::SYS_sendto,
    libc::SYS_recvmsg,
    libc::SYS_sendmsg,
    libc::SYS_splice,
    libc::SYS_tee,
    libc::SYS_sendfile,
    libc::SYS_preadv2,
    libc::SYS_read,
    libc::SYS_write,
    libc::SYS_readv,
    libc::SYS_writev,
    libc::SYS_close,
    libc::SYS_shutdown,
    libc::SYS_connect,
    libc::SYS_getsockopt,
    libc::SYS_setsockopt,
    libc::SYS_getsockname,
    libc::SYS_getpeername,
    libc::SYS_futex,
    libc::SYS_clock_gettime,
    // Sockets of listeners, of name lookups by the C library, and of the admin server.
    libc::SYS_bind,
    libc::SYS_listen,
    libc::SYS_sendmmsg,
    libc::SYS_ppoll,
    libc::SYS_epoll_create1,
    libc::SYS_epoll_pwait2,
    libc::SYS_eventfd2,
    libc::SYS_pipe2,
    libc::SYS_dup,
    // Memory.
    libc::SYS_munmap,
    libc::SYS_mremap,
    libc::SYS_madvise,
    // Memory of the cache, in memory files that were opened before, is returned to the kernel.
    libc::SYS_fallocate,
    libc::SYS_brk,
    // Threads, their signals and their ends.
    libc::SYS_set_robust_list,
    libc::SYS_rseq,
    libc::SYS_sigaltstack,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigreturn,
    libc::SYS_rt_sigtimedwait,
    libc::SYS_sched_yield,
    libc::SYS_sched_getaffinity,
    // A thread that spins on shared memory checks with this whether others want the processor.
    libc::SYS_getrusage,
    libc::SYS_gettid,
    libc::SYS_getpid,
    // A reload makes the paths of folders absolute.
    libc::SYS_getcwd,
    libc::SYS_getuid,
    libc::SYS_geteuid,
    libc::SYS_getgid,
    libc::SYS_getegid,
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_restart_syscall,
    // Time and random numbers.
    libc::SYS_clock_nanosleep,
    libc::SYS_nanosleep,
    libc::SYS_clock_getres,
    libc::SYS_gettimeofday,
    libc::SYS_getrandom,
    libc::SYS_uname,
    libc::SYS_sysinfo,
    // Files; Landlock decides which ones. A socket's mode is set before it has a name.
    libc::SYS_openat,
    libc::SYS_openat2,
    libc::SYS_pread64,
    libc::SYS_lseek,
    libc::SYS_fstat,
    libc::SYS_newfstatat,
    libc::SYS_statx,
    libc::SYS_readlinkat,
    libc::SYS_faccessat,
    libc::SYS_faccessat2,
    libc::SYS_getdents64,
    libc::SYS_unlinkat,
    libc::SYS_fchmod,
    libc::SYS_umask,
];

/// Older forms of the calls above, which only this processor has.
#[cfg(target_arch = "x86_64")]
const ALLOWED_OF_PROCESSOR: &[c_long] = &[
    libc::SYS_epoll_wait,
    libc::SYS_poll,
    libc::SYS_open,
    libc::SYS_stat,
    libc::SYS_lstat,
    libc::SYS_access,
    libc::SYS_readlink,
    libc::SYS_unlink,
    libc::SYS_time,
];
#[cfg(not(target_arch = "x86_64"))]
const ALLOWED_OF_PROCESSOR: &[c_long] = &[];

const FATAL: &[c_long] = &[
    // Executing programs, and accessing other processes' memory and descriptors.
    libc::SYS_execve,
    libc::SYS_execveat,
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_pidfd_getfd,
    libc::SYS_kcmp,
    // Changing the identity or the namespaces.
    libc::SYS_setuid,
    libc::SYS_setgid,
    libc::SYS_setreuid,
    libc::SYS_setregid,
    libc::SYS_setresuid,
    libc::SYS_setresgid,
    libc::SYS_setfsuid,
    libc::SYS_setfsgid,
    libc::SYS_setgroups,
    libc::SYS_capset,
    libc::SYS_unshare,
    libc::SYS_setns,
    libc::SYS_chroot,
    libc::SYS_pivot_root,
    // Mounts, and opening files by handle.
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_move_mount,
    libc::SYS_open_tree,
    libc::SYS_fsopen,
    libc::SYS_fsmount,
    libc::SYS_mount_setattr,
    libc::SYS_open_by_handle_at,
    // The kernel itself, and calls that its exploits use.
    libc::SYS_bpf,
    libc::SYS_perf_event_open,
    libc::SYS_userfaultfd,
    libc::SYS_keyctl,
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_kexec_load,
    libc::SYS_reboot,
    libc::SYS_syslog,
    libc::SYS_swapon,
    libc::SYS_swapoff,
    libc::SYS_settimeofday,
    libc::SYS_clock_settime,
];

#[cfg(target_arch = "x86_64")]
const FATAL_OF_PROCESSOR: &[c_long] =
    &[libc::SYS_fork, libc::SYS_vfork, libc::SYS_iopl, libc::SYS_ioperm, libc::SYS_modify_ldt];
#[cfg(not(target_arch = "x86_64"))]
const FATAL_OF_PROCESSOR: &[c_long] = &[];
