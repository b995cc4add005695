//! An extent: memory that was allocated together and is released together.

use std::any::Any;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use millrace_sys::Errno;

use crate::error::Error;
use crate::free_list::Allocation;
use crate::memory_kind::MemoryKind;
use crate::pool::Pool;
use crate::pool::joined::JoinedPool;
use crate::sealed::SealedMemory;
use crate::slab::Slab;
use crate::slice_id::{FILE_POOL, SLAB_POOL};

/// Where the memory of an extent comes from. It takes the memory back when the extent is dropped.
#[derive(Debug)]
pub(crate) enum Source {
    Slab(Slab, MemoryKind),
    /// A pool of this process.
    Pool(Pool),
    /// A pool of another process, which holds what this process holds.
    Joined(JoinedPool),
    /// A file that no process can change.
    Sealed(Arc<SealedMemory>),
}

/// Contiguous memory, always in an [`Arc`]. At most one [`Buffer`](crate::Buffer)
/// and any number of views and slices share it. The last one to be dropped releases the memory.
///
/// `0 <= filled <= allocated`. Bytes below `filled` may be read by all holders. Only a sole holder
/// that borrows the extent mutably may change them. Bytes from `filled` on belong to the buffer
/// alone.
#[derive(Debug)]
pub(crate) struct Extent {
    pub(crate) source: Source,
    start: NonNull<u8>,
    /// In bytes from the start of the slab, pool or file.
    pub(crate) offset: u64,
    /// Allocated bytes. Only the buffer writes this, when it is frozen. Relaxed: it is read by the
    /// buffer and by holders that received the extent from it.
    allocated: AtomicU32,
    /// Filled bytes. The release store in [`Extent::publish_filled`] pairs with the acquire load in
    /// [`Extent::filled`].
    filled: AtomicU32,
    /// The kernel may refer to the memory. Set while a slice is held; read when no slice is left,
    /// or by the sole holder. Relaxed: the reference count of the `Arc` orders the two.
    was_sent: AtomicBool,
    /// Other processes may hold the memory. Set and read like `was_sent`.
    was_passed: AtomicBool,
    pub(crate) generation: u64,
    /// Values derived from slices of this extent.
    forms: OnceLock<Box<AnyForms>>,
}

/// The type-erased [`DerivedForms`](crate::derived::DerivedForms). Derived forms may hold further
/// extents, so naming the type here would make the two modules import each other.
type AnyForms = Box<dyn Any + Send + Sync>;

/// Each stored object has at least one: 88 bytes of the heap, with the counts of the `Arc`, which
/// glibc rounds up like 80.
const _: () = assert!(size_of::<Extent>() <= 72);

/// The generation of the last file that became an extent.
static FILE_GENERATION: AtomicU64 = AtomicU64::new(0);

// SAFETY: the memory behind `start` stays mapped as long as `source` is held, on every thread; no
// other field is bound to a thread.
unsafe impl Send for Extent {}
// SAFETY: through `&Extent`, memory is only read, and only below `filled`, where no one writes. A
// buffer writes from `filled` on. No `&Extent` exists beside the mutable borrow of a sole holder.
unsafe impl Sync for Extent {}

impl Extent {
    pub(crate) fn in_slab(
        slab: Slab,
        kind: MemoryKind,
        allocation: Allocation,
        generation: u64,
    ) -> Self {
        let start = slab.shared().memory.address(allocation.offset);
        Self::new(Source::Slab(slab, kind), start, allocation, generation)
    }

    pub(crate) fn in_pool(pool: Pool, allocation: Allocation, generation: u64) -> Self {
        let start = pool.address(allocation.offset);
        Self::new(Source::Pool(pool), start, allocation, generation)
    }

    /// Creates an extent that this process has entered in its ledger: the caller is
    /// [`JoinedPool::acquire`].
    pub(crate) fn in_joined(pool: JoinedPool, allocation: Allocation, generation: u64) -> Self {
        let start = pool.address(allocation.offset);
        let extent = Self::new(Source::Joined(pool), start, allocation, generation);
        extent.publish_filled(allocation.bytes);
        extent
    }

