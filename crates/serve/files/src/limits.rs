//! Bounds of the crate, and what happens when they are reached.

/// The maximum number of entries of a listing. Further entries of the folder are left out, and the
/// page says so.
pub const LISTED_ENTRIES_MAX: usize = 10_000;

/// The maximum number of names that a listing reads from the kernel, hidden ones included. Further
/// names are left out.
pub(super) const READ_NAMES_MAX: usize = 100_000;

/// The maximum number of links in one path that leave a folder and lead to a granted one. A path
/// with more is refused with ELOOP. The kernel counts links that stay in a folder itself.
pub(super) const LEAVING_LINKS_MAX: usize = 8;

/// The maximum number of segments of a path after a leaving link is replaced by its target. A path
/// with more is refused with ENAMETOOLONG.
pub(super) const SEGMENTS_MAX: usize = 256;

/// How often an open that may wait is tried if it fails with EAGAIN, because a folder was renamed
/// meanwhile. After that the file counts as busy (EBUSY).
pub(super) const OPEN_TRIES_MAX: usize = 8;

/// The maximum number of members of `Accept-Encoding` that are read. Further ones are ignored.
pub(super) const ACCEPTED_CODINGS_MAX: usize = 64;
