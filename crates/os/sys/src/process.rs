//! Resource usage of the process, for its metrics. Reads /proc, so it is not for the data plane.

use std::io::Error;

/// Returns the number of open descriptors, without the one used for counting.
///
/// # Errors
/// If /proc is not mounted, or no descriptor is left to read it.
pub fn descriptor_count() -> std::result::Result<usize, Error> {
    Ok(std::fs::read_dir("/proc/self/fd")?.count() - 1)
}

/// Returns the bytes of physical memory that the process occupies (VmRSS of proc_pid_status(5)).
///
/// # Errors
/// If /proc is not mounted, or the format is not the documented one.
pub fn resident_bytes() -> std::result::Result<u64, Error> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))
        .and_then(|rest| rest.trim().strip_suffix("kB"))
        .and_then(|kilobytes| kilobytes.trim().parse::<u64>().ok())
        .map(|kilobytes| kilobytes * 1024)
        .ok_or_else(|| Error::other("no VmRSS in /proc/self/status"))
}

/// Returns whether the kernel gave this process privileges when it started it, as for a set-user-id
/// program: then its environment is not to be trusted (getauxval(3), AT_SECURE).
pub fn has_started_privileged() -> bool {
    // SAFETY: the call takes and returns only numbers.
    unsafe { libc::getauxval(libc::AT_SECURE) != 0 }
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_test_has_not_started_privileged() {
        assert!(!super::has_started_privileged());
    }

    #[test]
    fn a_process_has_memory_and_descriptors() {
        assert!(super::resident_bytes().unwrap() > 64 * 1024);
        assert!(super::descriptor_count().unwrap() >= 1);
    }
}
