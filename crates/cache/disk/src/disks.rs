//! The disks of a cache: the public interface.

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

/// Why disks cannot be used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Error {
    /// The number of disks is 0 or too large.
    Count(usize),
    /// A disk is too small: its index in the order given, and its size in bytes.
    Size(usize, u64),
    /// A disk cannot be read or written: its index in the order given, and the error.
    Io(usize, Errno),
    /// A thread cannot be created.
    Thread,
    /// The disks have another hash key than the memory tier of the cache.
    OtherKey,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Count(count) => {
                write!(f, "invalid number of disks {count}: expected 1 to {MEMBERS_MAX}")
            }
            Self::Size(_, bytes) => {
                write!(f, "invalid disk size {bytes}: expected at least {DISK_BYTES_MIN} bytes")
            }
            Self::Io(_, error) => write!(f, "{error}"),
            Self::Thread => f.write_str("cannot create a thread for a disk"),
            Self::OtherKey => {
                f.write_str("the disks have another hash key than the cache in memory")
            }
        }
    }
}

impl std::error::Error for Error {}

/// The disks. Dropping this closes them, after their queues were written.
#[derive(Debug)]
pub struct Disks {
    disks: Vec<Disk>,
    /// The size of each in bytes, which determines its share of the responses.
    sizes: Vec<u64>,
    key: HashKey,
    contents: Vec<DirectoryContents>,
    threads: Option<Threads>,
}

