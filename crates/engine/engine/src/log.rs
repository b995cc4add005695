//! The access log. A thread of its own writes the records of all workers.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;

use crate::limits::{
    LOG_BATCH, LOG_CLOSE_POLL_INTERVAL, LOG_CLOSE_WAIT, LOG_PENDING_MAX, LOG_WAIT,
};

/// A file to which whole records are appended. Clones share the file and its writer thread.
///
/// Records are collected in memory until there are 64 KB of them, but for at most one second. At
/// most 1 MB of records waits for the disk. Further records are dropped and counted, since a worker
/// never waits for a disk.
#[derive(Clone, Debug)]
pub struct LogSink(Arc<LogShared>);

/// An open file for a [`LogSink`].
#[derive(Debug)]
pub struct LogFile {
    path: PathBuf,
    file: File,
}

impl LogFile {
    /// Opens `path` for appending, and creates it if it is missing. `-` is standard output.
    ///
    /// # Errors
    /// Those of open(2); ENXIO for a pipe without a reader.
    pub fn open(path: &Path) -> io::Result<Self> {
        Ok(Self { path: path.to_owned(), file: open(path)? })
    }
}

#[derive(Debug)]
struct LogShared {
    state: Mutex<LogState>,
    /// Notified when the writer has to check the state.
    changed: Condvar,
    writer: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Debug, Default)]
struct LogState {
    /// The path of the file; `None` if there is no file and records are discarded.
    path: Option<PathBuf>,
    /// `pending.len() <= LOG_PENDING_MAX`.
    pending: Vec<u8>,
    /// The time at which the first pending record was added.
    pending_since: Option<Instant>,
    dropped_records: u64,
    /// The file that the writer uses from its next batch on.
    next_file: Option<File>,
    closing: bool,
}

impl LogSink {
    /// Opens a file like [`LogFile::open`], and starts the writer.
    ///
    /// # Errors
    /// Those of open(2), and of starting a thread.
    pub fn open(path: &Path) -> io::Result<Self> {
        let sink = Self::without_file();
        sink.set_file(Some(LogFile::open(path)?))?;
        Ok(sink)
    }

    /// Creates a sink without a file. Records are discarded until a [file is set](Self::set_file).
    pub fn without_file() -> Self {
        let (state, writer) = (Mutex::default(), Mutex::new(None));
        Self(Arc::new(LogShared { state, changed: Condvar::new(), writer }))
    }

    /// Replaces the file, or removes it. Pending records may go to either file. The first file
    /// starts the writer.
    ///
    /// # Errors
    /// Those of starting a thread; the sink is unchanged then.
    pub fn set_file(&self, next: Option<LogFile>) -> io::Result<()> {
        let mut writer = lock(&self.0.writer);
        let Some(LogFile { path, file }) = next else {
            lock(&self.0.state).path = None;
            return Ok(());
        };
        if writer.is_some() {
            let mut state = lock(&self.0.state);
            (state.path, state.next_file) = (Some(path), Some(file));
            self.0.changed.notify_one();
            return Ok(());
        }
        let shared = self.0.clone();
        let builder = std::thread::Builder::new().name("access-log".to_owned());
        *writer = Some(builder.spawn(move || shared.write(file))?);
        lock(&self.0.state).path = Some(path);
        Ok(())
    }

    /// Appends whole records, each ended by a line feed. Blocks only while another worker appends,
    /// or while the writer takes the pending records; never for the disk.
    pub fn append(&self, records: &[u8]) {
        let mut state = lock(&self.0.state);
        if state.path.is_none() {
            return;
        }
        if state.closing || state.pending.len() + records.len() > LOG_PENDING_MAX {
            state.dropped_records += records.iter().filter(|&&byte| byte == b'\n').count() as u64;
            return;
        }
        let before = state.pending.len();
        state.pending.extend_from_slice(records);
        state.pending_since.get_or_insert_with(Instant::now);
        // The writer is woken at most twice for a batch: when its first record arrives, and when it
        // is full.
        if before == 0 || (before < LOG_BATCH && state.pending.len() >= LOG_BATCH) {
            self.0.changed.notify_one();
        }
    }

    /// Returns the number of records that were dropped, because too many were pending or the file
    /// could not be written.
    pub fn dropped_records(&self) -> u64 {
        lock(&self.0.state).dropped_records
    }

    /// Opens the path again, if there is one, after the file was moved away (SIGUSR1). Pending
    /// records may go to either file.
    ///
    /// # Errors
    /// Those of open(2); the old file then stays in use.
    pub fn reopen(&self) -> io::Result<()> {
        let path = lock(&self.0.state).path.clone();
        match path {
            Some(path) => self.set_file(Some(LogFile::open(&path)?)),
            None => Ok(()),
        }
    }

