//! The preload of user-level connection tracking: libuselect_preload.so, which `uselect run` puts
//! before the C library, so that the waits of an unmodified program (poll, select, epoll and their
//! kin) are answered from memory where that knows.
//!
//! What it owns: which of the program's descriptors are TCP sockets in memory, and what a program's
//! epoll descriptors wait for as far as memory answers it. What it never does: read, write or delay
//! a byte of the program's, change a descriptor's flags, or answer what it is not sure of. Such a
//! call is the C library's, as is each one from a signal handler that came while one of ours was
//! under way in its thread.
//!
//! A process registers when it makes its first TCP socket, or first waits for one, so programs
//! without any never do. Nothing is allocated and no lock is taken before that.

mod config;
pub mod descriptor;
mod ends;
pub mod epoll;
mod inside;
mod instance;
mod kinds;
mod ours;
mod output;
mod pointer;
mod process;
mod real;
mod report;
mod say;
pub mod socket;
mod table;
pub mod wait;
