//! Costs of memory operations. Run `cargo bench -p iolite --bench iolite`, optionally followed by
//! `--` and some of `queued`, `fill`, `send`, `checksum`, `codings` (needs the feature of that
//! name), `share` and `churn`; the default is all. Each cost is CPU time of the thread that does
//! the work: the median of [`ROUNDS`] rounds, followed by minimum and maximum.
//! docs/design/iolite.md has a run.

use std::collections::{HashMap, VecDeque};
use std::hint::black_box;
use std::io::Read;
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use iolite::limits::BLOCK_BYTES;
use iolite::{Aggregate, AllocError, Buffer, MemoryKind, PrefaultOutcome, Slab, Slice, Sum};
use millrace_sys::MappedRegion;
use rand_core::{Rng, SeedableRng};
use rand_pcg::Pcg64Mcg;

/// Measurements per figure.
const ROUNDS: usize = 7;
const MEGABYTE: usize = 1 << 20;
/// Size of the memory from which cold objects are sent: more than the CPU's caches hold.
const COLD_BYTES: usize = 64 * MEGABYTE;

fn main() {
    // Cargo adds this option.
    let wanted: Vec<String> = std::env::args().skip(1).filter(|name| name != "--bench").collect();
    let parts: &[(&str, fn())] = &[
        ("queued", queued),
        ("fill", fill),
        ("send", send),
        ("checksum", checksum),
        #[cfg(feature = "codings")]
        ("codings", codings),
        ("share", share),
        ("churn", churn),
    ];
    for (name, part) in parts {
        if wanted.is_empty() || wanted.iter().any(|wanted| wanted == *name) {
            println!("\n{name}");
            part();
        }
    }
}

/// Returns the CPU time of `work` in microseconds, divided by its result.
fn cost(work: impl FnOnce() -> f64) -> f64 {
    let before = millrace_sys::thread_cpu_time();
    let count = work();
    (millrace_sys::thread_cpu_time() - before).as_secs_f64() * 1e6 / count
}

/// Returns the CPU time of `work` in microseconds, averaged over `count` runs.
fn repeated<T>(count: usize, work: impl Fn() -> T) -> f64 {
    cost(|| {
        (0..count).for_each(|_| _ = black_box(work()));
        count as f64
    })
}

fn report(what: &str, unit: &str, mut round: impl FnMut() -> f64) {
    let mut costs: Vec<f64> = (0..ROUNDS).map(|_| round()).collect();
    costs.sort_by(f64::total_cmp);
    let [least, median, most] = [costs[0], costs[ROUNDS / 2], costs[ROUNDS - 1]];
    println!("  {what:<44} {median:>10.3} {unit:<8} ({least:.3} to {most:.3})");
}

/// A mapped file of `bytes`, not populated.
struct MemoryFile {
    file: OwnedFd,
    region: MappedRegion,
}

impl MemoryFile {
    fn new(bytes: usize) -> Self {
        let file = millrace_sys::create_memory_file("bench", bytes as u64).expect("a file");
        let mut region = MappedRegion::reserve(bytes).expect("addresses");
        region.map(0, file.as_fd(), bytes).expect("a mapping");
        Self { file, region }
    }
}

/// Prints how many bytes in a socket queue change when their memory is punched or overwritten.
fn queued() {
    let punch_all: &dyn Fn(&MemoryFile) = &|of| punch(of, BLOCK_BYTES);
    let punch_part: &dyn Fn(&MemoryFile) = &|of| punch(of, 64 * 1024);
    let overwrite: &dyn Fn(&MemoryFile) = &|of| write(of, 0xee, 64 * 1024);
    let cases = [
        ("4 KB pages, part of the block punched", false, punch_part),
        ("a huge page, part of it punched", true, punch_part),
        ("a huge page, punched as a whole", true, punch_all),
        ("a huge page, overwritten in place", true, overwrite),
    ];
    for (what, huge, change) in cases {
        let memory_file = MemoryFile::new(BLOCK_BYTES);
        memory_file.region.populate(0, if huge { 4096 } else { BLOCK_BYTES }).expect("memory");
        if huge {
            memory_file.region.collapse(0, BLOCK_BYTES).expect("a huge page");
        }
        write(&memory_file, 0x55, 64 * 1024);
        let (mut far, near) = std::os::unix::net::UnixStream::pair().expect("two sockets");
        let sent = millrace_sys::sendfile(near.as_fd(), memory_file.file.as_fd(), 0, 64 * 1024);
        let sent = sent.expect("a new socket has room");
        change(&memory_file);
        let mut bytes = vec![0; sent];
        far.read_exact(&mut bytes).expect("sent bytes");
        let wrong = bytes.iter().filter(|byte| **byte != 0x55).count();
        println!("  {what:<44} {wrong:>10} wrong bytes of {sent}");
    }
}

