//! `RegionTable`: the memory of registered processes, and the entries by which programs find it.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use rustix::io::Errno;
use uselect::TrackingMode;
use uselect::layout::{REGIONS, ReadOnlyPages, SLEEPERS, WritablePages};

use crate::bpf::{self, U32Map};
use crate::error::Error;
use crate::limits::RING_BYTES;
use crate::peer::PeerProcess;
use crate::programs::Programs;

/// Which regions are in use. A region is an index of the maps of maps.
pub(crate) struct RegionTable {
    is_used: Vec<bool>,
    /// The identity of the last registration. Identities are never reused: a socket that outlives
    /// its process must not be taken for a socket of the next process with the same region.
    last_identity: u64,
}

/// The region of a registered process. Its memory exists while a program can find it or a process
/// holds a reference.
pub(crate) struct ClientRegion {
    index: u32,
    pid: u32,
    /// Number of sleepers that have a ring; 0 <= ring_count <= SLEEPERS.
    ring_count: u32,
    /// Ids ([`bpf::map_id`]) of all maps that the process has received.
    pub(crate) map_ids: Vec<u32>,
}

/// The descriptors that a process receives with its registration, in the order of
/// [`uselect::REPLY_DESCRIPTORS`]: `ReadOnlyPages`, which only programs write, `WritablePages`,
/// which the process writes too, and the ring of the first sleeper.
pub(crate) type RegionFds = [OwnedFd; uselect::REPLY_DESCRIPTORS];

impl RegionTable {
    pub(crate) fn new() -> Self {
        Self { is_used: vec![false; REGIONS as usize], last_identity: 0 }
    }

    /// Creates the memory of a process and the ring of its first sleeper, and makes programs find
    /// them.
    ///
    /// # Errors
    /// ESRCH if the process has executed another program; ENOMEM and other errors of bpf(2).
    /// Nothing of the region is left after an error.
    ///
    /// # Panics
    /// If all regions are in use.
    pub(crate) fn add(
        &mut self,
        programs: &Programs,
        process: &PeerProcess,
        mode: TrackingMode,
    ) -> Result<(ClientRegion, RegionFds), Error> {
        let index = self.is_used.iter().position(|is_used| !is_used);
        let index = index.expect("the caller has checked the limit of regions");
        self.is_used[index] = true;
        self.last_identity += 1;
        let mut region = ClientRegion {
            index: index as u32,
            pid: process.pid,
            ring_count: 0,
            map_ids: Vec::new(),
        };
        match self.create_maps(programs, &mut region, process, mode) {
            Ok(fds) => Ok((region, fds)),
            Err(error) => {
                self.remove(programs, &region)?;
                Err(error)
            }
        }
    }

    /// Creates the maps of a region. The entry of the process comes last, because programs must not
    /// look for its memory before all of it exists. Of the maps, `ReadOnlyPages` is added last and
    /// removed first, because it contains the identity by which programs recognize the memory of a
    /// process. A program that found `ReadOnlyPages` does not find the other maps of the next
    /// process with the same region: bpf(2) returns from a change of a map of maps only after the
    /// programs that ran at that time have ended (`maybe_wait_bpf_programs`, Linux 6.12).
    fn create_maps(
        &self,
        programs: &Programs,
        region: &mut ClientRegion,
        process: &PeerProcess,
        mode: TrackingMode,
    ) -> Result<RegionFds, Error> {
        let ring = self.add_ring(programs, region)?.expect("a new region has no rings");
        let writable = bpf::create_mmapable_array(size_of::<WritablePages>())?;
        fd_map(programs, "writable_maps").set(region.index, &writable.as_raw_fd().to_ne_bytes())?;
        let read_only = create_read_only_map(self.last_identity)?;
        region.map_ids.extend([bpf::map_id(&writable)?, bpf::map_id(&read_only)?]);
        fd_map(programs, "read_only_maps")
            .set(region.index, &read_only.as_raw_fd().to_ne_bytes())?;
        let value = encode_process(self.last_identity, region.index, mode, process);
        // If the process has executed another program meanwhile, its placeholder is gone.
        match process_map(programs).replace(region.pid, &value)? {
            true => Ok([read_only, writable, ring]),
            false => Err(Errno::SRCH.into()),
        }
    }

