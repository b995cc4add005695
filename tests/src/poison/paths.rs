//! Paths that two programs may read differently.

use super::path_reading::{Cut, PathReading};
use crate::corpus::random::Random;

/// Returns how an origin of the campaign reads paths: a random selection of the steps of
/// [`PathReading`].
pub(super) fn reading(random: &mut Random) -> PathReading {
    let mut often = || random.below(4) > 0;
    let (encoded_slash, backslash, merges, removes_dots) = (often(), often(), often(), often());
    let (merges_last, cuts_decoded, removes_dots_first) = (!often(), !often(), !often());
    let cut = match random.below(4) {
        0 => Cut::Nowhere,
        1 => Cut::End,
        _ => Cut::Segment,
    };
    PathReading {
        encoded_slash,
        backslash,
        merges,
        merges_last,
        removes_dots,
        removes_dots_first,
        cut,
        cuts_decoded,
    }
}

/// Returns a path that the origin may read as another page, sometimes with a query. The unit tests
/// of `path.rs` cover origins that decode `%3b` as `;` or decode twice, so no origin of the
/// campaign does.
pub(super) fn path(random: &mut Random) -> String {
    let page = random.choose(&["account", "account", "account/settings", "static/app.js", "news"]);
    let mut path = match random.below(6) {
        0 => format!("/{page}"),
        1 => format!("/{page}{}{}", separator(random), random.choose(&["app.js", "x", ""])),
        // Another page for an origin that removes dot segments before and after it decodes.
        2 => {
            let (one, other) = (separator(random), separator(random));
            let between = random.choose(&["/../", "/../", "/x/../../"]);
            format!("/static/a{one}b{between}..{other}{page}")
        }
        _ => {
            let mut path = String::new();
            for _ in 0..=random.below(2) {
                let folder = random.choose(&["static", "static", "account", "news", "a"]);
                path.push_str(&format!("/{folder}"));
                path.push_str(random.choose(&["", "", "/b"]));
            }
            for _ in 0..=random.below(2) {
                path.push_str(&separator(random));
                path.push_str(random.choose(&UPS));
            }
            format!("{path}{}{page}", separator(random))
        }
    };
    for _ in 0..random.below(3) {
        change(random, &mut path);
    }
    if random.below(8) == 0 {
        path.push_str(random.choose(&["?", "?a=1", "?/static/", "?x=/../account"]));
    }
    path
}

/// Segments that some readers take for the parent folder or for the current one.
const UPS: [&str; 12] =
    ["..", "..", "%2e%2e", ".%2e", "%2E.", "..;", "..;x=1", "%2e%2e;", ".", "%2e", "...", "..%20"];

fn separator(random: &mut Random) -> String {
    let choices = ["/", "/", "%2f", "%2F", "%5c", "%5C", "\\", "//", "/./", ";/", "/;/", ";a=b/"];
    random.choose(&choices).to_owned()
}

fn change(random: &mut Random, path: &mut String) {
    let at = 1 + random.below(path.len().max(1));
    let at = at.min(path.len());
    match random.below(7) {
        0 | 1 => encode(random, path),
        2 => path.insert(at, '/'),
        3 => path
            .insert_str(at, random.choose(&["/./", "/../", ";", ";x", "%2f", "%5c", "\\", "%00"])),
        4 => path.push_str(random.choose(&[";.css", "%2f", "/", "/.", "/..", ";", "%00.js"])),
        5 => path.insert(0, '/'),
        _ => *path = path.replacen('/', "\\", 1 + random.below(2)).replacen('\\', "/", 1),
    }
}

/// Writes one character of the path as an escape.
fn encode(random: &mut Random, path: &mut String) {
    let letters: Vec<usize> =
        path.char_indices().filter(|(_, it)| it.is_ascii_alphabetic()).map(|(at, _)| at).collect();
    if letters.is_empty() {
        return;
    }
    let at = letters[random.below(letters.len())];
    // A digit of an escape must not be escaped itself.
    let before = path[..at].bytes().rev().take(2);
    if before.into_iter().any(|byte| byte == b'%') {
        return;
    }
    let byte = path.as_bytes()[at];
    let escape = if random.below(2) == 0 { format!("%{byte:02x}") } else { format!("%{byte:02X}") };
    path.replace_range(at..=at, &escape);
}
