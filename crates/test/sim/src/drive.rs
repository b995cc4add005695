//! Runs the workers and actors of a world: takes the next event from the queue, advances the clock
//! to it, applies it to the kernel, and runs the worker whose turn it is. The actors run after
//! every event.

use std::sync::atomic::Ordering;
use std::time::Duration;

use millrace_engine::Instant;

use crate::World;
use crate::kernel::{Kernel, KernelEvent};

/// A worker over a [`SimEngine`](crate::SimEngine). Workers are passed in the order in which their
/// engines were created.
pub trait SimWorker {
    /// Runs one turn, with one
    /// [`Engine::submit_and_wait`](millrace_engine::Engine::submit_and_wait). Returns false once
    /// the worker has drained, after which it is not called again.
    fn run_turn(&mut self) -> bool;
}

/// A scripted client, origin or server.
pub trait Actor {
    /// Called after every event. Does what is possible now, and returns the time at which to call
    /// it again even if nothing happens.
    fn step(&mut self, world: &World) -> Option<Instant>;
}

/// The outcome of a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RunOutcome {
    /// The condition became true, or all workers have drained.
    Done,
    /// No event is left, and the condition is not true.
    Stuck,
    /// The time limit was reached.
    TimeUp,
}

/// Number of successive turns that a worker may begin with a deadline in the past and without any
/// effect.
const SPINS_MAX: u32 = 1000;
/// The longest virtual time between two turns of a busy worker.
const TURN_NS_MAX: u64 = 20_000;

/// Runs until `done` returns true, all workers have drained, no event is left, or `limit` of
/// virtual time has passed. Time that the workers missed is not counted: clock jumps, and turns
/// that began late.
///
/// # Panics
/// Panics if a worker breaks the contract of its engine, or spins.
pub fn run(
    world: &World,
    workers: &mut [&mut dyn SimWorker],
    actors: &mut [&mut dyn Actor],
    limit: Duration,
    done: &mut dyn FnMut(&World) -> bool,
) -> RunOutcome {
    let (start, missed) = (world.now(), world.missed_time());
    let mut drained = vec![false; workers.len()];
    let mut planned_step = None;
    loop {
        let next_step = actors.iter_mut().filter_map(|actor| actor.step(world)).min();
        schedule_actor_step(&mut world.kernel.borrow_mut(), next_step, &mut planned_step);
        schedule_woken(&mut world.kernel.borrow_mut());
        if done(world) || (!drained.is_empty() && drained.iter().all(|drained| *drained)) {
            return RunOutcome::Done;
        }
        let next = world.kernel.borrow().next_event_time();
        let end = start + limit + (world.missed_time() - missed);
        match next {
            None => return RunOutcome::Stuck,
            Some(when) if when > end => return RunOutcome::TimeUp,
            Some(_) => {}
        }
        let Some(engine) = process_next(&mut world.kernel.borrow_mut()) else {
            continue;
        };
        if drained.get(engine).copied().unwrap_or(true) {
            continue;
        }
        drained[engine] = !workers[engine].run_turn();
        schedule_next_turn(&mut world.kernel.borrow_mut(), engine);
    }
}

/// Processes the next event. Returns the engine whose worker has to run, if there is one.
fn process_next(kernel: &mut Kernel) -> Option<usize> {
    match kernel.pop()? {
        KernelEvent::Segment { connection, side } => kernel.segment_arrives(connection, side),
        KernelEvent::Reset { connection, side } => kernel.reset_arrives(connection, side),
        KernelEvent::Connect { connection } => kernel.connect_ends(connection),
        KernelEvent::Datagram { from, to, bytes } => kernel.datagram_arrives(from, to, bytes),
        KernelEvent::Attempt(attempt) => kernel.deliver_attempt(attempt),
        KernelEvent::ActorStep => {}
        KernelEvent::ClockJump => kernel.jump_clock(),
        KernelEvent::Stale { engine, stale } => kernel.queue_stale(engine, stale),
        KernelEvent::Turn { engine, serial } => {
            let state = &mut kernel.engines[engine];
            if state.next_turn.is_some_and(|(_, planned)| planned == serial) {
                state.next_turn = None;
                return if kernel.draw_late_turn(engine) { None } else { Some(engine) };
            }
        }
    }
    None
}

/// Schedules the turn after one that has just ended. A worker passes its deadline at the beginning
/// of a turn, before it handles completions, which may add earlier deadlines. So if the turn had an
/// effect, the next one follows soon.
fn schedule_next_turn(kernel: &mut Kernel, engine: usize) {
    let now = kernel.now;
    let state = &mut kernel.engines[engine];
    let attempts = !(state.ready.is_empty() && state.batch.is_empty() && state.stale.is_empty());
    let due = state.deadline.is_some_and(|deadline| deadline <= now);
    state.spins = if due && !state.busy { state.spins + 1 } else { 0 };
    assert!(state.spins < SPINS_MAX, "worker {engine} spins: its deadline never moves");
    if state.busy || attempts || due {
        let pause = kernel.random.between(1, TURN_NS_MAX);
        let when = kernel.now + Duration::from_nanos(pause);
        kernel.schedule_turn(engine, when);
    } else if let Some(deadline) = state.deadline {
        kernel.schedule_turn(engine, deadline);
    }
}

/// Schedules a step of the actors, unless one is `planned` for the same time or earlier.
fn schedule_actor_step(
    kernel: &mut Kernel,
    next_step: Option<Instant>,
    planned: &mut Option<Instant>,
) {
    planned.take_if(|planned| *planned <= kernel.now);
    if let Some(next_step) = next_step
        && planned.is_none_or(|planned| next_step < planned)
    {
        kernel.schedule_at(next_step, KernelEvent::ActorStep);
        *planned = Some(next_step);
    }
}

/// Schedules turns for engines that were woken.
fn schedule_woken(kernel: &mut Kernel) {
    for engine in 0..kernel.engines.len() {
        // Relaxed: the load only schedules a turn. `SimEngine::next_kernel_completion` acquires the
        // flag.
        let state = &mut kernel.engines[engine];
        if state.wake.load(Ordering::Relaxed) && !state.wake_noticed {
            state.wake_noticed = true;
            let when = kernel.now + kernel.jitter() + kernel.wake_delay();
            kernel.schedule_turn(engine, when);
        }
    }
}
