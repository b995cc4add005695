//! Conversion of times between C and Rust, with the checks of the system calls.

use std::ffi::c_int;
use std::time::Duration;

use libc::{timespec, timeval};
use uselect::Errno;

use crate::process::Result;

/// Converts milliseconds; negative means unlimited.
pub(crate) fn from_ms(timeout: c_int) -> Option<Duration> {
    u64::try_from(timeout).ok().map(Duration::from_millis)
}

/// Converts a time with the checks of pselect(2) and ppoll(2).
pub(crate) fn from_timespec(timeout: &timespec) -> Result<Duration> {
    let seconds = u64::try_from(timeout.tv_sec).map_err(|_| Errno::INVAL)?;
    match u32::try_from(timeout.tv_nsec) {
        Ok(nanoseconds) if nanoseconds < NANOSECONDS => Ok(Duration::new(seconds, nanoseconds)),
        _ => Err(Errno::INVAL),
    }
}

/// Converts a time with the checks of select(2), which accepts a `tv_usec` of 1,000,000 or more.
pub(crate) fn from_timeval(timeout: &timeval) -> Result<Duration> {
    let part = |part| u64::try_from(part).map_err(|_| Errno::INVAL);
    let (seconds, rest) = (part(timeout.tv_sec)?, part(timeout.tv_usec)?);
    Ok(Duration::from_secs(seconds).saturating_add(Duration::from_micros(rest)))
}

/// Converts a remaining time back; it is not larger than the `timeval` that it comes from.
pub(crate) fn to_timeval(time: Duration) -> timeval {
    let tv_sec = time.as_secs().try_into().unwrap_or(libc::time_t::MAX);
    timeval { tv_sec, tv_usec: time.subsec_micros().into() }
}

const NANOSECONDS: u32 = 1_000_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_converted_like_in_the_system_calls() {
        assert_eq!((from_ms(-1), from_ms(0)), (None, Some(Duration::ZERO)));
        assert_eq!(from_ms(1500), Some(Duration::from_millis(1500)));
        let spec = |tv_sec, tv_nsec| from_timespec(&timespec { tv_sec, tv_nsec });
        assert_eq!(spec(1, 999_999_999), Ok(Duration::new(1, 999_999_999)));
        for (seconds, nanoseconds) in [(-1, 0), (0, -1), (0, 1_000_000_000)] {
            assert_eq!(spec(seconds, nanoseconds), Err(Errno::INVAL));
        }
        let val = |tv_sec, tv_usec| from_timeval(&timeval { tv_sec, tv_usec });
        assert_eq!(val(1, 2_500_000), Ok(Duration::from_millis(3500)));
        assert_eq!((val(-1, 0), val(0, -1)), (Err(Errno::INVAL), Err(Errno::INVAL)));
        let longest = val(i64::MAX, 999_999).unwrap();
        let back = to_timeval(longest);
        assert_eq!((back.tv_sec, back.tv_usec), (i64::MAX, 999_999));
    }
}
