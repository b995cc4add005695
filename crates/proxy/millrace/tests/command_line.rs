//! The program as its users see it: command lines, output and exit statuses.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;

use std::fs::Permissions;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{ChildStdout, Output};

use support::{Folder, Running, command, get};

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../..");

fn output(words: &str) -> Output {
    command(words).output().expect("the program starts")
}

/// Asserts that a command line fails with `status` and an error of one line with all `parts`.
fn refused(words: &str, status: i32, parts: &[&str]) {
    let output = output(words);
    let line = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(status), "millrace {words} says {line:?}");
    assert!(line.starts_with("millrace: ") && line.lines().count() == 1, "{words}: {line:?}");
    assert!(output.stdout.is_empty(), "{words}");
    for part in parts {
        assert!(line.contains(part), "millrace {words} says {line:?}, not {part:?}");
    }
}

#[test]
fn an_unknown_word_is_an_error_of_one_line_with_status_2() {
    for (words, parts) in [
        (
            "proxy .",
            &["millrace: unknown command \"proxy\"", "forward, boost, serve, run, check"][..],
        ),
        ("forwad", &["did you mean \"forward\"?"]),
        (
            "frwd",
            &["unknown command \"frwd\"; did you mean \"forward\"? (expected: forward, boost,"],
        ),
        ("forward --prot 1", &["unknown option \"--prot\"", "\"millrace forward --help\""]),
        ("forward --lisen 1", &["did you mean \"--listen\"?", "\"millrace forward --help\""]),
        (
            "forward extra",
            &["forward: unknown argument \"extra\" (expected: an option that \"millrace forward"],
        ),
        (
            "forward --tls-cert x",
            &["unknown option \"--tls-cert\" (expected: an option that \"millrace"],
        ),
        (
            "forward --origin http://a",
            &["forward: --origin is an option of boost, serve only (exp"],
        ),
        ("boost --auth-file F", &["boost: --auth-file is an option of forward only (expected:"]),
        (
            "boost --path-strict off",
            &[
                "boost: --path-strict is a key of files only (expected: path-strict in [[boost]] and",
            ],
        ),
        ("forward --name a", &["forward: --name is a key of files only (expected: name in [["]),
        ("run --config x", &["run: unknown option \"--config\"", "(expected: millrace run FILE)"]),
        ("run", &["the file is missing"]),
        ("serve", &["serve: the folder is missing (expected: millrace serve DIR)"]),
        (
            "demo --listen 0.0.0.0:80",
            &["demo: --listen is an option of forward, boost, serve only"],
        ),
        ("reference latin", &["unknown page \"latin\"", "man, toml, markdown"]),
    ] {
        refused(words, 2, parts);
    }
}

#[test]
fn a_wrong_value_is_an_error_of_one_line_with_status_2() {
    for (words, parts) in [
        ("forward --listen [::1]", &["--listen: \"[::1]\" has no port"][..]),
        ("forward --workers", &["--workers: has no value", "1 to 1024"]),
        ("forward --workers 0", &["--workers: \"0\" is too small", "1 to 1024"]),
        ("forward --workers 1 --workers 2", &["--workers: is given twice"]),
        ("forward --memory lots", &["--memory: \"lots\" is not a size"]),
        (
            "forward --engine kqueue",
            &["--engine: \"kqueue\"", "(expected: auto, epoll, uring, uselect, poll, select)"],
        ),
        (
            "forward --memory 1GB",
            &["--memory: \"1GB\" has a unit of more", "; did you mean \"1G\"? (expected: 1M"],
        ),
        ("forward --memory 512MiB", &["did you mean \"512M\"?"]),
        (
            "forward --cache-ttl 60",
            &[
                "--cache-ttl: \"60\" has no default or override before",
                "; did you mean \"default 60s\" or \"override 60s\"? (expected: [STATUS] origin",
            ],
        ),
        (
            "forward --cache=false",
            &["--cache: \"false\" is neither on nor off (expected: on, off)"],
        ),
        ("forward --access-log=false", &["--access-log: \"false\" is neither a path nor off"]),
        (
            "forward --listen 3000",
            &["\"3000\" is a port without an address; did you mean \"127.0.0.1:3000\"?"],
        ),
        (
            "forward --listen 127.0.0.1:80a",
            &["--listen: \"127.0.0.1:80a\" has a port that is not a"],
        ),
        ("forward --listen 0.0.0.0:0", &["--listen", "other machines", "--allow-client CIDR"]),
        ("forward --allow-client 10.0.0.1/8", &["--allow-client", "ADDRESS/BITS"]),
        ("forward --allow-target x", &["--allow-target: \"x\""]),
        ("forward --allow-port 70000", &["--allow-port: \"70000\"", "1 to 65535"]),
        ("forward --limit idle_ms=0", &["--limit idle_ms: \"0\" is too small", "100ms to 24h"]),
        ("forward --limit nothing=1", &["--limit: unknown limit \"nothing\"", "idle_ms"]),
        (
            "forward --admin 9180",
            &["--admin: \"9180\" is a port without", "\"127.0.0.1:9180\"?", "off"],
        ),
        ("forward --auth-file /no/x", &["millrace: --auth-file /no/x: No such file"]),
        ("forward --access-log /no/x", &["millrace: --access-log /no/x: /no: No such file"]),
        (
            "forward --admin-token-file /no/x",
            &["millrace: --admin-token-file /no/x: cannot be read"],
        ),
        ("cache stat --token-file /no/x", &["millrace: --token-file /no/x: cannot be read"]),
        ("forward --log-format xml", &["--log-format: \"xml\"", "common, combined, json"]),
        ("forward --congestion no-such", &["--congestion: \"no-such\" is not available", "reno"]),
    ] {
        refused(words, 2, parts);
    }
}

