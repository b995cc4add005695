//! Which files may be shared: regular ones, by the access of their descriptors, on some file
//! systems.

use std::os::fd::BorrowedFd;

use iolite::service::{FileVersion, Refusal};

/// File systems whose regular files have the same bytes for each reader, that never wait for
/// another process, and on which `millrace_sys::await_writers` waits for writes or reading does.
/// The numbers are those of statfs(2).
const SHARED_FILE_SYSTEMS: [u64; 5] = [
    0xef53,      // ext3, ext4
    0x5846_5342, // XFS
    0x0102_1994, // tmpfs
    0xe0f5_e1e2, // EROFS
    0x7371_7368, // squashfs
];

/// Examines a descriptor for reading, and returns the version of its file.
///
/// # Errors
/// The reason why its file is not shared.
pub(crate) fn readable_file(file: BorrowedFd<'_>) -> Result<FileVersion, Refusal> {
    let access = millrace_sys::file_access(file).map_err(Refusal::Kernel)?;
    if access.reads { shared_file(file) } else { Err(Refusal::NotReadable) }
}

/// Examines a descriptor for writing, and returns the version of its file.
///
/// # Errors
/// The reason why its file is not shared.
pub(crate) fn writable_file(file: BorrowedFd<'_>) -> Result<FileVersion, Refusal> {
    let access = millrace_sys::file_access(file).map_err(Refusal::Kernel)?;
    if access.writes { shared_file(file) } else { Err(Refusal::NotWritable) }
}

fn shared_file(file: BorrowedFd<'_>) -> Result<FileVersion, Refusal> {
    let version = FileVersion::of(file).map_err(Refusal::Kernel)?.ok_or(Refusal::NotRegular)?;
    let kind = millrace_sys::file_system(file).map_err(Refusal::Kernel)?;
    SHARED_FILE_SYSTEMS.contains(&kind).then_some(version).ok_or(Refusal::FileSystem)
}
