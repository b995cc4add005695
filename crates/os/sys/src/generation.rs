//! The generation of a process, by which it recognizes what its parent has left it.

use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

use crate::Result;

/// The generation of this process: a page that is zero again in each child. Null at first.
static CURRENT: AtomicPtr<AtomicU64> = AtomicPtr::new(std::ptr::null_mut());
/// The last generation of this process or an ancestor.
static LAST: AtomicU64 = AtomicU64::new(0);

/// Returns a number that is greater than those of all processes from which this one was made by
/// fork(2). It stays the same as long as the process runs. The call takes no system call, except
/// the first one.
pub fn process_generation() -> u64 {
    let mut page = CURRENT.load(Ordering::Acquire);
    if page.is_null() {
        let Ok(new) = wiped_page() else {
            // No child has a generation without a page either.
            return 0;
        };
        let set = CURRENT.compare_exchange(page, new, Ordering::AcqRel, Ordering::Acquire);
        page = set.map_or_else(
            |other| {
                // SAFETY: no other thread has seen this page.
                let _ = unsafe { munmap(new.cast(), PAGE_BYTES) };
                other
            },
            |_| new,
        );
    }
    // SAFETY: the page is mapped for ever, aligned, and any bytes are a valid number.
    let current = unsafe { &*page };
    match current.load(Ordering::Relaxed) {
        0 => {
            let next = LAST.fetch_add(1, Ordering::Relaxed) + 1;
            let set = current.compare_exchange(0, next, Ordering::Relaxed, Ordering::Relaxed);
            set.map_or_else(|other| other, |_| next)
        }
        generation => generation,
    }
}

/// The size that is mapped. The kernel rounds it up to a page.
const PAGE_BYTES: usize = 4096;

/// Maps a page of zeros that is zero again in every child of fork(2) (MADV_WIPEONFORK, since Linux
/// 4.14).
fn wiped_page() -> Result<*mut AtomicU64> {
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: the kernel picks an address where nothing is mapped.
    let page =
        unsafe { mmap_anonymous(std::ptr::null_mut(), PAGE_BYTES, protection, MapFlags::PRIVATE) }?;
    // SAFETY: the page was mapped just now; its bytes change only in children.
    if let Err(error) = unsafe { madvise(page, PAGE_BYTES, Advice::LinuxWipeOnFork) } {
        // SAFETY: nothing refers to the page.
        let _ = unsafe { munmap(page, PAGE_BYTES) };
        return Err(error);
    }
    Ok(page.cast())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{MappedFile, create_memory_file};
    use std::os::fd::AsFd;

    /// Returns whether `check` holds in a child of this process.
    fn holds_in_child(check: impl FnOnce() -> bool) -> bool {
        // SAFETY: the child makes system calls only, and leaves by _exit(2).
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: the call does not return.
            unsafe { libc::_exit(i32::from(!check())) };
        }
        assert!(child > 0);
        let mut status = 0;
        // SAFETY: the kernel stores the status of a child to `status`.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0
    }

    #[test]
    fn a_child_has_a_later_generation() {
        let own = process_generation();
        assert!(own > 0 && process_generation() == own);
        let is_later = || {
            let child = process_generation();
            child > own && process_generation() == child
        };
        assert!(holds_in_child(is_later));
        assert_eq!(process_generation(), own);
    }

    #[test]
    fn a_child_does_not_unmap_what_it_has_mapped_there_since() {
        let file = create_memory_file("test", 4096).unwrap();
        let mapped = MappedFile::writable(file.as_fd(), 4096).unwrap();
        let address = mapped.start().as_ptr();
        assert!(holds_in_child(|| {
            let protection = ProtFlags::READ | ProtFlags::WRITE;
            let flags = MapFlags::PRIVATE | MapFlags::FIXED_NOREPLACE;
            // SAFETY: the mapping of the parent is not inherited, so the place is free.
            let own = unsafe { mmap_anonymous(address.cast(), 4096, protection, flags) };
            let Ok(own) = own else { return false };
            drop(mapped);
            // SAFETY: populating changes no byte, and is only an error where nothing is mapped.
            unsafe { madvise(own, 4096, Advice::LinuxPopulateWrite) }.is_ok()
        }));
    }
}
