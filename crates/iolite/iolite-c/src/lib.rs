//! libiolite: the crate `iolite` for C. `include/iolite.h` is the interface, and the man pages
//! `iolite(7)` and `iol_*(3)` describe each function. The comments here concern pointers.
//!
//! This crate translates objects, structures and errors between C and `iolite`. It checks the
//! arguments, decides nothing about memory and copies no byte itself, except into and out of the
//! memory of C. It cannot detect invalid pointers or concurrent use of an object that one thread
//! at a time may use; all other misuse returns a negative error number. No panic reaches C: after
//! one, the object refuses every call.

pub mod account;
pub mod aggregate;
pub mod buffer;
pub mod channel;
pub mod descriptor;
pub mod editing;
pub mod error;
pub mod layout;
pub mod object;
mod pointers;
pub mod pool;
pub mod program;
pub mod slab;
pub mod slice;
pub mod unsealed;
