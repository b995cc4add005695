//! The cache: which memory has which bytes of which file.

use std::collections::{BTreeMap, HashMap};
use std::ops::Bound;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Instant;

use iolite::service::{
    FileKey, FileVersion, PIECE_BYTES, PIECES_PER_PACKET_MAX, PieceRange, Refusal,
    SHARED_FILE_BYTES_MIN,
};
use millrace_sys::Errno;

use crate::access::{readable_file, writable_file};
use crate::budget::{Budget, Reserved, Unfreed, memory_for};
use crate::bytes::{are_equal, read_exactly};
use crate::limits::{ATTEMPTS_MAX, LOAD_WAIT_MAX, PROBES_MAX};
use crate::memory::Memory;
use crate::replacement::{LastUse, Uses};
use crate::users::MemoryOfUsers;

/// Maps (file, offset) to memory. No lock is held while a file is read, except that one thread at a
/// time reads a file.
#[derive(Debug)]
pub(crate) struct Cache {
    budget: Budget,
    /// The bytes that each user may hold; `None`: half of the budget.
    user_bytes_max: Option<u64>,
    unfreed: Unfreed,
    state: Mutex<CacheState>,
    /// A file is no longer being read, or an entry was added.
    loaded: Condvar,
}

/// A file that this thread reads, until this is dropped.
pub(crate) struct Loading<'a> {
    cache: &'a Cache,
    key: FileKey,
}

impl Drop for Loading<'_> {
    fn drop(&mut self) {
        self.cache.state().loading.remove(&self.key);
        self.cache.loaded.notify_all();
    }
}

#[derive(Debug)]
struct CacheState {
    /// They do not overlap.
    entries: BTreeMap<(FileKey, u64), Entry>,
    /// The entries in the order of their eviction.
    uses: Uses<(FileKey, u64)>,
    users: MemoryOfUsers,
    /// The files that are being read, each by one thread, since these times.
    loading: HashMap<FileKey, Instant>,
}

#[derive(Debug)]
struct Entry {
    memory: Arc<Memory>,
    /// The version of the file that certainly has these bytes.
    confirmed: Option<FileVersion>,
    last_use: LastUse,
}

/// Memory and the offset in the file at which its bytes begin.
#[derive(Clone, Debug)]
pub(crate) struct Piece {
    pub(crate) offset: u64,
    pub(crate) memory: Arc<Memory>,
}

/// The bytes of one version of a file.
#[derive(Debug)]
pub(crate) struct Contents {
    pub(crate) version: FileVersion,
    /// A later change certainly has another version.
    pub(crate) is_settled: bool,
    pub(crate) pieces: Vec<Piece>,
}

impl Piece {
    fn end(&self) -> u64 {
        self.offset + self.memory.length()
    }

    pub(crate) fn range(&self) -> PieceRange {
        PieceRange { offset: self.offset, length: self.memory.length() }
    }
}

impl Cache {
    /// Creates an empty cache, of whose memory each user may hold `user_bytes_max` bytes, or half.
    ///
    /// # Errors
    /// Those of inotify_init1(2).
    pub(crate) fn new(budget: Budget, user_bytes_max: Option<u64>) -> Result<Self, Errno> {
        Ok(Self {
            budget,
            user_bytes_max,
            unfreed: Unfreed::new()?,
            state: Mutex::new(CacheState {
                entries: BTreeMap::new(),
                uses: Uses::default(),
                users: MemoryOfUsers::default(),
                loading: HashMap::new(),
            }),
            loaded: Condvar::new(),
        })
    }

    /// Returns memory with the bytes of a file from `offset` on, up to `length` of them or a few
    /// pieces. Reads from the file what is not cached.
    ///
    /// # Errors
    /// The reason why the file is not served.
    pub(crate) fn read(
        &self,
        user: u32,
        file: BorrowedFd<'_>,
        offset: u64,
        length: u64,
    ) -> Result<Contents, Refusal> {
        self.unfreed.collect();
        for _ in 0..ATTEMPTS_MAX {
            let now = millrace_sys::time_of_day();
            let version = readable_file(file)?;
            let is_settled = version.is_settled(now);
            let end = version.bytes.min(offset + length);
            let contents = |pieces| Contents { version, is_settled, pieces };
            let pieces = self.state().confirmed(user, &version, offset, end);
            if is_complete(&pieces, offset, end) {
                return Ok(contents(pieces));
            }
            let loading = self.begin_loading(version.key)?;
            // A write that the version includes may not have copied all of its bytes yet.
            millrace_sys::await_writers(file);
            let pieces = self.load(user, file, &version, offset, end);
            drop(loading);
            // A change meanwhile may be in none or some of the pieces.
            match (pieces, readable_file(file)? == version) {
                (Ok(pieces), true) => {
                    if is_settled {
                        self.state().confirm(&version, &pieces);
                    }
                    return Ok(contents(pieces));
                }
                (Err(Refusal::Changing), _) | (Ok(_), false) => {}
                (Err(refusal), _) => return Err(refusal),
            }
        }
        Err(Refusal::Changing)
    }

