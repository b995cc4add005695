//! A set of field names of any size, which is cheap to build and to search. Names are compared
//! without case, and no operation is slower than sorting.

/// A set of field names, in two allocations regardless of their number.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct FieldNames {
    /// All names in lower case, concatenated.
    text: Vec<u8>,
    /// The start and end of each name in `text`. Sorted by name after [`FieldNames::sort`].
    places: Vec<(u32, u32)>,
}

impl FieldNames {
    /// Creates a sorted set of names.
    pub(super) fn new<'a>(names: impl Iterator<Item = &'a [u8]>) -> Self {
        let mut set = Self::default();
        names.for_each(|name| set.add(name));
        set.sort();
        set
    }

    /// Adds a name. [`FieldNames::contains`] finds it after the next [`FieldNames::sort`].
    pub(super) fn add(&mut self, name: &[u8]) {
        let start = self.text.len() as u32;
        self.text.extend(name.iter().map(u8::to_ascii_lowercase));
        self.places.push((start, self.text.len() as u32));
    }

    /// Sorts the names.
    pub(super) fn sort(&mut self) {
        let text = &self.text;
        self.places.sort_unstable_by_key(|&(start, end)| &text[start as usize..end as usize]);
    }

    /// Returns whether the set contains this name, in any case.
    pub(super) fn contains(&self, name: &[u8]) -> bool {
        let found = self.places.binary_search_by(|&(start, end)| {
            let known = &self.text[start as usize..end as usize];
            known.iter().copied().cmp(name.iter().map(u8::to_ascii_lowercase))
        });
        found.is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_found_without_case_and_whole() {
        let names = FieldNames::new([&b"b"[..], b"A-Long", b"b", b"c"].into_iter());
        assert!(names.contains(b"B") && names.contains(b"a-long") && names.contains(b"C"));
        assert!(!names.contains(b"a") && !names.contains(b"a-longer") && !names.contains(b""));
        assert!(!FieldNames::default().contains(b"a"));
    }
}
