//! `ZombieRegions`: regions of former clients whose memory is still referenced.
//!
//! A descriptor or a mapping may outlive the registration, in a child process or in the queue of a
//! Unix socket. The daemon therefore looks for their maps among all BPF maps of the machine.

use crate::error::Error;
use crate::programs::Programs;

/// The zombie regions. They count towards the limits of registrations, which bounds their number.
#[derive(Default)]
pub(crate) struct ZombieRegions(Vec<ZombieRegion>);

struct ZombieRegion {
    uid: u32,
    /// Ids of all maps that the process received.
    map_ids: Vec<u32>,
}

impl ZombieRegions {
    pub(crate) fn add(&mut self, uid: u32, map_ids: Vec<u32>) {
        self.0.push(ZombieRegion { uid, map_ids });
    }

    /// Removes the regions none of whose maps exists any more.
    ///
    /// # Errors
    /// The errors of [`Programs::list_map_ids`].
    pub(crate) fn reap(&mut self, programs: &Programs) -> Result<(), Error> {
        if self.0.is_empty() {
            return Ok(());
        }
        let existing = programs.list_map_ids()?;
        self.0.retain(|region| region.map_ids.iter().any(|id| existing.contains(id)));
        Ok(())
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn len_of_user(&self, uid: u32) -> usize {
        self.0.iter().filter(|region| region.uid == uid).count()
    }
}
