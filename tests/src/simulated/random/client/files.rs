//! Checks of the responses for files: each is one version of the file as a whole, or a refusal that
//! the plan of the folder explains.

use millrace_proxy::reason::Reason;
use millrace_sim::{Faults, World};

use super::super::files::history::{FolderHistory, Period, VersionBytes};
use super::super::files::plan::{FileCondition, FileRequest, RangeRequest};
use super::super::plan::{Difficulty, Method, Request};
use super::super::reader::excerpt;
use super::{RandomClient, ResponseProgress};
use crate::strict::{Framing, Message};

/// The kind of a failure, and its details.
type Wrong = (&'static str, String);

/// The progress of a response of the folder.
#[derive(Debug)]
pub(super) struct FileProgress {
    name: usize,
    status: u16,
    /// When the proxy may have looked for the file.
    period: Period,
    /// The bodies that the received bytes may belong to.
    expected: Vec<ExpectedBody>,
    got: Vec<u8>,
    /// The offset of the body in the file, if it consists of bytes of the file as it is.
    offset: Option<usize>,
    /// The bytes are those of several versions, because the file was changed in place.
    is_mixed: bool,
    /// The boundary of several ranges.
    boundary: Option<String>,
    tag: Option<String>,
}

/// A body that a response may have.
#[derive(Clone, Debug)]
struct ExpectedBody {
    bytes: VersionBytes,
    /// The whole version that it is a part of.
    version: VersionBytes,
}

impl FileProgress {
    pub(super) fn describe(&self) -> String {
        format!("{} bytes of the file {} with status {}", self.got.len(), self.name, self.status)
    }

    /// Checks the next bytes of the body.
    fn add(&mut self, bytes: &[u8], history: &FolderHistory) -> Result<(), Wrong> {
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
    fn end(&self, history: &FolderHistory) -> Result<(), Wrong> {
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
fn content_range(value: &str) -> Option<(usize, usize, usize)> {
    let (range, length) = value.strip_prefix("bytes ")?.split_once('/')?;
    let (first, last) = range.split_once('-')?;
    let (first, last) = (first.parse().ok()?, last.parse().ok()?);
    let length = length.parse().ok()?;
    (first <= last && last < length).then_some((first, last, length))
}

/// A response of the folder, before its body.
struct FileResponse<'a> {
    request: &'a Request,
    file: FileRequest,
    message: &'a Message,
    history: FolderHistory,
    period: Period,
    /// The entity tag of the request.
    sent_tag: Option<String>,
}

impl FileResponse<'_> {
    fn field(&self, name: &str) -> Option<String> {
        let field = self.message.fields.iter().find(|field| field.is(name))?;
        Some(String::from_utf8_lossy(&field.value).into_owned())
    }

    fn progress(&self, expected: Vec<ExpectedBody>) -> FileProgress {
        FileProgress {
            name: self.file.name,
            status: self.message.status(),
            period: self.period,
            expected,
            got: Vec::new(),
            offset: None,
            is_mixed: false,
            boundary: None,
            tag: self.field("etag"),
        }
    }

    /// Returns the expected bodies of a response with bytes of the file.
    fn of_file(&self) -> Result<FileProgress, Wrong> {
        let name = self.file.name;
        if self.history.kind(name).refusal().is_some() {
            return Err(("disclosed", format!("the file {name} is not for clients")));
        }
        let coding = self.field("content-encoding").unwrap_or_default();
        if !coding.is_empty() && !self.file.accept.is_some_and(|accept| accept.contains(&coding)) {
            return Err(("wrong-response", format!("{coding} was not accepted")));
        }
        let versions = self.history.versions(name, &coding, self.period);
        match self.message.status() {
            200 => self.whole(versions, &coding),
            206 => self.part(versions, &coding),
            304 => self.not_modified(),
            _ => self.unsatisfiable(),
        }
    }

    fn whole(&self, versions: Vec<VersionBytes>, coding: &str) -> Result<FileProgress, Wrong> {
        let is_head = self.request.method == Method::Head;
        let length = match self.message.framing {
            Framing::Length(length) => Some(length as usize),
            // That of the response to HEAD.
            _ => self.field("content-length").and_then(|value| value.parse().ok()),
        };
        let fits = |version: &VersionBytes| length == Some(version.len());
        let is_changing = self.history.changed_in_place(self.file.name, self.period);
        if !(versions.iter().any(fits) || is_changing && coding.is_empty()) {
            let known: Vec<usize> = versions.iter().map(|version| version.len()).collect();
            let details = format!("length {length:?} of the file {}: {known:?}", self.file.name);
            return Err(("wrong-length", details));
        }
        let body = |version: VersionBytes| ExpectedBody {
            bytes: if is_head { VersionBytes::default() } else { version.clone() },
            version,
        };
        let expected = versions.into_iter().filter(fits).map(body).collect::<Vec<_>>();
        let is_mixed = expected.is_empty() && !is_head;
        let offset = coding.is_empty().then_some(0);
        Ok(FileProgress { offset, is_mixed, ..self.progress(expected) })
    }

    fn part(&self, versions: Vec<VersionBytes>, coding: &str) -> Result<FileProgress, Wrong> {
        let Some(range) = self.file.range.filter(|_| self.request.method == Method::Get) else {
            return Err(("wrong-response", "an unrequested part".to_owned()));
        };
        let kind = self.field("content-type").unwrap_or_default();
        if let Some(boundary) = kind.strip_prefix("multipart/byteranges; boundary=") {
            let body = |version: VersionBytes| ExpectedBody { bytes: version.clone(), version };
            let expected = versions.into_iter().map(body).collect();
            let boundary = Some(boundary.trim_matches('"').to_owned());
            return Ok(FileProgress { boundary, ..self.progress(expected) });
        }
        let value = self.field("content-range").unwrap_or_default();
        let wrong = || ("wrong-response", format!("{value} for {range:?}"));
        let (first, last, length) = content_range(&value).ok_or_else(wrong)?;
        let bounds = Some((first as u64, last as u64));
        let is_two = matches!(range, RangeRequest::Two(..));
        if !is_two && range.bounds(length as u64) != bounds {
            return Err(wrong());
        }
        let body =
            |version: VersionBytes| ExpectedBody { bytes: version[first..=last].into(), version };
        let fits = |version: &VersionBytes| version.len() == length;
        let expected: Vec<_> = versions.into_iter().filter(fits).map(body).collect();
        let is_changing = self.history.changed_in_place(self.file.name, self.period);
        if expected.is_empty() && !(is_changing && coding.is_empty()) {
            return Err(("wrong-length", format!("{value} of the file {}", self.file.name)));
        }
        let is_mixed = expected.is_empty();
        let offset = coding.is_empty().then_some(first);
        Ok(FileProgress { offset, is_mixed, ..self.progress(expected) })
    }

    /// Returns the versions in all codings that the client accepts.
    fn forms(&self) -> impl Iterator<Item = VersionBytes> {
        let codings = ["", "gzip", "br", "zstd"].into_iter();
        let accepts = |coding: &&str| self.file.accept.is_some_and(|it| it.contains(coding));
        let accepted = codings.filter(move |coding| coding.is_empty() || accepts(coding));
        accepted.flat_map(|coding| self.history.versions(self.file.name, coding, self.period))
    }

    /// Checks a 304: the file is still that of the tag in the request.
    fn not_modified(&self) -> Result<FileProgress, Wrong> {
        let wrong = || ("wrong-response", format!("304 for {:?}", self.sent_tag));
        let tag = self.sent_tag.as_ref().ok_or_else(wrong)?;
        if self.file.condition != Some(FileCondition::KnownTag) {
            return Err(wrong());
        }
        if let Some(bytes) = self.history.bytes_of_tag(tag) {
            let is_changing = self.history.changed_in_place(self.file.name, self.period);
            if !is_changing && !self.forms().any(|form| form == bytes) {
                return Err(("stale", format!("304 for {tag}, whose file was replaced")));
            }
        }
        Ok(self.empty())
    }

    /// Checks a 416.
    fn unsatisfiable(&self) -> Result<FileProgress, Wrong> {
        let value = self.field("content-range").unwrap_or_default();
        let length = value.strip_prefix("bytes */").and_then(|length| length.parse().ok());
        let is_outside = |length: u64| match self.file.range {
            Some(RangeRequest::Two(..)) => length == 0,
            range => range.is_some_and(|range| range.bounds(length).is_none()),
        };
        let is_known = self.forms().any(|form| Some(form.len() as u64) == length);
        let is_changing = self.history.changed_in_place(self.file.name, self.period);
        match length.is_some_and(is_outside) && (is_known || is_changing) {
            true => Ok(self.empty()),
            false => Err(("wrong-response", format!("416 with {value}"))),
        }
    }

    /// Returns the progress of a response without a body.
    fn empty(&self) -> FileProgress {
        let (bytes, version) = (VersionBytes::default(), VersionBytes::default());
        FileProgress { tag: None, ..self.progress(vec![ExpectedBody { bytes, version }]) }
    }

    /// Checks a refusal, which the folder explains, or a fault.
    fn refusal(&self, may_time_out: bool) -> Result<FileProgress, Wrong> {
        let (name, status) = (self.file.name, self.message.status());
        let faults = self.history.faults_of(name);
        let is_due = self.history.kind(name).refusal() == Some(status);
        let reason = match status {
            301 if is_due => None,
            404 if is_due || faults.missing > 0 || self.history.was_absent(name, self.period) => {
                Some(Reason::FileMissing)
            }
            403 if is_due || faults.denials > 0 => Some(Reason::FileForbidden),
            500 if faults.io_errors > 0 || self.history.changed_in_place(name, self.period) => {
                Some(Reason::FileFailed)
            }
            504 if may_time_out => Some(Reason::FileTimedOut),
            _ => return Err(("wrong-response", format!("status {status} for the file {name}"))),
        };
        let is_head = self.request.method == Method::Head;
        let text = match reason {
            Some(reason) if !is_head => format!("{}\n", reason.text()),
            _ => String::new(),
        };
        let bytes: VersionBytes = text.into_bytes().into();
        let location = format!("{name}/?{}", self.request.id);
        if status == 301 && self.field("location") != Some(location) {
            return Err(("wrong-response", format!("Location {:?}", self.field("location"))));
        }
        Ok(self.progress(vec![ExpectedBody { version: bytes.clone(), bytes }]))
    }
}

impl RandomClient {
    /// Returns the field lines of a request that concern its file.
    pub(super) fn file_fields(&mut self, request: &Request) -> String {
        let Some(file) = request.file else {
            self.sent_tags.push(None);
            return String::new();
        };
        let known = self.model.history().known_tag(file.name);
        let mut fields = String::new();
        if let Some(accept) = file.accept {
            fields += &format!("Accept-Encoding: {accept}\r\n");
        }
        if let Some(range) = file.range {
            fields += &format!("Range: {}\r\n", range.value());
        }
        match (file.condition, &known) {
            (Some(FileCondition::KnownTag), Some(tag)) => {
                fields += &format!("If-None-Match: {tag}\r\n");
            }
            (Some(FileCondition::UnknownTag), _) => fields += "If-None-Match: \"other\"\r\n",
            (Some(FileCondition::RangeOfKnownTag), Some(tag)) if file.range.is_some() => {
                fields += &format!("If-Range: {tag}\r\n");
            }
            _ => {}
        }
        self.sent_tags.push(known);
        fields
    }

    /// Checks the header of a response that is not that of an origin.
    pub(super) fn check_file_header(
        &mut self,
        world: &World,
        request: &Request,
        file: FileRequest,
        message: &Message,
    ) {
        let (history, scenario) = (self.model.history(), self.model.scenario());
        let period = history.period(self.queued_at[self.completed]);
        let sent_tag = self.sent_tags[self.completed].clone();
        let response = FileResponse { request, file, message, history, period, sent_tag };
        let status = message.status();
        let may_time_out =
            scenario.world == Faults::Hostile || scenario.difficulty == Difficulty::Hard;
        let checked = match status {
            200 | 206 | 304 | 416 => response.of_file(),
            301 | 403 | 404 if scenario.passes_on() => {
                Err(("wrong-response", format!("{status} instead of an origin's response")))
            }
            _ => response.refusal(may_time_out),
        };
        self.model.cover(format!("file: status {status}"));
        match checked {
            Ok(_) if self.must_succeed && status >= 500 => {
                self.fail(world, "unserved", format!("{status} for the file {}", file.name));
            }
            Ok(progress) => self.progress = ResponseProgress::File(Box::new(progress)),
            Err((kind, details)) => self.fail(world, kind, details),
        }
    }

    pub(super) fn check_file_body(&mut self, world: &World, bytes: &[u8]) {
        let history = self.model.history();
        let ResponseProgress::File(progress) = &mut self.progress else { return };
        // The text of a redirect does not matter.
        if progress.status == 301 {
            return;
        }
        if let Err((kind, details)) = progress.add(bytes, &history) {
            self.fail(world, kind, details);
        }
    }

    /// Checks a response of the folder that is whole.
    pub(super) fn end_of_file(&mut self) -> Result<(), Wrong> {
        let ResponseProgress::File(progress) = &self.progress else { return Ok(()) };
        progress.end(&self.model.history())?;
        if progress.is_mixed {
            self.model.cover("file: of several versions");
        }
        if progress.boundary.is_some() {
            self.model.cover("file: several ranges");
        }
        self.model.cover("client: got a file");
        Ok(())
    }
}
