//! Transfers that compress the payload while it passes.

use iolite::GzipStream;
use millrace_engine::{Engine, SharedBytes};
use millrace_store::BodyEnd;

use crate::cached::reader::NextChunk;
use crate::coded::coder::{self, BodyCoder};
use crate::transfer::body_progress::BodyProgress;
use crate::transfer::send_parts::{SendFraming, SendParts};
use crate::transfer::sink::TransferSink;
use crate::transfer::source::TransferSource;
use crate::transfer::{BodyError, Transfer, TransferState};

/// The most bytes of a cached body that one step compresses: about 0.5 ms of a worker.
const STEP_BYTES_MAX: u64 = 16 * 1024;

impl Transfer {
    /// Sends the bytes at hand compressed. All of them can be decoded at once, so that a client
    /// does not wait for bytes that have arrived. Counts of forwarded and accepted bytes are those
    /// of compressed ones. `coder` is taken with the last byte.
    ///
    /// # Errors
    /// If the body cannot be transferred to its end. Then this step has sent nothing.
    #[cold]
    #[inline(never)]
    pub(crate) fn pump_compressed<E: Engine>(
        &mut self,
        engine: &mut E,
        source: TransferSource<'_>,
        coder: &mut Option<Box<BodyCoder>>,
        sink: &mut impl TransferSink<E>,
        header: &[u8],
    ) -> Result<TransferState, BodyError> {
        debug_assert!(self.framing == SendFraming::Chunks, "the length is unknown");
        self.is_watching = false;
        let stream = &mut coder.as_mut().expect("the caller has checked it").stream;
        let mut payload =
            self.compress_available(stream, source).map_err(|error| self.fail(error))?;
        let is_last = self.body.is_complete();
        let mut trailers = Vec::new();
        if is_last {
            trailers.extend_from_slice(self.body.trailers());
            payload.append(&mut coder::finish(coder));
            self.body = BodyProgress::Complete;
        }
        if payload.is_empty() && header.is_empty() {
            self.stats.calls += 1;
            self.enter(TransferState::AwaitingSource, engine.now());
            return Ok(self.state);
        }
        let parts = SendParts {
            header,
            payload: &payload,
            framing: SendFraming::Chunks,
            trailers: is_last.then_some(&trailers[..]),
            ..SendParts::default()
        };
        parts.send(engine, sink, None);
        self.stats.note_sent(payload.len(), 0, true);
        self.note_forwarded(engine, sink, payload.len());
        Ok(self.state)
    }

    /// Takes bytes of the body from the source, and returns them compressed.
    fn compress_available(
        &mut self,
        stream: &mut GzipStream,
        source: TransferSource<'_>,
    ) -> Result<Vec<u8>, BodyError> {
        match source {
            TransferSource::Wire(wire) => {
                let bytes = wire.recv_buffer.bytes_mut();
                let (consumed, payload) =
                    self.body.advance(bytes).map_err(|_| BodyError::Malformed)?;
                if self.body.is_malformed() {
                    return Err(BodyError::Malformed);
                }
                let compressed = stream.append(&bytes[payload]);
                wire.recv_buffer.consume(consumed);
                Ok(compressed)
            }
            TransferSource::Cached(reader) => {
                let certain = self.body.certain_payload().unwrap_or(u64::MAX);
                match reader.next(certain.min(STEP_BYTES_MAX)) {
                    NextChunk::Slice(slice) => {
                        self.body.skip(slice.bytes().len() as u64);
                        Ok(stream.append(slice.bytes()))
                    }
                    NextChunk::Wait => Ok(Vec::new()),
                    NextChunk::End(BodyEnd::Whole) if self.is_delimited_by_end() => {
                        self.body = BodyProgress::Length(0);
                        Ok(Vec::new())
                    }
                    NextChunk::End(_) => Err(BodyError::Cut),
                    NextChunk::Text(_) => unreachable!("only multipart bodies have text"),
                }
            }
            TransferSource::File(_) | TransferSource::Memory(_) => {
                unreachable!("only responses of origins are compressed while they pass")
            }
        }
    }
}
