//! Content codings of bytes (RFC 9110 section 8.4.1), computed once and kept with the bytes.

use std::io::Write;

use crate::aggregate::{Aggregate, copy_of};
use crate::error::AllocError;
use crate::memory_kind::MemoryKind;
use crate::slab::Slab;
use crate::slice::Slice;

/// A content coding in which a slice can be returned.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Coding {
    /// RFC 1952.
    Gzip,
    /// RFC 7932.
    Brotli,
    /// RFC 8878.
    Zstd,
}

impl Coding {
    /// All content codings.
    pub const ALL: [Self; 3] = [Self::Gzip, Self::Brotli, Self::Zstd];

    /// Returns its name in `Content-Encoding` and `Accept-Encoding`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Gzip => "gzip",
            Self::Brotli => "br",
            Self::Zstd => "zstd",
        }
    }

    /// Returns its number as a variant (see [`Slice::store_variant`]). The highest numbers are
    /// reserved for codings.
    pub fn number(self) -> u32 {
        u32::MAX - self as u32
    }

    /// Returns the bytes of all parts in this coding. Zstandard has one level.
    pub fn compress(self, parts: &[&[u8]], level: CompressionLevel) -> Vec<u8> {
        match self {
            Self::Gzip => {
                let mut coder = gzip_encoder(level);
                parts.iter().for_each(|part| coder.write_all(part).expect(TAKES_ALL));
                coder.finish().expect(TAKES_ALL)
            }
            Self::Brotli => {
                let level = match level {
                    CompressionLevel::Fast => 2,
                    CompressionLevel::Default => 5,
                    CompressionLevel::Best => 10,
                };
                let window = BROTLI_WINDOW;
                let mut coder = brotli::CompressorWriter::new(Vec::new(), 4096, level, window);
                parts.iter().for_each(|part| coder.write_all(part).expect(TAKES_ALL));
                coder.into_inner()
            }
            Self::Zstd => {
                let level = ruzstd::encoding::CompressionLevel::Fastest;
                ruzstd::encoding::compress_to_vec(&*parts.concat(), level)
            }
        }
    }
}

fn gzip_encoder(level: CompressionLevel) -> flate2::write::GzEncoder<Vec<u8>> {
    let level = match level {
        CompressionLevel::Fast => 1,
        CompressionLevel::Default => 6,
        CompressionLevel::Best => 9,
    };
    flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::new(level))
}

/// A stream of bytes that is compressed with gzip while it arrives. It has about 300 KB.
#[derive(Debug)]
pub struct GzipStream(flate2::write::GzEncoder<Vec<u8>>);

impl GzipStream {
    /// Begins a stream.
    pub fn new(level: CompressionLevel) -> Self {
        Self(gzip_encoder(level))
    }

    /// Appends bytes. Returns compressed bytes from which a decoder gets all bytes appended so far;
    /// none if no byte was appended since the last call.
    pub fn append(&mut self, bytes: &[u8]) -> Vec<u8> {
        if !bytes.is_empty() {
            self.0.write_all(bytes).expect(TAKES_ALL);
            self.0.flush().expect(TAKES_ALL);
        }
        std::mem::take(self.0.get_mut())
    }

    /// Ends the stream. Returns its last bytes.
    pub fn finish(self) -> Vec<u8> {
        self.0.finish().expect(TAKES_ALL)
    }
}

/// How much time is spent to make bytes shorter. Each level is several times slower than the one
/// before.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum CompressionLevel {
    /// As fast as possible.
    Fast,
    /// The usual levels of servers: those that they can afford per request.
    #[default]
    Default,
    /// For bytes that rarely change.
    Best,
}

const TAKES_ALL: &str = "writing to a vector cannot fail";

/// The binary logarithm of the window; nearly all decoders accept this one.
const BROTLI_WINDOW: u32 = 22;