#[test]
fn errors_of_cache_and_boost_are_one_line_with_status_2() {
    for (words, parts) in [
        (
            "cache purge /a.html",
            &["URL: \"/a.html\" is not a URL (expected: http[s]://HOST[:PORT]/PATH)"][..],
        ),
        (
            "cache list --limit 0",
            &["--limit: \"0\" is too small (expected: a whole number from 1 to"],
        ),
        (
            "cache purge --group g",
            &["--group: needs --site (expected: --group GROUP --site http[s]:"],
        ),
        ("serve /no/such", &["millrace: DIR: cannot open the folder \"/no/such\": No such file"]),
        ("serve . --hide a/b", &["--hide: \"a/b\" has a slash (expected: a name without a slash"]),
        ("boost", &["--origin is missing", "http://HOST"]),
        ("reverse", &["--origin is missing", "http://HOST"]),
        ("reverse --origi a", &["reverse: unknown option \"--origi\"", "\"--origin\"?"]),
        ("boost --origin ftp://a", &["--origin: \"ftp://a\"", "http://HOST"]),
        ("boost --origin http://a/b", &["--origin: \"http://a/b\" has a path"]),
        ("boost --origin http://a --balance best", &["--balance", "least-outstanding"]),
        (
            "boost --origin http://a --host-header mine",
            &["--host-header: \"mine\"", "client, origin"],
        ),
        ("boost --origin http://a --congestion a,b", &["--congestion: \"a,b\"", "system, auto"]),
        ("boost --origin http://a --proxy-protocol", &["--proxy-protocol", "--trust CIDR"]),
        ("boost --origin http://a --listen [::1]:5 --admin [::1]:5", &["[::1]:5 is used twice"]),
    ] {
        refused(words, 2, parts);
    }
}

#[test]
fn a_failed_write_is_an_error_and_a_closed_pipe_is_not() {
    let folder = Folder::new("full");
    let file = folder.file("a.toml", "[[forward]]\n");
    for words in [&format!("check {file}")[..], "--help", "forward --help", "--version", "doctor"] {
        let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
        let full = command(words).stdout(full).output().unwrap();
        let error = String::from_utf8(full.stderr).unwrap();
        assert_eq!(full.status.code(), Some(1), "{words}");
        assert!(
            error.starts_with("millrace: cannot write to standard output: No space"),
            "{error}"
        );
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let closed = command(words).stdout(writer).output().unwrap();
        assert_eq!((closed.status.code(), &closed.stderr[..]), (Some(0), &b""[..]), "{words}");
    }
}

#[test]
fn help_is_a_command_too() {
    let page = output("help boost");
    assert!(page.status.success() && page.stdout == output("boost --help").stdout);
    assert!(output("help").stdout == output("--help").stdout);
    assert!(output("reverse --help").stdout == page.stdout);
    refused("help nothing", 2, &["unknown command \"nothing\"", "forward, boost"]);
}

