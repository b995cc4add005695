//! `Programs`: the loaded programs and maps, and what they are attached to.

use std::collections::BTreeSet;
use std::os::fd::{AsFd, BorrowedFd};

use aya::maps::Map;
use aya::programs::cgroup_sock::CgroupSockLink;
use aya::programs::cgroup_sock_addr::CgroupSockAddrLink;
use aya::programs::tp_btf::BtfTracePointLink;
use aya::programs::{
    BtfTracePoint, CgroupAttachMode, CgroupSock, CgroupSockAddr, Iter, Program, ProgramError,
};
use aya::{Btf, Ebpf, EbpfLoader};

use crate::bpf::BpfIter;
use crate::error::Error;
use crate::limits::{PENDING_MAX, REGIONS_MAX};

static OBJECT: &[u8] = aya::include_bytes_aligned!("../objects/uselect.bpf.o");

/// Programs of `uselect.bpf.c` by name, and the tracepoint of each.
type Tracepoints = [(&'static str, &'static str)];

/// Of a process that executes another program.
pub(crate) const EXEC_TRACEPOINTS: &Tracepoints = &[("executed", "sched_process_exec")];
/// Of whatever happens to a socket but by its process.
pub(crate) const COMMON_TRACEPOINTS: &Tracepoints = &[
    ("data_ready", "sk_data_ready"),
    ("failed", "inet_sk_error_report"),
    ("changed", "inet_sock_set_state"),
];
/// Of what its process does, which only exact regions are told.
pub(crate) const EXACT_TRACEPOINTS: &Tracepoints =
    &[("taken", "tcp_rcv_space_adjust"), ("sent", "sock_send_length")];
/// Of tracked sockets, when the daemon wants that: of all, and of those that the first has doubted.
const SWEEP: &str = "swept";
const RECHECK: &str = "doubted_again";
/// Of all maps.
const LIST_MAPS: &str = "counted";
const ON_SOCK_CREATE: &str = "created";
/// Of getpeername(2) and getsockname(2), for both families.
const ADDRESS_PROGRAMS: [&str; 4] = ["accepted4", "accepted6", "looked4", "looked6"];

/// What is loaded; attached to nothing at first.
pub(crate) struct Programs {
    loaded: Ebpf,
}

