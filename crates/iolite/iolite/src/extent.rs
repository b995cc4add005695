//! A run: memory that was taken at once and is given back at once.

use std::any::Any;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use crate::free_list::Allocation;
use crate::memory_kind::MemoryKind;
use crate::slab::Slab;

/// Memory of a slab that belongs to whoever holds this, always in an [`Arc`](std::sync::Arc): one
/// [`Buffer`](crate::Buffer) at most, and any number of slices. The last one to drop it gives the
/// memory back.
///
/// `0 <= filled <= taken.bytes`. The bytes below `filled` are read by everybody, and change for
/// nobody but a sole holder that borrows the run for change; those from `filled` on are the
/// buffer's alone.
#[derive(Debug)]
pub(crate) struct Extent {
    pub(crate) slab: Slab,
    start: NonNull<u8>,
    pub(crate) kind: MemoryKind,
    pub(crate) offset: u64,
    /// Bytes that are taken. The buffer lowers it when it ends; nobody else writes it, and it is
    /// read by the buffer and by who was handed the run by it, so it needs no order of its own.
    allocated: AtomicU32,
    /// Bytes that are filled. The buffer's release, in [`Run::fill`], pairs with the acquire in
    /// [`Run::filled`].
    filled: AtomicU32,
    /// The kernel may refer to the memory. Set while a slice is held; read when none is, or by the
    /// sole holder: the count's own order makes the one come after the other.
    was_sent: AtomicBool,
    pub(crate) generation: u64,
    /// What was derived from slices of this run.
    forms: OnceLock<Box<AnyForms>>,
}

/// What goes with a run. It may hold further runs, so that a run cannot know what it is.
type AnyForms = Box<dyn Any + Send + Sync>;

/// One of them for each stored object: with the counts of the `Arc`, 80 bytes of the heap.
const _: () = assert!(size_of::<Extent>() <= 64);

// SAFETY: the memory that `start` leads to stays mapped as long as `slab` is kept, on every
// thread; nothing else of it is bound to one.
unsafe impl Send for Extent {}
// SAFETY: through `&Run` memory is only read, below `filled`, where nobody writes: a buffer writes
// from `filled` on, and a sole holder has no `&Run` beside it.
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

    /// The filled bytes of a range.
    pub(crate) fn bytes(&self, start: usize, length: usize) -> &[u8] {
        debug_assert!(start + length <= self.filled());
        // SAFETY: the place is inside the run: who has a range checked it against `filled`.
        let place = unsafe { self.start.byte_add(start) };
        // SAFETY: the bytes are mapped as long as `self.slab` is kept, were all set by the kernel
        // or by us, and nobody writes them while this borrow lasts (see above).
        unsafe { std::slice::from_raw_parts(place.as_ptr(), length) }
    }

    /// A range of the run, to be written to.
    ///
    /// # Safety
    /// The range is inside the run, and the caller alone may touch it: it is the buffer and the
    /// range is not filled, or it holds the run alone and borrows it for change, for as long as
    /// the returned borrow lasts.
    #[expect(clippy::mut_from_ref, reason = "the memory is not part of the value")]
    pub(crate) unsafe fn bytes_mut(&self, start: usize, length: usize) -> &mut [u8] {
        // SAFETY: the place is inside the run, as the caller says.
        let place = unsafe { self.start.byte_add(start) };
        // SAFETY: mapped and set as above; the caller says that nobody else touches it.
        unsafe { std::slice::from_raw_parts_mut(place.as_ptr(), length) }
    }

    /// Lets everybody see the bytes below `filled`. For the buffer alone, which never lowers it.
    pub(crate) fn publish_filled(&self, filled: usize) {
        self.filled.store(filled as u32, Ordering::Release);
    }

    /// Gives back what was not filled, whole units. For the buffer alone, at its end.
    pub(crate) fn release_unfilled(&self) {
        let (Allocation { offset, bytes }, unit) = (self.allocation(), self.kind.unit());
        let forms = self.filled().next_multiple_of(unit).max(unit);
        if forms < bytes {
            self.allocated.store(forms as u32, Ordering::Relaxed);
            let end = Allocation { offset: offset + forms as u64, bytes: bytes - forms };
            self.slab.free_list(self.kind).release_tail(end, self.generation);
        }
    }

    /// The file and the offset there, of a byte of the run; notes that the kernel may refer to it.
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

    /// What goes with the run; made now if there is nothing yet. `F` is always the same type.
    pub(crate) fn get_or_init_forms<F: Default + Send + Sync + 'static>(&self) -> &F {
        downcast(self.forms.get_or_init(|| Box::new(Box::<F>::default())))
    }

    /// What goes with the run, if anything does.
    pub(crate) fn forms<F: 'static>(&self) -> Option<&F> {
        self.forms.get().map(|forms| downcast(forms))
    }

    /// Makes the run another one in the same place: for a sole holder that is about to change it.
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
    forms.downcast_ref().expect("all that goes with runs is of one type")
}

impl Drop for Extent {
    fn drop(&mut self) {
        self.slab.release(self.kind, self.allocation(), self.generation, self.was_sent());
    }
}
