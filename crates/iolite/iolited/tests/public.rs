//! Short files of public folders: clients read them from packs, and nothing that not all users may
//! read.

mod common;

use std::collections::HashSet;
use std::fs::{self, File, Permissions};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use common::{Daemon, Folder, by_kernel, memory_of, path, pattern, wait_until, whole};
use iolite::service::{FileClient, FileVersion, RESPONSE_BYTES_MAX, Refusal, Request, Response};

const FILES: u64 = 200;

/// A daemon with a public folder of short files, which are settled.
struct Public {
    daemon: Daemon,
    folder: Folder,
}

impl Public {
    fn start(name: &str, options: &[&str]) -> Self {
        let folder = Folder::new(name);
        fs::create_dir(path(&folder, "public")).expect("a folder");
        let set_mode = |name: &str, mode| {
            let path = path(&folder, name);
            fs::set_permissions(path, Permissions::from_mode(mode)).expect("a mode");
        };
        set_mode("public", 0o755);
        for number in 0..FILES {
            let name = format!("public/{number}");
            let length = 1 + (number * 7919) % ((32 << 10) - 1);
            drop(folder.file(&name, &pattern(length as usize, number)));
            set_mode(&name, 0o644);
        }
        // A file that is left out of the last pack might be too short for one alone.
        let last = File::open(path(&folder, &format!("public/{}", FILES - 1))).expect("a file");
        let last = FileVersion::of(last.as_fd()).expect("fstat").expect("a regular file");
        wait_until("all files are settled", || last.is_settled(millrace_sys::time_of_day()));
        let public = path(&folder, "public");
        let public = ["--public", public.to_str().expect("a name")];
        let daemon = Daemon::start(&folder, &[&public, options].concat());
        let public = Self { daemon, folder };
        wait_until("the files are in packs", || {
            public.packed(&public.daemon.client(), 0).is_some()
        });
        public
    }

    fn open(&self, number: u64) -> File {
        File::open(path(&self.folder, &format!("public/{number}"))).expect("the file")
    }

    /// Returns the pack from which a file is read now, if it is not copied.
    fn packed(&self, client: &FileClient, number: u64) -> Option<u64> {
        let (file, copied) = (self.open(number), client.stats().copied);
        let bytes = whole(client, &file);
        assert!(bytes.to_vec() == by_kernel(&file), "file {number}");
        (client.stats().copied == copied).then(|| memory_of(&bytes)[0])
    }

    /// Returns the packs from which all files are read, until none is copied.
    fn all(&self, client: &FileClient) -> Vec<u64> {
        let mut packs = Vec::new();
        wait_until("no file is copied", || {
            packs = (0..FILES).filter_map(|number| self.packed(client, number)).collect();
            packs.len() == FILES as usize
        });
        packs
    }

    /// Waits until new clients read a file from another pack.
    fn await_other_pack(&self, number: u64, before: u64) {
        wait_until("there is a new pack", || {
            let now = self.packed(&self.daemon.client(), number);
            assert_ne!(now, Some(before), "a file of the pack has changed");
            now.is_some()
        });
    }

    /// Returns the response to a request by hand.
    fn request(&self, file: BorrowedFd<'_>) -> Response {
        let wait_max = Duration::from_secs(60);
        let peer = millrace_sys::connect_and_wait(&self.daemon.socket, wait_max);
        let peer = peer.expect("it listens");
        let (mut bytes, mut files, mut packet) = ([0; RESPONSE_BYTES_MAX], Vec::new(), Vec::new());
        let mut receive = || {
            let length = millrace_sys::await_packet(peer.as_fd(), &mut bytes, &mut files);
            Response::read(&bytes[..length.expect("a response")], files.len())
        };
        assert_eq!(receive(), Some(Response::Ready));
        Request::Pack.write(&mut packet);
        millrace_sys::send_packet_and_wait(peer.as_fd(), &[&packet], &[file]).expect("sent");
        receive().expect("a known response")
    }

    fn set_mode(&self, number: u64, mode: u32) {
        self.open(number).set_permissions(Permissions::from_mode(mode)).expect("a mode");
    }
}

#[test]
fn clients_share_packs() {
    let public = Public::start("packs", &[]);
    let (one, other) = (public.daemon.client(), public.daemon.client());
    let packs = public.all(&one);
    let count = packs.iter().collect::<HashSet<_>>().len();
    assert!(count <= 4, "{count} packs for {FILES} files of 16 KB");
    assert_eq!(public.all(&other), packs);
    let received = one.stats().received;
    assert_eq!(public.all(&one), packs);
    assert_eq!(one.stats().received, received, "without a message");
    let file = public.open(7);
    assert_eq!(one.read_at(file.as_fd(), 5, 10).expect("bytes").to_vec(), by_kernel(&file)[5..15]);
    assert_eq!(one.read_at(file.as_fd(), 1 << 20, 10).expect("the end").len(), 0);
}

