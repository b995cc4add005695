//! `Departed`: memory of processes that are registered no more, while somebody has it.
//!
//! A descriptor of it or a mapping may outlive its process, in a child or in a socket's queue. So
//! what still lives is looked for among the maps of the machine.

use crate::error::Error;
use crate::programs::Programs;

/// Bounded by its user: what is in it counts as the registrations do.
#[derive(Default)]
pub(crate) struct Departed(Vec<Memory>);

/// What a process has left behind.
struct Memory {
    user: u32,
    /// The numbers of its maps.
    maps: Vec<u32>,
}

impl Departed {
    pub(crate) fn add(&mut self, user: u32, maps: Vec<u32>) {
        self.0.push(Memory { user, maps });
    }

    /// Drops what nobody has any more.
    ///
    /// # Errors
    /// Those of [`Programs::maps`].
    pub(crate) fn drop_dead(&mut self, programs: &Programs) -> Result<(), Error> {
        if self.0.is_empty() {
            return Ok(());
        }
        let living = programs.maps()?;
        self.0.retain(|memory| memory.maps.iter().any(|map| living.contains(map)));
        Ok(())
    }

    pub(crate) fn count(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn count_of(&self, user: u32) -> usize {
        self.0.iter().filter(|memory| memory.user == user).count()
    }
}