#[test]
fn the_first_table_above_the_bound_is_named() {
    let folder = Folder::new("tables");
    let file = folder.file("big.toml", "[[boost]]\n".to_owned() + &"[[boost.route]]\n".repeat(300));
    let part = "big.toml:258: route: is one of 300 tables of this name (expected: up to 256)";
    refused(&format!("check {file}"), 2, &[part]);
}

#[test]
fn a_token_file_that_others_can_read_is_refused() {
    let folder = Folder::new("token");
    let file = folder.file("token", "0123456789abcdef\n");
    let words = format!("forward --listen 127.0.0.1:0 --admin-token-file {file}");
    for (mode, text, part) in [
        (0o644, "0123456789abcdef\n", "has permissions for other users (mode 644)"),
        (0o600, "short\n", "contains a token that is too short"),
        (0o600, "0123456789abcdef\nmore\n", "more than one line"),
    ] {
        std::fs::write(&file, text).unwrap();
        std::fs::set_permissions(&file, Permissions::from_mode(mode)).unwrap();
        refused(&words, 2, &["admin-token-file", part, "chmod 600"]);
    }
    refused("forward --admin-token-file /nowhere", 2, &["/nowhere: cannot be read: No such"]);
}

#[test]
fn an_error_of_a_file_names_file_line_and_key() {
    let folder = Folder::new("files");
    for (text, parts) in [
        (&b"workers = 0\n[[forward]]"[..], &[":1: workers: \"0\"", "1 to 1024"][..]),
        (b"[[forward]]\nlisen = 1", &[":2: unknown key \"lisen\"", "did you mean \"listen\"?"]),
        (b"[limits]\nhead_ms = '1d'\n[[forward]]", &[":2: head_ms", "100ms to 1h"]),
        (b"[[forward]]\norigin-congestion = 1", &["origin-congestion: \"1\"", "system, auto"]),
        (b"[[forward]]\ncongestion = 'no-such'", &["wrong.toml:2: congestion: ", "reno"]),
        (b"[[forward]\n", &[":1: ", "TOML"]),
        (b"workers = 2", &["no service", "[[forward]]"]),
        (b"\xff", &["is not UTF-8"]),
    ] {
        let file = folder.file("wrong.toml", text);
        let named: Vec<String> = parts
            .iter()
            .map(
                |part| if part.starts_with(':') { format!("{file}{part}") } else { (*part).into() },
            )
            .collect();
        let named: Vec<&str> = named.iter().map(String::as_str).collect();
        refused(&format!("check {file}"), 2, &named);
        refused(&format!("run {file}"), 2, &named);
    }
    refused("check /nowhere.toml", 2, &["/nowhere.toml: No such file", "a readable file"]);
    refused("run /", 2, &["/: Is a directory"]);
    refused("check /dev/zero", 2, &["/dev/zero: "]);
}

#[test]
fn every_example_passes_check_and_its_output_is_an_equal_configuration() {
    let folder = Folder::new("examples");
    for name in ["www", "dokuwiki", "app/dist/assets"] {
        std::fs::create_dir_all(folder.0.join(name)).unwrap();
    }
    let served = format!("\"{}/", folder.0.display());
    let mut count = 0;
    for entry in std::fs::read_dir(Path::new(ROOT).join("examples")).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|extension| extension != "toml") {
            continue;
        }
        // The folders that they serve have to exist.
        let text = std::fs::read_to_string(&path).unwrap().replace("\"/srv/", &served);
        let example = folder.file("example.toml", text.as_bytes());
        let checked = output(&format!("check {example}"));
        assert!(checked.status.success(), "{path:?}: {:?}", String::from_utf8(checked.stderr));
        let again = output(&format!("check {}", folder.file("again.toml", &checked.stdout)));
        assert_eq!(String::from_utf8(again.stdout), String::from_utf8(checked.stdout));
        count += 1;
    }
    assert!(count >= 4);
    let example = Path::new(ROOT).join("examples/boost.toml");
    let checked = output(&format!("check {} --workers 3", example.display()));
    assert!(String::from_utf8(checked.stdout).unwrap().contains("\nworkers = 3\n"));
}

