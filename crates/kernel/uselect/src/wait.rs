//! The order of a wait, the same for upoll and uselect: memory, then the system call.

use std::sync::TryLockError;
use std::time::{Duration, Instant};

use crate::error::{Errno, Error};
use crate::kernel;
use crate::limits::ROOM_UNSEEN_MAX;
use crate::sleep::{Sleeper, Wanted};
use crate::tracker::Inner;

/// What is asked: some form of a set of descriptors.
pub(crate) trait Question {
    /// Looks at the memory. Gives how many answers there are, and whether there are descriptors
    /// that memory says nothing of.
    fn look(&self, inner: &Inner) -> (usize, bool);
    /// Collects what has to be waited for.
    fn collect(&self, inner: &Inner, wanted: &mut Wanted);
    /// Fills in the answers, from memory and from what poll(2) found of the others, and gives how
    /// many there are. Unless the wait `is_over`, no answer leaves the question as it was.
    ///
    /// # Errors
    /// EBADF where a question is not allowed to have closed descriptors in it.
    fn answer(&mut self, inner: &Inner, wanted: &Wanted, is_over: bool) -> Result<usize, Errno>;
    /// The question as a whole by the system call.
    ///
    /// # Errors
    /// Those of the call.
    fn ask_kernel(&mut self, timeout: Option<Duration>) -> Result<usize, Errno>;
}

pub(crate) fn wait(
    inner: &Inner,
    question: &mut impl Question,
    timeout: Option<Duration>,
) -> Result<usize, Error> {
    if !inner.begins_live() {
        return Ok(question.ask_kernel(timeout)?);
    }
    let mut wanted = Wanted::default();
    let (ready, has_others) = question.look(inner);
    let is_over = ready > 0 || timeout == Some(Duration::ZERO);
    if is_over && !has_others || ready > 0 && inner.may_pass() {
        return Ok(question.answer(inner, &wanted, true)?);
    }
    if has_others {
        inner.end_passes();
    }
    if is_over {
        question.collect(inner, &mut wanted);
        wanted.poll(None, Some(Duration::ZERO))?;
        return Ok(question.answer(inner, &wanted, true)?);
    }
    let mut sleeper = match inner.sleeper.try_lock() {
        Ok(sleeper) => sleeper,
        Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
        Err(TryLockError::WouldBlock) => return Ok(question.ask_kernel(timeout)?),
    };
    // A timeout beyond what the clock can say is for ever.
    let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
    sleep(inner, &mut sleeper, question, wanted, deadline)
}

fn sleep(
    inner: &Inner,
    sleeper: &mut Sleeper,
    question: &mut impl Question,
    mut wanted: Wanted,
    deadline: Option<Instant>,
) -> Result<usize, Error> {
    loop {
        wanted.clear();
        question.collect(inner, &mut wanted);
        let piece = match wanted.full.is_empty() {
            true => None,
            false => Instant::now().checked_add(ROOM_UNSEEN_MAX),
        };
        let until = match (deadline, piece) {
            (Some(deadline), Some(piece)) => Some(deadline.min(piece)),
            (deadline, piece) => deadline.or(piece),
        };
        sleeper.sleep(inner, &mut wanted, until, || question.look(inner).0 > 0)?;
        if !inner.is_live() {
            let left = deadline.map(|at| at.saturating_duration_since(Instant::now()));
            return Ok(question.ask_kernel(left)?);
        }
        let is_piece_over = piece.is_some_and(|piece| piece <= Instant::now());
        for fd in wanted.full.iter().filter(|_| is_piece_over) {
            kernel::borrow(*fd).into_iter().for_each(kernel::touch);
        }
        let is_over = deadline.is_some_and(|deadline| deadline <= Instant::now());
        let ready = question.answer(inner, &wanted, is_over)?;
        if ready > 0 || is_over {
            return Ok(ready);
        }
    }
}
