//! Files that are only read.

use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{Mode, OFlags};

use crate::Result;

/// Opens `path` for reading; closed on exec. Neither the open nor a read waits: a pipe without a
/// writer is empty, and a file such as /proc/kmsg without more bytes returns EAGAIN.
///
/// # Errors
/// Those of open(2).
pub fn open_to_read(path: &Path) -> Result<OwnedFd> {
    let how = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOCTTY | OFlags::NONBLOCK;
    rustix::io::retry_on_intr(|| rustix::fs::open(path, how, Mode::empty()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{CWD, FileType, mknodat};

    #[test]
    fn a_pipe_without_a_writer_is_empty() {
        let path = std::env::temp_dir().join(format!("millrace-read-{}", std::process::id()));
        mknodat(CWD, &path, FileType::Fifo, Mode::RUSR, 0).unwrap();
        let pipe = open_to_read(&path).unwrap();
        assert_eq!(rustix::io::read(&pipe, &mut [0; 8]), Ok(0));
        std::fs::remove_file(path).unwrap();
    }
}
