//! The messages that clients and origins agree on.

/// Returns the body of the response to a request.
pub(super) fn body_of(id: u32) -> Vec<u8> {
    let length = match id % 16 {
        0 => 30_000,
        of @ 1..4 => 3_000 * of,
        of => 40 * of,
    };
    (0..length).map(|at| (id.wrapping_mul(31).wrapping_add(at * 7) >> 3) as u8).collect()
}

/// Returns the end of the first header in `bytes`.
pub(super) fn find_end(bytes: &[u8]) -> Option<usize> {
    bytes.windows(4).position(|it| it == b"\r\n\r\n").map(|at| at + 4)
}
