//! Output of the program: log lines on standard error and results on standard output.

use std::io::{ErrorKind, Write};

use crate::program_error::ProgramError;

/// Writes a log line to standard error. Errors are ignored: a closed standard error must not stop
/// the process.
pub(crate) fn log(line: &str) {
    let _ = writeln!(std::io::stderr().lock(), "millrace: {line}");
}

/// Writes the result of a command to standard output.
///
/// # Errors
/// If writing fails, except with EPIPE: a reader that closes its pipe has read enough.
pub(crate) fn write_result(text: &str) -> Result<(), ProgramError> {
    let mut output = std::io::stdout().lock();
    match output.write_all(text.as_bytes()).and_then(|()| output.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            Err(ProgramError::system("cannot write to standard output", error))
        }
        _ => Ok(()),
    }
}

/// Formats a number of bytes with about three digits and a unit (powers of 1024).
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