#[test]
fn help_version_and_reference_are_printed() {
    for command in ["forward", "boost", "serve", "run", "check", "doctor", "demo"] {
        let help = output(&format!("{command} --help"));
        let text = String::from_utf8(help.stdout).unwrap();
        assert!(help.status.success() && text.contains(&format!("Usage: millrace {command}")));
        assert!(text.lines().all(|line| line.len() <= 100), "{text}");
    }
    for command in ["forward", "boost", "reverse", "serve", "run", "check", "doctor"] {
        let text = String::from_utf8(output(&format!("{command} -h")).stdout).unwrap();
        let options = text.lines().filter(|line| line.starts_with("      --"));
        assert!(text.lines().count() <= 48 && options.count() <= 20, "{text}");
        assert!(text.contains("\nExamples:\n  millrace "), "{text}");
    }
    let text = String::from_utf8(output("").stdout).unwrap();
    assert!(text.lines().count() <= 24 && text == String::from_utf8(output("-h").stdout).unwrap());
    let text = String::from_utf8(output("--help").stdout).unwrap();
    assert!(text.contains("boost") && !text.contains("reference"));
    let version = String::from_utf8(output("--version").stdout).unwrap();
    assert_eq!(version, concat!("millrace ", env!("CARGO_PKG_VERSION"), "\n"));
    // A test beside the table compares the pages with the files of the project.
    for name in ["man", "toml", "markdown"] {
        let page = output(&format!("reference {name}"));
        assert!(page.status.success() && page.stdout.len() > 1000, "{name}");
    }
}

#[test]
fn the_doctor_reports_its_findings() {
    let found = output("doctor --limit connections=100");
    let text = String::from_utf8(found.stdout).unwrap();
    assert!(found.status.success(), "{text}");
    for name in [
        "kernel",
        "engine",
        "hot bodies",
        "workers",
        "descriptors",
        "memory",
        "name servers",
        "congestion",
    ] {
        assert!(text.contains(name), "{name} is missing in {text}");
    }
    refused("doctor --engine kqueue", 2, &["auto, epoll"]);
}

#[test]
fn an_address_in_use_is_an_error_of_one_line_with_status_1() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    let word = format!("cannot listen on {address}: address already in use");
    for workers in [1, 2] {
        refused(&format!("forward --workers {workers} --listen {address}"), 1, &[&word]);
        let admin = format!("forward --workers {workers} --listen 127.0.0.1:0 --admin {address}");
        refused(&admin, 1, &[&word]);
    }
    let running = Running::start("forward --workers 2 --listen 127.0.0.1:0", 1);
    let address = &running.addresses[0];
    let word = format!("cannot listen on {address}: address already in use");
    refused(&format!("forward --workers 2 --listen {address}"), 1, &[&word]);
}

#[test]
fn check_and_run_report_what_the_machine_lacks() {
    let folder = Folder::new("lacks");
    let boost =
        "[[boost]]\nlisten = [\"127.0.0.1:0\"]\n[[boost.route]]\norigins = [\"http://a\"]\n";
    for (line, word) in [
        ("access-log = \"/nowhere/a.log\"", "access-log /nowhere/a.log: /nowhere: No such file"),
        ("user = \"no-such-user\"", "user: /etc/passwd has no \"no-such-user\""),
        ("admin = [\"unix:/nowhere/a\"]", "admin unix:/nowhere/a: /nowhere: No such file"),
    ] {
        let file = folder.file("a.toml", format!("{line}\n{boost}"));
        for command in ["check", "run"] {
            refused(&format!("{command} {file}"), 2, &[word]);
        }
    }
    refused("forward --listen unix:/nowhere/a", 2, &["listen unix:/nowhere/a: /nowhere: No such"]);
}

#[test]
fn it_prints_its_addresses_and_exits_with_0_after_sigterm() {
    let folder = Folder::new("run");
    let socket = folder.0.join("socket");
    let words = format!(
        "boost --origin http://127.0.0.1:1 --listen 127.0.0.1:0 --listen [::1]:0 \
         --listen unix:{} --workers 2 --admin 127.0.0.1:0",
        socket.display()
    );
    for signal in ["TERM", "INT"] {
        let running = Running::start(&words, 3);
        for address in &running.addresses[..2] {
            assert!(!address.ends_with(":0"), "{address}");
            TcpStream::connect(address).unwrap();
        }
        UnixStream::connect(&socket).unwrap();
        let metrics = running.admin_page("/metrics");
        assert!(metrics.contains("\nmillrace_connections_accepted_total{worker=\"1\"} "));
        assert!(running.admin_page("/healthz").starts_with("HTTP/1.1 200 OK\r\n"));
        let config = running.admin_page("/config");
        let (_, config) = config.split_once("\r\n\r\n").unwrap();
        assert!(config.contains(&running.addresses[0]));
        assert!(output(&format!("check {}", folder.file("a.toml", config))).status.success());
        running.signal(signal);
        let (status, rest) = running.end();
        assert_eq!(status.code(), Some(0), "{signal}: {rest}");
        assert!(!socket.exists());
    }
}

