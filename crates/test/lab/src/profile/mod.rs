//! A profiler of where the CPU time of a server goes, by eBPF.
//!
//! Each CPU is at up to four levels at once. Time counts for the innermost one, so a process is
//! charged neither for interrupts nor for softirqs that run on top of it.
//!
//! ```text
//!   interrupt      a handler of a device, of a timer, or of a message from another CPU
//!   softirq        packets that a device receives or sends, timers, and the like
//!   receive        packets that a thread receives itself, as the writer of a TUN device
//!   thread         user mode, kernel mode, a socket write; or idle
//! ```
//!
//! Programs at tracepoints (programs/profile.bpf.c) add up the time of each part on each CPU.
//! [`Profiler`] loads and reads them. docs/design/profile.md has the rules and the limits.

mod calls;
mod figures;
mod layout;
mod profiler;
mod selection;

pub use figures::{EventCounts, Owner, Part, Profile, SOFTIRQS};
pub use profiler::Profiler;
pub use selection::{ALLOWED, Selection};
