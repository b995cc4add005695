//! libuselect_preload.so, which `uselect run` loads before the C library, so that select, poll,
//! epoll and related calls of an unmodified program are served from memory.
//!
//! The library records which descriptors of the program are tracked TCP sockets, and which of them
//! its epoll descriptors wait for. It never reads, writes or delays a byte of the program, and
//! never changes the flags of a descriptor. It serves a call only if it is certain of the result.
//! All other calls go to the C library. So do the waits of a signal handler that interrupted a wait
//! of this library. If such a wait is for an epoll descriptor with tracked sockets, it fails with
//! EINTR.
//!
//! A process registers when it creates or first waits for a TCP socket, so programs without TCP
//! sockets never register. Until then, the library does not use the heap. The only lock that it
//! takes is that of the loader, when dlsym(3) finds a function of the C library.

mod config;
pub mod descriptor;
pub mod epoll;
mod epoll_ownership;
mod fd_kind;
mod fd_table;
mod init_fini;
mod instance;
mod libc_next;
mod message;
mod output;
mod pointer;
mod process;
mod reentry;
mod report;
pub mod socket;
pub mod wait;