fn punch(memory_file: &MemoryFile, bytes: usize) {
    millrace_sys::punch_hole(memory_file.file.as_fd(), 0, bytes as u64)
        .expect("the file is not sealed");
}

fn write(memory_file: &MemoryFile, byte: u8, bytes: usize) {
    // SAFETY: the beginning of the region is mapped, and nothing else uses it.
    unsafe { memory_file.region.start().write_bytes(byte, bytes) };
}

/// The cost of populating and filling memory.
fn fill() {
    let source = vec![0x5a_u8; BLOCK_BYTES];
    let megabytes = (BLOCK_BYTES / MEGABYTE) as f64;
    report("write to unpopulated memory", "us/MB", || {
        let memory_file = MemoryFile::new(BLOCK_BYTES);
        cost(|| {
            write(&memory_file, 0x5a, BLOCK_BYTES);
            megabytes
        })
    });
    let cost_of = |how: &dyn Fn(&MappedRegion)| {
        let memory_file = MemoryFile::new(BLOCK_BYTES);
        cost(|| {
            how(&memory_file.region);
            megabytes
        })
    };
    let populate = |of: &MappedRegion, bytes| of.populate(0, bytes).expect("memory");
    let collapse = |of: &MappedRegion| of.collapse(0, BLOCK_BYTES).expect("a huge page");
    report("populate with 4 KB pages", "us/MB", || cost_of(&|of| populate(of, BLOCK_BYTES)));
    report("populate, then collapse", "us/MB", || {
        cost_of(&|of| {
            populate(of, BLOCK_BYTES);
            collapse(of);
        })
    });
    report("populate a page, then collapse and populate", "us/MB", || {
        cost_of(&|of| {
            populate(of, 4096);
            collapse(of);
            populate(of, BLOCK_BYTES);
        })
    });
    let slab = Slab::new(64 * BLOCK_BYTES).expect("a slab");
    for (what, kind, bytes) in [
        ("store and drop 1 KB in warm memory", MemoryKind::Copied, 1024),
        ("store and drop 8 KB in warm memory", MemoryKind::Copied, 8192),
        ("store and drop 64 KB in warm memory", MemoryKind::ZeroCopy, 64 * 1024),
        ("store and drop 1 MB in warm memory", MemoryKind::ZeroCopy, MEGABYTE),
    ] {
        let count = 16 * MEGABYTE / bytes;
        report(what, "us", || repeated(count, || store(&slab, kind, &source[..bytes])));
        report("  the same bytes copied to one place", "us", || {
            let mut place = vec![0; bytes];
            cost(|| {
                (0..count).for_each(|_| black_box(&mut place).copy_from_slice(&source[..bytes]));
                count as f64
            })
        });
    }
    report("recycle and populate a block (prefault thread)", "us/MB", || {
        // All ready blocks are taken first, so that the prefault call recycles the tainted block.
        let slice = store(&slab, MemoryKind::ZeroCopy, &source);
        black_box(slice.sendfile_source());
        let held = take_ready(&slab);
        drop(slice);
        let cost = cost(|| {
            assert_eq!(slab.prefault(), PrefaultOutcome::Prefaulted);
            megabytes
        });
        drop(held);
        cost
    });
}

fn store(slab: &Slab, kind: MemoryKind, bytes: &[u8]) -> Slice {
    loop {
        match slab.allocate(kind, bytes.len()..=bytes.len(), 0) {
            Ok(mut buffer) => {
                buffer.write(bytes);
                return buffer.freeze();
            }
            Err(AllocError::NotReady) => drop(slab.prefault()),
            Err(error) => panic!("{error}"),
        }
    }
}

fn take_ready(slab: &Slab) -> Vec<Buffer> {
    let whole = BLOCK_BYTES..=BLOCK_BYTES;
    std::iter::from_fn(|| slab.allocate(MemoryKind::ZeroCopy, whole.clone(), 0).ok()).collect()
}

/// The sender's cost of sending to a reader on the same machine.
fn send() {
    let source = vec![0x5a_u8; COLD_BYTES];
    let files = [("4 KB pages", false), ("huge pages", true)].map(|(name, huge)| {
        let memory_file = MemoryFile::new(COLD_BYTES);
        memory_file.region.populate(0, COLD_BYTES).expect("memory");
        if huge {
            memory_file.region.collapse(0, COLD_BYTES).expect("huge pages");
            memory_file.region.populate(0, COLD_BYTES).expect("memory");
        }
        write(&memory_file, 0x5a, COLD_BYTES);
        (name, memory_file)
    });
    for (name, bytes) in [("8 KB", 8192), ("64 KB", 65_536), ("1 MB", MEGABYTE)] {
        for (heat, span) in [("hot", bytes), ("cold", COLD_BYTES)] {
            report(&format!("{name} {heat}, copied"), "us", || {
                cost_of_sending(bytes, span, |socket, at, rest| {
                    millrace_sys::send(socket, &[&source[at..at + rest]], false)
                })
            });
            for (pages, memory_file) in &files {
                report(&format!("{name} {heat}, zero-copy from {pages}"), "us", || {
                    cost_of_sending(bytes, span, |socket, at, rest| {
                        millrace_sys::sendfile(socket, memory_file.file.as_fd(), at as u64, rest)
                    })
                });
            }
        }
    }
}

