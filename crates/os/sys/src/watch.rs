//! The end of memory files (inotify(7)).

use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags};
use rustix::io::Errno;

use crate::Result;

/// Notices when the kernel frees files of memfd_create(2): when no descriptor (also O_PATH), no
/// mapping, and no message on its way refers to them any more.
#[derive(Debug)]
pub struct FreedFiles(OwnedFd);

/// The number of a watched file. None occurs twice in one [`FreedFiles`].
pub type WatchNumber = i32;

impl FreedFiles {
    /// Creates an object that watches no file yet.
    ///
    /// # Errors
    /// EMFILE if this user has too many (`/proc/sys/fs/inotify/max_user_instances`); ENFILE.
    pub fn new() -> Result<Self> {
        inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK).map(Self)
    }

    /// Watches a file, and returns its number.
    ///
    /// # Errors
    /// ENOSPC if this user watches too many files (`/proc/sys/fs/inotify/max_user_watches`);
    /// ENOENT without proc(5).
    pub fn watch(&self, file: BorrowedFd<'_>) -> Result<WatchNumber> {
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        inotify::add_watch(&self.0, path, WatchFlags::DELETE_SELF)
    }

    /// Calls `freed` with the number of each file that was freed since the last call.
    ///
    /// # Errors
    /// None is known.
    ///
    /// # Panics
    /// If more events were waiting than the kernel keeps: see [`watched_files_max`].
    pub fn collect(&self, mut freed: impl FnMut(WatchNumber)) -> Result<()> {
        let mut space = [MaybeUninit::uninit(); 4096];
        let mut events = Reader::new(&self.0, &mut space);
        loop {
            match events.next() {
                Ok(event) => {
                    assert!(!event.events().contains(ReadFlags::QUEUE_OVERFLOW), "too many files");
                    if event.events().contains(ReadFlags::DELETE_SELF) {
                        freed(event.wd());
                    }
                }
                Err(Errno::AGAIN) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error),
            }
        }
    }
}

/// Returns the number of files that one [`FreedFiles`] may watch without losing an event: the
/// kernel keeps a number of events (`/proc/sys/fs/inotify/max_queued_events`), two for each file.
pub fn watched_files_max() -> u64 {
    let events = std::fs::read_to_string("/proc/sys/fs/inotify/max_queued_events");
    let events = events.ok().and_then(|number| number.trim().parse::<u64>().ok());
    events.unwrap_or(EVENTS_DEFAULT) / 2
}

/// The number of events that the kernel keeps by default.
const EVENTS_DEFAULT: u64 = 16_384;

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    use rustix::fs::{Mode, OFlags};

    use super::*;
    use crate::{MappedFile, create_memory_file, reopen_to_read};

    /// Waits for the children of other tests, which have a copy of each descriptor until exec(2).
    fn wait_for(files: &FreedFiles, number: WatchNumber) {
        let mut freed = Vec::new();
        while freed.is_empty() {
            files.collect(|number| freed.push(number)).unwrap();
            std::thread::yield_now();
        }
        assert_eq!(freed, [number]);
    }

    fn assert_none(files: &FreedFiles, what: &str) {
        files.collect(|number| panic!("{number} is freed: {what}")).unwrap();
    }

    #[test]
    fn a_file_is_freed_when_nothing_refers_to_it() {
        let files = FreedFiles::new().unwrap();
        let first = create_memory_file("test", 4096).unwrap();
        let number = files.watch(first.as_fd()).unwrap();
        let path = format!("/proc/self/fd/{}", first.as_raw_fd());
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        let reference = rustix::fs::open(path, flags, Mode::empty()).unwrap();
        drop(first);
        assert_none(&files, "a reference");
        let file = reopen_to_read(reference.as_fd()).unwrap();
        drop(reference);
        let mapping = MappedFile::read_only_shared(file.as_fd(), 4096).unwrap();
        let (here, there) = UnixStream::pair().unwrap();
        crate::send_with_descriptors(here.as_fd(), b"f", &[file.as_fd()]).unwrap();
        drop(file);
        assert_none(&files, "a mapping and a message");
        drop(mapping);
        assert_none(&files, "a message");
        drop((here, there));
        wait_for(&files, number);
    }

    #[test]
    fn another_watch_keeps_no_file() {
        let (files, others) = (FreedFiles::new().unwrap(), FreedFiles::new().unwrap());
        let first = create_memory_file("test", 4096).unwrap();
        let number = files.watch(first.as_fd()).unwrap();
        let other = others.watch(first.as_fd()).unwrap();
        drop(first);
        wait_for(&files, number);
        wait_for(&others, other);
        let second = create_memory_file("test", 4096).unwrap();
        assert_ne!(files.watch(second.as_fd()).unwrap(), number);
        assert!(watched_files_max() > 0);
    }
}
