//! Panics of worker threads in the real program. With the environment variable `MILLRACE_PANIC`, a
//! build with debug assertions panics at a request for [`PANIC`]. Other builds ignore the variable.

#![cfg(debug_assertions)]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use support::{Running, command};

const PANIC: &str = "/panic";
/// Part of the message of the panic that `MILLRACE_PANIC` causes.
const MESSAGE: &str = "MILLRACE_PANIC";
/// The body of `/slow`: the first half is sent at once, the second when the gate opens.
const SLOW_BYTES: usize = 400_000;
/// Time after which a test counts as hung.
const TIMEOUT: Duration = Duration::from_secs(60);

/// The gate that holds back the second halves.
#[derive(Clone, Default)]
struct Gate {
    open: Arc<(Mutex<bool>, Condvar)>,
    /// The number of requests for `/held`.
    requests: Arc<AtomicUsize>,
}

/// The start of a cacheable response.
const KEPT: &str = "HTTP/1.1 200 OK\r\nCache-Control: max-age=600\r\n";

impl Gate {
    fn open(&self) {
        *self.open.0.lock().unwrap() = true;
        self.open.1.notify_all();
    }

    fn wait(&self) {
        let closed = self.open.0.lock().unwrap();
        drop(self.open.1.wait_while(closed, |open| !*open).unwrap());
    }
}

/// Starts an origin for `/slow`, `/kept`, `/held` and other paths. Returns its address.
fn origin(gate: &Gate) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let gate = gate.clone();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (stream, gate) = (stream.unwrap(), gate.clone());
            std::thread::spawn(move || serve(stream, &gate));
        }
    });
    address
}

/// Serves a connection until it ends in any way.
fn serve(mut stream: TcpStream, gate: &Gate) -> Option<()> {
    let mut lines = BufReader::new(stream.try_clone().ok()?).lines();
    loop {
        let request = lines.next()?.ok()?;
        while !lines.next()?.ok()?.is_empty() {}
        if request.contains(" /slow ") {
            let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {SLOW_BYTES}\r\n\r\n");
            stream.write_all(head.as_bytes()).ok()?;
            stream.write_all(&[b's'; SLOW_BYTES / 2]).ok()?;
            gate.wait();
            stream.write_all(&[b's'; SLOW_BYTES / 2]).ok()?;
        } else if request.contains(" /kept ") {
            let head = format!("{KEPT}Content-Length: {SLOW_BYTES}\r\n\r\n");
            stream.write_all(head.as_bytes()).ok()?;
            stream.write_all(&[b's'; SLOW_BYTES / 2]).ok()?;
            gate.wait();
        } else if request.contains(" /held ") {
            gate.requests.fetch_add(1, Ordering::Relaxed);
            gate.wait();
            stream.write_all(format!("{KEPT}Content-Length: 2\r\n\r\nok").as_bytes()).ok()?;
        } else {
            stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").ok()?;
        }
    }
}

fn connect(running: &Running) -> TcpStream {
    let stream = TcpStream::connect(&running.addresses[0]).unwrap();
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    stream
}

fn request(stream: &mut TcpStream, target: &str) {
    stream.write_all(format!("GET {target} HTTP/1.1\r\nHost: a\r\n\r\n").as_bytes()).unwrap();
}

/// Sends a request for a small response and reads the response.
fn request_and_read(stream: &mut TcpStream) {
    request(stream, "/");
    let mut response = Vec::new();
    while !response.ends_with(b"\r\n\r\nok") {
        let mut part = [0; 1024];
        let count = stream.read(&mut part).unwrap();
        assert!(count > 0, "cut after {:?}", response.escape_ascii().to_string());
        response.extend_from_slice(&part[..count]);
    }
}