impl Slice {
    /// Returns the bytes in a coding. They are computed once, and kept as long as the slice.
    /// Returns `None` if the coded bytes are not shorter, which is remembered too. The coded bytes
    /// are allocated from `slab` with `kind` and `tag` (see [`Slab::allocate`]).
    ///
    /// Computing takes some 20 to 100 us for 8 KB, so do not call it on a thread that others wait
    /// for.
    ///
    /// # Errors
    /// If there is no memory. Nothing is kept then.
    pub fn coded(
        &self,
        coding: Coding,
        slab: &Slab,
        kind: MemoryKind,
        tag: u64,
    ) -> Result<Option<Aggregate>, AllocError> {
        let coded = match self.variant(coding.number()) {
            Some(found) => found,
            None => {
                let made = code(&[self], coding, slab, kind, tag)?;
                // Two threads may both have computed it; either result is right.
                self.store_variant(coding.number(), made.clone());
                made
            }
        };
        Ok(Some(coded).filter(|coded| !coded.is_empty()))
    }
}

impl Aggregate {
    /// Like [`Slice::coded`]. The coded bytes of a single slice are computed once. The coded bytes
    /// of several slices cannot be combined from those of each, so they are computed each time; the
    /// caller may keep them.
    ///
    /// # Errors
    /// If there is no memory.
    pub fn coded(
        &self,
        coding: Coding,
        slab: &Slab,
        kind: MemoryKind,
        tag: u64,
    ) -> Result<Option<Self>, AllocError> {
        let mut slices = self.slices();
        match (slices.next(), slices.next()) {
            (None, _) => Ok(None),
            (Some(only), None) => only.coded(coding, slab, kind, tag),
            (Some(_), Some(_)) => {
                let parts: Vec<&[u8]> = self.slices().map(|slice| &**slice).collect();
                let coded = code(&parts, coding, slab, kind, tag)?;
                Ok(Some(coded).filter(|coded| !coded.is_empty()))
            }
        }
    }
}