/// Sends objects of `bytes`, consecutive in a span, over a new connection, and returns the sender's
/// microseconds per object. `send` gets a socket, an offset and the remaining length.
fn cost_of_sending(
    bytes: usize,
    span: usize,
    send: impl Fn(BorrowedFd<'_>, usize, usize) -> millrace_sys::Result<usize>,
) -> f64 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let near = TcpStream::connect(listener.local_addr().expect("its address"))
        .expect("the listener accepts");
    let (mut far, _) = listener.accept().expect("a client has connected");
    millrace_sys::set_congestion(near.as_fd(), "cubic").expect("every kernel has cubic");
    let reader = std::thread::spawn(move || {
        let mut room = vec![0; 256 * 1024];
        while far.read(&mut room).is_ok_and(|count| count > 0) {}
    });
    let count = (32 * MEGABYTE / bytes).min(2000);
    let pass = |count: usize| {
        for object in 0..count {
            let (mut at, end) = (object * bytes % span, object * bytes % span + bytes);
            while at < end {
                at += send(near.as_fd(), at, end - at).expect("the reader reads");
            }
        }
    };
    pass(count / 4);
    let cost = cost(|| {
        pass(count);
        count as f64
    });
    drop(near);
    reader.join().expect("the reader ends with the connection");
    cost
}

/// The savings when a derived value is found again.
fn checksum() {
    let slab = Slab::new(16 * BLOCK_BYTES).expect("a slab");
    for (name, bytes) in [("1 KB", 1024), ("8 KB", 8192), ("64 KB", 65_536), ("1 MB", MEGABYTE)] {
        let slice = store(&slab, MemoryKind::ZeroCopy, &vec![0x5a; bytes]);
        let count = 64 * MEGABYTE / bytes;
        report(&format!("{name}, Internet checksum computed"), "us", || {
            repeated(count, || Sum::of(black_box(&slice)))
        });
        report(&format!("{name}, Internet checksum found"), "us", || {
            repeated(100_000, || black_box(&slice).sum())
        });
        report(&format!("{name}, CRC-32C computed"), "us", || {
            repeated(count, || crc32c::crc32c(black_box(&slice)))
        });
    }
}

/// The savings when a content coding, the most expensive derived value, is found again.
#[cfg(feature = "codings")]
fn codings() {
    use iolite::Coding;

    let slab = Slab::new(16 * BLOCK_BYTES).expect("a slab");
    let text: Vec<u8> = (0..)
        .flat_map(|number: u32| format!("<li>number {number} of many</li>\n").into_bytes())
        .take(8192)
        .collect();
    for coding in Coding::ALL {
        let coded = |slice: &Slice| {
            slice.coded(coding, &slab, MemoryKind::Copied, 0).expect("there is room")
        };
        report(&format!("8 KB of text, {} computed", coding.name()), "us", || {
            repeated(200, || coded(black_box(&store(&slab, MemoryKind::Copied, &text))))
        });
        let slice = store(&slab, MemoryKind::Copied, &text);
        report(&format!("8 KB of text, {} found", coding.name()), "us", || {
            repeated(100_000, || coded(black_box(&slice)))
        });
    }
}

/// The cost of cloning and dropping a slice, and of storing, alone and beside another worker.
fn share() {
    let slab = Slab::new(16 * BLOCK_BYTES).expect("a slab");
    let bytes = vec![0x5a; 4096];
    let (shared, own) =
        (store(&slab, MemoryKind::Copied, &bytes), store(&slab, MemoryKind::Copied, &bytes));
    let hold = |slice: &Slice| repeated(200_000, || slice.clone());
    let store_page = |kind| repeated(20_000, || store(&slab, kind, &bytes));
    report("clone a slice, alone", "us", || hold(&shared));
    report("clone a slice, another worker clones another", "us", || {
        beside(|| hold(&own), || hold(&shared))
    });
    report("clone a slice, another worker clones it too", "us", || {
        beside(|| hold(&shared), || hold(&shared))
    });
    report("store and drop 4 KB, alone", "us", || store_page(MemoryKind::Copied));
    report("store and drop 4 KB, another worker stores too", "us", || {
        beside(|| store_page(MemoryKind::Copied), || store_page(MemoryKind::Copied))
    });
}

