//! The metrics of the cache: one table for the metrics page and for `cache stat`.

use millrace_proxy::counters::CounterKind;
use millrace_store::CacheStats;

/// A metric of the cache.
pub(crate) struct CacheMetric {
    /// The name; the metrics page puts `millrace_cache_` in front of it.
    pub(crate) name: &'static str,
    pub(crate) help: &'static str,
    pub(crate) kind: CounterKind,
    pub(crate) unit: CacheUnit,
    pub(crate) read: fn(&CacheStats) -> u64,
}

/// The unit of a metric.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum CacheUnit {
    Count,
    Bytes,
}

/// Creates a count that may decrease. [`CacheMetric::help`] adds its help text.
const fn gauge(name: &'static str, read: fn(&CacheStats) -> u64) -> CacheMetric {
    CacheMetric { name, help: "", kind: CounterKind::Gauge, unit: CacheUnit::Count, read }
}

/// Creates a number of bytes. [`CacheMetric::help`] adds its help text.
const fn bytes(name: &'static str, read: fn(&CacheStats) -> u64) -> CacheMetric {
    CacheMetric { name, help: "", kind: CounterKind::Gauge, unit: CacheUnit::Bytes, read }
}

/// Creates a count that never decreases. [`CacheMetric::help`] adds its help text.
const fn counter(name: &'static str, read: fn(&CacheStats) -> u64) -> CacheMetric {
    CacheMetric { name, help: "", kind: CounterKind::Counter, unit: CacheUnit::Count, read }
}

impl CacheMetric {
    const fn help(self, help: &'static str) -> Self {
        Self { help, ..self }
    }
}

/// All metrics of the cache.
pub(crate) const CACHE_METRICS: &[CacheMetric] = &[
    gauge("objects", |it| it.objects).help("Stored responses."),
    bytes("used_bytes", |it| it.bytes)
        .help("Size of the stored responses, including headers and bookkeeping."),
    bytes("max_bytes", |it| it.bytes_max).help("Limit of millrace_cache_used_bytes."),
    counter("evictions", |it| it.evicted)
        .help("Stored responses removed to make room, including expired ones."),
    counter("expirations", |it| it.expired)
        .help("Stored responses removed because they could no longer be served or validated."),
    counter("admissions_refused", |it| it.refused)
        .help("Large responses not stored because they had been requested only once."),
    counter("purged", |it| it.purged).help("Stored responses that an operator purged."),
    bytes("memory_bytes", |it| it.slab.capacity).help("Memory for the bodies of responses."),
    bytes("memory_live_bytes", |it| it.slab.live).help("Part of that memory that is in use."),
    bytes("memory_free_bytes", |it| it.slab.free)
        .help("Part of that memory that is free and ready to be written."),
    bytes("memory_tainted_bytes", |it| it.slab.tainted).help(
        "Part of that memory that was sent by reference and cannot be reused before its whole \
         block is recycled.",
    ),
    gauge("memory_small_page_blocks", |it| it.slab.small_page_blocks)
        .help("Blocks of that memory without huge pages."),
    counter("memory_blocks_recycled", |it| it.slab.recycled)
        .help("Blocks of that memory returned to the kernel."),
    counter("memory_allocation_failures", |it| {
        it.slab.refused_full + it.slab.refused_fragmented + it.slab.refused_not_ready
    })
    .help("Bodies for which no memory was available at once."),
    gauge("disk_objects", |it| it.disks.responses)
        .help("Responses that are on disk or queued for writing."),
    bytes("disk_bytes", |it| it.disks.bytes).help("Size of the files on the disks."),
    gauge("disk_queue", |it| it.disks.queued_jobs).help("Operations that wait for a disk."),
    gauge("disk_recovering", |it| it.disks.is_recovering.into())
        .help("1 while millrace scans the disks for responses of earlier processes, otherwise 0."),
    counter("disk_fetched", |it| it.disks.fetched).help("Responses read from a disk into memory."),
    counter("disk_fetches_skipped", |it| it.disks.fetches_skipped)
        .help("Responses on a disk that were requested from the origin because the disk was busy."),
    counter("disk_stored", |it| it.disks.stored).help("Responses written to a disk."),
    counter("disk_stores_skipped", |it| it.disks.stores_skipped).help(
        "Responses not written to a disk because the disk was busy or had just failed, or because \
         the response was too long.",
    ),
    counter("disk_waits", |it| it.disks.purge_waits)
        .help("Times that a thread waited for a disk to record a removal."),
    counter("disk_fetches_obsolete", |it| it.disks.fetches_gone)
        .help("Responses that were purged or replaced while a disk read them."),
    counter("disk_records_damaged", |it| it.disks.damaged_records)
        .help("Records on disks that differ from what was written."),
    counter("disk_read_errors", |it| it.disks.read_errors).help("Failed disk reads."),
    counter("disk_write_errors", |it| it.disks.write_errors)
        .help("Failed disk writes, syncs and removals, except writes to a full file system."),
    counter("disk_full", |it| it.disks.writes_without_space)
        .help("Disk writes that failed because the file system was full."),
    counter("disk_segments_dropped", |it| it.disks.dropped_segments).help(
        "Segments of disks that were dropped to make room, or because everything was purged.",
    ),
    counter("disk_rewritten", |it| it.disks.rewritten).help(
        "Responses that were written again when their segment was dropped, because clients had \
         requested them.",
    ),
    counter("disk_purges_lost", |it| it.disks.lost_purges).help(
        "Times that all older responses of a disk were dropped because a restart found that the \
         record of a purge was missing.",
    ),
];
