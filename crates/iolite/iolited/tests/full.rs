//! Writes that end because there is no room, or no more of a quota: the results are those of
//! write(2), and readers get the bytes that were written, and no others.

mod common;

use std::ffi::CString;
use std::fs::File;
use std::io::{ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::thread;

use common::{Daemon, Folder, by_kernel, path, pattern, sealed, whole};
use iolite::limits::SLAB_BYTES_MIN;
use iolite::{Aggregate, Slab};
use millrace_sys::Errno;
use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_change};
use rustix::thread::{UnshareFlags, set_thread_res_uid, unshare_unsafe};

const MEGABYTE: usize = 1 << 20;
/// A user without rights.
const OTHER_USER: u32 = 65533;
const NAMES: [&str; 2] = ["ours", "theirs"];

/// Runs `run` on a thread that has mounts of its own. They end with it, and with the daemon that it
/// has started. Without root, it is skipped.
fn with_own_mounts(name: &str, run: impl FnOnce(&Folder) + Send) {
    if millrace_sys::effective_user() != 0 {
        eprintln!("skipped: to mount file systems needs root");
        return;
    }
    let folder = Folder::new(name);
    let of_thread = &folder;
    thread::scope(|scope| {
        let thread = scope.spawn(move || {
            // SAFETY: the descriptors stay shared.
            unsafe { unshare_unsafe(UnshareFlags::NEWNS) }.expect("a namespace");
            let flags = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
            mount_change("/", flags).expect("private mounts");
            run(of_thread);
        });
        thread.join().expect("no panic");
    });
}

/// Mounts a file system with these options.
fn mount_at(path: &Path, kind: &str, options: &str) -> Result<(), Errno> {
    let options = CString::new(options).expect("text");
    mount("iolited-test", path, kind, MountFlags::NOSUID, Some(&*options))
}

/// Returns an aggregate of several kinds of memory.
fn aggregate(round: u64, slab: &Slab) -> Aggregate {
    let length = |seed: u64| 1 + (round * 7919 + seed * 104_729) as usize % 200_000;
    let mut bytes = sealed(&pattern(length(1), round));
    let short = &pattern(length(2), round + 1)[..length(2).min(20_000)];
    bytes.concatenate(Aggregate::from_bytes(short, slab).expect("room"));
    bytes.concatenate(sealed(&pattern(length(3), round + 2)));
    bytes
}

/// Writes to one file by a client, and to another one, that has as much room, by write(2), until
/// there was no room several times. Returns whether the daemon has shared the first one.
fn fill(daemon: &Daemon, paths: &[PathBuf; 2], no_room: Errno) -> bool {
    let (client, reader) = (daemon.client(), daemon.client());
    let slab = Slab::on_heap(SLAB_BYTES_MIN).expect("memory");
    let open = |path: &PathBuf| {
        let mut options = File::options();
        options.read(true).write(true).create(true).truncate(false);
        options.open(path).expect("a file")
    };
    let [ours, mut theirs] = paths.each_ref().map(open);
    let (mut errors, mut parts) = (0, 0);
    for round in 0..40 {
        let bytes = aggregate(round, &slab);
        let written = client.write(ours.as_fd(), &bytes);
        let expected = theirs.write(&bytes.to_vec()).map(|count| count as u64);
        let errno = |error| Errno::from_io_error(&error).expect("an error of the kernel");
        assert_eq!(written, expected.map_err(errno), "round {round}");
        parts += u32::from(written.is_ok_and(|count| count < bytes.len()));
        // Memory of the rest is used for other bytes now.
        drop(bytes);
        let expected = by_kernel(&theirs);
        assert!(by_kernel(&ours) == expected, "round {round}");
        for reader in [&client, &reader] {
            assert!(whole(reader, &ours).to_vec() == expected, "round {round}");
        }
        if let Err(error) = written {
            assert_eq!(error, no_room);
            errors += 1;
            // There is some room again.
            for mut file in [&ours, &theirs] {
                file.set_len(300_000 + round * 5_000).expect("a length");
                file.seek(SeekFrom::End(0)).expect("an offset");
            }
        }
    }
    assert!(errors > 2 && parts > 2, "{errors} errors, {parts} parts");
    client.stats().received > 0
}

#[test]
fn a_full_file_system_ends_a_write() {
    with_own_mounts("full", |folder| {
        let daemon = Daemon::start(folder, &[]);
        let paths = NAMES.map(|name| {
            let mounted = path(folder, name);
            std::fs::create_dir(&mounted).expect("a folder");
            mount_at(&mounted, "tmpfs", "size=1M").expect("tmpfs");
            mounted.join("file")
        });
        assert!(fill(&daemon, &paths, Errno::NOSPC), "tmpfs is shared");
        // Longer files have zeros there, and not the rest of a write.
        let file = File::options().read(true).write(true).open(&paths[0]).expect("the file");
        let length = by_kernel(&file).len();
        file.set_len(2 * MEGABYTE as u64).expect("a length");
        let read = whole(&daemon.client(), &file).to_vec();
        assert!(read[length..].iter().all(|byte| *byte == 0) && read == by_kernel(&file));
    });
}

