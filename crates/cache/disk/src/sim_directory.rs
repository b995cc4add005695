//! A simulated directory in memory, with faults that a seed decides.

use std::collections::BTreeMap;
use std::io::IoSlice;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use millrace_sys::Errno;

use super::directory_io::{DirectoryIo, FileIo, IoResult};

/// The unit that a disk writes atomically.
const SECTOR: usize = 512;

/// The frequencies of faults. A value of 40 means that, on average, one in 40 calls has the fault;
/// 0 means that none has.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SimFaults {
    /// Fewer bytes are written or read than requested.
    pub short: u32,
    /// A read fails with EIO.
    pub read_errors: u32,
    /// A write, a sync, or a change of names fails with EIO.
    pub write_errors: u32,
}

/// A [`DirectoryIo`] in memory. Clones are the same directory. Its behaviour depends only on the
/// seed and on the calls.
#[derive(Clone, Debug)]
pub struct SimDirectory(Arc<Mutex<SimState>>);

#[derive(Debug, Default)]
struct SimState {
    random: SimRandom,
    /// The files by number, because their names may change.
    nodes: BTreeMap<u64, SimInode>,
    names: BTreeMap<String, u64>,
    /// The names at the last sync.
    synced_names: BTreeMap<String, u64>,
    next: u64,
    capacity: u64,
    faults: SimFaults,
    /// The number of writing calls that return before the process is killed.
    calls_left: Option<u64>,
    /// The process was killed: all calls fail until the next start.
    is_dead: bool,
    /// The number of the start. Files that were opened before it are closed.
    start: u64,
}

#[derive(Clone, Debug, Default)]
struct SimInode {
    bytes: Vec<u8>,
    /// The bytes at the last sync.
    synced: Vec<u8>,
    /// The changes since the last sync, in order.
    unsynced: Vec<UnsyncedChange>,
}

#[derive(Clone, Debug)]
enum UnsyncedChange {
    Write(usize, Vec<u8>),
    Cut(usize),
}

impl SimDirectory {
    /// Creates an empty directory of `capacity` bytes.
    pub fn new(seed: u64, capacity: u64) -> Self {
        let state = SimState { random: SimRandom(seed), capacity, ..SimState::default() };
        Self(Arc::new(Mutex::new(state)))
    }

    fn lock(&self) -> MutexGuard<'_, SimState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the faults from now on.
    pub fn set_faults(&self, faults: SimFaults) {
        self.lock().faults = faults;
    }

    /// Changes the capacity, as other users of the file system would.
    pub fn set_capacity(&self, capacity: u64) {
        self.lock().capacity = capacity;
    }

    /// Lets `calls` more writing calls return, and simulates a SIGKILL of the process during the
    /// next one. That write may stop at any byte.
    pub fn die_after(&self, calls: u64) {
        self.lock().calls_left = Some(calls);
    }

    /// Returns whether the process was killed.
    pub fn is_dead(&self) -> bool {
        self.lock().is_dead
    }

    /// Restarts the process. Open files are closed, and written data stays. If the power was lost,
    /// some of the unsynced sectors are written and some are not.
    pub fn restart(&self, power_is_lost: bool) {
        let mut state = self.lock();
        if power_is_lost {
            state.lose_power();
        }
        state.start += 1;
        (state.is_dead, state.calls_left) = (false, None);
        let names: Vec<u64> = state.names.values().copied().collect();
        state.nodes.retain(|number, _| names.contains(number));
    }

    /// Flips a random bit.
    pub fn flip(&self) {
        let mut state = self.lock();
        let total: usize = state.named().map(|node| node.bytes.len()).sum();
        if total == 0 {
            return;
        }
        let (mut at, bit) = (state.random.below(total as u64) as usize, state.random.below(8));
        let numbers: Vec<u64> = state.names.values().copied().collect();
        for number in numbers {
            let Some(node) = state.nodes.get_mut(&number) else { continue };
            if let Some(byte) = node.bytes.get_mut(at) {
                *byte ^= 1 << bit;
                // The medium failed, so the synced bytes change as well.
                if let Some(byte) = node.synced.get_mut(at) {
                    *byte ^= 1 << bit;
                }
                return;
            }
            at -= node.bytes.len();
        }
    }

    /// Returns the total size of all files.
    pub fn bytes(&self) -> u64 {
        self.lock().used()
    }

    fn file(&self, number: u64) -> Arc<dyn FileIo> {
        let start = self.lock().start;
        Arc::new(SimFile { directory_io: self.clone(), number, start })
    }
}

impl SimState {
    fn named(&self) -> impl Iterator<Item = &SimInode> {
        self.names.values().filter_map(|number| self.nodes.get(number))
    }

    fn node(&mut self, number: u64) -> IoResult<&mut SimInode> {
        self.nodes.get_mut(&number).ok_or(Errno::IO)
    }

