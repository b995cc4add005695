//! Several workers share a slab that is always full, and their sockets are read late: no byte is
//! ever wrong, and all memory is free at the end.

use std::collections::VecDeque;
use std::io::Read;
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use iolite::limits::{BLOCK_BYTES, SLAB_BYTES_MIN};
use iolite::{Aggregate, AllocError, MemoryKind, PrefaultThread, Slab};
use rand_core::{Rng, SeedableRng};
use rand_pcg::Pcg64Mcg;

const WORKERS: u64 = 3;
const OBJECTS: usize = 400;

/// Returns byte `at` of the object `tag`.
fn byte(tag: u64, at: usize) -> u8 {
    (at as u64 / 5).wrapping_mul(tag | 1) as u8 ^ tag as u8
}

struct Object {
    tag: u64,
    body: Aggregate,
}

/// A worker that stores, sends and drops objects. It reads the sent bytes only when it has to.
struct Worker<'a> {
    slab: &'a Slab,
    /// Tags of the objects in evacuating blocks, which all workers have to drop.
    evacuating: &'a Mutex<Vec<u64>>,
    random: Pcg64Mcg,
    held: VecDeque<Object>,
    near: TcpStream,
    far: TcpStream,
    /// Objects whose beginnings were sent: the tag, and the number of bytes.
    unread: VecDeque<(u64, usize)>,
}

impl Worker<'_> {
    fn below(&mut self, bound: usize) -> usize {
        self.random.next_u64() as usize % bound
    }

    fn play(&mut self, number: u64, done: &AtomicUsize) {
        for count in 0..OBJECTS as u64 {
            self.store(number << 32 | count);
            let picked = self.below(self.held.len());
            match self.below(4) {
                0 => self.send(picked),
                1 => self.check(picked),
                2 => drop(self.held.remove(picked)),
                _ => {}
            }
        }
        self.read();
        self.held.clear();
        done.fetch_add(1, Ordering::Relaxed);
    }

    fn store(&mut self, tag: u64) {
        let max = if self.below(3) == 0 { 400_000 } else { 20_000 };
        let length = 1 + self.below(max);
        let kind = if length < 8192 { MemoryKind::Copied } else { MemoryKind::ZeroCopy };
        let bytes: Vec<u8> = (0..length).map(|at| byte(tag, at)).collect();
        let mut body = Aggregate::new();
        while body.len() < length as u64 {
            let rest = &bytes[body.len() as usize..];
            match self.slab.allocate(kind, 1..=rest.len().min(256 * 1024), tag) {
                Ok(mut buffer) => {
                    buffer.write(rest);
                    body.append(buffer.freeze());
                }
                Err(AllocError::NotReady) => std::thread::yield_now(),
                Err(error) => self.free_memory(error),
            }
        }
        self.held.push_back(Object { tag, body });
    }

    fn free_memory(&mut self, error: AllocError) {
        if error == AllocError::Fragmented {
            let tags = self.slab.start_evacuation().unwrap_or_default();
            let mut evacuating = self.evacuating.lock().expect("no worker panicked");
            evacuating.extend(tags);
            self.held.retain(|object| !evacuating.contains(&object.tag));
        }
        let _ = self.held.pop_front();
        // Other workers may hold all the memory.
        std::thread::yield_now();
    }

    /// Sends the beginning of an object zero-copy, as much as the socket accepts.
    fn send(&mut self, picked: usize) {
        let Object { tag, body } = &self.held[picked];
        let (tag, first) = (*tag, body.at(0).expect("objects are not empty").0);
        let Some((file, offset)) = first.sendfile_source() else { return };
        match millrace_sys::sendfile(self.near.as_fd(), file, offset, first.len()) {
            Ok(count) => self.unread.push_back((tag, count)),
            Err(_) => self.read(),
        }
    }

    fn read(&mut self) {
        while let Some((tag, count)) = self.unread.pop_front() {
            let mut bytes = vec![0; count];
            self.far.read_exact(&mut bytes).expect("sent bytes");
            assert!(bytes.iter().enumerate().all(|(at, seen)| *seen == byte(tag, at)));
        }
    }

    fn check(&self, picked: usize) {
        let Object { tag, body } = &self.held[picked];
        let bytes = body.slices().flat_map(|slice| slice.iter());
        assert!(bytes.enumerate().all(|(at, seen)| *seen == byte(*tag, at)));
    }
}

/// Also runs under Miri: readers touch only bytes below `filled`.
#[test]
fn readers_follow_a_buffer_while_it_is_filled() {
    const PART: usize = 61;
    let parts = if cfg!(miri) { 40 } else { 10_000 };
    let slab = Slab::on_heap(SLAB_BYTES_MIN).expect("the size is valid");
    let wanted = PART * parts..=PART * parts;
    let mut buffer = slab.allocate(MemoryKind::ZeroCopy, wanted, 0).expect("a block is ready");
    std::thread::scope(|scope| {
        for _ in 0..WORKERS {
            let view = buffer.view();
            scope.spawn(move || {
                let mut seen = 0;
                while seen < PART * parts {
                    let filled = view.len();
                    let new_bytes = view.slice(seen..filled);
                    assert!(
                        new_bytes.iter().zip(seen..).all(|(byte, at)| *byte == self::byte(7, at))
                    );
                    assert_eq!(view[seen..filled], new_bytes[..]);
                    seen = filled;
                    std::thread::yield_now();
                }
            });
        }
        for part in 0..parts {
            let bytes: Vec<u8> = (part * PART..(part + 1) * PART).map(|at| byte(7, at)).collect();
            assert_eq!(buffer.write(&bytes), PART);
        }
    });
    let whole = buffer.freeze();
    assert_eq!(whole.len(), PART * parts);
    drop(whole);
    assert_eq!((slab.stats().live, slab.stats().extents), (0, 0));
}

#[test]
#[cfg_attr(miri, ignore = "sockets and files in memory")]
fn workers_share_a_slab_that_is_always_full() {
    let slab = Slab::new(10 * BLOCK_BYTES).unwrap();
    let thread = PrefaultThread::start(&slab).unwrap();
    let (evacuating, done) = (Mutex::new(Vec::new()), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for number in 1..=WORKERS {
            let (slab, evacuating, done) = (&slab, &evacuating, &done);
            scope.spawn(move || {
                let listener = TcpListener::bind("127.0.0.1:0").unwrap();
                let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
                near.set_nonblocking(true).unwrap();
                let (far, _) = listener.accept().unwrap();
                let (random, held) = (Pcg64Mcg::seed_from_u64(number), VecDeque::new());
                let unread = VecDeque::new();
                Worker { slab, evacuating, random, held, near, far, unread }.play(number, done);
            });
        }
    });
    assert_eq!(done.into_inner(), WORKERS as usize);
    drop(thread);
    let end = slab.stats();
    assert_eq!(
        (end.live, end.extents, end.tainted, end.free, end.evacuating_blocks),
        (0, 0, 0, 0, 0)
    );
    assert_eq!(end.ready_blocks + end.queued_blocks + end.empty_blocks, 10);
    assert!(end.recycled > 0 && end.refused_full + end.refused_fragmented > 0, "{end:?}");
}
