//! Files of real folders: links, types, permissions, and changes between calls.
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use millrace_files::{
    AcceptedCodings, FileKind, FileStatus, Folder, FolderIo, FolderRules, GrantedFolder, OpenMode,
    OpenedFile, RequestPath, Resolution, Symlinks, resolve,
};
use millrace_sys::Errno;
use rustix::fs::{CWD, FileType, Mode, RenameFlags, inotify, mknodat, renameat_with};

/// A folder that is removed at the end.
struct TestFolder(PathBuf);

impl TestFolder {
    fn new(name: &str) -> Self {
        let path =
            std::env::temp_dir().join(format!("millrace-files-{name}-{}", std::process::id()));
        std::fs::create_dir(&path).unwrap();
        Self(path.canonicalize().unwrap())
    }

    fn write(&self, path: &str, text: &str) {
        let path = self.0.join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    fn link(&self, path: &str, target: impl AsRef<Path>) {
        let path = self.0.join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        symlink(target, path).unwrap();
    }

    fn open(&self, path: &str, symlinks: Symlinks) -> Folder {
        Folder::open(&self.0.join(path), symlinks).unwrap()
    }
}

impl Drop for TestFolder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Ends a thread when it is dropped, also by a failed assertion.
struct EndOnDrop<'a>(&'a AtomicBool);

impl Drop for EndOnDrop<'_> {
    fn drop(&mut self) {
        // Pairs with the loads in the threads; only the end of their loops depends on it.
        self.0.store(true, Ordering::Relaxed);
    }
}

fn text(opened: &OpenedFile) -> String {
    let mut bytes = vec![0; 64];
    let count = opened.file.read_at(0, &mut bytes, true).unwrap();
    String::from_utf8(bytes[..count].to_vec()).unwrap()
}

/// Returns the text of a file, `folder`, or the error.
fn read(folder: &Folder, path: &str) -> Result<String, Errno> {
    let opened = folder.open(path.as_bytes(), OpenMode::Waiting)?;
    // A file that can be opened without waiting is the same one.
    match folder.open(path.as_bytes(), OpenMode::Cached) {
        Ok(cached) => assert_eq!(cached.status, opened.status),
        Err(error) => assert_eq!(error, Errno::AGAIN, "{path}"),
    }
    Ok(match opened.status.kind {
        FileKind::Regular => text(&opened),
        FileKind::Folder => "folder".to_owned(),
    })
}

#[test]
fn requests_never_reach_a_file_outside() {
    let test = TestFolder::new("traversal");
    test.write("secret", "secret");
    test.write("root/a/b", "inside");
    test.link("root/up", "../secret");
    test.link("root/absolute", test.0.join("secret"));
    test.link("root/passwd", "/etc/passwd");
    test.link("root/far", "../../../../../../../../etc/passwd");
    test.link("root/through", "a/../../secret");
    test.link("root/parent", "..");
    test.link("root/top", "/");
    test.link("root/magic", "/proc/self/root/etc/passwd");
    test.link("root/chain", "up");
    let rules = FolderRules { has_listing: true, ..FolderRules::default() };
    let corpus = [
        "/../secret",
        "/%2e%2e/secret",
        "/%2E%2e%2fsecret",
        "/..%2fsecret",
        "/a/../../secret",
        "/a/%2e%2e/%2e%2e/secret",
        "/..%5csecret",
        "/..\\secret",
        "/%252e%252e/secret",
        "/%252e%252e%252fsecret",
        "/..;/secret",
        "/.../secret",
        "/....//secret",
        "//etc/passwd",
        "/%2fetc%2fpasswd",
        "/etc/passwd",
        "/a/b/../../../secret",
        "/%c0%ae%c0%ae/secret",
        "/%uff0e%uff0e/secret",
        "/a%00/../../secret",
        "/secret",
        "/up",
        "/absolute",
        "/passwd",
        "/far",
        "/through",
        "/parent",
        "/parent/",
        "/parent/secret",
        "/top/etc/passwd",
        "/magic",
        "/chain",
        "/a/../up",
        "/./up",
        "/up/",
        "/parent/root/parent/secret",
    ];
    for symlinks in [Symlinks::Inside, Symlinks::None, Symlinks::AndInto(Vec::new())] {
        let folder = test.open("root", symlinks);
        for path in corpus {
            for path in [path.as_bytes(), &millrace_http1::path::normalise(path.as_bytes())] {
                let Ok(path) = RequestPath::decode(path) else { continue };
                let (none, mode) = (AcceptedCodings::NONE, OpenMode::Waiting);
                let resolution = resolve(&folder, &rules, &path, none, mode).unwrap();
                let is_refused = matches!(resolution, Resolution::Missing | Resolution::Forbidden);
                assert!(is_refused, "{path:?}: {resolution:?}");
            }
        }
        assert_eq!(read(&folder, "a/b").unwrap(), "inside");
    }
}

