//! Which files may be shared: regular ones, by the access of their descriptors, on some file
//! systems.

use std::os::fd::BorrowedFd;
use std::sync::LazyLock;

use iolite::service::{FileVersion, Refusal};

/// File systems whose regular files have the same bytes for each reader, that never wait for
/// another process, and on which `millrace_sys::await_writers` waits for writes or reading does.
/// Each with whether its times are exact since Linux 6.13 (multigrain timestamps). The numbers are
/// those of statfs(2).
const SHARED_FILE_SYSTEMS: [(u64, bool); 5] = [
    (0xef53, true),       // ext2, ext3, ext4
    (0x5846_5342, true),  // XFS
    (0x0102_1994, true),  // tmpfs
    (0xe0f5_e1e2, false), // EROFS
    (0x7371_7368, false), // squashfs
];

/// The kernel never gives two changes the same time if the first one was noticed.
static HAS_EXACT_TIMES: LazyLock<bool> = LazyLock::new(|| millrace_sys::kernel_is_since(6, 13));

/// A file that may be shared.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SharedFile {
    pub(crate) version: FileVersion,
    /// Each change has another version, even within one tick of the clock.
    pub(crate) has_exact_times: bool,
}

/// Examines a descriptor for reading.
///
/// # Errors
/// The reason why its file is not shared.
pub(crate) fn readable_file(file: BorrowedFd<'_>) -> Result<SharedFile, Refusal> {
    let access = millrace_sys::file_access(file).map_err(Refusal::Kernel)?;
    if access.reads { shared_file(file) } else { Err(Refusal::NotReadable) }
}

/// Examines a descriptor for writing.
///
/// # Errors
/// The reason why its file is not shared.
pub(crate) fn writable_file(file: BorrowedFd<'_>) -> Result<SharedFile, Refusal> {
    let access = millrace_sys::file_access(file).map_err(Refusal::Kernel)?;
    if access.writes { shared_file(file) } else { Err(Refusal::NotWritable) }
}

fn shared_file(file: BorrowedFd<'_>) -> Result<SharedFile, Refusal> {
    let version = FileVersion::of(file).map_err(Refusal::Kernel)?.ok_or(Refusal::NotRegular)?;
    let kind = millrace_sys::file_system(file).map_err(Refusal::Kernel)?;
    let known = SHARED_FILE_SYSTEMS.iter().find(|(known, _)| *known == kind);
    let (_, is_multigrain) = known.ok_or(Refusal::FileSystem)?;
    let has_exact_times = *is_multigrain && *HAS_EXACT_TIMES;
    Ok(SharedFile { version, has_exact_times })
}
