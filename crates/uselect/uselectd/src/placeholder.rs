//! Placeholders: entries in the map of processes for those that have connected and are not
//! registered.
//!
//! A process may execute another program after it has connected, one with privileges too. A program
//! at `sched_process_exec` deletes the entry of each process that calls execve(2). So a process gets
//! an entry when its connection is accepted, and is registered only in place of that very entry.

use rustix::io::Errno;
use uselect::TrackingMode;

use crate::peer::PeerProcess;
use crate::programs::Programs;
use crate::regions::{PROCESS_SIZE, encode_process, process_map};

/// No region has this number, so programs find no memory by a placeholder.
const NO_REGION: u32 = u32::MAX;

/// Enters the placeholder of a connection, in place of that of an earlier one of the same process.
///
/// # Errors
/// Those of bpf(2).
pub(crate) fn insert(programs: &Programs, peer: &PeerProcess) -> Result<(), Errno> {
    process_map(programs).set(peer.number, &value(peer))
}

/// Whether the placeholder is there: since it was entered, the process has not executed another
/// program, and none of its later connections was accepted.
///
/// # Errors
/// Those of bpf(2).
pub(crate) fn exists(programs: &Programs, peer: &PeerProcess) -> Result<bool, Errno> {
    let mut found = [0; PROCESS_SIZE];
    Ok(process_map(programs).get(peer.number, &mut found)? && found == value(peer))
}

/// Removes the placeholder, if it is there.
///
/// # Errors
/// Those of bpf(2).
pub(crate) fn remove(programs: &Programs, peer: &PeerProcess) -> Result<(), Errno> {
    match exists(programs, peer)? {
        true => process_map(programs).remove(peer.number),
        false => Ok(()),
    }
}

/// Connections have different numbers, so each has a placeholder of its own.
fn value(peer: &PeerProcess) -> [u8; PROCESS_SIZE] {
    encode_process(peer.connection_id, NO_REGION, TrackingMode::Exact, peer)
}
