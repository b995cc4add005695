//! The values of programs/profile.h. A test of figures.rs compares them with the header.

/// The 64-bit words of `struct cpu`.
pub(crate) const WORDS: usize = 571;

/// The value of a CPU in the map of the programs.
pub(crate) type CpuWords = [u64; WORDS];

// Numbers of words of `struct cpu`.
pub(crate) const SINCE: usize = 0;
pub(crate) const BASE: usize = 2;
pub(crate) const RECEIVE: usize = 3;
pub(crate) const SOFTIRQ: usize = 4;
pub(crate) const INTERRUPT: usize = 5;
pub(crate) const TIMES: usize = 8;
pub(crate) const SOFTIRQ_COUNTS: usize = TIMES + SLOTS;
pub(crate) const SELECTED_RECEIVES: usize = SOFTIRQ_COUNTS + 10;
pub(crate) const DEVICE_INTERRUPTS: usize = SELECTED_RECEIVES + 1;
pub(crate) const LOCAL_INTERRUPTS: usize = DEVICE_INTERRUPTS + 1;
pub(crate) const RECEIVED: usize = LOCAL_INTERRUPTS + 1;
pub(crate) const SENT: usize = RECEIVED + 2;
pub(crate) const SWITCHES: usize = SENT + 2;
pub(crate) const SOCKET_WRITES: usize = SWITCHES + 1;
pub(crate) const CALL_COUNTS: usize = SOCKET_WRITES + 1;

/// The bit of a slot whose time belongs to the selection.
pub(crate) const SELECTED: usize = 16;
pub(crate) const SLOTS: usize = 32;
/// The number of counted system calls.
pub(crate) const CALLS: usize = 512;

// `enum selection`.
pub(crate) const SELECT_PROCESS: u32 = 0;
pub(crate) const SELECT_CGROUP: u32 = 1;
pub(crate) const SELECT_CORE: u32 = 2;
pub(crate) const SELECT_NAMESPACE: u32 = 3;

// `enum call`.
pub(crate) const CALL_OTHER: u8 = 0;
pub(crate) const CALL_SEND: u8 = 1;
pub(crate) const CALL_WRITE_FIRST: u8 = 2;
pub(crate) const CALL_WRITE_THIRD: u8 = 3;
pub(crate) const CALL_NAMESPACE: u8 = 4;

const _: () = assert!(CALL_COUNTS + CALLS == WORDS);
