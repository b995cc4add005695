//! Checks of the program's pointers. A call with a bad pointer goes to the C library as it is, so
//! that the kernel fails it with EFAULT.
//!
//! The kernel checks each page once, by a call that changes nothing. A table keeps the good pages,
//! so a wait with the same arrays as before makes no additional call. A page is never taken out: a
//! program that unmaps it, or makes it read-only, and then passes a pointer to it ends by SIGSEGV.
//!
//! This module never dereferences a pointer, and never approves a page that the kernel has not
//! checked.

use std::ptr::null_mut;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::libc_next::{errno, preserve_errno};

/// Returns whether `count` values at `address` can be read. They need not be aligned.
#[inline]
pub(crate) fn can_read<T>(address: *const T, count: usize) -> bool {
    is_accessible::<READ>(address.addr(), count * size_of::<T>())
}

/// Returns whether `count` values at `address` can be read and written. They need not be aligned.
#[inline]
pub(crate) fn can_write<T>(address: *mut T, count: usize) -> bool {
    is_accessible::<WRITE>(address.addr(), count * size_of::<T>())
}

/// Kinds of access, as the low bits of an entry in the table.
const READ: usize = 1;
const WRITE: usize = 3;

/// The smallest page of any machine; larger ones take several entries.
const PAGE_BYTES: usize = 4096;
const PAGES_BITS: u32 = 14;

/// The table of good pages, indexed by a hash of the page's address. An entry is the address and
/// the kind of access, or 0. A page replaces another page with the same hash. `Relaxed` is
/// sufficient, because an entry says nothing about other memory.
static PAGES: [AtomicUsize; 1 << PAGES_BITS] = [const { AtomicUsize::new(0) }; 1 << PAGES_BITS];

#[inline]
fn is_accessible<const ACCESS: usize>(address: usize, bytes: usize) -> bool {
    let is_one_page = bytes <= PAGE_BYTES && address % PAGE_BYTES <= PAGE_BYTES - bytes;
    is_one_page && is_known::<ACCESS>(address) || are_accessible::<ACCESS>(address, bytes)
}

/// Returns whether the table has the page at this address with this access.
#[inline]
fn is_known<const ACCESS: usize>(address: usize) -> bool {
    let known = slot(address).load(Ordering::Relaxed);
    // A page that can be written can be read as well.
    (known | (WRITE ^ ACCESS)) == (address & !(PAGE_BYTES - 1) | WRITE)
}

#[inline]
fn slot(address: usize) -> &'static AtomicUsize {
    const PAGES_MAX: usize = 1 << PAGES_BITS;
    let page = address / PAGE_BYTES;
    // Stacks of threads are a power of two apart, by default 2,048 pages. The higher bits are mixed
    // in so that they get different slots.
    &PAGES[(page ^ page >> 11) % PAGES_MAX]
}

#[inline(never)]
fn are_accessible<const ACCESS: usize>(address: usize, bytes: usize) -> bool {
    let Some(last) = address.checked_add(bytes.saturating_sub(1)) else { return false };
    let mut pages = (address / PAGE_BYTES..=last / PAGE_BYTES).map(|page| page * PAGE_BYTES);
    pages.all(|page| is_known::<ACCESS>(page) || check_page::<ACCESS>(address, page))
}

/// Lets the kernel check the page at this address: the page of `address`, or a later one.
#[cold]
fn check_page<const ACCESS: usize>(address: usize, page: usize) -> bool {
    // The aligned word of four bytes that has the first byte of the program's data in that page.
    let word = address.max(page) & !3;
    let is_bad = preserve_errno(|| match ACCESS {
        READ => reads_fault(page),
        _ => writes_fault(word),
    });
    if !is_bad {
        slot(page).store(page | ACCESS, Ordering::Relaxed);
    }
    !is_bad
}