#[test]
fn the_quota_of_a_user_ends_a_write() {
    with_own_mounts("quota", |folder| {
        let daemon = Daemon::start(folder, &[]);
        let mut paths = Vec::new();
        for name in NAMES {
            let mounted = path(folder, name);
            std::fs::create_dir(&mounted).expect("a folder");
            let options = "mode=0777,usrquota,usrquota_block_hardlimit=1M";
            match mount_at(&mounted, "tmpfs", options) {
                Ok(()) => paths.push(mounted.join("file")),
                Err(Errno::INVAL) => {
                    eprintln!("skipped: tmpfs has no quotas here (Linux 6.6, CONFIG_TMPFS_QUOTA)");
                    return;
                }
                Err(error) => panic!("tmpfs: {error}"),
            }
        }
        let user = rustix::fs::Uid::from_raw(OTHER_USER);
        // Root has no quota.
        set_thread_res_uid(user, user, user).expect("another user of this thread");
        let paths = paths.try_into().expect("two files");
        assert!(fill(&daemon, &paths, Errno::DQUOT), "tmpfs is shared");
    });
}

/// A file system in user space (FUSE) that has one file with a quota. It ends with its mount.
struct QuotaFile {
    device: File,
    bytes: Vec<u8>,
}

/// The bytes that the file may have, and those of one request to write.
const QUOTA: usize = MEGABYTE;
const WRITE_BYTES: u32 = 64 << 10;
const BUFFER_BYTES: usize = 1 << 20;

impl QuotaFile {
    /// Mounts it at an empty file, and serves it on a thread.
    fn mount(path: &Path) {
        File::create_new(path).expect("a file");
        let device = File::options().read(true).write(true).open("/dev/fuse").expect("FUSE");
        let number = device.as_raw_fd();
        let options = format!("fd={number},rootmode=100644,user_id=0,group_id=0");
        mount_at(path, "fuse", &options).expect("FUSE");
        thread::spawn(move || Self { device, bytes: Vec::new() }.serve());
    }

    fn serve(mut self) {
        let mut request = vec![0; BUFFER_BYTES];
        loop {
            let length = match self.device.read(&mut request) {
                Ok(length) => length,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                // It is not mounted any more.
                Err(_) => return,
            };
            let request = &request[..length];
            let (error, response) = match self.respond(number(request, 4), &request[40..]) {
                Ok(Some(response)) => (0, response),
                Ok(None) => continue,
                Err(error) => (-error.raw_os_error(), Vec::new()),
            };
            let length = 16 + response.len() as u32;
            let head = [&length.to_le_bytes()[..], &error.to_le_bytes(), &request[8..16]];
            let packet = [&head.concat()[..], &response].concat();
            // The process that has made the request may have ended.
            let _ = self.device.write(&packet);
        }
    }

    /// Responds to a request, as linux/fuse.h describes it.
    fn respond(&mut self, kind: u32, request: &[u8]) -> Result<Option<Vec<u8>>, Errno> {
        let offset = || u64::from(number(request, 8)) as usize;
        Ok(Some(match kind {
            // FUSE_INIT: version 7.31.
            26 => words(&[7, 31, 0, 0, 0, WRITE_BYTES, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0]),
            // FUSE_SETATTR, FUSE_GETATTR.
            4 => {
                if number(request, 0) & 8 != 0 {
                    self.bytes.resize(number(request, 16) as usize, 0);
                }
                self.attributes()
            }
            3 => self.attributes(),
            // FUSE_OPEN, FUSE_READ.
            14 => words(&[0; 4]),
            15 => {
                let begin = offset().min(self.bytes.len());
                let end = (begin + number(request, 16) as usize).min(self.bytes.len());
                self.bytes[begin..end].to_vec()
            }
            // FUSE_WRITE.
            16 => {
                let (begin, count) = (offset(), number(request, 16));
                let end = begin + count as usize;
                if end > QUOTA {
                    return Err(Errno::DQUOT);
                }
                self.bytes.resize(self.bytes.len().max(end), 0);
                self.bytes[begin..end].copy_from_slice(&request[40..40 + count as usize]);
                words(&[count, 0])
            }
            // FUSE_FORGET and FUSE_BATCH_FORGET have no response.
            2 | 42 => return Ok(None),
            // FUSE_RELEASE, FUSE_FSYNC, FUSE_FLUSH.
            18 | 20 | 25 => Vec::new(),
            _ => return Err(Errno::NOSYS),
        }))
    }

    /// Returns the attributes, which the kernel does not keep.
    fn attributes(&self) -> Vec<u8> {
        let length = self.bytes.len() as u32;
        let mut attributes = [0; 26];
        attributes[4] = 1;
        attributes[6] = length;
        attributes[8] = length.div_ceil(512);
        // The mode, the links and the length of a block.
        (attributes[19], attributes[20], attributes[24]) = (0o100_644, 1, 4096);
        words(&attributes)
    }
}

fn number(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

#[test]
fn the_quota_of_another_file_system_ends_a_write() {
    with_own_mounts("fuse", |folder| {
        std::fs::set_permissions(&folder.0, PermissionsExt::from_mode(0o755)).expect("a mode");
        let daemon = Daemon::start(folder, &[]);
        let paths = NAMES.map(|name| path(folder, name));
        paths.iter().for_each(|path| QuotaFile::mount(path));
        assert!(!fill(&daemon, &paths, Errno::DQUOT), "FUSE is not shared");
    });
}
