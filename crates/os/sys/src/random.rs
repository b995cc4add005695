//! Random bytes from the kernel.

use rustix::io::Errno;
use rustix::rand::{GetRandomFlags, getrandom};

/// Fills `bytes` with bytes that nobody can predict (getrandom(2)). Waits only when the kernel
/// was booted a moment ago and has not gathered enough yet.
///
/// # Panics
/// When the kernel has no getrandom, which Linux has had since 3.17.
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
