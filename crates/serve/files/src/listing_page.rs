//! A listing as an HTML page.

use millrace_http_cache::format_date;

use super::escape::{write_segment, write_text};
use super::folder_io::{Entries, FileKind, FileTime, ListEntry};
use super::listing::{ListOrder, SortKey, sort_entries};

/// Appends a page that lists entries. `path` is the path that the page shows, as the client sent
/// it, with slashes at both ends; links are relative. `has_parent` adds a link to the parent.
/// `query` chooses the order, see [`ListOrder::parse`].
pub fn write_listing(
    out: &mut Vec<u8>,
    path: &[u8],
    entries: &mut Entries,
    query: &[u8],
    has_parent: bool,
) {
    let order = ListOrder::parse(query);
    sort_entries(&mut entries.list, order);
    out.extend_from_slice(START.as_bytes());
    out.extend_from_slice(b"<title>Index of ");
    write_text(out, path);
    out.extend_from_slice(b"</title>\n<h1>Index of ");
    write_text(out, path);
    out.extend_from_slice(b"</h1>\n<table>\n<tr>");
    for key in SortKey::ALL {
        write_column(out, key, order);
    }
    out.extend_from_slice(b"</tr>\n");
    if has_parent {
        out.extend_from_slice(b"<tr><td><a href=\"../\">../</a></td><td></td><td></td></tr>\n");
    }
    for entry in &entries.list {
        write_entry(out, entry);
    }
    out.extend_from_slice(b"</table>\n");
    if entries.is_cut {
        out.extend_from_slice(b"<p>The folder has more entries than are listed.</p>\n");
    }
    out.extend_from_slice(b"</html>\n");
}

const START: &str = "<!DOCTYPE html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n\
    <meta name=\"viewport\" content=\"width=device-width\">\n\
    <style>body{font-family:sans-serif;margin:1em}\
    td,th{padding:.1em 1em .1em 0;text-align:left}\
    td:nth-child(2),th:nth-child(2){text-align:right}</style>\n";

/// Writes the head of a column. Its link sorts by the column, or reverses the order.
fn write_column(out: &mut Vec<u8>, key: SortKey, order: ListOrder) {
    let is_reversed = order.key == key && !order.is_descending;
    let order = if is_reversed { "desc" } else { "asc" };
    let (sort, title) = match key {
        SortKey::Name => (key.name(), "Name"),
        SortKey::Size => (key.name(), "Size"),
        SortKey::Date => (key.name(), "Last modified"),
    };
    let column = format!("<th><a href=\"?sort={sort}&amp;order={order}\">{title}</a></th>");
    out.extend_from_slice(column.as_bytes());
}

fn write_entry(out: &mut Vec<u8>, entry: &ListEntry) {
    let slash: &[u8] = if entry.kind == FileKind::Folder { b"/" } else { b"" };
    out.extend_from_slice(b"<tr><td><a href=\"");
    write_segment(out, &entry.name);
    out.extend_from_slice(slash);
    out.extend_from_slice(b"\">");
    write_text(out, &entry.name);
    out.extend_from_slice(slash);
    out.extend_from_slice(b"</a></td><td>");
    if entry.kind == FileKind::Regular {
        out.extend_from_slice(size_text(entry.bytes).as_bytes());
    }
    out.extend_from_slice(b"</td><td>");
    out.extend_from_slice(date_text(entry.modified).as_bytes());
    out.extend_from_slice(b"</td></tr>\n");
}

/// Returns a size with three digits or more, such as `12.3 MB`. A unit is 1024 of the one before.
fn size_text(bytes: u64) -> String {
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let mut unit = 0;
    // In tenths of the unit.
    let mut tenths = u128::from(bytes) * 10 / 1024;
    while tenths >= 10_240 && unit + 1 < UNITS.len() {
        tenths /= 1024;
        unit += 1;
    }
    match tenths {
        0..1000 => format!("{}.{} {}", tenths / 10, tenths % 10, UNITS[unit]),
        _ => format!("{} {}", tenths / 10, UNITS[unit]),
    }
}

const UNITS: [&str; 6] = ["KB", "MB", "GB", "TB", "PB", "EB"];

/// Returns a time of 1970 to 9999, such as `Sat, 21 Nov 2026 10:13:20 GMT`.
fn date_text(time: FileTime) -> String {
    format_date(time.seconds.max(0) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(name: &str, kind: FileKind, bytes: u64) -> ListEntry {
        let modified = FileTime { seconds: 1_795_256_000, nanoseconds: 0 };
        ListEntry { name: name.into(), kind, bytes, modified, linked_path: None }
    }

    #[test]
    fn names_are_escaped_in_links_and_text() {
        let mut entries = Entries {
            list: vec![
                entry("javascript:alert(1)", FileKind::Regular, 5),
                entry("<img src=x>\"'&", FileKind::Regular, 1536),
                entry("a b", FileKind::Folder, 4096),
            ],
            is_cut: true,
        };
        let mut out = Vec::new();
        write_listing(&mut out, b"/<b>/", &mut entries, b"?sort=size", true);
        let page = String::from_utf8(out).unwrap();
        for part in [
            "<h1>Index of /&lt;b&gt;/</h1>",
            "<a href=\"?sort=name&amp;order=asc\">Name</a>",
            "<a href=\"?sort=size&amp;order=desc\">Size</a>",
            "<tr><td><a href=\"../\">../</a>",
            "<a href=\"a%20b/\">a b/</a></td><td></td><td>Sat, 21 Nov 2026 10:13:20 GMT</td>",
            "<a href=\"javascript%3Aalert%281%29\">javascript:alert(1)</a></td><td>5 B</td>",
            "\"%3Cimg%20src%3Dx%3E%22%27%26\">&lt;img src=x&gt;&quot;&#39;&amp;</a></td><td>1.5 KB",
            "more entries",
        ] {
            assert!(page.contains(part), "{part} in {page}");
        }
        assert!(page.find("a b/").unwrap() < page.find("javascript:").unwrap());
        let (mut out, mut none) = (Vec::new(), Entries::default());
        write_listing(&mut out, b"/", &mut none, b"", false);
        let page = String::from_utf8(out).unwrap();
        assert!(!page.contains("../") && !page.contains("more entries"));
    }

    #[test]
    fn sizes_are_short() {
        for (bytes, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.0 KB"),
            (102_399, "99.9 KB"),
            (102_400, "100 KB"),
            (1_048_575, "1023 KB"),
            (1_048_576, "1.0 MB"),
            (u64::MAX, "15.9 EB"),
        ] {
            assert_eq!(size_text(bytes), text);
        }
    }
}