    /// Waits until no other thread reads a file, but not for one that waits for a stalled writer.
    pub(crate) fn begin_loading(&self, key: FileKey) -> Result<Loading<'_>, Refusal> {
        let mut state = self.state();
        let since = state.loading.get(&key).copied();
        let left =
            since.map_or(LOAD_WAIT_MAX, |since| LOAD_WAIT_MAX.saturating_sub(since.elapsed()));
        let is_loading = |state: &mut CacheState| state.loading.contains_key(&key);
        let waited = self.loaded.wait_timeout_while(state, left, is_loading);
        (state, _) = waited.expect("no holder of this lock panics");
        if state.loading.contains_key(&key) {
            return Err(Refusal::Busy);
        }
        state.loading.insert(key, Instant::now());
        Ok(Loading { cache: self, key })
    }

    /// Returns pieces from `offset` to `end`, as many as fit into a response. They are not
    /// confirmed yet.
    fn load(
        &self,
        user: u32,
        file: BorrowedFd<'_>,
        version: &FileVersion,
        offset: u64,
        end: u64,
    ) -> Result<Vec<Piece>, Refusal> {
        let mut pieces: Vec<Piece> = Vec::new();
        while pieces.len() < PIECES_PER_PACKET_MAX {
            let position = pieces.last().map_or(offset, Piece::end);
            if position >= end {
                break;
            }
            let found = self.state().find(version.key, position);
            if let Some((piece, confirmed)) = found {
                // If it has the same bytes still, no memory has to be passed again.
                let is_usable = piece.memory.is_for(user)
                    && (confirmed == Some(*version)
                        || are_equal(file, piece.offset, &piece.memory)?);
                if is_usable {
                    add_behind(&mut pieces, piece)?;
                    continue;
                }
                self.state().remove(version.key, piece.offset);
            }
            let piece = self.load_gap(file, version, position)?;
            add_behind(&mut pieces, piece)?;
        }
        Ok(pieces)
    }

    /// Reads the part of a file around a position that no entry has.
    fn load_gap(
        &self,
        file: BorrowedFd<'_>,
        version: &FileVersion,
        position: u64,
    ) -> Result<Piece, Refusal> {
        let PieceRange { offset, length } = self.state().gap(version, position);
        let reserved = self.make_room(memory_for(length))?;
        let fill = |bytes: &mut [u8]| read_exactly(file, offset, bytes);
        let memory = Arc::new(Memory::filled(length, reserved, &self.unfreed, fill)?);
        let piece = Piece { offset, memory };
        self.state().add(version.key, &piece);
        Ok(piece)
    }

    /// Adds memory of which a client of a user has written the first `length` bytes to a file at
    /// `offset`. It is compared with the file when a reader wants it.
    ///
    /// # Errors
    /// The reason why the memory was not taken.
    pub(crate) fn add_written(
        &self,
        user: u32,
        file: BorrowedFd<'_>,
        range: PieceRange,
        memory: OwnedFd,
    ) -> Result<(), Refusal> {
        let key = writable_file(file)?.key;
        let make_room = |bytes| self.make_room(bytes);
        let memory = Memory::accept(memory, range.length, user, &self.budget, make_room)?;
        self.state().add(key, &Piece { offset: range.offset, memory: Arc::new(memory) });
        self.loaded.notify_all();
        Ok(())
    }

    /// Adds a pack of short files. It is charged with `heap_bytes` of the daemon's heap, too.
    ///
    /// # Errors
    /// [`Refusal::Memory`], and those of the kernel.
    pub(crate) fn add_pack(
        &self,
        key: FileKey,
        bytes: &[u8],
        heap_bytes: u64,
    ) -> Result<Arc<Memory>, Refusal> {
        let length = bytes.len() as u64;
        let reserved = self.make_room(memory_for(length) + heap_bytes)?;
        let fill = |memory: &mut [u8]| {
            memory.copy_from_slice(bytes);
            Ok(())
        };
        let memory = Arc::new(Memory::filled(length, reserved, &self.unfreed, fill)?);
        self.state().add(key, &Piece { offset: 0, memory: memory.clone() });
        Ok(memory)
    }

    /// Returns a pack, and counts as a use of it; `None` after its eviction.
    pub(crate) fn find_pack(&self, key: FileKey) -> Option<Arc<Memory>> {
        self.state().find(key, 0).map(|(piece, _)| piece.memory)
    }

    /// Returns whether a pack was not evicted.
    pub(crate) fn has_pack(&self, key: FileKey) -> bool {
        self.state().entries.contains_key(&(key, 0))
    }

    pub(crate) fn remove_pack(&self, key: FileKey) {
        self.state().remove(key, 0);
    }

    /// Charges memory to a user, and opens it for a process of that user.
    ///
    /// # Errors
    /// [`Refusal::UserMemory`]; [`Refusal::Kernel`] without descriptors.
    pub(crate) fn open_for(&self, user: u32, memory: &Arc<Memory>) -> Result<OwnedFd, Refusal> {
        // It is opened first: a charge for memory that no client holds is soon removed.
        let file = memory.open()?;
        let bytes_max = self.user_bytes_max.unwrap_or(self.budget.bytes_max() / 2);
        let may_have = self.state().users.charge(user, memory, bytes_max);
        may_have.then_some(file).ok_or(Refusal::UserMemory)
    }

    /// Reserves memory, and evicts memory that no client holds for it.
    fn make_room(&self, bytes: u64) -> Result<Reserved, Refusal> {
        if bytes > self.budget.bytes_max() {
            return Err(Refusal::Memory);
        }
        loop {
            self.unfreed.collect();
            if let Some(reserved) = self.budget.reserve(bytes) {
                return Ok(reserved);
            }
            // The kernel frees it when it is dropped, unless a client refers to it (O_PATH).
            let evicted = self.state().evict(self.budget.bytes_max());
            drop(evicted.ok_or(Refusal::Memory)?);
        }
    }

    /// Changes the bytes that the cache may have, and evicts as many as are too many, as far as no
    /// client holds them.
    pub(crate) fn resize(&self, bytes_max: u64) {
        self.budget.set_bytes_max(bytes_max);
        let mut probes = self.state().entries.len() / PROBES_MAX + 1;
        loop {
            self.unfreed.collect();
            if self.budget.bytes() <= bytes_max || probes == 0 {
                break;
            }
            let evicted = self.state().evict(bytes_max);
            probes -= usize::from(evicted.is_none());
            drop(evicted);
        }
    }

    /// Returns the bytes that are in use.
    pub(crate) fn bytes(&self) -> u64 {
        self.unfreed.collect();
        self.budget.bytes()
    }

    /// Returns the bytes of the entries that no client is known to hold. Memory that clients wrote
    /// is included: the daemon cannot find out whether a client holds it still, and if none does,
    /// evicting it frees it. If it were not included, the kernel would kill a process for lack of
    /// memory before a cache full of it shrinks.
    pub(crate) fn evictable_bytes(&self) -> u64 {
        let (mut bytes, mut after) = (0, Bound::Unbounded);
        loop {
            let (state, before) = (self.state(), after);
            for (key, entry) in state.entries.range((before, Bound::Unbounded)).take(PROBES_MAX) {
                bytes += if is_in_use(&entry.memory) { 0 } else { entry.memory.length() };
                after = Bound::Excluded(*key);
            }
            if after == before {
                return bytes;
            }
        }
    }

    /// Waits until the cache has entries.
    pub(crate) fn await_entries(&self) {
        let is_empty = |state: &mut CacheState| state.entries.is_empty();
        drop(
            self.loaded.wait_while(self.state(), is_empty).expect("no holder of this lock panics"),
        );
    }

    fn state(&self) -> MutexGuard<'_, CacheState> {
        self.state.lock().expect("no holder of this lock panics")
    }
}

