//! The file, listing or redirect for the path of a request.

use millrace_sys::Errno;

use super::codings::{AcceptedCodings, Coding};
use super::folder_io::{Entries, FileKind, FolderIo, OpenMode, OpenedFile};
use super::request_path::RequestPath;
use super::rules::FolderRules;
use super::try_file::TryFile;

/// The file, listing or redirect for a request.
#[derive(Clone, Debug)]
pub enum Resolution {
    /// A file to send.
    File(FoundFile),
    /// A folder whose path lacks the slash at its end: see [`RequestPath::folder_location`]. A
    /// folder without an index and a listing counts as missing, so the redirect leads to
    /// something.
    Redirect,
    /// The entries of a folder without an index, in any order.
    Listing(Entries),
    /// A script, to which an interpreter responds.
    Script(FoundScript),
    /// A program, with its path. Its bytes are never sent.
    Program(Vec<u8>),
    /// There is no such file, or it is hidden.
    Missing,
    /// The file cannot be opened: its permissions, its type or a link forbid it.
    Forbidden,
}

/// A file to send.
#[derive(Clone, Debug)]
pub struct FoundFile {
    /// The open file; the encoded form if there is a coding.
    pub opened: OpenedFile,
    /// The path of the original: segments separated by `/`.
    pub path: Vec<u8>,
    /// The coding in which the bytes are.
    pub coding: Option<Coding>,
    /// The coding into which the bytes can be compressed, because the client prefers it.
    pub compressible: Option<Coding>,
    /// The value of `Content-Type`, which is that of the original.
    pub content_type: String,
}

/// A script that exists.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FoundScript {
    /// Its path: segments separated by `/`.
    pub path: Vec<u8>,
    /// The part of the request's path after it, with its slash; often empty.
    pub path_info: Vec<u8>,
}

/// Finds the file, script, listing or redirect for the path of a request.
///
/// # Errors
/// EAGAIN with [`OpenMode::Cached`] if a call has to wait, also for each listing. EMFILE, EIO and
/// other errors that are not the fault of the client.
pub fn resolve(
    folder: &dyn FolderIo,
    rules: &FolderRules,
    path: &RequestPath,
    accepted: AcceptedCodings,
    mode: OpenMode,
) -> Result<Resolution, Errno> {
    let search = Search { folder, rules, path, accepted, mode };
    match search.run() {
        Ok(found) => Ok(found),
        Err(Errno::ACCESS | Errno::PERM | Errno::LOOP) => Ok(Resolution::Forbidden),
        Err(error) => Err(error),
    }
}

/// The parameters of [`resolve()`]. Its methods return `None` if a file is missing, and the errors
/// that end the search.
struct Search<'a> {
    folder: &'a dyn FolderIo,
    rules: &'a FolderRules,
    path: &'a RequestPath,
    accepted: AcceptedCodings,
    mode: OpenMode,
}

