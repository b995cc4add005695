//! `Programs`: the loaded eBPF programs and maps, and the links that attach them.

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
use rustix::io::Errno;

use crate::bpf::BpfIter;
use crate::error::Error;
use crate::limits::{PENDING_MAX, REGIONS_MAX};
use crate::privileges::check_privileges;

static OBJECT: &[u8] = aya::include_bytes_aligned!("../objects/uselect.bpf.o");

/// Names of programs in `uselect.bpf.c`, each with its tracepoint.
type Tracepoints = [(&'static str, &'static str)];

/// Programs that run when a process has executed another program by execve(2).
pub(crate) const EXEC_TRACEPOINTS: &Tracepoints = &[("on_exec", "sched_process_exec")];
/// Programs that run when something arrives at a socket, when it fails, and when its state changes.
/// Clients in both modes need them.
pub(crate) const COMMON_TRACEPOINTS: &Tracepoints = &[
    ("on_data_ready", "sk_data_ready"),
    ("on_error", "inet_sk_error_report"),
    ("on_state_change", "inet_sock_set_state"),
];
/// Programs that run when a process receives or sends. Only clients in exact mode need them.
pub(crate) const EXACT_TRACEPOINTS: &Tracepoints =
    &[("on_recv", "tcp_rcv_space_adjust"), ("on_send", "sock_send_length")];
/// Iterator over all tracked sockets.
const SWEEP: &str = "sweep";
/// Iterator over the sockets for which the sweep found a mismatch.
const RECHECK: &str = "recheck";
/// Iterator over all BPF maps of the machine.
const LIST_MAPS: &str = "list_maps";
/// Program of a cgroup for socket(2).
const ON_SOCK_CREATE: &str = "on_sock_create";
/// Programs of a cgroup: two for accept4(2) and getpeername(2), and two for getsockname(2).
const ADDRESS_PROGRAMS: [&str; 4] =
    ["on_accept_ipv4", "on_accept_ipv6", "on_refresh_ipv4", "on_refresh_ipv6"];

/// The loaded programs and maps. Nothing is attached at first.
pub(crate) struct Programs {
    ebpf: Ebpf,
}

