//! The messages between clients and the daemon: one packet each, with descriptors.

use std::fmt;

use millrace_sys::{DESCRIPTORS_PER_PACKET_MAX, Errno, InodeTime};

use crate::service::version::{FileKey, FileVersion};

/// The most pieces in a response.
pub const PIECES_PER_PACKET_MAX: usize = DESCRIPTORS_PER_PACKET_MAX;
/// The length of the longest request, in bytes.
pub const REQUEST_BYTES_MAX: usize = 24;
/// The length of the longest response, in bytes.
pub const RESPONSE_BYTES_MAX: usize = 60 + 16 * PIECES_PER_PACKET_MAX;

/// The first word of each message: "IOL" and the version of the protocol.
const MAGIC: u32 = u32::from_le_bytes(*b"IOL\x01");

/// A request of a client, with the descriptor of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Request {
    /// The client wants the bytes from `offset` on, up to `length` of them. There is one response.
    Read {
        /// In bytes from the start of the file.
        offset: u64,
        /// In bytes.
        length: u64,
    },
    /// The client has written a sealed memory file, whose descriptor follows, to the file. The
    /// daemon may keep it instead of reading the file again. There is one response.
    Written {
        /// Where it begins, in bytes from the start of the file.
        offset: u64,
        /// In bytes; at least one.
        length: u64,
    },
    /// The descriptor is an end of a pipe or of a connection, which the client reads or writes. The
    /// response has the end of a socket whose other end the process at the other end gets by the
    /// same request for writing or reading, now or later.
    Pair {
        /// The client writes; otherwise it reads.
        writes: bool,
    },
    /// The client wants a pack with this file, which is shorter than
    /// [`super::SHARED_FILE_BYTES_MIN`]. There is one response.
    Pack,
}

/// A part of a file, and the memory that has it, from the memory's start on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PieceRange {
    /// In bytes from the start of the file.
    pub offset: u64,
    /// In bytes; at least one.
    pub length: u64,
}

/// The response to a request. Each kind of request has its own. A client sends no request before it
/// has received the response to the last one.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Response {
    /// The daemon sends this when it has accepted a connection, before the first request.
    Ready,
    /// Memory that has bytes of the file, one descriptor for each piece. The pieces follow each
    /// other, and the first one contains the requested offset. There is none behind the end.
    Pieces {
        /// The version of the file that has all these bytes.
        version: FileVersion,
        /// Another version certainly has other times.
        is_settled: bool,
        /// At most [`PIECES_PER_PACKET_MAX`].
        pieces: Vec<PieceRange>,
    },
    /// The memory of [`Request::Written`] was taken.
    Taken,
    /// One descriptor: an end of a socket for a channel ([`Request::Pair`]).
    Paired,
    /// One descriptor: a pack of this length, in bytes ([`super::files_of_pack`]).
    Packed(u64),
    /// The client has to read the file itself, or its memory was not taken.
    /// [`Refusal::Clients`] comes instead of [`Response::Ready`], and the connection ends.
    Refused(Refusal),
}

/// The reason why the daemon does not serve a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refusal {
    /// The descriptor was not opened for reading.
    NotReadable,
    /// The descriptor was not opened for writing.
    NotWritable,
    /// It is no regular file.
    NotRegular,
    /// It is no end of a pipe, or no connected stream socket whose peer is known.
    NotStream,
    /// A process has passed this end already.
    Taken,
    /// The file system may show its readers different bytes, or keep a reader waiting.
    FileSystem,
    /// The file was changed again and again while it was read.
    Changing,
    /// Another process has had the file read for long, or writes to it for long.
    Busy,
    /// All memory is in use by clients.
    Memory,
    /// The processes of this user hold all that one user may.
    UserMemory,
    /// Too many processes of this user, or in all, are connected.
    Clients,
    /// The daemon could not read the file, or the memory.
    Kernel(Errno),
    /// The memory is not sealed, has holes, or is too short.
    Unsealed,
    /// The file is not short, or not one that all users may read, in a public folder.
    NotPublic,
    /// No pack can be made now with the file.
    Unpacked,
    /// The user has no number in the daemon's user namespace, so it may be any user.
    UnknownUser,
}