/// Returns whether pieces have all bytes from `offset` to `end`, or as many as a response has.
fn is_complete(pieces: &[Piece], offset: u64, end: u64) -> bool {
    pieces.len() == PIECES_PER_PACKET_MAX || pieces.last().map_or(offset, Piece::end) >= end
}

/// Adds a piece behind others, and removes those of them that it replaces.
///
/// # Errors
/// [`Refusal::Changing`] if it does not begin where they end: a client has added memory meanwhile.
fn add_behind(pieces: &mut Vec<Piece>, piece: Piece) -> Result<(), Refusal> {
    pieces.retain(|before| before.offset < piece.offset);
    if pieces.last().is_some_and(|last| last.end() != piece.offset) {
        return Err(Refusal::Changing);
    }
    pieces.push(piece);
    Ok(())
}

/// Returns whether a client holds memory, or a thread is about to pass it to one.
fn is_in_use(memory: &Arc<Memory>) -> bool {
    Arc::strong_count(memory) > 1 || memory.is_held()
}

impl CacheState {
    /// Returns the confirmed pieces for a user that follow each other from `offset` to `end`.
    fn confirmed(&mut self, user: u32, version: &FileVersion, offset: u64, end: u64) -> Vec<Piece> {
        let mut pieces: Vec<Piece> = Vec::new();
        while pieces.len() < PIECES_PER_PACKET_MAX {
            let position = pieces.last().map_or(offset, Piece::end);
            let found = (position < end).then(|| self.find(version.key, position)).flatten();
            match found {
                Some((piece, Some(confirmed)))
                    if confirmed == *version && piece.memory.is_for(user) =>
                {
                    pieces.push(piece);
                }
                _ => break,
            }
        }
        pieces
    }

