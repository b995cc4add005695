//! `Programs`: the loaded programs and maps, and what they are attached to.

use std::os::fd::{AsFd, BorrowedFd};

use aya::maps::Map;
use aya::programs::cgroup_skb::CgroupSkbLink;
use aya::programs::cgroup_sock::CgroupSockLink;
use aya::programs::cgroup_sock_addr::CgroupSockAddrLink;
use aya::programs::tp_btf::BtfTracePointLink;
use aya::programs::{
    BtfTracePoint, CgroupAttachMode, CgroupSkb, CgroupSkbAttachType, CgroupSock, CgroupSockAddr,
    Program, ProgramError,
};
use aya::{Btf, Ebpf, EbpfLoader};

use crate::error::Error;

static OBJECT: &[u8] = aya::include_bytes_aligned!("../objects/uselect.bpf.o");

/// The programs of `uselect.bpf.c` by name, and the tracepoint of each.
const TRACEPOINTS: [(&str, &str); 7] = [
    ("data_ready", "sk_data_ready"),
    ("received", "sock_recv_length"),
    ("taken", "tcp_rcv_space_adjust"),
    ("sent", "sock_send_length"),
    ("failed", "inet_sk_error_report"),
    ("changed", "inet_sock_set_state"),
    ("arrived", "napi_poll"),
];
const CREATED: &str = "created";
/// Of getpeername(2) and getsockname(2), for both families.
const NAMED: [&str; 4] = ["accepted4", "accepted6", "looked4", "looked6"];
const ARRIVING: &str = "arriving";

/// What is loaded; attached to nothing at first.
pub(crate) struct Programs {
    loaded: Ebpf,
}

/// What calls programs as long as it lives, for any socket of the machine.
pub(crate) struct Tracing(#[expect(dead_code, reason = "held")] Vec<BtfTracePointLink>);

/// What calls programs as long as it lives, for sockets of a cgroup and those below it.
#[expect(dead_code, reason = "held")]
pub(crate) struct CgroupLinks {
    created: CgroupSockLink,
    named: Vec<CgroupSockAddrLink>,
    arriving: CgroupSkbLink,
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
        let loaded = EbpfLoader::new()
            .btf(Some(&types))
            .load(OBJECT)
            .map_err(|error| Error::Program { name: "object", why: chain(&error) })?;
        let mut programs = Self { loaded };
        for (name, tracepoint) in TRACEPOINTS {
            let result = programs.get::<BtfTracePoint>(name).load(tracepoint, &types);
            result.map_err(refused(name))?;
        }
        programs.get::<CgroupSock>(CREATED).load().map_err(refused(CREATED))?;
        for name in NAMED {
            programs.get::<CgroupSockAddr>(name).load().map_err(refused(name))?;
        }
        programs.get::<CgroupSkb>(ARRIVING).load().map_err(refused(ARRIVING))?;
        Ok(programs)
    }

    /// Has the tracepoints call their programs.
    ///
    /// # Errors
    /// [`Error::Program`].
    pub(crate) fn trace(&mut self) -> Result<Tracing, Error> {
        let attach = |(name, _)| {
            let program = self.get::<BtfTracePoint>(name);
            let link = program.attach().and_then(|link| program.take_link(link));
            link.map_err(refused(name))
        };
        TRACEPOINTS.into_iter().map(attach).collect::<Result<_, _>>().map(Tracing)
    }

    /// Has a cgroup call its programs, beside those that it has.
    ///
    /// # Errors
    /// [`Error::Program`].
    pub(crate) fn join(&mut self, cgroup: BorrowedFd<'_>) -> Result<CgroupLinks, Error> {
        // No flags: links, since Linux 5.7, always let others in, and refuse to be told so.
        const MODE: CgroupAttachMode = CgroupAttachMode::Single;
        let program = self.get::<CgroupSock>(CREATED);
        let created = program.attach(cgroup, MODE).and_then(|link| program.take_link(link));
        let created = created.map_err(refused(CREATED))?;
        let mut named = Vec::with_capacity(NAMED.len());
        for name in NAMED {
            let program = self.get::<CgroupSockAddr>(name);
            let link = program.attach(cgroup, MODE).and_then(|link| program.take_link(link));
            named.push(link.map_err(refused(name))?);
        }
        let program = self.get::<CgroupSkb>(ARRIVING);
        let link = program
            .attach(cgroup, CgroupSkbAttachType::Ingress, MODE)
            .and_then(|link| program.take_link(link));
        let arriving = link.map_err(refused(ARRIVING))?;
        Ok(CgroupLinks { created, named, arriving })
    }

    /// A map of `uselect.bpf.c`.
    pub(crate) fn map(&self, name: &str) -> BorrowedFd<'_> {
        match self.loaded.map(name).expect("the object is ours") {
            Map::HashMap(map) | Map::ArrayOfMaps(map) => map.fd().as_fd(),
            other => panic!("a map of another kind: {other:?}"),
        }
    }

    fn get<'a, P>(&'a mut self, name: &str) -> &'a mut P
    where
        &'a mut P: TryFrom<&'a mut Program, Error = ProgramError>,
    {
        let program = self.loaded.program_mut(name).expect("the object is ours");
        program.try_into().expect("the object is ours, and so is its kind")
    }
}

fn refused(name: &'static str) -> impl Fn(ProgramError) -> Error {
    move |error| Error::Program { name, why: chain(&error) }
}

/// An error and its causes, in one line: the loader says the kernel's part in a cause.
fn chain(error: &dyn std::error::Error) -> String {
    let mut words = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        words = format!("{words}: {error}");
        cause = error.source();
    }
    words.lines().next().unwrap_or_default().to_owned()
}
