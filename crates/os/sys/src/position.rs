//! Reading and writing at the position of a descriptor, as read(2) and write(2) do.

use std::io::IoSlice;
use std::os::fd::BorrowedFd;

use rustix::fs::SeekFrom;

use crate::Result;

/// Reads from a descriptor, and returns the number of bytes; 0 at the end.
///
/// # Errors
/// Those of read(2), with EINTR.
pub fn read_next(file: BorrowedFd<'_>, bytes: &mut [u8]) -> Result<usize> {
    rustix::io::read(file, bytes)
}

/// Writes up to [`WRITE_PARTS_MAX`](crate::WRITE_PARTS_MAX) parts, one after the other, to a
/// descriptor. Returns the number of bytes written, which may be fewer than given.
///
/// # Errors
/// Those of writev(2), with EINTR.
pub fn write_next(file: BorrowedFd<'_>, parts: &[IoSlice<'_>]) -> Result<usize> {
    assert!(parts.len() <= crate::WRITE_PARTS_MAX);
    rustix::io::writev(file, parts)
}

/// Returns the position of a descriptor, in bytes from the start of the file.
///
/// # Errors
/// Those of lseek(2): ESPIPE for what has no position.
pub fn position(file: BorrowedFd<'_>) -> Result<u64> {
    rustix::fs::tell(file)
}

/// Sets the position of a descriptor, in bytes from the start of the file.
///
/// # Errors
/// Those of lseek(2).
pub fn set_position(file: BorrowedFd<'_>, position: u64) -> Result<()> {
    rustix::fs::seek(file, SeekFrom::Start(position)).map(drop)
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use rustix::io::Errno;

    use super::*;
    use crate::create_memory_file;

    #[test]
    fn each_call_goes_on_where_the_last_one_ended() {
        let file = create_memory_file("test", 0).unwrap();
        let parts = [IoSlice::new(b"ab"), IoSlice::new(b"cdef")];
        assert_eq!(write_next(file.as_fd(), &parts), Ok(6));
        assert_eq!(position(file.as_fd()), Ok(6));
        set_position(file.as_fd(), 1).unwrap();
        let mut bytes = [0; 3];
        assert_eq!((read_next(file.as_fd(), &mut bytes), &bytes), (Ok(3), b"bcd"));
        assert_eq!((read_next(file.as_fd(), &mut bytes), &bytes), (Ok(2), b"efd"));
        assert_eq!(read_next(file.as_fd(), &mut bytes), Ok(0));
        let (pipe, ..) = crate::pipe(4096).unwrap();
        assert_eq!(position(pipe.as_fd()), Err(Errno::SPIPE));
    }
}
