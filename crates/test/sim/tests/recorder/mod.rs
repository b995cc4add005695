//! A worker that only records what its engine reports, and worlds for it.

use std::time::Duration;

use millrace_engine::{Address, CompletionEvent, Engine, Fd, Instant, Token, TokenKind};
use millrace_sim::{ActorSocket, Faults, RunOutcome, SimEngine, SimWorker, World, WorldPlan, run};

pub(crate) const TOKEN: Token = Token::new(TokenKind::Client, 0, 7);

/// A worker that records its completions and their times. A receive without an error is recorded as
/// a splice of the same length, because its buffer goes back to the engine.
pub(crate) struct Recorder {
    pub(crate) engine: SimEngine,
    pub(crate) completions: Vec<(Instant, Token, CompletionEvent)>,
}

impl SimWorker for Recorder {
    fn run_turn(&mut self) -> bool {
        self.engine.submit_and_wait(None);
        while let Some(completion) = self.engine.next_completion() {
            let now = self.engine.now();
            if let CompletionEvent::Received(Ok(buffer)) = completion.event {
                let bytes = buffer.len();
                self.engine.recycle(buffer);
                self.completions.push((now, completion.token, CompletionEvent::Spliced(Ok(bytes))));
            } else {
                self.completions.push((now, completion.token, completion.event));
            }
        }
        true
    }
}

/// A fault-free world, except for what `change` does to its plan.
pub(crate) fn world(change: impl FnOnce(&mut WorldPlan)) -> (World, Recorder) {
    let world = World::new(1, Faults::None);
    let mut plan = world.plan();
    change(&mut plan);
    world.set_plan(plan);
    let engine = world.engine(1 << 20);
    (world, Recorder { engine, completions: Vec::new() })
}

pub(crate) fn run_for(world: &World, recorder: &mut Recorder, seconds: u64) -> RunOutcome {
    run(world, &mut [recorder], &mut [], Duration::from_secs(seconds), &mut |_| false)
}

/// A connection from the engine to an actor.
pub(crate) fn connected(world: &World, recorder: &mut Recorder) -> (Fd, ActorSocket) {
    let address = Address::Tcp("127.0.0.1:0".parse().expect("an address"));
    let listener = world.actor_listen(&address);
    let fd = recorder.engine.connect(&world.local_address(listener), TOKEN).expect("there is room");
    run_for(world, recorder, 10);
    let (peer, _) = world.accept(listener).expect("it was connected to");
    recorder.completions.clear();
    (fd, peer)
}
