//! Clients that read and write files, and the daemon between them.

mod common;

use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, PermissionsExt};

use common::{Daemon, Folder, by_kernel, memory_of, path, pattern, sealed, wait_until, whole};
use iolite::service::PIECE_BYTES;
use millrace_sys::Errno;

const MEGABYTE: usize = 1 << 20;

#[test]
fn clients_read_one_copy() {
    let folder = Folder::new("one-copy");
    let daemon = Daemon::start(&folder, &[]);
    for (number, length) in [32 << 10, 100_000, MEGABYTE, 5 * MEGABYTE + 1].into_iter().enumerate()
    {
        let bytes = pattern(length, number as u64);
        let file = folder.file("file", &bytes);
        let (one, other) = (daemon.client(), daemon.client());
        let (first, second) = (whole(&one, &file), whole(&other, &folder.open("file")));
        assert!(first.to_vec() == bytes && second.to_vec() == bytes);
        assert_eq!(memory_of(&first), memory_of(&second));
        assert_eq!(first.slices().count(), length.div_ceil(PIECE_BYTES as usize));
        wait_until("its times are settled", || {
            let again = whole(&one, &file);
            assert_eq!(memory_of(&again), memory_of(&first));
            one.stats().kept > 0
        });
        let stats = one.stats();
        assert_eq!((stats.copied, stats.refused), (0, 0));
    }
}

#[test]
fn a_read_moves_the_position() {
    let folder = Folder::new("position");
    let daemon = Daemon::start(&folder, &[]);
    let bytes = pattern(3 * MEGABYTE, 1);
    let (file, client) = (folder.file("file", &bytes), daemon.client());
    let mut read = Vec::new();
    loop {
        let part = client.read(file.as_fd(), 100_000).expect("bytes");
        if part.is_empty() {
            break;
        }
        assert_eq!(millrace_sys::position(file.as_fd()), Ok((read.len() as u64) + part.len()));
        read.extend(part.to_vec());
    }
    assert!(read == bytes);
    assert_eq!(client.read_at(file.as_fd(), 5, 10).expect("bytes").to_vec(), bytes[5..15]);
    assert_eq!(client.read(file.as_fd(), 10).expect("the end").len(), 0);
    assert_eq!(client.stats().copied, 0);
}

#[test]
fn short_files_and_other_descriptors_are_copied() {
    let folder = Folder::new("short");
    let daemon = Daemon::start(&folder, &[]);
    let client = daemon.client();
    let short = pattern(32 * 1024 - 1, 1);
    assert_eq!(whole(&client, &folder.file("short", &short)).to_vec(), short);
    assert_eq!(client.stats().copied, 1);
    let (from, to) = std::io::pipe().expect("a pipe");
    assert_eq!(client.write(to.as_fd(), &sealed(b"through a pipe")), Ok(14));
    assert_eq!(client.read(from.as_fd(), 100).expect("bytes").to_vec(), b"through a pipe");
    drop(to);
    assert_eq!(client.read(from.as_fd(), 100).expect("the end").len(), 0);
    assert_eq!(client.read_at(from.as_fd(), 0, 1).unwrap_err(), Errno::SPIPE);
    let write_only = File::create(path(&folder, "other")).expect("a file");
    write_only.set_len(100_000).expect("a length");
    assert_eq!(client.read_at(write_only.as_fd(), 0, 1).unwrap_err(), Errno::BADF);
    let read_only = File::open(path(&folder, "short")).expect("the file");
    assert_eq!(client.write(read_only.as_fd(), &sealed(b"x")).unwrap_err(), Errno::BADF);
    assert_eq!(client.read(File::open("/").expect("/").as_fd(), 1).unwrap_err(), Errno::ISDIR);
}