#[test]
fn links_are_followed_by_the_policy() {
    let test = TestFolder::new("links");
    test.write("root/a/b", "inside");
    test.write("granted/c/d", "granted");
    test.write("other/e", "other");
    test.link("alias", "granted");
    test.link("root/relative", "a/b");
    test.link("root/a/up", "../a/b");
    test.link("root/absolute", test.0.join("root/a/b"));
    test.link("root/absolute-folder", test.0.join("root/./a//"));
    test.link("root/to-granted", test.0.join("granted"));
    test.link("root/by-alias", test.0.join("alias/c/d"));
    test.link("root/by-dots", "../granted/c");
    test.link("root/deep/by-dots", "../../granted/c");
    test.link("root/chain", "to-granted/c");
    test.link("root/back", test.0.join("granted/home/a/b"));
    test.link("granted/home", test.0.join("root"));
    test.link("root/to-other", test.0.join("other/e"));
    test.link("root/dots-in-target", test.0.join("other/../granted/c/d"));
    test.link("granted/out", "../other/e");
    test.link("root/dead", "nothing");
    test.link("root/loop", "loop");
    test.link("root/far-loop", test.0.join("root/far-loop"));
    let granted = Arc::new(GrantedFolder::open(&test.0.join("alias")).unwrap());
    let all = test.open("root", Symlinks::AndInto(vec![granted]));
    let inside = test.open("root", Symlinks::Inside);
    let none = test.open("root", Symlinks::None);
    let denied = Err(Errno::ACCESS);
    for (path, by_all, by_inside) in [
        ("a/b", Ok("inside"), Ok("inside")),
        ("relative", Ok("inside"), Ok("inside")),
        ("a/up", Ok("inside"), Ok("inside")),
        ("absolute", Ok("inside"), Ok("inside")),
        ("absolute-folder/up", Ok("inside"), Ok("inside")),
        ("absolute-folder", Ok("folder"), Ok("folder")),
        ("to-granted/c/d", Ok("granted"), denied),
        ("to-granted", Ok("folder"), denied),
        ("by-alias", Ok("granted"), denied),
        ("by-dots/d", Ok("granted"), denied),
        ("deep/by-dots/d", Ok("granted"), denied),
        ("chain/d", Ok("granted"), denied),
        ("back", Ok("inside"), denied),
        ("to-other", denied, denied),
        ("dots-in-target", denied, denied),
        ("to-granted/out", denied, denied),
        ("to-granted/nothing", Err(Errno::NOENT), denied),
        ("dead", Err(Errno::NOENT), Err(Errno::NOENT)),
        ("loop", Err(Errno::LOOP), Err(Errno::LOOP)),
        ("far-loop", Err(Errno::LOOP), Err(Errno::LOOP)),
        ("relative/x", Err(Errno::NOTDIR), Err(Errno::NOTDIR)),
    ] {
        assert_eq!(read(&all, path), by_all.map(str::to_owned), "{path}");
        assert_eq!(read(&inside, path), by_inside.map(str::to_owned), "{path}");
        if path != "a/b" {
            assert!(matches!(read(&none, path), Err(Errno::LOOP | Errno::ACCESS)), "{path}");
        }
    }
    // The folder is used by its descriptor.
    std::fs::rename(test.0.join("root"), test.0.join("moved")).unwrap();
    assert_eq!(read(&all, "relative").unwrap(), "inside");
}