#[test]
fn later_contents_are_in_new_packs() {
    let public = Public::start("packs-written", &[]);
    let client = public.daemon.client();
    let pack = public.all(&client)[3];
    let held = whole(&client, &public.open(3));
    let before = held.to_vec();
    fs::write(path(&public.folder, "public/3"), b"new").expect("written");
    assert_eq!(whole(&client, &public.open(3)).to_vec(), b"new");
    public.await_other_pack(3, pack);
    assert!(held.to_vec() == before, "a snapshot");
    // A process that has the old pack goes on with its other files.
    assert!((0..FILES).any(|number| public.packed(&client, number) == Some(pack)));
}

#[test]
fn a_pack_is_passed_only_while_all_users_may_read_its_files() {
    let public = Public::start("packs-private", &[]);
    type Change = fn(&Public, u64);
    let changes: [Change; 4] = [
        |public, number| public.set_mode(number, 0o600),
        |public, number| public.set_mode(number, 0o604),
        |public, number| {
            let name = |folder| path(&public.folder, &format!("{folder}{number}"));
            fs::rename(name("public/"), name("")).expect("a name");
            fs::copy(name(""), name("public/")).expect("a copy");
        },
        |public, number| {
            let other = path(&public.folder, "other");
            fs::write(&other, b"other").expect("a file");
            fs::rename(other, path(&public.folder, &format!("public/{number}"))).expect("a name");
            public.set_mode(number, 0o400);
        },
    ];
    for (number, change) in (10..).zip(changes) {
        // The pack of the file, and another file that is in it.
        let mut pack = None;
        wait_until("the file is in a pack", || {
            pack = public.packed(&public.daemon.client(), number);
            pack.is_some()
        });
        let pack = pack.expect("it was just found");
        let client = public.daemon.client();
        whole(&client, &public.open(number));
        let is_beside =
            |other: &u64| *other != number && public.packed(&client, *other) == Some(pack);
        let other = (20..FILES).find(is_beside).expect("a pack has many files");
        change(&public, number);
        public.await_other_pack(other, pack);
        let file = public.open(number);
        assert!(whole(&public.daemon.client(), &file).to_vec() == by_kernel(&file));
    }
    for number in [10, 11, 13] {
        assert_eq!(
            public.request(public.open(number).as_fd()),
            Response::Refused(Refusal::NotPublic)
        );
    }
    let folder = path(&public.folder, "public");
    fs::set_permissions(folder, Permissions::from_mode(0o700)).expect("a mode");
    assert_eq!(public.request(public.open(0).as_fd()), Response::Refused(Refusal::NotPublic));
}

#[test]
fn other_files_are_refused() {
    let public = Public::start("packs-other", &[]);
    let refused = |name: &str, bytes: &[u8]| {
        let file = public.folder.file(name, bytes);
        file.set_permissions(Permissions::from_mode(0o644)).expect("a mode");
        public.request(file.as_fd())
    };
    let wrong = Response::Refused(Refusal::NotPublic);
    assert_eq!(refused("public/long", &[1; 32 << 10]), wrong);
    assert_eq!(refused("public/empty", b""), wrong);
    assert_eq!(refused("outside", b"short"), wrong);
    let (pipe, _end) = std::io::pipe().expect("a pipe");
    assert_eq!(public.request(pipe.as_fd()), Response::Refused(Refusal::NotRegular));
    // A pack of few bytes is not worth its memory.
    fs::create_dir(path(&public.folder, "public/few")).expect("a folder");
    let few = path(&public.folder, "public/few");
    fs::set_permissions(few, Permissions::from_mode(0o755)).expect("a mode");
    assert_eq!(refused("public/few/file", b"few"), Response::Refused(Refusal::Unpacked));
    // Without public folders, clients soon request no more.
    let folder = Folder::new("no-packs");
    let daemon = Daemon::start(&folder, &[]);
    let (client, file) = (daemon.client(), public.open(0));
    (0..10_000).for_each(|_| drop(whole(&client, &file)));
    assert!(client.stats().refused < 20, "{:?}", client.stats());
    assert_eq!(client.stats().copied, 10_000);
}

#[test]
fn packs_are_evicted_as_a_whole() {
    let public = Public::start("packs-evicted", &["--cache-memory", "16M"]);
    let before: HashSet<u64> = public.all(&public.daemon.client()).into_iter().collect();
    let memory = || public.daemon.memory().0;
    let file = |number| public.folder.file(&format!("long-{number}"), &pattern(1 << 20, number));
    let files: Vec<_> = (0..20).map(file).collect();
    wait_until("long files have replaced them", || {
        for file in &files {
            // Those that are read again replace others that were.
            (0..2).for_each(|_| drop(whole(&public.daemon.client(), file)));
        }
        assert!(memory() <= 16 << 20, "{}", memory());
        let packed = public.packed(&public.daemon.client(), 0);
        packed.is_some_and(|pack| !before.contains(&pack))
    });
    public.all(&public.daemon.client());
}