/// Sends a request through `running`. Returns the client, which waits for the response, and the
/// connection on which `origin` received the request.
fn start_request(origin: &TcpListener, running: &Running) -> (TcpStream, TcpStream) {
    let mut client = TcpStream::connect(&running.addresses[0]).unwrap();
    client.write_all(b"GET /slow HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    let (mut origin_stream, _) = origin.accept().unwrap();
    read_head(&mut origin_stream);
    (client, origin_stream)
}

/// Reads exactly the header section of a message.
fn read_head(stream: &mut TcpStream) {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        head.extend_from_slice(&byte);
    }
}

#[test]
fn a_large_body_moves_through_a_pipe() {
    let origin = TcpListener::bind("127.0.0.1:0").unwrap();
    let words = format!(
        "boost --origin http://{} --listen 127.0.0.1:0 --workers 1 --admin 127.0.0.1:0",
        origin.local_addr().unwrap()
    );
    let running = Running::start(&words, 1);
    let (mut client, mut origin_stream) = start_request(&origin, &running);
    let body: Vec<u8> = (0..1_000_000_u32).flat_map(u32::to_le_bytes).collect();
    let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len());
    let whole = [head.as_bytes(), &body].concat();
    let writing = std::thread::spawn(move || origin_stream.write_all(&whole).unwrap());
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        client.read_exact(&mut byte).unwrap();
        head.push(byte[0]);
    }
    let mut got = vec![0; body.len()];
    client.read_exact(&mut got).unwrap();
    assert!(got == body);
    writing.join().unwrap();
    let spliced = metric(&running, "spliced_bytes_total");
    assert!(spliced > 0 && spliced < body.len(), "{spliced}");
}

fn metric(running: &Running, name: &str) -> usize {
    let metrics = running.admin_page("/metrics");
    let name = format!("millrace_{name}{{");
    let line = metrics.lines().find(|line| line.starts_with(&name));
    line.unwrap().rsplit(' ').next().unwrap().parse().unwrap()
}

/// Starts a reverse proxy in front of `origin`. Returns it and its access log.
fn start_with_log(origin: &TcpListener, words: &str) -> (Running, BufReader<ChildStdout>) {
    let words = format!(
        "boost --origin http://{} --listen 127.0.0.1:0 --workers 1 --admin 127.0.0.1:0 \
         --access-log - --log-format json {words}",
        origin.local_addr().unwrap()
    );
    let mut running = Running::start(&words, 1);
    let log = BufReader::new(running.child.stdout.take().unwrap());
    (running, log)
}

/// Sends a response with these fields and a body that follows once the client has the header
/// section. Returns the program, which was started with `words`, and its record in the access log.
fn forwarded(body: usize, fields: &str, words: &str) -> (Running, String) {
    let origin = TcpListener::bind("127.0.0.1:0").unwrap();
    let (running, mut log) = start_with_log(&origin, words);
    let (mut client, mut origin_stream) = start_request(&origin, &running);
    let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {body}\r\n{fields}\r\n");
    origin_stream.write_all(head.as_bytes()).unwrap();
    read_head(&mut client);
    let sent: Vec<u8> = (0..body).map(|at| (at % 251) as u8).collect();
    let (writing, mut got) = (sent.clone(), vec![0; body]);
    let writing = std::thread::spawn(move || origin_stream.write_all(&writing).unwrap());
    client.read_exact(&mut got).unwrap();
    writing.join().unwrap();
    assert!(got == sent, "{body} bytes, {words}");
    let mut record = String::new();
    log.read_line(&mut record).unwrap();
    (running, record)
}