impl Disks {
    /// Opens directories, each with its maximum size in bytes. They can be used at once, while
    /// their contents are recovered, newest first. `fresh` is a random key for a cache that has
    /// none yet; `now_ms` is the current time in milliseconds since 1970.
    ///
    /// Costs a few system calls per file and some syncs, and does not wait for anything else.
    ///
    /// # Errors
    /// The reason why the disks cannot be used.
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
        if let Some(index) = sizes.iter().position(|bytes| *bytes < DISK_BYTES_MIN) {
            return Err(Error::Size(index, sizes[index]));
        }
        let directories: Vec<_> = directories.into_iter().map(|(directory, _)| directory).collect();
        let found = for_each_disk(&directories, |_, directory| read_identity(&**directory))?;
        let (identities, contents) = plan_run(&found, fresh, now_ms);
        for_each_disk(&directories, |index, directory| match contents[index] {
            DirectoryContents::Kept => Ok(()),
            _ => remove_segments(&**directory),
        })?;
        // A run has begun only when every directory has recorded it.
        for_each_disk(&directories, |index, directory| {
            write_identity(&**directory, &identities[index])
        })?;
        let disks = for_each_disk(&directories, |index, directory| {
            let (identity, contents) = (&identities[index], contents[index]);
            Disk::open(
                directory.clone(),
                sizes[index],
                identity,
                contents,
                index,
                callbacks,
                options,
            )
        })?;
        let threads = match options.readers {
            0 => None,
            readers => Some(Threads::start(&disks, readers).map_err(|_| Error::Thread)?),
        };
        let key = identities[0].key;
        Ok(Self { disks, sizes, key, contents, threads })
    }

    /// Returns the hash key that [`Disks::open`] will use for these directories: of all keys that
    /// can be read, the one that was created first. `None` if no directory has a key yet. Takes no
    /// lock, so another process may use the directories.
    pub fn hash_key_of(directories: &[&Path]) -> Option<HashKey> {
        let read = |path: &&Path| {
            let bytes = Directory::peek(path, IDENTITY, IDENTITY_BYTES_MAX)?;
            Identity::from_bytes(&bytes)
        };
        let found = directories.iter().filter_map(read);
        found.min_by_key(|identity| identity.made_ms).map(|identity| identity.key)
    }

    /// Returns the key with which everything in this cache is hashed.
    pub fn hash_key(&self) -> HashKey {
        self.key
    }

    /// Returns what was done with the contents of each directory.
    pub fn contents(&self) -> &[DirectoryContents] {
        &self.contents
    }

    /// Returns the stored responses of a key. Each key has a disk for new responses; the responses
    /// on that disk come first. Takes a short lock per disk and reads no files, so workers may call
    /// it.
    pub fn find(&self, key: Key) -> Vec<DiskHit> {
        let home = self.home_of(key);
        let mut found: Vec<DiskHit> = self.disks[home].find(key).collect();
        for (_, disk) in self.others_than(home) {
            for other in disk.find(key) {
                if found.iter().all(|hit| hit.id != other.id) {
                    found.push(other);
                }
            }
        }
        found
    }

    /// Returns whether a response is still where it was found.
    pub fn has(&self, hit: &DiskHit) -> bool {
        self.disks[hit.disk].has(hit)
    }

    /// Stores a response and replaces the one with the same id, which is no longer found from now
    /// on. The new one is found once it is written.
    ///
    /// # Errors
    /// Returns the response if it is too long, or if the disk is overloaded or has the maximum
    /// number of responses. The old response with the same id is removed nevertheless.
    pub fn store(&self, response: Box<StoredResponse>) -> Result<(), Box<StoredResponse>> {
        let home = self.home_of(response.id.key);
        for (_, disk) in self.others_than(home) {
            disk.forget(response.id);
        }
        self.disks[home].store(response)
    }

    /// Replaces metadata and header of a stored response, after a validation. If the disk is
    /// overloaded or fails, the response is removed, because its old metadata may allow it to be
    /// used for longer.
    pub fn update(&self, id: ResponseId, meta: [u8; META_BYTES], head: &Arc<[u8]>) {
        self.disks.iter().for_each(|disk| disk.update(id, meta, head));
    }

    /// Removes a response that was invalidated. It may come back if the process fails before the
    /// removal is written, or if the machine fails before the next sync.
    pub fn forget(&self, id: ResponseId) {
        self.disks.iter().for_each(|disk| disk.forget(id));
    }

    /// Like [`Disks::forget`], for all responses of a target. If `is_soft`, makes them stale
    /// instead of removing them.
    pub fn forget_all(&self, target: &PurgeTarget, is_soft: bool) {
        self.disks.iter().for_each(|disk| disk.purge(target, is_soft, None));
    }

    /// Waits for queues that have reached their second mark, up to a second in total. Call this
    /// before [`Disks::forget_all`] and [`Disks::purge`], which do not wait. Do not hold a lock
    /// that other requests need.
    pub fn wait_for_room(&self) {
        let deadline = Instant::now() + PURGE_WAIT_MAX;
        for disk in &self.disks {
            disk.wait_for_room(deadline.saturating_duration_since(Instant::now()));
        }
    }

    /// Purges the responses of a target, at once for this process; if `is_soft`, makes them stale
    /// instead. `requester` gets [`DiskReply::Purged`] once every disk has synced the purge or has
    /// failed to.
    pub fn purge(&self, target: &PurgeTarget, is_soft: bool, requester: WaiterId) {
        let rest = Mutex::new((self.disks.len(), true));
        let requester = Arc::new(PurgeWaiter { requester, remaining: rest });
        for disk in &self.disks {
            disk.purge(target, is_soft, Some(requester.clone()));
        }
    }

    /// Starts to fetch a response. The results go to [`DiskCallbacks::handle_reply`].
    ///
    /// # Errors
    /// Returns the request if the disk is overloaded: the origin has to be used.
    pub fn fetch(&self, fetch: Box<FetchRequest>) -> Result<(), Box<FetchRequest>> {
        self.disks[fetch.hit.disk].fetch(fetch)
    }

    /// Starts to read some stored headers, beginning at a cursor; the first cursor is
    /// `Cursor::default()`. `requester` gets the headers. A response that is replaced meanwhile may
    /// be listed twice.
    pub fn list(&self, cursor: Cursor, requester: WaiterId) {
        match self.disks.get(cursor.disk) {
            Some(disk) => disk.list(cursor, self.disks.len(), requester),
            None => self.disks[0]
                .shared
                .callbacks
                .handle_reply(requester, DiskReply::Listed(vec![], None)),
        }
    }

    /// Returns the statistics of each disk.
    pub fn stats(&self) -> Vec<DiskStats> {
        self.disks.iter().map(Disk::stats).collect()
    }

    /// Returns the number of recovered responses whose key space is not in `spaces`. If `spaces`
    /// has the key spaces of all configured services, no service can use these responses. The
    /// number is final once no disk is recovering.
    ///
    /// The number is an upper bound. It includes responses that a purge rule covers, because
    /// recovery does not apply rules, and responses that were removed after they were counted.
    pub fn recovered_outside(&self, spaces: &[SpaceTag]) -> u64 {
        self.disks.iter().map(|disk| disk.recovered_outside(spaces)).sum()
    }

    /// Without threads: runs one piece of work of each disk, fetches before writes. Returns `false`
    /// if there was none.
    pub fn run_once(&self) -> bool {
        self.disks.iter().filter(|disk| disk.run_once()).count() > 0
    }

    fn others_than(&self, home: usize) -> impl Iterator<Item = (usize, &Disk)> {
        self.disks.iter().enumerate().filter(move |(index, _)| *index != home)
    }

    /// Returns the disk for responses of a key, by weighted rendezvous hashing. Each disk gets a
    /// share in proportion to its size. Adding or removing a disk does not move responses between
    /// the others.
    fn home_of(&self, key: Key) -> usize {
        if self.disks.len() == 1 {
            return 0;
        }
        let score = |index: usize| {
            let mut hasher = SipHasher13::new_with_key(&self.key.bytes());
            hasher.write_u128(key.0);
            hasher.write_u64(self.disks[index].shared.directory_number);
            let chance = (hasher.finish128().h1 >> 11) as f64 / (1_u64 << 53) as f64;
            -(self.sizes[index] as f64) / chance.max(f64::MIN_POSITIVE).ln()
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
    mut action: impl FnMut(usize, &T) -> IoResult<U>,
) -> Result<Vec<U>, Error> {
    let all = of.iter().enumerate();
    all.map(|(index, one)| action(index, one).map_err(|error| Error::Io(index, error))).collect()
}

/// Returns the identity of a directory; `None` if it has none that can be read.
fn read_identity(directory: &dyn DirectoryIo) -> IoResult<Option<Identity>> {
    let file = match directory.open(IDENTITY) {
        Ok(file) => file,
        Err(Errno::NOENT) => return Ok(None),
        Err(error) => return Err(error),
    };
    // An unreadable identity counts as missing, so the contents of the directory are dropped.
    let read = read_short(&*file, file.bytes()?, IDENTITY_BYTES_MAX);
    Ok(read.and_then(|bytes| Identity::from_bytes(&bytes)))
}

/// Writes the identity of a directory. If the disk is full, removes the oldest segments until it is
/// written.
fn write_identity(directory: &dyn DirectoryIo, identity: &Identity) -> IoResult<()> {
    let mut written = directory.replace(IDENTITY, &identity.to_bytes());
    if written == Err(Errno::NOSPC) || written == Err(Errno::DQUOT) {
        let mut names = directory.list()?;
        names.retain(|name| Segment::number_of(name).is_some());
        // The numbers in the names have leading zeros, so this is the order of the numbers.
        names.sort_unstable();
        for oldest in names {
            directory.remove(&oldest)?;
            written = directory.replace(IDENTITY, &identity.to_bytes());
            if written.is_ok() {
                break;
            }
        }
    }
    written
}

/// Removes all segments.
fn remove_segments(directory: &dyn DirectoryIo) -> IoResult<()> {
    for name in directory.list()? {
        if Segment::number_of(&name).is_some() {
            directory.remove(&name)?;
        }
    }
    directory.sync()
}
