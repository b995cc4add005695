//! The segments of a disk, for readers and the writer.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use super::directory_io::FileIo;
use super::format::ResponseId;

/// A file of records. Readers hold it, so the file of a dropped segment stays open until its last
/// reader has ended.
#[derive(Debug)]
pub(super) struct Segment {
    pub(super) number: u32,
    pub(super) file: Arc<dyn FileIo>,
    /// The size of the file. Relaxed: written by the writer only; for others it is a statistic.
    bytes: AtomicU64,
    /// The responses in the file, including those that were removed from the index since.
    ids: Mutex<Vec<ResponseId>>,
}

impl Segment {
    pub(super) fn new(number: u32, file: Arc<dyn FileIo>, bytes: u64) -> Self {
        Self { number, file, bytes: AtomicU64::new(bytes), ids: Mutex::default() }
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    pub(super) fn set_bytes(&self, bytes: u64) {
        self.bytes.store(bytes, Ordering::Relaxed);
    }

    pub(super) fn add_id(&self, id: ResponseId) {
        self.ids.lock().unwrap_or_else(PoisonError::into_inner).push(id);
    }

    pub(super) fn set_ids(&self, mut ids: Vec<ResponseId>) {
        ids.shrink_to_fit();
        *self.ids.lock().unwrap_or_else(PoisonError::into_inner) = ids;
    }

    /// Returns at most `most` ids, beginning at index `from`.
    pub(super) fn ids(&self, from: usize, most: usize) -> Vec<ResponseId> {
        let ids = self.ids.lock().unwrap_or_else(PoisonError::into_inner);
        ids.iter().skip(from).take(most).copied().collect()
    }

    /// Returns the file name of a segment.
    pub(super) fn name(number: u32) -> String {
        format!("segment-{number:08x}")
    }

    /// Returns the number in a file name; `None` if it is not the name of a segment.
    pub(super) fn number_of(name: &str) -> Option<u32> {
        let number = u32::from_str_radix(name.strip_prefix("segment-")?, 16).ok()?;
        (number > 0 && number < u32::MAX && Self::name(number) == name).then_some(number)
    }
}

/// All segments of a disk by number. They were written in the order of their numbers.
#[derive(Debug, Default)]
pub(super) struct Segments(RwLock<BTreeMap<u32, Arc<Segment>>>);

impl Segments {
    fn read<T>(&self, look: impl FnOnce(&BTreeMap<u32, Arc<Segment>>) -> T) -> T {
        look(&self.0.read().unwrap_or_else(PoisonError::into_inner))
    }

    pub(super) fn get(&self, number: u32) -> Option<Arc<Segment>> {
        self.read(|all| all.get(&number).cloned())
    }

    /// Returns the first segment with this or a higher number.
    pub(super) fn from(&self, number: u32) -> Option<Arc<Segment>> {
        self.read(|all| all.range(number..).next().map(|(_, segment)| segment.clone()))
    }

    pub(super) fn oldest(&self) -> Option<Arc<Segment>> {
        self.from(0)
    }

    pub(super) fn len(&self) -> usize {
        self.read(BTreeMap::len)
    }

    /// Returns the total size of all files.
    pub(super) fn bytes(&self) -> u64 {
        self.read(|all| all.values().map(|segment| segment.bytes()).sum())
    }

    pub(super) fn numbers(&self) -> Vec<u32> {
        self.read(|all| all.keys().copied().collect())
    }

    pub(super) fn insert(&self, segment: Arc<Segment>) {
        let mut all = self.0.write().unwrap_or_else(PoisonError::into_inner);
        all.insert(segment.number, segment);
    }

    pub(super) fn remove(&self, number: u32) {
        self.0.write().unwrap_or_else(PoisonError::into_inner).remove(&number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_valid_names_are_segments() {
        assert_eq!(Segment::number_of(&Segment::name(0x1f)), Some(0x1f));
        for name in ["segment-1f", "segment-0000001F", "segment-00000000", "segment-ffffffff", "x"]
        {
            assert_eq!(Segment::number_of(name), None, "{name}");
        }
    }
}
