//! One send of a transfer, and its chunk framing.

use millrace_engine::{Engine, SharedBytes};
use millrace_splice::Pipe;

use crate::cached::reader::CachedSlice;
use crate::transfer::sink::TransferSink;

/// The parts of one send, in this order: a header, the line end of the previous chunk, a chunk or
/// bare bytes, and the end of a chunked body. The last bytes of the payload may be in a pipe.
#[derive(Default)]
pub(crate) struct SendParts<'a> {
    pub(crate) header: &'a [u8],
    /// Whether the line end of the previous chunk is still to be sent.
    pub(crate) owes_line_end: bool,
    pub(crate) payload: &'a [u8],
    /// The number of bytes in the pipe, which follow `payload` in the same chunk.
    pub(crate) piped: usize,
    /// Whether the payload is sent as a chunk.
    pub(crate) chunked: bool,
    /// The trailers, if the send ends a chunked body; never together with a pipe.
    pub(crate) trailers: Option<&'a [u8]>,
}

impl SendParts<'_> {
    /// Sends the parts. Returns true if the line end of the chunk is still owed.
    #[inline(always)]
    pub(crate) fn send<E: Engine>(
        self,
        engine: &mut E,
        sink: &mut impl TransferSink<E>,
        pipe: Option<&Pipe>,
    ) -> bool {
        if !self.chunked {
            debug_assert!(
                !self.owes_line_end && self.trailers.is_none(),
                "only chunks have line ends"
            );
            let parts = [self.header, self.payload];
            match pipe {
                None => sink.send(engine, &parts),
                Some(pipe) => sink.send_pipe(engine, &parts, pipe),
            }
            return false;
        }
        let mut size = ChunkSize::default();
        let (mut before, mut after) = (&[][..], &[][..]);
        let length = self.payload.len() + self.piped;
        if length > 0 {
            (before, after) = (size.write(length), b"\r\n");
        }
        let owed: &[u8] = if self.owes_line_end { b"\r\n" } else { &[] };
        let Some(pipe) = pipe else {
            let last = self.trailers.map_or([&[][..]; 3], |trailers| [b"0\r\n", trailers, b"\r\n"]);
            let [zero, trailers, end] = last;
            let parts = [self.header, owed, before, self.payload, after, zero, trailers, end];
            sink.send(engine, &parts);
            return false;
        };
        assert!(self.trailers.is_none(), "a send with a pipe does not end a chunked body");
        sink.send_pipe(engine, &[self.header, owed, before, self.payload], pipe);
        true
    }

    /// Sends the parts before a slice, and the slice by reference. Returns true if the line end of
    /// the chunk is still owed.
    pub(crate) fn send_shared<E: Engine>(
        self,
        engine: &mut E,
        sink: &mut impl TransferSink<E>,
        slice: &CachedSlice,
    ) -> bool {
        let mut size = ChunkSize::default();
        let before = if self.chunked { size.write(slice.bytes().len()) } else { &[] };
        let owed: &[u8] = if self.owes_line_end { b"\r\n" } else { &[] };
        sink.send_shared(engine, &[self.header, owed, before], slice);
        self.chunked
    }
}

/// The line before a chunk: at most 16 digits, and CRLF.
#[derive(Default)]
struct ChunkSize([u8; 18]);

impl ChunkSize {
    fn write(&mut self, mut length: usize) -> &[u8] {
        let end = self.0.len() - 2;
        self.0[end..].copy_from_slice(b"\r\n");
        let mut start = end;
        while length > 0 || start == end {
            start -= 1;
            self.0[start] = b"0123456789abcdef"[length & 15];
            length >>= 4;
        }
        &self.0[start..]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chunk_size_is_written_in_the_fewest_digits() {
        for (length, line) in [(0, "0\r\n"), (10, "a\r\n"), (0x1_0000, "10000\r\n")] {
            assert_eq!(ChunkSize::default().write(length), line.as_bytes());
        }
    }
}
