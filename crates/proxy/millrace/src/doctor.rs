//! `millrace doctor`: reports what this machine offers and how millrace would use it. It changes
//! nothing and opens nothing that could disturb a running proxy. For --engine auto, --cache-send
//! auto and --splice calibrated it sends a few messages to itself. It also registers with uselectd;
//! the registration ends with the process. It makes a control group and removes it again.

use std::collections::BTreeSet;
use std::fs;
use std::num::NonZero;
use std::path::{Path, PathBuf};

use millrace_config::{Config, EngineChoice};
use millrace_engine::ReservedRing;
use millrace_proxy::pipes_max;
use millrace_splice::limits::PIPE_BYTES;
use millrace_tls::Aead;
use uselect::{Backend, Tracker};

use crate::acme::{self, report};
use crate::engines::{self, Engine, Engine::Epoll, EngineSelection};
use crate::finding::{Finding, Severity};
use crate::program_error::ProgramError;
use crate::worker_pool::{descriptors_per_worker, disk_files, served_files, shared_files};
use crate::{certificates, console, hot_bodies, ring_reservation, splice_thresholds};
use crate::{cgi, privileges};

/// Prints the findings about this machine for a process with this configuration.
///
/// # Errors
/// If millrace cannot run on this machine.
pub(crate) fn run(config: &Config) -> Result<(), ProgramError> {
    let machine = Machine::inspect(&config.uselectd);
    let findings = findings(&machine, config);
    let mut page = format!("millrace {}\n\n", env!("CARGO_PKG_VERSION"));
    for finding in &findings {
        let mark = match finding.severity {
            Severity::Ok => "ok  ",
            Severity::Note => "note",
            Severity::Fatal => "BAD ",
        };
        page.push_str(&format!("{mark}  {:<18}{}\n", finding.name, finding.value));
        for line in finding.detail.lines() {
            page.push_str(&format!("      {:<18}{line}\n", ""));
        }
    }
    console::write_result(&page)?;
    match findings.iter().find(|finding| finding.severity == Severity::Fatal) {
        None => Ok(()),
        Some(bad) => Err(ProgramError::System(format!(
            "cannot run on this machine: {}: {}",
            bad.name, bad.detail
        ))),
    }
}

/// The properties of this machine; `None`: not readable.
#[derive(Clone, Default)]
struct Machine {
    kernel: Option<String>,
    processors: u64,
    memory_bytes: Option<u64>,
    descriptors_now: u64,
    descriptors_max: u64,
    name_servers: Vec<String>,
    congestion: Option<String>,
    congestion_available: Option<String>,
    backlog: Option<u64>,
    pipe_pages: Option<u64>,
    /// RLIMIT_MEMLOCK in bytes, if the limit applies to this process.
    locked_memory: Option<u64>,
    /// Bytes that an io_uring ring counts against RLIMIT_MEMLOCK; `None` if no ring could be
    /// created.
    ring_bytes: Option<u64>,
    /// Whether not even one ring could be created for lack of locked memory.
    is_ring_refused: bool,
    tracking: Option<Tracking>,
}

/// The backend that reports readiness, and why each better one is not available.
type Tracking = (Backend, Vec<(Backend, uselect::Error)>);

