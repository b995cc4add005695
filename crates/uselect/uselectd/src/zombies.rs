//! `Departed`: memory of processes that are registered no more, while somebody has it.
//!
//! A descriptor of it or a mapping may outlive its process, in a child or in a socket's queue. So
//! what still lives is looked for among the maps of the machine.

use crate::error::Error;
use crate::programs::Programs;

/// Bounded by its user: what is in it counts as the registrations do.
#[derive(Default)]
pub(crate) struct ZombieRegions(Vec<ZombieRegion>);

/// What a process has left behind.
struct ZombieRegion {
    user: u32,
    /// The numbers of its maps.
    maps: Vec<u32>,
}

impl ZombieRegions {
    pub(crate) fn add(&mut self, user: u32, maps: Vec<u32>) {
        self.0.push(ZombieRegion { user, maps });
    }

    /// Drops what nobody has any more.
    ///
    /// # Errors
    /// Those of [`Programs::maps`].
    pub(crate) fn reap(&mut self, programs: &Programs) -> Result<(), Error> {
        if self.0.is_empty() {
            return Ok(());
        }
        let living = programs.list_map_ids()?;
        self.0.retain(|memory| memory.maps.iter().any(|map| living.contains(map)));
        Ok(())
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn len_of_user(&self, user: u32) -> usize {
        self.0.iter().filter(|memory| memory.user == user).count()
    }
}