/// What calls programs as long as it lives, for any socket of the machine.
pub(crate) struct TracepointLinks(#[expect(dead_code, reason = "held")] Vec<BtfTracePointLink>);

/// What calls programs as long as it lives, for sockets of a cgroup and those below it.
#[expect(dead_code, reason = "held")]
pub(crate) struct CgroupLinks {
    sock_create: CgroupSockLink,
    named: Vec<CgroupSockAddrLink>,
}

impl Programs {
    /// Loads all of them; the kernel verifies each, which takes a second or so.
    ///
    /// # Errors
    /// [`Error::Unsupported`] where the kernel does not describe its types; [`Error::Program`].
    pub(crate) fn load() -> Result<Self, Error> {
        let types = Btf::from_sys_fs().map_err(|_| Error::Unsupported {
            feature: "description of the kernel's types (CONFIG_DEBUG_INFO_BTF)",
            since: "Linux 5.4",
        })?;
        let mut ebpf = EbpfLoader::new()
            .btf(Some(&types))
            .map_max_entries("processes", (REGIONS_MAX + PENDING_MAX) as u32)
            .load(OBJECT)
            .map_err(|error| Error::Program { name: "object", why: error_chain(&error) })?;
        for &(name, tracepoint) in
            EXEC_TRACEPOINTS.iter().chain(COMMON_TRACEPOINTS).chain(EXACT_TRACEPOINTS)
        {
            let result = program_mut::<BtfTracePoint>(&mut ebpf, name).load(tracepoint, &types);
            result.map_err(program_error(name))?;
        }
        program_mut::<CgroupSock>(&mut ebpf, ON_SOCK_CREATE)
            .load()
            .map_err(program_error(ON_SOCK_CREATE))?;
        for name in ADDRESS_PROGRAMS {
            program_mut::<CgroupSockAddr>(&mut ebpf, name).load().map_err(program_error(name))?;
        }
        let of_sockets = [SWEEP, RECHECK].map(|name| (name, "bpf_sk_storage_map"));
        for (name, kind) in of_sockets.into_iter().chain([(LIST_MAPS, "bpf_map")]) {
            program_mut::<Iter>(&mut ebpf, name).load(kind, &types).map_err(program_error(name))?;
        }
        Ok(Self { loaded: ebpf })
    }

    /// Has tracepoints call their programs: [`EXECUTED`], [`COMMON`] or [`EXACT`].
    ///
    /// # Errors
    /// [`Error::Program`].
    pub(crate) fn attach_tracepoints(
        &mut self,
        tracepoints: &Tracepoints,
    ) -> Result<TracepointLinks, Error> {
        let attach = |&(name, _): &(&'static str, &str)| {
            let program = program_mut::<BtfTracePoint>(&mut self.loaded, name);
            let link = program.attach().and_then(|link| program.take_link(link));
            link.map_err(program_error(name))
        };
        tracepoints.iter().map(attach).collect::<Result<_, _>>().map(TracepointLinks)
    }

    /// Has a cgroup call its programs, beside those that it has.
    ///
    /// # Errors
    /// [`Error::Program`].
    pub(crate) fn attach_cgroup(&mut self, cgroup: BorrowedFd<'_>) -> Result<CgroupLinks, Error> {
        // No flags: links, since Linux 5.7, always let others in, and refuse to be told so.
        const MODE: CgroupAttachMode = CgroupAttachMode::Single;
        let program = program_mut::<CgroupSock>(&mut self.loaded, ON_SOCK_CREATE);
        let created = program.attach(cgroup, MODE).and_then(|link| program.take_link(link));
        let created = created.map_err(program_error(ON_SOCK_CREATE))?;
        let mut addresses = Vec::with_capacity(ADDRESS_PROGRAMS.len());
        for name in ADDRESS_PROGRAMS {
            let program = program_mut::<CgroupSockAddr>(&mut self.loaded, name);
            let link = program.attach(cgroup, MODE).and_then(|link| program.take_link(link));
            addresses.push(link.map_err(program_error(name))?);
        }
        Ok(CgroupLinks { sock_create: created, named: addresses })
    }

    /// A pass over all tracked sockets, which makes what is told of each what it is: a byte for
    /// each, 1 for one of which an event seems to be untold. One that is there all the time may be
    /// left out of a pass if others that were seen are closed meanwhile.
    ///
    /// # Errors
    /// ENOMEM, EMFILE, ENFILE.
    pub(crate) fn start_sweep(&self) -> Result<BpfIter, Error> {
        Ok(BpfIter::new(program_fd(&self.loaded, SWEEP), Some(self.map_fd("sockets")))?)
    }

    /// Looks again at those of which [`Programs::sweep`] has said so: what is so still is told.
    ///
    /// # Errors
    /// As there.
    pub(crate) fn recheck(&self) -> Result<(), Error> {
        let again = program_fd(&self.loaded, RECHECK);
        BpfIter::new(again, Some(self.map_fd("doubted")))?.read(&mut [0])?;
        Ok(())
    }

    /// The numbers of all maps of the machine ([`kernel::id`](crate::kernel::id)).
    ///
    /// # Errors
    /// As [`Programs::sweep`].
    pub(crate) fn list_map_ids(&self) -> Result<BTreeSet<u32>, Error> {
        let maps = BpfIter::new(program_fd(&self.loaded, LIST_MAPS), None)?;
        let (mut bytes, mut numbers) = ([0; 4096], BTreeSet::new());
        loop {
            let count = maps.read(&mut bytes)?;
            let (written, _) = bytes[..count].as_chunks();
            numbers.extend(written.iter().map(|number| u32::from_ne_bytes(*number)));
            if count < bytes.len() {
                return Ok(numbers);
            }
        }
    }

    /// A map of `uselect.bpf.c`.
    pub(crate) fn map_fd(&self, name: &str) -> BorrowedFd<'_> {
        match self.loaded.map(name).expect("the object is ours") {
            Map::HashMap(map) | Map::ArrayOfMaps(map) | Map::SkStorage(map) => map.fd().as_fd(),
            other => panic!("a map of another kind: {other:?}"),
        }
    }
}

fn program_mut<'a, P>(loaded: &'a mut Ebpf, name: &str) -> &'a mut P
where
    &'a mut P: TryFrom<&'a mut Program, Error = ProgramError>,
{
    let program = loaded.program_mut(name).expect("the object is ours");
    program.try_into().expect("the object is ours, and so is its kind")
}

fn program_fd<'a>(loaded: &'a Ebpf, name: &str) -> BorrowedFd<'a> {
    loaded.program(name).expect("the object is ours").fd().expect("it was loaded").as_fd()
}

fn program_error(name: &'static str) -> impl Fn(ProgramError) -> Error {
    move |error| Error::Program { name, why: error_chain(&error) }
}

/// An error and its causes, in one line: the loader says the kernel's part in a cause.
fn error_chain(error: &dyn std::error::Error) -> String {
    let mut words = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        words = format!("{words}: {error}");
        cause = error.source();
    }
    words.lines().next().unwrap_or_default().to_owned()
}