/// Links to tracepoints. While this lives, the programs run for all sockets of the machine.
pub(crate) struct TracepointLinks(#[expect(dead_code, reason = "held")] Vec<BtfTracePointLink>);

/// Links to a cgroup. While this lives, the programs run for sockets of the cgroup and of its
/// descendants.
#[expect(dead_code, reason = "held")]
pub(crate) struct CgroupLinks {
    sock_create: CgroupSockLink,
    addresses: Vec<CgroupSockAddrLink>,
}

impl Programs {
    /// Loads all programs. The kernel verifies each, which takes about a second.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the kernel has no BTF; [`Error::IteratorForbidden`];
    /// [`Error::Program`].
    pub(crate) fn load() -> Result<Self, Error> {
        let btf = Btf::from_sys_fs().map_err(|_| Error::Unsupported {
            feature: "BTF of the kernel (CONFIG_DEBUG_INFO_BTF)",
            since: "Linux 5.4",
        })?;
        let mut ebpf = EbpfLoader::new()
            .btf(Some(&btf))
            .map_max_entries("processes", (REGIONS_MAX + PENDING_MAX) as u32)
            .load(OBJECT)
            .map_err(|error| Error::Program { name: "object", why: error_chain(&error) })?;
        for &(name, tracepoint) in
            EXEC_TRACEPOINTS.iter().chain(COMMON_TRACEPOINTS).chain(EXACT_TRACEPOINTS)
        {
            let result = program_mut::<BtfTracePoint>(&mut ebpf, name).load(tracepoint, &btf);
            result.map_err(program_error(name))?;
        }
        let sock_create = program_mut::<CgroupSock>(&mut ebpf, ON_SOCK_CREATE);
        sock_create.load().map_err(program_error(ON_SOCK_CREATE))?;
        for name in ADDRESS_PROGRAMS {
            program_mut::<CgroupSockAddr>(&mut ebpf, name).load().map_err(program_error(name))?;
        }
        let socket_iters = [SWEEP, RECHECK].map(|name| (name, "bpf_sk_storage_map"));
        for (name, target) in socket_iters.into_iter().chain([(LIST_MAPS, "bpf_map")]) {
            let result = program_mut::<Iter>(&mut ebpf, name).load(target, &btf);
            result.map_err(|error| match error {
                // The verifier itself returns other errors, such as EACCES.
                ProgramError::LoadError { io_error, .. }
                    if Errno::from_io_error(&io_error) == Some(Errno::PERM)
                        && check_privileges().is_ok() =>
                {
                    Error::IteratorForbidden { iterator: name }
                }
                error => program_error(name)(error),
            })?;
        }
        Ok(Self { ebpf })
    }

    /// Attaches programs to their tracepoints: [`EXEC_TRACEPOINTS`], [`COMMON_TRACEPOINTS`] or
    /// [`EXACT_TRACEPOINTS`].
    ///
    /// # Errors
    /// [`Error::Program`].
    pub(crate) fn attach_tracepoints(
        &mut self,
        tracepoints: &Tracepoints,
    ) -> Result<TracepointLinks, Error> {
        let attach = |&(name, _): &(&'static str, &str)| {
            let program = program_mut::<BtfTracePoint>(&mut self.ebpf, name);
            let link = program.attach().and_then(|link| program.take_link(link));
            link.map_err(program_error(name))
        };
        tracepoints.iter().map(attach).collect::<Result<_, _>>().map(TracepointLinks)
    }

    /// Attaches the programs of cgroups to a cgroup, beside those that are attached already.
    ///
    /// # Errors
    /// [`Error::Program`].
    pub(crate) fn attach_cgroup(&mut self, cgroup: BorrowedFd<'_>) -> Result<CgroupLinks, Error> {
        // `Single` sets no flags. Links (since Linux 5.7) always allow other programs beside them,
        // and the kernel rejects a flag that asks for that.
        const MODE: CgroupAttachMode = CgroupAttachMode::Single;
        let program = program_mut::<CgroupSock>(&mut self.ebpf, ON_SOCK_CREATE);
        let sock_create = program.attach(cgroup, MODE).and_then(|link| program.take_link(link));
        let sock_create = sock_create.map_err(program_error(ON_SOCK_CREATE))?;
        let mut addresses = Vec::with_capacity(ADDRESS_PROGRAMS.len());
        for name in ADDRESS_PROGRAMS {
            let program = program_mut::<CgroupSockAddr>(&mut self.ebpf, name);
            let link = program.attach(cgroup, MODE).and_then(|link| program.take_link(link));
            addresses.push(link.map_err(program_error(name))?);
        }
        Ok(CgroupLinks { sock_create, addresses })
    }

    /// Starts a pass over all tracked sockets, which recomputes their words. The iterator yields
    /// one byte for each socket: 1 if an event seems to have been missed. A pass may skip a socket
    /// if sockets that it has checked are closed meanwhile.
    ///
    /// # Errors
    /// ENOMEM, EMFILE, ENFILE.
    pub(crate) fn start_sweep(&self) -> Result<BpfIter, Error> {
        Ok(BpfIter::new(program_fd(&self.ebpf, SWEEP), Some(self.map_fd("sockets")))?)
    }

    /// Checks the sockets again for which [`Programs::start_sweep`] yielded 1, and reports the
    /// events that are still missing.
    ///
    /// # Errors
    /// ENOMEM, EMFILE, ENFILE.
    pub(crate) fn recheck(&self) -> Result<(), Error> {
        let recheck = program_fd(&self.ebpf, RECHECK);
        BpfIter::new(recheck, Some(self.map_fd("suspects")))?.read(&mut [0])?;
        Ok(())
    }

    /// Returns the ids of all BPF maps of the machine ([`map_id`](crate::bpf::map_id)).
    ///
    /// # Errors
    /// ENOMEM, EMFILE, ENFILE.
    pub(crate) fn list_map_ids(&self) -> Result<BTreeSet<u32>, Error> {
        let iter = BpfIter::new(program_fd(&self.ebpf, LIST_MAPS), None)?;
        let (mut bytes, mut ids) = ([0; 4096], BTreeSet::new());
        loop {
            let count = iter.read(&mut bytes)?;
            let (written, _) = bytes[..count].as_chunks();
            ids.extend(written.iter().map(|id| u32::from_ne_bytes(*id)));
            if count < bytes.len() {
                return Ok(ids);
            }
        }
    }

    /// Returns the descriptor of a map of the object.
    ///
    /// # Panics
    /// If the object has no such map, or one of another type.
    pub(crate) fn map_fd(&self, name: &str) -> BorrowedFd<'_> {
        match self.ebpf.map(name).expect("the object has this map") {
            Map::HashMap(map) | Map::ArrayOfMaps(map) | Map::SkStorage(map) => map.fd().as_fd(),
            other => panic!("unexpected type of map: {other:?}"),
        }
    }
}

fn program_mut<'a, P>(ebpf: &'a mut Ebpf, name: &str) -> &'a mut P
where
    &'a mut P: TryFrom<&'a mut Program, Error = ProgramError>,
{
    let program = ebpf.program_mut(name).expect("the object has this program");
    program.try_into().expect("the section of the program has this type")
}

fn program_fd<'a>(ebpf: &'a Ebpf, name: &str) -> BorrowedFd<'a> {
    let program = ebpf.program(name).expect("the object has this program");
    program.fd().expect("the program is loaded").as_fd()
}

fn program_error(name: &'static str) -> impl Fn(ProgramError) -> Error {
    move |error| Error::Program { name, why: error_chain(&error) }
}

/// Formats an error and its sources in one line. aya has the kernel's error in a source.
fn error_chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        text = format!("{text}: {error}");
        source = error.source();
    }
    text.lines().next().unwrap_or_default().to_owned()
}