    fn used(&self) -> u64 {
        self.named().map(|node| node.bytes.len() as u64).sum()
    }

    fn chance(&mut self, one_in: u32) -> bool {
        one_in > 0 && self.random.below(u64::from(one_in)) == 0
    }

    /// Prepares a call that writes. Returns `true` if the process is killed during it.
    fn before_write(&mut self) -> IoResult<bool> {
        if self.is_dead {
            return Err(Errno::IO);
        }
        if let Some(left) = &mut self.calls_left {
            if *left == 0 {
                self.is_dead = true;
                return Ok(true);
            }
            *left -= 1;
        }
        let one_in = self.faults.write_errors;
        if self.chance(one_in) { Err(Errno::IO) } else { Ok(false) }
    }

    fn before_read(&mut self) -> IoResult<()> {
        let one_in = self.faults.read_errors;
        if self.is_dead || self.chance(one_in) { Err(Errno::IO) } else { Ok(()) }
    }

    /// Changes names. If the process is killed, the change may be lost.
    fn change_names(&mut self, change: impl FnOnce(&mut Self)) -> IoResult<()> {
        let dies = self.before_write()?;
        if !dies || self.chance(2) {
            change(self);
        }
        if dies { Err(Errno::IO) } else { Ok(()) }
    }

    fn lose_power(&mut self) {
        // Each change of a name reaches the disk or is lost, independently of the others.
        let mut names = self.synced_names.clone();
        for (name, number) in self.names.clone() {
            if self.synced_names.get(&name) != Some(&number) && self.chance(2) {
                names.insert(name, number);
            }
        }
        for name in self.synced_names.clone().into_keys() {
            if !self.names.contains_key(&name) && self.chance(2) {
                names.remove(&name);
            }
        }
        self.names.clone_from(&names);
        self.synced_names = names;
        for node in self.nodes.values_mut() {
            let mut bytes = std::mem::take(&mut node.synced);
            for change in node.unsynced.drain(..) {
                match change {
                    UnsyncedChange::Cut(length) if self.random.below(2) == 0 => {
                        bytes.truncate(length)
                    }
                    UnsyncedChange::Cut(_) => {}
                    UnsyncedChange::Write(at, written) => {
                        tear(&mut self.random, &mut bytes, at, &written)
                    }
                }
            }
            node.synced.clone_from(&bytes);
            node.bytes = bytes;
        }
    }
}

/// Applies a write of which all, nothing, or some sectors reached the disk.
fn tear(random: &mut SimRandom, bytes: &mut Vec<u8>, at: usize, written: &[u8]) {
    let how = random.below(4);
    let mut done = 0;
    while done < written.len() {
        let count = (SECTOR - (at + done) % SECTOR).min(written.len() - done);
        let is_there = match how {
            0 => true,
            1 => false,
            _ => random.below(2) == 0,
        };
        if is_there {
            put(bytes, at + done, &written[done..done + count]);
        }
        done += count;
    }
}

fn put(bytes: &mut Vec<u8>, at: usize, written: &[u8]) {
    let end = at + written.len();
    if bytes.len() < end {
        bytes.resize(end, 0);
    }
    bytes[at..end].copy_from_slice(written);
}

impl DirectoryIo for SimDirectory {
    fn list(&self) -> IoResult<Vec<String>> {
        let mut state = self.lock();
        state.before_read()?;
        Ok(state.names.keys().cloned().collect())
    }

    fn create(&self, name: &str) -> IoResult<Arc<dyn FileIo>> {
        let mut state = self.lock();
        if state.names.contains_key(name) {
            return Err(Errno::EXIST);
        }
        let number = state.next;
        state.next += 1;
        state.change_names(|state| {
            state.nodes.insert(number, SimInode::default());
            state.names.insert(name.into(), number);
        })?;
        drop(state);
        Ok(self.file(number))
    }

    fn open(&self, name: &str) -> IoResult<Arc<dyn FileIo>> {
        let mut state = self.lock();
        state.before_read()?;
        let number = *state.names.get(name).ok_or(Errno::NOENT)?;
        drop(state);
        Ok(self.file(number))
    }

    fn remove(&self, name: &str) -> IoResult<()> {
        let mut state = self.lock();
        if !state.names.contains_key(name) {
            return Err(if state.is_dead { Errno::IO } else { Errno::NOENT });
        }
        state.change_names(|state| {
            state.names.remove(name);
        })
    }

    fn replace(&self, name: &str, bytes: &[u8]) -> IoResult<()> {
        let mut state = self.lock();
        if state.used() + bytes.len() as u64 > state.capacity && !state.is_dead {
            return Err(Errno::NOSPC);
        }
        let number = state.next;
        state.next += 1;
        state.change_names(|state| {
            let (bytes, synced) = (bytes.to_vec(), bytes.to_vec());
            state.nodes.insert(number, SimInode { bytes, synced, unsynced: Vec::new() });
            state.names.insert(name.into(), number);
            state.synced_names = state.names.clone();
        })
    }

