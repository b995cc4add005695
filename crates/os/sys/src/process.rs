//! What the process uses, for its metrics. Reads /proc: not for the data plane.

use std::io::Error;

/// Descriptors open now, without the one that counts them.
///
/// # Errors
/// When /proc is not mounted, or no descriptor is left to read it with.
pub fn descriptor_count() -> std::result::Result<usize, Error> {
    Ok(std::fs::read_dir("/proc/self/fd")?.count() - 1)
}

/// Bytes of physical memory that the process occupies (VmRSS of proc_pid_status(5)).
///
/// # Errors
/// When /proc is not mounted, or says it in a form that is not the documented one.
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

#[cfg(test)]
mod tests {
    #[test]
    fn a_process_has_memory_and_descriptors() {
        assert!(super::resident_bytes().unwrap() > 64 * 1024);
        assert!(super::descriptor_count().unwrap() >= 1);
    }
}
