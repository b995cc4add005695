//! Packs: memory with the bytes of many short files, and an index of them.
//!
//! ```text
//!   number of files: u64 | one record for each | the bytes of the files
//! ```

use millrace_sys::InodeTime;

use crate::service::message::Fields;
use crate::service::version::{FileKey, FileVersion};

/// A file in a pack.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PackedFile {
    /// The version of the file that has the bytes; its length is theirs.
    pub version: FileVersion,
    /// Where they begin, in bytes from the start of the pack.
    pub offset: u64,
}

const NUMBER_BYTES: usize = 8;
/// The bytes of the index for each file.
const RECORD_BYTES: usize = 56;

/// Returns the bytes of a pack of files: an index, and `contents`. They have the files one after
/// the other.
///
/// # Panics
/// If the lengths of the versions are not those of the contents.
pub fn pack_of(versions: &[FileVersion], contents: &[u8]) -> Vec<u8> {
    let mut pack = Vec::with_capacity(pack_bytes(versions.len(), contents.len()));
    pack.extend_from_slice(&(versions.len() as u64).to_le_bytes());
    let mut offset = pack_bytes(versions.len(), 0) as u64;
    for FileVersion { key, bytes, modified, changed } in versions {
        let times = [modified.seconds.cast_unsigned(), changed.seconds.cast_unsigned()];
        let parts = u64::from(modified.nanoseconds) | u64::from(changed.nanoseconds) << 32;
        let numbers = [key.device, key.inode, *bytes, times[0], times[1], parts, offset];
        numbers.iter().for_each(|number| pack.extend_from_slice(&number.to_le_bytes()));
        offset += bytes;
    }
    pack.extend_from_slice(contents);
    assert!(offset == pack.len() as u64, "the files have other lengths");
    pack
}

/// Returns the bytes of a pack of a number of files that have `bytes` bytes together.
pub fn pack_bytes(files: usize, bytes: usize) -> usize {
    NUMBER_BYTES + files * RECORD_BYTES + bytes
}

/// Returns the files in a pack; `None` if it is none.
pub fn files_of_pack(pack: &[u8]) -> Option<Vec<PackedFile>> {
    let mut fields = Fields(pack);
    let count = usize::try_from(fields.u64()?).ok()?;
    if count > fields.0.len() / RECORD_BYTES {
        return None;
    }
    let mut file = || {
        let key = FileKey { device: fields.u64()?, inode: fields.u64()? };
        let (bytes, times) = (fields.u64()?, [fields.u64()?, fields.u64()?]);
        let (parts, offset) = (fields.u64()?, fields.u64()?);
        let time =
            |seconds: u64, nanoseconds| InodeTime { seconds: seconds.cast_signed(), nanoseconds };
        let modified = time(times[0], (parts & u64::from(u32::MAX)) as u32);
        let changed = time(times[1], (parts >> 32) as u32);
        let end = offset.checked_add(bytes)?;
        let version = FileVersion { key, bytes, modified, changed };
        (end <= pack.len() as u64).then_some(PackedFile { version, offset })
    };
    (0..count).map(|_| file()).collect()
}

/// The body of the fuzz target `packs`: the files of a pack have their bytes within it, and are the
/// same in a pack that is made from them.
///
/// # Panics
/// If the bytes of a file are outside of the pack, or the new pack differs.
#[doc(hidden)]
pub fn fuzz_packs(data: &[u8]) {
    let Some(files) = files_of_pack(data) else { return };
    let (mut versions, mut contents) = (Vec::new(), Vec::new());
    for PackedFile { version, offset } in &files {
        let bytes = &data[*offset as usize..][..version.bytes as usize];
        // The files of a wrong pack may overlap, and then have any number of bytes together.
        if contents.len() + bytes.len() <= data.len() {
            versions.push(*version);
            contents.extend_from_slice(bytes);
        }
    }
    let again = pack_of(&versions, &contents);
    let files = files_of_pack(&again).expect("a pack");
    assert!(files.iter().map(|file| file.version).eq(versions), "the files are the same");
    let begin = pack_bytes(files.len(), 0);
    assert!(files.iter().all(|file| file.offset as usize >= begin), "they are behind the index");
    assert!(again[begin..] == contents, "their bytes are the same");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::service::message::fuzz_corpus;

    #[test]
    fn the_index_has_each_file() {
        let version = |inode, bytes| FileVersion {
            key: FileKey { device: 7, inode },
            bytes,
            modified: InodeTime { seconds: -5, nanoseconds: 999_999_999 },
            changed: InodeTime { seconds: 1 << 40, nanoseconds: 3 },
        };
        let versions = [version(1, 3), version(2, 0), version(3, 5)];
        let pack = pack_of(&versions, b"abcdefgh");
        assert_eq!(pack.len(), pack_bytes(3, 8));
        let files = files_of_pack(&pack).unwrap();
        assert!(files.iter().map(|file| file.version).eq(versions));
        let bytes = |file: &PackedFile| {
            let begin = file.offset as usize;
            pack[begin..begin + file.version.bytes as usize].to_vec()
        };
        assert_eq!(files.iter().map(bytes).collect::<Vec<_>>(), [&b"abc"[..], b"", b"defgh"]);
        // Cut anywhere, it is none, or a file ends behind it.
        assert!((0..pack.len()).all(|length| files_of_pack(&pack[..length]).is_none()));
        let mut endless = pack;
        endless[..8].fill(0xff);
        assert_eq!(files_of_pack(&endless), None);
    }

    #[test]
    fn any_bytes_are_a_pack_or_none() {
        fuzz_corpus("packs", 3, fuzz_packs);
    }
}
