//! What the program writes for people: lines on standard error, and results on standard output.

use std::io::{ErrorKind, Write};

use crate::program_error::ProgramError;

/// One line for the person who runs millrace, on standard error. A closed one is no reason to fail.
pub(crate) fn log(line: &str) {
    let _ = writeln!(std::io::stderr().lock(), "millrace: {line}");
}

/// Writes the result of a command to standard output.
///
/// # Errors
/// When it could not be written. A reader that has closed its pipe got what it wanted.
pub(crate) fn write_result(text: &str) -> Result<(), ProgramError> {
    let mut output = std::io::stdout().lock();
    match output.write_all(text.as_bytes()).and_then(|()| output.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            Err(ProgramError::system("cannot write to standard output", error))
        }
        _ => Ok(()),
    }
}

/// A count of bytes for people: three digits or so, in powers of 1024.
pub(crate) fn format_bytes(count: u64) -> String {
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
        let texts = [0, 999, 1000, 1536, 10 << 20, 3 << 40].map(super::format_bytes);
        assert_eq!(texts, ["0 bytes", "999 bytes", "1.0 KB", "1.5 KB", "10 MB", "3.0 TB"]);
    }
}