/// The code of [`Response::Taken`]; 0 is that of pieces, and lower ones are refusals.
const TAKEN: u32 = 1000;
/// The code of [`Response::Paired`].
const PAIRED: u32 = 1001;
/// The code of [`Response::Ready`].
const READY: u32 = 1002;
/// The code of [`Response::Packed`].
const PACKED: u32 = 1003;

impl Refusal {
    fn code(self) -> (u32, u32) {
        match self {
            Self::NotReadable => (1, 0),
            Self::NotRegular => (2, 0),
            Self::FileSystem => (3, 0),
            Self::Changing => (4, 0),
            Self::Memory => (5, 0),
            Self::UserMemory => (6, 0),
            Self::Clients => (7, 0),
            Self::NotWritable => (8, 0),
            Self::Kernel(error) => (9, error.raw_os_error().unsigned_abs()),
            Self::Unsealed => (10, 0),
            Self::NotStream => (11, 0),
            Self::Taken => (12, 0),
            Self::Busy => (13, 0),
            Self::UnknownUser => (14, 0),
            Self::NotPublic => (15, 0),
            Self::Unpacked => (16, 0),
        }
    }

    fn from_code(code: u32, error: u32) -> Option<Self> {
        if code != 9 && error != 0 {
            return None;
        }
        Some(match code {
            1 => Self::NotReadable,
            2 => Self::NotRegular,
            3 => Self::FileSystem,
            4 => Self::Changing,
            5 => Self::Memory,
            6 => Self::UserMemory,
            7 => Self::Clients,
            8 => Self::NotWritable,
            9 if (1..4096).contains(&error) => {
                Self::Kernel(Errno::from_raw_os_error(error.cast_signed()))
            }
            10 => Self::Unsealed,
            11 => Self::NotStream,
            12 => Self::Taken,
            13 => Self::Busy,
            14 => Self::UnknownUser,
            15 => Self::NotPublic,
            16 => Self::Unpacked,
            _ => return None,
        })
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotReadable => "the descriptor was not opened for reading",
            Self::NotWritable => "the descriptor was not opened for writing",
            Self::NotRegular => "it is no regular file",
            Self::NotStream => "it is no end of a pipe or of a connection of this host",
            Self::Taken => "a process has passed this end before",
            Self::FileSystem => "files of its file system are not shared",
            Self::Changing => "the file was changed again and again while it was read",
            Self::Busy => "the file is being read or written for long",
            Self::Memory => "all memory of the cache is in use",
            Self::UserMemory => "the processes of this user hold all that one user may",
            Self::Clients => "too many processes are connected",
            Self::UnknownUser => "the user is not known in the user namespace of iolited",
            Self::NotPublic => "it is not a short file for all users in a public folder",
            Self::Unpacked => "no pack can be made now with the file",
            Self::Unsealed => "the memory is not sealed, has holes, or is too short",
            Self::Kernel(error) => return write!(f, "the file cannot be read: {error}"),
        })
    }
}

impl Request {
    /// Appends the packet to `bytes`.
    pub fn write(&self, bytes: &mut Vec<u8>) {
        let (kind, offset, length) = match *self {
            Self::Read { offset, length } => (1_u32, offset, length),
            Self::Written { offset, length } => (2, offset, length),
            Self::Pair { writes } => (3 + u32::from(writes), 0, 0),
            Self::Pack => (5, 0, 0),
        };
        bytes.extend_from_slice(&MAGIC.to_le_bytes());
        bytes.extend_from_slice(&kind.to_le_bytes());
        bytes.extend_from_slice(&offset.to_le_bytes());
        bytes.extend_from_slice(&length.to_le_bytes());
    }

