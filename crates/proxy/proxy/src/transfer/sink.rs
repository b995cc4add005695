//! Where a transfer writes to.

use millrace_engine::{Engine, Shared};
use millrace_splice::Pipe;

/// The end of a transfer that takes bytes: a connection. A transfer has at most one send under way
/// at its sink, and continues when that is reported.
pub(crate) trait TransferSink<E: Engine> {
    /// Sends every byte of `parts`, in order. They are read before the call returns.
    fn send(&mut self, engine: &mut E, parts: &[&[u8]]);

    /// Sends every byte of `parts`, and then those of `shared` by reference, where that is
    /// possible.
    fn send_shared(&mut self, engine: &mut E, parts: &[&[u8]], shared: &dyn Shared);

    /// Sends every byte of `parts`, and then moves what the pipe has. Reported are the bytes that
    /// left the pipe.
    fn send_pipe(&mut self, engine: &mut E, parts: &[&[u8]], pipe: &Pipe);

    /// `count` bytes left the pipe. Moves the rest, if there is any.
    fn continue_pipe(&mut self, engine: &mut E, pipe: &mut Pipe, count: usize);

    /// Bytes of the send under way that the kernel has not taken; 0 when none is under way.
    fn unsent(&self, engine: &E) -> usize;
}
