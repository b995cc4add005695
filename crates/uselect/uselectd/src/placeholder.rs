//! Placeholders: entries in the map of processes for those that have connected and are not
//! registered.
//!
//! A process may execute another program after it has connected, possibly one with more privileges.
//! The program at `sched_process_exec` deletes the entry of every process that calls execve(2). The
//! daemon therefore inserts a placeholder when it accepts a connection, and registers the process
//! only by replacing that very placeholder.

use rustix::io::Errno;
use uselect::TrackingMode;

use crate::peer::PeerProcess;
use crate::programs::Programs;
use crate::regions::{PROCESS_SIZE, encode_process, process_map};

/// No region has this index, so programs find no memory by a placeholder.
const NO_REGION: u32 = u32::MAX;

/// Inserts the placeholder of a connection. It replaces that of an earlier connection of the same
/// process.
///
/// # Errors
/// Errors of bpf(2).
pub(crate) fn insert(programs: &Programs, process: &PeerProcess) -> Result<(), Errno> {
    process_map(programs).set(process.pid, &value(process))
}

/// Returns whether the placeholder of a connection still exists: since it was inserted, the process
/// has not executed another program, and the daemon has accepted no later connection of it.
///
/// # Errors
/// Errors of bpf(2).
pub(crate) fn exists(programs: &Programs, process: &PeerProcess) -> Result<bool, Errno> {
    let mut found = [0; PROCESS_SIZE];
    Ok(process_map(programs).get(process.pid, &mut found)? && found == value(process))
}

/// Removes the placeholder of a connection, if it exists.
///
/// # Errors
/// Errors of bpf(2).
pub(crate) fn remove(programs: &Programs, process: &PeerProcess) -> Result<(), Errno> {
    match exists(programs, process)? {
        true => process_map(programs).remove(process.pid),
        false => Ok(()),
    }
}

/// Returns the placeholder, which differs for each connection by its id.
fn value(process: &PeerProcess) -> [u8; PROCESS_SIZE] {
    encode_process(process.connection_id, NO_REGION, TrackingMode::Exact, process)
}
