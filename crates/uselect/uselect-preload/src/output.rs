//! Where a process says something of itself, and as whom: files and names as they were when it
//! began.

use std::ffi::{CStr, c_int};
use std::fmt::{self, Display, Formatter, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use uselect::InternalFd;

use crate::real;

/// Where lines go: to a file, where one was named and could be opened, else to standard error.
pub(crate) struct Output {
    file: Option<(InternalFd, File)>,
    stderr: Option<File>,
}

/// Which file a descriptor was when the process began. Programs let numbers stand for other files
/// later, where a line has no place.
#[derive(Clone, Copy, PartialEq, Eq)]
struct File {
    device: u64,
    inode: u64,
}

impl File {
    fn of(fd: c_int) -> Option<Self> {
        let mut status = MaybeUninit::<libc::stat>::uninit();
        // SAFETY: there is room for what it writes.
        if unsafe { libc::fstat(fd, status.as_mut_ptr()) } != 0 {
            return None;
        }
        // SAFETY: fstat(2) has written all of it.
        let status = unsafe { status.assume_init() };
        Some(Self { device: status.st_dev, inode: status.st_ino })
    }
}

impl Output {
    /// To be called before main: later a program may have become somebody who cannot open the file.
    pub(crate) fn new(path: Option<&CStr>) -> Self {
        let file = path.and_then(append_to).and_then(|fd| {
            let file = File::of(fd.as_raw_fd())?;
            Some((InternalFd::new(fd), file))
        });
        Self { file, stderr: File::of(libc::STDERR_FILENO) }
    }

    /// Writes a line, with one call and without the program's streams.
    pub(crate) fn write(&self, line: &Line) {
        let Some(fd) = self.descriptor() else { return };
        let bytes = &line.bytes[..line.end];
        // SAFETY: the bytes are there.
        let _ = unsafe { libc::write(fd, bytes.as_ptr().cast(), bytes.len()) };
    }

    fn descriptor(&self) -> Option<c_int> {
        let own = self.file.as_ref().map(|(fd, file)| (fd.as_raw_fd(), *file));
        let own = own.filter(|(fd, file)| File::of(*fd) == Some(*file)).map(|(fd, _)| fd);
        let is_same = || self.stderr.is_some() && File::of(libc::STDERR_FILENO) == self.stderr;
        own.or_else(|| (is_same() || is_log(libc::STDERR_FILENO)).then_some(libc::STDERR_FILENO))
    }
}

fn append_to(path: &CStr) -> Option<OwnedFd> {
    let flags = libc::O_WRONLY | libc::O_APPEND | libc::O_CREAT | libc::O_CLOEXEC;
    // SAFETY: the path is a string of C.
    let fd = unsafe { libc::open(path.as_ptr(), flags, 0o666) };
    // SAFETY: if it is not negative the kernel has just given it to us.
    (fd >= 0).then(|| unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Whether it is a file that is appended to, as servers make of standard error.
fn is_log(fd: c_int) -> bool {
    // SAFETY: it asks for flags, without a pointer.
    let flags = unsafe { real::fcntl(fd, libc::F_GETFL, 0) };
    flags >= 0 && flags & libc::O_APPEND != 0
}

/// The name of a program, as the kernel has it (PR_GET_NAME).
pub(crate) struct Program([u8; 16]);

impl Program {
    /// To be called before main, by its thread: later threads and titles have names of their own.
    pub(crate) fn current() -> Self {
        let mut name = [0; 16];
        // SAFETY: there is room for the 16 bytes that it writes.
        unsafe { libc::prctl(libc::PR_GET_NAME, name.as_mut_ptr()) };
        Self(name)
    }
}

impl Display for Program {
    fn fmt(&self, out: &mut Formatter<'_>) -> fmt::Result {
        let name = self.0.iter().take_while(|byte| **byte != 0);
        // A file may have any name; a line has one end.
        let is_plain = |byte: u8| byte.is_ascii_graphic() || byte == b' ';
        let mut letters = name.map(|byte| if is_plain(*byte) { char::from(*byte) } else { '?' });
        letters.try_for_each(|letter| out.write_char(letter))
    }
}

/// Bytes of a line at most, and its end.
pub(crate) const LINE_MAX: usize = 400;

/// A line that is being written; what does not fit is cut.
pub(crate) struct Line {
    bytes: [u8; LINE_MAX],
    end: usize,
}

impl Line {
    /// With nothing in it.
    pub(crate) fn new() -> Self {
        Self { bytes: [0; LINE_MAX], end: 0 }
    }

    /// Puts its end, whatever was cut.
    pub(crate) fn finish(&mut self) {
        self.end = self.end.min(LINE_MAX - 1);
        self.bytes[self.end] = b'\n';
        self.end += 1;
    }
}

impl Write for Line {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let room = &mut self.bytes[self.end..];
        let count = text.len().min(room.len());
        room[..count].copy_from_slice(&text.as_bytes()[..count]);
        self.end += count;
        if count < text.len() { Err(fmt::Error) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_line_is_cut() {
        let mut line = Line::new();
        assert!((0..LINE_MAX).try_for_each(|_| line.write_str("ab")).is_err());
        line.finish();
        assert_eq!((line.end, &line.bytes[LINE_MAX - 3..]), (LINE_MAX, &b"ba\n"[..]));
    }
}
