//! A set of field names of any size that costs little to build and to search: names are compared
//! without case, and neither step is slower than sorting.

/// Names of fields, in two pieces of memory however many they are.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct FieldNames {
    /// All of them in lower case, one after the other.
    text: Vec<u8>,
    /// Where each one is in `text`, as start and end. Sorted by the names once [`Names::sort`] was
    /// called.
    places: Vec<(u32, u32)>,
}

impl FieldNames {
    /// The names in sorted order.
    pub(super) fn new<'a>(names: impl Iterator<Item = &'a [u8]>) -> Self {
        let mut set = Self::default();
        names.for_each(|name| set.add(name));
        set.sort();
        set
    }

    /// Adds a name. [`Names::has`] finds it after the next [`Names::sort`].
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

    /// Whether this name is among them, in whatever case.
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
