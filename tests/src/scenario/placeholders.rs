//! The values of placeholders in one run.

use std::collections::BTreeMap;

use super::{Piece, pattern};

/// Placeholders and their values.
#[derive(Clone, Default, Debug)]
pub struct Placeholders(BTreeMap<String, String>);

impl Placeholders {
    /// Sets `{name}` to `address`, and `{name.port}` to the part after its last colon.
    pub fn set(&mut self, name: &str, address: &str) {
        let port = address.rsplit(':').next().unwrap_or_default();
        self.0.insert(format!("{{{name}.port}}"), port.to_owned());
        self.0.insert(format!("{{{name}}}"), address.to_owned());
    }

    /// Returns `text` with every known placeholder replaced.
    pub fn fill(&self, text: &str) -> String {
        self.0.iter().fold(text.to_owned(), |text, (name, value)| text.replace(name, value))
    }

    /// Returns the bytes of `pieces`, joined.
    pub fn bytes(&self, pieces: &[Piece]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for piece in pieces {
            match piece {
                Piece::Text(text) => match std::str::from_utf8(text) {
                    Ok(text) => bytes.extend_from_slice(self.fill(text).as_bytes()),
                    Err(_) => bytes.extend_from_slice(text),
                },
                Piece::Fill(length) => bytes.resize(bytes.len() + length, b'a'),
                Piece::Pattern(length, seed) => bytes.extend(pattern(*length, *seed)),
                Piece::Chunk(length, seed) => {
                    bytes.extend_from_slice(format!("{length:x}\r\n").as_bytes());
                    bytes.extend(pattern(*length, *seed));
                    bytes.extend_from_slice(b"\r\n");
                }
            }
        }
        bytes
    }
}
