//! The ends of pipes that this process uses, by their descriptors.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use crate::service::pipe_reader::PipeReader;
use crate::service::pipe_writer::PipeWriter;
use crate::service::version::FileKey;

/// The ends of pipes of this process.
#[derive(Debug)]
pub(super) struct Pipes {
    /// The process that they belong to.
    process: u32,
    ends: HashMap<i32, Arc<Mutex<PipeEnd>>>,
}

/// An end of a pipe.
#[derive(Debug)]
pub(super) struct PipeEnd {
    key: FileKey,
    /// The bytes that were read or written.
    moved: u64,
    is_tried: bool,
    pub(super) reader: PipeReader,
    pub(super) writer: PipeWriter,
}

/// Pairing costs more than copying fewer bytes.
const MOVED_BYTES_MIN: u64 = 32 * 1024;

impl Pipes {
    pub(super) fn new() -> Self {
        Self { process: std::process::id(), ends: HashMap::new() }
    }

    /// Returns the end that a descriptor refers to. A program may have closed another one that had
    /// the same number.
    pub(super) fn end(&mut self, descriptor: i32, key: FileKey) -> Arc<Mutex<PipeEnd>> {
        if self.process != std::process::id() {
            // Channels are not shared with the parent.
            std::mem::forget(std::mem::replace(self, Self::new()));
        }
        let new = || PipeEnd {
            key,
            moved: 0,
            is_tried: false,
            reader: PipeReader::default(),
            writer: PipeWriter::default(),
        };
        let end = self.ends.entry(descriptor).or_insert_with(|| Arc::new(Mutex::new(new())));
        // An end that a thread uses now is the same one.
        if end.try_lock().is_ok_and(|end| end.key != key) {
            *end = Arc::new(Mutex::new(new()));
        }
        end.clone()
    }
}

impl PipeEnd {
    /// Counts moved bytes.
    pub(super) fn count(&mut self, bytes: u64) {
        self.moved += bytes;
    }

    /// Returns once whether it is time to pair the end, if `more` bytes are about to be moved.
    pub(super) fn begin_pairing(&mut self, more: u64) -> bool {
        let is_time = !self.is_tried && self.moved + more >= MOVED_BYTES_MIN;
        self.is_tried |= is_time;
        is_time
    }
}
