//! All disks of a cache, as those who use them see them.

use std::fmt;
use std::hash::Hasher;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use millrace_body::WaiterId;
use millrace_http_cache::{HashKey, Key, META_BYTES, SpaceTag};
use millrace_sys::Errno;
use siphasher::sip128::{Hasher128, SipHasher13};

use super::directory::Directory;
use super::directory_io::{DirectoryIo, IoResult, read_short};
use super::disk::Disk;
use super::format::ResponseId;
use super::identity::{
    DirectoryContents, IDENTITY, IDENTITY_BYTES_MAX, Identity, MEMBERS_MAX, plan_run,
};
use super::limits::{DISK_BYTES_MIN, PURGE_WAIT_MAX};
use super::message::{Cursor, DiskCallbacks, DiskHit, DiskReply, FetchRequest, StoredResponse};
use super::purge_rules::PurgeTarget;
use super::queue::{DiskOptions, PurgeWaiter};
use super::segments::Segment;
use super::stats::DiskStats;
use super::threads::Threads;

/// Why disks are not used. Places count from 0, in the order they were given.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Error {
    /// There are none, or too many.
    Count(usize),
    /// The disk at a place is given so many bytes, which are too few.
    Size(usize, u64),
    /// The disk at a place cannot be read or written.
    Io(usize, Errno),
    /// There can be no further thread.
    Thread,
    /// What is on them was hashed with another key than what is in memory.
    OtherKey,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Count(count) => write!(f, "{count} disks; 1 to {MEMBERS_MAX} are allowed"),
            Self::Size(_, bytes) => {
                write!(f, "a disk of {bytes} bytes; {DISK_BYTES_MIN} are the least")
            }
            Self::Io(_, error) => write!(f, "{error}"),
            Self::Thread => f.write_str("no thread for a disk"),
            Self::OtherKey => f.write_str("what is on the disks has another hash key"),
        }
    }
}

impl std::error::Error for Error {}

/// The disks. Ends them when it is dropped: what is in the queues is written first.
#[derive(Debug)]
pub struct Disks {
    disks: Vec<Disk>,
    /// The bytes of each, which say how much of everything it gets.
    sizes: Vec<u64>,
    key: HashKey,
    contents: Vec<DirectoryContents>,
    threads: Option<Threads>,
}

impl Disks {
    /// Opens directories, each with the bytes that it may have. What they hold is found while they
    /// are used already, the newest first. `fresh` is random: the key of the cache, if it has none
    /// yet; `now_ms` the time of day.
    ///
    /// Costs a few system calls for each file, and syncs. Waits for no more than that.
    ///
    /// # Errors
    /// What is wrong with which.
    pub fn open(
        directories: Vec<(Arc<dyn DirectoryIo>, u64)>,
        callbacks: &Arc<dyn DiskCallbacks>,
        options: &DiskOptions,
        fresh: HashKey,
        now_ms: u64,
    ) -> Result<Self, Error> {
        if !(1..=MEMBERS_MAX).contains(&directories.len()) {
            return Err(Error::Count(directories.len()));
        }
        let sizes: Vec<u64> = directories.iter().map(|(_, bytes)| *bytes).collect();
        if let Some(place) = sizes.iter().position(|bytes| *bytes < DISK_BYTES_MIN) {
            return Err(Error::Size(place, sizes[place]));
        }
        let directories: Vec<_> = directories.into_iter().map(|(volume, _)| volume).collect();
        let found = for_each_disk(&directories, |_, volume| read_identity(&**volume))?;
        let (identities, contents) = plan_run(&found, fresh, now_ms);
        for_each_disk(&directories, |place, volume| match contents[place] {
            DirectoryContents::Kept => Ok(()),
            _ => remove_segments(&**volume),
        })?;
        // Only when each of them knows of this run has it begun.
        for_each_disk(&directories, |place, volume| write_identity(&**volume, &identities[place]))?;
        let disks = for_each_disk(&directories, |place, volume| {
            let (identity, contents) = (&identities[place], contents[place]);
            Disk::open(volume.clone(), sizes[place], identity, contents, place, callbacks, options)
        })?;
        let threads = match options.readers {
            0 => None,
            readers => Some(Threads::start(&disks, readers).map_err(|_| Error::Thread)?),
        };
        let key = identities[0].key;
        Ok(Self { disks, sizes, key, contents, threads })
    }