    /// Creates the ring of a region's next sleeper. Returns `None` if all sleepers have one.
    ///
    /// # Errors
    /// ENOMEM and other errors of bpf(2). The region is unchanged after an error.
    pub(crate) fn add_ring(
        &self,
        programs: &Programs,
        region: &mut ClientRegion,
    ) -> Result<Option<OwnedFd>, Error> {
        if region.ring_count == SLEEPERS as u32 {
            return Ok(None);
        }
        let ring = bpf::create_ringbuf(RING_BYTES)?;
        let (index, id) = (region.ring_index(region.ring_count), bpf::map_id(&ring)?);
        fd_map(programs, "rings").set(index, &ring.as_raw_fd().to_ne_bytes())?;
        region.ring_count += 1;
        region.map_ids.push(id);
        Ok(Some(ring))
    }

    /// Removes the entries by which programs find a process and its memory. The kernel frees the
    /// memory when the last reference is gone.
    ///
    /// # Errors
    /// Errors of bpf(2); none is known to occur.
    pub(crate) fn remove(
        &mut self,
        programs: &Programs,
        region: &ClientRegion,
    ) -> Result<(), Error> {
        process_map(programs).remove(region.pid)?;
        fd_map(programs, "read_only_maps").remove(region.index)?;
        fd_map(programs, "writable_maps").remove(region.index)?;
        for sleeper in 0..region.ring_count {
            fd_map(programs, "rings").remove(region.ring_index(sleeper))?;
        }
        self.is_used[region.index as usize] = false;
        Ok(())
    }
}

impl ClientRegion {
    fn ring_index(&self, sleeper: u32) -> u32 {
        self.index * SLEEPERS as u32 + sleeper
    }
}

/// The size of `struct process` of `regions.h` in bytes.
pub(crate) const PROCESS_SIZE: usize = 24;

/// Encodes a `struct process` of `regions.h`.
pub(crate) fn encode_process(
    identity: u64,
    region: u32,
    mode: TrackingMode,
    process: &PeerProcess,
) -> [u8; PROCESS_SIZE] {
    let mut value = [0; PROCESS_SIZE];
    value[..8].copy_from_slice(&identity.to_ne_bytes());
    value[8..12].copy_from_slice(&region.to_ne_bytes());
    value[12..16].copy_from_slice(&u32::from(mode == TrackingMode::Lean).to_ne_bytes());
    value[16..20].copy_from_slice(&process.uid.to_ne_bytes());
    value[20..].copy_from_slice(&process.gid.to_ne_bytes());
    value
}

/// The map from process ids to `struct process`.
pub(crate) fn process_map(programs: &Programs) -> U32Map<'_> {
    U32Map::new(programs.map_fd("processes"), PROCESS_SIZE)
}

/// A map of maps, whose values are descriptors for bpf(2).
fn fd_map<'a>(programs: &'a Programs, name: &str) -> U32Map<'a> {
    U32Map::new(programs.map_fd(name), size_of::<i32>())
}

/// Creates a `ReadOnlyPages` that has only its identity, and that only programs can change from
/// then on.
fn create_read_only_map(identity: u64) -> Result<OwnedFd, Error> {
    let map = bpf::create_mmapable_array(size_of::<ReadOnlyPages>())?;
    let mut value = vec![0; size_of::<ReadOnlyPages>()];
    value[..8].copy_from_slice(&identity.to_ne_bytes());
    U32Map::new(map.as_fd(), value.len()).set(0, &value)?;
    bpf::freeze_map(&map)?;
    Ok(map)
}
