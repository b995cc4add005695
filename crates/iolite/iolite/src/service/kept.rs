//! The pieces of files that this process has received.

use std::collections::{BTreeMap, HashMap};

use crate::aggregate::Aggregate;
use crate::service::version::{FileKey, FileVersion};
use crate::slice::Slice;

/// Pieces of files that are read again without a message: up to a number of bytes, the ones that
/// were used last.
#[derive(Debug)]
pub(super) struct KeptFiles {
    /// The generation of the process that has received them.
    process: u64,
    files: HashMap<FileKey, KeptFile>,
    bytes: u64,
    bytes_max: u64,
    pieces: usize,
    pieces_max: usize,
    /// Counts the uses.
    clock: u64,
}

#[derive(Debug)]
struct KeptFile {
    version: FileVersion,
    /// By their offset in the file.
    pieces: BTreeMap<u64, KeptPiece>,
}

#[derive(Debug)]
struct KeptPiece {
    slice: Slice,
    last_use: u64,
}

impl KeptPiece {
    fn end(&self, offset: u64) -> u64 {
        offset + self.slice.len() as u64
    }
}

impl KeptFiles {
    pub(super) fn new(bytes_max: u64, pieces_max: usize) -> Self {
        let process = millrace_sys::process_generation();
        let files = HashMap::new();
        Self { process, files, bytes: 0, bytes_max, pieces: 0, pieces_max, clock: 0 }
    }

    /// Returns whether this process has received them, and not its parent.
    pub(super) fn is_of_this_process(&self) -> bool {
        self.process == millrace_sys::process_generation()
    }

    /// Returns the bytes of a version from `offset` on, up to `length` of them: as many as are
    /// here in one piece after the other. Drops those of other versions.
    pub(super) fn read(&mut self, version: &FileVersion, offset: u64, length: u64) -> Aggregate {
        self.drop_other_versions(version);
        let mut bytes = Aggregate::new();
        let Some(file) = self.files.get_mut(&version.key) else { return bytes };
        self.clock += 1;
        let end = offset + length;
        let first = file.pieces.range(..=offset).next_back().map_or(offset, |(first, _)| *first);
        let mut position = offset;
        for (&begin, piece) in file.pieces.range_mut(first..) {
            let piece_end = piece.end(begin);
            if begin > position || piece_end <= position || position >= end {
                break;
            }
            piece.last_use = self.clock;
            let part_end = piece_end.min(end);
            bytes.append(
                piece.slice.slice((position - begin) as usize..(part_end - begin) as usize),
            );
            position = part_end;
        }
        bytes
    }

    /// Adds a piece. It replaces the ones that it overlaps.
    pub(super) fn add(&mut self, version: &FileVersion, offset: u64, slice: Slice) {
        self.drop_other_versions(version);
        self.clock += 1;
        let new = || KeptFile { version: *version, pieces: BTreeMap::new() };
        let pieces = &mut self.files.entry(version.key).or_insert_with(new).pieces;
        let piece = KeptPiece { slice, last_use: self.clock };
        let (length, end) = (piece.slice.len() as u64, piece.end(offset));
        while let Some((&begin, before)) = pieces.range(..end).next_back()
            && before.end(begin) > offset
        {
            self.bytes -= before.slice.len() as u64;
            self.pieces -= 1;
            pieces.remove(&begin);
        }
        pieces.insert(offset, piece);
        self.bytes += length;
        self.pieces += 1;
        while self.bytes > self.bytes_max || self.pieces > self.pieces_max {
            self.drop_oldest();
        }
    }

    /// Drops the piece that was not used for longest.
    fn drop_oldest(&mut self) {
        let all = self.files.iter().flat_map(|(key, file)| {
            file.pieces.iter().map(|(offset, piece)| (piece.last_use, *key, *offset))
        });
        let (_, key, offset) = all.min().expect("some bytes are kept");
        let file = self.files.get_mut(&key).expect("its key was just found");
        let piece = file.pieces.remove(&offset).expect("its offset was just found");
        self.bytes -= piece.slice.len() as u64;
        self.pieces -= 1;
        if file.pieces.is_empty() {
            self.files.remove(&key);
        }
    }

    fn drop_other_versions(&mut self, version: &FileVersion) {
        if self.files.get(&version.key).is_some_and(|file| file.version != *version) {
            let file = self.files.remove(&version.key).expect("it was just found");
            self.bytes -= file.pieces.values().map(|piece| piece.slice.len() as u64).sum::<u64>();
            self.pieces -= file.pieces.len();
        }
    }
}