    fn sync(&self) -> IoResult<()> {
        self.lock().change_names(|state| state.synced_names = state.names.clone())
    }
}

#[derive(Debug)]
struct SimFile {
    directory_io: SimDirectory,
    number: u64,
    start: u64,
}

impl SimFile {
    /// Returns the state, if this file was opened since the last start.
    fn state(&self) -> IoResult<MutexGuard<'_, SimState>> {
        let state = self.directory_io.lock();
        if state.start == self.start { Ok(state) } else { Err(Errno::IO) }
    }
}

impl FileIo for SimFile {
    fn bytes(&self) -> IoResult<u64> {
        let mut state = self.state()?;
        state.before_read()?;
        Ok(state.node(self.number)?.bytes.len() as u64)
    }

    fn read_at(&self, at: u64, bytes: &mut [u8]) -> IoResult<usize> {
        let mut state = self.state()?;
        state.before_read()?;
        let one_in = state.faults.short;
        let is_short = state.chance(one_in);
        let node = state.node(self.number)?;
        let there = node.bytes.get(at as usize..).unwrap_or_default();
        let mut count = there.len().min(bytes.len());
        if is_short {
            count = count.div_ceil(2);
        }
        bytes[..count].copy_from_slice(&there[..count]);
        Ok(count)
    }

    fn write_at(&self, at: u64, parts: &[IoSlice<'_>]) -> IoResult<usize> {
        let mut state = self.state()?;
        let dies = state.before_write()?;
        let mut bytes: Vec<u8> = parts.iter().flat_map(|part| part.iter().copied()).collect();
        let one_in = state.faults.short;
        if dies || state.chance(one_in) {
            let count = state.random.below(bytes.len() as u64 + 1) as usize;
            bytes.truncate(if dies { count } else { count.max(1).min(bytes.len()) });
        }
        let room = state.capacity.saturating_sub(state.used());
        let node = state.node(self.number)?;
        let room = node.bytes.len() as u64 + room;
        bytes.truncate(room.saturating_sub(at) as usize);
        if bytes.is_empty() && !dies {
            return Err(Errno::NOSPC);
        }
        put(&mut node.bytes, at as usize, &bytes);
        let count = bytes.len();
        node.unsynced.push(UnsyncedChange::Write(at as usize, bytes));
        if dies { Err(Errno::IO) } else { Ok(count) }
    }

    fn truncate(&self, bytes: u64) -> IoResult<()> {
        let mut state = self.state()?;
        if state.before_write()? {
            return Err(Errno::IO);
        }
        let node = state.node(self.number)?;
        node.bytes.resize(bytes as usize, 0);
        node.unsynced.push(UnsyncedChange::Cut(bytes as usize));
        Ok(())
    }

    fn sync(&self) -> IoResult<()> {
        let mut state = self.state()?;
        if state.before_write()? {
            return Err(Errno::IO);
        }
        let node = state.node(self.number)?;
        node.synced.clone_from(&node.bytes);
        node.unsynced.clear();
        Ok(())
    }
}

/// SplitMix64: good enough for tests.
#[derive(Debug, Default)]
struct SimRandom(u64);

impl SimRandom {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % bound.max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn synced_data_survives_and_other_data_may() {
        let mut seen = [false; 2];
        for seed in 0..20 {
            let directory_io = SimDirectory::new(seed, 1 << 20);
            let file = directory_io.create("a").unwrap();
            file.write_at(0, &[IoSlice::new(&[1; 2000])]).unwrap();
            file.sync().unwrap();
            directory_io.sync().unwrap();
            file.write_at(2000, &[IoSlice::new(&[2; 2000])]).unwrap();
            directory_io.restart(true);
            assert!(file.bytes().is_err(), "the file was closed");
            let file = directory_io.open("a").unwrap();
            let mut bytes = vec![0; 4000];
            let count = file.read_at(0, &mut bytes).unwrap();
            assert!(count >= 2000 && bytes[..2000] == [1; 2000]);
            seen[usize::from(bytes[2000..] == [2; 2000])] = true;
        }
        assert_eq!(seen, [true; 2]);
    }

    #[test]
    fn a_full_disk_writes_what_fits() {
        let directory_io = SimDirectory::new(1, 100);
        let file = directory_io.create("a").unwrap();
        let parts = [IoSlice::new(&[1; 80]), IoSlice::new(&[2; 80])];
        assert_eq!(file.write_at(0, &parts), Ok(100));
        assert_eq!(file.write_at(100, &parts), Err(Errno::NOSPC));
        directory_io.remove("a").unwrap();
        assert_eq!(directory_io.create("b").unwrap().write_at(0, &parts[..1]), Ok(80));
    }
}
