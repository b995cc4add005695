//! The load generator against real servers.
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

mod program;

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::Command;
use std::sync::{Arc, Condvar, Mutex, mpsc};
use std::thread;
use std::time::Duration;

use millrace_lab::load::pattern::Pattern;
use millrace_lab::load::{
    self, Arrivals, ConnectionReuse, FileSet, FileSetModel, LoadReport, LoadSettings, LoadTarget,
    Rate, RequestPlan, Surge,
};

const SECOND: Duration = Duration::from_secs(1);

/// A request that a server has read.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Seen {
    connection: SocketAddr,
    path: String,
    fields: Vec<String>,
}

/// The state of a server, with all requests that it has read.
struct Server {
    address: SocketAddr,
    seen: Arc<Mutex<Vec<Seen>>>,
}

/// Handles a request: writes the response, and returns whether the connection stays open.
type Handler = dyn Fn(&Seen, &mut TcpStream) -> bool + Send + Sync;

impl Server {
    /// Starts a server with a thread for each connection. Its threads end with the test.
    fn start(handler: impl Fn(&Seen, &mut TcpStream) -> bool + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let seen = Arc::new(Mutex::new(Vec::new()));
        let (all, handler): (_, Arc<Handler>) = (Arc::clone(&seen), Arc::new(handler));
        thread::spawn(move || {
            while let Ok((stream, _)) = listener.accept() {
                let (all, handler) = (Arc::clone(&all), Arc::clone(&handler));
                thread::spawn(move || serve(stream, &all, &*handler));
            }
        });
        Self { address, seen }
    }

    fn seen(&self) -> Vec<Seen> {
        self.seen.lock().unwrap().clone()
    }

    fn settings(&self, reuse: ConnectionReuse) -> LoadSettings {
        let target = LoadTarget::parse(&format!("http://{}/files", self.address)).unwrap();
        // A server that responds ends the run long before.
        LoadSettings { target, sources: Vec::new(), reuse, drain: 60 * SECOND }
    }
}

fn serve(mut stream: TcpStream, seen: &Mutex<Vec<Seen>>, handler: &Handler) {
    let connection = stream.peer_addr().unwrap();
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    loop {
        let mut lines = Vec::new();
        loop {
            let mut line = String::new();
            match reader.read_line(&mut line) {
                Ok(0) | Err(_) => return,
                Ok(_) if line == "\r\n" => break,
                Ok(_) => lines.push(line.trim_end().to_owned()),
            }
        }
        let path = lines.remove(0).strip_prefix("GET ").unwrap().to_owned();
        let request = Seen { connection, path, fields: lines };
        seen.lock().unwrap().push(request.clone());
        if !handler(&request, &mut stream) {
            return;
        }
    }
}

fn small_set() -> FileSet {
    FileSet::new(FileSetModel { files: 40, size_max: 200_000.0 })
}

/// Returns the number of the file that a request names.
fn file_of(request: &Seen) -> u32 {
    let name = request.path.strip_prefix("/files/").unwrap();
    name.split(' ').next().unwrap().parse().unwrap()
}

/// Writes a file of the set, with one byte changed if the file is `wrong`.
fn write_file(set: &FileSet, file: u32, wrong: Option<u32>, stream: &mut TcpStream) {
    let length = set.files()[file as usize].bytes;
    let mut body = vec![0; length as usize];
    Pattern::new().fill(file, 0, &mut body);
    if wrong == Some(file) {
        *body.last_mut().unwrap() ^= 1;
    }
    let header = format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n");
    let _ = stream.write_all(&[header.as_bytes(), &body].concat());
}

fn write_text(stream: &mut TcpStream, text: &str) {
    let _ = stream.write_all(text.as_bytes());
}

/// Many users during a short time.
fn surge(set: &FileSet) -> Surge {
    Surge::new(set.clone(), 100, SECOND / 2, 1)
}

/// 100 requests in half a second.
fn rate() -> Rate {
    Rate::new(200.0, Arrivals::Constant, SECOND / 2, 1)
}

fn assert_complete(report: &LoadReport) {
    assert!(report.is_valid(), "{report}");
    assert_eq!(report.planned, report.sent, "{report}");
    assert_eq!(report.planned, report.completed, "{report}");
    assert_eq!(report.statuses, BTreeMap::from([(200, report.planned)]));
    assert!(report.errors.is_empty() && report.unfinished == 0, "{report}");
}