/// Makes the worker of a new connection panic. Its client must see a reset and not an orderly end.
fn panic_one_worker(running: &Running) {
    let mut stream = connect(running);
    request(&mut stream, PANIC);
    let error = stream.read(&mut [0; 1024]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
}

/// Reads a metric of each worker.
fn metric_of_workers(running: &Running, name: &str) -> [u64; 2] {
    let page = running.admin_page("/metrics");
    [0, 1].map(|worker| {
        let start = format!("millrace_{name}{{worker=\"{worker}\"}} ");
        let line = page.lines().find_map(|line| line.strip_prefix(&start));
        line.unwrap().parse().unwrap()
    })
}

/// Reads the number of open descriptors from the metrics: a restricted process hides its /proc.
fn descriptors(running: &Running) -> usize {
    let page = running.admin_page("/metrics");
    let line = page.lines().find_map(|line| line.strip_prefix("process_open_fds "));
    line.unwrap().parse().unwrap()
}

/// Returns the engines that this machine has.
fn engines() -> Vec<&'static str> {
    let mut probe = command("forward --listen 127.0.0.1:0 --workers 1 --engine uring")
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(probe.stderr.take().unwrap()).read_line(&mut line).unwrap();
    let _ = probe.kill();
    let _ = probe.wait();
    if line.starts_with("millrace: engine uring") {
        return vec!["epoll", "uring"];
    }
    println!("skip: uring: {line}");
    vec!["epoll"]
}

fn arguments_of(engine: &str, gate: &Gate, limits: &str) -> String {
    let arguments = format!(
        "boost --origin http://{} --listen 127.0.0.1:0 --workers 2 --engine {engine} \
         --admin 127.0.0.1:0 --limit origin_idle_connections=0 {limits}",
        origin(gate)
    );
    arguments.trim_end().to_owned()
}

fn start(engine: &str, gate: &Gate, limits: &str) -> Running {
    let mut command = command(&arguments_of(engine, gate, limits));
    command.env("MILLRACE_PANIC", PANIC);
    Running::start_by(command, 1)
}

/// Returns whether this process has CAP_IPC_LOCK, as root does (capabilities(7)).
fn has_ipc_lock() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let set = status.lines().find_map(|line| line.strip_prefix("CapEff:")).unwrap();
    u64::from_str_radix(set.trim(), 16).unwrap() & (1 << 14) != 0
}

#[test]
fn a_panic_resets_only_the_clients_of_its_worker() {
    for engine in engines() {
        let gate = Gate::default();
        let mut running = start(engine, &gate, "");
        let mut clients: Vec<TcpStream> = (0..40).map(|_| connect(&running)).collect();
        for client in &mut clients {
            request(client, "/slow");
            let mut part = [0; 4096];
            client.read_exact(&mut part).unwrap();
            assert!(part.starts_with(b"HTTP/1.1 200 OK\r\n"));
        }
        let before = metric_of_workers(&running, "connections");
        assert_eq!(before[0] + before[1], 40);

        panic_one_worker(&running);
        let lines = running.line();
        let panicked = usize::from(lines.contains("worker-1: "));
        assert!(
            lines.contains(&format!("worker-{panicked}: ")) && lines.contains(MESSAGE),
            "{lines}"
        );
        let count = before[panicked] + 1;
        assert_eq!(
            running.line(),
            format!("millrace: worker {panicked} was restarted; {count} connections were reset")
        );
        let restarts = metric_of_workers(&running, "worker_restarts_total");
        assert_eq!((restarts[panicked], restarts[1 - panicked]), (1, 0));

        // Both workers serve now, including the replacement.
        let accepted = || metric_of_workers(&running, "connections_accepted_total")[panicked];
        let so_far = accepted();
        while accepted() < so_far + 3 {
            request_and_read(&mut connect(&running));
        }

        gate.open();
        let mut reset = 0;
        for mut client in clients {
            let mut rest = Vec::new();
            match client.read_rest_of_response(&mut rest) {
                Ok(()) => assert!(rest.iter().all(|byte| *byte == b's')),
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
                    reset += 1;
                }
            }
        }
        assert_eq!(reset, before[panicked]);
        running.signal("TERM");
        assert_eq!(running.end().0.code(), Some(0));
    }
}

/// Reads the rest of a slow response.
trait ReadRest {
    fn read_rest_of_response(&mut self, rest: &mut Vec<u8>) -> std::io::Result<()>;
}

impl ReadRest for TcpStream {
    fn read_rest_of_response(&mut self, rest: &mut Vec<u8>) -> std::io::Result<()> {
        // The client has read 4096 bytes of header and body. Of the rest, it receives at least this
        // many bytes, or a reset.
        rest.resize(SLOW_BYTES - 4096, 0);
        self.read_exact(rest)
    }
}