#[test]
fn files_without_a_length_have_bytes() {
    let folder = Folder::new("proc");
    let client = Daemon::start(&folder, &[]).client();
    let path = "/proc/self/maps";
    let mapped = File::open(path).expect("proc(5)");
    assert_eq!(mapped.metadata().expect("fstat").len(), 0);
    let read = whole(&client, &mapped).to_vec();
    assert!(read.starts_with(&std::fs::read(path).expect("proc(5)")[..100]));
    let mut position = 0;
    while position < 300 {
        let part = client.read(mapped.as_fd(), 100).expect("bytes").to_vec();
        assert!(part == read[position..position + 100]);
        position += 100;
    }
    assert_eq!(whole(&client, &folder.file("empty", b"")).len(), 0);
}

#[test]
fn many_files_leave_descriptors_to_the_program() {
    let folder = Folder::new("many");
    let daemon = Daemon::start(&folder, &[]);
    let client = daemon.client();
    let open = || std::fs::read_dir("/proc/self/fd").expect("proc(5)").count();
    let (before, most) = (open(), millrace_sys::descriptor_limit().min(4096) as usize / 4);
    let name = |number: usize| number.to_string();
    for number in 0..most + 100 {
        folder.file(&name(number), &pattern(32 << 10, number as u64));
    }
    let is_kept = |number| {
        let kept = client.stats().kept;
        whole(&client, &folder.open(&name(number)));
        client.stats().kept > kept
    };
    wait_until("times are settled", || is_kept(most + 99));
    (0..most + 100).for_each(|number| _ = is_kept(number));
    assert!(is_kept(200) && !is_kept(0), "those that were read last are kept");
    // Other tests have files open, too.
    let more = open().saturating_sub(before);
    assert!(more < most + 50, "{more} descriptors, of {most}");
}

#[test]
fn a_read_sees_what_was_written_before() {
    let folder = Folder::new("written");
    let daemon = Daemon::start(&folder, &[]);
    let mut bytes = pattern(MEGABYTE, 1);
    let (file, client, other) = (folder.file("file", &bytes), daemon.client(), daemon.client());
    for round in 0..300_usize {
        let at = round * 7919 % (bytes.len() - 10);
        let new = pattern(10, round as u64);
        file.write_all_at(&new, at as u64).expect("written");
        bytes[at..at + 10].copy_from_slice(&new);
        let reader = if round % 2 == 0 { &client } else { &other };
        assert!(whole(reader, &file).to_vec() == bytes, "round {round}");
    }
}

#[test]
fn files_that_are_read_once_do_not_evict_others() {
    let folder = Folder::new("scan");
    let daemon = Daemon::start(&folder, &["--cache-memory", "16M", "--user-memory", "16M"]);
    let file = |number: u64| folder.file(&number.to_string(), &pattern(MEGABYTE, number));
    let files: Vec<_> = (0..40).map(file).collect();
    let read = |number: usize| {
        loop {
            // A client that has ended holds nothing, which the daemon examines now and then.
            let client = daemon.client();
            let bytes = whole(&client, &files[number]);
            if client.stats().copied == 0 {
                return memory_of(&bytes);
            }
            std::thread::yield_now();
        }
    };
    let popular: Vec<_> = (0..4).map(read).collect();
    assert_eq!((0..4).map(read).collect::<Vec<_>>(), popular);
    let once: Vec<_> = (4..40).map(read).collect();
    assert_eq!((0..4).map(read).collect::<Vec<_>>(), popular);
    assert_ne!(read(4), once[0], "it was evicted");
}

#[test]
fn an_aggregate_is_a_snapshot() {
    let folder = Folder::new("snapshot");
    let daemon = Daemon::start(&folder, &[]);
    let bytes = pattern(3 * MEGABYTE, 1);
    let (file, client) = (folder.file("file", &bytes), daemon.client());
    let before = whole(&client, &file);
    file.write_all_at(&[0; 100], 1000).expect("written");
    let changed = whole(&client, &file);
    assert!(before.to_vec() == bytes && changed.to_vec() == by_kernel(&file));
    file.set_len(40_000).expect("a length");
    let short = whole(&client, &file);
    assert!(before.to_vec() == bytes && changed.len() == 3 << 20 && short.len() == 40_000);
    std::fs::rename(path(&folder, "file"), path(&folder, "renamed")).expect("a name");
    let other = folder.file("file", &pattern(50_000, 2));
    assert!(whole(&client, &other).to_vec() == pattern(50_000, 2));
    assert!(whole(&client, &file).to_vec() == by_kernel(&file));
    assert!(before.to_vec() == bytes);
}