    /// Creates an extent of a whole file.
    ///
    /// # Errors
    /// [`Error::Kernel`] if it cannot be mapped, or is longer than a slice can be.
    pub(crate) fn in_file(file: Arc<SealedMemory>) -> Result<Self, Error> {
        let bytes = file.bytes()?;
        u32::try_from(bytes.len()).map_err(|_| Error::Kernel("mmap", Errno::FBIG))?;
        let start = NonNull::from(bytes).cast();
        let allocation = Allocation { offset: 0, bytes: bytes.len() };
        let generation = FILE_GENERATION.fetch_add(1, Ordering::Relaxed) + 1;
        let extent = Self::new(Source::Sealed(file), start, allocation, generation);
        extent.publish_filled(allocation.bytes);
        Ok(extent)
    }

    fn new(source: Source, start: NonNull<u8>, allocation: Allocation, generation: u64) -> Self {
        Self {
            source,
            start,
            offset: allocation.offset,
            allocated: AtomicU32::new(allocation.bytes as u32),
            filled: AtomicU32::new(0),
            was_sent: AtomicBool::new(false),
            was_passed: AtomicBool::new(false),
            generation,
            forms: OnceLock::new(),
        }
    }

    /// Returns the number of the pool, as in a [`SliceId`](crate::SliceId).
    pub(crate) fn pool(&self) -> u32 {
        match &self.source {
            Source::Slab(..) => SLAB_POOL,
            Source::Pool(pool) => pool.number(),
            Source::Joined(pool) => pool.number(),
            Source::Sealed(_) => FILE_POOL,
        }
    }

    pub(crate) fn allocation(&self) -> Allocation {
        Allocation { offset: self.offset, bytes: self.allocated.load(Ordering::Relaxed) as usize }
    }

    pub(crate) fn filled(&self) -> usize {
        self.filled.load(Ordering::Acquire) as usize
    }

    /// Returns filled bytes.
    pub(crate) fn bytes(&self, start: usize, length: usize) -> &[u8] {
        debug_assert!(start + length <= self.filled());
        // SAFETY: the address is inside the extent: the caller checked its range against `filled`.
        let place = unsafe { self.start.byte_add(start) };
        // SAFETY: the bytes are mapped as long as `self.source` is held, and were all initialised
        // by the kernel or by a process. They are not written while this borrow lasts (see `Sync`
        // above).
        unsafe { std::slice::from_raw_parts(place.as_ptr(), length) }
    }

    /// Returns a range of the extent for writing.
    ///
    /// # Safety
    /// The range is inside the extent, and only the caller accesses it for as long as the returned
    /// borrow lasts. Either the caller is the buffer and the range is unfilled, or the caller is
    /// the sole holder and borrows the extent mutably.
    #[expect(clippy::mut_from_ref, reason = "the memory is not part of the value")]
    pub(crate) unsafe fn bytes_mut(&self, start: usize, length: usize) -> &mut [u8] {
        // SAFETY: the range is inside the extent, as the caller guarantees.
        let place = unsafe { self.start.byte_add(start) };
        // SAFETY: mapped and initialised as above; the caller guarantees exclusive access.
        unsafe { std::slice::from_raw_parts_mut(place.as_ptr(), length) }
    }

    /// Makes the bytes below `filled` visible to readers. Called by the buffer only, with growing
    /// values.
    pub(crate) fn publish_filled(&self, filled: usize) {
        self.filled.store(filled as u32, Ordering::Release);
    }