#[test]
fn users_get_the_files_of_their_set() {
    for (reuse, is_persistent) in
        [(ConnectionReuse::Close, false), (ConnectionReuse::PerUser(5), true)]
    {
        let set = small_set();
        let served = set.clone();
        let server = Server::start(move |request, stream| {
            write_file(&served, file_of(request), None, stream);
            !request.fields.contains(&"Connection: close".to_owned())
        });
        let report = load::run(&mut surge(&set), &server.settings(reuse)).unwrap();
        assert_complete(&report);
        let seen = server.seen();
        assert_eq!(seen.len() as u64, report.planned);
        assert!(report.planned > 10, "{report}");
        let size = |request| set.files()[file_of(request) as usize].bytes;
        assert_eq!(report.body_bytes, seen.iter().map(size).sum());
        assert!(seen.iter().all(|request| request.path.ends_with(" HTTP/1.1")));
        let mut connections: Vec<_> = seen.iter().map(|request| request.connection).collect();
        connections.sort_unstable();
        connections.dedup();
        if !is_persistent {
            assert_eq!(connections.len() as u64, report.planned);
        }
        assert_eq!(connections.len() as u64, report.connections);
    }
}

/// Starts a server that closes its connections without a response once it has `count` requests.
fn start_silent(count: usize) -> Server {
    let all = Arc::new((Mutex::new(0), Condvar::new()));
    Server::start(move |_, _| {
        let (seen, is_last) = &*all;
        *seen.lock().unwrap() += 1;
        is_last.notify_all();
        drop(is_last.wait_while(seen.lock().unwrap(), |seen| *seen < count).unwrap());
        false
    })
}

#[test]
fn a_silent_server_gets_all_requests() {
    let set = small_set();
    for reuse in [ConnectionReuse::Http10, ConnectionReuse::PerUser(1)] {
        for is_surge in [false, true] {
            let plan = || -> Box<dyn RequestPlan> {
                if is_surge { Box::new(surge(&set)) } else { Box::new(rate()) }
            };
            let mut counted = plan();
            let count = std::iter::from_fn(|| counted.advance()).count();
            assert!(count > 10);
            // The run ends when the server has all requests. If the generator waited for
            // responses, it would end after the time for responses.
            let server = start_silent(count);
            let report = load::run(&mut *plan(), &server.settings(reuse)).unwrap();
            let count = count as u64;
            assert_eq!((report.planned, report.sent), (count, count), "{report}");
            assert_eq!((report.completed, report.unfinished), (0, 0));
            assert_eq!(report.outstanding_max, count);
            assert!(report.outstanding_mean > 1.0, "{report}");
            let error = ("closed before the response".to_owned(), count);
            assert_eq!(report.errors, BTreeMap::from([error]));
        }
    }
}

#[test]
fn a_run_ends_without_responses() {
    let server = start_silent(usize::MAX);
    let mut settings = server.settings(ConnectionReuse::Close);
    settings.drain = Duration::ZERO;
    let report = load::run(&mut rate(), &settings).unwrap();
    assert_eq!((report.planned, report.completed, report.unfinished), (100, 0, 100), "{report}");
}

