//! Files that are only appended to.

use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{Mode, OFlags};

use crate::Result;

/// Opens `path` for appending; closed on exec. A missing file is created with the mode 0666,
/// reduced by the umask. Writes may block, but the open does not: opening a pipe without a reader
/// fails.
///
/// # Errors
/// Those of open(2); ENXIO for a pipe without a reader.
pub fn open_to_append(path: &Path) -> Result<OwnedFd> {
    let how = OFlags::WRONLY | OFlags::APPEND | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOCTTY;
    let fd = rustix::fs::open(path, how | OFlags::NONBLOCK, Mode::from_raw_mode(0o666))?;
    rustix::fs::fcntl_setfl(&fd, OFlags::APPEND)?;
    Ok(fd)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{CWD, FileType, mknodat};
    use rustix::io::Errno;

    #[test]
    fn a_pipe_without_a_reader_is_an_error() {
        let path = std::env::temp_dir().join(format!("millrace-append-{}", std::process::id()));
        mknodat(CWD, &path, FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
        assert_eq!(open_to_append(&path).unwrap_err(), Errno::NXIO);
        let how = OFlags::RDONLY | OFlags::NONBLOCK;
        let _reader = rustix::fs::open(&path, how, Mode::empty()).unwrap();
        let pipe = open_to_append(&path).unwrap();
        let flags = rustix::fs::fcntl_getfl(&pipe).unwrap();
        assert!(flags.contains(OFlags::APPEND) && !flags.contains(OFlags::NONBLOCK), "{flags:?}");
        std::fs::remove_file(&path).unwrap();
    }
}