    /// Reads a packet that came with a number of descriptors. Returns `None` if no client of this
    /// version sends it.
    pub fn read(packet: &[u8], descriptors: usize) -> Option<Self> {
        let mut fields = Fields(packet);
        (fields.u32()? == MAGIC).then_some(())?;
        let (kind, offset, length) = (fields.u32()?, fields.u64()?, fields.u64()?);
        offset.checked_add(length)?;
        let request = match kind {
            1 if descriptors == 1 => Self::Read { offset, length },
            2 if descriptors == 2 && length > 0 => Self::Written { offset, length },
            3 | 4 if descriptors == 1 && (offset, length) == (0, 0) => {
                Self::Pair { writes: kind == 4 }
            }
            5 if descriptors == 1 && (offset, length) == (0, 0) => Self::Pack,
            _ => return None,
        };
        fields.0.is_empty().then_some(request)
    }
}

impl Response {
    /// Appends the packet to `bytes`.
    pub fn write(&self, bytes: &mut Vec<u8>) {
        bytes.extend_from_slice(&MAGIC.to_le_bytes());
        let (version, is_settled, pieces) = match self {
            Self::Pieces { version, is_settled, pieces } => (version, *is_settled, pieces),
            Self::Packed(length) => {
                bytes.extend_from_slice(&PACKED.to_le_bytes());
                bytes.extend_from_slice(&0_u32.to_le_bytes());
                bytes.extend_from_slice(&length.to_le_bytes());
                return;
            }
            Self::Taken | Self::Paired | Self::Ready | Self::Refused(_) => {
                let (code, error) = match self {
                    Self::Refused(refusal) => refusal.code(),
                    Self::Paired => (PAIRED, 0),
                    Self::Ready => (READY, 0),
                    _ => (TAKEN, 0),
                };
                bytes.extend_from_slice(&code.to_le_bytes());
                bytes.extend_from_slice(&error.to_le_bytes());
                return;
            }
        };
        assert!(pieces.len() <= PIECES_PER_PACKET_MAX);
        let FileVersion { key, bytes: length, modified, changed } = version;
        bytes.extend_from_slice(&0_u32.to_le_bytes());
        bytes.extend_from_slice(&u32::from(is_settled).to_le_bytes());
        for nanoseconds in [modified.nanoseconds, changed.nanoseconds] {
            bytes.extend_from_slice(&nanoseconds.to_le_bytes());
        }
        let times = [modified.seconds.cast_unsigned(), changed.seconds.cast_unsigned()];
        let numbers = [key.device, key.inode, *length].into_iter().chain(times);
        let pieces = pieces.iter().flat_map(|piece| [piece.offset, piece.length]);
        for number in numbers.chain(pieces) {
            bytes.extend_from_slice(&number.to_le_bytes());
        }
    }

    /// Reads a packet that came with a number of descriptors. Returns `None` if no daemon of this
    /// version sends it.
    pub fn read(packet: &[u8], descriptors: usize) -> Option<Self> {
        let mut fields = Fields(packet);
        (fields.u32()? == MAGIC).then_some(())?;
        let (code, detail) = (fields.u32()?, fields.u32()?);
        if code != 0 {
            let response = match (code, detail, descriptors) {
                (TAKEN, 0, 0) => Self::Taken,
                (PAIRED, 0, 1) => Self::Paired,
                (READY, 0, 0) => Self::Ready,
                (PACKED, 0, 1) => Self::Packed(fields.u64()?),
                (_, _, 0) => Self::Refused(Refusal::from_code(code, detail)?),
                _ => return None,
            };
            return fields.0.is_empty().then_some(response);
        }
        let is_settled = match detail {
            0 => false,
            1 => true,
            _ => return None,
        };
        let nanoseconds = [fields.u32()?, fields.u32()?];
        let key = FileKey { device: fields.u64()?, inode: fields.u64()? };
        let bytes = fields.u64()?;
        let mut time =
            |nanoseconds| Some(InodeTime { seconds: fields.u64()?.cast_signed(), nanoseconds });
        let (modified, changed) = (time(nanoseconds[0])?, time(nanoseconds[1])?);
        let version = FileVersion { key, bytes, modified, changed };
        let mut pieces: Vec<PieceRange> = Vec::with_capacity(descriptors);
        for _ in 0..descriptors {
            let piece = PieceRange { offset: fields.u64()?, length: fields.u64()? };
            let end = piece.offset.checked_add(piece.length)?;
            let is_next = pieces.last().is_none_or(|last| last.end() == piece.offset);
            (piece.length > 0 && end <= bytes && is_next).then_some(())?;
            pieces.push(piece);
        }
        let is_whole = fields.0.is_empty() && descriptors <= PIECES_PER_PACKET_MAX;
        is_whole.then_some(Self::Pieces { version, is_settled, pieces })
    }
}

