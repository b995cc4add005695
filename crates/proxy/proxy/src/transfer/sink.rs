//! The sink of a transfer.

use std::sync::Arc;

use millrace_engine::{Engine, FileRead, SharedBytes};
use millrace_splice::Pipe;

/// The end of a transfer that takes bytes: a connection. A transfer has at most one send
/// outstanding at its sink, and continues when that has completed.
pub(crate) trait TransferSink<E: Engine> {
    /// Sends every byte of `parts`, in order. The bytes are read before the call returns.
    fn send(&mut self, engine: &mut E, parts: &[&[u8]]);

    /// Sends every byte of `parts`, and then the bytes of `shared`, by reference if possible.
    fn send_shared(&mut self, engine: &mut E, parts: &[&[u8]], shared: &dyn SharedBytes);

    /// Sends every byte of `parts`, and then `count` bytes of a file from offset `at`, by
    /// reference. Only for a sink that accepts pipes.
    fn send_file(
        &mut self,
        engine: &mut E,
        parts: &[&[u8]],
        file: &Arc<dyn FileRead>,
        at: u64,
        count: usize,
    );

    /// Sends every byte of `parts`, and then moves the bytes in the pipe. The completion reports
    /// the bytes that left the pipe.
    fn send_pipe(&mut self, engine: &mut E, parts: &[&[u8]], pipe: &Pipe);

    /// Notes that `count` bytes left the pipe, and moves the rest, if any is left.
    fn continue_pipe(&mut self, engine: &mut E, pipe: &mut Pipe, count: usize);

    /// Returns the bytes of the outstanding send that the kernel has not taken. 0 if no send is
    /// outstanding.
    fn unsent(&self, engine: &E) -> usize;

    /// Returns whether the sink takes bytes from a pipe or from a file.
    fn accepts_pipes(&self) -> bool;
}
