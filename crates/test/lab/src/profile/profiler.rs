//! `Profiler`: the loaded programs, while they measure.

use std::thread;

use aya::maps::{Array, PerCpuArray};
use aya::programs::BtfTracePoint;
use aya::programs::tp_btf::BtfTracePointLink;
use aya::util::online_cpus;
use aya::{Btf, Ebpf, EbpfLoader};
use millrace_sys::monotonic_nanoseconds;
use rustix::thread::{CpuSet, sched_setaffinity};

use crate::profile::calls;
use crate::profile::figures::Profile;
use crate::profile::layout::{CALLS, CpuWords};
use crate::profile::selection::Selection;

static OBJECT: &[u8] = aya::include_bytes_aligned!("../../objects/profile.bpf.o");

/// Names of programs in `profile.bpf.c`, each with its tracepoint.
const TRACEPOINTS: &[(&str, &str)] = &[
    ("on_switch", "sched_switch"),
    ("on_idle", "cpu_idle"),
    ("on_sys_enter", "sys_enter"),
    ("on_sys_exit", "sys_exit"),
    ("on_ring_submit", "io_uring_submit_req"),
    ("on_send", "sock_send_length"),
    ("on_ring_complete", "io_uring_complete"),
    ("on_softirq_entry", "softirq_entry"),
    ("on_softirq_exit", "softirq_exit"),
    ("on_receive", "netif_receive_skb"),
    ("on_direct_receive", "netif_receive_skb_entry"),
    ("on_direct_receive_end", "netif_receive_skb_exit"),
    ("on_transmit", "net_dev_start_xmit"),
    ("on_irq_entry", "irq_handler_entry"),
    ("on_irq_exit", "irq_handler_exit"),
    ("on_local_timer_entry", "local_timer_entry"),
    ("on_local_timer_exit", "local_timer_exit"),
    ("on_reschedule_entry", "reschedule_entry"),
    ("on_reschedule_exit", "reschedule_exit"),
    ("on_call_function_entry", "call_function_entry"),
    ("on_call_function_exit", "call_function_exit"),
    ("on_call_function_single_entry", "call_function_single_entry"),
    ("on_call_function_single_exit", "call_function_single_exit"),
    ("on_irq_work_entry", "irq_work_entry"),
    ("on_irq_work_exit", "irq_work_exit"),
];

/// A measurement in progress. The programs leave the kernel when it is dropped, or when its process
/// ends.
pub struct Profiler {
    ebpf: Ebpf,
    links: Vec<BtfTracePointLink>,
    /// The measured CPUs.
    cpus: Vec<u32>,
    /// The time of the begin on CLOCK_MONOTONIC, in nanoseconds.
    begin: u64,
}

impl Profiler {
    /// Loads the programs, which takes less than a second, and begins to measure.
    ///
    /// # Errors
    /// One line: the selection does not exist, or the kernel refuses a program. It needs root
    /// (CAP_BPF and CAP_PERFMON), BTF of the kernel, and x86-64.
    pub fn start(selection: &Selection) -> Result<Self, String> {
        let (kind, id) = selection.resolve()?;
        let cpus = match selection {
            Selection::Core(number) => vec![*number],
            _ => online_cpus().map_err(|(file, error)| format!("{file}: {error}"))?,
        };
        let kinds: [u8; CALLS] = calls::kinds();
        let btf = Btf::from_sys_fs().map_err(describe("BTF of the kernel"))?;
        let mut loader = EbpfLoader::new();
        // aya has no type for storage of threads, which only the programs use.
        loader.btf(Some(&btf)).allow_unsupported_maps();
        loader.override_global("selection_kind", &kind, true);
        loader.override_global("selection_id", &id, true);
        loader.override_global("call_kinds", &kinds, true);
        let mut ebpf = loader.load(OBJECT).map_err(describe("eBPF object"))?;
        let mut links = Vec::with_capacity(TRACEPOINTS.len());
        for &(name, tracepoint) in TRACEPOINTS {
            let program = ebpf.program_mut(name).expect("the object has this program");
            let program: &mut BtfTracePoint =
                program.try_into().expect("the section of the program has this type");
            program.load(tracepoint, &btf).map_err(describe(name))?;
            let link = program.attach().and_then(|link| program.take_link(link));
            links.push(link.map_err(describe(name))?);
        }
        let mut profiler = Self { ebpf, links, cpus, begin: monotonic_nanoseconds() };
        profiler.set_window(0)?;
        visit(&profiler.cpus);
        Ok(profiler)
    }

    /// Ends the measurement.
    ///
    /// # Errors
    /// One line: the kernel refuses access to a map.
    pub fn stop(mut self) -> Result<Profile, String> {
        let end = monotonic_nanoseconds();
        self.set_window(end)?;
        // No program changes the figures while they are read.
        self.links.clear();
        let map = self.ebpf.map("cpus").expect("the object has this map");
        let map: PerCpuArray<_, CpuWords> = map.try_into().map_err(describe("map of CPUs"))?;
        let words = map.get(&0, 0).map_err(describe("map of CPUs"))?;
        let measured = self.cpus.iter().filter_map(|cpu| words.get(*cpu as usize).copied());
        Ok(Profile::new(self.begin, end, &measured.collect::<Vec<CpuWords>>()))
    }

    /// Stores the begin and the end, which is 0 before the end. The programs measure between them.
    fn set_window(&mut self, end: u64) -> Result<(), String> {
        let map = self.ebpf.map_mut("windows").expect("the object has this map");
        let mut map: Array<_, [u64; 2]> = map.try_into().map_err(describe("map of windows"))?;
        map.set(0, [self.begin, end], 0).map_err(describe("map of windows"))
    }
}

/// Runs a thread on each CPU for a moment, so that the programs learn at the begin which thread
/// was there. A CPU that this process may not use is left out.
fn visit(cpus: &[u32]) {
    thread::scope(|scope| {
        scope.spawn(|| {
            for cpu in cpus {
                let mut set = CpuSet::new();
                set.set(*cpu as usize);
                // Without the visit, the first event on the CPU does the same.
                let _ = sched_setaffinity(None, &set);
            }
        });
    });
}

/// Returns a function that formats an error and its sources in one line. aya has the kernel's error
/// in a source.
fn describe<E: std::error::Error>(thing: &str) -> impl Fn(E) -> String {
    move |error| {
        let mut text = format!("{thing}: {error}");
        let mut source = error.source();
        while let Some(error) = source {
            text = format!("{text}: {error}");
            source = error.source();
        }
        text.lines().next().unwrap_or_default().to_owned()
    }
}