#[cfg(test)]
mod tests {
    use millrace_sys::InodeTime;

    use super::*;
    use crate::Slab;
    use crate::limits::SLAB_BYTES_MIN;
    use crate::test_slices::slice;

    fn version(inode: u64, seconds: i64) -> FileVersion {
        let time = InodeTime { seconds, nanoseconds: 0 };
        FileVersion { key: FileKey { device: 1, inode }, bytes: 30, modified: time, changed: time }
    }

    const PIECES_MAX: usize = 7;

    fn kept(bytes_max: u64) -> (KeptFiles, Slab) {
        (KeptFiles::new(bytes_max, PIECES_MAX), Slab::on_heap(SLAB_BYTES_MIN).unwrap())
    }

    #[test]
    fn contiguous_bytes_are_returned() {
        let (mut files, slab) = kept(100);
        let first = version(1, 5);
        files.add(&first, 0, slice(&slab, b"0123456789"));
        files.add(&first, 10, slice(&slab, b"abcdefghij"));
        files.add(&first, 25, slice(&slab, b"56789"));
        let mut read = |offset, length| files.read(&first, offset, length).to_vec();
        assert_eq!(read(0, 5), b"01234");
        assert_eq!(read(8, 4), b"89ab");
        assert_eq!(read(8, 100), b"89abcdefghij", "a gap ends it");
        assert_eq!(read(20, 3), b"");
        assert_eq!(read(26, 9), b"6789");
        assert_eq!(files.read(&version(2, 5), 0, 5).to_vec(), b"");
    }

    #[test]
    fn a_new_version_replaces_all_pieces() {
        let (mut files, slab) = kept(100);
        files.add(&version(1, 5), 0, slice(&slab, b"0123456789"));
        files.add(&version(1, 6), 10, slice(&slab, b"new"));
        assert_eq!(files.read(&version(1, 6), 0, 9).len(), 0);
        assert_eq!((files.read(&version(1, 6), 10, 9).to_vec(), files.bytes), (b"new".to_vec(), 3));
        assert_eq!(files.read(&version(1, 5), 10, 9).len(), 0);
        assert_eq!((files.bytes, files.files.len()), (0, 0));
    }

    #[test]
    fn a_piece_replaces_what_it_overlaps() {
        let (mut files, slab) = kept(100);
        let one = version(1, 5);
        for offset in [0, 10, 20] {
            files.add(&one, offset, slice(&slab, b"0123456789"));
        }
        files.add(&one, 9, slice(&slab, b"abcdef"));
        assert_eq!(files.bytes, 16);
        assert_eq!(files.read(&one, 0, 30).len(), 0);
        assert_eq!(files.read(&one, 9, 30).to_vec(), b"abcdef");
        assert_eq!(files.read(&one, 20, 30).to_vec(), b"0123456789");
    }

    #[test]
    fn the_number_of_pieces_is_limited() {
        let (mut files, slab) = kept(1000);
        for number in 0..2 * PIECES_MAX as u64 {
            files.add(&version(number % 3, 5), 10 * number, slice(&slab, b"0123456789"));
        }
        assert_eq!((files.pieces, files.bytes), (PIECES_MAX, 10 * PIECES_MAX as u64));
        files.read(&version(0, 6), 0, 1);
        files.read(&version(1, 6), 0, 1);
        files.read(&version(2, 6), 0, 1);
        assert_eq!((files.pieces, files.bytes), (0, 0));
    }

    #[test]
    fn the_oldest_pieces_are_dropped() {
        let (mut files, slab) = kept(20);
        files.add(&version(1, 5), 0, slice(&slab, b"0123456789"));
        files.add(&version(2, 5), 0, slice(&slab, b"abcdefghij"));
        files.read(&version(1, 5), 9, 1);
        files.add(&version(3, 5), 0, slice(&slab, b"x"));
        assert_eq!(files.read(&version(2, 5), 0, 9).len(), 0);
        assert_eq!(files.read(&version(1, 5), 0, 9).len(), 9);
        assert_eq!((files.bytes, files.files.len()), (11, 2));
        files.add(&version(4, 5), 0, slice(&slab, b"longer than all that may be kept"));
        assert_eq!((files.bytes, files.files.len()), (0, 0));
    }
}
