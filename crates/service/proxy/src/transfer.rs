//! Bytes moving one way: from a source's unread bytes, through the framing of its message, to a
//! sink in the framing of that side. A transfer moves bytes and knows where a body ends; it never
//! decides what follows.
//!
//! One step is one send: what the source has at hand goes out, and the source is read again only
//! when the sink has taken it all. So a sink that reads nothing stops its source, and what a
//! transfer holds is bounded by one receive.

use std::time::Duration;

use millrace_event::{Engine, Fd, Instant, Token};
use millrace_http::{ChunkError, ChunkedDecoder, Framing};

use crate::input::Input;

/// What a transfer waits for.
///
/// ```text
///  Off ── start ──> Source <──────> Sink ──> Ended
///                     └── nothing left ──────^
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Waits {
    /// Not begun, or there is no body.
    #[default]
    Off,
    /// More bytes have to be received.
    Source,
    /// The sink has to take what was sent.
    Sink,
    /// The last byte was taken.
    Ended,
}

/// How much of a message is still to come, by its framing (RFC 9112 section 6).
#[derive(Debug, Default)]
enum Rest {
    /// All of it was seen.
    #[default]
    Nothing,
    /// So many bytes, at least one.
    Length(u64),
    Chunked(ChunkedDecoder),
    /// Until the source ends its stream: such a body, or a tunnel.
    UntilClose,
}

/// The source ended its stream before the body was whole.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Cut;

#[derive(Debug, Default)]
pub(crate) struct Transfer {
    waits: Waits,
    rest: Rest,
    /// Whether the sink gets chunks.
    chunked_out: bool,
    /// Payload bytes given to the sink.
    moved: u64,
    /// When the present wait began, or last made progress enough.
    since: Instant,
    /// How long the source was waited for since `paced_at`, without the present wait.
    waited: Duration,
    /// `moved` as it stood when `waited` was zero.
    paced_at: u64,
    /// The sink's unsent bytes at `since`.
    unsent_at: usize,
}

impl Transfer {
    /// Begins a body: `framing` says how it arrives, `chunked_out` whether it leaves in chunks.
    pub(crate) fn start(&mut self, framing: Framing, chunked_out: bool, now: Instant) {
        let rest = match framing {
            Framing::None | Framing::Length(0) => Rest::Nothing,
            Framing::Length(length) => Rest::Length(length),
            Framing::Chunked => Rest::Chunked(ChunkedDecoder::default()),
            Framing::UntilClose => Rest::UntilClose,
        };
        *self = Self { waits: Waits::Source, rest, chunked_out, since: now, ..Self::default() };
    }

    pub(crate) fn waits(&self) -> Waits {
        self.waits
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.waits == Waits::Ended
    }

    /// Whether the last byte of the body was received, though perhaps not yet taken by the sink.
    pub(crate) fn source_is_done(&self) -> bool {
        self.waits != Waits::Off && matches!(self.rest, Rest::Nothing)
    }

    /// Payload bytes given to the sink.
    pub(crate) fn moved(&self) -> u64 {
        self.moved
    }

    /// When the present wait began.
    pub(crate) fn since(&self) -> Instant {
        self.since
    }

    /// When [`Transfer::keeps_pace`] has to be asked next, at the latest.
    pub(crate) fn deadline(&self, limit: Duration) -> Instant {
        let waited = if self.waits == Waits::Source { self.waited } else { Duration::ZERO };
        self.since + limit.saturating_sub(waited)
    }

    /// Sends `head` and what of the body is at hand, or says what to wait for. Not to be called
    /// while the sink still has an earlier send outstanding.
    ///
    /// An error means that the body breaks its framing: nothing of the wrong bytes was sent.
    pub(crate) fn pump<E: Engine>(
        &mut self,
        engine: &mut E,
        source: &mut Input,
        sink: (&Fd, Token),
        head: &[u8],
    ) -> Result<Waits, ChunkError> {
        let had_rest = !matches!(self.rest, Rest::Nothing);
        let bytes = source.bytes_mut();
        let (consumed, payload) = match &mut self.rest {
            Rest::Nothing => (0, 0..0),
            Rest::Length(rest) => {
                let count = bytes.len().min(usize::try_from(*rest).unwrap_or(usize::MAX));
                *rest -= count as u64;
                (count, 0..count)
            }
            Rest::Chunked(decoder) => {
                let step = decoder.decode(bytes)?;
                (step.consumed, step.payload)
            }
            Rest::UntilClose => (bytes.len(), 0..bytes.len()),
        };
        let payload = &bytes[payload];
        let (mut trailers, mut done) = (&[][..], !had_rest);
        match &self.rest {
            Rest::Length(0) => done = true,
            Rest::Chunked(decoder) if decoder.is_finished() => {
                (trailers, done) = (decoder.trailers(), true);
            }
            _ => {}
        }
        let last_chunk = done && had_rest && self.chunked_out;
        if !payload.is_empty() || !head.is_empty() || last_chunk {
            send(engine, sink, head, payload, self.chunked_out, last_chunk.then_some(trailers));
            self.wait(Waits::Sink, engine.now());
        } else {
            self.wait(if done { Waits::Ended } else { Waits::Source }, engine.now());
        }
        self.moved += payload.len() as u64;
        source.consume(consumed);
        if done {
            self.rest = Rest::Nothing;
        }
        self.unsent_at = engine.unsent(sink.0);
        Ok(self.waits)
    }

