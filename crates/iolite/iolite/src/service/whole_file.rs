//! Whole files in memory of the daemon, for servers that send them from there.

use std::os::fd::BorrowedFd;

use millrace_sys::Errno;

use crate::aggregate::Aggregate;
use crate::service::client::FileClient;
use crate::service::version::FileVersion;

/// No file is longer (signed offsets).
const FILE_BYTES_MAX: u64 = i64::MAX as u64;

impl FileClient {
    /// Returns all bytes of a file in memory of the daemon, as they are at one moment of the call;
    /// `None` if the daemon does not have them there. Each slice is a whole memory file, or its
    /// beginning. With `waits` false, only bytes that were received before are returned, without a
    /// message to the daemon.
    ///
    /// # Errors
    /// EAGAIN if `waits` is false and the daemon may have the bytes; those of fstat(2).
    pub fn whole_file(
        &self,
        file: BorrowedFd<'_>,
        waits: bool,
    ) -> Result<Option<Aggregate>, Errno> {
        let Some(version) = FileVersion::of(file)? else { return Ok(None) };
        let kept = self.kept().read(&version, 0, version.bytes);
        if kept.len() == version.bytes {
            return Ok(Some(kept));
        }
        if !waits {
            return if self.link.may_respond() { Err(Errno::AGAIN) } else { Ok(None) };
        }
        let received = self.read_shared(file, version, 0, FILE_BYTES_MAX);
        // Another version may have been received.
        Ok(received.filter(|bytes| bytes.len() == version.bytes))
    }
}
