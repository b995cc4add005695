//! Objects that C owns: they are created in a box, and their pointers are opaque to C.

use std::ffi::c_int;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::slice;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::error::{BROKEN, INVALID, Result};

/// An object of C, such as `struct iol_aggregate`.
pub struct CObject<T> {
    value: T,
    /// A panic ended a call, and may have left the value in an invalid state. Relaxed: it is
    /// ordered with no other memory.
    is_broken: AtomicBool,
}

impl<T> CObject<T> {
    fn new(value: T) -> Self {
        Self { value, is_broken: AtomicBool::new(false) }
    }
}

/// Calls `call`, unless a panic has occurred before. A panic must not unwind into C, and the state
/// that it leaves is unknown, so every later call is refused.
fn guarded<R>(is_broken: &AtomicBool, call: impl FnOnce() -> Result<R>) -> Result<R> {
    if is_broken.load(Ordering::Relaxed) {
        return Err(BROKEN);
    }
    catch_unwind(AssertUnwindSafe(call)).unwrap_or_else(|_| {
        is_broken.store(true, Ordering::Relaxed);
        Err(BROKEN)
    })
}

/// Stores a new object in `*place`. If `make` fails, `*place` is not changed.
///
/// # Safety
/// `place` is null or has room for a pointer.
pub(crate) unsafe fn create<T>(
    place: *mut *mut CObject<T>,
    make: impl FnOnce() -> Result<T>,
) -> Result<c_int> {
    if place.is_null() {
        return Err(INVALID);
    }
    let value = catch_unwind(AssertUnwindSafe(make)).unwrap_or(Err(BROKEN))?;
    // SAFETY: `place` is not null and has room, by this function's contract.
    unsafe { place.write(Box::into_raw(Box::new(CObject::new(value)))) };
    Ok(0)
}

/// Calls `call` with the value of an object.
///
/// # Safety
/// `object` is null or an object from [`create`] that was not destroyed, and nothing else changes
/// it during the call.
pub(crate) unsafe fn with<T, R>(
    object: *const CObject<T>,
    call: impl FnOnce(&T) -> Result<R>,
) -> Result<R> {
    // SAFETY: null or an object that nothing changes, by this function's contract.
    let object = unsafe { object.as_ref() }.ok_or(INVALID)?;
    guarded(&object.is_broken, || call(&object.value))
}

/// Returns the value of an object that another call, which is guarded already, only reads. A panic
/// there breaks the object that is changed, not this one.
///
/// # Safety
/// As for [`with`], for as long as the result is used.
pub(crate) unsafe fn get<'a, T>(object: *const CObject<T>) -> Result<&'a T> {
    // SAFETY: null or an object that nothing changes, by this function's contract.
    let object = unsafe { object.as_ref() }.ok_or(INVALID)?;
    if object.is_broken.load(Ordering::Relaxed) { Err(BROKEN) } else { Ok(&object.value) }
}

/// Calls `call` with the value of an object, for changing it.
///
/// # Safety
/// `object` is null or an object from [`create`] that was not destroyed, and nothing else uses it
/// during the call.
pub(crate) unsafe fn with_mut<T, R>(
    object: *mut CObject<T>,
    call: impl FnOnce(&mut T) -> Result<R>,
) -> Result<R> {
    // SAFETY: null or an object that only this call uses, by this function's contract.
    let object = unsafe { object.as_mut() }.ok_or(INVALID)?;
    guarded(&object.is_broken, || call(&mut object.value))
}

/// Calls `call` with the values of `count` objects, which have to be different ones.
///
/// # Safety
/// `objects` is null or has `count` pointers, each as for [`with_mut`].
pub(crate) unsafe fn with_all<T, R>(
    objects: *const *mut CObject<T>,
    count: usize,
    call: impl FnOnce(Vec<&mut T>) -> Result<R>,
) -> Result<R> {
    if count == 0 {
        return call(Vec::new());
    }
    if objects.is_null() || count > isize::MAX as usize / size_of::<usize>() {
        return Err(INVALID);
    }
    // SAFETY: not null, and `count` pointers, by this function's contract.
    let pointers = unsafe { slice::from_raw_parts(objects, count) };
    let is_repeated = |at: usize| pointers[..at].contains(&pointers[at]);
    if (0..count).any(is_repeated) {
        return Err(INVALID);
    }
    let mut all = Vec::new();
    for pointer in pointers {
        // SAFETY: null or an object that only this call uses, and no two pointers are the same.
        all.push(unsafe { pointer.as_mut() }.ok_or(INVALID)?);
    }
    let is_broken = all.iter().any(|object| object.is_broken.load(Ordering::Relaxed));
    let broken = AtomicBool::new(is_broken);
    let result =
        guarded(&broken, || call(all.iter_mut().map(|object| &mut object.value).collect()));
    if broken.into_inner() && !is_broken {
        all.iter().for_each(|object| object.is_broken.store(true, Ordering::Relaxed));
    }
    result
}