impl PieceRange {
    /// Returns where the piece ends, in bytes from the start of the file.
    pub fn end(&self) -> u64 {
        self.offset + self.length
    }
}

/// The bytes of a packet that were not read yet.
pub(super) struct Fields<'a>(pub(super) &'a [u8]);

impl Fields<'_> {
    fn u32(&mut self) -> Option<u32> {
        let (first, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u32::from_le_bytes(*first))
    }

    pub(super) fn u64(&mut self) -> Option<u64> {
        let (first, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u64::from_le_bytes(*first))
    }
}

/// The body of the fuzz target `file_messages`: a packet that is read is written as the same
/// bytes. The first byte of `data` is the number of descriptors.
///
/// # Panics
/// If it is not.
#[doc(hidden)]
pub fn fuzz_file_messages(data: &[u8]) {
    let Some((descriptors, packet)) = data.split_first() else { return };
    let descriptors = usize::from(*descriptors);
    let mut written = Vec::new();
    if let Some(request) = Request::read(packet, descriptors) {
        request.write(&mut written);
        assert!(written == packet && packet.len() <= REQUEST_BYTES_MAX, "{request:?}");
    }
    written.clear();
    if let Some(response) = Response::read(packet, descriptors) {
        response.write(&mut written);
        assert!(written == packet && packet.len() <= RESPONSE_BYTES_MAX, "{response:?}");
    }
}