/// Returns the value of a number in a record.
fn number_in(record: &str, name: &str) -> usize {
    let (_, rest) = record.split_once(&format!("\"{name}\":")).unwrap();
    rest.split_once([',', '}']).unwrap().0.parse().unwrap()
}

/// Returns the spliced bytes of a body, from metrics and access log; the rest is copied.
fn spliced_of(body: usize, splice: &str) -> usize {
    let (running, record) = forwarded(body, "", &format!("--no-cache --splice {splice}"));
    let [copied, spliced, calls] =
        ["bytes_copied", "bytes_spliced", "calls"].map(|name| number_in(&record, name));
    assert_eq!(copied + spliced, body, "{record}");
    assert_eq!((number_in(&record, "bytes_teed"), number_in(&record, "bytes_to_cache")), (0, 0));
    assert_eq!(metric(&running, "copied_bytes_total"), copied);
    assert_eq!(metric(&running, "spliced_bytes_total"), spliced);
    assert_eq!(metric(&running, "transfer_syscalls_total"), calls);
    assert!(splice != "never" || metric(&running, "pipes") == 0);
    spliced
}

#[test]
fn the_splice_option_decides_which_bodies_are_spliced() {
    assert_eq!(spliced_of(3000, "fixed"), 0);
    assert!(spliced_of(1 << 20, "fixed") > 0);
    assert!(spliced_of(1 << 20, "calibrated") > 0);
    assert_eq!(spliced_of(1 << 20, "never"), 0);
    // In some runs a few bytes are copied: a receive after a poll without an event may find bytes
    // that have arrived in the meantime.
    for body in [1, 3000, 1 << 20] {
        assert!((0..5).any(|_| spliced_of(body, "always") == body));
    }
}

#[test]
fn teed_bytes_are_reported() {
    let fields = "Cache-Control: max-age=60\r\n";
    let (running, record) = forwarded(1 << 20, fields, "--splice always");
    assert_eq!(number_in(&record, "bytes_to_cache"), 1 << 20);
    let teed = number_in(&record, "bytes_teed");
    let [copied, spliced] = ["bytes_copied", "bytes_spliced"].map(|name| number_in(&record, name));
    assert!(teed > 0 && teed <= spliced && copied + spliced == 1 << 20, "{record}");
    assert_eq!(metric(&running, "teed_bytes_total"), teed);
    let (running, record) = forwarded(1 << 20, fields, "--splice never");
    assert_eq!(
        (number_in(&record, "bytes_to_cache"), number_in(&record, "bytes_teed")),
        (1 << 20, 0)
    );
    assert_eq!(number_in(&record, "bytes_copied"), 1 << 20);
    assert_eq!(metric(&running, "teed_bytes_total"), 0);
}

#[test]
fn bytes_of_a_cut_body_are_reported() {
    const SENT: usize = 40_000;
    let origin = TcpListener::bind("127.0.0.1:0").unwrap();
    let (running, mut log) = start_with_log(&origin, "");
    for fields in ["Cache-Control: max-age=60", "Cache-Control: no-store"] {
        for _ in 0..10 {
            let (mut client, mut origin_stream) = start_request(&origin, &running);
            // The FIN follows the last byte.
            let head = format!("HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n{fields}\r\n\r\n");
            origin_stream.write_all(&[head.as_bytes(), &[7; SENT]].concat()).unwrap();
            drop(origin_stream);
            read_head(&mut client);
            let mut got = Vec::new();
            client.read_to_end(&mut got).unwrap();
            assert_eq!(got.len(), SENT, "{fields}");
        }
    }
    for kept in [[SENT; 10], [0; 10]].concat() {
        let mut record = String::new();
        log.read_line(&mut record).unwrap();
        assert_eq!(number_in(&record, "bytes_to_client"), SENT, "{record}");
        assert_eq!(number_in(&record, "bytes_to_cache"), kept, "{record}");
    }
    assert_eq!(metric(&running, "downloaded_bytes_total"), 20 * SENT);
}