    /// The key that disks in these directories will have when they are opened, as far as it can be
    /// known: that of the oldest of them. `None`: they have none yet. Locks nothing, so whoever has
    /// them open may go on.
    pub fn hash_key_of(directories: &[&Path]) -> Option<HashKey> {
        let read = |path: &&Path| {
            let bytes = Directory::peek(path, IDENTITY, IDENTITY_BYTES_MAX)?;
            Identity::from_bytes(&bytes)
        };
        let found = directories.iter().filter_map(read);
        found.min_by_key(|identity| identity.made_ms).map(|identity| identity.key)
    }

    /// The key that everything in this cache has to be hashed with.
    pub fn hash_key(&self) -> HashKey {
        self.key
    }

    /// What was done with what each directory held.
    pub fn contents(&self) -> &[DirectoryContents] {
        &self.contents
    }

    /// The answers that are stored under a key, those of the disk that a further one would go to
    /// first. Costs a short lock for each disk, and no reading: it is for a worker.
    pub fn find(&self, key: Key) -> Vec<DiskHit> {
        let home = self.home_of(key);
        let mut found: Vec<DiskHit> = self.disks[home].find(key).collect();
        for (_, disk) in self.others_than(home) {
            for other in disk.find(key) {
                if found.iter().all(|candidate| candidate.id != other.id) {
                    found.push(other);
                }
            }
        }
        found
    }

    /// Whether what was found is still where it was found.
    pub fn has(&self, candidate: &DiskHit) -> bool {
        self.disks[candidate.disk].has(candidate)
    }

    /// Stores an answer, in the place of the one with the same id, which is not found any more from
    /// now on. It is found itself when it was written.
    ///
    /// # Errors
    /// The answer, where it is left out: there is too much to do, or it is too long. What it was to
    /// replace is gone nevertheless.
    pub fn store(&self, answer: Box<StoredResponse>) -> Result<(), Box<StoredResponse>> {
        let home = self.home_of(answer.id.key);
        for (_, disk) in self.others_than(home) {
            disk.forget(answer.id);
        }
        self.disks[home].store(answer)
    }

    /// Gives a stored answer other numbers and another head, after it was validated. Where there is
    /// too much to do, or that cannot be written, it is gone: those that it has may let it be used
    /// for longer.
    pub fn update(&self, id: ResponseId, meta: [u8; META_BYTES], head: &Arc<[u8]>) {
        self.disks.iter().for_each(|disk| disk.update(id, meta, head));
    }

    /// An answer is no longer to be had: it was made invalid. After a crash of the machine, but not
    /// of the process, it may come back if that happened a moment before.
    pub fn forget(&self, id: ResponseId) {
        self.disks.iter().for_each(|disk| disk.forget(id));
    }

    /// The same with all that a subject is about; or, if `is_soft`, it has to be validated before
    /// it is used.
    pub fn forget_all(&self, target: &PurgeTarget, is_soft: bool) {
        self.disks.iter().for_each(|disk| disk.purge(target, is_soft, None));
    }

    /// Waits while any of them has far too much to do, a second in all at most: before others than
    /// operators purge, with nothing locked.
    pub fn wait_for_room(&self) {
        let deadline = Instant::now() + PURGE_WAIT_MAX;
        for disk in &self.disks {
            disk.wait_for_room(deadline.saturating_duration_since(Instant::now()));
        }
    }

    /// Purges: what it is about is not had from now on any more, or if `is_soft`, has to be
    /// validated before it is used. `asker` is told when that will be so for good, whatever happens
    /// to the machine.
    pub fn purge(&self, target: &PurgeTarget, is_soft: bool, requester: WaiterId) {
        let rest = Mutex::new((self.disks.len(), true));
        let requester = Arc::new(PurgeWaiter { requester: requester, remaining: rest });
        for disk in &self.disks {
            disk.purge(target, is_soft, Some(requester.clone()));
        }
    }

    /// Begins to fetch an answer. What comes of it is told by [`Host::answered`].
    ///
    /// # Errors
    /// The wish, where it is left out: there is too much to do. The origin is asked.
    pub fn fetch(&self, fetch: Box<FetchRequest>) -> Result<(), Box<FetchRequest>> {
        self.disks[fetch.candidate.disk].fetch(fetch)
    }

