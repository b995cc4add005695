//! Clocks. The monotonic clock and the time of day are read through the vDSO, without a system
//! call.

use std::time::Duration;

use rustix::io::Errno;
use rustix::time::{ClockId, Timespec, clock_gettime};

use crate::{Result, last_error};

/// Returns the nanoseconds on CLOCK_MONOTONIC (clock_gettime(2)), whose zero is the kernel's
/// choice.
pub fn monotonic_nanoseconds() -> u64 {
    duration(clock_gettime(ClockId::Monotonic)).as_nanos() as u64
}

/// Returns the time of day as a duration since 1970 (CLOCK_REALTIME_COARSE). It is updated by the
/// timer interrupt, every 1 to 10 ms.
pub fn time_of_day() -> Duration {
    duration(clock_gettime(ClockId::RealtimeCoarse))
}

/// Returns the CPU time of all threads of this process, in user and kernel mode. Makes a system
/// call.
pub fn cpu_time() -> Duration {
    duration(clock_gettime(ClockId::ProcessCPUTime))
}

/// Returns the CPU time of all threads of a process, also of those that have ended.
///
/// # Errors
/// ESRCH if there is no such process.
pub fn cpu_time_of(process: u32) -> Result<Duration> {
    let mut clock = 0;
    // SAFETY: the kernel stores the id of a clock, and `clock` outlives the call.
    match unsafe { libc::clock_getcpuclockid(process.cast_signed(), &raw mut clock) } {
        0 => {}
        error => return Err(Errno::from_raw_os_error(error)),
    }
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the kernel stores the time, and `time` outlives the call.
    match unsafe { libc::clock_gettime(clock, &raw mut time) } {
        0 => Ok(Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec as u32)),
        _ => Err(last_error()),
    }
}

/// Returns the CPU time of the calling thread, in user and kernel mode. Makes a system call.
pub fn thread_cpu_time() -> Duration {
    duration(clock_gettime(ClockId::ThreadCPUTime))
}

/// Converts a timeout to a `timespec`. The number of seconds saturates.
pub(crate) fn timespec(wait: Duration) -> libc::timespec {
    libc::timespec {
        tv_sec: libc::time_t::try_from(wait.as_secs()).unwrap_or(libc::time_t::MAX),
        tv_nsec: wait.subsec_nanos().into(),
    }
}

/// Converts a reading of a clock. A time of day before 1970 counts as 1970.
fn duration(time: Timespec) -> Duration {
    Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), time.tv_nsec as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clocks_agree_with_those_of_the_standard_library() {
        let (before, monotonic) = (std::time::Instant::now(), monotonic_nanoseconds());
        let real = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
        assert!(monotonic_nanoseconds() >= monotonic);
        assert!(time_of_day().abs_diff(real) < Duration::from_secs(60) + before.elapsed());
        let thread = thread_cpu_time();
        assert!(thread > Duration::ZERO && cpu_time() >= thread);
        let process = cpu_time_of(std::process::id()).unwrap();
        assert!(thread <= process && process <= cpu_time());
    }
}