#[test]
fn twenty_panics_in_a_row_leak_nothing() {
    for engine in engines() {
        let gate = Gate::default();
        let limits = "--limit worker_restarts=1000 --limit connections_per_client=60";
        let mut running = start(engine, &gate, limits);
        // Open what the first use opens, so that it does not count as leaked.
        panic_one_worker(&running);
        request_and_read(&mut connect(&running));
        let before = wait_until_settled(&running, |_| true);
        for round in 0..20 {
            let mut clients: Vec<TcpStream> = (0..10).map(|_| connect(&running)).collect();
            for client in &mut clients {
                if round % 2 == 0 {
                    request(client, "/slow");
                    client.read_exact(&mut [0; 4096]).unwrap();
                } else {
                    request_and_read(client);
                }
            }
            // Gives the workers time to exchange the counts of these clients.
            std::thread::sleep(Duration::from_millis(150));
            panic_one_worker(&running);
        }
        for _ in 0..42 {
            let line = running.line();
            assert!(line.contains(MESSAGE) || line.contains("was restarted"), "{line}");
        }
        assert_eq!(metric_of_workers(&running, "worker_restarts_total").iter().sum::<u64>(), 21);
        gate.open();
        wait_until_settled(&running, |count| count <= before);
        // As many connections as one address may have: they fit only if no reset connection still
        // counts.
        let mut clients: Vec<TcpStream> = (0..60).map(|_| connect(&running)).collect();
        clients.iter_mut().for_each(request_and_read);
        drop(clients);
        running.signal("TERM");
        let (status, rest) = running.end();
        assert_eq!((status.code(), &rest[..]), (Some(0), "millrace: draining\n"));
    }
}

/// Waits until a condition holds.
fn wait_until(condition: impl Fn() -> bool) {
    for _ in 0..600 {
        if condition() {
            return;
        }
        std::thread::sleep(TIMEOUT / 600);
    }
    panic!("the condition did not hold in time");
}

/// Makes a given worker panic.
fn panic_worker(running: &Running, worker: usize) {
    loop {
        let before = metric_of_workers(running, "connections_accepted_total");
        let mut stream = connect(running);
        request_and_read(&mut stream);
        if metric_of_workers(running, "connections_accepted_total")[worker] > before[worker] {
            request(&mut stream, PANIC);
            assert!(stream.read(&mut [0; 1024]).is_err());
            return;
        }
    }
}

/// One client makes its worker fetch, and clients of the other worker wait for the response. Then
/// the fetching worker panics. All timeouts are longer than the test, so only the panic can end the
/// waits. `read_beginning` reads the bytes that a client gets before the panic.
fn panic_a_fetching_worker(engine: &str, target: &str, read_beginning: fn(&mut TcpStream)) {
    let gate = Gate::default();
    let running = start(engine, &gate, "--limit collapse_wait_ms=1h --limit idle_ms=1h");
    let mut first = connect(&running);
    request(&mut first, target);
    read_beginning(&mut first);
    wait_until(|| metric_of_workers(&running, "cache_misses_total") != [0; 2]);
    let fetching = metric_of_workers(&running, "cache_misses_total").iter().position(|it| *it == 1);
    let (fetching, mut clients) = (fetching.unwrap(), vec![first]);
    while metric_of_workers(&running, "connections")[1 - fetching] < 3 {
        let mut client = connect(&running);
        request(&mut client, target);
        read_beginning(&mut client);
        let count = clients.len() as u64;
        let found = ["cache_hits_total", "cache_collapsed_total"];
        let found = || found.map(|name| metric_of_workers(&running, name).iter().sum::<u64>());
        wait_until(|| found().iter().sum::<u64>() >= count);
        clients.push(client);
    }
    let waiting = metric_of_workers(&running, "connections")[1 - fetching];
    panic_worker(&running, fetching);
    let (mut completed, mut ended) = (0, 0);
    if target == "/held" {
        wait_until(|| gate.requests.load(Ordering::Relaxed) == 2);
        gate.open();
    }
    for mut client in clients {
        let mut rest = Vec::new();
        match client.read_to_end_or_ok(&mut rest) {
            Ok(true) => completed += 1,
            Ok(false) => ended += 1,
            Err(error) => assert_eq!(error.kind(), ErrorKind::ConnectionReset, "no client hangs"),
        }
    }
    let expected = if target == "/held" { (waiting, 0) } else { (0, completed + ended) };
    assert_eq!((completed, ended), expected);
    gate.open();
    running.signal("TERM");
    assert_eq!(running.end().0.code(), Some(0));
}

