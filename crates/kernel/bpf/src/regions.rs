//! `Regions`: the memory of registered processes, and where the programs find it.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use uselect::layout::{Own, REGIONS, Shown};

use crate::error::Error;
use crate::kernel::{self, Numbered};
use crate::limits::RING_BYTES;
use crate::programs::Programs;

/// Which places are taken. A place is an index of the maps of maps.
pub(crate) struct Regions {
    is_taken: Vec<bool>,
    /// Of the last registration. Never used twice, so that a socket which outlives its process is
    /// not mistaken for one of the next process at its place.
    identity: u64,
}

/// A process's memory, in its place.
pub(crate) struct Region {
    place: u32,
    process: u32,
    shown: OwnedFd,
    own: OwnedFd,
    ring: OwnedFd,
}

impl Region {
    /// What the process gets, in the order of [`uselect::DESCRIPTORS`].
    pub(crate) fn descriptors(&self) -> [BorrowedFd<'_>; uselect::DESCRIPTORS] {
        [self.shown.as_fd(), self.own.as_fd(), self.ring.as_fd()]
    }
}

impl Regions {
    pub(crate) fn new() -> Self {
        Self { is_taken: vec![false; REGIONS as usize], identity: 0 }
    }

    pub(crate) fn is_full(&self) -> bool {
        self.is_taken.iter().all(|is_taken| *is_taken)
    }

    /// Makes memory for a process and has the programs find it. They must not look for the process
    /// before all of it is there, so that is told last.
    ///
    /// # Errors
    /// ENOMEM and the like; nothing is left of it then.
    ///
    /// # Panics
    /// When all places are taken.
    pub(crate) fn add(&mut self, programs: &Programs, process: u32) -> Result<Region, Error> {
        let place = self.is_taken.iter().position(|is_taken| !is_taken).expect("there is a place");
        let place = place as u32;
        self.identity += 1;
        let region = Region {
            place,
            process,
            shown: shown(self.identity)?,
            own: kernel::create_shared(size_of::<Own>())?,
            ring: kernel::create_ring(RING_BYTES)?,
        };
        self.is_taken[place as usize] = true;
        let told = self.tell(programs, &region);
        if let Err(error) = told {
            self.remove(programs, &region)?;
            return Err(error);
        }
        Ok(region)
    }

    /// `Shown` last of the maps and first to go: a program that finds that of one process may find
    /// the rest of the next, and then wakes that one once too often, which it can stand.
    fn tell(&self, programs: &Programs, region: &Region) -> Result<(), Error> {
        for (name, fd) in [("rings", &region.ring), ("own_maps", &region.own)] {
            place(programs, name).set(region.place, &fd.as_raw_fd().to_ne_bytes())?;
        }
        place(programs, "shown_maps").set(region.place, &region.shown.as_raw_fd().to_ne_bytes())?;
        let mut value = [0; PROCESS_BYTES];
        value[..8].copy_from_slice(&self.identity.to_ne_bytes());
        value[8..12].copy_from_slice(&region.place.to_ne_bytes());
        Ok(Numbered::new(programs.map("processes"), PROCESS_BYTES).set(region.process, &value)?)
    }

    /// Has the programs forget a process. Its memory is gone with the last who maps it.
    ///
    /// # Errors
    /// None is known.
    pub(crate) fn remove(&mut self, programs: &Programs, region: &Region) -> Result<(), Error> {
        Numbered::new(programs.map("processes"), PROCESS_BYTES).remove(region.process)?;
        for name in ["shown_maps", "own_maps", "rings"] {
            place(programs, name).remove(region.place)?;
        }
        self.is_taken[region.place as usize] = false;
        Ok(())
    }
}

/// `struct process` of `uselect.bpf.c`.
const PROCESS_BYTES: usize = 16;

fn place<'a>(programs: &'a Programs, name: &str) -> Numbered<'a> {
    Numbered::new(programs.map(name), size_of::<i32>())
}

/// A `Shown` with nothing in it but whose it is, which only programs change from now on.
fn shown(identity: u64) -> Result<OwnedFd, Error> {
    let map = kernel::create_shared(size_of::<Shown>())?;
    let mut value = vec![0; size_of::<Shown>()];
    value[..8].copy_from_slice(&identity.to_ne_bytes());
    Numbered::new(map.as_fd(), value.len()).set(0, &value)?;
    kernel::freeze(&map)?;
    Ok(map)
}