impl Machine {
    /// Reads the properties. `uselectd` is the path of its socket.
    fn inspect(uselectd: &Path) -> Self {
        let proc = |path: &str| {
            fs::read_to_string(format!("/proc/{path}")).ok().map(|text| text.trim().to_owned())
        };
        let number = |path: &str| proc(path).and_then(|text| text.parse().ok());
        let descriptors_now = millrace_sys::descriptor_limit();
        let ring = ReservedRing::new();
        // A start registers and raises the limit of descriptors in the same way. Both end with this
        // process.
        let (tracker, missing) = Tracker::best(uselectd, uselect::TrackingMode::Exact);
        let descriptors_max = millrace_sys::raise_descriptor_limit().unwrap_or(descriptors_now);
        Self {
            kernel: proc("sys/kernel/osrelease"),
            processors: std::thread::available_parallelism().map_or(1, NonZero::get) as u64,
            memory_bytes: proc("meminfo").as_deref().and_then(memory_available),
            descriptors_now,
            descriptors_max,
            name_servers: name_servers(&fs::read_to_string("/etc/resolv.conf").unwrap_or_default()),
            congestion: proc("sys/net/ipv4/tcp_congestion_control"),
            congestion_available: proc("sys/net/ipv4/tcp_available_congestion_control"),
            backlog: number("sys/net/core/somaxconn"),
            pipe_pages: number("sys/fs/pipe-user-pages-soft"),
            locked_memory: millrace_sys::locked_memory_limit()
                .filter(|_| !millrace_confine::has_cap_ipc_lock()),
            ring_bytes: ring.as_ref().ok().map(ReservedRing::memory_bytes),
            is_ring_refused: matches!(ring, Err(millrace_engine::Error::OutOfMemory)),
            tracking: Some((tracker.backend(), missing)),
        }
    }
}

/// Returns the number of bytes of memory that are available without swapping (proc_meminfo(5)).
fn memory_available(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kilobytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kilobytes * 1024)
}

/// Returns the name servers of resolv.conf(5).
fn name_servers(resolv: &str) -> Vec<String> {
    let server = |line: &str| {
        let mut fields = line.split_whitespace();
        (fields.next() == Some("nameserver")).then(|| fields.next().map(str::to_owned)).flatten()
    };
    resolv.lines().filter_map(server).collect()
}

fn findings(machine: &Machine, config: &Config) -> Vec<Finding> {
    let selection = engines::select_engine(config);
    let used = selection.as_ref().map_or(Epoll, |it| it.engine);
    let thresholds = splice_thresholds::select_thresholds(config.splice, used);
    let mut findings = vec![
        kernel(machine),
        engine(selection),
        workers(machine, config),
        descriptors(machine, config),
        memory(machine, config),
        memlock(machine, config, used),
        bodies(&thresholds),
        hot_bodies(config),
        pipes(machine, config, &thresholds),
        names(machine),
        congestion(machine),
        backlog(machine),
        tracking(machine, config),
        records(),
    ];
    findings.extend(privileges::report(config));
    findings.push(cgi::finding(config));
    let folders = state_folders(config);
    findings.extend(folders.iter().flat_map(|folder| report::findings(folder)));
    findings
}

/// Returns the state folders of ACME; without a service the default one.
fn state_folders(config: &Config) -> BTreeSet<PathBuf> {
    if config.services.is_empty() {
        return [certificates::default_state_folder()].into();
    }
    let services = config.services.iter().filter_map(|service| service.tls.as_ref());
    let contents = services.filter_map(|tls| tls.acme.as_ref()?.content.as_ref());
    contents.map(|content| content.folder.clone()).collect()
}

/// Formats a value or reports that it is not readable, which is not an error.
fn or_unreadable<T: ToString>(value: &Option<T>) -> String {
    value.as_ref().map_or_else(|| "unreadable".to_owned(), T::to_string)
}

/// The oldest kernel with all required features. The newest of them is EPOLLEXCLUSIVE, for
/// listeners that several workers share.
const KERNEL_MIN: (u32, u32) = (4, 5);

fn kernel(machine: &Machine) -> Finding {
    let value = format!("Linux {}, {}", or_unreadable(&machine.kernel), std::env::consts::ARCH);
    let mut numbers = machine.kernel.as_deref().unwrap_or_default().split(['.', '-']);
    let mut number = || numbers.next().and_then(|number| number.parse::<u32>().ok());
    match number().zip(number()) {
        Some(version) if version < KERNEL_MIN => {
            let detail = "older than 4.5, the first kernel with EPOLLEXCLUSIVE";
            Finding::new("kernel", Severity::Fatal, value, detail)
        }
        _ => Finding::ok_or_note("kernel", value, None),
    }
}

