//! What the program says. Nobody may be listening any more, which is no reason to fail.

use std::io::Write;

/// One line for the person who runs millrace, on standard error.
pub(crate) fn error(line: &str) {
    let _ = writeln!(std::io::stderr().lock(), "millrace: {line}");
}

/// What was asked for, on standard output.
pub(crate) fn output(text: &str) {
    let mut output = std::io::stdout().lock();
    let _ = output.write_all(text.as_bytes());
    let _ = output.flush();
}

/// A count of bytes for people: three digits or so, in powers of 1024.
pub(crate) fn bytes(count: u64) -> String {
    let units = ["bytes", "KB", "MB", "GB", "TB"];
    let mut unit = 0;
    let mut value = count as f64;
    while value >= 1000.0 && unit + 1 < units.len() {
        value /= 1024.0;
        unit += 1;
    }
    match unit {
        0 => format!("{count} {}", units[0]),
        _ if value < 10.0 => format!("{value:.1} {}", units[unit]),
        _ => format!("{value:.0} {}", units[unit]),
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn bytes_are_rounded_for_people() {
        let texts = [0, 999, 1000, 1536, 10 << 20, 3 << 40].map(super::bytes);
        assert_eq!(texts, ["0 bytes", "999 bytes", "1.0 KB", "1.5 KB", "10 MB", "3.0 TB"]);
    }
}