/// Fetches a body of each length into the cache, then requests it three times more. Returns the
/// bytes that were copied in each of these hits. The last hit is a range without the first byte.
fn copied_of_hits<const N: usize>(bodies: [usize; N], send: &str) -> [[usize; 3]; N] {
    let origin = TcpListener::bind("127.0.0.1:0").unwrap();
    let (running, mut log) = start_with_log(&origin, &format!("--cache-send {send}"));
    for (index, body) in bodies.into_iter().enumerate() {
        let sent: Vec<u8> = (0..body).map(|at| (at % 251) as u8).collect();
        let response = format!(
            "HTTP/1.1 200 OK\r\nContent-Length: {body}\r\nCache-Control: max-age=60\r\n\r\n"
        );
        let response = [response.as_bytes(), &sent].concat();
        let mut client = TcpStream::connect(&running.addresses[0]).unwrap();
        let mut origin = Some(&origin);
        for first in [0, 0, 0, 1] {
            let range = if first > 0 { "Range: bytes=1-\r\n" } else { "" };
            let request = format!("GET /{index} HTTP/1.1\r\nHost: a\r\n{range}\r\n");
            client.write_all(request.as_bytes()).unwrap();
            // The origin sees the first request only.
            let writing = origin.take().map(|origin| {
                let (mut origin_stream, _) = origin.accept().unwrap();
                read_head(&mut origin_stream);
                let response = response.clone();
                std::thread::spawn(move || origin_stream.write_all(&response).unwrap())
            });
            read_head(&mut client);
            let mut got = vec![0; body - first];
            client.read_exact(&mut got).unwrap();
            assert!(got == sent[first..], "{body} bytes, {send}");
            if let Some(writing) = writing {
                writing.join().unwrap();
            }
        }
    }
    bodies.map(|_| {
        let [_, hits @ ..] = [(); 4].map(|()| {
            let mut record = String::new();
            log.read_line(&mut record).unwrap();
            number_in(&record, "bytes_copied")
        });
        hits
    })
}

#[test]
fn cache_send_decides_how_hot_bodies_are_sent() {
    let bodies @ [short, medium, large] = [1 << 10, 64 << 10, 1 << 20];
    let of_short = [short, short, short - 1];
    let copied = [of_short, [0, medium, 0], [0, large, 0]];
    assert_eq!(copied_of_hits(bodies, "copy"), copied);
    let zero_copy = [of_short, [0; 3], [0; 3]];
    assert_eq!(copied_of_hits(bodies, "zero-copy"), zero_copy);
    for (index, measured) in copied_of_hits(bodies, "auto").into_iter().enumerate() {
        assert!(measured == copied[index] || measured == zero_copy[index], "{measured:?}");
    }
    let words = "boost --origin http://127.0.0.1:1 --listen 127.0.0.1:0 --cache-send copy";
    let mut running = Running::start(words, 0);
    // The choice is printed before the addresses.
    let lines = std::iter::from_fn(|| Some(running.line()));
    let lines: Vec<String> = lines.take_while(|line| !line.contains("listening on")).collect();
    let expected = "millrace: hot bodies by copy (configured)";
    assert!(lines.iter().any(|line| line == expected), "{lines:?}");
}

#[test]
fn bytes_that_a_client_did_not_receive_are_not_reported_as_sent() {
    const BODY: usize = 16 << 20;
    for words in ["--splice always --no-cache", "--splice never --no-cache", "--splice fixed"] {
        let origin = TcpListener::bind("127.0.0.1:0").unwrap();
        let (running, mut log) = start_with_log(&origin, words);
        let (mut client, mut origin_stream) = start_request(&origin, &running);
        let fields = format!("Content-Length: {BODY}\r\nCache-Control: max-age=60\r\n");
        let head = format!("HTTP/1.1 200 OK\r\n{fields}\r\n");
        let writing = std::thread::spawn(move || {
            // The proxy resets the connection, or reads the body to its end for the cache.
            let _ = origin_stream
                .write_all(head.as_bytes())
                .and_then(|()| origin_stream.write_all(&[7; BODY]));
        });
        let mut got = vec![0; 1 << 20];
        client.read_exact(&mut got).unwrap();
        drop(client);
        let mut record = String::new();
        log.read_line(&mut record).unwrap();
        writing.join().unwrap();
        let sent = number_in(&record, "bytes_to_client");
        assert!((got.len() / 2..BODY).contains(&sent), "{words}: {record}");
        assert_eq!(metric(&running, "downloaded_bytes_total"), sent, "{words}: {record}");
        let spliced = number_in(&record, "bytes_spliced");
        assert_eq!(metric(&running, "spliced_bytes_total"), spliced, "{words}: {record}");
        assert!(spliced <= sent, "{words}: {record}");
    }
}

