//! The hostile corpus: literal messages, what the real program must do with each, and mutants of
//! them.
//!
//! A *case* (tests/corpus/README.md has the format) says what a client sends on one connection,
//! what the origin must see and how it responds, and what the client must see. A [`program`] under
//! test has one recording origin behind it and runs one case at a time, so that everything the
//! origin saw belongs to that case. The parser that checks messages behind the program is
//! [`crate::strict`].

pub mod campaign;
pub mod case;
pub mod client;
pub(crate) mod compare;
pub mod judge;
pub mod lenient;
pub mod literal;
pub mod mutant;
mod mutate;
pub mod origin;
pub mod plan;
pub mod program;
pub mod random;
mod relay;
pub(crate) mod responses;
pub mod shrink;
pub mod table;
pub mod templates;
pub mod timeouts;
pub mod valid;
