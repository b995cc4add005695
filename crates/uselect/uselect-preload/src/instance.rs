//! The watchers of the program's epoll descriptors, and their users.

use std::ptr::null_mut;
use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicU8, AtomicU32, AtomicU64, Ordering};

use uselect::{Tracker, Watcher};

use crate::fd_kind::{self, DESCRIPTORS};
use crate::libc_next::preserve_errno;

/// The watcher of an epoll descriptor.
struct InstanceSlot {
    /// Made by `Box::into_raw`; null if there is no watcher.
    watcher: AtomicPtr<Watcher>,
    /// A watcher that was removed while it was in use. It is freed when this slot has no users.
    retired: AtomicPtr<Watcher>,
    users: AtomicU32,
}

static SLOTS: [InstanceSlot; DESCRIPTORS] = [const {
    InstanceSlot {
        watcher: AtomicPtr::new(null_mut()),
        retired: AtomicPtr::new(null_mut()),
        users: AtomicU32::new(0),
    }
}; DESCRIPTORS];

/// The epoll descriptors with watchers; -1: free. A process has 64 sleepers, and each watcher takes
/// one.
static WATCHED: [AtomicI32; 64] = [const { AtomicI32::new(-1) }; 64];

/// By descriptor, whether it was added to a watcher.
static ADDED: [AtomicU64; DESCRIPTORS / 64] = [const { AtomicU64::new(0) }; DESCRIPTORS / 64];

/// By descriptor, 1 if another process uses the epoll instance. Shared with children of fork(2),
/// which set it. Null before the first instance.
static SHARED: AtomicPtr<AtomicU8> = AtomicPtr::new(null_mut());
/// The shared flags of the parent process.
static PARENTS: AtomicPtr<AtomicU8> = AtomicPtr::new(null_mut());

/// A reference to a watcher, which is not freed while this exists.
pub(crate) struct Instance {
    slot: &'static InstanceSlot,
    watcher: &'static Watcher,
}

impl Instance {
    /// Returns `None` if the descriptor has no watcher.
    #[inline]
    pub(crate) fn of(epoll: i32) -> Option<Self> {
        let slot = SLOTS.get(usize::try_from(epoll).ok()?)?;
        if slot.watcher.load(Ordering::Relaxed).is_null() {
            return None;
        }
        // Pairs with `free_retired`: the user is counted before the watcher is read; there the
        // watcher is removed before the count is read.
        slot.users.fetch_add(1, Ordering::SeqCst);
        // SAFETY: null, or a box that is not freed while a user is counted.
        match unsafe { slot.watcher.load(Ordering::SeqCst).as_ref() } {
            Some(watcher) => Some(Self { slot, watcher }),
            None => {
                slot.release();
                None
            }
        }
    }

    /// Returns the watcher, and creates it if there is none. Returns `None` if that fails.
    pub(crate) fn make(epoll: i32, tracker: &Tracker) -> Option<Self> {
        let slot = SLOTS.get(usize::try_from(epoll).ok()?)?;
        let free = WATCHED.iter().find(|number| {
            number.compare_exchange(-1, epoll, Ordering::SeqCst, Ordering::Relaxed).is_ok()
        })?;
        // `is_empty` is false, because the program may have added other descriptors already.
        let Ok(watcher) = Watcher::over_epoll(tracker, epoll, false) else {
            free.store(-1, Ordering::SeqCst);
            return None;
        };
        let created = Box::into_raw(Box::new(watcher));
        let (none, ordering) = (null_mut(), Ordering::SeqCst);
        if slot.watcher.compare_exchange(none, created, ordering, ordering).is_err() {
            // Another thread was faster.
            free.store(-1, Ordering::SeqCst);
            // SAFETY: it was made of a box above, and no other thread has seen it.
            drop(unsafe { Box::from_raw(created) });
        }
        Self::of(epoll)
    }

    pub(crate) fn watcher(&self) -> &Watcher {
        self.watcher
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        self.slot.release();
    }
}

impl InstanceSlot {
    fn release(&self) {
        if self.users.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.free_retired();
        }
    }

    /// Removes the watcher. It is freed when it has no users.
    fn retire(&self) {
        let watcher = self.watcher.swap(null_mut(), Ordering::SeqCst);
        if watcher.is_null() {
            return;
        }
        // If another watcher waits to be freed, this one is leaked: the descriptor was closed twice
        // while a thread waited.
        let ordering = Ordering::SeqCst;
        if self.retired.compare_exchange(null_mut(), watcher, ordering, ordering).is_ok() {
            self.free_retired();
        }
    }

    /// Frees the retired watcher if it has no users. New users cannot find it.
    fn free_retired(&self) {
        while self.users.load(Ordering::SeqCst) == 0 {
            let retired = self.retired.swap(null_mut(), Ordering::SeqCst);
            if retired.is_null() {
                return;
            }
            if self.users.load(Ordering::SeqCst) == 0 {
                // SAFETY: it was made of a box, and the swap gives it to this thread alone. All
                // users that had found it have left.
                drop(unsafe { Box::from_raw(retired) });
                return;
            }
            // A user entered meanwhile, and may have found the watcher before it was removed.
            self.retired.store(retired, Ordering::SeqCst);
        }
    }
}

