//! A set of splices: the splicer, what C wants to have back in notices, and what is lent to C.

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

/// `struct mrsplice`, whose inside C does not see.
pub struct SpliceSet {
    splicer: Splicer<Linux<BorrowedFd<'static>>>,
    /// Of each splice whose notices may still come.
    started: HashMap<Handle, StartedSplice>,
    /// What C was given pointers into last.
    lent: Option<Released>,
    /// A call is under way, or a panic ended one: what it left may be half done.
    is_broken: bool,
}

/// What is remembered of a splice for C.
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

    /// Does `call`, unless a bug of ours ended one before. A panic must not unwind into C, and
    /// nothing can be said of what it leaves behind: from then on every call is refused.
    pub(crate) fn guarded<T>(&mut self, call: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        if self.is_broken {
            return Err(BROKEN);
        }
        self.is_broken = true;
        let result = catch_unwind(AssertUnwindSafe(|| call(self)));
        self.is_broken = result.is_err();
        result.unwrap_or(Err(BROKEN))
    }

    /// The descriptor to wait for.
    pub(crate) fn fd(&self) -> RawFd {
        self.splicer.fd().as_raw_fd()
    }

    /// Begins what `request` describes between `fds`; 1 if it ended at once, else 0. The results are
    /// put into `request`.
    pub(crate) fn splice(
        &mut self,
        request: &mut CRequest,
        [fd0, fd1]: [BorrowedFd<'static>; 2],
        first: &[u8],
        input: &mut [u8],
    ) -> Result<c_int> {
        let (kind, keep) = parse_flags(request)?;
        let auto_release = request.flags & AUTO_RELEASE != 0;
        let splice_request =
            Request { fd0, fd1, mode: kind, keep_copy: keep, auto_release, prefix: first, input };
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

    /// Waits up to `wait_ms` (negative: for ever), then moves bytes.
    pub(crate) fn forward(&mut self, wait_ms: c_int) -> Result<()> {
        let wait_ms_max = u32::try_from(wait_ms).ok();
        self.splicer.forward(wait_ms_max).map_err(|errno| c_error(errno.into()))
    }

    /// The next notice.
    pub(crate) fn next_notice(&mut self) -> Option<CNotice> {
        let notice = self.splicer.next_notice()?;
        let handle = notice.handle();
        let started = self.started.get(&handle).expect("notices come of what was begun");
        let told = CNotice::new(notice, started.user_data);
        // An end that released the splice is the last that is heard of it.
        if started.auto_release && matches!(notice, Notice::Ended { .. }) {
            self.started.remove(&handle);
        }
        Some(told)
    }

    /// Reads from a side of a splice.
    pub(crate) fn read(&mut self, splice: u64, side: Side, bytes: &mut [u8]) -> Result<usize> {
        self.splicer.read(Handle::from_bits(splice), side, bytes).map_err(c_error)
    }

    /// Writes to a side of a splice.
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

    /// Keeps what C is about to be given pointers into; what it was lent before goes.
    fn lend(&mut self, released: Released) -> CReleased {
        CReleased::new(self.lent.insert(released))
    }
}

/// What the flags of a request say. A field that is set and that no flag asks for is refused: who
/// set it expects something of it. Which bounds KeepCopy may have, the splicer judges.
fn parse_flags(request: &CRequest) -> Result<(SpliceMode, Option<KeepCopy>)> {
    let has = |flag| request.flags & flag != 0;
    let known = UNIDIRECTIONAL | LIMIT | KEEP_COPY | AUTO_RELEASE;
    if request.flags & !known != 0 || request.reserved != 0 || (has(LIMIT) && !has(UNIDIRECTIONAL))
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
    let kind = match has(UNIDIRECTIONAL) {
        true => SpliceMode::Unidirectional { limit: has(LIMIT).then_some(request.limit) },
        false => SpliceMode::Bidirectional,
    };
    let keep = KeepCopy { min2read: request.min2read, max2cache: request.max2cache };
    Ok((kind, has(KEEP_COPY).then_some(keep)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_stays_here_and_the_set_refuses_everything_from_then_on() {
        let mut set = SpliceSet::new(1).unwrap();
        assert_eq!(set.guarded(|_| Err::<(), _>(INVALID)), Err(INVALID));
        assert_eq!(set.guarded(|set| set.forward(0)), Ok(()), "a refusal breaks nothing");
        assert_eq!(set.guarded(|_| -> Result<()> { panic!("on purpose") }), Err(BROKEN));
        assert_eq!(set.guarded(|set| set.forward(0)), Err(BROKEN));
    }
}
