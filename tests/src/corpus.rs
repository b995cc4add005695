//! The hostile corpus: literal messages, what the real program must do with each, and mutants of
//! them.
//!
//! A *case* (tests/corpus/README.md has the format) says what a client sends on one connection,
//! what the origin must see and says, and what the client must see. A *lane* is one running
//! program with one recording origin behind it; a case is run in a lane alone, so that everything
//! the origin saw belongs to it. The judge behind the program is [`crate::strict`].

pub(crate) mod answers;
pub mod campaign;
pub mod case;
pub mod client;
pub(crate) mod compare;
pub mod judge;
pub mod lane;
pub mod lenient;
pub mod literal;
pub mod mutant;
mod mutate;
pub mod origin;
pub mod patience;
pub mod plan;
pub mod random;
mod relay;
pub mod shrink;
pub mod stock;
pub mod table;
pub mod valid;