fn engine(selection: Result<EngineSelection, ProgramError>) -> Finding {
    match selection {
        Ok(it) => Finding::new("engine", Severity::Ok, it.engine.name(), it.reason),
        Err(error) => Finding::new("engine", Severity::Fatal, "none", error.to_string()),
    }
}

fn workers(machine: &Machine, config: &Config) -> Finding {
    let value = format!("{} of {} processors", config.workers, machine.processors);
    let is_too_many = config.workers as u64 > machine.processors;
    let note = is_too_many.then_some("more workers than processors do not help");
    Finding::ok_or_note("workers", value, note)
}

/// One descriptor for each side of a proxied connection.
const DESCRIPTORS_PER_CONNECTION: u64 = 2;
/// Listeners, wakers, logs and others.
const DESCRIPTORS_OTHER: u64 = 64;

fn descriptors(machine: &Machine, config: &Config) -> Finding {
    let (now, most) = (machine.descriptors_now, machine.descriptors_max);
    let value = match most == u64::MAX {
        true => "unlimited".to_owned(),
        false if now == most => format!("{most}"),
        false => format!("{now}, raised to {most} at start"),
    };
    let connections = config.limits.connections;
    let files = [
        (disk_files(config), "disk"),
        (served_files(config), "served"),
        (shared_files(config), "shared"),
    ];
    let sum = files.iter().map(|(count, _)| count).sum::<u64>();
    let others = DESCRIPTORS_OTHER + sum + acme::http_descriptors_max(config, most);
    let needed = connections.saturating_mul(DESCRIPTORS_PER_CONNECTION) + others;
    if most < DESCRIPTORS_OTHER {
        return Finding::new("descriptors", Severity::Fatal, value, "too few to open sockets");
    }
    let used = files.iter().filter(|(count, _)| *count > 0);
    let and_files: String =
        used.map(|(count, kind)| format!(" and {count} {kind} files")).collect();
    if most < needed {
        let reached = most.saturating_sub(others) / DESCRIPTORS_PER_CONNECTION;
        let detail = format!(
            "limits.connections is {connections}, but accepting will pause at about {reached} busy \
             connections{and_files}. Raise the hard limit (ulimit -Hn) or lower limits.connections."
        );
        return Finding::ok_or_note("descriptors", value, Some(&detail));
    }
    let detail = format!("enough for limits.connections = {connections}{and_files}");
    Finding::new("descriptors", Severity::Ok, value, detail)
}

fn memory(machine: &Machine, config: &Config) -> Finding {
    let available = machine.memory_bytes.map(console::format_bytes);
    let cache = config.cache.as_ref().map_or(0, |cache| cache.memory_bytes);
    let [pools, cache] = [config.pool_bytes(), cache].map(console::format_bytes);
    let value =
        format!("{pools} for pools, {cache} for the cache, {} free", or_unreadable(&available));
    let is_short = machine.memory_bytes.is_some_and(|bytes| bytes < config.memory_bytes);
    let note = is_short.then_some("less memory is free than --memory allows");
    Finding::ok_or_note("memory", value, note)
}

/// Reports the implementation that seals and opens the records of TLS.
fn records() -> Finding {
    let detail = "sealed by the implementation that is faster on this processor";
    Finding::new("TLS records", Severity::Ok, Aead::fastest().to_string(), detail)
}

/// Compares RLIMIT_MEMLOCK with the memory of all io_uring rings that a start reserves.
fn memlock(machine: &Machine, config: &Config, used: Engine) -> Finding {
    let workers = config.workers;
    let limit = match machine.locked_memory {
        Some(limit) => format!("{} for all processes of the user", console::format_bytes(limit)),
        None => "unlimited".to_owned(),
    };
    let rings = engines::rings_needed(config.engine, workers) as u64;
    let needed = machine.ring_bytes.map(|bytes| bytes * rings);
    let needs = match needed {
        Some(needed) => {
            format!("{workers} workers need {} for io_uring", console::format_bytes(needed))
        }
        None => "no io_uring ring can be created".to_owned(),
    };
    let value = format!("{limit}; {needs}; engine {} is used", used.name());
    let wants_rings = matches!(config.engine, EngineChoice::Auto | EngineChoice::Uring);
    let is_short = machine.locked_memory.is_some_and(|limit| match needed {
        Some(needed) => needed > limit,
        None => machine.is_ring_refused,
    });
    // If uring is used, the limit does not matter: Linux before 6.14 does not count rings against
    // it.
    let is_noted = wants_rings && is_short && used != Engine::Uring;
    Finding::ok_or_note("memlock", value, is_noted.then_some(ring_reservation::MEMLOCK_ADVICE))
}