    /// Returns the piece that has the byte at a position, and the version that has it.
    fn find(&mut self, key: FileKey, position: u64) -> Option<(Piece, Option<FileVersion>)> {
        let mut before = self.entries.range_mut((key, 0)..=(key, position));
        let (&(_, offset), entry) = before.next_back()?;
        let piece = Piece { offset, memory: entry.memory.clone() };
        if piece.end() <= position {
            return None;
        }
        entry.last_use = self.uses.repeat((key, offset), entry.last_use);
        Some((piece, entry.confirmed))
    }

    /// Returns the range around a position that no entry has, within one piece of the file. Removes
    /// the entry of a writer that was added there meanwhile.
    fn gap(&mut self, version: &FileVersion, position: u64) -> PieceRange {
        let key = version.key;
        if let Some((piece, _)) = self.find(key, position) {
            self.remove(key, piece.offset);
        }
        let begin = position - position % PIECE_BYTES;
        let mut before = self.entries.range((key, begin)..=(key, position));
        let last = before.next_back().map(|((_, offset), entry)| (*offset, entry.memory.length()));
        let mut after = self.entries.range((key, position + 1)..(key, begin + PIECE_BYTES));
        let end = after.next().map_or(begin + PIECE_BYTES, |((_, offset), _)| *offset);
        let end = end.min(version.bytes);
        match last {
            // A file that grows would soon have many short pieces.
            Some((offset, length)) if end - (offset + length) < SHARED_FILE_BYTES_MIN => {
                self.remove(key, offset);
                self.gap(version, position)
            }
            Some((offset, length)) => {
                PieceRange { offset: offset + length, length: end - (offset + length) }
            }
            None => {
                // An entry may reach beyond the beginning.
                let mut before = self.entries.range((key, 0)..(key, begin));
                let reaches = before.next_back().map(|((_, at), entry)| at + entry.memory.length());
                let begin = begin.max(reaches.unwrap_or(0));
                PieceRange { offset: begin, length: end - begin }
            }
        }
    }

    /// Adds an unconfirmed entry. It replaces those that it overlaps.
    fn add(&mut self, key: FileKey, piece: &Piece) {
        while let Some((&(_, offset), entry)) =
            self.entries.range((key, 0)..(key, piece.end())).next_back()
            && offset + entry.memory.length() > piece.offset
        {
            self.remove(key, offset);
        }
        let memory = piece.memory.clone();
        let last_use = self.uses.add((key, piece.offset), memory.reserved().bytes());
        self.entries.insert((key, piece.offset), Entry { memory, confirmed: None, last_use });
    }

    fn remove(&mut self, key: FileKey, offset: u64) {
        if let Some(entry) = self.entries.remove(&(key, offset)) {
            self.uses.remove(entry.last_use);
        }
    }

