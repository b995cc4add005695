//! Errors as C has them: negative numbers of errno(3), and their words.

use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char, c_int};
use std::io;

use millrace_splice::{Errno, Error};

/// What a function of the library comes to: 0 or more, or a negative error number.
pub(crate) type Result<T> = std::result::Result<T, c_int>;

/// The set was left in pieces by a bug of ours; it can only be freed.
pub(crate) const BROKEN: c_int = -Errno::NOTRECOVERABLE.raw_os_error();
/// An argument that the man pages do not allow.
pub(crate) const INVALID: c_int = -Errno::INVAL.raw_os_error();

/// The number of an error of the splicer: the kernel's as it is, and for a refusal of its own that
/// of a call that refuses for a like reason.
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

/// What `error`, one of the numbers above, means here.
fn describe(error: c_int) -> Option<&'static CStr> {
    const TABLE: [(Errno, &CStr); 9] = [
        (Errno::INVAL, c"no such request: see mrsplice_splice(3)"),
        (Errno::NOTCONN, c"no TCP connection in ESTABLISHED or CLOSE_WAIT"),
        (Errno::BADFD, c"the connection blocks: O_NONBLOCK is not set"),
        (Errno::BUSY, c"the connection is spliced already"),
        (Errno::NOSPC, c"the set has as many splices as it may"),
        (Errno::NOENT, c"no such splice: it was released"),
        (Errno::PERM, c"the splice does not let the application do that"),
        (Errno::AGAIN, c"nothing can be read or written yet"),
        (Errno::NOTRECOVERABLE, c"a bug in libmrsplice; the set can only be freed"),
    ];
    TABLE.iter().find(|(errno, _)| -errno.raw_os_error() == error).map(|(_, words)| *words)
}

thread_local! {
    /// What [`mrsplice_strerror`] gave last, where its words are not constant.
    static WORDS: RefCell<CString> = RefCell::default();
}

/// mrsplice_strerror(3): what a negative error number means, in words that stay until the calling
/// thread asks again; it takes the positive number as well. Never null.
#[unsafe(no_mangle)]
pub extern "C" fn mrsplice_strerror(error: c_int) -> *const c_char {
    let error = error.saturating_abs().saturating_neg();
    if let Some(words) = describe(error) {
        return words.as_ptr();
    }
    let text = io::Error::from_raw_os_error(-error).to_string();
    // Rust puts the number behind the words of strerror(3).
    let text = text.strip_suffix(&format!(" (os error {})", -error)).unwrap_or(&text);
    let keep = |words: &RefCell<CString>| {
        words.replace(CString::new(text).unwrap_or_default());
        words.borrow().as_ptr()
    };
    // A thread that is about to end has no words any more.
    WORDS.try_with(keep).unwrap_or(c"see errno(3)".as_ptr())
}

#[cfg(test)]
mod tests {
    use millrace_splice::Side;

    use super::*;

    #[test]
    fn each_refusal_has_words_of_its_own_and_a_number_of_the_kernel_the_kernels() {
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
