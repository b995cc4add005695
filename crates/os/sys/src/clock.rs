//! Clocks, read through the vDSO: no system call is made.

use std::time::Duration;

use rustix::time::{ClockId, Timespec, clock_gettime};

/// Nanoseconds on CLOCK_MONOTONIC since a zero that no process chooses (clock_gettime(2)).
pub fn monotonic_nanoseconds() -> u64 {
    duration(clock_gettime(ClockId::Monotonic)).as_nanos() as u64
}

/// The time of day since 1970, exact to a timer interrupt (1 to 10 ms): CLOCK_REALTIME_COARSE.
pub fn time_of_day() -> Duration {
    duration(clock_gettime(ClockId::RealtimeCoarse))
}

/// CPU time of all threads of this process, in user and in kernel mode. A system call.
pub fn cpu_time() -> Duration {
    duration(clock_gettime(ClockId::ProcessCPUTime))
}

/// CPU time of the calling thread, in user and in kernel mode. A system call.
pub fn thread_cpu_time() -> Duration {
    duration(clock_gettime(ClockId::ThreadCPUTime))
}

/// How long a call waits, at most as long as there are seconds to count it in.
pub(crate) fn timespec(wait: Duration) -> libc::timespec {
    libc::timespec {
        tv_sec: libc::time_t::try_from(wait.as_secs()).unwrap_or(libc::time_t::MAX),
        tv_nsec: wait.subsec_nanos().into(),
    }
}

/// A clock set to before 1970 counts as 1970.
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
    }
}
