//! The order of a listing.

use super::folder_io::{FileKind, FileTime, ListEntry};

/// The property by which a listing is sorted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum SortKey {
    /// The name, ignoring ASCII case.
    #[default]
    Name,
    /// The size.
    Size,
    /// The time of modification.
    Date,
}

impl SortKey {
    pub(super) const ALL: [Self; 3] = [Self::Name, Self::Size, Self::Date];

    /// Returns the value of `sort` in a query.
    pub fn name(self) -> &'static str {
        match self {
            Self::Name => "name",
            Self::Size => "size",
            Self::Date => "date",
        }
    }
}

/// The order of a listing. Folders precede files in each.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ListOrder {
    /// The property that is compared.
    pub key: SortKey,
    /// Whether the largest, latest or last entry is first.
    pub is_descending: bool,
}

impl ListOrder {
    /// Parses the query of a request, such as `?sort=size&order=desc`. Everything else is ignored.
    pub fn parse(query: &[u8]) -> Self {
        let mut order = Self::default();
        let query = query.strip_prefix(b"?").unwrap_or(query);
        for parameter in query.split(|&byte| byte == b'&') {
            if let Some(value) = parameter.strip_prefix(b"sort=") {
                let is_name = |key: &SortKey| key.name().as_bytes() == value;
                order.key = SortKey::ALL.into_iter().find(is_name).unwrap_or(order.key);
            } else if let Some(value) = parameter.strip_prefix(b"order=") {
                order.is_descending = value == b"desc";
            }
        }
        order
    }

    /// Returns the property of an entry that is compared, then its name.
    fn sort_key(self, entry: &ListEntry) -> (u64, FileTime, Vec<u8>, Vec<u8>) {
        let (bytes, modified) = match self.key {
            SortKey::Name => (0, FileTime::default()),
            SortKey::Size => (entry.bytes, FileTime::default()),
            SortKey::Date => (0, entry.modified),
        };
        (bytes, modified, entry.name.to_ascii_lowercase(), entry.name.clone())
    }
}

/// Sorts entries, folders first. The keys are made once, because a comparison must not allocate.
pub fn sort_entries(entries: &mut [ListEntry], order: ListOrder) {
    entries.sort_by_cached_key(|entry| order.sort_key(entry));
    if order.is_descending {
        entries.reverse();
    }
    // This sort is stable.
    entries.sort_by_key(|entry| entry.kind == FileKind::Regular);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sorted(query: &str) -> String {
        let entry = |name: &str, bytes, seconds| ListEntry {
            name: name.into(),
            kind: if name.ends_with('/') { FileKind::Folder } else { FileKind::Regular },
            bytes,
            modified: FileTime { seconds, nanoseconds: 0 },
            linked_path: None,
        };
        let mut entries = [
            entry("b", 1, 3),
            entry("C", 3, 1),
            entry("a", 2, 2),
            entry("z/", 0, 9),
            entry("y/", 0, 1),
        ];
        sort_entries(&mut entries, ListOrder::parse(query.as_bytes()));
        entries.map(|entry| String::from_utf8(entry.name).unwrap()).join(" ")
    }

    #[test]
    fn the_query_chooses_the_order() {
        for (query, expected) in [
            ("", "y/ z/ a b C"),
            ("?sort=name&order=desc", "z/ y/ C b a"),
            ("?sort=size", "y/ z/ b a C"),
            ("?order=desc&sort=size", "z/ y/ C a b"),
            ("?sort=date", "y/ z/ C a b"),
            ("?sort=date&order=desc", "z/ y/ b a C"),
            ("?sort=other&order=up&x", "y/ z/ a b C"),
            ("?sort=size&order=asc&order=", "y/ z/ b a C"),
        ] {
            assert_eq!(sorted(query), expected, "{query}");
        }
    }
    #[test]
    fn names_that_differ_only_in_case_have_an_order() {
        for (order, expected) in [("asc", "Ab aB ab b"), ("desc", "b ab aB Ab")] {
            let names = ["b", "ab", "Ab", "aB"];
            let entry = |name: &str| ListEntry {
                linked_path: None,
                name: name.into(),
                kind: FileKind::Regular,
                bytes: 1,
                modified: FileTime::default(),
            };
            for sort in ["name", "size", "date"] {
                let mut entries = names.map(entry);
                let query = format!("?sort={sort}&order={order}");
                sort_entries(&mut entries, ListOrder::parse(query.as_bytes()));
                let sorted = entries.map(|entry| String::from_utf8(entry.name).unwrap());
                assert_eq!(sorted.join(" "), expected, "{query}");
            }
        }
    }
}
