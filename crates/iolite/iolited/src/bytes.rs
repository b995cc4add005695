//! Reading the bytes of files.

use std::os::fd::BorrowedFd;

use iolite::service::Refusal;

use crate::limits::COMPARED_BYTES;
use crate::memory::Memory;

/// Fills a slice with bytes of a file.
///
/// # Errors
/// [`Refusal::Changing`] if the file is shorter now.
pub(crate) fn read_exactly(
    file: BorrowedFd<'_>,
    mut offset: u64,
    mut bytes: &mut [u8],
) -> Result<(), Refusal> {
    while !bytes.is_empty() {
        match millrace_sys::read_at(file, bytes, offset).map_err(Refusal::Kernel)? {
            0 => return Err(Refusal::Changing),
            count => {
                bytes = &mut bytes[count..];
                offset += count as u64;
            }
        }
    }
    Ok(())
}

/// Returns whether a file has the bytes of `memory` at an offset.
///
/// # Errors
/// As [`read_exactly`].
pub(crate) fn are_equal(
    file: BorrowedFd<'_>,
    offset: u64,
    memory: &Memory,
) -> Result<bool, Refusal> {
    let mut buffers = vec![0; 2 * COMPARED_BYTES];
    let (ours, theirs) = buffers.split_at_mut(COMPARED_BYTES);
    let length = memory.length();
    for at in (0..length).step_by(COMPARED_BYTES) {
        let count = COMPARED_BYTES.min((length - at) as usize);
        memory.read_at(at, &mut ours[..count])?;
        match read_exactly(file, offset + at, &mut theirs[..count]) {
            Err(Refusal::Changing) => return Ok(false),
            read => read?,
        }
        if ours[..count] != theirs[..count] {
            return Ok(false);
        }
    }
    Ok(true)
}