impl Search<'_> {
    fn run(&self) -> Result<Resolution, Errno> {
        let request = self.path.as_bytes();
        if let Some(script) = self.find_script()? {
            return Ok(Resolution::Script(script));
        }
        if self.path.segments().any(|segment| self.rules.hides(segment)) {
            return Ok(Resolution::Missing);
        }
        if self.rules.try_files.is_empty()
            && let Some(found) = self.try_path(request, self.path.is_folder())?
        {
            return Ok(found);
        }
        for place in &self.rules.try_files {
            let Some(path) = place.path(request, self.path.is_folder()) else { continue };
            // A suffix may have made a hidden name. The operator chose fixed names.
            if matches!(place, TryFile::Request(_)) && self.hides_last(&path) {
                continue;
            }
            // Only the path of the request itself may be a folder.
            let found = match path == request {
                true => self.try_path(&path, self.path.is_folder())?,
                false => self.try_file(path)?,
            };
            if let Some(found) = found {
                return Ok(found);
            }
        }
        let fallback = self.rules.fallback.clone().map(|path| self.try_file(path));
        Ok(fallback.transpose()?.flatten().unwrap_or(Resolution::Missing))
    }

    /// Returns the script that the path of the request begins with, if it is followed by more. A
    /// file with another extension on the way has nothing below it, so it ends the search. So does
    /// a hidden or a missing name. Behind the script, names are those of the application, such as
    /// titles of pages, so none is hidden.
    fn find_script(&self) -> Result<Option<FoundScript>, Errno> {
        let request = self.path.as_bytes();
        for (at, segment) in self.path.segments_with_ends() {
            if self.rules.hides(segment) {
                break;
            }
            let is_last = at == request.len() && !self.path.is_folder();
            if is_last || !self.rules.is_script(segment) {
                continue;
            }
            let Some(opened) = self.open(&request[..at])? else { break };
            if opened.status.kind == FileKind::Regular {
                let slash: &[u8] = if self.path.is_folder() { b"/" } else { b"" };
                let path_info = [&request[at..], slash].concat();
                return Ok(Some(FoundScript { path: request[..at].to_vec(), path_info }));
            }
        }
        Ok(None)
    }

    /// Returns whether the last name of a path is hidden.
    fn hides_last(&self, path: &[u8]) -> bool {
        self.rules.hides(last_name(path))
    }

    /// Tries a path as a file or as a folder.
    fn try_path(&self, path: &[u8], is_folder: bool) -> Result<Option<Resolution>, Errno> {
        let Some(opened) = self.open(path)? else { return Ok(None) };
        match (opened.status.kind, is_folder) {
            // A file has nothing below it.
            (FileKind::Regular, true) => Ok(None),
            (FileKind::Regular, false) => self.file(opened, path.to_vec()).map(Some),
            (FileKind::Folder, _) => self.try_folder(path, is_folder),
        }
    }

    /// Tries a path as a file only.
    fn try_file(&self, path: Vec<u8>) -> Result<Option<Resolution>, Errno> {
        let opened = self.open(&path)?.filter(|it| it.status.kind == FileKind::Regular);
        opened.map(|opened| self.file(opened, path)).transpose()
    }

    /// Tries the index files of a folder, then its listing. An index that is hidden or a folder is
    /// skipped, so the search ends here.
    fn try_folder(&self, path: &[u8], has_slash: bool) -> Result<Option<Resolution>, Errno> {
        for name in self.rules.index.iter().filter(|name| !self.rules.hides(name)) {
            let index = if path.is_empty() { name.clone() } else { [path, name].join(&b'/') };
            if let Some(found) = self.try_file(index)? {
                return Ok(Some(if has_slash { found } else { Resolution::Redirect }));
            }
        }
        if !self.rules.has_listing {
            return Ok(None);
        }
        if !has_slash {
            return Ok(Some(Resolution::Redirect));
        }
        if self.mode == OpenMode::Cached {
            return Err(Errno::AGAIN);
        }
        let listed = unless_missing(self.folder.list(path, &|name| !self.rules.hides(name)))?;
        Ok(listed.map(|mut entries| {
            entries.list.retain(|entry| !self.leads_to_hidden(path, entry.linked_path.as_deref()));
            Resolution::Listing(entries)
        }))
    }

    /// Returns an opened regular file, or the preferred encoded form beside it.
    fn file(&self, opened: OpenedFile, path: Vec<u8>) -> Result<Resolution, Errno> {
        let name = last_name(&path);
        if self.rules.is_script(name) {
            return Ok(Resolution::Script(FoundScript { path, path_info: Vec::new() }));
        }
        if self.rules.is_program(name) || self.is_linked_program(&opened) {
            return Ok(Resolution::Program(path));
        }
        let content_type = self.rules.types.of(name);
        if self.rules.has_precompressed {
            for coding in self.accepted.preferred() {
                if let Some(encoded) = self.encoded(&opened, &path, coding)? {
                    let coding = Some(coding);
                    let compressible = None;
                    let found =
                        FoundFile { opened: encoded, path, coding, compressible, content_type };
                    return Ok(Resolution::File(found));
                }
            }
        }
        let is_compressible = self.rules.compresses(&content_type, opened.status.bytes);
        let compressible = self.accepted.preferred().next().filter(|_| is_compressible);
        let coding = None;
        Ok(Resolution::File(FoundFile { opened, path, coding, compressible, content_type }))
    }

    /// Returns whether a link led to a program.
    fn is_linked_program(&self, opened: &OpenedFile) -> bool {
        let path = opened.linked_path.as_deref();
        path.is_some_and(|path| self.rules.is_program(last_name(path)))
    }

    /// Returns whether a link of a path led to a hidden name. Names at the beginning of both paths
    /// do not count: either they were checked in the request, or the operator chose them. In a
    /// folder of `allow-path`, all names below that folder count.
    fn leads_to_hidden(&self, path: &[u8], linked_path: Option<&[u8]>) -> bool {
        let Some(linked_path) = linked_path else { return false };
        let mut before = names(path);
        let mut after = names(linked_path).skip_while(|name| before.next() == Some(*name));
        after.any(|name| self.rules.hides_target(name))
    }

    /// Opens the encoded form of a file. A form that was modified before the original is not used,
    /// because it was probably forgotten when the original changed. A form that is hidden or cannot
    /// be opened is not used either.
    fn encoded(
        &self,
        original: &OpenedFile,
        path: &[u8],
        coding: Coding,
    ) -> Result<Option<OpenedFile>, Errno> {
        let path = [path, coding.suffix().as_bytes()].concat();
        if self.hides_last(&path) {
            return Ok(None);
        }
        let opened = match self.open(&path) {
            Err(Errno::ACCESS | Errno::PERM | Errno::LOOP) => None,
            opened => opened?,
        };
        let is_usable = |form: &OpenedFile| {
            let (form, original) = (&form.status, &original.status);
            form.kind == FileKind::Regular && form.modified.seconds >= original.modified.seconds
        };
        Ok(opened.filter(|form| is_usable(form) && !self.is_linked_program(form)))
    }

    /// Opens a path. A file to which a link leads is missing if its own path has a hidden name.
    fn open(&self, path: &[u8]) -> Result<Option<OpenedFile>, Errno> {
        let opened = unless_missing(self.folder.open(path, self.mode))?;
        Ok(opened.filter(|opened| !self.leads_to_hidden(path, opened.linked_path.as_deref())))
    }
}

