//! The sizes of the headers.

use millrace_http1::path;

use super::message::PATH;

/// The limits of headers, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Size {
    /// Limit of a request header.
    pub request: usize,
    /// Limit of a response header.
    pub response: usize,
}

/// Upper bound of the bytes that a header has besides the field under test.
const OTHER_BYTES: usize = 256;

impl Size {
    /// The size at which every case is checked. At this size quadratic work already dominates.
    pub const SMALL: Self = Self { request: 8192, response: 8192 };
    /// The default limits.
    pub const DEFAULT: Self = Self { request: 32_768, response: 65_536 };

    /// Returns the bytes of a field in a request and in a response, at 1 / `parts` of the limits.
    pub(super) fn bytes(self, parts: usize) -> [usize; 2] {
        [self.request, self.response].map(|limit| (limit - OTHER_BYTES) / parts)
    }

    /// Returns the same limits, except for the path, of which the proxy reads at most 4 KiB.
    pub(super) fn of(self, name: &str) -> Self {
        let longest = path::INTERPRETED_BYTES_MAX - "/s".len() + OTHER_BYTES;
        let request = if name == PATH { self.request.min(longest) } else { self.request };
        Self { request, ..self }
    }
}
