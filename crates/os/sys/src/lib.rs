//! Thin wrappers of Linux system calls: descriptors, sockets, pipes, readiness, clocks, signals and
//! limits.
//!
//! Within the program, only the crates in `os/` and `uselect` call `rustix` and `libc`. Each
//! function makes one system call, or one fixed sequence of calls. The functions retry only EINTR.
//! None keeps state, except that [`take_passed_descriptors`] returns the descriptors only once. The
//! callers decide what an error means.

mod access;
mod append;
mod beneath;
mod clock;
mod congestion;
mod credentials;
mod directory;
mod futex;
mod generation;
mod handover;
mod limits;
mod listen;
mod memory;
mod packet;
mod permission;
mod pidfd;
mod pipe;
mod poll_select;
mod poller;
mod position;
mod private;
mod process;
mod program;
mod random;
mod read;
mod seals;
mod signals;
mod socket;
mod stream;
mod wait;
mod watch;

pub use access::{
    FileAccess, await_writers, file_access, file_system, has_other_openers, ignore_lease_signal,
};
pub use append::open_to_append;
pub use beneath::{
    BeneathRules, BeneathUse, InodeKind, InodeStatus, InodeTime, entry_status, inode_status,
    open_beneath, open_folder, open_reference, read_cached_at, read_link, read_uncached_at,
    visit_entries,
};
pub use clock::{cpu_time, cpu_time_of, monotonic_nanoseconds, thread_cpu_time, time_of_day};
pub use congestion::{
    CONGESTION_NAME_BYTES_MAX, congestion, default_congestion, set_congestion, try_congestion,
};
pub use credentials::{PeerCredentials, effective_user, peer_credentials};
pub use directory::{
    FileStatus, OpenMode, WRITE_PARTS_MAX, create_directory, create_unnamed_file, file_status,
    list_directory, lock_file, open_directory, open_file, read_at, remove_file, rename_file,
    sync_directory, sync_file, truncate_file, write_parts_at,
};
pub use futex::{futex_wait, futex_wake};
pub use generation::process_generation;
pub use handover::{
    BoundAddress, DESCRIPTORS_PER_MESSAGE_MAX, listening_address, receive_with_descriptors,
    send_with_descriptors, take_passed_descriptors,
};
pub use limits::{
    descriptor_limit, locked_memory_limit, lower_descriptor_limit, raise_descriptor_limit,
};
pub use listen::{
    is_listening, listen_packets, listen_tcp, listen_unix, local_address, prepare_listener,
};
pub use memory::{
    HUGE_PAGE_BYTES, MappedFile, MappedRegion, create_memory_file, punch_hole, sendfile,
};
pub use packet::{
    DESCRIPTORS_PER_PACKET_MAX, await_connection, await_packet, connect_and_wait, connect_packets,
    packet_pair, receive_packet, send_packet, send_packet_and_wait, set_blocking,
    set_descriptor_passing, wait_for_packet,
};
pub use permission::permits_all_users;
pub use pidfd::{has_ended, is_process, open_process};
pub use pipe::{pipe, read_pipe, splice, tee};
pub use poll_select::{Interest, LevelSet, PollSet, SelectSet};
pub use poller::{EventFd, Events, Poller, Readiness, Timer};
pub use position::{position, read_next, set_position, write_next};
pub use private::{PrivateMemory, page_bytes};
pub use process::{descriptor_count, has_started_privileged, resident_bytes};
pub use program::{
    ProgramStart, kill_group, open_child, set_nonblocking, start_program, write_pipe,
};
pub use random::fill_random;
pub use read::open_to_read;
pub use rustix::io::Errno;
pub use rustix::net::Shutdown;
pub use seals::{
    first_hole, has_sealed_contents, is_sealed_for_readers, memory_file_size, reopen_to_read,
    seal_contents, seal_for_readers,
};
pub use signals::{Signal, Signals, ignore_broken_pipe_signal};
pub use socket::{
    Connecting, PARTS_MAX, TcpState, accept, connect_tcp, connect_tcp_from, connect_udp,
    connect_unix, discard, is_nonblocking, peek, receive, reset_on_close, send, set_nodelay,
    shutdown, take_error, tcp_state, unacknowledged_bytes,
};
pub use stream::{
    StreamFamily, TcpConnection, TcpCounters, check_sending, is_stream_socket, receive_timeout,
    socket_number, stream_family, tcp_connection, tcp_counters, tcp_written, unix_peer,
    unix_unread,
};
pub use wait::{DescriptorState, PacketEvents, wait_for_two, waiting_bytes};
pub use watch::{FreedFiles, WatchNumber, watched_files_max};

/// The result of a system call: a value, or the kernel's error number (errno(3)).
pub type Result<T> = std::result::Result<T, Errno>;

/// Returns the error of the last system call.
pub fn last_error() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}