/// Reports how bodies are forwarded.
fn bodies(selection: &splice_thresholds::ThresholdSelection) -> Finding {
    let rows = selection.plan().map(|(kind, what)| format!("{kind:<21}{what}"));
    Finding::new("bodies", Severity::Ok, &selection.reason, rows.join("\n"))
}

/// Reports how hot bodies are sent from the cache.
fn hot_bodies(config: &Config) -> Finding {
    match &config.cache {
        None => Finding::new("hot bodies", Severity::Ok, "there is no cache", ""),
        Some(cache) => {
            let selection = hot_bodies::select_hot_copies(cache.send);
            let severity = if selection.is_fallback { Severity::Note } else { Severity::Ok };
            Finding::new("hot bodies", severity, selection.plan(), selection.reason)
        }
    }
}

/// Bytes of a page of a pipe.
const PAGE_BYTES: u64 = 4096;

fn pipes(
    machine: &Machine,
    config: &Config,
    bodies: &splice_thresholds::ThresholdSelection,
) -> Finding {
    let workers = config.workers as u64;
    let descriptors = descriptors_per_worker(config.workers, config);
    let all = workers * pipes_max(&bodies.thresholds, workers, descriptors);
    let bytes = all * PIPE_BYTES as u64;
    let value = format!(
        "{all} of {}, {} in all",
        console::format_bytes(PIPE_BYTES as u64),
        console::format_bytes(bytes)
    );
    match machine.pipe_pages {
        // 0 means no limit (proc_sys_fs(5)).
        Some(pages) if pages > 0 && pages * PAGE_BYTES < bytes => {
            let detail = format!(
                "fs.pipe-user-pages-soft is {pages}: beyond {} of pipes bodies are copied",
                console::format_bytes(pages * PAGE_BYTES)
            );
            Finding::ok_or_note("pipes", value, Some(&detail))
        }
        _ => Finding::new("pipes", Severity::Ok, value, "when all are in use, bodies are copied"),
    }
}

fn names(machine: &Machine) -> Finding {
    if machine.name_servers.is_empty() {
        let detail = "127.0.0.1 is used, as in the C library";
        return Finding::new("name servers", Severity::Note, "none in /etc/resolv.conf", detail);
    }
    Finding::ok_or_note("name servers", machine.name_servers.join(", "), None)
}

fn congestion(machine: &Machine) -> Finding {
    let available = or_unreadable(&machine.congestion_available);
    let value = format!("{} (this kernel has: {available})", or_unreadable(&machine.congestion));
    let detail = "bbr paces every segment. Between nearby machines it uses several times the CPU time \
                  of cubic. --congestion auto and --origin-congestion auto avoid that.";
    let is_bbr = machine.congestion.as_deref() == Some("bbr");
    Finding::ok_or_note("congestion", value, is_bbr.then_some(detail))
}

/// The backlog passed to listen(2).
const BACKLOG: u64 = 4096;

fn backlog(machine: &Machine) -> Finding {
    let detail = "net.core.somaxconn limits the queue of new connections to less than 4096";
    let is_short = machine.backlog.is_some_and(|most| most < BACKLOG);
    Finding::ok_or_note("backlog", or_unreadable(&machine.backlog), is_short.then_some(detail))
}