#[test]
fn the_path_of_a_linked_file_is_that_below_its_folder() {
    let test = TestFolder::new("linked");
    test.write(".hidden/root/a/.env", "secret");
    test.write(".hidden/granted/.git/config", "config");
    test.write(".hidden/root/plain", "plain");
    test.link(".hidden/root/env", "a/.env");
    test.link(".hidden/root/absolute", test.0.join(".hidden/root/a/.env"));
    test.link(".hidden/root/config", "../granted/.git/config");
    test.link(".hidden/root/git", test.0.join(".hidden/granted/.git"));
    test.link(".hidden/root/granted", test.0.join(".hidden/granted"));
    test.link(".hidden/root/here", ".");
    test.link("link", ".hidden/root");
    let granted = Arc::new(GrantedFolder::open(&test.0.join(".hidden/granted")).unwrap());
    let folder = test.open("link", Symlinks::AndInto(vec![granted]));
    let check = || {
        for (path, expected) in [
            ("", None),
            ("a", None),
            ("a/.env", None),
            ("env", Some("a/.env")),
            ("absolute", Some("a/.env")),
            ("config", Some(".git/config")),
            ("git", Some(".git")),
            ("git/config", Some(".git/config")),
            ("granted", Some("")),
            ("granted/.git/config", Some(".git/config")),
            ("here", Some("")),
            ("here/plain", Some("plain")),
        ] {
            let opened = folder.open(path.as_bytes(), OpenMode::Waiting).unwrap();
            let found = opened.linked_path.map(|path| String::from_utf8(path).unwrap());
            assert_eq!(found.as_deref(), expected, "{path}");
        }
    };
    check();
    let rules = FolderRules { has_listing: true, ..FolderRules::default() };
    let resolution = |path: &str| {
        let path = RequestPath::decode(path.as_bytes()).unwrap();
        resolve(&folder, &rules, &path, AcceptedCodings::NONE, OpenMode::Waiting).unwrap()
    };
    for path in ["/env", "/absolute", "/config", "/git", "/git/", "/git/config"] {
        assert!(matches!(resolution(path), Resolution::Missing), "{path}");
    }
    for path in ["/plain", "/here/plain"] {
        assert!(matches!(resolution(path), Resolution::File(_)), "{path}");
    }
    let Resolution::Listing(mut entries) = resolution("/") else { panic!("a listing") };
    entries.list.sort_by(|one, other| one.name.cmp(&other.name));
    let names = entries.list.iter().map(|entry| std::str::from_utf8(&entry.name).unwrap());
    assert_eq!(names.collect::<Vec<_>>(), ["a", "granted", "here", "plain"]);
    // The links within the root are relative, so they still lead there.
    std::fs::remove_file(test.0.join(".hidden/root/absolute")).unwrap();
    test.link(".hidden/root/absolute", "a/.env");
    std::fs::remove_file(test.0.join(".hidden/root/config")).unwrap();
    test.link(".hidden/root/config", test.0.join(".hidden/granted/.git/config"));
    std::fs::rename(test.0.join(".hidden/root"), test.0.join("moved")).unwrap();
    check();
}

/// The opens of each kind while a folder is exchanged. There are more if the scheduler never shows
/// the folder.
const ROUNDS: u32 = 2000;
const ROUNDS_MAX: u32 = 2_000_000;

/// Opens `x/f` while another thread exchanges `x` and `y` in the folder.
fn open_while_exchanged(test: &TestFolder, folder: &Folder) -> [usize; 2] {
    let is_done = AtomicBool::new(false);
    let (x, y) = (test.0.join("root/x"), test.0.join("root/y"));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // Pairs with the store of `EndOnDrop`.
            while !is_done.load(Ordering::Relaxed) {
                renameat_with(CWD, &x, CWD, &y, RenameFlags::EXCHANGE).unwrap();
            }
        });
        let _end = EndOnDrop(&is_done);
        let mut counts = [0; 2];
        for round in 0..ROUNDS_MAX {
            if round >= ROUNDS && counts[0] > 0 {
                break;
            }
            for mode in [OpenMode::Waiting, OpenMode::Cached] {
                match folder.open(b"x/f", mode) {
                    Ok(opened) => {
                        assert_eq!(text(&opened), "inside");
                        counts[0] += 1;
                    }
                    Err(Errno::AGAIN) => assert_eq!(mode, OpenMode::Cached),
                    Err(Errno::BUSY | Errno::ACCESS | Errno::LOOP) => counts[1] += 1,
                    Err(error) => panic!("{error}"),
                }
            }
        }
        counts
    })
}

