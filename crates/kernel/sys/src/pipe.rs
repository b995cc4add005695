//! Pipes and the moves between them and sockets.

use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::pipe::{PipeFlags, SpliceFlags, fcntl_getpipe_size, fcntl_setpipe_size, pipe_with};

use crate::Result;

/// A pipe, non-blocking and closed on exec: (end to read from, end to write into, its capacity in
/// bytes). `size` bytes are asked for (fcntl(2), F_SETPIPE_SZ); the capacity is smaller when the
/// user is over /proc/sys/fs/pipe-user-pages-soft, which is no error.
///
/// # Errors
/// EMFILE, ENFILE.
pub fn pipe(size: usize) -> Result<(OwnedFd, OwnedFd, usize)> {
    let (read, write) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
    let capacity = fcntl_setpipe_size(&write, size).or_else(|_| fcntl_getpipe_size(&write))?;
    Ok((read, write, capacity))
}

/// Moves up to `max` bytes between a pipe and a socket without copying them to user space
/// (splice(2)), and gives how many; 0 is the end of the source. SIGPIPE has to be ignored: see
/// [`ignore_broken_pipe_signal`](crate::ignore_broken_pipe_signal).
///
/// # Errors
/// EAGAIN when the source has nothing or the target has no room; those of read(2) and write(2).
pub fn splice(from: BorrowedFd<'_>, into: BorrowedFd<'_>, max: usize) -> Result<usize> {
    rustix::io::retry_on_intr(|| {
        let flags = SpliceFlags::NONBLOCK | SpliceFlags::MOVE;
        rustix::pipe::splice(from, None, into, None, max, flags)
    })
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
}
