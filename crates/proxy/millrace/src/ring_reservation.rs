//! The io_uring rings of the workers. All rings are reserved before the engine is chosen, because
//! RLIMIT_MEMLOCK may have room for only some of them. The limit counts the rings of all processes
//! of the user.

use std::fmt;

use millrace_engine::{Error, ReservedRing};

use crate::console;

/// The rings that could not be created, and why.
#[derive(Debug)]
pub(crate) struct RingShortage {
    error: Error,
    workers: usize,
    /// Bytes that all rings need together; `None`: not even one could be created.
    needed: Option<u64>,
    /// RLIMIT_MEMLOCK in bytes; `None`: unlimited.
    limit: Option<u64>,
}

/// Reserves `count` rings: one for each of `workers`, and spare ones.
///
/// # Errors
/// If a ring cannot be created. The others are released.
pub(crate) fn reserve(workers: usize, count: usize) -> Result<Vec<ReservedRing>, RingShortage> {
    let mut rings: Vec<ReservedRing> = Vec::with_capacity(count);
    for _ in 0..count {
        match ReservedRing::new() {
            Ok(ring) => rings.push(ring),
            Err(error) => {
                let needed = rings.first().map(|it| it.memory_bytes() * count as u64);
                let limit = millrace_sys::locked_memory_limit();
                return Err(RingShortage { error, workers, needed, limit });
            }
        }
    }
    Ok(rings)
}

/// Advice for a limit that has no room for the rings.
pub(crate) const MEMLOCK_ADVICE: &str =
    "raise LimitMEMLOCK= of the unit or ulimit -l to use io_uring";

impl fmt::Display for RingShortage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { error, workers, needed, limit } = self;
        match (error, limit) {
            (Error::Unsupported(_), _) => write!(f, "{error}"),
            (Error::OutOfMemory, Some(limit)) => {
                write!(f, "no kernel memory for the io_uring rings of {workers} workers (")?;
                if let Some(needed) = needed {
                    write!(f, "needed: {}; ", console::format_bytes(*needed))?;
                }
                let limit = console::format_bytes(*limit);
                write!(
                    f,
                    "RLIMIT_MEMLOCK: {limit} for all processes of the user); {MEMLOCK_ADVICE}"
                )
            }
            _ => write!(f, "cannot create the io_uring rings of {workers} workers: {error}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shortage_names_its_limit_and_the_remedy() {
        let shortage =
            |error, needed, limit| RingShortage { error, workers: 64, needed, limit }.to_string();
        let text = shortage(Error::OutOfMemory, Some(9 << 20), Some(8 << 20));
        assert_eq!(
            text,
            "no kernel memory for the io_uring rings of 64 workers (needed: 9.0 MB; \
             RLIMIT_MEMLOCK: 8.0 MB for all processes of the user); raise LimitMEMLOCK= of the \
             unit or ulimit -l to use io_uring"
        );
        let text = shortage(Error::OutOfMemory, None, Some(4096));
        assert!(text.contains("(RLIMIT_MEMLOCK: 4.0 KB for all"), "{text}");
        let rings = "cannot create the io_uring rings of 64 workers: out of";
        let unlimited = shortage(Error::OutOfMemory, Some(9 << 20), None);
        assert_eq!(unlimited, format!("{rings} kernel memory"));
        let descriptors = shortage(Error::OutOfDescriptors, Some(9 << 20), Some(8 << 20));
        assert_eq!(descriptors, format!("{rings} file descriptors"));
    }
}