/// Returns the coded bytes in memory of a slab; empty if they are no shorter than the input.
fn code(
    parts: &[&[u8]],
    coding: Coding,
    slab: &Slab,
    kind: MemoryKind,
    tag: u64,
) -> Result<Aggregate, AllocError> {
    let length: usize = parts.iter().map(|part| part.len()).sum();
    let coded = coding.compress(parts, CompressionLevel::Default);
    if coded.len() >= length {
        return Ok(Aggregate::new());
    }
    copy_of(&[&coded], slab, kind, tag)
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;
    use crate::limits::SLAB_BYTES_MIN;
    use crate::test_slices::slice;

    fn decoded(coding: Coding, coded: &Aggregate) -> Vec<u8> {
        let coded = coded.to_vec();
        let mut plain = Vec::new();
        let read = match coding {
            Coding::Gzip => flate2::read::GzDecoder::new(&*coded).read_to_end(&mut plain),
            Coding::Brotli => brotli::Decompressor::new(&*coded, 4096).read_to_end(&mut plain),
            Coding::Zstd => {
                let decoder = ruzstd::decoding::StreamingDecoder::new(&*coded);
                decoder.unwrap().read_to_end(&mut plain)
            }
        };
        read.unwrap();
        plain
    }

    #[test]
    fn a_coding_is_computed_once_until_the_bytes_change() {
        let slab = Slab::on_heap(SLAB_BYTES_MIN).unwrap();
        let text = b"all work and no play ".repeat(100);
        let mut whole = slice(&slab, &text);
        for (at, coding) in Coding::ALL.into_iter().enumerate() {
            let before = slab.stats();
            let coded = whole.coded(coding, &slab, MemoryKind::Copied, 0).unwrap().unwrap();
            assert!(coded.len() < text.len() as u64 / 10, "{coding:?}: {}", coded.len());
            assert_eq!(decoded(coding, &coded), text, "{coding:?}");
            let made = slab.stats();
            assert_eq!(
                (made.forms_computed, made.forms_reused),
                (at as u64 + 1, before.forms_reused)
            );
            let again = whole.clone().coded(coding, &slab, MemoryKind::Copied, 0).unwrap().unwrap();
            let references = |it: &Aggregate| it.slices().map(Slice::id).collect::<Vec<_>>();
            assert_eq!(references(&again), references(&coded), "{coding:?}: the very same");
            assert_eq!(
                (slab.stats().forms_computed, slab.stats().forms_reused),
                (made.forms_computed, made.forms_reused + 1)
            );
        }
        whole.get_mut().unwrap()[0] = b'A';
        let changed = whole.coded(Coding::Gzip, &slab, MemoryKind::Copied, 0).unwrap().unwrap();
        assert_eq!(decoded(Coding::Gzip, &changed)[..4], *b"All ");
        drop((whole, changed));
        assert_eq!(slab.stats().extents, 0, "derived values are dropped with their source");
    }

    #[test]
    fn every_level_can_be_decoded() {
        let slab = Slab::on_heap(SLAB_BYTES_MIN).unwrap();
        let text = b"all work and no play ".repeat(100);
        for level in [CompressionLevel::Fast, CompressionLevel::Default, CompressionLevel::Best] {
            for coding in Coding::ALL {
                let coded = coding.compress(&[&text[..7], &text[7..]], level);
                assert!(coded.len() < text.len() / 10, "{coding:?} {level:?}: {}", coded.len());
                let coded = Aggregate::from(slice(&slab, &coded));
                assert_eq!(decoded(coding, &coded), text, "{coding:?} {level:?}");
            }
        }
    }

    #[test]
    fn a_stream_can_be_decoded_after_each_piece() {
        let mut stream = GzipStream::new(CompressionLevel::Default);
        let (mut coded, mut plain) = (Vec::new(), Vec::new());
        for piece in [&b"all work"[..], b"", b" and no play", &[b'a'; 100_000]] {
            let added = stream.append(piece);
            assert_eq!(added.is_empty(), piece.is_empty());
            coded.extend_from_slice(&added);
            plain.extend_from_slice(piece);
            let mut decoded = vec![0; plain.len()];
            flate2::read::GzDecoder::new(&*coded).read_exact(&mut decoded).unwrap();
            assert_eq!(decoded, plain);
        }
        coded.extend_from_slice(&stream.finish());
        let mut decoded = Vec::new();
        flate2::read::GzDecoder::new(&*coded).read_to_end(&mut decoded).unwrap();
        assert_eq!(decoded, plain);
        assert!(coded.len() < 1000, "{}", coded.len());
    }

    #[test]
    fn bytes_that_get_no_shorter_are_not_coded_again() {
        let slab = Slab::on_heap(SLAB_BYTES_MIN).unwrap();
        let short = slice(&slab, b"x");
        for coding in Coding::ALL {
            assert!(short.coded(coding, &slab, MemoryKind::Copied, 0).unwrap().is_none());
            let before = slab.stats();
            assert!(short.coded(coding, &slab, MemoryKind::Copied, 0).unwrap().is_none());
            assert_eq!(
                (slab.stats().forms_computed, slab.stats().forms_reused),
                (before.forms_computed, before.forms_reused + 1)
            );
        }
    }

    #[test]
    fn several_slices_are_coded_as_one() {
        let slab = Slab::on_heap(SLAB_BYTES_MIN).unwrap();
        let mut both = Aggregate::from(slice(&slab, &[b'a'; 500]));
        assert!(
            Aggregate::new().coded(Coding::Gzip, &slab, MemoryKind::Copied, 0).unwrap().is_none()
        );
        both.append(slice(&slab, &[b'b'; 500]));
        for coding in Coding::ALL {
            let coded = both.coded(coding, &slab, MemoryKind::Copied, 0).unwrap().unwrap();
            assert_eq!(decoded(coding, &coded), both.to_vec());
        }
    }

    #[test]
    fn coding_in_a_full_slab_fails_and_keeps_nothing() {
        let slab = Slab::on_heap(SLAB_BYTES_MIN).unwrap();
        let whole = slice(&slab, &[b'a'; 4000]);
        let mut held = Vec::new();
        while let Ok(buffer) = slab.allocate(MemoryKind::Copied, 1..=32_768, 0) {
            held.push(buffer);
        }
        assert!(whole.coded(Coding::Gzip, &slab, MemoryKind::Copied, 0).is_err());
        drop(held);
        assert!(whole.coded(Coding::Gzip, &slab, MemoryKind::Copied, 0).unwrap().is_some());
    }
}
