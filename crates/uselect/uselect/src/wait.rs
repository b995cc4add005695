//! The order of a wait, the same for upoll and uselect: memory, then the system call.

use std::time::Duration;

use crate::deadline::{deadline_of, remaining};
use crate::kernel::{Errno, Result, SignalSet};
use crate::poll_set::PollSet;
use crate::tracker::TrackerShared;
use crate::view::{BlockingWait, MemoryView};
use crate::yield_before_sleep::Yielded;

/// What is asked: some form of a set of descriptors.
pub(crate) trait WaitCall {
    /// Fills in what memory says, in one pass.
    fn scan_memory(&mut self, view: MemoryView<'_>) -> MemoryScan;
    /// As [`Question::look`]; besides, what has to be waited for is published or collected.
    fn prepare_sleep(&mut self, waiter: &mut BlockingWait<'_>) -> usize;
    /// Adds what poll(2) found of what was collected, behind a look; how many answers more.
    ///
    /// # Errors
    /// EBADF where a question is not allowed to have closed descriptors in it.
    fn add_polled(&mut self, asked: &PollSet) -> Result<usize>;
    /// Has the kernel look at the tracked descriptors that are told.
    fn refresh_ready(&self, view: MemoryView<'_>);
    /// The question as a whole by the system call.
    ///
    /// # Errors
    /// Those of the call.
    fn call_kernel(&mut self, timeout: Option<Duration>, mask: Option<&SignalSet>)
    -> Result<usize>;
}

/// What a look has found.
#[derive(Default, Clone, Copy)]
pub(crate) struct MemoryScan {
    /// Answers.
    pub(crate) ready: usize,
    /// There are descriptors of which memory says nothing, or not that they have no room.
    pub(crate) has_unknown: bool,
    /// There are descriptors that may be ready, of which the kernel has to be asked.
    pub(crate) has_hints: bool,
}

pub(crate) fn wait(
    inner: &TrackerShared,
    question: &mut impl WaitCall,
    timeout: Option<Duration>,
    mask: Option<&SignalSet>,
) -> Result<usize> {
    let stats = &inner.counters;
    stats.waits.add();
    let Some((view, calls)) =
        inner.begin_view().and_then(|view| Some((view, view.fetch_completions()?)))
    else {
        return fall_back(inner, question, timeout, mask);
    };
    let found = question.scan_memory(view);
    let is_over = timeout == Some(Duration::ZERO) && mask.is_none();
    let is_unknown = found.has_unknown || found.has_hints;
    let is_told = found.ready > 0 && inner.kernel_check.skip_check(is_unknown);
    if is_told || found.ready == 0 && is_over && !is_unknown {
        if calls == 0 {
            stats.without_call.add();
        }
        return Ok(found.ready);
    }
    let Some(mut waiter) = view.blocking_wait() else {
        return fall_back(inner, question, timeout, mask);
    };
    inner.kernel_check.record_check();
    if found.ready > 0 {
        question.refresh_ready(view);
    }
    let answered = sleep_and_scan(inner, &mut waiter, question, found, timeout, mask);
    waiter.finish();
    answered
}

fn sleep_and_scan(
    inner: &TrackerShared,
    waiter: &mut BlockingWait<'_>,
    question: &mut impl WaitCall,
    mut found: MemoryScan,
    timeout: Option<Duration>,
    mask: Option<&SignalSet>,
) -> Result<usize> {
    let deadline = deadline_of(timeout);
    let left = || remaining(deadline);
    let (mut left_first, mut is_first, view) = (timeout, true, waiter.view());
    loop {
        let was_last = left_first == Some(Duration::ZERO);
        // Guesses are asked about before it is worth to spin; those that stay are slept on.
        if inner.spin.begin_spin(left_first)
            && match found.has_hints {
                true => is_first,
                false => inner.spin.spin_until(|| has_result(view, question)),
            }
        {
            left_first = Some(Duration::ZERO);
        }
        // Who waits by a filter is woken as cheaply as by poll(2).
        let given = match view {
            MemoryView::Region(_) => inner.yielding.yield_now(left_first),
            MemoryView::Multishot(_) => Yielded::default(),
        };
        if !waiter.begin() {
            return fall_back(inner, question, left(), mask);
        }
        let ready = question.prepare_sleep(waiter);
        left_first = given.finish(ready, left_first, deadline);
        // What is ready goes before a signal.
        let (wait, during) =
            if ready > 0 { (Some(Duration::ZERO), None) } else { (left_first, mask) };
        let polled = waiter.poll(wait, during);
        inner.counters.add_sleep(wait);
        let has_more = polled?;
        if !view.is_live() || view.fetch_completions().is_none() {
            return fall_back(inner, question, left(), mask);
        }
        found = question.scan_memory(view);
        let ready = found.ready + question.add_polled(waiter.poll_set())?;
        if ready == 0 && given.is_interrupted {
            return Err(Errno::INTR);
        }
        (left_first, is_first) = (left(), false);
        // What may have become ready in time is asked about, once.
        let is_over = left_first == Some(Duration::ZERO) && (was_last || !found.has_hints);
        if ready > 0 || is_over && !has_more {
            return Ok(ready);
        }
        waiter.withdraw();
    }
}

/// All of it is asked of the kernel.
fn fall_back(
    inner: &TrackerShared,
    question: &mut impl WaitCall,
    timeout: Option<Duration>,
    mask: Option<&SignalSet>,
) -> Result<usize> {
    inner.counters.add_sleep(timeout);
    question.call_kernel(timeout, mask)
}

fn has_result(view: MemoryView<'_>, question: &mut impl WaitCall) -> bool {
    let _ = view.fetch_completions();
    let found = question.scan_memory(view);
    found.ready > 0 || found.has_hints
}
