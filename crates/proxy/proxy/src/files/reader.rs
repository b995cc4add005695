//! Readers of files that are too long for the cache's memory. A reader delivers to one client a
//! whole file, a range of it, or several ranges with text between them.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use millrace_engine::{FilePart, FileRead};
use millrace_files::Errno;
use millrace_http_cache::ByteRange;

use crate::cached::reader::ResponsePart;
use crate::secure::layer::STEP_BYTES_MAX;

/// A reader of a file for one client.
#[derive(Debug)]
pub(crate) struct FileReader {
    file: Arc<dyn FileRead>,
    /// The bytes of the present part that are still to be sent.
    rest: Range<u64>,
    /// The parts after the present one, in order.
    parts: VecDeque<ResponsePart>,
    /// The memory into which bytes are read; empty if they are sent from the file.
    memory: Vec<u8>,
    /// The bytes that have to be read from a disk before the next step.
    awaited: Option<Range<u64>>,
    /// The bytes that a thread reads from the disk, or has read just now. The kernel may not be
    /// able to say that they are in memory.
    fetched: Range<u64>,
    has_failed: bool,
}

/// The next step of a reader.
pub(crate) enum FileStep<'a> {
    /// These bytes of a file, from an offset on, which are in memory.
    Bytes(&'a Arc<dyn FileRead>, u64, usize),
    /// Bytes of the file in memory.
    Copied(&'a [u8]),
    Text(Vec<u8>),
    /// A disk has to be awaited: see [`FileReader::awaited_read`].
    Wait,
    /// Everything was delivered.
    End,
    /// The file ends before the last byte, or cannot be read.
    Cut,
}

impl FileReader {
    /// Creates a reader of these parts of a file. With `copies`, the bytes are read into memory,
    /// for a client whose bytes are sealed.
    pub(crate) fn new(
        file: Arc<dyn FileRead>,
        parts: VecDeque<ResponsePart>,
        copies: bool,
    ) -> Self {
        let memory = if copies { vec![0; STEP_BYTES_MAX as usize] } else { Vec::new() };
        Self { file, rest: 0..0, parts, memory, awaited: None, fetched: 0..0, has_failed: false }
    }

    /// Creates a reader of a whole file of `bytes` bytes, which are read into memory in steps of
    /// `step_bytes`.
    pub(crate) fn of_body(file: Arc<dyn FileRead>, bytes: u64, step_bytes: usize) -> Self {
        let (rest, parts, memory) = (0..bytes, VecDeque::new(), vec![0; step_bytes]);
        Self { file, rest, parts, memory, awaited: None, fetched: 0..0, has_failed: false }
    }

    /// Returns the next step. The bytes of [`FileStep::Bytes`] and [`FileStep::Copied`] count as
    /// delivered.
    pub(crate) fn next(&mut self) -> FileStep<'_> {
        if self.has_failed {
            return FileStep::Cut;
        }
        while self.rest.is_empty() {
            match self.parts.pop_front() {
                None => return FileStep::End,
                Some(ResponsePart::Text(text)) => return FileStep::Text(text),
                Some(ResponsePart::Range(ByteRange { first, last })) => self.rest = first..last + 1,
            }
        }
        let (at, left) = (self.rest.start, self.rest.end - self.rest.start);
        if self.memory.is_empty() {
            let count = left.min(SEND_BYTES_MAX);
            if let Some(bytes) = self.file.part_at(at).map(|part| part.bytes) {
                let count = count.min(bytes);
                self.rest.start += count;
                let FilePart { file, offset, .. } = self.file.part_at(at).expect("as before");
                return FileStep::Bytes(file, offset, count as usize);
            }
            return match self.probe(at..at + count) {
                Ok(()) => {
                    self.rest.start += count;
                    FileStep::Bytes(&self.file, at, count as usize)
                }
                Err(Errno::AGAIN) => self.wait(at..at + count),
                Err(_) => FileStep::Cut,
            };
        }
        let count = left.min(self.memory.len() as u64);
        let waits = self.fetched.contains(&at);
        match self.file.read_at(at, &mut self.memory[..count as usize], waits) {
            Ok(0) => FileStep::Cut,
            Ok(count) => {
                self.rest.start += count as u64;
                FileStep::Copied(&self.memory[..count])
            }
            Err(Errno::AGAIN) => self.wait(at..at + count),
            Err(_) => FileStep::Cut,
        }
    }

    /// Checks whether the first and the last of these bytes are in the page cache; the kernel reads
    /// ahead between them. Without this check, sendfile(2) would make the worker wait for a disk.
    fn probe(&self, bytes: Range<u64>) -> Result<(), Errno> {
        let is_fetched = self.fetched.start <= bytes.start && bytes.end <= self.fetched.end;
        if is_fetched {
            return Ok(());
        }
        for at in [bytes.start, bytes.end - 1] {
            if self.file.read_at(at, &mut [0], false)? == 0 {
                return Err(Errno::IO);
            }
        }
        Ok(())
    }

    fn wait(&mut self, bytes: Range<u64>) -> FileStep<'_> {
        self.awaited = Some(bytes);
        FileStep::Wait
    }

    /// Returns the read of the bytes that are awaited, if any, as work for a thread.
    pub(crate) fn awaited_read(&self) -> Option<impl FnOnce() -> Result<(), Errno> + Send + use<>> {
        let (bytes, file) = (self.awaited.clone()?, self.file.clone());
        Some(move || fetch(&*file, bytes))
    }

    /// Notes that a thread reads the awaited bytes. There is no next step until it has.
    pub(crate) fn note_fetched(&mut self) {
        self.fetched = self.awaited.take().expect("the caller has the read of awaited bytes");
    }

    /// Notes that the awaited bytes could not be read: the next step is [`FileStep::Cut`].
    pub(crate) fn fail(&mut self) {
        self.has_failed = true;
    }
}