#[test]
fn a_part_that_did_not_change_stays_in_memory() {
    let folder = Folder::new("unchanged");
    let daemon = Daemon::start(&folder, &[]);
    let (file, client) = (folder.file("file", &pattern(6 * MEGABYTE, 1)), daemon.client());
    let before = memory_of(&whole(&client, &file));
    file.write_all_at(b"new", PIECE_BYTES + 5).expect("written");
    let after = memory_of(&whole(&client, &file));
    assert_eq!((before[0], before[2]), (after[0], after[2]));
    assert_ne!(before[1], after[1], "its memory is sealed");
    file.set_permissions(PermissionsExt::from_mode(0o600)).expect("a mode");
    assert_eq!(memory_of(&whole(&client, &file)), after);
}

#[test]
fn readers_get_the_memory_of_the_writer() {
    let folder = Folder::new("writer");
    let daemon = Daemon::start(&folder, &[]);
    let (writer, reader) = (daemon.client(), daemon.client());
    let (first, second) = (sealed(&pattern(100_000, 1)), sealed(&pattern(3 * MEGABYTE, 2)));
    let mut both = first.clone();
    both.concatenate(second.clone());
    let file = folder.file("file", b"");
    assert_eq!(writer.write(file.as_fd(), &both), Ok(both.len()));
    assert!(by_kernel(&file) == both.to_vec());
    let read = whole(&reader, &File::open(path(&folder, "file")).expect("the file"));
    assert!(read.to_vec() == both.to_vec());
    assert_eq!(memory_of(&read), memory_of(&both));
    // One slice in several files.
    let other = folder.file("other", b"");
    assert_eq!(writer.write(other.as_fd(), &first), Ok(100_000));
    assert_eq!(memory_of(&whole(&reader, &other)), memory_of(&first));
    // Bytes that were read are written to another file without a copy.
    let copy = folder.file("copy", b"");
    assert_eq!(reader.write(copy.as_fd(), &read), Ok(read.len()));
    assert_eq!(memory_of(&whole(&writer, &copy)), memory_of(&both));
}

#[test]
fn memory_that_is_not_in_the_file_is_not_read() {
    let folder = Folder::new("other-writer");
    let daemon = Daemon::start(&folder, &[]);
    let (writer, reader) = (daemon.client(), daemon.client());
    let file = folder.file("file", b"");
    let bytes = sealed(&pattern(100_000, 1));
    writer.write(file.as_fd(), &bytes).expect("written");
    file.write_all_at(b"!", 50_000).expect("written");
    let read = whole(&reader, &file);
    assert!(read.to_vec() == by_kernel(&file) && memory_of(&read) != memory_of(&bytes));
    // A part of memory is never shared, because the file does not have the rest.
    let part = bytes.slice(10..90_000);
    let file = folder.file("part", b"");
    writer.write(file.as_fd(), &part).expect("written");
    let read = whole(&reader, &file);
    assert!(read.to_vec() == part.to_vec() && memory_of(&read) != memory_of(&part));
}

#[test]
fn appended_bytes_are_read() {
    let folder = Folder::new("appended");
    let daemon = Daemon::start(&folder, &[]);
    let client = daemon.client();
    drop(folder.file("file", &pattern(40_000, 1)));
    let file = File::options().read(true).append(true).open(path(&folder, "file"));
    let file = file.expect("the file");
    for round in 0..40 {
        let bytes = sealed(&pattern(if round % 8 == 7 { 100_000 } else { 1000 }, round));
        client.write(file.as_fd(), &bytes).expect("written");
        let read = whole(&client, &file);
        assert!(read.to_vec() == by_kernel(&file));
        assert!(read.slices().count() < 12, "{} pieces", read.slices().count());
    }
}
