//! The identity of a directory: the secret key of the cache, and the last run that it recorded.
//!
//! Directories may be removed and added again. Responses that were purged or replaced meanwhile
//! must not come back with them. So each start of the cache, a *run*, is recorded in every
//! directory before anything is served. A directory that missed a run loses its contents.

use std::hash::Hasher;

use siphasher::sip128::{Hasher128, SipHasher13};

use millrace_http_cache::HashKey;

/// The identity of a directory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Identity {
    pub(super) key: HashKey,
    /// Its own random number.
    pub(super) directory: u64,
    /// When the cache with this key was created, in milliseconds since 1970.
    pub(super) made_ms: u64,
    /// The number of the last run that this directory recorded, at least 1.
    pub(super) run: u64,
    /// The directories of that run.
    pub(super) members: Vec<u64>,
}

/// The name of the identity file.
pub(super) const IDENTITY: &str = "identity";

/// The maximum length of the identity file.
pub(super) const IDENTITY_BYTES_MAX: usize = 64 + 8 * MEMBERS_MAX;

/// The maximum number of directories of a cache.
pub(super) const MEMBERS_MAX: usize = 64;

const MAGIC: [u8; 8] = *b"mr-dir\x02\n";

impl Identity {
    pub(super) fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend_from_slice(&self.key.bytes());
        for number in [self.directory, self.made_ms, self.run] {
            bytes.extend_from_slice(&number.to_le_bytes());
        }
        for member in &self.members {
            bytes.extend_from_slice(&member.to_le_bytes());
        }
        bytes.extend_from_slice(&crc32c::crc32c(&bytes).to_le_bytes());
        bytes
    }

    /// Decodes the result of [`Identity::to_bytes`]; `None` for any other bytes.
    pub(super) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (bytes, sum) = bytes.split_last_chunk::<4>()?;
        if crc32c::crc32c(bytes).to_le_bytes() != *sum {
            return None;
        }
        let rest = bytes.strip_prefix(&MAGIC)?;
        let (key, rest) = rest.split_first_chunk::<16>()?;
        let (numbers, []) = rest.as_chunks::<8>() else { return None };
        let mut numbers = numbers.iter().map(|number| u64::from_le_bytes(*number));
        let identity = Self {
            key: HashKey::new(*key),
            directory: numbers.next()?,
            made_ms: numbers.next()?,
            run: numbers.next()?,
            members: numbers.collect(),
        };
        let is_sound = identity.members.len() <= MEMBERS_MAX
            && identity.members.contains(&identity.directory)
            && (1..u64::MAX).contains(&identity.run);
        is_sound.then_some(identity)
    }
}

/// The treatment of the contents of a directory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DirectoryContents {
    /// They are kept.
    Kept,
    /// They are dropped, if there are any. The directory has no readable identity. It is new, its
    /// identity is damaged, or an earlier run removed the identity because it could not write a
    /// purge or remove a segment.
    New,
    /// They are dropped: they belong to a cache with another key.
    OtherKey,
    /// They are dropped: the directory missed runs of the cache, and with them purges and
    /// replacements.
    MissedRuns,
}

/// Returns the identities of the directories for the next run, and what is done with their
/// contents. `fresh` is a random key for a cache that has none yet.
pub(super) fn plan_run(
    found: &[Option<Identity>],
    fresh: HashKey,
    now_ms: u64,
) -> (Vec<Identity>, Vec<DirectoryContents>) {
    let oldest = found.iter().flatten().min_by_key(|identity| identity.made_ms);
    let key = oldest.map_or(fresh, |identity| identity.key);
    let made_ms = oldest.map_or(now_ms, |identity| identity.made_ms);
    let of_this_cache: Vec<&Identity> =
        found.iter().flatten().filter(|one| one.key == key).collect();
    let run = of_this_cache.iter().map(|identity| identity.run).max().unwrap_or(0) + 1;
    let latest = of_this_cache
        .iter()
        .map(|identity| last_run_of(identity, &of_this_cache))
        .max()
        .unwrap_or(0);
    let contents: Vec<DirectoryContents> = found
        .iter()
        .map(|identity| match identity {
            None => DirectoryContents::New,
            Some(identity) if identity.key != key => DirectoryContents::OtherKey,
            Some(identity) if last_run_of(identity, &of_this_cache) < latest => {
                DirectoryContents::MissedRuns
            }
            Some(_) => DirectoryContents::Kept,
        })
        .collect();
    let numbers: Vec<u64> = found
        .iter()
        .enumerate()
        .map(|(index, identity)| match identity {
            // A copied directory has the number of its original: both get new ones.
            Some(identity) if has_unique_number(identity, found) => identity.directory,
            _ => number(fresh, index, now_ms),
        })
        .collect();
    let identities = numbers
        .iter()
        .map(|&directory| Identity { key, directory, made_ms, run, members: numbers.clone() })
        .collect();
    (identities, contents)
}

