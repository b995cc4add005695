//! Writing aggregates by system calls.

use std::io::IoSlice;
use std::os::fd::BorrowedFd;

use millrace_sys::{Errno, WRITE_PARTS_MAX};

use crate::aggregate::Aggregate;

/// Writes as much of an aggregate as write(2) takes, and returns the number of bytes.
pub(super) fn write_bytes(file: BorrowedFd<'_>, bytes: &Aggregate) -> Result<u64, Errno> {
    let parts: Vec<IoSlice<'_>> = bytes.slices().map(|slice| IoSlice::new(slice)).collect();
    if parts.is_empty() {
        return millrace_sys::write_next(file, &[IoSlice::new(&[])]).map(|count| count as u64);
    }
    let mut written = 0;
    for parts in parts.chunks(WRITE_PARTS_MAX) {
        let expected: usize = parts.iter().map(|part| part.len()).sum();
        match millrace_sys::write_next(file, parts) {
            Ok(count) => {
                written += count as u64;
                if count < expected {
                    break;
                }
            }
            Err(error) if written == 0 => return Err(error),
            Err(_) => break,
        }
    }
    Ok(written)
}