/// Reads bytes of a file, so that the kernel has them in memory. A file that ends early is found by
/// the next step.
fn fetch(file: &dyn FileRead, bytes: Range<u64>) -> Result<(), Errno> {
    let mut memory = vec![0; (bytes.end - bytes.start).min(FETCH_BYTES) as usize];
    let mut at = bytes.start;
    while at < bytes.end {
        let wanted = (bytes.end - at).min(memory.len() as u64) as usize;
        match file.read_at(at, &mut memory[..wanted], true)? {
            0 => break,
            count => at += count as u64,
        }
    }
    Ok(())
}

/// The bytes of one read of a thread.
const FETCH_BYTES: u64 = 64 * 1024;

/// The most bytes that one step sends by reference.
const SEND_BYTES_MAX: u64 = 256 * 1024;

#[cfg(test)]
mod tests {
    use millrace_files::SimFolderFaults;

    use super::super::test_folder::TestFolder;
    use super::*;

    const LENGTH: u64 = 600_000;

    fn bytes() -> Vec<u8> {
        (0..LENGTH).map(|at| (at % 251) as u8).collect()
    }

    fn range(first: u64, last: u64) -> ResponsePart {
        ResponsePart::Range(ByteRange { first, last })
    }

    fn reader(folder: &TestFolder, parts: Vec<ResponsePart>, copies: bool) -> FileReader {
        let source = folder.serve("a").source().expect("it is open");
        FileReader::new(source.reader(), parts.into(), copies)
    }

    /// Reads everything, with the work of threads. Returns the bytes, how often a disk was awaited,
    /// and whether the body is whole.
    fn read_all(reader: &mut FileReader) -> (Vec<u8>, usize, bool) {
        let (mut read, mut waits) = (Vec::new(), 0);
        loop {
            match reader.next() {
                FileStep::Bytes(file, at, count) => {
                    assert!((1..=SEND_BYTES_MAX).contains(&(count as u64)));
                    let mut bytes = vec![0; count];
                    assert_eq!(file.read_at(at, &mut bytes, true), Ok(count));
                    read.extend(bytes);
                }
                FileStep::Copied(bytes) => read.extend_from_slice(bytes),
                FileStep::Text(text) => read.extend(text),
                FileStep::Wait => {
                    waits += 1;
                    assert_eq!(reader.awaited_read().expect("bytes are awaited")(), Ok(()));
                    reader.note_fetched();
                }
                FileStep::End => return (read, waits, true),
                FileStep::Cut => return (read, waits, false),
            }
        }
    }

    #[test]
    fn parts_are_delivered_in_order() {
        let (bytes, folder) = (bytes(), TestFolder::new(&[("a", &bytes())]));
        for copies in [false, true] {
            let whole = read_all(&mut reader(&folder, vec![range(0, LENGTH - 1)], copies));
            assert!(whole == (bytes.clone(), 0, true), "copies: {copies}");
            let text = |text: &str| ResponsePart::Text(text.into());
            let parts = vec![text("<"), range(1, 2), text("|"), range(0, 300_000), text(">")];
            let expected = [b"<", &bytes[1..3], b"|", &bytes[..300_001], b">"].concat();
            let read = read_all(&mut reader(&folder, parts, copies));
            assert!(read == (expected, 0, true), "copies: {copies}");
        }
    }

    #[test]
    fn bytes_that_are_not_in_memory_are_read_by_a_thread() {
        let (bytes, folder) = (bytes(), TestFolder::new(&[("a", &bytes())]));
        folder.folder.set_faults(SimFolderFaults { waits: 1, ..Default::default() });
        for copies in [false, true] {
            let (read, waits, is_whole) =
                read_all(&mut reader(&folder, vec![range(0, LENGTH - 1)], copies));
            let step = if copies { STEP_BYTES_MAX } else { SEND_BYTES_MAX };
            assert_eq!((waits as u64, is_whole), (LENGTH.div_ceil(step), true));
            assert!(read == bytes, "copies: {copies}");
        }
    }

    #[test]
    fn a_file_that_ends_early_or_cannot_be_read_is_cut() {
        for copies in [false, true] {
            let folder = TestFolder::new(&[("a", &bytes())]);
            let mut cut = reader(&folder, vec![range(0, LENGTH - 1)], copies);
            assert!(matches!(cut.next(), FileStep::Bytes(..) | FileStep::Copied(_)));
            assert!(folder.folder.rewrite(b"a", b"short"));
            assert!(matches!(cut.next(), FileStep::Cut), "copies: {copies}");
            let mut failed = reader(&folder, vec![range(0, 4)], copies);
            failed.fail();
            assert!(matches!(failed.next(), FileStep::Cut));
            let mut broken = reader(&folder, vec![range(0, 4)], copies);
            folder.folder.set_faults(SimFolderFaults { io_errors: 1, ..Default::default() });
            assert!(matches!(broken.next(), FileStep::Cut));
        }
    }
}