/// Reports the readiness tracking that programs linked or preloaded with uselect get.
fn tracking(machine: &Machine, config: &Config) -> Finding {
    let (backend, missing) = machine.tracking.as_ref().map_or((Backend::Calls, &[][..]), |found| {
        let (backend, missing) = found;
        (*backend, missing)
    });
    let missing = missing.iter().map(|(backend, error)| {
        let name = match backend {
            Backend::Bpf(_) => "not by eBPF",
            Backend::Multishot => "not by io_uring",
            Backend::Calls => "not at all",
        };
        format!("{name}: {}", error.at_path(&config.uselectd))
    });
    let mut missing = missing.collect::<Vec<_>>();
    if config.engine == EngineChoice::Uselect && !matches!(backend, Backend::Bpf(_)) {
        missing
            .push("engine uselect cannot start; a running process continues with epoll".to_owned());
    }
    let (severity, value) = match backend {
        Backend::Bpf(_) => (Severity::Ok, "by eBPF: no system call for ready sockets"),
        Backend::Multishot => (
            Severity::Note,
            "by io_uring (not used by engine uselect): no system call for idle sockets",
        ),
        Backend::Calls => (Severity::Note, "none: each wait is a system call"),
    };
    Finding::new("uselect", severity, value, missing.join("\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(arguments: &str) -> Config {
        millrace_config::from_arguments(arguments.split(' ')).unwrap()
    }

    fn severity_of(name: &str, machine: &Machine, config: &Config) -> Severity {
        let mut all = findings(machine, config).into_iter();
        all.find(|finding| finding.name == name).unwrap().severity
    }

    #[test]
    fn this_machine_can_run_millrace() {
        let machine = Machine::inspect(uselect::DEFAULT_SOCKET.as_ref());
        assert!(
            machine.kernel.is_some() && machine.processors > 0 && machine.memory_bytes > Some(0)
        );
        for finding in findings(&machine, &config("forward")) {
            assert!(finding.severity != Severity::Fatal, "{}: {}", finding.name, finding.detail);
        }
    }

    #[test]
    fn limits_that_are_too_low_are_reported() {
        let machine = |kernel: &str| Machine {
            kernel: Some(kernel.to_owned()),
            processors: 2,
            memory_bytes: Some(100 << 20),
            descriptors_now: 512,
            descriptors_max: 4096,
            congestion: Some("bbr".to_owned()),
            backlog: Some(128),
            pipe_pages: Some(1024),
            ..Machine::default()
        };
        let (new, default) = (machine("6.1.0-13-amd64"), config("forward --workers 2"));
        assert_eq!(severity_of("kernel", &new, &default), Severity::Ok);
        assert_eq!(severity_of("kernel", &machine("4.4.0-210-generic"), &default), Severity::Fatal);
        for name in ["descriptors", "memory", "name servers", "congestion", "backlog", "pipes"] {
            assert_eq!(severity_of(name, &new, &default), Severity::Note, "{name}");
        }
        let small = config("forward --workers 4 --memory 64M --limit connections=1000");
        assert_eq!(severity_of("descriptors", &new, &small), Severity::Ok);
        assert_eq!(severity_of("memory", &new, &small), Severity::Ok);
        assert_eq!(severity_of("workers", &new, &small), Severity::Note);
    }

    #[test]
    fn memory_for_rings_is_compared_with_its_limit() {
        let ring_bytes = Some(136 << 10);
        let machine = Machine { locked_memory: Some(8 << 20), ring_bytes, ..Machine::default() };
        let short = memlock(&machine, &config("forward --workers 64"), Epoll);
        assert_eq!(short.severity, Severity::Note);
        assert_eq!(
            short.value,
            "8.0 MB for all processes of the user; 64 workers need 9.0 MB for io_uring; engine \
             epoll is used"
        );
        assert_eq!(short.detail, ring_reservation::MEMLOCK_ADVICE);
        let severity = |arguments: &str, used| memlock(&machine, &config(arguments), used).severity;
        // 60 rings fit, but a start reserves more than one per worker.
        assert_eq!(severity("forward --workers 60", Epoll), Severity::Note);
        assert_eq!(severity("forward --workers 56", Epoll), Severity::Ok);
        assert_eq!(severity("forward --workers 60 --engine uring", Epoll), Severity::Note);
        assert_eq!(severity("forward --workers 59 --engine uring", Epoll), Severity::Ok);
        assert_eq!(severity("forward --workers 64", Engine::Uring), Severity::Ok);
        assert_eq!(severity("forward --workers 64 --engine poll", Engine::Poll), Severity::Ok);
        let free = Machine { ring_bytes, ..Machine::default() };
        let free = memlock(&free, &config("forward --workers 64"), Epoll);
        assert!(free.severity == Severity::Ok && free.value.starts_with("unlimited; 64 "));
        let is_ring_refused = true;
        let none =
            Machine { locked_memory: Some(100 << 10), is_ring_refused, ..Machine::default() };
        let none = memlock(&none, &config("forward"), Epoll);
        assert_eq!(
            (none.severity, &*none.detail),
            (Severity::Note, ring_reservation::MEMLOCK_ADVICE)
        );
        assert!(none.value.contains("; no io_uring ring can be created; "), "{}", none.value);
    }

    #[test]
    fn disk_files_are_counted() {
        let machine = Machine { descriptors_max: 4096, ..Machine::default() };
        let with = |disk: &str| {
            let arguments = format!("forward --limit connections=1800 {disk}");
            let config = config(arguments.trim());
            let mut all = findings(&machine, &config).into_iter();
            let found = all.find(|it| it.name == "descriptors").unwrap();
            (found.severity, found.detail)
        };
        assert_eq!(with("").0, Severity::Ok);
        let (severity, detail) = with("--disk /a:128M");
        assert!(severity == Severity::Ok && detail.contains("= 1800 and 9 disk files"), "{detail}");
        let (severity, detail) = with("--disk /a:100G");
        let expected = "about 1503 busy connections and 1025 disk files";
        assert!(severity == Severity::Note && detail.contains(expected), "{detail}");
        let served = config("serve /srv --limit connections=900 --disk /a:128M");
        let found = descriptors(&machine, &served);
        assert_eq!(
            (found.severity, &*found.detail),
            (
                Severity::Ok,
                "enough for limits.connections = 900 and 9 disk files and 2048 served files"
            )
        );
    }

    #[test]
    fn missing_backends_are_reported_with_the_reason() {
        let with = |backend, missing| {
            let tracking = Some((backend, missing));
            self::tracking(&Machine { tracking, ..Machine::default() }, &config("forward"))
        };
        let exact = Backend::Bpf(uselect::TrackingMode::Exact);
        let best = with(exact, Vec::new());
        assert!(best.severity == Severity::Ok && best.detail.is_empty());
        let absent = (exact, uselect::Error::NoDaemon(uselect::Errno::NOENT));
        let refused = (exact, uselect::Error::Refused);
        for (missing, detail) in [
            (absent, "not by eBPF: uselectd is not running at /run/uselectd.sock"),
            (
                refused,
                "not by eBPF: uselectd does not serve this user (--allow-user of uselectd(8))",
            ),
        ] {
            let second = with(Backend::Multishot, vec![missing]);
            assert!(second.severity == Severity::Note);
            assert_eq!(second.detail, detail);
        }
        let forbidden = (Backend::Multishot, uselect::Error::NoRing(uselect::Errno::PERM));
        let named =
            Machine { tracking: Some((Backend::Calls, vec![absent])), ..Machine::default() };
        let named = tracking(&named, &config("forward --engine uselect --uselectd /a"));
        let arguments =
            "not by eBPF: uselectd is not running at /a\nengine uselect cannot start; a";
        assert!(named.detail.starts_with(arguments), "{}", named.detail);
        let last = with(Backend::Calls, vec![refused, forbidden]);
        assert!(last.detail.lines().count() == 2 && last.detail.contains("forbids io_uring"));
    }

    #[test]
    fn name_servers_are_read_as_the_resolver_reads_them() {
        let text = "# nameserver 9.9.9.9\nnameserver 127.0.0.53\nsearch a\nnameserver\t::1 x\n";
        assert_eq!(name_servers(text), ["127.0.0.53", "::1"]);
    }
}
