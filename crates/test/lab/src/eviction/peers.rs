//! The eviction policies of the comparison, behind one trait.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, DefaultHasher};

use foyer_memory::{
    Cache as Foyer, CacheBuilder, CacheProperties, EvictionConfig, LfuConfig, LruConfig,
    S3FifoConfig, SieveConfig,
};
use millrace_store::evict::{Eviction, NEVER, SHARDS_SKIPPED_MAX};

/// A hasher without a random key, so that all runs are equal.
type Hasher = BuildHasherDefault<DefaultHasher>;

/// A cache of objects that have sizes and no contents.
pub trait SizedCache {
    /// Looks up an object, and counts as a use of it. Returns whether it is there.
    fn get(&mut self, object: u32) -> bool;
    /// Offers an object that [`SizedCache::get`] did not find. The cache decides whether to keep
    /// it.
    fn insert(&mut self, object: u32, size: u64);
}

/// A policy of the comparison.
#[derive(Clone, Copy, Debug)]
pub struct ComparedPolicy {
    /// The name in the tables.
    pub name: &'static str,
    /// How the results are used.
    pub role: PolicyRole,
    /// Creates a cache of `capacity` bytes, for objects of `mean` bytes on average.
    pub make: fn(capacity: u64, mean: u64) -> Box<dyn SizedCache>,
}

/// How the results of a policy are used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PolicyRole {
    /// Compared with the best peer.
    Judged,
    /// Shown only.
    Shown,
    /// A policy of another crate.
    Peer,
}

pub(super) const LRU: ComparedPolicy = ComparedPolicy {
    name: "LRU (foyer)",
    role: PolicyRole::Peer,
    make: |capacity, _| foyer(capacity, LruConfig::default().into()),
};

pub(super) const SIEVE: ComparedPolicy = ComparedPolicy {
    name: "SIEVE (foyer)",
    role: PolicyRole::Peer,
    make: |capacity, _| foyer(capacity, SieveConfig.into()),
};

pub(super) const S3_FIFO: ComparedPolicy = ComparedPolicy {
    name: "S3-FIFO (foyer)",
    role: PolicyRole::Peer,
    make: |capacity, _| foyer(capacity, S3FifoConfig::default().into()),
};

/// The policies for responses, millrace's first.
pub const POLICIES: &[ComparedPolicy] = &[
    ComparedPolicy {
        name: "millrace",
        role: PolicyRole::Judged,
        make: |capacity, _| Box::new(MillracePolicy::new(capacity, 1)),
    },
    ComparedPolicy {
        name: "millrace, in shards",
        role: PolicyRole::Judged,
        make: |capacity, _| Box::new(MillracePolicy::new(capacity, Eviction::shards_for(capacity))),
    },
    LRU,
    SIEVE,
    S3_FIFO,
    ComparedPolicy { name: "W-TinyLFU (foyer)", role: PolicyRole::Peer, make: foyer_lfu },
    ComparedPolicy { name: "TinyLFU (moka)", role: PolicyRole::Peer, make: moka },
    ComparedPolicy { name: "Clock-PRO (quick_cache)", role: PolicyRole::Peer, make: quick },
];

/// Millrace's policy, as the cache's index uses it.
#[derive(Debug)]
pub struct MillracePolicy {
    shards: Vec<MillraceShard>,
    /// The handles of the objects, by object.
    handles: HashMap<u32, u32, Hasher>,
    capacity: u64,
    used: u64,
    /// The next shard to evict from.
    next_shard: usize,
}

#[derive(Debug)]
struct MillraceShard {
    eviction: Eviction,
    /// The objects, by handle.
    objects: Vec<u32>,
    free: Vec<u32>,
}

impl MillracePolicy {
    /// Creates `shards` instances that share `capacity` bytes.
    pub fn new(capacity: u64, shards: u32) -> Self {
        let shard = |eviction| MillraceShard { eviction, objects: Vec::new(), free: Vec::new() };
        Self {
            shards: Eviction::split(capacity, shards).into_iter().map(shard).collect(),
            handles: HashMap::default(),
            capacity,
            used: 0,
            next_shard: 0,
        }
    }

    fn evict(&mut self) {
        for tried in 0..self.shards.len() + SHARDS_SKIPPED_MAX {
            let next_shard = self.next_shard;
            self.next_shard = (next_shard + 1) % self.shards.len();
            let shard = &mut self.shards[next_shard];
            let before = shard.eviction.bytes();
            let evicted = match tried < SHARDS_SKIPPED_MAX {
                true => shard.eviction.evict_if_ripe(0),
                false => shard.eviction.evict(0),
            };
            if let Some(handle) = evicted {
                self.handles.remove(&shard.objects[handle as usize]);
                shard.free.push(handle);
                self.used -= before - shard.eviction.bytes();
                return;
            }
        }
    }
}

