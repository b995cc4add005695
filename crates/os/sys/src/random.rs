//! Random bytes from the kernel.

use rustix::io::Errno;
use rustix::rand::{GetRandomFlags, getrandom};

/// Fills `bytes` with unpredictable bytes (getrandom(2)). Waits only shortly after boot, if the
/// kernel has not gathered enough entropy.
///
/// # Panics
/// Panics if the kernel has no getrandom(2), which Linux has had since 3.17.
pub fn fill_random(bytes: &mut [u8]) {
    let mut filled = 0;
    while filled < bytes.len() {
        match getrandom(&mut bytes[filled..], GetRandomFlags::empty()) {
            Ok(count) => filled += count,
            Err(Errno::INTR) => {}
            Err(error) => panic!("getrandom: {error}"),
        }
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn two_fills_differ() {
        let (mut one, mut other) = ([0; 32], [0; 32]);
        super::fill_random(&mut one);
        super::fill_random(&mut other);
        assert_ne!(one, other);
    }
}
