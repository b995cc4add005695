//! Waiting for a word of memory that processes share (futex(2)).

use std::sync::atomic::AtomicU32;
use std::time::Duration;

use rustix::io::Errno;
use rustix::thread::futex;

use crate::Result;

/// Waits until another thread or process calls [`futex_wake`] for the same word, at most for
/// `wait_max`. Returns at once if the word is not `expected`. The memory may be mapped for reading
/// only, at another address in each process. The wait may also end for no reason, so callers check
/// what they wait for.
///
/// # Errors
/// EFAULT if the memory is not mapped.
pub fn futex_wait(word: &AtomicU32, expected: u32, wait_max: Duration) -> Result<()> {
    let timeout = futex::Timespec::try_from(wait_max).map_err(|_| Errno::INVAL)?;
    match futex::wait(word, futex::Flags::empty(), expected, Some(&timeout)) {
        Err(Errno::AGAIN | Errno::TIMEDOUT | Errno::INTR) => Ok(()),
        waited => waited,
    }
}

/// Wakes all threads of all processes that wait for this word.
///
/// # Errors
/// EFAULT if the memory is not mapped.
pub fn futex_wake(word: &AtomicU32) -> Result<()> {
    futex::wake(word, futex::Flags::empty(), i32::MAX as u32).map(drop)
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::sync::atomic::Ordering;
    use std::thread;

    use super::*;
    use crate::{MappedFile, create_memory_file};

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn a_reader_waits_for_a_word_of_another_mapping() {
        let file = create_memory_file("test", 4096).unwrap();
        let writer = MappedFile::writable(file.as_fd(), 4096).unwrap();
        let reader = MappedFile::read_only_shared(file.as_fd(), 4096).unwrap();
        // SAFETY: both are mapped until the end of the test, and only accessed atomically.
        let [written, read] = [&writer, &reader].map(|at| unsafe { at.start().cast().as_ref() });
        let (written, read): (&AtomicU32, &AtomicU32) = (written, read);
        futex_wait(read, 1, LONG).unwrap();
        futex_wait(read, 0, Duration::from_millis(1)).unwrap();
        thread::scope(|scope| {
            scope.spawn(|| {
                while read.load(Ordering::Acquire) == 0 {
                    futex_wait(read, 0, LONG).unwrap();
                }
            });
            written.store(1, Ordering::Release);
            futex_wake(written).unwrap();
        });
    }
}
