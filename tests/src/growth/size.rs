//! How long the headers are that are played.

use millrace_http1::path;

use super::message::PATH;

/// The limits of headers, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Size {
    /// Of a request.
    pub request: usize,
    /// Of a response.
    pub response: usize,
}

/// Bytes that a header has beside the field under test, or less.
const OTHER_BYTES: usize = 256;

impl Size {
    /// What every case is played at. Quadratic work is far above everything else here already.
    pub const SMALL: Self = Self { request: 8192, response: 8192 };
    /// The limits that apply unless an operator sets others.
    pub const DEFAULT: Self = Self { request: 32_768, response: 65_536 };

    /// The bytes of a field in a request and in a response, at 1 / `parts` of the limits.
    pub(super) fn bytes(self, parts: usize) -> [usize; 2] {
        [self.request, self.response].map(|limit| (limit - OTHER_BYTES) / parts)
    }

    /// The same limits, but for the path, of which the proxy reads no more than 4 KiB.
    pub(super) fn of(self, name: &str) -> Self {
        let longest = path::INTERPRETED_BYTES_MAX - "/s".len() + OTHER_BYTES;
        let request = if name == PATH { self.request.min(longest) } else { self.request };
        Self { request, ..self }
    }
}
