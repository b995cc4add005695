//! The order of a listing.

use std::cmp::Ordering;

use super::folder_io::{FileKind, ListEntry};

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

    fn compare(self, one: &ListEntry, other: &ListEntry) -> Ordering {
        let by_key = match self.key {
            SortKey::Name => Ordering::Equal,
            SortKey::Size => one.bytes.cmp(&other.bytes),
            SortKey::Date => one.modified.cmp(&other.modified),
        };
        let lower = |entry: &ListEntry| entry.name.to_ascii_lowercase();
        let by_name = || lower(one).cmp(&lower(other)).then_with(|| one.name.cmp(&other.name));
        let ordering = by_key.then_with(by_name);
        if self.is_descending { ordering.reverse() } else { ordering }
    }
}

/// Sorts entries, folders first.
pub fn sort_entries(entries: &mut [ListEntry], order: ListOrder) {
    let is_file = |entry: &ListEntry| entry.kind == FileKind::Regular;
    entries.sort_by(|one, other| {
        is_file(one).cmp(&is_file(other)).then_with(|| order.compare(one, other))
    });
}

#[cfg(test)]
mod tests {
    use super::super::folder_io::FileTime;
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
}
