//! A producer that passes memory files on, and later writes through all that it has kept. A file is
//! refused, or no byte of it changes after it was accepted.

use std::ffi::c_void;
use std::fs::File;
use std::io::{PipeReader, PipeWriter};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::ptr;

use iolite::{Account, RefusedMemory, SealedMemory, Slice};
use rand_core::{Rng, SeedableRng};
use rand_pcg::Pcg64Mcg;
use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};
use rustix::io_uring::{IoringRegisterOp, io_uring_params, iovec};
use rustix::mm::{MapFlags, MprotectFlags, ProtFlags};
use rustix::pipe::SpliceFlags;

const PAGE: usize = 4096;
/// The files that the receiver holds at a time.
const HELD: usize = 16;

/// A mapping that the producer has kept.
struct Mapping {
    start: *mut c_void,
    bytes: usize,
    is_shared: bool,
}

impl Mapping {
    fn new(file: &OwnedFd, bytes: usize, access: ProtFlags, flags: MapFlags) -> Self {
        // SAFETY: the kernel chooses the address.
        let start = unsafe { rustix::mm::mmap(ptr::null_mut(), bytes, access, flags, file, 0) };
        Self { start: start.expect("a mapping"), bytes, is_shared: flags == MapFlags::SHARED }
    }

    /// Makes it writable if it can be, and writes to it.
    fn write(&self) {
        let access = MprotectFlags::READ | MprotectFlags::WRITE;
        // SAFETY: no reference into the mapping exists.
        if unsafe { rustix::mm::mprotect(self.start, self.bytes, access) }.is_err() {
            return;
        }
        for at in (0..self.bytes).step_by(PAGE) {
            // SAFETY: the byte is in the mapping.
            let byte = unsafe { self.start.cast::<u8>().add(at) };
            // SAFETY: it is mapped for writing.
            unsafe { byte.write_volatile(b'!') };
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: no reference into the mapping exists.
        unsafe { rustix::mm::munmap(self.start, self.bytes) }.expect("it is mapped");
    }
}

/// The access that a producer keeps to a file that it passes on.
enum Kept {
    Descriptor,
    Reopened(File),
    Mapping(Mapping),
    /// The first page of the file is in the pipe.
    Pipe(PipeReader, PipeWriter),
    /// The pages are a fixed buffer of the ring.
    RingBuffer(OwnedFd),
}

struct Producer {
    random: Pcg64Mcg,
    pipe: Option<(PipeReader, PipeWriter)>,
}

impl Producer {
    fn below(&mut self, bound: usize) -> usize {
        self.random.next_u64() as usize % bound
    }

    /// Makes a file, keeps something of it, and seals it as far as the kernel allows. Returns the
    /// file, its bytes, and what was kept.
    fn make(&mut self) -> (OwnedFd, Vec<u8>, Kept) {
        let bytes = (1 + self.below(3)) * PAGE;
        let content: Vec<u8> =
            (0..bytes / 8).flat_map(|_| self.random.next_u64().to_ne_bytes()).collect();
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = rustix::fs::memfd_create("kept", flags).expect("memory");
        File::from(file.try_clone().expect("a descriptor"))
            .write_all_at(&content, 0)
            .expect("room");
        let map = |access, flags| Kept::Mapping(Mapping::new(&file, bytes, access, flags));
        let writable = ProtFlags::READ | ProtFlags::WRITE;
        // The kernel waits for up to 80 ms for pipes and rings, so these are rare.
        let kept = match self.below(500) {
            0 => self.fill_pipe(&file),
            1 => ring_buffer(&file, bytes).unwrap_or(Kept::Descriptor),
            number => match number % 5 {
                0 => Kept::Descriptor,
                1 => Kept::Reopened(reopen(&file).expect("it is not sealed yet")),
                2 => map(writable, MapFlags::SHARED),
                3 => map(ProtFlags::READ, MapFlags::SHARED),
                _ => map(writable, MapFlags::PRIVATE),
            },
        };
        let sealed = rustix::fs::fcntl_add_seals(&file, SealFlags::WRITE | SHAPE);
        if sealed.is_err() && self.below(2) == 0 {
            // Mappings that exist stay writable under this seal.
            let _ = rustix::fs::fcntl_add_seals(&file, SealFlags::FUTURE_WRITE | SHAPE);
        }
        (file, content, kept)
    }

