//! Pipes, and moving bytes between them and sockets.

use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::pipe::{PipeFlags, SpliceFlags, fcntl_getpipe_size, fcntl_setpipe_size, pipe_with};

use crate::Result;

/// Creates a pipe that is non-blocking and closed on exec. Returns its reading end, its writing
/// end, and its capacity in bytes. A capacity of `size` is requested (fcntl(2), F_SETPIPE_SZ). The
/// capacity is smaller if the user is over /proc/sys/fs/pipe-user-pages-soft, which is not an
/// error.
///
/// # Errors
/// EMFILE, ENFILE.
pub fn pipe(size: usize) -> Result<(OwnedFd, OwnedFd, usize)> {
    let (read, write) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
    let capacity = fcntl_setpipe_size(&write, size).or_else(|_| fcntl_getpipe_size(&write))?;
    Ok((read, write, capacity))
}

/// Moves up to `max` bytes between a pipe and a socket without copying them to user space
/// (splice(2)), and returns their number; 0 at the end of the source. SIGPIPE has to be ignored:
/// see [`ignore_broken_pipe_signal`](crate::ignore_broken_pipe_signal).
///
/// # Errors
/// EAGAIN if the source is empty or the target has no room; those of read(2) and write(2).
pub fn splice(from: BorrowedFd<'_>, into: BorrowedFd<'_>, max: usize) -> Result<usize> {
    rustix::io::retry_on_intr(|| {
        let flags = SpliceFlags::NONBLOCK | SpliceFlags::MOVE;
        rustix::pipe::splice(from, None, into, None, max, flags)
    })
}

/// Duplicates up to `max` bytes from the beginning of the first pipe into the second one without
/// consuming them (tee(2)), and returns their number. It duplicates fewer if the second pipe has
/// too few free slots.
///
/// # Errors
/// EAGAIN if the first pipe is empty or the second one has no free slot.
pub fn tee(from: BorrowedFd<'_>, into: BorrowedFd<'_>, max: usize) -> Result<usize> {
    rustix::io::retry_on_intr(|| rustix::pipe::tee(from, into, max, SpliceFlags::NONBLOCK))
}

/// Reads from a pipe into `bytes`, and returns the number of bytes (read(2)).
///
/// # Errors
/// EAGAIN if the pipe is empty.
pub fn read_pipe(from: BorrowedFd<'_>, bytes: &mut [u8]) -> Result<usize> {
    rustix::io::retry_on_intr(|| rustix::io::read(from, &mut *bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    #[test]
    fn bytes_go_through_a_pipe() {
        let (read, write, capacity) = pipe(256 * 1024).unwrap();
        assert!(capacity >= 4096);
        let ((mut client, source), (mut origin, target)) =
            (UnixStream::pair().unwrap(), UnixStream::pair().unwrap());
        client.write_all(b"moved").unwrap();
        assert_eq!(splice(source.as_fd(), write.as_fd(), 4096).unwrap(), 5);
        assert_eq!(splice(read.as_fd(), target.as_fd(), 4096).unwrap(), 5);
        let mut bytes = [0; 5];
        origin.read_exact(&mut bytes).unwrap();
        assert_eq!(&bytes, b"moved");
        drop(client);
        assert_eq!(splice(source.as_fd(), write.as_fd(), 4096).unwrap(), 0);
    }

    #[test]
    fn two_pipes_refer_to_the_same_bytes() {
        let (read, write, _) = pipe(256 * 1024).unwrap();
        let (beside, into, _) = pipe(256 * 1024).unwrap();
        assert_eq!(tee(read.as_fd(), into.as_fd(), 10), Err(rustix::io::Errno::AGAIN));
        rustix::io::write(&write, b"twice").unwrap();
        assert_eq!(tee(read.as_fd(), into.as_fd(), 4), Ok(4));
        let mut bytes = [0; 10];
        assert_eq!(read_pipe(beside.as_fd(), &mut bytes), Ok(4));
        assert_eq!(&bytes[..4], b"twic");
        assert_eq!(read_pipe(read.as_fd(), &mut bytes), Ok(5));
        assert_eq!(&bytes[..5], b"twice");
    }
}
