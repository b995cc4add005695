//! A set of splices: the splicer, the `user_data` of its splices, and the memory that C may read.

use std::collections::HashMap;
use std::ffi::{c_int, c_void};
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::panic::{AssertUnwindSafe, catch_unwind};

use millrace_splice::{
    Handle, KeepCopy, Linux, Notice, Released, Request, Side, SpliceMode, SpliceOutcome, Splicer,
    limits,
};

use crate::error::{BROKEN, INVALID, Result, c_error};
use crate::layout::{AUTO_RELEASE, CNotice, CReleased, CRequest, KEEP_COPY, LIMIT, UNIDIRECTIONAL};

/// `struct mrsplice`, which is opaque to C.
pub struct SpliceSet {
    splicer: Splicer<Linux<BorrowedFd<'static>>>,
    /// The splices that may still have notices.
    started: HashMap<Handle, StartedSplice>,
    /// The result whose memory C may read.
    lent: Option<Released>,
    /// A call is running, or a panic ended one and may have left the splicer in an invalid state.
    is_broken: bool,
}

/// The part of a request that notices need.
struct StartedSplice {
    user_data: *mut c_void,
    auto_release: bool,
}

impl SpliceSet {
    pub(crate) fn new(pipes_max: usize) -> Result<Self> {
        let pipes_max = if pipes_max == 0 { limits::PIPES_MAX } else { pipes_max };
        let kernel = Linux::new().map_err(|errno| c_error(errno.into()))?;
        let splicer = Splicer::new(kernel, pipes_max);
        Ok(Self { splicer, started: HashMap::new(), lent: None, is_broken: false })
    }

    /// Calls `call`, unless a panic has occurred before. A panic must not unwind into C, and the
    /// state that it leaves is unknown, so every later call is refused.
    pub(crate) fn guarded<T>(&mut self, call: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        if self.is_broken {
            return Err(BROKEN);
        }
        self.is_broken = true;
        let result = catch_unwind(AssertUnwindSafe(|| call(self)));
        self.is_broken = result.is_err();
        result.unwrap_or(Err(BROKEN))
    }

    /// Returns the descriptor for poll(2).
    pub(crate) fn fd(&self) -> RawFd {
        self.splicer.fd().as_raw_fd()
    }

    /// Starts the splice of `request` between `fds`, and stores the results in `request`. Returns 1
    /// if the splice ended at once, otherwise 0.
    pub(crate) fn splice(
        &mut self,
        request: &mut CRequest,
        [fd0, fd1]: [BorrowedFd<'static>; 2],
        prefix: &[u8],
        input: &mut [u8],
    ) -> Result<c_int> {
        let (mode, keep_copy) = parse_flags(request)?;
        let auto_release = request.flags & AUTO_RELEASE != 0;
        let splice_request = Request { fd0, fd1, mode, keep_copy, auto_release, prefix, input };
        match self.splicer.splice(splice_request).map_err(c_error)? {
            SpliceOutcome::Started { handle, input } => {
                self.started
                    .insert(handle, StartedSplice { user_data: request.user_data, auto_release });
                request.input_filled = input;
                request.splice = handle.to_bits();
                Ok(0)
            }
            SpliceOutcome::Ended { released, input, .. } => {
                request.input_filled = input;
                request.released = self.lend(released);
                Ok(1)
            }
        }
    }

    /// Waits up to `wait_ms` (negative: without limit), then forwards bytes.
    pub(crate) fn forward(&mut self, wait_ms: c_int) -> Result<()> {
        let wait_ms_max = u32::try_from(wait_ms).ok();
        self.splicer.forward(wait_ms_max).map_err(|errno| c_error(errno.into()))
    }

    /// Returns the next notice.
    pub(crate) fn next_notice(&mut self) -> Option<CNotice> {
        let notice = self.splicer.next_notice()?;
        let handle = notice.handle();
        let started = self.started.get(&handle).expect("a notice belongs to a started splice");
        let c_notice = CNotice::new(notice, started.user_data);
        // An end that released the splice is its last notice.
        if started.auto_release && matches!(notice, Notice::Ended { .. }) {
            self.started.remove(&handle);
        }
        Some(c_notice)
    }

    /// Reads from one side of a splice.
    pub(crate) fn read(&mut self, splice: u64, side: Side, bytes: &mut [u8]) -> Result<usize> {
        self.splicer.read(Handle::from_bits(splice), side, bytes).map_err(c_error)
    }

    /// Writes to one side of a splice.
    pub(crate) fn write(&mut self, splice: u64, side: Side, bytes: &[u8]) -> Result<usize> {
        self.splicer.write(Handle::from_bits(splice), side, bytes).map_err(c_error)
    }

    /// Releases a splice.
    pub(crate) fn unsplice(&mut self, splice: u64) -> Result<CReleased> {
        let handle = Handle::from_bits(splice);
        let released = self.splicer.unsplice(handle).map_err(c_error)?;
        self.started.remove(&handle);
        Ok(self.lend(released))
    }

    /// Keeps the memory of a result for C, and frees that of the previous one.
    fn lend(&mut self, released: Released) -> CReleased {
        CReleased::new(self.lent.insert(released))
    }
}

/// Parses the flags of a request. A field that is set without its flag is an error, because the
/// caller expects an effect. The splicer checks the bounds of KeepCopy.
fn parse_flags(request: &CRequest) -> Result<(SpliceMode, Option<KeepCopy>)> {
    let has = |flag| request.flags & flag != 0;
    let all_flags = UNIDIRECTIONAL | LIMIT | KEEP_COPY | AUTO_RELEASE;
    if request.flags & !all_flags != 0
        || request.reserved != 0
        || (has(LIMIT) && !has(UNIDIRECTIONAL))
    {
        return Err(INVALID);
    }
    let is_copy_described = request.min2read != 0
        || request.max2cache != 0
        || request.input_bytes != 0
        || !request.input.is_null();
    if (request.limit != 0 && !has(LIMIT)) || (is_copy_described && !has(KEEP_COPY)) {
        return Err(INVALID);
    }
    let mode = match has(UNIDIRECTIONAL) {
        true => SpliceMode::Unidirectional { limit: has(LIMIT).then_some(request.limit) },
        false => SpliceMode::Bidirectional,
    };
    let keep_copy = KeepCopy { min2read: request.min2read, max2cache: request.max2cache };
    Ok((mode, has(KEEP_COPY).then_some(keep_copy)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_caught_and_the_set_refuses_later_calls() {
        let mut set = SpliceSet::new(1).unwrap();
        assert_eq!(set.guarded(|_| Err::<(), _>(INVALID)), Err(INVALID));
        assert_eq!(set.guarded(|set| set.forward(0)), Ok(()), "an error does not break the set");
        assert_eq!(set.guarded(|_| -> Result<()> { panic!("on purpose") }), Err(BROKEN));
        assert_eq!(set.guarded(|set| set.forward(0)), Err(BROKEN));
    }
}
