//! Values computed from bytes and kept with them. A change of the bytes drops their values.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};

use sha2::Sha256;

use crate::aggregate::Aggregate;
use crate::checksum::Sum;
use crate::limits::FORMS_MAX;
use crate::slab::StatCounters;
use crate::slice::Slice;

/// A digest that no two contents share (SHA-256), for example for a strong entity tag.
pub type Digest = [u8; 32];

/// The derived values of an extent's slices. They are dropped with the extent, or when its bytes
/// change.
#[derive(Debug, Default)]
pub(crate) struct DerivedForms(Mutex<Vec<DerivedEntry>>);

/// A derived value of `length` bytes from `start` on in the extent.
#[derive(Debug)]
struct DerivedEntry {
    start: u32,
    length: u32,
    form: DerivedForm,
}

#[derive(Debug)]
enum DerivedForm {
    Sum(Sum),
    Crc32c(u32),
    Digest(Digest),
    /// The bytes in another coding, with the number that the caller gave the coding.
    Variant(u32, Aggregate),
}

impl DerivedForms {
    fn entries(&self) -> MutexGuard<'_, Vec<DerivedEntry>> {
        self.0.lock().expect("no holder of this lock panics")
    }
}

impl Slice {
    /// Returns the sum of the Internet checksum, computed once.
    pub fn sum(&self) -> Sum {
        let get =
            |form: &DerivedForm| if let DerivedForm::Sum(sum) = form { Some(*sum) } else { None };
        self.derive(get, || Sum::of(self), DerivedForm::Sum)
    }

    /// Returns the CRC-32C (RFC 3720 appendix B.4), computed once.
    pub fn crc32c(&self) -> u32 {
        let get = |form: &DerivedForm| {
            if let DerivedForm::Crc32c(crc) = form { Some(*crc) } else { None }
        };
        self.derive(get, || crc32c::crc32c(self), DerivedForm::Crc32c)
    }

    /// Returns the digest, computed once.
    pub fn digest(&self) -> Digest {
        let get = |form: &DerivedForm| {
            if let DerivedForm::Digest(digest) = form { Some(*digest) } else { None }
        };
        self.derive(get, || <Sha256 as sha2::Digest>::digest(&self[..]).into(), DerivedForm::Digest)
    }

    /// Returns the variant that [`Slice::store_variant`] stored under this number.
    pub fn variant(&self, number: u32) -> Option<Aggregate> {
        let found = self.find(|form| match form {
            DerivedForm::Variant(of, variant) if *of == number => Some(variant.clone()),
            _ => None,
        });
        self.count_forms(|counters| &counters.forms_reused, found.is_some());
        found
    }

    /// Keeps another coding of the bytes, such as a compressed one, as long as the bytes themselves
    /// are held. `number` is the caller's number for the coding. Returns whether the variant is
    /// kept. It is not kept if the slice has one of this number already, if there are [`FORMS_MAX`]
    /// derived values, or if a slice of the variant is not younger than this slice (by generation).
    /// Derived bytes are always younger than their source, so this rule only excludes reference
    /// cycles.
    pub fn store_variant(&self, number: u32, variant: Aggregate) -> bool {
        let generation = self.extent.generation;
        if variant.slices().any(|slice| slice.id().generation <= generation) {
            return false;
        }
        // A variant that is not kept is dropped when this function returns, after the lock was
        // released.
        let same =
            |form: &DerivedForm| matches!(form, DerivedForm::Variant(of, _) if *of == number);
        let mut variant = Some(variant);
        let mut entries = self.extent.get_or_init_forms::<DerivedForms>().entries();
        if entries.len() < FORMS_MAX && !entries.iter().any(|of| self.matches(of) && same(&of.form))
        {
            let (start, length) = (self.start, self.len() as u32);
            let form = variant.take().map(|variant| DerivedForm::Variant(number, variant));
            entries.extend(form.map(|form| DerivedEntry { start, length, form }));
        }
        drop(entries);
        let is_stored = variant.is_none();
        self.count_forms(|counters| &counters.forms_computed, is_stored);
        is_stored
    }

    /// Finds a derived value, or computes it and keeps it if there is room. Two threads may both
    /// compute it, since no thread waits for another.
    fn derive<T: Copy>(
        &self,
        get: impl Fn(&DerivedForm) -> Option<T>,
        compute: impl FnOnce() -> T,
        wrap: impl FnOnce(T) -> DerivedForm,
    ) -> T {
        if let Some(found) = self.find(&get) {
            self.count_forms(|counters| &counters.forms_reused, true);
            return found;
        }
        let value = compute();
        self.count_forms(|counters| &counters.forms_computed, true);
        let mut entries = self.extent.get_or_init_forms::<DerivedForms>().entries();
        let is_known = entries.iter().any(|of| self.matches(of) && get(&of.form).is_some());
        if !is_known && entries.len() < FORMS_MAX {
            let (start, length) = (self.start, self.len() as u32);
            entries.push(DerivedEntry { start, length, form: wrap(value) });
        }
        value
    }

    fn find<T>(&self, get: impl Fn(&DerivedForm) -> Option<T>) -> Option<T> {
        let entries = self.extent.forms::<DerivedForms>()?.entries();
        entries.iter().filter(|of| self.matches(of)).find_map(|of| get(&of.form))
    }

    /// Increments a counter of the slab, if the slice is in one and `is_counted`.
    fn count_forms(&self, counter: impl Fn(&StatCounters) -> &AtomicU64, is_counted: bool) {
        if let Some(counters) = self.counters().filter(|_| is_counted) {
            counter(counters).fetch_add(1, Ordering::Relaxed);
        }
    }