/// Runs the body of a fuzz target with at least `count` inputs of its corpus: as they are, cut
/// anywhere, and with each of their bits changed.
#[cfg(test)]
pub(super) fn fuzz_corpus(target: &str, count: usize, body: impl Fn(&[u8])) {
    let corpus = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../fuzz/corpus");
    let files = std::fs::read_dir(std::path::Path::new(corpus).join(target)).expect("the corpus");
    let paths: Vec<_> = files.map(|file| file.expect("an input").path()).collect();
    assert!(paths.len() >= count, "{target} has {} inputs", paths.len());
    for path in paths {
        let input = std::fs::read(path).expect("an input");
        body(&input);
        for at in 0..input.len() {
            body(&input[..at]);
            for bit in 0..8 {
                let mut changed = input.clone();
                changed[at] ^= 1 << bit;
                body(&changed);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(request: &Request) -> Vec<u8> {
        let mut packet = Vec::new();
        request.write(&mut packet);
        assert!(packet.len() <= REQUEST_BYTES_MAX);
        packet
    }

    #[test]
    fn requests_are_read_as_they_were_written() {
        let read = Request::Read { offset: 5, length: u64::MAX - 5 };
        assert_eq!(Request::read(&written(&read), 1), Some(read));
        let write = Request::Written { offset: 7, length: u64::MAX - 7 };
        assert_eq!(Request::read(&written(&write), 2), Some(write));
        assert_eq!(written(&write).len(), REQUEST_BYTES_MAX);
        let pairs = [false, true].map(|writes| Request::Pair { writes });
        for request in pairs.into_iter().chain([Request::Pack]) {
            assert_eq!(Request::read(&written(&request), 1), Some(request));
        }
    }

    #[test]
    fn wrong_requests_are_refused() {
        let read = written(&Request::Read { offset: 5, length: 3 });
        assert_eq!(Request::read(&read, 0), None, "no descriptor");
        assert_eq!(Request::read(&read, 2), None, "too many");
        assert_eq!(Request::read(&read[..23], 1), None, "too short");
        let endless = written(&Request::Read { offset: 5, length: u64::MAX });
        assert_eq!(Request::read(&endless, 1), None, "no offset has its end");
        for (length, descriptors) in [(0, 2), (u64::MAX, 2), (1, 1), (1, 3)] {
            let packet = written(&Request::Written { offset: 7, length });
            assert_eq!(Request::read(&packet, descriptors), None);
        }
        for at in 0..8 {
            let mut other = read.clone();
            other[at] ^= 4;
            assert_eq!(Request::read(&other, 1), None, "byte {at}");
        }
        assert_eq!(Request::read(&[&read[..], &[0]].concat(), 1), None, "too long");
    }

    fn pieces(pieces: &[(u64, u64)]) -> Response {
        let time = |seconds, nanoseconds| InodeTime { seconds, nanoseconds };
        let version = FileVersion {
            key: FileKey { device: 1, inode: 2 },
            bytes: 100,
            modified: time(-3, 4),
            changed: time(5, 6),
        };
        let range = |&(offset, length)| PieceRange { offset, length };
        Response::Pieces { version, is_settled: true, pieces: pieces.iter().map(range).collect() }
    }

    fn read_back(response: &Response, descriptors: usize) -> Option<Response> {
        let mut packet = Vec::new();
        response.write(&mut packet);
        assert!(packet.len() <= RESPONSE_BYTES_MAX);
        for length in 0..packet.len() {
            assert_eq!(Response::read(&packet[..length], descriptors), None);
        }
        Response::read(&packet, descriptors)
    }

    #[test]
    fn responses_are_read_as_they_were_written() {
        for ranges in [&[][..], &[(0, 100)], &[(10, 20), (30, 1), (31, 2), (33, 67)]] {
            let response = pieces(ranges);
            assert_eq!(read_back(&response, ranges.len()), Some(response));
        }
        assert_eq!(read_back(&Response::Taken, 0), Some(Response::Taken));
        assert_eq!(read_back(&Response::Taken, 1), None);
        assert_eq!(read_back(&Response::Paired, 1), Some(Response::Paired));
        assert_eq!(read_back(&Response::Paired, 0), None);
        let packed = Response::Packed(u64::MAX);
        assert_eq!((read_back(&packed, 1), read_back(&packed, 0)), (Some(packed), None));
        assert_eq!(read_back(&Response::Ready, 0), Some(Response::Ready));
        use Refusal::{Changing, Clients, FileSystem, Kernel, Memory, NotReadable, NotRegular};
        let refusals = [NotReadable, NotRegular, FileSystem, Changing, Memory, Clients];
        let more =
            [Refusal::UserMemory, Refusal::NotWritable, Refusal::Unsealed, Kernel(Errno::IO)];
        let streams = [Refusal::NotStream, Refusal::Taken, Refusal::Busy, Refusal::UnknownUser];
        let packs = [Refusal::NotPublic, Refusal::Unpacked];
        for refusal in refusals.into_iter().chain(more).chain(streams).chain(packs) {
            let response = Response::Refused(refusal);
            assert_eq!(read_back(&response, 0), Some(response.clone()));
            assert_eq!(read_back(&response, 1), None, "a descriptor without a piece");
        }
    }

    #[test]
    fn wrong_pieces_are_refused() {
        let wrong: [&[(u64, u64)]; 4] =
            [&[(0, 0)], &[(0, 101)], &[(u64::MAX, 2)], &[(0, 10), (11, 5)]];
        for ranges in wrong {
            assert_eq!(read_back(&pieces(ranges), ranges.len()), None, "{ranges:?}");
        }
        assert_eq!(read_back(&pieces(&[(0, 10)]), 2), None, "a descriptor without a piece");
        let mut packet = Vec::new();
        pieces(&[(0, 10)]).write(&mut packet);
        assert_eq!(Response::read(&packet, 0), None, "a piece without a descriptor");
    }

    #[test]
    fn any_packet_is_written_as_it_was_read() {
        fuzz_corpus("file_messages", 10, fuzz_file_messages);
    }
}
