//! The program's epoll descriptors, by their numbers: which have a watcher, and who uses that.

use std::ptr::null_mut;
use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicU8, AtomicU32, AtomicU64, Ordering};

use uselect::{Tracker, Watcher};

use crate::kinds::{self, DESCRIPTORS};
use crate::real::aside;

/// A number of a descriptor, as far as it is an epoll instance with tracked sockets.
struct Place {
    /// Made of a box; null: none.
    watcher: AtomicPtr<Watcher>,
    /// One that has been taken out while somebody used it, until nobody uses any of this place.
    doomed: AtomicPtr<Watcher>,
    users: AtomicU32,
}

static PLACES: [Place; DESCRIPTORS] = [const {
    Place {
        watcher: AtomicPtr::new(null_mut()),
        doomed: AtomicPtr::new(null_mut()),
        users: AtomicU32::new(0),
    }
}; DESCRIPTORS];

/// The numbers of those with watchers; -1: free. A process has no more sleepers, of which each
/// watcher takes one.
static WATCHED: [AtomicI32; 64] = [const { AtomicI32::new(-1) }; 64];

/// By descriptor, a bit: it was added to a watcher.
static ADDED: [AtomicU64; DESCRIPTORS / 64] = [const { AtomicU64::new(0) }; DESCRIPTORS / 64];

/// By descriptor, 1: another process uses the instance. Shared with children of fork(2), which say
/// so; null until there is an instance.
static SHARED: AtomicPtr<AtomicU8> = AtomicPtr::new(null_mut());
/// That of the parent.
static PARENTS: AtomicPtr<AtomicU8> = AtomicPtr::new(null_mut());

/// A watcher that stays while this is held.
pub(crate) struct Instance {
    place: &'static Place,
    watcher: &'static Watcher,
}

impl Instance {
    /// `None` if it has no watcher.
    #[inline]
    pub(crate) fn of(epoll: i32) -> Option<Self> {
        let place = PLACES.get(usize::try_from(epoll).ok()?)?;
        if place.watcher.load(Ordering::Relaxed).is_null() {
            return None;
        }
        // Pairs with bury(): it is counted before the watcher is read; there it is taken out before
        // the count is read.
        place.users.fetch_add(1, Ordering::SeqCst);
        // SAFETY: null, or a box's that is not freed while a user is counted.
        match unsafe { place.watcher.load(Ordering::SeqCst).as_ref() } {
            Some(watcher) => Some(Self { place, watcher }),
            None => {
                place.leave();
                None
            }
        }
    }

    /// With a watcher, made if there is none; `None` if none can be made.
    pub(crate) fn make(epoll: i32, tracker: &Tracker) -> Option<Self> {
        let place = PLACES.get(usize::try_from(epoll).ok()?)?;
        let free = WATCHED.iter().find(|number| {
            number.compare_exchange(-1, epoll, Ordering::SeqCst, Ordering::Relaxed).is_ok()
        })?;
        let Ok(watcher) = Watcher::over_epoll(tracker, epoll) else {
            free.store(-1, Ordering::SeqCst);
            return None;
        };
        let made = Box::into_raw(Box::new(watcher));
        let (none, ordering) = (null_mut(), Ordering::SeqCst);
        if place.watcher.compare_exchange(none, made, ordering, ordering).is_err() {
            // Another thread was faster.
            free.store(-1, Ordering::SeqCst);
            // SAFETY: it was made of a box above, and nobody else has seen it.
            drop(unsafe { Box::from_raw(made) });
        }
        Self::of(epoll)
    }

    pub(crate) fn watcher(&self) -> &Watcher {
        self.watcher
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        self.place.leave();
    }
}

impl Place {
    fn leave(&self) {
        if self.users.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.bury();
        }
    }

    /// Takes the watcher out; it ends when nobody uses it any more.
    fn doom(&self) {
        let watcher = self.watcher.swap(null_mut(), Ordering::SeqCst);
        if watcher.is_null() {
            return;
        }
        // Where one is doomed already this one is never freed: its descriptor was closed twice
        // while a thread waited.
        let ordering = Ordering::SeqCst;
        if self.doomed.compare_exchange(null_mut(), watcher, ordering, ordering).is_ok() {
            self.bury();
        }
    }

    /// Frees what is doomed if nobody uses it: who enters from now on cannot find it.
    fn bury(&self) {
        while self.users.load(Ordering::SeqCst) == 0 {
            let doomed = self.doomed.swap(null_mut(), Ordering::SeqCst);
            if doomed.is_null() {
                return;
            }
            if self.users.load(Ordering::SeqCst) == 0 {
                // SAFETY: it was made of a box, and swap() gives it to one thread alone; users that
                // had found it have left.
                drop(unsafe { Box::from_raw(doomed) });
                return;
            }
            // Somebody entered meanwhile, perhaps before it was doomed.
            self.doomed.store(doomed, Ordering::SeqCst);
        }
    }
}