    fn fill_pipe(&mut self, file: &OwnedFd) -> Kept {
        let (reader, writer) = self.pipe.take().unwrap_or_else(|| std::io::pipe().expect("a pipe"));
        let moved =
            rustix::pipe::splice(file, Some(&mut 0), &writer, None, PAGE, SpliceFlags::empty());
        assert_eq!(moved.expect("the pipe is empty"), PAGE);
        Kept::Pipe(reader, writer)
    }

    /// Writes to the file in each way that is left.
    fn write_later(&mut self, file: &OwnedFd, kept: Kept) {
        let by_descriptor = |file: &File| {
            let _ = file.write_at(b"!", 0);
            let _ = file.set_len(1);
            let _ = file.set_len(1 << 20);
            for flags in [
                FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
                FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE,
                FallocateFlags::COLLAPSE_RANGE,
                FallocateFlags::empty(),
            ] {
                let _ = rustix::fs::fallocate(file, flags, 0, PAGE as u64);
            }
        };
        by_descriptor(&File::from(file.try_clone().expect("a descriptor")));
        if let Ok(again) = reopen(file) {
            by_descriptor(&again);
        }
        Mapping::new(file, PAGE, ProtFlags::READ, MapFlags::PRIVATE).write();
        match kept {
            Kept::Descriptor => {}
            Kept::Reopened(again) => by_descriptor(&again),
            Kept::Mapping(mapping) => mapping.write(),
            Kept::Pipe(reader, writer) => {
                let mut page = [0; PAGE];
                rustix::io::read(&reader, &mut page).expect("the pipe has a page");
                self.pipe = Some((reader, writer));
            }
            Kept::RingBuffer(ring) => drop(ring),
        }
    }
}

impl Kept {
    /// Returns whether the kernel refuses the seal against writing because of it.
    fn prevents_seal(&self) -> bool {
        match self {
            Self::Descriptor | Self::Reopened(_) => false,
            Self::Mapping(mapping) => mapping.is_shared,
            Self::Pipe(..) | Self::RingBuffer(_) => true,
        }
    }
}

const SHAPE: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW);

fn reopen(file: &OwnedFd) -> std::io::Result<File> {
    File::options().read(true).write(true).open(format!("/proc/self/fd/{}", file.as_raw_fd()))
}

/// Registers the pages of a file as a fixed buffer of a ring. `None` if this system allows no
/// rings.
fn ring_buffer(file: &OwnedFd, bytes: usize) -> Option<Kept> {
    let mut parameters = io_uring_params::default();
    // SAFETY: the parameters ask for a ring that this process has alone.
    let ring = unsafe { rustix::io_uring::io_uring_setup(1, &mut parameters) }.ok()?;
    let access = ProtFlags::READ | ProtFlags::WRITE;
    let mapping = Mapping::new(file, bytes, access, MapFlags::SHARED);
    let buffer = iovec { iov_base: mapping.start, iov_len: bytes };
    let operation = IoringRegisterOp::RegisterBuffers;
    // SAFETY: the buffer is mapped. The ring holds its pages itself, and gets no operations.
    unsafe { rustix::io_uring::io_uring_register(&ring, operation, (&raw const buffer).cast(), 1) }
        .expect("the buffer is mapped");
    Some(Kept::RingBuffer(ring))
}

#[test]
fn bytes_that_were_accepted_never_change() {
    let count = std::env::var("HAND_OVERS").map_or(2000, |count| count.parse().expect("a number"));
    let account = Account::new(1 << 30);
    let mut producer = Producer { random: Pcg64Mcg::seed_from_u64(1), pipe: None };
    let mut held: Vec<(Slice, Vec<u8>)> = Vec::new();
    let (mut accepted, mut refused) = (0, 0);
    for number in 0..count {
        let (file, content, kept) = producer.make();
        let passed = file.try_clone().expect("a descriptor");
        match SealedMemory::accept(passed, &account) {
            Ok(memory) => {
                assert!(!kept.prevents_seal(), "file {number}");
                let slice = memory.into_slice().expect("a mapping");
                assert!(*slice == content, "file {number}");
                held.push((slice, content));
                accepted += 1;
            }
            Err(error) => {
                assert!(
                    kept.prevents_seal() && error == RefusedMemory::Unsealed,
                    "{number}: {error}"
                );
                refused += 1;
            }
        }
        producer.write_later(&file, kept);
        assert!(held.iter().all(|(slice, content)| **slice == *content), "file {number}");
        if held.len() == HELD {
            held.swap_remove(producer.below(HELD));
        }
    }
    println!("{accepted} files were accepted, {refused} refused");
    assert!(accepted > count / 3 && refused > count / 3);
}
