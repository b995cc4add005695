//! The bounds on open descriptors and on locked memory (getrlimit(2)).

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::Result;

/// How many descriptors this process may have open at once; `u64::MAX` when it is unlimited.
pub fn descriptor_limit() -> u64 {
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

/// Raises the limit as far as it goes without privileges (the hard limit), and gives what it is
/// now.
///
/// # Errors
/// Those of setrlimit(2); the limit then is what it was.
pub fn raise_descriptor_limit() -> Result<u64> {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum })?;
    Ok(descriptor_limit())
}

/// Lowers the limit to `count`, which cannot be undone without privileges: for tests, and for
/// programs started by the proxy. Descriptors that are open stay open.
///
/// # Errors
/// EPERM when `count` is above the hard limit.
pub fn lower_descriptor_limit(count: u64) -> Result<()> {
    setrlimit(Resource::Nofile, Rlimit { current: Some(count), maximum: Some(count) })
}

/// Bytes of memory that the kernel may lock for this process (RLIMIT_MEMLOCK); `None`: unlimited.
/// What io_uring locks is counted per user, over all its processes.
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
