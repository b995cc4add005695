//! The steps of a wait, the same for upoll and uselect: first memory, then the system call.

use std::time::Duration;

use crate::deadline::{deadline_of, remaining};
use crate::kernel::{Errno, Result, SignalSet};
use crate::poll_set::PollSet;
use crate::tracker::TrackerShared;
use crate::view::{BlockingWait, MemoryView};
use crate::yield_before_sleep::Yielded;

/// A wait in progress, for some representation of a set of descriptors.
pub(crate) trait WaitCall {
    /// Stores the results that memory shows, in one pass.
    fn scan_memory(&mut self, view: MemoryView<'_>) -> MemoryScan;
    /// Publishes the interest in each descriptor, or adds the descriptor to the poll set. Then
    /// reads memory again, and returns the number of results.
    fn prepare_sleep(&mut self, blocking: &mut BlockingWait<'_>) -> usize;
    /// Adds the results of poll(2) for the poll set to those of a scan. Returns the number of added
    /// results.
    ///
    /// # Errors
    /// EBADF in uselect, if a descriptor is not open.
    fn add_polled(&mut self, poll_set: &PollSet) -> Result<usize>;
    /// Updates the words of the tracked descriptors that are ready.
    fn refresh_ready(&self, view: MemoryView<'_>);
    /// Makes the system call for all descriptors.
    ///
    /// # Errors
    /// Those of the call.
    fn call_kernel(&mut self, timeout: Option<Duration>, mask: Option<&SignalSet>)
    -> Result<usize>;
}

/// The result of a scan of memory.
#[derive(Default, Clone, Copy)]
pub(crate) struct MemoryScan {
    /// The number of results.
    pub(crate) ready: usize,
    /// Memory does not show the state of some descriptors, or some lack send space.
    pub(crate) has_unknown: bool,
    /// Some descriptors have hints: the kernel must be called for them.
    pub(crate) has_hints: bool,
}

pub(crate) fn wait(
    shared: &TrackerShared,
    call: &mut impl WaitCall,
    timeout: Option<Duration>,
    mask: Option<&SignalSet>,
) -> Result<usize> {
    let stats = &shared.counters;
    stats.waits.add();
    let Some((view, calls)) =
        shared.begin_view().and_then(|view| Some((view, view.fetch_completions()?)))
    else {
        return fall_back(shared, call, timeout, mask);
    };
    let found = call.scan_memory(view);
    let is_over = timeout == Some(Duration::ZERO) && mask.is_none();
    let is_unknown = found.has_unknown || found.has_hints;
    let is_served = found.ready > 0 && shared.kernel_check.skip_check(is_unknown);
    if is_served || found.ready == 0 && is_over && !is_unknown {
        if calls == 0 {
            stats.without_syscall.add();
        }
        return Ok(found.ready);
    }
    let Some(mut blocking) = view.blocking_wait() else {
        return fall_back(shared, call, timeout, mask);
    };
    shared.kernel_check.record_check();
    if found.ready > 0 {
        call.refresh_ready(view);
    }
    let result = sleep_and_scan(shared, &mut blocking, call, found, timeout, mask);
    blocking.finish();
    result
}

fn sleep_and_scan(
    shared: &TrackerShared,
    blocking: &mut BlockingWait<'_>,
    call: &mut impl WaitCall,
    mut found: MemoryScan,
    timeout: Option<Duration>,
    mask: Option<&SignalSet>,
) -> Result<usize> {
    let deadline = deadline_of(timeout);
    let time_left = || remaining(deadline);
    let (mut sleep_max, mut is_first_round, view) = (timeout, true, blocking.view());
    loop {
        let had_no_time = sleep_max == Some(Duration::ZERO);
        // If there are hints, poll(2) takes the place of a spin that is due: the first round calls
        // it without sleeping. Later rounds with hints sleep without a spin.
        if shared.spin.begin_spin(sleep_max)
            && match found.has_hints {
                true => is_first_round,
                false => shared.spin.spin_until(|| scan_for_result(view, call)),
            }
        {
            sleep_max = Some(Duration::ZERO);
        }
        // A wake-up by the multishot ring is as cheap as one of poll(2), so yielding has no
        // advantage.
        let yielded = match view {
            MemoryView::Region(_) => shared.yielding.yield_now(sleep_max),
            MemoryView::Multishot(_) => Yielded::default(),
        };
        if !blocking.begin() {
            return fall_back(shared, call, time_left(), mask);
        }
        let ready = call.prepare_sleep(blocking);
        sleep_max = yielded.finish(ready, sleep_max, deadline);
        // Results take precedence over a signal.
        let (wait, sleep_mask) =
            if ready > 0 { (Some(Duration::ZERO), None) } else { (sleep_max, mask) };
        let polled = blocking.poll(wait, sleep_mask);
        shared.counters.add_sleep(wait);
        let has_more = polled?;
        if !view.is_live() || view.fetch_completions().is_none() {
            return fall_back(shared, call, time_left(), mask);
        }
        found = call.scan_memory(view);
        let ready = found.ready + call.add_polled(blocking.poll_set())?;
        if ready == 0 && yielded.is_interrupted {
            return Err(Errno::INTR);
        }
        (sleep_max, is_first_round) = (time_left(), false);
        // A wait whose timeout has expired checks new hints in one more round.
        let is_over = sleep_max == Some(Duration::ZERO) && (had_no_time || !found.has_hints);
        if ready > 0 || is_over && !has_more {
            return Ok(ready);
        }
        blocking.withdraw();
    }
}

/// Makes the system call for all descriptors.
fn fall_back(
    shared: &TrackerShared,
    call: &mut impl WaitCall,
    timeout: Option<Duration>,
    mask: Option<&SignalSet>,
) -> Result<usize> {
    shared.counters.add_sleep(timeout);
    call.call_kernel(timeout, mask)
}

fn scan_for_result(view: MemoryView<'_>, call: &mut impl WaitCall) -> bool {
    let _ = view.fetch_completions();
    let found = call.scan_memory(view);
    found.ready > 0 || found.has_hints
}
