//! The packs of short files that this process has received.

use std::collections::{HashMap, VecDeque};

use crate::aggregate::Aggregate;
use crate::service::pack::files_of_pack;
use crate::service::version::{FileKey, FileVersion};
use crate::slice::Slice;

/// Packs that are read again without a message, up to a number of bytes.
#[derive(Debug)]
pub(super) struct KeptPacks {
    /// The generation of the process that has received them.
    process: u64,
    files: HashMap<FileKey, KeptInPack>,
    /// The numbers and the bytes of the packs, the first one first.
    packs: VecDeque<(u64, u64)>,
    bytes: u64,
    bytes_max: u64,
    /// The number of the last pack.
    last_pack: u64,
    /// The requests that were refused since the last pack came.
    refused: u32,
    /// The number of files that are read with system calls before the next request.
    skipped: u32,
}

#[derive(Debug)]
struct KeptInPack {
    version: FileVersion,
    slice: Slice,
    pack: u64,
}

/// Each pack takes a descriptor, of which a process has 1024 by default.
const PACKS_MAX: usize = 128;
/// After this number of refusals, the pauses between requests no longer grow.
const REFUSED_MAX: u32 = 12;

impl KeptPacks {
    pub(super) fn new(bytes_max: u64) -> Self {
        Self {
            process: millrace_sys::process_generation(),
            files: HashMap::new(),
            packs: VecDeque::new(),
            bytes: 0,
            bytes_max,
            last_pack: 0,
            refused: 0,
            skipped: 0,
        }
    }

    /// Returns whether this process has received them, and not its parent.
    pub(super) fn is_of_this_process(&self) -> bool {
        self.process == millrace_sys::process_generation()
    }

    /// Returns up to `length` bytes of a version from `offset` on; `None` if no pack has it.
    pub(super) fn read(
        &self,
        version: &FileVersion,
        offset: u64,
        length: u64,
    ) -> Option<Aggregate> {
        let file = self.files.get(&version.key).filter(|file| file.version == *version)?;
        let begin = offset.min(version.bytes);
        let end = version.bytes.min(begin.saturating_add(length));
        Some(file.slice.slice(begin as usize..end as usize).into())
    }

    /// Returns whether a file that no pack has is requested now. A request costs more than a short
    /// read, so fewer are made the more were refused.
    pub(super) fn take_turn(&mut self) -> bool {
        let is_skipped = self.skipped > 0;
        self.skipped = self.skipped.saturating_sub(1);
        !is_skipped
    }

    /// Records that a request has brought no pack with the file.
    pub(super) fn count_refusal(&mut self) {
        self.refused = REFUSED_MAX.min(self.refused + 1);
        self.skipped = 1 << self.refused;
    }

    /// Adds the files of a pack; `None` if it is none.
    pub(super) fn add(&mut self, pack: &Slice) -> Option<()> {
        let files = files_of_pack(pack)?;
        self.refused = 0;
        self.last_pack += 1;
        let number = self.last_pack;
        for file in files {
            let begin = file.offset as usize;
            let slice = pack.slice(begin..begin + file.version.bytes as usize);
            let kept = KeptInPack { version: file.version, slice, pack: number };
            self.files.insert(file.version.key, kept);
        }
        self.packs.push_back((number, pack.len() as u64));
        self.bytes += pack.len() as u64;
        while (self.bytes > self.bytes_max || self.packs.len() > PACKS_MAX)
            && let Some((oldest, bytes)) = self.packs.pop_front()
        {
            self.bytes -= bytes;
            self.files.retain(|_, file| file.pack != oldest);
        }
        Some(())
    }

    /// Drops all packs. Requests stay as rare as they are.
    pub(super) fn clear(&mut self) {
        self.files.clear();
        self.packs.clear();
        self.bytes = 0;
    }
}

#[cfg(test)]
mod tests {
    use millrace_sys::InodeTime;

    use super::*;
    use crate::Slab;
    use crate::limits::SLAB_BYTES_MIN;
    use crate::service::pack::pack_of;
    use crate::test_slices::slice;

    fn version(inode: u64, seconds: i64) -> FileVersion {
        let time = InodeTime { seconds, nanoseconds: 1 };
        FileVersion { key: FileKey { device: 1, inode }, bytes: 4, modified: time, changed: time }
    }

    #[test]
    fn files_are_read_until_their_pack_is_the_oldest_of_too_many() {
        let slab = Slab::on_heap(SLAB_BYTES_MIN).unwrap();
        let one = pack_of(&[version(1, 5), version(2, 5)], b"abcdefgh");
        let mut packs = KeptPacks::new(one.len() as u64 * 3 / 2);
        packs.add(&slice(&slab, &one)).unwrap();
        let read = |packs: &KeptPacks, inode, seconds, offset, length| {
            packs.read(&version(inode, seconds), offset, length).map(|bytes| bytes.to_vec())
        };
        assert_eq!(read(&packs, 1, 5, 1, 2).unwrap(), b"bc");
        assert_eq!(read(&packs, 2, 5, 3, 100).unwrap(), b"h");
        assert_eq!(read(&packs, 2, 5, 9, 100).unwrap(), b"");
        assert_eq!(read(&packs, 2, 6, 0, 4), None, "another version");
        packs.add(&slice(&slab, &pack_of(&[version(2, 6)], b"new!"))).unwrap();
        assert_eq!((read(&packs, 1, 5, 0, 4), read(&packs, 2, 5, 0, 4)), (None, None));
        assert_eq!(read(&packs, 2, 6, 0, 4).unwrap(), b"new!");
        assert_eq!(packs.files.len(), 1);
        assert_eq!(packs.add(&slice(&slab, b"no pack")), None);
        packs.clear();
        assert_eq!(read(&packs, 2, 6, 0, 4), None);
    }

    #[test]
    fn few_descriptors_are_kept() {
        let slab = Slab::on_heap(SLAB_BYTES_MIN).unwrap();
        let mut packs = KeptPacks::new(u64::MAX);
        for inode in 0..PACKS_MAX as u64 + 10 {
            packs.add(&slice(&slab, &pack_of(&[version(inode, 5)], b"abcd"))).unwrap();
        }
        assert_eq!((packs.packs.len(), packs.files.len()), (PACKS_MAX, PACKS_MAX));
    }

    #[test]
    fn refusals_make_requests_rare_until_a_pack_comes() {
        let slab = Slab::on_heap(SLAB_BYTES_MIN).unwrap();
        let mut packs = KeptPacks::new(1000);
        let mut requests = 0;
        for _ in 0..100_000 {
            if packs.take_turn() {
                requests += 1;
                packs.count_refusal();
            }
        }
        assert!((20..50).contains(&requests), "{requests}");
        packs.skipped = 0;
        packs.add(&slice(&slab, &pack_of(&[version(1, 5)], b"abcd"))).unwrap();
        assert!(packs.take_turn());
        packs.count_refusal();
        assert!(!packs.take_turn() && !packs.take_turn() && packs.take_turn());
    }
}
