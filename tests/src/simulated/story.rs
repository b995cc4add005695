//! Stories that a seed invents: a proxy, origins and clients, well-behaved or not, as plain data
//! ([`plan`]) out of one seed ([`draw()`]), played in the simulator under a model that is checked
//! at each byte and each turn ([`ledger`]). A failing one is shrunk ([`shrink()`]) and told.
//!
//! What is modelled, what is not, and how to read a failure: docs/design/testing.md.

mod cached;
mod classes;
mod client;
mod draw;
mod hunt;
mod ledger;
#[cfg(test)]
mod misdeeds;
mod names;
mod origin;
mod pace;
mod plain;
pub mod plan;
mod reading;
mod sending;
mod shrink;
mod stage;
mod tally;
mod tell;
mod words;

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;

use millrace_sim::World;

pub use cached::{CachedStory, draw_cached, play_cached, play_cached_in};
pub use classes::classes;
pub use draw::draw;
pub use hunt::{Hunt, hunt, report};
pub use plain::{plain, request};
pub use plan::Story;
pub use shrink::shrink;
pub use stage::Outcome;
pub use tally::{Failure, Met};

thread_local! {
    /// Whether panics of this thread are kept for the outcome instead of printed.
    static KEEPS: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Plays `story`; a panic is a failure like others. `tells` asks for the tale.
pub fn play_story(story: &Story, tells: bool) -> Outcome {
    play_story_in(&World::new(story.seed, story.world), story, tells)
}

/// As [`play_story`], in a world of the caller's, new.
pub fn play_story_in(world: &World, story: &Story, tells: bool) -> Outcome {
    caught(world, tells, || stage::play(story, world, tells))
}

/// What `play` gives, or its panic as a failure.
fn caught(world: &World, tells: bool, play: impl FnOnce() -> Outcome) -> Outcome {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let printed = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            let kept = KEEPS.with_borrow_mut(|kept| match kept {
                Some(words) => {
                    *words = panic.to_string();
                    true
                }
                None => false,
            });
            if !kept {
                printed(panic);
            }
        }));
    });
    KEEPS.set(Some(String::new()));
    let played = catch_unwind(AssertUnwindSafe(play));
    let words = KEEPS.take().unwrap_or_default();
    played.unwrap_or_else(|_| Outcome {
        failure: Some(Failure { kind: "panic", words }),
        hash: world.trace_hash(),
        met: Met::new(),
        tale: world.event_log(),
        trace: if tells { world.trace() } else { String::new() },
    })
}