impl SizedCache for MillracePolicy {
    fn get(&mut self, object: u32) -> bool {
        let Some(&handle) = self.handles.get(&object) else { return false };
        let key = scatter(object);
        self.shards[key as usize % self.shards.len()].eviction.hit(handle);
        true
    }

    fn insert(&mut self, object: u32, size: u64) {
        let key = scatter(object);
        let index = key as usize % self.shards.len();
        let shard = &mut self.shards[index];
        if !shard.eviction.admit(key, size) {
            return;
        }
        let handle = shard.free.pop().unwrap_or(shard.objects.len() as u32);
        if handle as usize == shard.objects.len() {
            shard.objects.push(object);
        } else {
            shard.objects[handle as usize] = object;
        }
        shard.eviction.insert(handle, key, size, NEVER);
        self.handles.insert(object, handle);
        self.used += size;
        while self.used > self.capacity {
            self.evict();
        }
    }
}

/// Replaces the keyed hash of the proxy's index: the finaliser of SplitMix64.
fn scatter(object: u32) -> u64 {
    let mut bits = u64::from(object).wrapping_add(0x9e37_79b9_7f4a_7c15);
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

type FoyerCache = Foyer<u32, u64, Hasher, CacheProperties>;

fn foyer(capacity: u64, policy: EvictionConfig) -> Box<dyn SizedCache> {
    let cache: FoyerCache = CacheBuilder::new(capacity as usize)
        .with_shards(1)
        .with_eviction_config(policy)
        .with_hash_builder(Hasher::default())
        .with_weighter(|_: &u32, size: &u64| *size as usize)
        .build();
    Box::new(cache)
}

/// By default, foyer's count-min sketch is made for 2,700 objects. Here it has eight buckets for
/// each object in the cache.
fn foyer_lfu(capacity: u64, mean: u64) -> Box<dyn SizedCache> {
    let buckets = (capacity / mean).max(1_000) as f64 * 8.0;
    let policy = LfuConfig { cmsketch_eps: std::f64::consts::E / buckets, ..LfuConfig::default() };
    foyer(capacity, policy.into())
}

impl SizedCache for FoyerCache {
    fn get(&mut self, object: u32) -> bool {
        Foyer::get(self, &object).is_some()
    }

    fn insert(&mut self, object: u32, size: u64) {
        drop(Foyer::insert(self, object, size));
    }
}

type MokaCache = moka::sync::Cache<u32, u64, Hasher>;

fn moka(capacity: u64, _: u64) -> Box<dyn SizedCache> {
    let cache: MokaCache = moka::sync::Cache::builder()
        .max_capacity(capacity)
        .weigher(|_, size: &u64| u32::try_from(*size).unwrap_or(u32::MAX))
        .build_with_hasher(Hasher::default());
    Box::new(cache)
}

impl SizedCache for MokaCache {
    fn get(&mut self, object: u32) -> bool {
        moka::sync::Cache::get(self, &object).is_some()
    }

    fn insert(&mut self, object: u32, size: u64) {
        moka::sync::Cache::insert(self, object, size);
        // Do pending work now, so that all runs are equal. The cache would do it in batches at
        // times of its own.
        self.run_pending_tasks();
    }
}

/// The weight of an object is its size.
#[derive(Clone)]
struct Weight;

impl quick_cache::Weighter<u32, u64> for Weight {
    fn weight(&self, _: &u32, size: &u64) -> u64 {
        *size
    }
}

type QuickCache = quick_cache::unsync::Cache<u32, u64, Weight, Hasher>;

fn quick(capacity: u64, mean: u64) -> Box<dyn SizedCache> {
    let items = (capacity / mean).max(1) as usize;
    let cache: QuickCache = quick_cache::unsync::Cache::with(
        items,
        capacity,
        Weight,
        Hasher::default(),
        Default::default(),
    );
    Box::new(cache)
}

impl SizedCache for QuickCache {
    fn get(&mut self, object: u32) -> bool {
        quick_cache::unsync::Cache::get(self, &object).is_some()
    }

    fn insert(&mut self, object: u32, size: u64) {
        quick_cache::unsync::Cache::insert(self, object, size);
    }
}
