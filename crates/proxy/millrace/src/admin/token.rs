//! The bearer token for changes over TCP. It is read from its file once and compared in constant
//! time.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use millrace_config::ConfigError;
use millrace_http1::HeaderWriter;

/// The minimum length of a token in bytes.
const BYTES_MIN: usize = 16;
/// The maximum length of a token in bytes.
const BYTES_MAX: usize = 1024;
/// Permissions for users other than the file's owner and group.
const MODE_OF_OTHERS: u32 = 0o007;

/// A token. It is never logged, and `Debug` does not show it.
pub(crate) struct Token(Vec<u8>);

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Token(..)")
    }
}

impl Token {
    /// Reads the token from the file at `path`, which contains nothing else.
    ///
    /// # Errors
    /// If the file cannot be read, has permissions for other users, or contains no valid token.
    pub(crate) fn read(option: &str, path: &Path) -> Result<Self, ConfigError> {
        let refused = |wrong: String| ConfigError::Rule {
            location: format!("{option} {}", path.display()),
            problem: wrong,
            expected: format!(
                "a file without permissions for other users (chmod 600), with one line of \
                 {BYTES_MIN} to {BYTES_MAX} printable characters"
            ),
        };
        let failed = |error: std::io::Error| refused(format!("cannot be read: {error}"));
        let file = File::open(path).map_err(failed)?;
        // The metadata of the open file, so that the file checked is the file read.
        let mode = file.metadata().map_err(failed)?.mode();
        if mode & MODE_OF_OTHERS != 0 {
            return Err(refused(format!(
                "has permissions for other users (mode {:03o})",
                mode & 0o777
            )));
        }
        let mut bytes = Vec::new();
        // Two bytes more than allowed: a newline, and one byte that shows that the token is too
        // long.
        file.take(BYTES_MAX as u64 + 2).read_to_end(&mut bytes).map_err(failed)?;
        if bytes.last() == Some(&b'\n') {
            bytes.pop();
        }
        match bytes {
            _ if !bytes.iter().all(u8::is_ascii_graphic) => {
                Err(refused("contains more than one line of printable characters".to_owned()))
            }
            _ if bytes.len() < BYTES_MIN => {
                Err(refused("contains a token that is too short".to_owned()))
            }
            _ if bytes.len() > BYTES_MAX => {
                Err(refused("contains a token that is too long".to_owned()))
            }
            _ => Ok(Self(bytes)),
        }
    }

    /// Writes the Authorization field with this token (RFC 6750 section 2.1).
    pub(crate) fn write_field(&self, header: &mut impl HeaderWriter) {
        header.field_with(b"Authorization", |value| {
            value.extend_from_slice(b"Bearer ");
            value.extend_from_slice(&self.0);
        });
    }

    /// Returns whether the value of an Authorization field contains this token. The time that this
    /// takes reveals only the length of the token.
    pub(super) fn matches(&self, authorization: &str) -> bool {
        let Some((scheme, token)) = authorization.split_once(' ') else { return false };
        // RFC 9110 section 11.1: the scheme is case-insensitive.
        let is_bearer = scheme.eq_ignore_ascii_case("Bearer");
        let token = token.trim_start_matches(' ').as_bytes();
        if token.len() != self.0.len() {
            return false;
        }
        let pairs = token.iter().zip(&self.0);
        // `black_box` keeps the optimizer from ending the loop at the first difference.
        let different = pairs
            .fold(0, |different, (one, other)| std::hint::black_box(different | (one ^ other)));
        different == 0 && is_bearer
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use millrace_http1::Http1Header;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_token_is_one_line_of_a_private_file_and_compared_in_full() {
        let path = std::env::temp_dir().join(format!("millrace-token-{}", std::process::id()));
        let read = |text: &[u8], mode| {
            std::fs::write(&path, text).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            Token::read("file", &path).map_err(|error| error.to_string())
        };
        for (text, mode, wrong) in [
            (&b"0123456789abcde\n"[..], 0o600, "too short"),
            (b"0123456789abcdef\n\n", 0o600, "one line"),
            (b"0123456789 abcdef", 0o600, "printable"),
            (&[b'a'; 1025], 0o600, "too long"),
            (b"0123456789abcdef\n", 0o644, "has permissions for other users (mode 644)"),
        ] {
            assert!(read(text, mode).unwrap_err().contains(wrong), "{wrong}");
        }
        for text in [&b"0123456789abcdef"[..], b"0123456789abcdef\n"] {
            let token = read(text, 0o640).unwrap();
            let mut field = Vec::new();
            token.write_field(&mut Http1Header::new(&mut field));
            assert_eq!(field, b"Authorization: Bearer 0123456789abcdef\r\n");
            assert!(
                token.matches("Bearer 0123456789abcdef")
                    && token.matches("bearer  0123456789abcdef")
            );
            for wrong in [
                "Bearer 0123456789abcdeg",
                "Bearer 0123456789abcde",
                "0123456789abcdef",
                "Basic 0123456789abcdef",
                "Bearer",
                "",
            ] {
                assert!(!token.matches(wrong), "{wrong}");
            }
        }
        assert!(Token::read("file", Path::new("/nowhere")).is_err());
        std::fs::remove_file(&path).unwrap();
    }
}
