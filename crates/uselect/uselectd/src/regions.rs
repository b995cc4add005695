//! `Regions`: the memory of registered processes, and where the programs find it.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use rustix::io::Errno;
use uselect::TrackingMode;
use uselect::layout::{REGIONS, ReadOnlyPages, SLEEPERS, WritablePages};

use crate::bpf::{self, U32Map};
use crate::error::Error;
use crate::limits::RING_BYTES;
use crate::peer::PeerProcess;
use crate::programs::Programs;

/// Which places are taken. A place is an index of the maps of maps.
pub(crate) struct RegionTable {
    is_used: Vec<bool>,
    /// Of the last registration. Never used twice, so that a socket which outlives its process is
    /// not mistaken for one of the next process at its place.
    identity: u64,
}

/// Where a process's memory is. It lives while a program can find it, or the process has it.
pub(crate) struct ClientRegion {
    place: u32,
    process: u32,
    /// So many sleepers have one; 0 <= rings <= SLEEPERS.
    rings: u32,
    /// The numbers of all maps that the process gets ([`kernel::id`]).
    pub(crate) maps: Vec<u32>,
}

/// What the process gets, once, in the order of [`uselect::REPLY_DESCRIPTORS`]: what programs show it, its
/// own memory, and the ring of its first sleeper.
pub(crate) type RegionFds = [OwnedFd; uselect::REPLY_DESCRIPTORS];

impl RegionTable {
    pub(crate) fn new() -> Self {
        Self { is_used: vec![false; REGIONS as usize], identity: 0 }
    }

    /// Makes memory for a process and has the programs find it, with the ring of its first sleeper.
    ///
    /// # Errors
    /// ESRCH when the process has executed another program; ENOMEM and the like. Nothing is left of
    /// it then.
    ///
    /// # Panics
    /// When all places are taken.
    pub(crate) fn add(
        &mut self,
        programs: &Programs,
        peer: &PeerProcess,
        mode: TrackingMode,
    ) -> Result<(ClientRegion, RegionFds), Error> {
        let place = self.is_used.iter().position(|is_taken| !is_taken).expect("there is a place");
        self.is_used[place] = true;
        self.identity += 1;
        let mut region =
            ClientRegion { place: place as u32, process: peer.number, rings: 0, maps: Vec::new() };
        let made = self.create_maps(programs, &mut region, peer, mode);
        if made.is_err() {
            self.remove(programs, &region)?;
        }
        Ok((region, made?))
    }

    /// The programs must not look for the process before all of it is there, so that is told last.
    /// `ReadOnlyPages` last of the maps and first to go: a program that finds that of one process may find
    /// the rest of the next, and then wakes that one once too often, which it can stand.
    fn create_maps(
        &self,
        programs: &Programs,
        region: &mut ClientRegion,
        peer: &PeerProcess,
        mode: TrackingMode,
    ) -> Result<RegionFds, Error> {
        let ring = self.add_ring(programs, region)?.expect("a region without rings has room");
        let own = bpf::create_mmapable_array(size_of::<WritablePages>())?;
        fd_map(programs, "own_maps").set(region.place, &own.as_raw_fd().to_ne_bytes())?;
        let shown = shown(self.identity)?;
        region.maps.extend([bpf::map_id(&own)?, bpf::map_id(&shown)?]);
        fd_map(programs, "shown_maps").set(region.place, &shown.as_raw_fd().to_ne_bytes())?;
        let value = encode_process(self.identity, region.place, mode, peer);
        // The placeholder is gone if the process has executed another program meanwhile.
        match process_map(programs).replace(region.process, &value)? {
            true => Ok([shown, own, ring]),
            false => Err(Errno::SRCH.into()),
        }
    }

    /// The ring of a region's next sleeper; `None` if it has as many as it may.
    ///
    /// # Errors
    /// ENOMEM and the like; nothing is left of it then.
    pub(crate) fn add_ring(
        &self,
        programs: &Programs,
        region: &mut ClientRegion,
    ) -> Result<Option<OwnedFd>, Error> {
        if region.rings == SLEEPERS as u32 {
            return Ok(None);
        }
        let ring = bpf::create_ringbuf(RING_BYTES)?;
        let (at, id) = (region.ring_index(region.rings), bpf::map_id(&ring)?);
        fd_map(programs, "rings").set(at, &ring.as_raw_fd().to_ne_bytes())?;
        region.rings += 1;
        region.maps.push(id);
        Ok(Some(ring))
    }

    /// Has the programs forget a process. Its memory is gone with the last who has it.
    ///
    /// # Errors
    /// None is known.
    pub(crate) fn remove(
        &mut self,
        programs: &Programs,
        region: &ClientRegion,
    ) -> Result<(), Error> {
        process_map(programs).remove(region.process)?;
        fd_map(programs, "shown_maps").remove(region.place)?;
        fd_map(programs, "own_maps").remove(region.place)?;
        for sleeper in 0..region.rings {
            fd_map(programs, "rings").remove(region.ring_index(sleeper))?;
        }
        self.is_used[region.place as usize] = false;
        Ok(())
    }
}

impl ClientRegion {
    fn ring_index(&self, sleeper: u32) -> u32 {
        self.place * SLEEPERS as u32 + sleeper
    }
}

/// `struct process` of `regions.h`.
pub(crate) const PROCESS_SIZE: usize = 24;

/// A `struct process`.
pub(crate) fn encode_process(
    identity: u64,
    region: u32,
    mode: TrackingMode,
    peer: &PeerProcess,
) -> [u8; PROCESS_SIZE] {
    let mut value = [0; PROCESS_SIZE];
    value[..8].copy_from_slice(&identity.to_ne_bytes());
    value[8..12].copy_from_slice(&region.to_ne_bytes());
    value[12..16].copy_from_slice(&u32::from(mode == TrackingMode::Lean).to_ne_bytes());
    value[16..20].copy_from_slice(&peer.user.to_ne_bytes());
    value[20..].copy_from_slice(&peer.group.to_ne_bytes());
    value
}

/// The map of processes by their numbers.
pub(crate) fn process_map(programs: &Programs) -> U32Map<'_> {
    U32Map::new(programs.map_fd("processes"), PROCESS_SIZE)
}

fn fd_map<'a>(programs: &'a Programs, name: &str) -> U32Map<'a> {
    U32Map::new(programs.map_fd(name), size_of::<i32>())
}

/// A `ReadOnlyPages` with nothing in it but whose it is, which only programs change from now on.
fn shown(identity: u64) -> Result<OwnedFd, Error> {
    let map = bpf::create_mmapable_array(size_of::<ReadOnlyPages>())?;
    let mut value = vec![0; size_of::<ReadOnlyPages>()];
    value[..8].copy_from_slice(&identity.to_ne_bytes());
    U32Map::new(map.as_fd(), value.len()).set(0, &value)?;
    bpf::freeze_map(&map)?;
    Ok(map)
}