/// Returns the last run in which a directory took part. This is the run that it recorded, or the
/// one before if another member did not record that run: a run begins only after all its
/// directories have recorded it.
fn last_run_of(identity: &Identity, of_this_cache: &[&Identity]) -> u64 {
    let lacks_run = |other: &&&Identity| {
        identity.members.contains(&other.directory) && other.run < identity.run
    };
    identity.run - u64::from(of_this_cache.iter().any(|other| lacks_run(&other)))
}

fn has_unique_number(identity: &Identity, found: &[Option<Identity>]) -> bool {
    let same = |other: &&Identity| other.directory == identity.directory;
    found.iter().flatten().filter(same).count() == 1
}

fn number(fresh: HashKey, index: usize, now_ms: u64) -> u64 {
    let mut hasher = SipHasher13::new_with_key(&fresh.bytes());
    hasher.write(b"mr-disk directory");
    hasher.write_u64(index as u64);
    hasher.write_u64(now_ms);
    hasher.finish128().h1
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: HashKey = HashKey::new([1; 16]);
    const FRESH: HashKey = HashKey::new([2; 16]);

    fn one(directory: u64, run: u64, members: &[u64]) -> Option<Identity> {
        Some(Identity { key: KEY, directory, made_ms: 5, run, members: members.to_vec() })
    }

    fn contents(found: &[Option<Identity>]) -> Vec<DirectoryContents> {
        let (identities, contents) = plan_run(found, FRESH, 100);
        assert!(identities.iter().all(|identity| identity.run == identities[0].run));
        assert!(found.iter().flatten().all(|before| before.run < identities[0].run));
        contents
    }

    #[test]
    fn identities_round_trip_and_other_bytes_are_rejected() {
        let identity = one(7, 3, &[7, 8]).unwrap();
        let bytes = identity.to_bytes();
        assert_eq!(Identity::from_bytes(&bytes), Some(identity));
        for at in 0..bytes.len() {
            let mut flipped = bytes.clone();
            flipped[at] ^= 16;
            assert_eq!(Identity::from_bytes(&flipped), None);
            assert_eq!(Identity::from_bytes(&bytes[..at]), None);
        }
    }

    #[test]
    fn directories_that_missed_nothing_are_kept() {
        assert_eq!(contents(&[None, None]), [DirectoryContents::New; 2]);
        assert_eq!(
            contents(&[one(1, 4, &[1, 2]), one(2, 4, &[1, 2])]),
            [DirectoryContents::Kept; 2]
        );
        assert_eq!(contents(&[one(1, 4, &[1, 2])]), [DirectoryContents::Kept]);
        assert_eq!(
            contents(&[None, one(2, 4, &[1, 2])]),
            [DirectoryContents::New, DirectoryContents::Kept],
            "one directory was emptied"
        );
    }

    #[test]
    fn a_directory_that_missed_a_run_is_dropped() {
        let found = [one(1, 5, &[1]), one(2, 4, &[1, 2])];
        assert_eq!(contents(&found), [DirectoryContents::Kept, DirectoryContents::MissedRuns]);
        let found = [one(1, 6, &[1, 2]), one(2, 6, &[1, 2]), one(3, 2, &[3])];
        assert_eq!(
            contents(&found),
            [DirectoryContents::Kept, DirectoryContents::Kept, DirectoryContents::MissedRuns]
        );
    }

    #[test]
    fn a_run_that_did_not_begin_does_not_count_as_missed() {
        let found = [one(1, 5, &[1, 2]), one(2, 4, &[1, 2])];
        assert_eq!(contents(&found), [DirectoryContents::Kept; 2]);
        let found = [one(1, 5, &[1, 2, 3]), one(2, 4, &[1, 2]), None];
        assert_eq!(
            contents(&found),
            [DirectoryContents::Kept, DirectoryContents::Kept, DirectoryContents::New]
        );
    }

    #[test]
    fn the_older_key_wins() {
        let other = Identity { key: FRESH, made_ms: 4, ..one(9, 1, &[9]).unwrap() };
        let found = [one(1, 5, &[1]), Some(other), one(1, 5, &[1])];
        let (identities, contents) = plan_run(&found, HashKey::new([9; 16]), 100);
        assert_eq!(
            contents,
            [DirectoryContents::OtherKey, DirectoryContents::Kept, DirectoryContents::OtherKey]
        );
        assert!(identities.iter().all(|one| one.key == FRESH && one.made_ms == 4 && one.run == 2));
        let numbers: std::collections::HashSet<u64> =
            identities.iter().map(|one| one.directory).collect();
        assert_eq!(numbers.len(), 3, "copied directories get new numbers");
    }
}