    /// Releases the whole units that were not filled. Called by the buffer only, when it is frozen.
    pub(crate) fn release_unfilled(&self) {
        let Allocation { offset, bytes } = self.allocation();
        let unit = match &self.source {
            Source::Slab(_, kind) => kind.unit(),
            // Members know an extent that was passed by its length.
            Source::Pool(_) if !self.was_passed() => MemoryKind::ZeroCopy.unit(),
            _ => return,
        };
        let kept = self.filled().next_multiple_of(unit).max(unit);
        if kept < bytes {
            self.allocated.store(kept as u32, Ordering::Relaxed);
            let end = Allocation { offset: offset + kept as u64, bytes: bytes - kept };
            match &self.source {
                Source::Slab(slab, kind) => {
                    slab.free_list(*kind).release_tail(end, self.generation);
                }
                Source::Pool(pool) => pool.release_tail(end, self.generation),
                Source::Joined(_) | Source::Sealed(_) => {}
            }
        }
    }

    /// Returns the file and the offset of a byte, and records that the kernel may refer to the
    /// memory.
    pub(crate) fn sendfile_source(&self, start: usize) -> Option<(BorrowedFd<'_>, u64)> {
        let found = match &self.source {
            Source::Slab(_, MemoryKind::Copied) => None,
            Source::Slab(slab, MemoryKind::ZeroCopy) => {
                slab.shared().memory.file(self.offset + start as u64)
            }
            // SAFETY: the descriptor is that of this extent, which is held.
            Source::Pool(pool) => Some(unsafe { pool.file(self.offset + start as u64) }),
            // SAFETY: as above.
            Source::Joined(pool) => Some(unsafe { pool.file(self.offset + start as u64) }),
            Source::Sealed(file) => Some((file.file(), start as u64)),
        }?;
        self.was_sent.store(true, Ordering::Relaxed);
        Some(found)
    }

    pub(crate) fn was_sent(&self) -> bool {
        self.was_sent.load(Ordering::Relaxed)
    }

    /// Records that other processes may hold the memory.
    pub(crate) fn set_passed(&self) {
        self.was_passed.store(true, Ordering::Relaxed);
    }

    fn was_passed(&self) -> bool {
        self.was_passed.load(Ordering::Relaxed)
    }

    /// Returns whether a sole holder may change the bytes.
    pub(crate) fn is_changeable(&self) -> bool {
        let is_own = matches!(self.source, Source::Slab(..) | Source::Pool(_));
        is_own && !self.was_sent() && !self.was_passed()
    }

    /// Returns the derived values, created empty if there are none yet. `F` is always the same
    /// type.
    pub(crate) fn get_or_init_forms<F: Default + Send + Sync + 'static>(&self) -> &F {
        downcast(self.forms.get_or_init(|| Box::new(Box::<F>::default())))
    }

    /// Returns the derived values, if there are any.
    pub(crate) fn forms<F: 'static>(&self) -> Option<&F> {
        self.forms.get().map(|forms| downcast(forms))
    }

    /// Gives the extent a new generation and drops what was derived from it. For a sole holder that
    /// is about to change its bytes.
    pub(crate) fn renew_generation(&mut self) {
        assert!(self.is_changeable());
        let (allocation, before) = (self.allocation(), self.generation);
        self.generation = match &self.source {
            Source::Slab(slab, kind) => {
                let generation = slab.next_generation();
                slab.free_list(*kind).set_generation(allocation, before, generation);
                generation
            }
            Source::Pool(pool) => pool.renew_generation(allocation, before),
            Source::Joined(_) | Source::Sealed(_) => unreachable!("this process cannot change it"),
        };
        self.forms = OnceLock::new();
    }
}

fn downcast<F: 'static>(forms: &AnyForms) -> &F {
    forms.downcast_ref().expect("all derived values have one type")
}

impl Drop for Extent {
    fn drop(&mut self) {
        let (allocation, generation) = (self.allocation(), self.generation);
        match &self.source {
            Source::Slab(slab, kind) => {
                slab.release(*kind, allocation, generation, self.was_sent());
            }
            Source::Pool(pool) => {
                pool.release(allocation, generation, self.was_sent(), self.was_passed());
            }
            Source::Joined(pool) => pool.release(self.offset, std::ptr::from_ref(self).cast()),
            Source::Sealed(_) => {}
        }
    }
}