/// Lets children say that they use an epoll descriptor that was just made. False if they cannot.
pub(crate) fn share(epoll: i32) -> bool {
    if SHARED.load(Ordering::Acquire).is_null() {
        let (access, flags) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_ANONYMOUS);
        // SAFETY: the kernel picks the address, so nothing that is mapped is touched.
        let pages = unsafe { libc::mmap(null_mut(), DESCRIPTORS, access, flags, -1, 0) };
        if pages == libc::MAP_FAILED {
            return false;
        }
        let (none, ordering) = (null_mut(), Ordering::AcqRel);
        if SHARED.compare_exchange(none, pages.cast(), ordering, Ordering::Relaxed).is_err() {
            // SAFETY: the pages were mapped above, and nobody else has seen them.
            unsafe { libc::munmap(pages, DESCRIPTORS) };
        }
    }
    let flag = flag(&SHARED, epoll);
    flag.inspect(|flag| flag.store(0, Ordering::Relaxed)).is_some()
}

/// Whether this process has had an epoll descriptor, made by itself or by its parent.
pub(crate) fn has_been() -> bool {
    !SHARED.load(Ordering::Acquire).is_null() || !PARENTS.load(Ordering::Acquire).is_null()
}

/// Whether another process uses an epoll descriptor that this one has made.
pub(crate) fn is_shared(epoll: i32) -> bool {
    // Pairs with tell_parent() in the child.
    flag(&SHARED, epoll).is_none_or(|flag| flag.load(Ordering::Acquire) != 0)
}

/// Says in a child of fork(2) that it uses an epoll descriptor of its parent.
pub(crate) fn tell_parent(epoll: i32) {
    if let Some(flag) = flag(&PARENTS, epoll) {
        // Pairs with is_shared() in the parent.
        flag.store(1, Ordering::Release);
    }
}

fn flag(flags: &AtomicPtr<AtomicU8>, epoll: i32) -> Option<&'static AtomicU8> {
    let first = flags.load(Ordering::Acquire);
    let at = usize::try_from(epoll).ok().filter(|at| *at < DESCRIPTORS && !first.is_null())?;
    // SAFETY: there are as many of them, which are never unmapped once they are stored.
    let place = unsafe { first.add(at) };
    // SAFETY: as above; any byte is an AtomicU8.
    unsafe { place.as_ref() }
}

/// An epoll descriptor is about to be closed, or is none of ours any more.
pub(crate) fn end(epoll: i32) {
    aside(|| {
        let place = usize::try_from(epoll).ok().and_then(|epoll| PLACES.get(epoll));
        place.into_iter().for_each(Place::doom);
        for number in &WATCHED {
            let (ended, ordering) = (epoll, Ordering::SeqCst);
            let _ = number.compare_exchange(ended, -1, ordering, Ordering::Relaxed);
        }
    });
}

/// A tracked socket gets another number. An instance waits for a file as long as any number of it
/// is open, and memory only as long as one is.
pub(crate) fn leave_to_kernel(fd: i32) {
    for_each(|watcher| watcher.hand_over_one(fd));
}

/// A descriptor is about to be added to a watcher.
pub(crate) fn note(fd: i32) {
    if let Some((word, bit)) = bit(fd) {
        word.fetch_or(bit, Ordering::Relaxed);
    }
}

/// A descriptor is about to be closed.
pub(crate) fn forget(fd: i32) {
    let Some((word, bit)) = bit(fd) else { return };
    if word.load(Ordering::Relaxed) & bit != 0 {
        word.fetch_and(!bit, Ordering::Relaxed);
        for_each(|watcher| watcher.remove_closing(fd));
    }
}

fn bit(fd: i32) -> Option<(&'static AtomicU64, u64)> {
    let fd = usize::try_from(fd).ok()?;
    Some((ADDED.get(fd / 64)?, 1 << (fd % 64)))
}

fn for_each(work: impl Fn(&Watcher)) {
    for number in &WATCHED {
        let epoll = number.load(Ordering::SeqCst);
        if epoll >= 0
            && let Some(instance) = Instance::of(epoll)
        {
            aside(|| work(instance.watcher()));
        }
    }
}

/// What a child of fork(2) does first: its parent's instances are not its own.
pub(crate) fn inherit() {
    let shared = SHARED.swap(null_mut(), Ordering::AcqRel);
    if !shared.is_null() {
        PARENTS.store(shared, Ordering::Release);
    }
    for number in &WATCHED {
        number.store(-1, Ordering::Relaxed);
    }
    for place in kinds::known(0, DESCRIPTORS).filter_map(|fd| PLACES.get(fd as usize)) {
        // Threads of the parent that used it are not here.
        place.users.store(0, Ordering::Relaxed);
    }
    for word in &ADDED {
        word.store(0, Ordering::Relaxed);
    }
}
