//! A set of splices: the splicer, what C wants to have back in notices, and what is lent to C.

use std::collections::HashMap;
use std::ffi::{c_int, c_void};
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::panic::{AssertUnwindSafe, catch_unwind};

use millrace_splice::{
    Handle, Keep, Kind, Linux, Notice, Outcome, Released, Request, Side, Splicer, limits,
};

use crate::error::{BROKEN, INVALID, Result, number};
use crate::layout::{AUTO_RELEASE, CNotice, CReleased, CRequest, KEEP_COPY, LIMIT, UNIDIRECTIONAL};

/// `struct mrsplice`, whose inside C does not see.
pub struct Set {
    splicer: Splicer<Linux<BorrowedFd<'static>>>,
    /// Of each splice whose notices may still come.
    begun: HashMap<Handle, Begun>,
    /// What C was given pointers into last.
    lent: Option<Released>,
    /// A call is under way, or a panic ended one: what it left may be half done.
    is_broken: bool,
}

/// What is remembered of a splice for C.
struct Begun {
    data: *mut c_void,
    auto_release: bool,
}

impl Set {
    pub(crate) fn new(pipes_max: usize) -> Result<Self> {
        let pipes_max = if pipes_max == 0 { limits::PIPES_MAX } else { pipes_max };
        let kernel = Linux::new().map_err(|errno| number(errno.into()))?;
        let splicer = Splicer::new(kernel, pipes_max);
        Ok(Self { splicer, begun: HashMap::new(), lent: None, is_broken: false })
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

    /// Begins what `asked` describes between `fds`; 1 if it ended at once, else 0. The results are
    /// put into `asked`.
    pub(crate) fn splice(
        &mut self,
        asked: &mut CRequest,
        [fd0, fd1]: [BorrowedFd<'static>; 2],
        first: &[u8],
        input: &mut [u8],
    ) -> Result<c_int> {
        let (kind, keep) = kind_and_keep(asked)?;
        let auto_release = asked.flags & AUTO_RELEASE != 0;
        let request = Request { fd0, fd1, kind, keep, auto_release, first, input };
        match self.splicer.splice(request).map_err(number)? {
            Outcome::Begun { handle, input } => {
                self.begun.insert(handle, Begun { data: asked.data, auto_release });
                asked.input_filled = input;
                asked.splice = handle.to_bits();
                Ok(0)
            }
            Outcome::Ended { released, input, .. } => {
                asked.input_filled = input;
                asked.released = self.lend(released);
                Ok(1)
            }
        }
    }

    /// Waits up to `wait_ms` (negative: for ever), then moves bytes.
    pub(crate) fn turn(&mut self, wait_ms: c_int) -> Result<()> {
        let wait_ms_max = u32::try_from(wait_ms).ok();
        self.splicer.turn(wait_ms_max).map_err(|errno| number(errno.into()))
    }

    /// The next notice.
    pub(crate) fn next(&mut self) -> Option<CNotice> {
        let notice = self.splicer.next_notice()?;
        let handle = notice.handle();
        let begun = self.begun.get(&handle).expect("notices come of what was begun");
        let told = CNotice::new(notice, begun.data);
        // An end that released the splice is the last that is heard of it.
        if begun.auto_release && matches!(notice, Notice::Ended { .. }) {
            self.begun.remove(&handle);
        }
        Some(told)
    }

    /// Reads from a side of a splice.
    pub(crate) fn read(&mut self, splice: u64, side: Side, bytes: &mut [u8]) -> Result<usize> {
        self.splicer.read(Handle::from_bits(splice), side, bytes).map_err(number)
    }

    /// Writes to a side of a splice.
    pub(crate) fn write(&mut self, splice: u64, side: Side, bytes: &[u8]) -> Result<usize> {
        self.splicer.write(Handle::from_bits(splice), side, bytes).map_err(number)
    }

    /// Releases a splice.
    pub(crate) fn unsplice(&mut self, splice: u64) -> Result<CReleased> {
        let handle = Handle::from_bits(splice);
        let released = self.splicer.unsplice(handle).map_err(number)?;
        self.begun.remove(&handle);
        Ok(self.lend(released))
    }

    /// Keeps what C is about to be given pointers into; what it was lent before goes.
    fn lend(&mut self, released: Released) -> CReleased {
        CReleased::new(self.lent.insert(released))
    }
}

/// What the flags of a request say. A field that is set and that no flag asks for is refused: who
/// set it expects something of it. Which bounds KeepCopy may have, the splicer judges.
fn kind_and_keep(asked: &CRequest) -> Result<(Kind, Option<Keep>)> {
    let has = |flag| asked.flags & flag != 0;
    let known = UNIDIRECTIONAL | LIMIT | KEEP_COPY | AUTO_RELEASE;
    if asked.flags & !known != 0 || asked.unused != 0 || (has(LIMIT) && !has(UNIDIRECTIONAL)) {
        return Err(INVALID);
    }
    let is_copy_described = asked.min2read != 0
        || asked.max2cache != 0
        || asked.input_bytes != 0
        || !asked.input.is_null();
    if (asked.limit != 0 && !has(LIMIT)) || (is_copy_described && !has(KEEP_COPY)) {
        return Err(INVALID);
    }
    let kind = match has(UNIDIRECTIONAL) {
        true => Kind::Unidirectional { limit: has(LIMIT).then_some(asked.limit) },
        false => Kind::Bidirectional,
    };
    let keep = Keep { min2read: asked.min2read, max2cache: asked.max2cache };
    Ok((kind, has(KEEP_COPY).then_some(keep)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_stays_here_and_the_set_refuses_everything_from_then_on() {
        let mut set = Set::new(1).unwrap();
        assert_eq!(set.guarded(|_| Err::<(), _>(INVALID)), Err(INVALID));
        assert_eq!(set.guarded(|set| set.turn(0)), Ok(()), "a refusal breaks nothing");
        assert_eq!(set.guarded(|_| -> Result<()> { panic!("on purpose") }), Err(BROKEN));
        assert_eq!(set.guarded(|set| set.turn(0)), Err(BROKEN));
    }
}
