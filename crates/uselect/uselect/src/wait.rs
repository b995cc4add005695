//! The order of a wait, the same for upoll and uselect: memory, then the system call.

use std::time::Duration;

use crate::asked::Asked;
use crate::deadline::{deadline_of, left_of};
use crate::kernel::{Errno, Result, SignalSet};
use crate::tracker::Inner;
use crate::turn::Given;
use crate::view::{View, Waiter};

/// What is asked: some form of a set of descriptors.
pub(crate) trait Question {
    /// Fills in what memory says, in one pass.
    fn look(&mut self, view: View<'_>) -> Look;
    /// As [`Question::look`]; besides, what has to be waited for is published or collected.
    fn collect(&mut self, waiter: &mut Waiter<'_>) -> usize;
    /// Adds what poll(2) found of what was collected, behind a look; how many answers more.
    ///
    /// # Errors
    /// EBADF where a question is not allowed to have closed descriptors in it.
    fn add(&mut self, asked: &Asked) -> Result<usize>;
    /// Has the kernel look at the tracked descriptors that are told.
    fn refresh(&self, view: View<'_>);
    /// The question as a whole by the system call.
    ///
    /// # Errors
    /// Those of the call.
    fn ask_kernel(&mut self, timeout: Option<Duration>, mask: Option<&SignalSet>) -> Result<usize>;
}

/// What a look has found.
#[derive(Default, Clone, Copy)]
pub(crate) struct Look {
    /// Answers.
    pub(crate) ready: usize,
    /// There are descriptors of which memory says nothing, or not that they have no room.
    pub(crate) has_others: bool,
    /// There are descriptors that may be ready, of which the kernel has to be asked.
    pub(crate) has_guesses: bool,
}

pub(crate) fn wait(
    inner: &Inner,
    question: &mut impl Question,
    timeout: Option<Duration>,
    mask: Option<&SignalSet>,
) -> Result<usize> {
    let stats = &inner.counters;
    stats.waits.add();
    let Some((view, calls)) = inner.view().and_then(|view| Some((view, view.refill()?))) else {
        return leave(inner, question, timeout, mask);
    };
    let found = question.look(view);
    let is_over = timeout == Some(Duration::ZERO) && mask.is_none();
    let is_unknown = found.has_others || found.has_guesses;
    let is_told = found.ready > 0 && inner.passes.may_pass(is_unknown);
    if is_told || found.ready == 0 && is_over && !is_unknown {
        if calls == 0 {
            stats.without_call.add();
        }
        return Ok(found.ready);
    }
    let Some(mut waiter) = view.waiter() else {
        return leave(inner, question, timeout, mask);
    };
    inner.passes.end();
    if found.ready > 0 {
        question.refresh(view);
    }
    let answered = ask(inner, &mut waiter, question, found, timeout, mask);
    waiter.rest();
    answered
}

fn ask(
    inner: &Inner,
    waiter: &mut Waiter<'_>,
    question: &mut impl Question,
    mut found: Look,
    timeout: Option<Duration>,
    mask: Option<&SignalSet>,
) -> Result<usize> {
    let deadline = deadline_of(timeout);
    let left = || left_of(deadline);
    let (mut left_first, mut is_first, view) = (timeout, true, waiter.view());
    loop {
        let was_last = left_first == Some(Duration::ZERO);
        // Guesses are asked about before it is worth to spin; those that stay are slept on.
        if inner.spin.spins(left_first)
            && match found.has_guesses {
                true => is_first,
                false => inner.spin.until(|| has_answer(view, question)),
            }
        {
            left_first = Some(Duration::ZERO);
        }
        // Who waits by a filter is woken as cheaply as by poll(2).
        let given = match view {
            View::Region(_) => inner.turn.give(left_first),
            View::Filter(_) => Given::default(),
        };
        if !waiter.begin() {
            return leave(inner, question, left(), mask);
        }
        let ready = question.collect(waiter);
        left_first = given.end(ready, left_first, deadline);
        // What is ready goes before a signal.
        let (wait, during) =
            if ready > 0 { (Some(Duration::ZERO), None) } else { (left_first, mask) };
        let polled = waiter.poll(wait, during);
        inner.counters.add_sleep(wait);
        let has_more = polled?;
        if !view.is_live() || view.refill().is_none() {
            return leave(inner, question, left(), mask);
        }
        found = question.look(view);
        let ready = found.ready + question.add(waiter.asked())?;
        if ready == 0 && given.is_interrupted {
            return Err(Errno::INTR);
        }
        (left_first, is_first) = (left(), false);
        // What may have become ready in time is asked about, once.
        let is_over = left_first == Some(Duration::ZERO) && (was_last || !found.has_guesses);
        if ready > 0 || is_over && !has_more {
            return Ok(ready);
        }
        waiter.take_back();
    }
}

/// All of it is asked of the kernel.
fn leave(
    inner: &Inner,
    question: &mut impl Question,
    timeout: Option<Duration>,
    mask: Option<&SignalSet>,
) -> Result<usize> {
    inner.counters.add_sleep(timeout);
    question.ask_kernel(timeout, mask)
}

fn has_answer(view: View<'_>, question: &mut impl Question) -> bool {
    let _ = view.refill();
    let found = question.look(view);
    found.ready > 0 || found.has_guesses
}
