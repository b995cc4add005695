//! One send of a transfer, and its framing in chunks or records.

use millrace_engine::{Engine, SharedBytes};
use millrace_fastcgi::{CONTENT_BYTES_MAX, write_input_header};
use millrace_splice::Pipe;

use crate::cached::reader::CachedSlice;
use crate::transfer::sink::TransferSink;

/// How the payload of a transfer is framed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum SendFraming {
    #[default]
    Bare,
    /// Chunks (RFC 9112 section 7.1).
    Chunks,
    /// STDIN records of FastCGI; never with a pipe.
    Records,
}

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
    pub(crate) framing: SendFraming,
    /// The trailers, if the send ends a framed body; never together with a pipe.
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
        if self.framing == SendFraming::Records {
            send_records(engine, sink, [self.header, self.payload], self.trailers.is_some());
            return false;
        }
        if self.framing == SendFraming::Bare {
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
        let is_chunked = self.framing == SendFraming::Chunks;
        let before = if is_chunked { size.write(slice.bytes().len()) } else { &[] };
        let owed: &[u8] = if self.owes_line_end { b"\r\n" } else { &[] };
        sink.send_shared(engine, &[self.header, owed, before], slice);
        is_chunked
    }
}

/// Sends a header and the payload as records. With `is_last`, they end the stream.
#[cold]
#[inline(never)]
fn send_records<E: Engine>(
    engine: &mut E,
    sink: &mut impl TransferSink<E>,
    [header, payload]: [&[u8]; 2],
    is_last: bool,
) {
    let end = is_last.then(|| write_input_header(0));
    let contents = || payload.chunks(CONTENT_BYTES_MAX);
    let headers: Vec<_> =
        contents().map(|content| write_input_header(content.len())).chain(end).collect();
    let mut parts = vec![header];
    let mut contents = contents();
    for header in &headers {
        parts.push(header);
        parts.extend(contents.next());
    }
    sink.send(engine, &parts);
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