#[test]
fn a_pool_bounds_connections_and_counts_the_wait() {
    let (begin, begun) = mpsc::channel();
    let begun = Mutex::new(begun);
    // The first response comes after all requests were planned.
    let server = Server::start(move |_, stream| {
        let _ = begun.lock().unwrap().recv();
        write_text(stream, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
        true
    });
    let mut plan = Announcing { rate: rate(), end: Some(begin) };
    let report = load::run(&mut plan, &server.settings(ConnectionReuse::Pool(3))).unwrap();
    assert_complete(&report);
    assert_eq!((report.planned, report.connections), (100, 3), "{report}");
    assert_eq!(report.outstanding_max, 100);
    // The first request was planned at 0 s, the last one at 0.495 s.
    assert!(report.latency.max >= Duration::from_millis(490), "{report}");
    let mut connections: Vec<_> = server.seen().iter().map(|seen| seen.connection).collect();
    connections.sort_unstable();
    connections.dedup();
    assert_eq!(connections.len(), 3);
}

/// A plan that closes a channel at its end.
struct Announcing {
    rate: Rate,
    end: Option<mpsc::Sender<()>>,
}

impl RequestPlan for Announcing {
    fn advance(&mut self) -> Option<load::plan::PlannedRequest> {
        let next = self.rate.advance();
        if next.is_none() {
            self.end = None;
        }
        next
    }

    fn time(&self) -> Duration {
        self.rate.time()
    }

    fn object_bytes(&self, _: Option<u32>) -> Option<u64> {
        None
    }
}

#[test]
fn wrong_and_cut_responses_are_counted() {
    let set = small_set();
    let most_popular = |file: &u32| set.files()[*file as usize].requests;
    let wrong = (0..40).max_by_key(most_popular).unwrap();
    let served = set.clone();
    let server = Server::start(move |request, stream| {
        write_file(&served, file_of(request), Some(wrong), stream);
        false
    });
    let report = load::run(&mut surge(&set), &server.settings(ConnectionReuse::Http10)).unwrap();
    let expected = server.seen().iter().filter(|request| file_of(request) == wrong).count();
    assert!(expected > 0);
    assert_eq!(report.wrong, expected as u64, "{report}");
    assert_eq!(report.completed, report.planned);
    assert!(!report.is_valid());

    let counter = Mutex::new(0);
    let server = Server::start(move |_, stream| {
        let mut count = counter.lock().unwrap();
        *count += 1;
        write_text(
            stream,
            match *count % 5 {
                1 => "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nbody",
                2 => "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nbo",
                3 => "HTTP/1.1 503 x\r\nContent-Length: 0\r\n\r\n",
                4 => "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nbod",
                _ => "",
            },
        );
        false
    });
    let mut plan = rate().expect_bytes(4);
    let report = load::run(&mut plan, &server.settings(ConnectionReuse::Close)).unwrap();
    assert_eq!((report.planned, report.sent, report.completed), (100, 100, 60), "{report}");
    assert_eq!((report.cut, report.unfinished), (20, 0));
    assert_eq!(report.statuses, BTreeMap::from([(200, 40), (503, 20)]));
    assert_eq!(report.wrong, 20);
    let errors = [("closed before the response", 20), ("closed within the response", 20)];
    let errors = errors.map(|(kind, count)| (kind.to_owned(), count));
    assert_eq!(report.errors, BTreeMap::from(errors));
}

#[test]
fn responses_have_the_length_of_the_first_one() {
    let counter = Mutex::new(0);
    let server = Server::start(move |_, stream| {
        *counter.lock().unwrap() += 1;
        let body = if *counter.lock().unwrap() % 10 == 0 { "short" } else { "longer" };
        write_text(stream, &format!("HTTP/1.0 200 OK\r\n\r\n{body}"));
        false
    });
    // One connection at a time, so that responses are in the order of requests.
    let report = load::run(&mut rate(), &server.settings(ConnectionReuse::Pool(1))).unwrap();
    assert_eq!((report.completed, report.wrong, report.connections), (100, 10, 100), "{report}");
}

#[test]
fn refused_connections_are_errors() {
    let server = Server::start(|_, _| false);
    let unused = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    for reuse in [ConnectionReuse::Close, ConnectionReuse::Pool(2)] {
        let mut settings = server.settings(reuse);
        settings.target = LoadTarget::parse(&format!("http://{unused}/")).unwrap();
        let report = load::run(&mut rate(), &settings).unwrap();
        assert_eq!((report.planned, report.sent, report.unfinished), (100, 0, 0), "{report}");
        let kind = "connect: Connection refused (os error 111)".to_owned();
        assert_eq!(report.errors, BTreeMap::from([(kind, 100)]));
        assert!(report.is_valid(), "errors of the server are no fault of the run");
    }
}

#[test]
fn source_addresses_are_used_in_turn() {
    let server = Server::start(|_, stream| {
        write_text(stream, "HTTP/1.1 204 x\r\n\r\n");
        false
    });
    let mut settings = server.settings(ConnectionReuse::Close);
    settings.sources = ["127.0.0.2", "127.0.0.3"].map(|ip| ip.parse().unwrap()).to_vec();
    let report = load::run(&mut rate(), &settings).unwrap();
    assert_eq!(report.statuses, BTreeMap::from([(204, 100)]), "{report}");
    for source in &settings.sources {
        let seen = server.seen();
        let count = seen.iter().filter(|request| request.connection.ip() == *source).count();
        assert_eq!(count, 50, "{source}");
    }
}

#[test]
fn the_command_prints_results() {
    let server = Server::start(|_, stream| {
        write_text(stream, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
        true
    });
    let url = format!("http://{}/x?y", server.address);
    let arguments = ["rate", &url, "--rate", "100", "--seconds", "0.1", "--connections", "4"];
    let more = [
        "--json",
        "--header",
        "Host: a",
        "--header",
        "B: c",
        "--arrivals",
        "constant",
        "--bytes",
        "2",
    ];
    let (status, output, error) = program::run("load", &[&arguments[..], &more].concat());
    assert_eq!((status, error.as_str()), (Some(0), ""));
    let begin = "{\"planned\":10,\"sent\":10,\"completed\":10,\"wrong\":0,\"cut\":0,";
    assert!(output.starts_with(begin), "{output}");
    assert!(output.ends_with("\"statuses\":{\"200\":10},\"failure\":null}\n"), "{output}");
    let seen = server.seen();
    assert_eq!(seen.len(), 10);
    assert!(seen.iter().all(|seen| seen.path == "/x?y HTTP/1.1"));
    assert_eq!(seen[0].fields, ["Host: a", "B: c"]);

    // No machine has this address, and no documentation uses it (RFC 5737).
    let arguments = ["rate", &url, "--rate", "9", "--seconds", "9", "--bind", "192.0.2.1"];
    let (status, output, _) = program::run("load", &arguments);
    assert_eq!(status, Some(1));
    assert!(output.contains("\nFAILED      with 0 open connections, connect: "), "{output}");
    assert!(output.starts_with("requests    1 planned, 0 sent, 0 completed\n"), "{output}");
}

#[test]
fn the_bound_of_descriptors_fails_the_run() {
    let server = Server::start(|_, stream| {
        let _ = stream.read(&mut [0]);
        false
    });
    let program = env!("CARGO_BIN_EXE_millrace-lab");
    let url = format!("http://{}/", server.address);
    let script = "ulimit -n 30; exec \"$0\" load rate \"$1\" --rate 1000 --seconds 60";
    let output = Command::new("sh").args(["-c", script, program, &url]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains(" open connections, connect: Too many open files"), "{text}");
}

#[test]
fn written_files_are_those_of_the_set() {
    let directory = std::env::temp_dir().join(format!("millrace-load-{}", std::process::id()));
    std::fs::create_dir(&directory).unwrap();
    let set = small_set();
    let written = set.write(&directory);
    let read = |number: usize| std::fs::read(directory.join(number.to_string())).unwrap();
    let files: Vec<Vec<u8>> = (0..set.files().len()).map(read).collect();
    std::fs::remove_dir_all(&directory).unwrap();
    written.unwrap();
    let pattern = Pattern::new();
    for (number, (file, bytes)) in set.files().iter().zip(&files).enumerate() {
        assert_eq!(bytes.len() as u64, file.bytes);
        assert!(pattern.matches(number as u32, 0, bytes), "{number}");
    }
}

#[test]
fn wrong_options_are_named() {
    let url = "http://127.0.0.1:9/";
    for (arguments, message) in [
        (&[][..], "[] is no load (expected: files DIR, surge URL, rate URL)"),
        (&["flood", url, "--seconds", "1"], "\"flood\" is no load (expected: files DIR,"),
        (&["rate", "x", "--rate", "1"], "\"x\" is no URL of a server (expected: http://ADDRESS"),
        (&["rate", url, "--rate", "1"], "--seconds is needed"),
        (&["rate", url, "--seconds", "1"], "--rate is needed"),
        (&["surge", url, "--seconds", "1"], "--users is needed"),
        (&["rate", url, "--rate", "0"], "--rate: \"0\" is no rate"),
        (&["rate", url, "--seconds", "-1"], "--seconds: \"-1\" is no time"),
        (&["rate", url, "--seconds", "0"], "--seconds: \"0\" is no time"),
        (&["rate", url, "--arrivals", "x"], "--arrivals: \"x\" is no kind (expected: constant,"),
        (&["rate", url, "--http10", "--connections", "2"], "use of connections: given twice"),
        (&["files", "x", "--preset", "y"], "--preset: \"y\" is no preset (expected: booster,"),
        (&["rate", url, "--speed", "1"], "\"--speed\" is no option (expected: --preset,"),
        (&["rate", url, "--seed"], "--seed needs a value"),
    ] {
        let (status, _, error) = program::run("load", arguments);
        assert_eq!(status, Some(2), "{arguments:?}");
        assert!(error.starts_with(&format!("millrace-lab: load: {message}")), "{error}");
    }
}