/// Clears the shared flag of a new epoll descriptor. Returns false if the flags cannot be
/// allocated; then children could not set it.
pub(crate) fn clear_shared_flag(epoll: i32) -> bool {
    if SHARED.load(Ordering::Acquire).is_null() {
        let (access, flags) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_ANONYMOUS);
        // SAFETY: the kernel chooses the address, so no existing mapping changes.
        let pages = unsafe { libc::mmap(null_mut(), DESCRIPTORS, access, flags, -1, 0) };
        if pages == libc::MAP_FAILED {
            return false;
        }
        let (none, ordering) = (null_mut(), Ordering::AcqRel);
        if SHARED.compare_exchange(none, pages.cast(), ordering, Ordering::Relaxed).is_err() {
            // SAFETY: the pages were mapped above, and no other thread has seen them.
            unsafe { libc::munmap(pages, DESCRIPTORS) };
        }
    }
    let flag = shared_flag(&SHARED, epoll);
    flag.inspect(|flag| flag.store(0, Ordering::Relaxed)).is_some()
}

/// Returns whether this process or its parent has had an epoll descriptor.
pub(crate) fn has_any() -> bool {
    !SHARED.load(Ordering::Acquire).is_null() || !PARENTS.load(Ordering::Acquire).is_null()
}

/// Returns whether another process uses an epoll descriptor that this process created.
pub(crate) fn is_shared(epoll: i32) -> bool {
    // Pairs with `set_shared_flag` in the child.
    shared_flag(&SHARED, epoll).is_none_or(|flag| flag.load(Ordering::Acquire) != 0)
}

/// Records in a child of fork(2) that it uses an epoll descriptor of its parent.
pub(crate) fn set_shared_flag(epoll: i32) {
    if let Some(flag) = shared_flag(&PARENTS, epoll) {
        // Pairs with `is_shared` in the parent.
        flag.store(1, Ordering::Release);
    }
}

fn shared_flag(flags: &AtomicPtr<AtomicU8>, epoll: i32) -> Option<&'static AtomicU8> {
    let first = flags.load(Ordering::Acquire);
    let at = usize::try_from(epoll).ok().filter(|at| *at < DESCRIPTORS && !first.is_null())?;
    // SAFETY: there are this many flags, which are never unmapped once the pointer is stored.
    let slot = unsafe { first.add(at) };
    // SAFETY: as above; any byte is an AtomicU8.
    unsafe { slot.as_ref() }
}

/// Removes an epoll descriptor that is about to be closed, or that is handed over to the kernel.
pub(crate) fn remove(epoll: i32) {
    preserve_errno(|| {
        let slot = usize::try_from(epoll).ok().and_then(|epoll| SLOTS.get(epoll));
        slot.into_iter().for_each(InstanceSlot::retire);
        for number in &WATCHED {
            let (ended, ordering) = (epoll, Ordering::SeqCst);
            let _ = number.compare_exchange(ended, -1, ordering, Ordering::Relaxed);
        }
    });
}

/// Moves a tracked socket that is about to be copied to the kernel's instances. An instance of the
/// kernel reports a file while any of the file's descriptors is open. A watcher reports it only
/// while the tracked descriptor is open.
pub(crate) fn hand_over_fd(fd: i32) {
    for_each_watcher(|watcher| watcher.hand_over_one(fd));
}

/// Records that a descriptor is about to be added to a watcher.
pub(crate) fn record_added(fd: i32) {
    if let Some((word, bit)) = word_and_bit_of(fd) {
        word.fetch_or(bit, Ordering::Relaxed);
    }
}

/// Removes a descriptor that is about to be closed from all watchers.
pub(crate) fn remove_closing(fd: i32) {
    let Some((word, bit)) = word_and_bit_of(fd) else { return };
    if word.load(Ordering::Relaxed) & bit != 0 {
        word.fetch_and(!bit, Ordering::Relaxed);
        for_each_watcher(|watcher| watcher.remove_closing(fd));
    }
}

fn word_and_bit_of(fd: i32) -> Option<(&'static AtomicU64, u64)> {
    let fd = usize::try_from(fd).ok()?;
    Some((ADDED.get(fd / 64)?, 1 << (fd % 64)))
}

fn for_each_watcher(work: impl Fn(&Watcher)) {
    for number in &WATCHED {
        let epoll = number.load(Ordering::SeqCst);
        if epoll >= 0
            && let Some(instance) = Instance::of(epoll)
        {
            preserve_errno(|| work(instance.watcher()));
        }
    }
}

/// Resets the state in a child of fork(2): the instances belong to its parent.
pub(crate) fn inherit() {
    let shared = SHARED.swap(null_mut(), Ordering::AcqRel);
    if !shared.is_null() {
        PARENTS.store(shared, Ordering::Release);
    }
    for number in &WATCHED {
        number.store(-1, Ordering::Relaxed);
    }
    for slot in fd_kind::known(0, DESCRIPTORS).filter_map(|fd| SLOTS.get(fd as usize)) {
        // The parent's threads that used it do not exist here.
        slot.users.store(0, Ordering::Relaxed);
    }
    for word in &ADDED {
        word.store(0, Ordering::Relaxed);
    }
}
