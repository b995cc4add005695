//! The program under test with all services of the campaign, or the broken cache in its place.

use std::collections::{HashMap, VecDeque};
use std::env;
use std::fs;
use std::io::{BufRead, BufReader};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::process::{self, Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::Instant;

use super::broken_cache;
use super::mutant::{SERVICES, Service};
use super::origin::Origins;
use crate::corpus::timeouts::PATIENCE;
use crate::real;

/// A cache with a listener for each service, and the origins behind it.
pub(super) struct Program {
    addresses: HashMap<u8, SocketAddr>,
    pub(super) origins: Origins,
    /// `None` for the broken cache.
    child: Option<Child>,
    stderr: Arc<Mutex<VecDeque<String>>>,
}

impl Program {
    /// Starts the real program on this engine.
    ///
    /// # Panics
    /// Panics if the program is missing, or does not print its addresses.
    pub(super) fn start(engine: &str) -> Self {
        let origins = Origins::start();
        let file = configuration_file();
        fs::write(&file, configuration(&origins)).expect("a temporary file can be written");
        let mut command = Command::new(executable());
        command.arg("run").arg(&file).args(["--engine", engine]);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("the program can be started");
        let lines = BufReader::new(child.stderr.take().expect("standard error is piped"));
        let stderr = Arc::new(Mutex::new(VecDeque::new()));
        let kept = Arc::clone(&stderr);
        let (send, receive) = mpsc::channel();
        thread::spawn(move || {
            for line in lines.lines().map_while(Result::ok) {
                if let Some(address) = line.strip_prefix("millrace: listening on ") {
                    let _ = send.send(address.to_owned());
                }
                let mut stderr = kept.lock().expect("no thread panics with the lock");
                if stderr.len() == 20 {
                    stderr.pop_front();
                }
                stderr.push_back(line);
            }
        });
        let mut program = Self { addresses: HashMap::new(), origins, child: Some(child), stderr };
        let begun = Instant::now();
        while program.addresses.len() < SERVICES.len() {
            let left = PATIENCE.saturating_sub(begun.elapsed());
            match receive.recv_timeout(left).map(|text| text.parse::<SocketAddr>()) {
                Ok(Ok(address)) => program.add(address),
                other => panic!("no address ({other:?}); it printed: {}", program.last_lines()),
            }
        }
        let _ = fs::remove_file(&file);
        program
    }

    /// Starts the cache that makes every mistake that the campaign looks for.
    pub(super) fn start_broken() -> Self {
        let origins = Origins::start();
        let mut addresses = HashMap::new();
        for (service, address) in broken_cache::start(origins.modelled, origins.early) {
            addresses.insert(number(service), address);
        }
        Self { addresses, origins, child: None, stderr: Arc::default() }
    }

    fn add(&mut self, address: SocketAddr) {
        if let IpAddr::V4(ip) = address.ip() {
            self.addresses.insert(ip.octets()[3], address);
        }
    }

    /// Returns the address of a service.
    pub(super) fn address(&self, service: Service) -> SocketAddr {
        self.addresses[&number(service)]
    }

    /// Returns the last lines of the program if it has ended, which it must not.
    pub(super) fn ended(&mut self) -> Option<String> {
        match self.child.as_mut()?.try_wait() {
            Ok(Some(status)) => {
                Some(format!("the program ended ({status}): {}", self.last_lines()))
            }
            _ => None,
        }
    }

    fn last_lines(&self) -> String {
        let stderr = self.stderr.lock().expect("no thread panics with the lock");
        stderr.iter().cloned().collect::<Vec<_>>().join("\n")
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Returns the last byte of the loopback address of a service, which identifies the service in the
/// printed addresses.
fn number(service: Service) -> u8 {
    let at = SERVICES.iter().position(|it| *it == service).expect("every service is listed");
    11 + u8::try_from(at).expect("few services")
}

/// The fields that [`Service::Passing`] forwards.
const PASSED: [&str; 6] = [
    "X-Host",
    "Front-End-Https",
    "X-Forwarded-Port",
    "X-Forwarded-Scheme",
    "X-Original-URL",
    "X-Real-Ip",
];

fn configuration(origins: &Origins) -> String {
    let mut text = "workers = 1\nmemory = \"128M\"\n".to_owned();
    let Origins { modelled, early, .. } = origins;
    for service in SERVICES {
        let listen = Ipv4Addr::new(127, 0, 0, number(service));
        let origin = if service.is_early() { early } else { modelled };
        let origin = format!("origins = [\"http://{origin}\"]");
        let table = if service == Service::Forward { "forward" } else { "boost" };
        text.push_str(&format!("[[{table}]]\nlisten = [\"{listen}:0\"]\n"));
        if service.is_trusting() {
            text.push_str("trust = [\"127.1.0.0/16\"]\n");
        }
        let normal = "path-forward = \"normalised\"\n";
        let normal = if service == Service::Normalised { normal } else { "" };
        match service {
            Service::Forward => {}
            _ if service.has_paths() => text.push_str(&format!(
                "[[boost.route]]\npath = \"/static/\"\ncache-ttl = \"override 7d\"\n{normal}{origin}\n\
                 [[boost.route]]\npath = \"/account\"\ncache = false\n{normal}{origin}\n\
                 [[boost.route]]\ncache-ttl = \"default 1m\"\n{normal}{origin}\n"
            )),
            Service::Passing => text.push_str(&format!(
                "[[boost.route]]\npass-fields = {PASSED:?}\n{origin}\n"
            )),
            _ => text.push_str(&format!("[[boost.route]]\n{origin}\n")),
        }
    }
    text
}

fn configuration_file() -> PathBuf {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    env::temp_dir().join(format!("millrace-poison-{}-{number}.toml", process::id()))
}

/// Returns the path of the program under test: `MILLRACE`, or the program beside the folder of this
/// test.
fn executable() -> PathBuf {
    match env::var_os("MILLRACE") {
        Some(path) => PathBuf::from(path),
        None => real::program().unwrap_or_else(|why| panic!("{why}")),
    }
}
