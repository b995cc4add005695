//! Bodies with several ranges (RFC 9110 section 14.6): `multipart/byteranges`.

use super::ranges::Ranges;

/// The layout of a multipart body. For each range, [`Multipart::write_part_head`] writes the header
/// and the caller writes the bytes; [`Multipart::write_end`] writes the end.
#[derive(Clone, Copy, Debug)]
pub struct Multipart<'a> {
    ranges: &'a Ranges,
    /// Length of the whole representation, if it is known.
    complete: Option<u64>,
    /// The `Content-Type` of the representation; empty if it has none.
    content_type: &'a [u8],
    boundary: [u8; 32],
}

impl<'a> Multipart<'a> {
    /// Creates the layout for these ranges. `random` becomes the boundary: a new number each time,
    /// so that no body can be prepared that contains it.
    pub fn new(
        ranges: &'a Ranges,
        complete: Option<u64>,
        content_type: &'a [u8],
        random: u128,
    ) -> Self {
        let mut boundary = [0; 32];
        for (at, byte) in boundary.iter_mut().enumerate() {
            *byte = b"0123456789abcdef"[(random >> (4 * at) & 15) as usize];
        }
        Self { ranges, complete, content_type, boundary }
    }

    /// Returns the value of the response's `Content-Type`.
    pub fn content_type(&self) -> Vec<u8> {
        [b"multipart/byteranges; boundary=", &self.boundary[..]].concat()
    }

    /// Returns the length of the body in bytes.
    pub fn length(&self) -> u64 {
        let mut text = Vec::new();
        (0..self.ranges.as_slice().len()).for_each(|at| self.write_part_head(&mut text, at));
        self.write_end(&mut text);
        let parts = self.ranges.as_slice().iter().map(|range| range.length());
        parts.fold(text.len() as u64, u64::saturating_add)
    }

    /// Appends the header of the range with index `at`.
    pub fn write_part_head(&self, out: &mut Vec<u8>, at: usize) {
        let range = self.ranges.as_slice()[at];
        out.extend_from_slice(if at == 0 { b"--" } else { b"\r\n--" });
        out.extend_from_slice(&self.boundary);
        if !self.content_type.is_empty() {
            out.extend_from_slice(b"\r\nContent-Type: ");
            out.extend_from_slice(self.content_type);
        }
        out.extend_from_slice(b"\r\nContent-Range: ");
        out.extend_from_slice(range.content_range(self.complete).as_bytes());
        out.extend_from_slice(b"\r\n\r\n");
    }

    /// Appends the end after the last range.
    pub fn write_end(&self, out: &mut Vec<u8>) {
        for part in [b"\r\n--", &self.boundary[..], b"--\r\n"] {
            out.extend_from_slice(part);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::ranges::{Selection, select_ranges};
    use super::super::test_messages::{HASH, get, stored_response};
    use super::*;

    #[test]
    fn a_body_has_each_range_with_its_place_rfc_9110_section_14_6() {
        let stored = stored_response("Cache-Control: max-age=60\r\n");
        let ranged = get("Range: bytes=0-1, -2\r\n");
        let selected = select_ranges(&ranged, &stored, 11, &HASH);
        let Selection::Parts(ranges) = selected else { panic!("several") };
        let multipart = Multipart::new(&ranges, Some(11), b"text/plain", 0x1f);
        let mut body = Vec::new();
        for (at, range) in ranges.as_slice().iter().enumerate() {
            multipart.write_part_head(&mut body, at);
            body.extend_from_slice(&b"01234567890"[range.first as usize..=range.last as usize]);
        }
        multipart.write_end(&mut body);
        let boundary = format!("f1{}", "0".repeat(30));
        let expected = format!(
            "--{boundary}\r\nContent-Type: text/plain\r\nContent-Range: bytes 0-1/11\r\n\r\n01\r\n\
             --{boundary}\r\nContent-Type: text/plain\r\nContent-Range: bytes 9-10/11\r\n\r\n90\r\n\
             --{boundary}--\r\n"
        );
        assert_eq!(String::from_utf8(body.clone()).unwrap(), expected);
        assert_eq!(multipart.length(), body.len() as u64);
        let content_type = format!("multipart/byteranges; boundary={boundary}");
        assert_eq!(multipart.content_type(), content_type.as_bytes());
    }
}
