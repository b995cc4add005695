//! The limits on open descriptors and on locked memory (getrlimit(2)).

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::Result;

/// Returns how many descriptors this process may have open at once; `u64::MAX` if there is no
/// limit.
pub fn descriptor_limit() -> u64 {
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

/// Raises the limit on open descriptors to the hard limit, which needs no privileges. Returns the
/// new limit.
///
/// # Errors
/// Those of setrlimit(2); the limit is then unchanged.
pub fn raise_descriptor_limit() -> Result<u64> {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum })?;
    Ok(descriptor_limit())
}

/// Lowers the limit on open descriptors to `count`, for tests. Without privileges this cannot be
/// undone. Descriptors that are open stay open.
///
/// # Errors
/// EPERM if `count` is above the hard limit.
pub fn lower_descriptor_limit(count: u64) -> Result<()> {
    setrlimit(Resource::Nofile, Rlimit { current: Some(count), maximum: Some(count) })
}

/// Returns how many bytes of memory may be locked (RLIMIT_MEMLOCK); `None` if there is no limit.
/// Memory locked by io_uring is counted per user, over all processes.
pub fn locked_memory_limit() -> Option<u64> {
    getrlimit(Resource::Memlock).current
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn raising_never_lowers() {
        let before = descriptor_limit();
        assert!(raise_descriptor_limit().unwrap() >= before);
    }
}