/// Returns whether a read of this page fails. rt_sigprocmask(2) reads the set before it rejects an
/// operation that does not exist (EINVAL). Other errors, such as those of a seccomp filter, count
/// as success.
fn reads_fault(page: usize) -> bool {
    const NO_OPERATION: i32 = -1;
    const BYTES: usize = 8;
    // Never null, which would mean that there is no set.
    let set = page + BYTES;
    let old: *mut u64 = null_mut();
    // SAFETY: the kernel checks the address; it changes no mask, as there is no such operation.
    let code = unsafe { libc::syscall(libc::SYS_rt_sigprocmask, NO_OPERATION, set, old, BYTES) };
    code != 0 && errno() == libc::EFAULT
}

/// Returns whether a write of this word fails. futex(2) adds 0 to it in one atomic step, so a write
/// by another thread is not lost. It wakes no thread, because none waits for a word of such an
/// array.
fn writes_fault(word: usize) -> bool {
    const WAKE: i32 = libc::FUTEX_WAKE_OP | libc::FUTEX_PRIVATE_FLAG;
    const ADD_0: i32 = libc::FUTEX_OP_ADD << 28;
    // SAFETY: the kernel checks the address; the value of the word does not change.
    let code = unsafe { libc::syscall(libc::SYS_futex, word, WAKE, 0, 0, word, ADD_0) };
    code < 0 && errno() == libc::EFAULT
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Maps writable pages, followed by one with this protection.
    fn pages(count: usize, protection: i32) -> *mut u8 {
        let (access, flags) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: the kernel chooses the address, so no existing mapping changes.
        let first =
            unsafe { libc::mmap(null_mut(), (count + 1) * PAGE_BYTES, access, flags, -1, 0) };
        assert_ne!(first, libc::MAP_FAILED);
        let last = first.cast::<u8>().wrapping_add(count * PAGE_BYTES);
        // SAFETY: the page was mapped above, and no reference to it exists.
        assert_eq!(unsafe { libc::mprotect(last.cast(), PAGE_BYTES, protection) }, 0);
        first.cast()
    }

    #[test]
    fn mapped_memory_is_accessible() {
        let first = pages(2, libc::PROT_NONE);
        // Twice: checked by the kernel first, found in the table then.
        for _ in 0..2 {
            assert!(can_write(first, 2 * PAGE_BYTES) && can_read(first, 2 * PAGE_BYTES));
            assert!(can_write(first.wrapping_add(PAGE_BYTES - 2), 4));
            assert!(!can_write(first, 2 * PAGE_BYTES + 1) && !can_read(first, 2 * PAGE_BYTES + 1));
            assert!(!can_read(first.wrapping_add(2 * PAGE_BYTES), 1));
        }
    }

    #[test]
    fn read_only_memory_can_be_read() {
        let first = pages(1, libc::PROT_READ);
        let last = first.wrapping_add(PAGE_BYTES);
        for _ in 0..2 {
            assert!(can_read(first, 2 * PAGE_BYTES) && can_write(first, PAGE_BYTES));
            assert!(can_read(last, PAGE_BYTES) && !can_write(last, 1));
            assert!(!can_write(first, 2 * PAGE_BYTES));
        }
    }

    #[test]
    fn null_and_overflowing_addresses_are_bad() {
        let null = std::ptr::null_mut::<u64>();
        for bad in [null, null.wrapping_byte_add(1), null.wrapping_byte_sub(16)] {
            assert!(!can_read(bad, 1) && !can_write(bad, 1));
            assert!(!can_read(bad, 1 << 20) && !can_write(bad, 1 << 20));
        }
        let mut value = 1_u64;
        assert!(!can_write(&raw mut value, usize::MAX / 16));
        assert!(can_write(&raw mut value, 1) && value == 1);
    }

    #[test]
    fn errno_is_preserved() {
        crate::libc_next::set_errno(libc::EXDEV);
        assert!(!can_read(std::ptr::null::<u8>(), 1) && !can_write(null_mut::<u8>(), 1));
        assert_eq!(errno(), libc::EXDEV);
    }
}