#[test]
fn a_link_that_replaces_a_folder_meanwhile_never_leads_out() {
    let test = TestFolder::new("exchange");
    test.write("outside/f", "outside");
    test.write("granted/f", "inside");
    test.write("root/x/f", "inside");
    test.link("root/y", "../outside");
    let folder = test.open("root", Symlinks::Inside);
    let [opened, _] = open_while_exchanged(&test, &folder);
    assert!(opened > 0);
    assert!(
        open_while_exchanged(&test, &test.open("root", Symlinks::None))[0] > 0,
        "the folder was seen"
    );
    // Two links: one leads to a granted folder, one out.
    for name in ["x", "y"] {
        let path = test.0.join("root").join(name);
        let _ = std::fs::remove_file(&path);
        let _ = std::fs::remove_dir_all(&path);
    }
    test.link("root/x", test.0.join("granted"));
    test.link("root/y", test.0.join("outside"));
    let granted = Arc::new(GrantedFolder::open(&test.0.join("granted")).unwrap());
    let [opened, _] =
        open_while_exchanged(&test, &test.open("root", Symlinks::AndInto(vec![granted])));
    assert!(opened > 0);
}

#[test]
fn only_regular_files_and_folders_are_opened() {
    let test = TestFolder::new("types");
    test.write("root/a", "a");
    test.link("root/null", "/dev/null");
    let pipe = test.0.join("root/pipe");
    mknodat(CWD, &pipe, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    test.link("root/to-pipe", "pipe");
    let _socket = UnixListener::bind(test.0.join("root/socket")).unwrap();
    let device = rustix::fs::makedev(1, 3);
    let path = test.0.join("root/device");
    let made = mknodat(CWD, &path, FileType::CharacterDevice, Mode::RUSR, device);
    if made.is_err() {
        println!("skip: only root creates devices");
    }
    let folder = test.open("root", Symlinks::Inside);
    for name in ["null", "pipe", "to-pipe", "socket", "device"] {
        let expected = if name == "device" && made.is_err() { Errno::NOENT } else { Errno::ACCESS };
        assert_eq!(read(&folder, name), Err(expected), "{name}");
    }
    let entries = folder.list(b"", &|_| true).unwrap();
    assert_eq!(entries.list.len(), 1, "{entries:?}");
    assert_eq!(read(&folder, "a\0b"), Err(Errno::INVAL));
    assert_eq!(read(&folder, &"a".repeat(256)), Err(Errno::NAMETOOLONG));
}

#[test]
fn a_pipe_is_not_opened() {
    let test = TestFolder::new("pipe");
    let pipe = test.0.join("pipe");
    mknodat(CWD, &pipe, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    let folder = test.open("", Symlinks::Inside);
    let events = inotify::init(inotify::CreateFlags::NONBLOCK).unwrap();
    inotify::add_watch(&events, &pipe, inotify::WatchFlags::OPEN).unwrap();
    assert_eq!(folder.open(b"pipe", OpenMode::Waiting).map(drop), Err(Errno::ACCESS));
    let mut buffer = [0; 256];
    assert_eq!(rustix::io::read(&events, &mut buffer), Err(Errno::AGAIN), "no open");
    // Another process that opens it is seen.
    drop(millrace_sys::open_to_read(&pipe).unwrap());
    assert!(rustix::io::read(&events, &mut buffer).unwrap() > 0);
}

#[test]
fn permissions_of_the_process_apply() {
    let test = TestFolder::new("permissions");
    test.write("root/closed", "closed");
    test.write("root/folder/a", "a");
    test.write("root/unlisted/a", "a");
    let set = |path: &str, mode| {
        let path = test.0.join("root").join(path);
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    };
    set("closed", 0);
    set("folder", 0);
    set("unlisted", 0o711);
    let folder = test.open("root", Symlinks::Inside);
    let check = || {
        assert_eq!(read(&folder, "closed"), Err(Errno::ACCESS));
        assert_eq!(read(&folder, "folder/a"), Err(Errno::ACCESS));
        assert_eq!(
            read(&folder, "folder"),
            Ok("folder".to_owned()),
            "only its contents are closed"
        );
        assert_eq!(read(&folder, "unlisted/a").unwrap(), "a");
        let (rules, none) = (FolderRules::default(), AcceptedCodings::NONE);
        let path = RequestPath::decode(b"/folder/").unwrap();
        let found = resolve(&folder, &rules, &path, none, OpenMode::Waiting).unwrap();
        assert!(matches!(found, Resolution::Forbidden), "{found:?}");
    };
    std::thread::scope(|scope| {
        let checked = scope.spawn(|| {
            if rustix::process::geteuid().is_root() {
                // Only this thread, which ends.
                let nobody = rustix::process::Uid::from_raw(65_534);
                rustix::thread::set_thread_res_uid(nobody, nobody, nobody).unwrap();
                assert_eq!(folder.list(b"unlisted", &|_| true), Err(Errno::ACCESS));
            }
            check();
        });
        checked.join().unwrap();
    });
    set("folder", 0o700);
}

#[test]
fn a_status_shows_each_change() {
    let test = TestFolder::new("changes");
    test.write("a", "one");
    let folder = test.open("", Symlinks::Inside);
    let open = || folder.open(b"a", OpenMode::Waiting).unwrap();
    let first = open();
    assert_eq!(first.status, open().status);
    // Replaced: the open file keeps its bytes.
    test.write("new", "two");
    std::fs::rename(test.0.join("new"), test.0.join("a")).unwrap();
    let second = open();
    assert_ne!(first.status, second.status);
    assert_eq!((text(&first), text(&second)), ("one".to_owned(), "two".to_owned()));
    // Cut in place: a read beyond the end returns 0.
    test.write("a", "2");
    assert_eq!(open().status.bytes, 1);
    assert_eq!(second.file.read_at(1, &mut [0; 8], true), Ok(0));
    assert_eq!(text(&second), "2");
    // The time of modification set back: the time of change shows it.
    let now = open().status;
    let file = std::fs::File::options().write(true).open(test.0.join("a")).unwrap();
    let seconds = std::time::Duration::from_secs(1_000_000_000);
    file.set_modified(std::time::UNIX_EPOCH + seconds).unwrap();
    let FileStatus { modified, changed, .. } = open().status;
    assert_eq!((modified.seconds, modified.nanoseconds), (1_000_000_000, 0));
    assert!(changed >= now.changed);
    // Removed: the open file remains.
    std::fs::remove_file(test.0.join("a")).unwrap();
    assert_eq!(folder.open(b"a", OpenMode::Waiting).map(drop), Err(Errno::NOENT));
    assert_eq!(text(&second), "2");
    match second.file.read_at(0, &mut [0; 8], false) {
        Err(Errno::AGAIN) => println!("skip: the file system does not tell what is cached"),
        read => assert_eq!(read, Ok(1)),
    }
    assert!(second.file.descriptor().is_some());
}

#[test]
fn a_listing_has_targets_of_links_and_an_end() {
    let test = TestFolder::new("listing");
    test.write("root/a", "12345");
    test.write("root/folder/b", "");
    test.write("secret", "secret");
    test.link("root/to-a", "a");
    test.link("root/to-folder", test.0.join("root/folder"));
    test.link("root/out", "../secret");
    test.link("root/dead", "nothing");
    let folder = test.open("root", Symlinks::Inside);
    let mut entries = folder.list(b"", &|name| name != b"hidden").unwrap();
    entries.list.sort_by(|one, other| one.name.cmp(&other.name));
    let found: Vec<(&str, FileKind)> = entries
        .list
        .iter()
        .map(|entry| (std::str::from_utf8(&entry.name).unwrap(), entry.kind))
        .collect();
    let (file, directory) = (FileKind::Regular, FileKind::Folder);
    let expected = [("a", file), ("folder", directory), ("to-a", file), ("to-folder", directory)];
    assert_eq!(found, expected);
    assert_eq!((entries.list[0].bytes, entries.list[2].bytes), (5, 5));
    assert!(!entries.is_cut);
    assert_eq!(folder.list(b"to-folder", &|_| true).unwrap().list.len(), 1);
    assert_eq!(folder.list(b"a", &|_| true), Err(Errno::NOTDIR));
    let none = test.open("root", Symlinks::None);
    assert_eq!(none.list(b"", &|_| true).unwrap().list.len(), 2);
    assert_eq!(none.list(b"", &|name| name != b"a").unwrap().list.len(), 1);
}

#[test]
fn a_long_listing_is_cut() {
    let test = TestFolder::new("long");
    for number in 0..=millrace_files::limits::LISTED_ENTRIES_MAX {
        std::fs::File::create(test.0.join(number.to_string())).unwrap();
    }
    let entries = test.open("", Symlinks::Inside).list(b"", &|_| true).unwrap();
    assert!(entries.is_cut);
    assert_eq!(entries.list.len(), millrace_files::limits::LISTED_ENTRIES_MAX);
}

#[test]
fn only_folders_can_be_roots() {
    let test = TestFolder::new("roots");
    test.write("a", "");
    let open = |path: &str| Folder::open(&test.0.join(path), Symlinks::Inside).map(drop);
    assert_eq!((open("a"), open("no")), (Err(Errno::NOTDIR), Err(Errno::NOENT)));
    test.link("link", ".");
    assert_eq!(open("link"), Ok(()));
}