/// Returns the names in a path; none for that of the root.
fn names(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    path.split(|&byte| byte == b'/').filter(|name| !name.is_empty())
}

fn last_name(path: &[u8]) -> &[u8] {
    path.rsplit(|&byte| byte == b'/').next().unwrap_or_default()
}

/// Returns `None` for errors that mean that there is no such file. EINVAL and EILSEQ are those of
/// file systems on which some bytes cannot be in a name.
fn unless_missing<T>(result: Result<T, Errno>) -> Result<Option<T>, Errno> {
    match result {
        Ok(found) => Ok(Some(found)),
        Err(Errno::NOENT | Errno::NOTDIR | Errno::NAMETOOLONG | Errno::INVAL | Errno::ILSEQ) => {
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::super::folder_io::FileTime;
    use super::super::name_pattern::NamePattern;
    use super::super::sim_folder::{SimFolder, SimFolderFaults};
    use super::*;

    fn folder(files: &[&str]) -> SimFolder {
        let folder = SimFolder::new(1);
        for file in files {
            folder.write(file.as_bytes(), file.as_bytes());
        }
        folder
    }

    fn run(folder: &SimFolder, rules: &FolderRules, path: &str, accept: &str) -> Resolution {
        let path = RequestPath::decode(path.as_bytes()).unwrap();
        let accepted = AcceptedCodings::parse(std::iter::once(accept.as_bytes()));
        let resolve = |mode| resolve(folder, rules, &path, accepted, mode);
        match resolve(OpenMode::Cached) {
            Err(Errno::AGAIN) => resolve(OpenMode::Waiting).unwrap(),
            found => found.unwrap(),
        }
    }

    /// Returns a resolution as text: the bytes of a file, which are its path.
    fn found(folder: &SimFolder, rules: &FolderRules, path: &str) -> String {
        match run(folder, rules, path, "") {
            Resolution::File(found) => {
                let mut bytes = [0; 64];
                let count = found.opened.file.read_at(0, &mut bytes, false).unwrap();
                assert_eq!(bytes[..count], found.path, "the file is that of the path");
                String::from_utf8(found.path).unwrap()
            }
            Resolution::Script(FoundScript { path, path_info }) => {
                let text = |bytes| String::from_utf8(bytes).unwrap();
                format!("script {} {}", text(path), text(path_info))
            }
            Resolution::Program(path) => format!("program {}", String::from_utf8(path).unwrap()),
            Resolution::Listing(entries) => {
                let names = entries.list.iter().map(|entry| String::from_utf8_lossy(&entry.name));
                format!("listing {}", names.collect::<Vec<_>>().join(" "))
            }
            Resolution::Redirect => "redirect".to_owned(),
            Resolution::Missing => "missing".to_owned(),
            Resolution::Forbidden => "forbidden".to_owned(),
        }
    }

    #[test]
    fn a_path_leads_to_a_file_an_index_or_a_redirect() {
        let folder = folder(&["index.html", "a/index.html", "a/b", "empty/x", "odd/index.html/x"]);
        folder.create_pipe(b"pipe");
        folder.link(b"out", b"../x");
        folder.link(b"to-b", b"a/b");
        let rules = FolderRules::default();
        for (path, expected) in [
            ("/", "index.html"),
            ("/a", "redirect"),
            ("/a/", "a/index.html"),
            ("/a/b", "a/b"),
            ("/a/b/", "missing"),
            ("/a/b/c", "missing"),
            ("/x", "missing"),
            ("/empty", "missing"),
            ("/empty/", "missing"),
            ("/odd/", "missing"),
            ("/odd", "missing"),
            ("/pipe", "forbidden"),
            ("/out", "forbidden"),
        ] {
            assert_eq!(found(&folder, &rules, path), expected, "{path}");
        }
        assert!(matches!(run(&folder, &rules, "/to-b", ""), Resolution::File(_)));
        folder.write(b"app.php", b"source");
        for link in ["page.html", "page.css.gz", "a/up.css"] {
            folder
                .link(link.as_bytes(), if link.contains('/') { b"../app.php" } else { b"app.php" });
        }
        folder.write(b"page.css", b"style");
        for path in ["/page.html", "/a/up.css"] {
            assert!(matches!(run(&folder, &rules, path, ""), Resolution::Program(_)), "{path}");
        }
        let Resolution::File(found_file) = run(&folder, &rules, "/page.css", "gzip") else {
            panic!("a file")
        };
        assert_eq!(found_file.coding, None, "the encoded form is a program");
        let rules = FolderRules { has_listing: true, ..rules };
        assert_eq!(found(&folder, &rules, "/odd"), "redirect");
        assert_eq!(found(&folder, &rules, "/odd/"), "listing index.html");
        assert_eq!(found(&folder, &rules, "/"), "index.html");
        let rules = FolderRules { index: vec![b"no".to_vec(), b"b".to_vec()], ..rules };
        assert_eq!(found(&folder, &rules, "/a/"), "a/b");
        let path = RequestPath::decode(b"/").unwrap();
        let cached = resolve(&folder, &rules, &path, AcceptedCodings::NONE, OpenMode::Cached);
        assert_eq!(cached.map(drop), Err(Errno::AGAIN), "a listing waits");
    }

    #[test]
    fn hidden_names_are_missing_wherever_they_are() {
        let folder = folder(&[
            ".git/config",
            ".well-known/a",
            ".well-known/.a",
            "a.key",
            "keys.key/a",
            "b/.htaccess",
            "b/c",
        ]);
        let hide = vec![NamePattern::new(b"*.key")];
        let rules = FolderRules { hide, has_listing: true, ..FolderRules::default() };
        for path in [
            "/.git",
            "/.git/",
            "/.git/config",
            "/a.key",
            "/keys.key/a",
            "/b/.htaccess",
            "/.well-known/.a",
            "/%2egit/config",
            "/%61%2ekey",
        ] {
            assert_eq!(found(&folder, &rules, path), "missing", "{path}");
        }
        assert_eq!(found(&folder, &rules, "/.well-known/a"), ".well-known/a");
        assert_eq!(found(&folder, &rules, "/"), "listing .well-known b");
        assert_eq!(found(&folder, &rules, "/b/"), "listing c");
        let fallback = Some(b"b/c".to_vec());
        let rules = FolderRules { fallback, ..rules };
        assert_eq!(found(&folder, &rules, "/.git/config"), "missing", "no fallback either");
    }

    #[test]
    fn hidden_files_are_missing_whatever_link_leads_to_them() {
        let folder = folder(&[
            ".env",
            "secret.key",
            "d/.git/index.html",
            "d/.git/hooks/sample",
            "keys.key/deep/a",
            ".well-known/a",
            "k.css",
            "b/.htaccess",
            ".app/index.html",
            "..2026_11_21_10_16_00.1234/config",
            "..2026_11_21_10_16_00.1234/.env",
        ]);
        let up = b"..2026_11_21_10_16_00.1234";
        for (link, target) in [
            ("env", &b".env"[..]),
            ("index", b"d/.git/index.html"),
            ("d/git", b".git"),
            ("hooks", b"d/.git/hooks"),
            ("chain", b"d/git"),
            ("deep", b"keys.key/deep"),
            ("k.css.br", b"secret.key"),
            ("known", b".well-known/a"),
            ("root", b"."),
            ("..data", up),
            ("config", b"..data/config"),
            ("version", b"..data/.env"),
            ("app", b".app"),
        ] {
            folder.link(link.as_bytes(), target);
        }
        let hide = vec![NamePattern::new(b"*.key")];
        let rules = FolderRules { hide, has_listing: true, ..FolderRules::default() };
        for path in [
            "/env",
            "/index",
            "/d/git",
            "/d/git/",
            "/d/git/index.html",
            "/hooks/",
            "/hooks/sample",
            "/chain/index.html",
            "/deep/",
            "/deep/a",
            "/root/env",
            "/version",
            "/app/index.html",
        ] {
            assert_eq!(found(&folder, &rules, path), "missing", "{path}");
        }
        for path in ["/known", "/root/k.css", "/config"] {
            assert!(matches!(run(&folder, &rules, path, ""), Resolution::File(_)), "{path}");
        }
        let Resolution::File(file) = run(&folder, &rules, "/k.css", "br") else { panic!("a file") };
        assert_eq!(file.coding, None, "the encoded form is hidden");
        assert_eq!(found(&folder, &rules, "/"), "listing .well-known b config d k.css known root");
        let fallback = Some(b".app/index.html".to_vec());
        let chosen = FolderRules { fallback, ..rules.clone() };
        assert_eq!(found(&folder, &chosen, "/any"), ".app/index.html");
        folder.link(b".app/index.html", b"../k.css");
        assert!(matches!(run(&folder, &chosen, "/any", ""), Resolution::File(_)));
        folder.link(b".app/index.html", b"main.html");
        folder.write(b".app/main.html", b"main");
        assert!(matches!(run(&folder, &chosen, "/any", ""), Resolution::File(_)), "same folder");
        folder.link(b".app/index.html", b"../.env");
        assert_eq!(found(&folder, &chosen, "/any"), "missing");
    }

    #[test]
    fn hidden_indexes_and_encoded_forms_are_not_used() {
        let folder = folder(&["index.html", "index.htm", "a.css", "a.css.gz", "a.css.br"]);
        let index = vec![b"index.html".to_vec(), b"index.htm".to_vec()];
        let hide = ["index.html", "*.gz"].map(|name| NamePattern::new(name.as_bytes())).to_vec();
        let rules = FolderRules { index, hide, ..FolderRules::default() };
        assert_eq!(found(&folder, &rules, "/"), "index.htm");
        let coding = |accept: &str| match run(&folder, &rules, "/a.css", accept) {
            Resolution::File(found) => found.coding,
            other => panic!("{other:?}"),
        };
        assert_eq!((coding("gzip"), coding("gzip, br")), (None, Some(Coding::Brotli)));
        let hide = vec![NamePattern::new(b"index.*")];
        let rules = FolderRules { hide, ..rules };
        assert_eq!(found(&folder, &rules, "/"), "missing");
        let rules = FolderRules { has_listing: true, ..rules };
        assert_eq!(found(&folder, &rules, "/"), "listing a.css a.css.br a.css.gz");
    }

    #[test]
    fn the_search_for_a_script_ends_at_a_missing_name() {
        #[derive(Debug)]
        struct Counted(SimFolder, AtomicUsize);

        impl FolderIo for Counted {
            fn open(&self, path: &[u8], mode: OpenMode) -> Result<OpenedFile, Errno> {
                // The test has one thread.
                self.1.fetch_add(1, Ordering::Relaxed);
                self.0.open(path, mode)
            }

            fn list(
                &self,
                path: &[u8],
                is_listed: &dyn Fn(&[u8]) -> bool,
            ) -> Result<Entries, Errno> {
                self.0.list(path, is_listed)
            }
        }

        let folder = Counted(folder(&["d.php/e.php/x.php"]), AtomicUsize::new(0));
        let script_extensions = vec![NamePattern::new(b".php")];
        let rules = FolderRules { script_extensions, ..FolderRules::default() };
        for (path, opens) in [("/q.php".repeat(500), 2), ("/d.php/e.php/q.php/r.php/s".into(), 4)] {
            let path = RequestPath::decode(path.as_bytes()).unwrap();
            let (none, mode) = (AcceptedCodings::NONE, OpenMode::Cached);
            let resolution = resolve(&folder, &rules, &path, none, mode).unwrap();
            assert!(matches!(resolution, Resolution::Missing));
            assert_eq!(folder.1.swap(0, Ordering::Relaxed), opens);
        }
    }

    #[test]
    fn programs_are_never_sent() {
        let folder = folder(&["a.php", "index.php", "a.php.gz", "b.PHP~", "x/index.php/y"]);
        let index = vec![b"index.php".to_vec()];
        let rules = FolderRules { index, ..FolderRules::default() };
        for (path, expected) in [
            ("/a.php", "program a.php"),
            ("/", "program index.php"),
            ("/a.php.gz", "program a.php.gz"),
            ("/b.PHP~", "program b.PHP~"),
            ("/no.php", "missing"),
            ("/a.php/", "missing"),
            ("/x/", "missing"),
        ] {
            assert_eq!(found(&folder, &rules, path), expected, "{path}");
        }
        let fallback = Some(b"index.php".to_vec());
        let rules = FolderRules { fallback, ..rules };
        assert_eq!(found(&folder, &rules, "/any/where"), "program index.php");
    }

    #[test]
    fn a_script_responds_to_the_rest_of_the_path() {
        let files = ["a.php", "b.txt", "c/index.php", "d.php/x", "e.php5", "f.tpl", "f.tpl.bak"];
        let folder = folder(&files);
        folder.link(b"f.txt", b"f.tpl");
        folder.create_pipe(b"pipe.php");
        let rules = FolderRules {
            script_extensions: [".php", ".tpl"].map(|it| NamePattern::new(it.as_bytes())).to_vec(),
            index: vec![b"index.php".to_vec()],
            fallback: Some(b"a.php".to_vec()),
            ..FolderRules::default()
        };
        for (path, expected) in [
            ("/a.php", "script a.php "),
            ("/A.PHP", "script a.php "),
            ("/a.php/", "script a.php /"),
            ("/a.php/x/y.php", "script a.php /x/y.php"),
            ("/c/", "script c/index.php "),
            ("/c", "redirect"),
            ("/c/index.php/z", "script c/index.php /z"),
            ("/d.php/x", "d.php/x"),
            ("/b.txt", "b.txt"),
            ("/none", "script a.php "),
            ("/e.php5", "program e.php5"),
            ("/f.tpl", "script f.tpl "),
            ("/f.tpl.bak", "program f.tpl.bak"),
            ("/f.txt", "program f.txt"),
        ] {
            assert_eq!(found(&folder, &rules, path), expected, "{path}");
        }
        let rules = FolderRules { fallback: None, ..rules };
        for (path, expected) in
            [("/b.txt/x.php", "missing"), ("/none.php", "missing"), ("/pipe.php/x", "forbidden")]
        {
            assert_eq!(found(&folder, &rules, path), expected, "{path}");
        }
    }

    #[test]
    fn names_behind_a_script_are_not_hidden() {
        let folder = folder(&["a.php", "data/a.php", "key.php"]);
        let rules = FolderRules {
            script_extensions: vec![NamePattern::new(b".php")],
            hide: vec![NamePattern::new(b"data"), NamePattern::new(b"key.php")],
            fallback: Some(b"a.php".to_vec()),
            ..FolderRules::default()
        };
        for (path, expected) in [
            ("/a.php/data", "script a.php /data"),
            ("/a.php/x/.y/key.php", "script a.php /x/.y/key.php"),
            ("/data/a.php/x", "missing"),
            ("/data/a.php", "missing"),
            ("/key.php", "missing"),
            ("/key.php/x", "missing"),
            ("/.git/a.php/x", "missing"),
            ("/x/.git/a.php", "missing"),
            ("/none.php/data", "missing"),
        ] {
            assert_eq!(found(&folder, &rules, path), expected, "{path}");
        }
    }

    #[test]
    fn places_are_tried_in_order_then_the_fallback() {
        let folder = folder(&["a.html", "b/index.html", "c/x", "app.html", "d.html", "d/e"]);
        let places = ["{path}", "{path}.html", "/no", "{path}/x"];
        let try_files = places.map(|place| TryFile::parse(place).unwrap()).to_vec();
        let fallback = Some(b"app.html".to_vec());
        let rules = FolderRules { try_files, fallback, ..FolderRules::default() };
        for (path, expected) in [
            ("/a", "a.html"),
            ("/a.html", "a.html"),
            ("/a/", "app.html"),
            ("/b", "redirect"),
            ("/b/", "b/index.html"),
            ("/c", "c/x"),
            ("/c/", "c/x"),
            ("/d", "d.html"),
            ("/d/e", "d/e"),
            ("/", "app.html"),
            ("/any/where", "app.html"),
            ("/c/x/below", "app.html"),
        ] {
            assert_eq!(found(&folder, &rules, path), expected, "{path}");
        }
        let hidden = FolderRules { hide: vec![NamePattern::new(b"*.html")], ..rules.clone() };
        assert_eq!(found(&folder, &hidden, "/a"), "app.html", "a suffix reveals no hidden name");
        let none = FolderRules { fallback: Some(b"no".to_vec()), ..rules };
        assert_eq!(found(&folder, &none, "/any"), "missing");
    }

    #[test]
    fn the_preferred_form_is_sent_unless_it_is_older() {
        let folder = folder(&["a.js", "a.js.br", "a.js.gz", "b.js", "b.js.gz", "c.js", "d.js"]);
        folder.create_folder(b"c.js.gz");
        folder.create_pipe(b"d.js.gz");
        let at = |seconds| FileTime { seconds, nanoseconds: 0 };
        folder.set_modified(b"b.js", at(9));
        folder.set_modified(b"b.js.gz", at(8));
        let rules = FolderRules::default();
        let form =
            |rules: &FolderRules, path: &str, accept: &str| match run(&folder, rules, path, accept)
            {
                Resolution::File(found) => {
                    assert_eq!(found.content_type, "text/javascript; charset=utf-8");
                    assert!(found.path.ends_with(b".js"));
                    found.coding
                }
                other => panic!("{other:?}"),
            };
        for (path, accept, expected) in [
            ("/a.js", "gzip, br", Some(Coding::Brotli)),
            ("/a.js", "gzip, br;q=0.9", Some(Coding::Gzip)),
            ("/a.js", "zstd, gzip;q=0.5", Some(Coding::Gzip)),
            ("/a.js", "zstd", None),
            ("/a.js", "", None),
            ("/b.js", "gzip", None),
            ("/c.js", "gzip", None),
            ("/d.js", "gzip", None),
        ] {
            assert_eq!(form(&rules, path, accept), expected, "{path} {accept}");
        }
        let off = FolderRules { has_precompressed: false, ..rules.clone() };
        assert_eq!(form(&off, "/a.js", "br"), None);
        folder.set_modified(b"b.js.gz", at(9));
        assert_eq!(form(&rules, "/b.js", "gzip"), Some(Coding::Gzip), "of the same second");
    }

    #[test]
    fn only_the_client_is_forbidden_and_other_errors_are_reported() {
        let folder = folder(&["a"]);
        let path = RequestPath::decode(b"/a").unwrap();
        let rules = FolderRules::default();
        let run = |faults, mode| {
            folder.set_faults(faults);
            resolve(&folder, &rules, &path, AcceptedCodings::NONE, mode).map(drop)
        };
        let none = SimFolderFaults::default();
        let waits = SimFolderFaults { waits: 1, ..none };
        assert_eq!(run(waits, OpenMode::Cached), Err(Errno::AGAIN));
        assert_eq!(run(waits, OpenMode::Waiting), Ok(()));
        let no_descriptors = SimFolderFaults { no_descriptors: 1, ..none };
        assert_eq!(run(no_descriptors, OpenMode::Waiting), Err(Errno::MFILE));
        let io_errors = SimFolderFaults { io_errors: 1, ..none };
        assert_eq!(run(io_errors, OpenMode::Waiting), Err(Errno::IO));
        folder.set_faults(SimFolderFaults { denials: 1, ..none });
        assert_eq!(found(&folder, &rules, "/a"), "forbidden");
    }
}