    fn matches(&self, entry: &DerivedEntry) -> bool {
        (entry.start, entry.length as usize) == (self.start, self.len())
    }
}

impl Aggregate {
    /// Returns the sum of the Internet checksum. The sum of each slice is computed once.
    pub fn sum(&self) -> Sum {
        let (mut length, mut sum) = (0, Sum::default());
        for slice in self.slices() {
            sum = sum.followed_by(length, slice.sum());
            length += slice.len() as u64;
        }
        sum
    }

    /// Returns the CRC-32C. The CRC of each slice is computed once.
    pub fn crc32c(&self) -> u32 {
        self.slices().fold(0, |crc, slice| crc32c::crc32c_combine(crc, slice.crc32c(), slice.len()))
    }

    /// Returns the digest. The digest of a single slice is computed once. The digest of several
    /// slices cannot be combined from their digests, so it is computed each time; the caller may
    /// keep it.
    pub fn digest(&self) -> Digest {
        let mut slices = self.slices();
        if let (Some(only), None) = (slices.next(), slices.next()) {
            return only.digest();
        }
        if let Some(first) = self.slices().next() {
            first.count_forms(|counters| &counters.forms_computed, true);
        }
        let mut digest = <Sha256 as sha2::Digest>::new();
        self.slices().for_each(|slice| sha2::Digest::update(&mut digest, &slice[..]));
        sha2::Digest::finalize(digest).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Slab;
    use crate::limits::SLAB_BYTES_MIN;
    use crate::test_slices::slice;

    #[test]
    fn derived_values_are_found_until_the_bytes_change() {
        let slab = Slab::on_heap(SLAB_BYTES_MIN).unwrap();
        let mut whole = slice(&slab, b"123456789");
        let counts = |slab: &Slab| (slab.stats().forms_computed, slab.stats().forms_reused);
        assert_eq!((whole.crc32c(), counts(&slab)), (0xe306_9283, (1, 0)));
        let (again, part) = (whole.clone(), whole.slice(0..4));
        assert_eq!((again.crc32c(), counts(&slab)), (0xe306_9283, (1, 1)));
        assert_eq!((part.crc32c(), counts(&slab)), (crc32c::crc32c(b"1234"), (2, 1)));
        assert_eq!((again.sum(), counts(&slab)), (Sum::of(b"123456789"), (3, 1)));
        assert_eq!(again.digest()[..4], [0x15, 0xe2, 0xb0, 0xd3]);
        assert_eq!((again.digest()[31], counts(&slab)), (0x25, (4, 2)));
        drop((again, part));
        whole.get_mut().unwrap()[0] = b'0';
        assert_eq!((whole.crc32c(), counts(&slab)), (crc32c::crc32c(b"023456789"), (5, 2)));
    }

    #[test]
    fn forms_are_bounded() {
        let slab = Slab::on_heap(SLAB_BYTES_MIN).unwrap();
        let whole = slice(&slab, &[7; 300]);
        for length in 0..100 {
            assert_eq!(whole.slice(0..length).sum(), Sum::of(&[7; 300][..length]));
        }
        assert_eq!(whole.slice(0..99).sum(), Sum::of(&[7; 99]));
        assert_eq!((slab.stats().forms_computed, slab.stats().forms_reused), (101, 0));
        assert_eq!(whole.slice(0..1).sum(), Sum::of(&[7]));
        assert_eq!(slab.stats().forms_reused, 1);
    }

    #[test]
    fn a_variant_lives_as_long_as_its_source() {
        let slab = Slab::on_heap(SLAB_BYTES_MIN).unwrap();
        let (older, whole) = (slice(&slab, b"older"), slice(&slab, b"plain"));
        let variant = Aggregate::from(slice(&slab, b"coded"));
        assert!(whole.variant(1).is_none());
        assert!(whole.store_variant(1, variant.clone()));
        assert!(!whole.store_variant(1, variant.clone()), "it exists already");
        assert!(whole.variant(2).is_none() && whole.slice(0..1).variant(1).is_none());
        assert_eq!(whole.clone().variant(1).unwrap().to_vec(), b"coded");
        assert!(
            !whole.store_variant(2, Aggregate::from(whole.clone())),
            "it would be a reference cycle"
        );
        assert!(!whole.store_variant(2, Aggregate::from(older.clone())));
        drop((variant, older));
        assert_eq!(slab.stats().extents, 2);
        drop(whole);
        assert_eq!(slab.stats().extents, 0);
    }

    #[test]
    fn sums_of_slices_combine_to_that_of_the_aggregate() {
        let slab = Slab::on_heap(SLAB_BYTES_MIN).unwrap();
        let (one, other) = (slice(&slab, b"one and"), slice(&slab, b" other"));
        let mut both = Aggregate::from(one);
        both.append(other);
        assert_eq!(both.sum(), Sum::of(b"one and other"));
        assert_eq!(both.crc32c(), crc32c::crc32c(b"one and other"));
        assert_eq!(both.digest(), <Sha256 as sha2::Digest>::digest(b"one and other")[..]);
        let before = slab.stats();
        assert_eq!(
            (both.sum(), slab.stats().forms_computed),
            (Sum::of(b"one and other"), before.forms_computed)
        );
        assert_eq!(slab.stats().forms_reused, before.forms_reused + 2);
    }
}
