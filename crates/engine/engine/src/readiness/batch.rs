//! What a turn gathers for the kernel, of an engine that moves bytes by requests.
//!
//! A receive that may find something, and a send that is short, wait here until the turn ends.
//! They are submitted together and are over together, before anything else happens: nothing is
//! closed, and no number reused, while the kernel works on them. A descriptor that is closed
//! before is found by its key, and its operation is not submitted.

use std::collections::VecDeque;

use millrace_sys as sys;

use crate::limits::BATCH_MAX;
use crate::{Buffer, Key};

/// Operations to be submitted, and receives that are over.
#[derive(Debug, Default)]
pub(super) struct Batch {
    /// Descriptors that a receive is outstanding for and may be ready.
    pub(super) receives: Vec<Key>,
    /// Copies of what is to be sent.
    pub(super) sends: Vec<(Key, Vec<u8>)>,
    /// Receives that are over, with what they brought: given one at a time.
    pub(super) received: VecDeque<(Key, Buffer, sys::Result<usize>)>,
    /// Memory of sends that are over; at most [`BATCH_MAX`].
    pub(super) spare_memory: Vec<Vec<u8>>,
}

impl Batch {
    pub(super) fn add_send(&mut self, key: Key, parts: &[&[u8]]) {
        let mut bytes = self.spare_memory.pop().unwrap_or_default();
        bytes.clear();
        parts.iter().for_each(|part| bytes.extend_from_slice(part));
        self.sends.push((key, bytes));
    }

    pub(super) fn is_empty(&self) -> bool {
        self.receives.is_empty() && self.sends.is_empty() && self.received.is_empty()
    }

    /// Whether the turn has to end before it gathers more.
    pub(super) fn is_full(&self) -> bool {
        self.receives.len() >= BATCH_MAX || self.sends.len() >= BATCH_MAX
    }
}
