//! What the process tells of its cache in numbers: one table for the metrics page, for programs at
//! the admin address and for people.

use millrace_store::Stat;

/// A number of the cache's.
pub(crate) struct Row {
    /// Its name; `cache_` goes before it on the metrics page.
    pub(crate) name: &'static str,
    pub(crate) help: &'static str,
    /// Whether it only grows.
    pub(crate) is_counter: bool,
    pub(crate) unit: Unit,
    pub(crate) read: fn(&Stat) -> u64,
}

/// What is counted.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unit {
    Things,
    Bytes,
}

/// A number of things; [`Row::help`] follows.
const fn gauge(name: &'static str, read: fn(&Stat) -> u64) -> Row {
    Row { name, help: "", is_counter: false, unit: Unit::Things, read }
}

/// A number of bytes.
const fn bytes(name: &'static str, read: fn(&Stat) -> u64) -> Row {
    Row { name, help: "", is_counter: false, unit: Unit::Bytes, read }
}

/// A number of things that only grows.
const fn counter(name: &'static str, read: fn(&Stat) -> u64) -> Row {
    Row { name, help: "", is_counter: true, unit: Unit::Things, read }
}

impl Row {
    const fn help(self, help: &'static str) -> Self {
        Self { help, ..self }
    }
}

/// All of them.
pub(crate) const ROWS: &[Row] = &[
    gauge("objects", |it| it.objects).help("Answers that are stored."),
    bytes("object_bytes", |it| it.bytes)
        .help("Bytes that stored answers count as, heads and bookkeeping included."),
    bytes("object_bytes_max", |it| it.bytes_max).help("Bytes that stored answers may count as."),
    counter("evictions", |it| it.evicted)
        .help("Stored answers let go to make room, expired ones among them."),
    counter("expirations", |it| it.expired)
        .help("Stored answers let go because nothing could be made of them any more."),
    counter("admissions_refused", |it| it.refused)
        .help("Answers not stored because they were large and nobody had asked for them twice."),
    counter("purged", |it| it.purged).help("Stored answers that operators purged."),
    bytes("memory_bytes", |it| it.slab.capacity).help("Memory in which bodies of answers rest."),
    bytes("memory_live_bytes", |it| it.slab.live).help("Of that memory, what is in use."),
    bytes("memory_free_bytes", |it| it.slab.free)
        .help("Of that memory, what can be written to at once."),
    bytes("memory_spoiled_bytes", |it| it.slab.spoiled).help(
        "Of that memory, what was sent by reference and waits until all of its block can be \
         recycled.",
    ),
    gauge("memory_small_blocks", |it| it.slab.small_blocks)
        .help("Blocks of that memory that the kernel would not make huge pages."),
    counter("memory_recycled_blocks", |it| it.slab.recycled)
        .help("Blocks of that memory that were given back to the kernel."),
    counter("memory_refusals", |it| {
        it.slab.refused_full + it.slab.refused_scattered + it.slab.refused_later
    })
    .help("Times that there was no memory for a body at once."),
    gauge("disk_objects", |it| it.disks.answers).help("Answers that are on disks, or about to be."),
    bytes("disk_bytes", |it| it.disks.bytes).help("Bytes of the disks' files."),
    gauge("disk_queue", |it| it.disks.queue).help("Jobs that wait for a disk."),
    gauge("disk_recovering", |it| it.disks.is_recovering.into())
        .help("1 while what earlier processes stored is still being found, 0 after."),
    counter("disk_fetched", |it| it.disks.fetched)
        .help("Answers that were brought from a disk into memory."),
    counter("disk_fetches_skipped", |it| it.disks.fetches_skipped)
        .help("Answers that a disk has, left to the origin: the disk had too much to do."),
    counter("disk_stored", |it| it.disks.stored).help("Answers that were written to a disk."),
    counter("disk_stores_skipped", |it| it.disks.stores_skipped).help(
        "Answers not written to a disk: it had too much to do, or had just failed, or they are too \
         long.",
    ),
    counter("disk_waits", |it| it.disks.waits)
        .help("Times that somebody had to wait for a disk, to have it forget something."),
    counter("disk_gone", |it| it.disks.gone)
        .help("Answers that were purged or displaced while they were asked of a disk."),
    counter("disk_damaged", |it| it.disks.damaged)
        .help("Records on disks that were not what had been written."),
    counter("disk_read_errors", |it| it.disks.read_errors).help("Reads that a disk failed at."),
    counter("disk_write_errors", |it| it.disks.write_errors)
        .help("Writes that a disk failed at, but for want of room."),
    counter("disk_full", |it| it.disks.full).help("Writes that a file system had no room for."),
    counter("disk_segments_dropped", |it| it.disks.dropped)
        .help("Segments of disks that were dropped to make room."),
    counter("disk_rewritten", |it| it.disks.rewritten).help(
        "Answers that were written again when their segment was dropped, as somebody had asked for \
         them.",
    ),
    counter("disk_purges_lost", |it| it.disks.lost_purges)
        .help("Times that all that was older on a disk was dropped, as a purge had been lost."),
];