#[test]
fn a_request_in_progress_is_finished_before_the_end() {
    let origin = TcpListener::bind("127.0.0.1:0").unwrap();
    let words = format!(
        "boost --origin http://{} --listen 127.0.0.1:0 --admin 127.0.0.1:0 --workers 2",
        origin.local_addr().unwrap()
    );
    let mut running = Running::start(&words, 1);
    let (mut client, mut origin_stream) = start_request(&origin, &running);
    running.signal("TERM");
    assert_eq!(running.line(), "millrace: draining");
    assert!(running.admin_page("/healthz").starts_with("HTTP/1.1 503 "));
    origin_stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nlate").unwrap();
    let mut response = String::new();
    client.read_to_string(&mut response).unwrap();
    assert!(
        response.starts_with("HTTP/1.1 200 OK\r\n") && response.ends_with("late"),
        "{response}"
    );
    let (status, rest) = running.end();
    assert_eq!((status.code(), rest.as_str()), (Some(0), ""));
}

#[test]
fn draining_has_a_limit_and_a_second_interrupt_ends_it() {
    let origin = TcpListener::bind("127.0.0.1:0").unwrap();
    let words = format!(
        "boost --origin http://{} --listen 127.0.0.1:0 --workers 2 --limit drain_ms=",
        origin.local_addr().unwrap()
    );
    let running = Running::start(&format!("{words}50"), 1);
    let _under_way = start_request(&origin, &running);
    running.signal("TERM");
    let (status, rest) = running.end();
    assert!(
        status.code() == Some(0) && rest.contains("aborting the remaining requests"),
        "{status} {rest}"
    );

    let mut running = Running::start(&format!("{words}24h"), 1);
    let _under_way = start_request(&origin, &running);
    running.signal("INT");
    assert_eq!(running.line(), "millrace: draining");
    running.signal("INT");
    let (status, rest) = running.end();
    assert!(
        status.code() == Some(130) && rest.contains("requests in progress were aborted"),
        "{status} {rest}"
    );
}

#[test]
fn a_file_is_run_and_its_log_is_reopened() {
    let folder = Folder::new("log");
    let log = folder.0.join("access.log");
    let text = format!("access-log = '{}'\n[[forward]]\nlisten = '127.0.0.1:0'", log.display());
    let file = folder.file("run.toml", text);
    let mut running = Running::start(&format!("run {file} --workers 1"), 1);
    for (signal, before) in [("USR1", None), ("HUP", Some("configuration 2 is in force"))] {
        std::fs::rename(&log, folder.0.join("old.log")).unwrap();
        running.signal(signal);
        if let Some(before) = before {
            assert_eq!(running.line(), format!("millrace: {before}"));
        }
        assert_eq!(running.line(), "millrace: access log reopened");
        assert!(log.exists());
    }
    running.signal("TERM");
    assert_eq!(running.end().0.code(), Some(0));
}

#[test]
fn the_demo_serves_its_site_and_reports_requests() {
    let mut running = Running::start("demo", 1);
    let mut lines = BufReader::new(running.child.stdout.take().unwrap()).lines();
    let mut line_with = |part: &str| {
        let mut found = lines.by_ref().map(Result::unwrap);
        found.find(|line| line.contains(part)).unwrap_or_else(|| panic!("no line with {part:?}"))
    };
    let address = running.addresses[0].clone();
    assert!(address.starts_with("127.0.0.1:"));
    line_with(&format!("In a browser:         http://{address}/"));
    let page = get(&address, "/");
    assert!(
        page.starts_with("HTTP/1.1 200 OK\r\n") && page.contains("<h1>It runs.</h1>"),
        "{page}"
    );
    line_with("1 connection to the server opened");
    let pattern = get(&address, "/pattern");
    assert_eq!(pattern.split_once("\r\n\r\n").unwrap().1.len(), 1 << 20);
    line_with("1.0 MB of bodies forwarded");
    line_with("Total: 2 requests");
    for said in ["fwd=uri-miss; stored", "; hit; ttl="] {
        let wheel = get(&address, "/wheel.svg");
        assert!(wheel.contains(said), "{wheel}");
    }
    line_with("1 request served from the cache");
    running.signal("INT");
    assert_eq!(running.end().0.code(), Some(0));
}
