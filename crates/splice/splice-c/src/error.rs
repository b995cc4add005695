//! Errors for C: negative numbers of errno(3), and their texts.

use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char, c_int};
use std::io;

use millrace_splice::{Errno, Error};

/// The result of a function of the library: 0 or more, or a negative error number.
pub(crate) type Result<T> = std::result::Result<T, c_int>;

/// A panic left the set in an unknown state. It can only be freed.
pub(crate) const BROKEN: c_int = -Errno::NOTRECOVERABLE.raw_os_error();
/// An argument that the man pages do not allow.
pub(crate) const INVALID: c_int = -Errno::INVAL.raw_os_error();

/// Returns the error number for an error of the splicer. An error of the kernel keeps its number;
/// any other error gets the number that system calls return for a similar error.
pub(crate) fn c_error(error: Error) -> c_int {
    let errno = match error {
        Error::Request(_) => Errno::INVAL,
        Error::NotConnected(_) => Errno::NOTCONN,
        Error::Blocking(_) => Errno::BADFD,
        Error::Busy(_) => Errno::BUSY,
        Error::Full => Errno::NOSPC,
        Error::Stale => Errno::NOENT,
        Error::NotPermitted => Errno::PERM,
        Error::WouldBlock => Errno::AGAIN,
        Error::Kernel(errno) => errno,
    };
    -errno.raw_os_error()
}

/// Returns the text of an error of the library; `None` for errors of the kernel.
fn describe(error: c_int) -> Option<&'static CStr> {
    const TABLE: [(Errno, &CStr); 9] = [
        (Errno::INVAL, c"invalid argument (see mrsplice_splice(3))"),
        (Errno::NOTCONN, c"not a TCP connection in ESTABLISHED or CLOSE_WAIT"),
        (Errno::BADFD, c"the connection is blocking (expected: O_NONBLOCK)"),
        (Errno::BUSY, c"the connection is part of another splice"),
        (Errno::NOSPC, c"the set has the maximum number of splices"),
        (Errno::NOENT, c"no such splice, or it was released"),
        (Errno::PERM, c"the splice does not allow the application to do this"),
        (Errno::AGAIN, c"no byte can be read or written now"),
        (Errno::NOTRECOVERABLE, c"a bug in libmrsplice; the set can only be freed"),
    ];
    TABLE.iter().find(|(errno, _)| -errno.raw_os_error() == error).map(|(_, text)| *text)
}

thread_local! {
    /// The last text of [`mrsplice_strerror`] that was not constant.
    static TEXT: RefCell<CString> = RefCell::default();
}

/// mrsplice_strerror(3): describes a negative error number, or its positive value. The text is
/// valid until the next call of the thread. Never null.
#[unsafe(no_mangle)]
pub extern "C" fn mrsplice_strerror(error: c_int) -> *const c_char {
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
    use millrace_splice::Side;

    use super::*;

    #[test]
    fn own_errors_have_texts_and_kernel_errors_keep_their_numbers() {
        let refusals = [
            Error::Request("what"),
            Error::NotConnected(Side::Fd0),
            Error::Blocking(Side::Fd1),
            Error::Busy(Side::Fd0),
            Error::Full,
            Error::Stale,
            Error::NotPermitted,
            Error::WouldBlock,
        ];
        for error in refusals {
            assert!(describe(c_error(error)).is_some(), "{error:?}");
        }
        assert_eq!(c_error(Error::Kernel(Errno::PIPE)), -Errno::PIPE.raw_os_error());
        assert!(describe(BROKEN).is_some() && describe(-Errno::PIPE.raw_os_error()).is_none());
    }
}
