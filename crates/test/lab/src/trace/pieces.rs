//! Traces of iolited: its clients request files, and it caches pieces of them.

use super::Trace;

/// Shorter files are read by read(2), as by `iolite::service`.
const FILE_BYTES_MIN: u64 = 32 << 10;
/// A longer file has several pieces.
const PIECE_BYTES: u64 = 2 << 20;
/// A piece counts as at least these bytes.
const CHARGED_BYTES_MIN: u64 = 64 << 10;

/// Returns the requests that iolited gets if each object of a trace is a file, read as a whole by
/// processes that read nothing twice.
pub fn pieces(trace: &Trace) -> Trace {
    let (mut sizes, mut first) = (Vec::new(), Vec::new());
    for &size in &trace.sizes {
        first.push(sizes.len() as u32);
        if size >= FILE_BYTES_MIN {
            let length = |offset| PIECE_BYTES.min(size - offset).max(CHARGED_BYTES_MIN);
            sizes.extend((0..size).step_by(PIECE_BYTES as usize).map(length));
        }
    }
    first.push(sizes.len() as u32);
    let of = |object: &u32| first[*object as usize]..first[*object as usize + 1];
    Trace { name: trace.name, requests: trace.requests.iter().flat_map(of).collect(), sizes }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_files_have_several_pieces_and_short_ones_none() {
        let sizes = vec![5 << 20, 100, 32 << 10, 2 << 20];
        let trace = pieces(&Trace { name: "test", requests: vec![1, 3, 0, 2, 1, 3], sizes });
        assert_eq!(trace.sizes, [2 << 20, 2 << 20, 1 << 20, 64 << 10, 2 << 20]);
        assert_eq!(trace.requests, [4, 0, 1, 2, 3, 4]);
    }
}
