//! An extent: memory that was allocated together and is released together.

use std::any::Any;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use crate::free_list::Allocation;
use crate::memory_kind::MemoryKind;
use crate::slab::Slab;

/// Memory of a slab, always in an [`Arc`](std::sync::Arc). At most one [`Buffer`](crate::Buffer)
/// and any number of views and slices share it. The last one to be dropped releases the memory.
///
/// `0 <= filled <= allocated`. Bytes below `filled` may be read by all holders. Only a sole holder
/// that borrows the extent mutably may change them. Bytes from `filled` on belong to the buffer
/// alone.
#[derive(Debug)]
pub(crate) struct Extent {
    pub(crate) slab: Slab,
    start: NonNull<u8>,
    pub(crate) kind: MemoryKind,
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
    pub(crate) generation: u64,
    /// Values derived from slices of this extent.
    forms: OnceLock<Box<AnyForms>>,
}

/// The type-erased [`DerivedForms`](crate::derived::DerivedForms). Derived forms may hold further
/// extents, so naming the type here would make the two modules import each other.
type AnyForms = Box<dyn Any + Send + Sync>;

/// Each stored object has at least one: 80 bytes of the heap, with the counts of the `Arc`.
const _: () = assert!(size_of::<Extent>() <= 64);

// SAFETY: the memory behind `start` stays mapped as long as `slab` is held, on every thread; no
// other field is bound to a thread.
unsafe impl Send for Extent {}
// SAFETY: through `&Extent`, memory is only read, and only below `filled`, where no one writes. A
// buffer writes from `filled` on. No `&Extent` exists beside the mutable borrow of a sole holder.
unsafe impl Sync for Extent {}

impl Extent {
    pub(crate) fn new(
        slab: Slab,
        kind: MemoryKind,
        allocation: Allocation,
        generation: u64,
    ) -> Self {
        let start = slab.shared().memory.address(allocation.offset);
        Self {
            slab,
            start,
            kind,
            offset: allocation.offset,
            allocated: AtomicU32::new(allocation.bytes as u32),
            filled: AtomicU32::new(0),
            was_sent: AtomicBool::new(false),
            generation,
            forms: OnceLock::new(),
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
        // SAFETY: the bytes are mapped as long as `self.slab` is held, and were all initialised by
        // the kernel or by us. They are not written while this borrow lasts (see `Sync` above).
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
        let (Allocation { offset, bytes }, unit) = (self.allocation(), self.kind.unit());
        let kept = self.filled().next_multiple_of(unit).max(unit);
        if kept < bytes {
            self.allocated.store(kept as u32, Ordering::Relaxed);
            let end = Allocation { offset: offset + kept as u64, bytes: bytes - kept };
            self.slab.free_list(self.kind).release_tail(end, self.generation);
        }
    }

    /// Returns the file and the offset of a byte, and records that the kernel may refer to the
    /// memory.
    pub(crate) fn sendfile_source(&self, start: usize) -> Option<(BorrowedFd<'_>, u64)> {
        if self.kind == MemoryKind::Copied {
            return None;
        }
        let found = self.slab.shared().memory.file(self.offset + start as u64)?;
        self.was_sent.store(true, Ordering::Relaxed);
        Some(found)
    }

    pub(crate) fn was_sent(&self) -> bool {
        self.was_sent.load(Ordering::Relaxed)
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
        assert!(!self.was_sent());
        let generation = self.slab.next_generation();
        self.slab.free_list(self.kind).set_generation(
            self.allocation(),
            self.generation,
            generation,
        );
        self.generation = generation;
        self.forms = OnceLock::new();
    }
}

fn downcast<F: 'static>(forms: &AnyForms) -> &F {
    forms.downcast_ref().expect("all derived values have one type")
}

impl Drop for Extent {
    fn drop(&mut self) {
        self.slab.release(self.kind, self.allocation(), self.generation, self.was_sent());
    }
}