/// Takes an object back from C.
///
/// # Safety
/// `object` is null or an object from [`create`] that was not destroyed, and is not used any more.
pub(crate) unsafe fn take<T>(object: *mut CObject<T>) -> Result<T> {
    if object.is_null() {
        return Err(INVALID);
    }
    // SAFETY: `create` made it from a box, and it was not destroyed, by this function's contract.
    let object = *unsafe { Box::from_raw(object) };
    if object.is_broken.into_inner() {
        drop_quietly(object.value);
        return Err(BROKEN);
    }
    Ok(object.value)
}

/// Destroys an object.
///
/// # Safety
/// As for [`take`].
pub(crate) unsafe fn destroy<T>(object: *mut CObject<T>) {
    // SAFETY: this function has the same contract.
    if let Ok(value) = unsafe { take(object) } {
        drop_quietly(value);
    }
}

/// Drops a value. After a panic that may panic too; then its memory and descriptors leak.
fn drop_quietly<T>(value: T) {
    let _ = catch_unwind(AssertUnwindSafe(|| drop(value)));
}

/// Calls `call`, which uses up a value that was taken from C, and catches its panics.
pub(crate) fn consume<T, R>(value: T, call: impl FnOnce(T) -> Result<R>) -> Result<R> {
    catch_unwind(AssertUnwindSafe(|| call(value))).unwrap_or(Err(BROKEN))
}

#[cfg(test)]
mod tests {
    use std::ptr;

    use super::*;
    use crate::error::AGAIN;

    fn object(value: u8) -> *mut CObject<u8> {
        let mut place = ptr::null_mut();
        // SAFETY: the place has room.
        assert_eq!(unsafe { create(&raw mut place, || Ok(value)) }, Ok(0));
        place
    }

    fn panics<T>() -> Result<T> {
        panic!("on purpose")
    }

    #[test]
    fn a_panic_is_caught_and_the_object_refuses_later_calls() {
        let object = object(1);
        // SAFETY: the object exists, and nothing else uses it.
        let change = |result| unsafe { with_mut(object, |_| result) };
        assert_eq!(change(Err::<(), _>(AGAIN)), Err(AGAIN));
        assert_eq!(change(Ok(())), Ok(()), "an error does not break the object");
        // SAFETY: as above.
        assert_eq!(unsafe { with_mut(object, |_| panics::<()>()) }, Err(BROKEN));
        assert_eq!(change(Ok(())), Err(BROKEN));
        // SAFETY: as above.
        assert_eq!(unsafe { with(object, |_| Ok(())) }, Err(BROKEN));
        // SAFETY: as above.
        assert_eq!(unsafe { with_all(&raw const object, 1, |_| Ok(())) }, Err(BROKEN));
        // SAFETY: as above, and this is its last use.
        assert_eq!(unsafe { take(object) }, Err(BROKEN));
    }

    #[test]
    fn a_panic_breaks_all_objects_of_a_call_and_creates_none() {
        let objects = [object(1), object(2)];
        // SAFETY: the objects exist, and nothing else uses them.
        let sum = unsafe { with_all(objects.as_ptr(), 2, |all| Ok(*all[0] + *all[1])) };
        assert_eq!(sum, Ok(3));
        // SAFETY: as above.
        assert_eq!(unsafe { with_all(objects.as_ptr(), 2, |_| panics::<()>()) }, Err(BROKEN));
        for object in objects {
            // SAFETY: as above, and this is its last use.
            assert_eq!(unsafe { take(object) }, Err(BROKEN));
        }
        let mut place: *mut CObject<u8> = ptr::null_mut();
        // SAFETY: the place has room.
        assert_eq!(unsafe { create(&raw mut place, panics) }, Err(BROKEN));
        assert!(place.is_null());
        assert_eq!(consume(1, |_| panics::<()>()), Err(BROKEN));
    }

    /// The man pages allow C to use these objects in several threads.
    #[test]
    fn objects_may_be_used_by_threads() {
        fn many<T: Send + Sync>() {}
        fn one_at_a_time<T: Send>() {}
        many::<iolite::Slab>();
        many::<iolite::Pool>();
        many::<iolite::Account>();
        many::<iolite::Slice>();
        many::<iolite::Aggregate>();
        many::<iolite::ProgramRequest>();
        many::<iolite::Interrupter>();
        many::<crate::program::Program>();
        one_at_a_time::<iolite::Buffer>();
        one_at_a_time::<iolite::UnsealedMemory>();
        one_at_a_time::<crate::channel::ChannelEnd>();
        one_at_a_time::<iolite::ProgramListener>();
    }

    #[test]
    fn an_object_that_is_given_twice_is_refused() {
        let only = object(1);
        // SAFETY: the object exists, and nothing else uses it.
        let twice = unsafe { with_all([only, only].as_ptr(), 2, |_| Ok(())) };
        assert_eq!(twice, Err(INVALID));
        // SAFETY: as above.
        let null = unsafe { with_all([only, ptr::null_mut()].as_ptr(), 2, |_| Ok(())) };
        assert_eq!(null, Err(INVALID));
        // SAFETY: as above, and this is its last use.
        unsafe { destroy(only) };
    }
}