    /// Reads some heads, from a cursor on, which is `Cursor::default()` at first; `asker` gets them.
    /// One that was replaced meanwhile may be told twice.
    pub fn list(&self, cursor: Cursor, requester: WaiterId) {
        match self.disks.get(cursor.disk) {
            Some(disk) => disk.list(cursor, self.disks.len(), requester),
            None => self.disks[0]
                .shared
                .callbacks
                .handle_reply(requester, DiskReply::Listed(vec![], None)),
        }
    }

    /// What each disk did, and has.
    pub fn stats(&self) -> Vec<DiskStats> {
        self.disks.iter().map(Disk::stats).collect()
    }

    /// Returns how many of the responses that recovery has found so far belong to none of `spaces`:
    /// their keys name a service that is not configured. Final once no disk is recovering.
    ///
    /// This is an upper bound: responses that a later purge of a prefix, a tag or everything covers
    /// are counted. Recovery does not read the names and tags that would show it.
    pub fn recovered_outside(&self, spaces: &[SpaceTag]) -> u64 {
        self.disks.iter().map(|disk| disk.recovered_outside(spaces)).sum()
    }

    /// Without threads: does one piece of the work of each disk, reading before writing. `false`:
    /// there was none.
    pub fn run_once(&self) -> bool {
        self.disks.iter().filter(|disk| disk.run_once()).count() > 0
    }

    fn others_than(&self, home: usize) -> impl Iterator<Item = (usize, &Disk)> {
        self.disks.iter().enumerate().filter(move |(place, _)| *place != home)
    }

    /// The disk that an answer goes to: each gets its share, and if one comes or goes, what goes to
    /// others stays the same (weighted rendezvous hashing).
    fn home_of(&self, key: Key) -> usize {
        if self.disks.len() == 1 {
            return 0;
        }
        let score = |place: usize| {
            let mut hasher = SipHasher13::new_with_key(&self.key.bytes());
            hasher.write_u128(key.0);
            hasher.write_u64(self.disks[place].shared.directory);
            let chance = (hasher.finish128().h1 >> 11) as f64 / (1_u64 << 53) as f64;
            -(self.sizes[place] as f64) / chance.max(f64::MIN_POSITIVE).ln()
        };
        let places = 0..self.disks.len();
        places.max_by(|one, other| score(*one).total_cmp(&score(*other))).unwrap_or(0)
    }
}

impl Drop for Disks {
    fn drop(&mut self) {
        self.disks.iter().for_each(Disk::abandon_fetches);
        drop(self.threads.take());
        self.disks.iter().for_each(Disk::close);
    }
}

fn for_each_disk<T, U>(
    of: &[T],
    mut what: impl FnMut(usize, &T) -> IoResult<U>,
) -> Result<Vec<U>, Error> {
    let all = of.iter().enumerate();
    all.map(|(place, one)| what(place, one).map_err(|error| Error::Io(place, error))).collect()
}

/// What a directory says of itself; `None` where it says nothing that can be read.
fn read_identity(volume: &dyn DirectoryIo) -> IoResult<Option<Identity>> {
    let file = match volume.open(IDENTITY) {
        Ok(file) => file,
        Err(Errno::NOENT) => return Ok(None),
        Err(error) => return Err(error),
    };
    // What cannot be read is as good as lost: everything is fetched again.
    let read = read_short(&*file, file.bytes()?, IDENTITY_BYTES_MAX);
    Ok(read.and_then(|bytes| Identity::from_bytes(&bytes)))
}

/// Writes what a directory is. Where the disk is full, the oldest segments make room for it.
fn write_identity(volume: &dyn DirectoryIo, identity: &Identity) -> IoResult<()> {
    let mut written = volume.replace(IDENTITY, &identity.to_bytes());
    if written == Err(Errno::NOSPC) || written == Err(Errno::DQUOT) {
        let mut names = volume.list()?;
        names.retain(|name| Segment::number_of(name).is_some());
        // The numbers in names have leading zeros.
        names.sort_unstable();
        for oldest in names {
            volume.remove(&oldest)?;
            written = volume.replace(IDENTITY, &identity.to_bytes());
            if written.is_ok() {
                break;
            }
        }
    }
    written
}

/// Removes every segment.
fn remove_segments(volume: &dyn DirectoryIo) -> IoResult<()> {
    for name in volume.list()? {
        if Segment::number_of(&name).is_some() {
            volume.remove(&name)?;
        }
    }
    volume.sync()
}