    /// Writes all pending records and ends the writer. If the writer does not finish within 5 s,
    /// for example because the reader of a pipe is stalled, it is abandoned with its records. Later
    /// records are dropped.
    pub fn close(&self) {
        lock(&self.0.state).closing = true;
        self.0.changed.notify_one();
        let Some(writer) = lock(&self.0.writer).take() else { return };
        let begun = Instant::now();
        while !writer.is_finished() {
            if begun.elapsed() >= LOG_CLOSE_WAIT {
                return;
            }
            std::thread::sleep(LOG_CLOSE_POLL_INTERVAL);
        }
        writer.join().expect("the log's writer does not panic");
    }
}

impl LogShared {
    /// The writer's loop. It exchanges the pending records for an empty vector, and writes them
    /// without holding the lock.
    fn write(&self, mut file: File) {
        let mut batch = Vec::with_capacity(LOG_BATCH);
        loop {
            let mut state = self.wait_for_batch();
            std::mem::swap(&mut batch, &mut state.pending);
            state.pending_since = None;
            let closing = state.closing;
            let reopened = state.next_file.take();
            drop(state);
            if file.write_all(&batch).is_err() {
                let records = batch.iter().filter(|&&byte| byte == b'\n').count();
                lock(&self.state).dropped_records += records as u64;
            }
            batch.clear();
            file = reopened.unwrap_or(file);
            if closing {
                return;
            }
        }
    }

    fn wait_for_batch(&self) -> MutexGuard<'_, LogState> {
        let mut state = lock(&self.state);
        while !(state.closing || state.next_file.is_some() || state.pending.len() >= LOG_BATCH) {
            let Some(since) = state.pending_since else {
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            let waited = since.elapsed();
            if waited >= LOG_WAIT {
                break;
            }
            let wait = self.changed.wait_timeout(state, LOG_WAIT - waited);
            state = wait.unwrap_or_else(PoisonError::into_inner).0;
        }
        state
    }
}

/// Opens a log file. Standard output is duplicated, not opened by its name in /proc: it may be a
/// socket, which cannot be opened by name (open(2), ENXIO).
fn open(path: &Path) -> io::Result<File> {
    if path == Path::new("-") {
        return Ok(File::from(io::stdout().as_fd().try_clone_to_owned()?));
    }
    Ok(millrace_sys::open_to_append(path)?.into())
}

/// Locks a mutex. No thread leaves the state half changed, so a poisoned lock is usable.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_of_all_threads_are_in_the_file_after_closing() {
        let path = std::env::temp_dir().join(format!("millrace-log-{}", std::process::id()));
        let moved = path.with_extension("1");
        let log = LogSink::open(&path).unwrap();
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let log = log.clone();
                scope.spawn(move || {
                    for record in 0..1000 {
                        log.append(format!("{thread} {record}\n").as_bytes());
                    }
                });
            }
        });
        std::fs::rename(&path, &moved).unwrap();
        log.reopen().unwrap();
        log.append(b"last\n");
        log.close();
        log.append(b"too late\n");
        let mut written = std::fs::read_to_string(&moved).unwrap();
        written.push_str(&std::fs::read_to_string(&path).unwrap());
        assert_eq!((written.lines().count(), log.dropped_records()), (4001, 1));
        for thread in ["0 ", "1 ", "2 ", "3 "] {
            let records: Vec<_> =
                written.lines().filter_map(|line| line.strip_prefix(thread)).collect();
            assert!(records.iter().enumerate().all(|(index, record)| *record == index.to_string()));
        }
        std::fs::remove_file(&path).unwrap();
        std::fs::remove_file(&moved).unwrap();
    }

    #[test]
    fn a_sink_switches_to_another_file_and_to_none() {
        let path = std::env::temp_dir().join(format!("millrace-turned-{}", std::process::id()));
        let other = path.with_extension("other");
        let log = LogSink::without_file();
        log.append(b"nowhere\n");
        for (file, record) in [(&path, "first\n"), (&other, "second\n")] {
            log.set_file(Some(LogFile::open(file).unwrap())).unwrap();
            log.append(record.as_bytes());
        }
        log.set_file(None).unwrap();
        log.append(b"nowhere\n");
        log.close();
        let mut written = std::fs::read_to_string(&path).unwrap();
        written.push_str(&std::fs::read_to_string(&other).unwrap());
        assert_eq!((&written[..], log.dropped_records()), ("first\nsecond\n", 0));
        std::fs::remove_file(&path).unwrap();
        std::fs::remove_file(&other).unwrap();
    }

    #[test]
    fn dropped_records_are_counted() {
        let log = LogSink::open(Path::new("/dev/full")).unwrap();
        log.append(b"one\ntwo\n");
        log.append(&vec![b'\n'; LOG_PENDING_MAX]);
        log.close();
        assert_eq!(log.dropped_records(), 2 + LOG_PENDING_MAX as u64);
    }
}