trait ReadOk {
    /// Returns whether the stream ends with the body of `/held`. Otherwise the connection ended.
    fn read_to_end_or_ok(&mut self, rest: &mut Vec<u8>) -> std::io::Result<bool>;
}

impl ReadOk for TcpStream {
    fn read_to_end_or_ok(&mut self, rest: &mut Vec<u8>) -> std::io::Result<bool> {
        while !rest.ends_with(b"\r\n\r\nok") {
            let mut part = [0; 4096];
            let count = self.read(&mut part)?;
            if count == 0 {
                return Ok(false);
            }
            rest.extend_from_slice(&part[..count]);
        }
        Ok(true)
    }
}

#[test]
fn waiters_fetch_after_the_fetching_worker_panicked() {
    for engine in engines() {
        panic_a_fetching_worker(engine, "/held", |_| {});
    }
}

#[test]
fn readers_end_after_the_receiving_worker_panicked() {
    for engine in engines() {
        panic_a_fetching_worker(engine, "/kept", |client| {
            client.read_exact(&mut [0; 4096]).unwrap();
        });
    }
}

/// The first version in which the kernel counts rings against RLIMIT_MEMLOCK again.
const COUNTS_SINCE: [u32; 2] = [6, 14];

#[test]
fn a_worker_without_memory_for_a_new_ring_continues_with_epoll() {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let version: Vec<u32> = release.split(['.', '-']).map_while(|it| it.parse().ok()).collect();
    if version[..] < COUNTS_SINCE[..] {
        return println!("skip: Linux {release} does not count rings against RLIMIT_MEMLOCK");
    }
    if !engines().contains(&"uring") || !has_ipc_lock() {
        return println!("skip: a start without locked memory needs io_uring and CAP_IPC_LOCK");
    }
    // The process has CAP_IPC_LOCK at the start, so the first rings do not count. It then drops it.
    let arguments = arguments_of("uring", &Gate::default(), "");
    let mut limited = Command::new("prlimit");
    limited.args(["--memlock=0:0", env!("CARGO_BIN_EXE_millrace")]).args(arguments.split(' '));
    limited.env("MILLRACE_PANIC", PANIC);
    let mut running = Running::start_by(limited, 1);
    panic_worker(&running, 0);
    assert!(running.line().contains(MESSAGE));
    let line = running.line();
    let why = "it uses epoll, as engine uring cannot be created again: out of kernel memory; \
               raise LimitMEMLOCK= of the unit or ulimit -l to use io_uring";
    assert!(
        line.starts_with("millrace: worker 0 was restarted; ") && line.ends_with(why),
        "{line}"
    );
    // The worker serves and can be restarted again.
    panic_worker(&running, 0);
    assert!(running.line().contains(MESSAGE));
    assert_eq!(running.line(), "millrace: worker 0 was restarted; 1 connections were reset");
    request_and_read(&mut connect(&running));
    running.signal("TERM");
    assert_eq!(running.end().0.code(), Some(0));
}

/// Waits until clients and origins are gone and `is_right` accepts the number of descriptors.
/// Returns that number.
fn wait_until_settled(running: &Running, is_right: impl Fn(usize) -> bool) -> usize {
    for _ in 0..600 {
        let open =
            ["connections", "origin_connections", "pipes"].map(|it| metric_of_workers(running, it));
        let count = descriptors(running);
        if open == [[0; 2]; 3] && is_right(count) {
            return count;
        }
        std::thread::sleep(TIMEOUT / 600);
    }
    panic!("{} descriptors are open", descriptors(running));
}

#[test]
fn too_many_panics_end_the_process_with_the_reason() {
    let running = start("epoll", &Gate::default(), "--limit worker_restarts=2");
    for _ in 0..3 {
        panic_one_worker(&running);
    }
    let (status, rest) = running.end();
    assert_eq!(status.code(), Some(1));
    assert!(rest.contains("cannot be restarted: more than 2 panics within a minute"), "{rest}");
}