/// Returns the cost of `work` while another thread repeats `other`.
fn beside(other: impl Fn() -> f64 + Sync, work: impl Fn() -> f64) -> f64 {
    let (begun, done) = (AtomicBool::new(false), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                other();
                begun.store(true, Ordering::Relaxed);
            }
        });
        while !begun.load(Ordering::Relaxed) {
            std::thread::yield_now();
        }
        let cost = work();
        done.store(true, Ordering::Relaxed);
        cost
    })
}

/// Stores objects in a full slab and drops the oldest ones; some get a second chance. Prints how
/// much of the slab is used, and how many bytes evacuations copy for that.
fn churn() {
    for (sent, kept) in [(0, 0), (30, 0), (30, 30), (100, 30)] {
        let mut store = Store::new(sent, kept);
        let capacity = store.slab.stats().capacity as f64;
        while (store.stored as f64) < 3.0 * capacity {
            store.put();
        }
        let warm = (store.stored, store.copied, store.lost, store.slab.stats().recycled);
        let (mut used, mut count) = (0.0, 0.0);
        while (store.stored as f64) < 8.0 * capacity {
            store.put();
            used += store.slab.stats().live as f64 / capacity;
            count += 1.0;
        }
        let stored = (store.stored - warm.0) as f64;
        let recycled = (store.slab.stats().recycled - warm.3) * BLOCK_BYTES as u64;
        println!(
            "  {sent:>3} % sent, {kept:>2} % kept: {:>3.0} % held; for a byte stored {:.2} copied, \
             {:.2} lost, {:.2} recycled",
            used / count * 100.0,
            (store.copied - warm.1) as f64 / stored,
            (store.lost - warm.2) as f64 / stored,
            recycled as f64 / stored,
        );
    }
}

/// A cache without keys that evicts the oldest object first.
struct Store {
    slab: Slab,
    objects: HashMap<u64, Aggregate>,
    order: VecDeque<u64>,
    random: Pcg64Mcg,
    bytes: Vec<u8>,
    /// Percent of the objects that are sent zero-copy.
    sent: u64,
    /// Percent of the objects that get a second chance instead of being dropped.
    kept: u64,
    stored: u64,
    copied: u64,
    /// Bytes of objects that were dropped because there was no memory for a copy.
    lost: u64,
}

impl Store {
    fn new(sent: u64, kept: u64) -> Self {
        let slab = Slab::new(64 * BLOCK_BYTES).expect("a slab");
        let (objects, order) = (HashMap::new(), VecDeque::new());
        let (random, bytes) = (Pcg64Mcg::seed_from_u64(1), vec![0x5a; MEGABYTE]);
        Self { slab, objects, order, random, bytes, sent, kept, stored: 0, copied: 0, lost: 0 }
    }

    fn happens(&mut self, share: u64) -> bool {
        self.random.next_u64() % 100 < share
    }

    /// Stores an object of 1 KB to 1 MB, each power of two equally likely.
    fn put(&mut self) {
        let length =
            (1024 << (self.random.next_u64() % 10)) + self.random.next_u64() as usize % 1024;
        let (kind, tag) = (kind_of(length as u64), self.stored);
        let mut body = Aggregate::new();
        while body.len() < length as u64 {
            let rest = length - body.len() as usize;
            match self.slab.allocate(kind, rest.min(65_536)..=rest.min(262_144), tag) {
                Ok(mut buffer) => {
                    buffer.write(&self.bytes[..rest]);
                    body.append(buffer.freeze());
                }
                Err(AllocError::NotReady) => drop(self.slab.prefault()),
                Err(AllocError::Full) => self.drop_oldest(),
                Err(AllocError::Fragmented) => self.evacuate(),
            }
        }
        if self.happens(self.sent) {
            body.slices().for_each(|slice| _ = black_box(slice.sendfile_source()));
        }
        self.stored += length as u64;
        self.objects.insert(tag, body);
        self.order.push_back(tag);
    }

    fn drop_oldest(&mut self) {
        let Some(oldest) = self.order.pop_front() else { return };
        if self.happens(self.kept) {
            self.order.push_back(oldest);
        } else {
            self.objects.remove(&oldest);
        }
    }

    /// Evacuates the block with the fewest bytes in use.
    fn evacuate(&mut self) {
        let Some(tags) = self.slab.start_evacuation() else { return self.drop_oldest() };
        for tag in tags {
            let Some(body) = self.objects.remove(&tag) else { continue };
            if let Ok(copy) = body.copy(&self.slab, kind_of(body.len()), tag) {
                self.copied += copy.len();
                self.objects.insert(tag, copy);
            } else {
                self.lost += body.len();
            }
        }
    }
}

fn kind_of(length: u64) -> MemoryKind {
    if length < 8192 { MemoryKind::Copied } else { MemoryKind::ZeroCopy }
}