    /// Records the version that has these pieces, as far as they are still entries.
    fn confirm(&mut self, version: &FileVersion, pieces: &[Piece]) {
        for piece in pieces {
            if let Some(entry) = self.entries.get_mut(&(version.key, piece.offset))
                && entry.memory.id() == piece.memory.id()
            {
                entry.confirmed = Some(*version);
            }
        }
    }

    /// Removes an entry whose memory no client holds from a cache of `bytes_max` bytes; `None` if
    /// there is none.
    fn evict(&mut self, bytes_max: u64) -> Option<Arc<Memory>> {
        for frequency in self.uses.order(bytes_max) {
            for _ in 0..PROBES_MAX / 2 {
                let Some(key) = self.uses.oldest(frequency) else { break };
                let entry = self.entries.get_mut(&key).expect("each use has its entry");
                if !is_in_use(&entry.memory) {
                    let memory = entry.memory.clone();
                    self.remove(key.0, key.1);
                    return Some(memory);
                }
                // Memory that a client holds is in use.
                entry.last_use = self.uses.renew(key, entry.last_use);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::time::Duration;

    use iolite::{SealedMemory, UnsealedMemory};
    use millrace_sys::{FreedFiles, create_memory_file};

    use super::*;

    const MB: u64 = 1 << 20;

    fn written_memory() -> SealedMemory {
        let mut memory = UnsealedMemory::exactly(MB as usize).unwrap();
        memory.unfilled()[..MB as usize].fill(7);
        memory.advance(MB as usize);
        memory.seal().map_err(|_| ()).unwrap()
    }

    #[test]
    fn a_cache_of_memory_that_clients_wrote_shrinks_and_frees_it() {
        let cache = Cache::new(Budget::new(16 * MB, 100), None).unwrap();
        // Its file system is tmpfs.
        let file = create_memory_file("file", 8 * MB).unwrap();
        let (watched, mut freed) = (FreedFiles::new().unwrap(), 0);
        for number in 0..8 {
            let memory = written_memory();
            watched.watch(memory.file()).unwrap();
            let range = PieceRange { offset: number * MB, length: MB };
            let passed = memory.file().try_clone_to_owned().unwrap();
            cache.add_written(1, file.as_fd(), range, passed).unwrap();
        }
        assert_eq!((cache.bytes(), cache.evictable_bytes()), (8 * MB, 8 * MB));
        cache.resize(3 * MB);
        assert_eq!((cache.bytes(), cache.evictable_bytes()), (3 * MB, 3 * MB));
        let begin = Instant::now();
        while freed < 5 {
            assert!(begin.elapsed() < Duration::from_secs(60), "{freed} are freed");
            watched.collect(|_| freed += 1).unwrap();
            std::thread::yield_now();
        }
        // Memory that a client holds is evicted, too.
        let held = cache.state().find(FileVersion::of(file.as_fd()).unwrap().unwrap().key, 7 * MB);
        let held = held.expect("the last one").0.memory.open().unwrap();
        cache.resize(0);
        assert_eq!((cache.bytes(), cache.evictable_bytes()), (0, 0));
        drop(held);
    }

    #[test]
    fn pieces_follow_each_other() {
        let (budget, unfreed) = (Budget::new(1 << 20, 9), Unfreed::new().unwrap());
        let piece = |offset, length| {
            let reserved = budget.reserve(memory_for(length)).unwrap();
            let memory = Memory::filled(length, reserved, &unfreed, |_| Ok(())).unwrap();
            Piece { offset, memory: Arc::new(memory) }
        };
        let mut pieces = Vec::new();
        assert_eq!(add_behind(&mut pieces, piece(10, 20)), Ok(()));
        assert_eq!(add_behind(&mut pieces, piece(30, 5)), Ok(()));
        // A client has written from 25 to 33 meanwhile, and 33 is wanted.
        assert_eq!(add_behind(&mut pieces, piece(33, 9)), Err(Refusal::Changing));
        assert_eq!(add_behind(&mut pieces, piece(30, 9)), Ok(()), "a longer one");
        assert_eq!(add_behind(&mut pieces, piece(5, 40)), Ok(()), "one instead of all");
        assert_eq!(pieces.iter().map(|piece| piece.offset).collect::<Vec<_>>(), [5]);
    }
}
