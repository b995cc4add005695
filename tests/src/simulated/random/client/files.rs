//! Checks of the responses for files: each is one version of the file as a whole, or a refusal that
//! the plan of the folder explains.

use millrace_proxy::reason::Reason;
use millrace_sim::{Faults, World};

use super::super::files::history::{FolderHistory, Period, VersionBytes};
use super::super::files::plan::{FileCondition, FileRequest, RangeRequest};
use super::super::plan::{Difficulty, Method, Request};
use super::file_progress::{ExpectedBody, FileProgress, Wrong, content_range};
use super::{RandomClient, ResponseProgress};
use crate::strict::{Framing, Message};

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
    /// Returns the field lines of a request that concern its file, and the entity tag that is
    /// known for it.
    pub(super) fn file_fields(&self, request: &Request) -> (String, Option<String>) {
        let Some(file) = request.file else { return Default::default() };
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
        (fields, known)
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
        let queued = &self.queued[self.completed];
        let (period, sent_tag) = (history.period(queued.at), queued.known_tag.clone());
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
