//! Errors for C: negative numbers of errno(3), and their texts.

use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char, c_int};
use std::io;

use iolite::{AllocError, ChannelError, Error, RefusedMemory};
use millrace_sys::Errno;

/// The result of a function of the library: 0 or more, or a negative error number.
pub(crate) type Result<T> = std::result::Result<T, c_int>;

/// Memory is not ready yet, or a call would have to wait.
pub(crate) const AGAIN: c_int = number(Errno::AGAIN);
/// A panic left the object in an unknown state. It can only be destroyed.
pub(crate) const BROKEN: c_int = number(Errno::NOTRECOVERABLE);
/// An argument that the man pages do not allow.
pub(crate) const INVALID: c_int = number(Errno::INVAL);
/// More bytes than one buffer can have.
pub(crate) const TOO_LONG: c_int = number(Errno::MSGSIZE);
/// The memory is in no file that the caller may use.
pub(crate) const NO_FILE: c_int = number(Errno::OPNOTSUPP);
/// A descriptor that is not open.
pub(crate) const BAD_FD: c_int = number(Errno::BADF);

const fn number(errno: Errno) -> c_int {
    -errno.raw_os_error()
}

/// Returns the error number for a failed allocation.
pub(crate) fn alloc_error(error: AllocError) -> c_int {
    match error {
        AllocError::Full | AllocError::Fragmented => number(Errno::NOSPC),
        AllocError::NotReady => AGAIN,
    }
}

/// Returns the error number for memory that could not be created.
pub(crate) fn memory_error(error: Error) -> c_int {
    match error {
        Error::Size(_) | Error::PoolSize(_) => INVALID,
        Error::Unsupported { .. } => number(Errno::NOSYS),
        Error::Kernel(_, errno) => number(errno),
        Error::Interrupted => number(Errno::INTR),
    }
}

/// Returns the error number for a descriptor that was refused.
pub(crate) fn refused_error(refused: RefusedMemory) -> c_int {
    number(match refused {
        RefusedMemory::OtherFile => Errno::NODEV,
        RefusedMemory::Unsealed => Errno::BADFD,
        RefusedMemory::Hole { .. } | RefusedMemory::TooShort { .. } => Errno::NODATA,
        RefusedMemory::TooLong { .. } => Errno::DQUOT,
        RefusedMemory::Kernel(errno) => errno,
    })
}

/// Returns the error number for an error of a channel. An error of the kernel keeps its number.
pub(crate) fn channel_error(error: ChannelError) -> c_int {
    match error {
        ChannelError::Closed => number(Errno::PIPE),
        ChannelError::Peer(_) => number(Errno::PROTO),
        ChannelError::Refused(refused) => refused_error(refused),
        // EAGAIN would mean that the channel has nothing to receive.
        ChannelError::NoMemory(_) => number(Errno::NOBUFS),
        ChannelError::Parts(_) => number(Errno::TOOBIG),
        ChannelError::Memory(error) => memory_error(error),
        ChannelError::Kernel(_, errno) => number(errno),
    }
}

/// Returns the text of an error of the library; `None` for errors of the kernel.
fn describe(error: c_int) -> Option<&'static CStr> {
    const TABLE: [(Errno, &CStr); 16] = [
        (Errno::TOOBIG, c"the aggregate has too many slices for a channel"),
        (Errno::AGAIN, c"nothing can be done now (see the man page of the function)"),
        (Errno::BADFD, c"the memory file is not sealed, so a process may still change it"),
        (Errno::DQUOT, c"too little is left of the quota of the disk or of the account"),
        (Errno::INTR, c"interrupted (see the man page of the function)"),
        (Errno::INVAL, c"invalid argument (see the man page of the function)"),
        (Errno::MSGSIZE, c"more bytes than one slice of this kind of memory can have"),
        (Errno::NOBUFS, c"no room for copied bytes in the slab of the channel"),
        (Errno::NODATA, c"the memory file has a hole or is too short"),
        (Errno::NODEV, c"the descriptor is no memory file (see memfd_create(2))"),
        (
            Errno::NOSPC,
            c"no space on the device, or in the slab or pool until slices are destroyed",
        ),
        (Errno::NOSYS, c"the kernel is too old (expected: Linux 5.14)"),
        (Errno::NOTRECOVERABLE, c"a bug in libiolite; the object can only be destroyed"),
        (Errno::OPNOTSUPP, c"the memory of the slice is in no such file"),
        (Errno::PIPE, c"the other process has closed the channel or the pipe, or has ended"),
        (Errno::PROTO, c"the other process has broken the protocol of the channel"),
    ];
    TABLE.iter().find(|(errno, _)| number(*errno) == error).map(|(_, text)| *text)
}

thread_local! {
    /// The last text of [`iol_strerror`] that was not constant.
    static TEXT: RefCell<CString> = RefCell::default();
}

/// iol_strerror(3): describes a negative error number, or its positive value. The text is valid
/// until the next call of the thread. Never null.
#[unsafe(no_mangle)]
pub extern "C" fn iol_strerror(error: c_int) -> *const c_char {
    let error = error.saturating_abs().saturating_neg();
    if let Some(words) = describe(error) {
        return words.as_ptr();
    }
    let text = io::Error::from_raw_os_error(-error).to_string();
    // Rust appends the number to the text of strerror(3).
    let text = text.strip_suffix(&format!(" (os error {})", -error)).unwrap_or(&text);
    let keep = |text_cell: &RefCell<CString>| {
        text_cell.replace(CString::new(text).unwrap_or_default());
        text_cell.borrow().as_ptr()
    };
    // If the thread is ending, its thread-local text was already destroyed.
    TEXT.try_with(keep).unwrap_or(c"see errno(3)".as_ptr())
}

#[cfg(test)]
mod tests {
    use iolite::PeerFault;

    use super::*;

    #[test]
    fn own_errors_have_texts_and_kernel_errors_keep_their_numbers() {
        let errors = [
            alloc_error(AllocError::Full),
            alloc_error(AllocError::Fragmented),
            alloc_error(AllocError::NotReady),
            memory_error(Error::Size(1)),
            memory_error(Error::PoolSize(1)),
            memory_error(Error::Unsupported { feature: "", since: "" }),
            memory_error(Error::Interrupted),
            refused_error(RefusedMemory::OtherFile),
            refused_error(RefusedMemory::Unsealed),
            refused_error(RefusedMemory::Hole { offset: 0 }),
            refused_error(RefusedMemory::TooShort { length: 0, expected: 1 }),
            refused_error(RefusedMemory::TooLong { memory: 1, left: 0 }),
            channel_error(ChannelError::Closed),
            channel_error(ChannelError::Peer(PeerFault::Frame)),
            channel_error(ChannelError::NoMemory(AllocError::Full)),
            channel_error(ChannelError::Parts(5000)),
            BROKEN,
            TOO_LONG,
            NO_FILE,
        ];
        for error in errors {
            assert!(describe(error).is_some(), "{error}");
        }
        let kernel = Errno::MFILE;
        for error in [
            memory_error(Error::Kernel("memfd_create", kernel)),
            refused_error(RefusedMemory::Kernel(kernel)),
            channel_error(ChannelError::Kernel("recvmsg", kernel)),
        ] {
            assert_eq!(error, -kernel.raw_os_error());
        }
        assert!(describe(BAD_FD).is_none() && describe(number(kernel)).is_none());
    }
}
