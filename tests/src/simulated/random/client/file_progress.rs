//! The progress of a response of a folder.

use super::super::files::history::{FolderHistory, Period, VersionBytes};
use super::super::reader::excerpt;

/// The kind of a failure, and its details.
pub(super) type Wrong = (&'static str, String);

/// The progress of a response of the folder.
#[derive(Debug)]
pub(super) struct FileProgress {
    pub(super) name: usize,
    pub(super) status: u16,
    /// When the proxy may have looked for the file.
    pub(super) period: Period,
    /// The bodies that the received bytes may belong to.
    pub(super) expected: Vec<ExpectedBody>,
    pub(super) got: Vec<u8>,
    /// The offset of the body in the file, if it consists of bytes of the file as it is.
    pub(super) offset: Option<usize>,
    /// The bytes are those of several versions, because the file was changed in place.
    pub(super) is_mixed: bool,
    /// The boundary of several ranges.
    pub(super) boundary: Option<String>,
    pub(super) tag: Option<String>,
}

/// A body that a response may have.
#[derive(Clone, Debug)]
pub(super) struct ExpectedBody {
    pub(super) bytes: VersionBytes,
    /// The whole version that it is a part of.
    pub(super) version: VersionBytes,
}

impl FileProgress {
    pub(super) fn describe(&self) -> String {
        format!("{} bytes of the file {} with status {}", self.got.len(), self.name, self.status)
    }

    /// Checks the next bytes of the body.
    pub(super) fn add(&mut self, bytes: &[u8], history: &FolderHistory) -> Result<(), Wrong> {
        let start = self.got.len();
        self.got.extend_from_slice(bytes);
        if self.boundary.is_some() {
            return Ok(());
        }
        let is_next =
            |body: &ExpectedBody| body.bytes.get(start..start + bytes.len()) == Some(bytes);
        if !self.is_mixed {
            if self.expected.iter().any(is_next) {
                self.expected.retain(is_next);
                return Ok(());
            }
            self.is_mixed = true;
        }
        let may_be_mixed = history.changed_in_place(self.name, self.period)
            && self.offset.is_some_and(|at| history.may_be_mixed(self.name, at, &self.got));
        match may_be_mixed {
            true => Ok(()),
            false => {
                let details = format!("{}, then {}", self.describe(), excerpt(bytes));
                Err(("wrong-bytes", details))
            }
        }
    }

    /// Checks a whole body.
    pub(super) fn end(&self, history: &FolderHistory) -> Result<(), Wrong> {
        let found = match &self.boundary {
            Some(boundary) => self.versions_of_parts(boundary, history)?,
            None => self.expected.iter().map(|body| body.version.clone()).collect(),
        };
        let is_whole = |body: &ExpectedBody| body.bytes.len() == self.got.len();
        if self.boundary.is_none() && !self.is_mixed && !self.expected.iter().all(is_whole) {
            return Err(("looks-whole", self.describe()));
        }
        let (Some(tag), Some(version)) = (&self.tag, found.first()) else { return Ok(()) };
        let is_known = !self.is_mixed && found.iter().all(|other| other == version);
        if is_known
            && !history.changed_in_place(self.name, self.period)
            && !history.learn_tag(self.name, tag, version)
        {
            return Err(("wrong-tag", format!("{tag} is the tag of other bytes")));
        }
        Ok(())
    }

    /// Returns the versions of which the body has two ranges.
    fn versions_of_parts(
        &self,
        boundary: &str,
        history: &FolderHistory,
    ) -> Result<Vec<VersionBytes>, Wrong> {
        let parts = parts_of(&self.got, boundary);
        let parts =
            parts.ok_or_else(|| ("wrong-bytes", format!("parts {}", excerpt(&self.got))))?;
        let has = |version: &VersionBytes, (first, bytes, length): &(usize, &[u8], usize)| {
            version.len() == *length && version.get(*first..*first + bytes.len()) == Some(*bytes)
        };
        let mut versions: Vec<_> =
            self.expected.iter().map(|expected| expected.version.clone()).collect();
        versions.retain(|version| parts.iter().all(|part| has(version, part)));
        let is_mixed = |(first, bytes, _): &(usize, &[u8], usize)| {
            history.may_be_mixed(self.name, *first, bytes)
        };
        match history.changed_in_place(self.name, self.period) && parts.iter().all(is_mixed) {
            true => Ok(Vec::new()),
            false if versions.is_empty() => {
                Err(("wrong-bytes", format!("ranges of no version: {}", excerpt(&self.got))))
            }
            false => Ok(versions),
        }
    }
}

/// Returns the offsets, the bytes and the whole length of the parts of a multipart body.
fn parts_of<'a>(mut body: &'a [u8], boundary: &str) -> Option<Vec<(usize, &'a [u8], usize)>> {
    let (begin, end) = (format!("\r\n--{boundary}\r\n"), format!("\r\n--{boundary}--\r\n"));
    let mut parts = Vec::new();
    // The line end before the first boundary may be left out.
    body = body.strip_prefix(begin.as_bytes()).or(body.strip_prefix(&begin.as_bytes()[2..]))?;
    loop {
        let header = body.windows(4).position(|four| four == b"\r\n\r\n")?;
        let text = std::str::from_utf8(&body[..header]).ok()?;
        let range = text.split("\r\n").find_map(|line| line.strip_prefix("Content-Range: "))?;
        let (first, last, length) = content_range(range)?;
        let rest = &body[header + 4..];
        parts.push((first, rest.get(..last + 1 - first)?, length));
        body = &rest[last + 1 - first..];
        if body == end.as_bytes() {
            return Some(parts);
        }
        body = body.strip_prefix(begin.as_bytes())?;
    }
}

/// Parses the value of Content-Range: the first and the last byte, and the whole length.
pub(super) fn content_range(value: &str) -> Option<(usize, usize, usize)> {
    let (range, length) = value.strip_prefix("bytes ")?.split_once('/')?;
    let (first, last) = range.split_once('-')?;
    let (first, last) = (first.parse().ok()?, last.parse().ok()?);
    let length = length.parse().ok()?;
    (first <= last && last < length).then_some((first, last, length))
}