    /// The source ended its stream. Fine where that ends the body: then the end is passed on.
    pub(crate) fn source_ended<E: Engine>(
        &mut self,
        engine: &mut E,
        sink: (&Fd, Token),
    ) -> Result<Waits, Cut> {
        assert_eq!(self.waits, Waits::Source, "nothing else waits for the source");
        if !matches!(self.rest, Rest::UntilClose) {
            return Err(Cut);
        }
        self.rest = Rest::Nothing;
        if self.chunked_out {
            send(engine, sink, &[], &[], true, Some(&[]));
            self.wait(Waits::Sink, engine.now());
            self.unsent_at = engine.unsent(sink.0);
        } else {
            self.wait(Waits::Ended, engine.now());
        }
        Ok(self.waits)
    }

    /// Nothing will come from the source or be taken by the sink any more. One that has not begun
    /// stays so.
    pub(crate) fn abandon(&mut self) {
        if self.waits != Waits::Off {
            self.waits = Waits::Ended;
        }
    }

    fn wait(&mut self, waits: Waits, now: Instant) {
        if self.waits == Waits::Source {
            self.waited += now.since(self.since);
        }
        self.waits = waits;
        self.since = now;
    }

    /// Whether a client that has to be waited for still keeps pace: `rate` bytes a second over
    /// each `limit`, and never `limit` without a byte. To be asked when `limit` is over since
    /// [`Transfer::since`], and when a source that drips has brought bytes again.
    pub(crate) fn keeps_pace(
        &mut self,
        now: Instant,
        limit: Duration,
        rate: u64,
        unsent: usize,
    ) -> bool {
        let enough = |moved: u64, over: Duration| {
            u128::from(moved) * 1000 >= u128::from(rate) * over.as_millis() && moved > 0
        };
        match self.waits {
            Waits::Off | Waits::Ended => true,
            Waits::Source => {
                let over = self.waited + now.since(self.since);
                if over < limit {
                    return true;
                }
                let kept =
                    now.since(self.since) < limit && enough(self.moved - self.paced_at, over);
                (self.waited, self.paced_at, self.since) = (Duration::ZERO, self.moved, now);
                kept
            }
            Waits::Sink => {
                let over = now.since(self.since);
                if over < limit {
                    return true;
                }
                let kept = enough(self.unsent_at.saturating_sub(unsent) as u64, over);
                (self.unsent_at, self.since) = (unsent, now);
                kept
            }
        }
    }
}

/// One send: a head, a chunk or bare bytes, and the end of a chunked body with its trailers.
fn send<E: Engine>(
    engine: &mut E,
    (fd, token): (&Fd, Token),
    head: &[u8],
    payload: &[u8],
    chunked: bool,
    trailers: Option<&[u8]>,
) {
    let mut size = ChunkSize::default();
    let (mut before, mut after) = (&[][..], &[][..]);
    if chunked && !payload.is_empty() {
        (before, after) = (size.write(payload.len()), b"\r\n");
    }
    let last = trailers.map_or([&[][..]; 3], |trailers| [b"0\r\n", trailers, b"\r\n"]);
    engine.send(fd, &[head, before, payload, after, last[0], last[1], last[2]], token);
}

/// Room for the line before a chunk: 16 digits at most, and CRLF.
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

    #[test]
    fn a_source_that_drips_loses_pace_though_it_never_stands_still() {
        let mut transfer = Transfer::default();
        let second = Duration::from_secs(1);
        let mut now = Instant::default();
        transfer.start(Framing::Length(1000), false, now);
        let mut kept = true;
        for _ in 0..40 {
            now = now + second;
            transfer.wait(Waits::Sink, now);
            transfer.moved += 1;
            transfer.wait(Waits::Source, now);
            kept &= transfer.keeps_pace(now, 30 * second, 100, 0);
        }
        assert!(!kept);
    }
}
