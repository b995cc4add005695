//! The requests that one turn collects, for an engine that moves bytes by requests to the kernel.
//!
//! Receives that may find something, and sends of few bytes, wait here until the end of the turn.
//! They are submitted together, and they have all completed before anything else happens. So no
//! descriptor is closed and no number reused while the kernel works on them. If a descriptor is
//! closed before they are submitted, its receive is dropped, and its bytes are sent before the
//! close.

use std::collections::VecDeque;

use millrace_sys as sys;

use crate::limits::BATCH_MAX;
use crate::{Buffer, Key};

/// Requests to submit, and completed receives.
#[derive(Debug, Default)]
pub(super) struct Batch {
    /// Descriptors that may be ready and have a receive outstanding.
    pub(super) receives: Vec<Key>,
    /// Copies of the bytes to send.
    pub(super) sends: Vec<(Key, Vec<u8>)>,
    /// Completed receives and their results, returned to the worker one at a time.
    pub(super) received: VecDeque<(Key, Buffer, sys::Result<usize>)>,
    /// Memory of completed sends for later use; at most [`BATCH_MAX`] entries.
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

    /// Returns whether the turn has to end before more requests are collected.
    pub(super) fn is_full(&self) -> bool {
        self.receives.len() >= BATCH_MAX || self.sends.len() >= BATCH_MAX
    }
}
