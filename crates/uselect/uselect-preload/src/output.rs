//! Where a process writes its messages, and under which name. Files and names are recorded before
//! main.

use std::ffi::{CStr, c_int};
use std::fmt::{self, Display, Formatter, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use uselect::InternalFd;

use crate::libc_next;

/// The destination of messages: the named file if it could be opened, otherwise standard error. If
/// the program has replaced standard error by a file that is not opened for appending, messages are
/// dropped.
pub(crate) struct MessageOutput {
    file: Option<(InternalFd, FileIdentity)>,
    stderr: Option<FileIdentity>,
}

/// The file that a descriptor referred to before main. A program may later use the number for
/// another file, which must not get messages.
#[derive(Clone, Copy, PartialEq, Eq)]
struct FileIdentity {
    device: u64,
    inode: u64,
}

impl FileIdentity {
    fn of(fd: c_int) -> Option<Self> {
        let mut status = MaybeUninit::<libc::stat>::uninit();
        // SAFETY: the buffer has the size that the call writes.
        if unsafe { libc::fstat(fd, status.as_mut_ptr()) } != 0 {
            return None;
        }
        // SAFETY: fstat(2) has written all of it.
        let status = unsafe { status.assume_init() };
        Some(Self { device: status.st_dev, inode: status.st_ino })
    }
}

impl MessageOutput {
    /// Opens the file. Call this before main: later the program may run as a user who cannot open
    /// it.
    pub(crate) fn new(path: Option<&CStr>) -> Self {
        let file = path.and_then(open_append).and_then(|fd| {
            let file = FileIdentity::of(fd.as_raw_fd())?;
            Some((InternalFd::new(fd), file))
        });
        Self { file, stderr: FileIdentity::of(libc::STDERR_FILENO) }
    }

    /// Writes a line with one system call, without the streams of the program.
    pub(crate) fn write(&self, line: &MessageLine) {
        let Some(fd) = self.descriptor() else { return };
        let bytes = &line.bytes[..line.end];
        // SAFETY: the bytes are valid.
        let _ = unsafe { libc::write(fd, bytes.as_ptr().cast(), bytes.len()) };
    }

    fn descriptor(&self) -> Option<c_int> {
        let own = self.file.as_ref().map(|(fd, file)| (fd.as_raw_fd(), *file));
        let own = own.filter(|(fd, file)| FileIdentity::of(*fd) == Some(*file)).map(|(fd, _)| fd);
        let is_same =
            || self.stderr.is_some() && FileIdentity::of(libc::STDERR_FILENO) == self.stderr;
        own.or_else(|| {
            (is_same() || is_append_only(libc::STDERR_FILENO)).then_some(libc::STDERR_FILENO)
        })
    }
}

fn open_append(path: &CStr) -> Option<OwnedFd> {
    let flags = libc::O_WRONLY | libc::O_APPEND | libc::O_CREAT | libc::O_CLOEXEC;
    // SAFETY: the path is a C string.
    let fd = unsafe { libc::open(path.as_ptr(), flags, 0o666) };
    // SAFETY: if it is not negative, the kernel has just opened it for this call.
    (fd >= 0).then(|| unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Returns whether a descriptor is opened for appending, as servers do with their log on standard
/// error.
fn is_append_only(fd: c_int) -> bool {
    // SAFETY: the call reads flags and takes no pointer.
    let flags = unsafe { libc_next::fcntl(fd, libc::F_GETFL, 0) };
    flags >= 0 && flags & libc::O_APPEND != 0
}

/// The name of a program as the kernel has it (PR_GET_NAME).
pub(crate) struct ProgramName([u8; 16]);

impl ProgramName {
    /// Reads the name. Call this before main, in the main thread: other threads have other names,
    /// and programs may change their own.
    pub(crate) fn current() -> Self {
        let mut name = [0; 16];
        // SAFETY: the buffer has the 16 bytes that the call writes.
        unsafe { libc::prctl(libc::PR_GET_NAME, name.as_mut_ptr()) };
        Self(name)
    }
}

impl Display for ProgramName {
    fn fmt(&self, out: &mut Formatter<'_>) -> fmt::Result {
        let name = self.0.iter().take_while(|byte| **byte != 0);
        // A file name may contain any byte, but a line must have one line break only.
        let is_plain = |byte: u8| byte.is_ascii_graphic() || byte == b' ';
        let mut letters = name.map(|byte| if is_plain(*byte) { char::from(*byte) } else { '?' });
        letters.try_for_each(|letter| out.write_char(letter))
    }
}

/// The longest line with its line break, in bytes.
pub(crate) const LINE_MAX: usize = 400;

/// A line that is being written; a longer text is cut.
pub(crate) struct MessageLine {
    bytes: [u8; LINE_MAX],
    end: usize,
}

impl MessageLine {
    /// Creates an empty line.
    pub(crate) fn new() -> Self {
        Self { bytes: [0; LINE_MAX], end: 0 }
    }

    /// Appends the line break, also to a line that was cut.
    pub(crate) fn finish(&mut self) {
        self.end = self.end.min(LINE_MAX - 1);
        self.bytes[self.end] = b'\n';
        self.end += 1;
    }
}

impl Write for MessageLine {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let free = &mut self.bytes[self.end..];
        let count = text.len().min(free.len());
        free[..count].copy_from_slice(&text.as_bytes()[..count]);
        self.end += count;
        if count < text.len() { Err(fmt::Error) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_line_is_cut() {
        let mut line = MessageLine::new();
        assert!((0..LINE_MAX).try_for_each(|_| line.write_str("ab")).is_err());
        line.finish();
        assert_eq!((line.end, &line.bytes[LINE_MAX - 3..]), (LINE_MAX, &b"ba\n"[..]));
    }
}
