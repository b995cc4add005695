//! Reloads of the real program: changed, unchanged and refused settings.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;

use support::{Folder, Running, get};

/// Writes a file with a forward proxy at `listeners` and `top` above it.
fn write(file: &Path, top: &str, listeners: &[String]) {
    let listeners: Vec<String> = listeners.iter().map(|address| format!("'{address}'")).collect();
    let text = format!("{top}\n[[forward]]\nlisten = [{}]\n", listeners.join(", "));
    std::fs::write(file, text).unwrap();
}

/// Returns the line that keeps `folder` accessible for reloads.
fn keep_accessible(folder: &Folder) -> String {
    format!("sandbox-folder = '{}'", folder.0.display())
}

/// Triggers a reload. Returns the log lines up to the result.
fn reload(running: &mut Running) -> Vec<String> {
    running.signal("HUP");
    let mut lines = Vec::new();
    loop {
        let line = running.line();
        let line = line.strip_prefix("millrace: ").unwrap().to_owned();
        let is_last = line.contains("is in force") || line.contains("reload refused");
        lines.push(line);
        if is_last {
            return lines;
        }
    }
}

/// Returns a port that was free a moment ago, on an address that no other test uses.
fn free_address() -> String {
    TcpListener::bind("127.97.0.1:0").unwrap().local_addr().unwrap().to_string()
}

#[test]
fn listeners_are_added_and_removed_and_the_others_stay() {
    for workers in [1, 2] {
        let folder = Folder::new(&format!("reload-{workers}"));
        let file = folder.0.join("run.toml");
        let unix = format!("unix:{}", folder.0.join("socket").display());
        let (port, other) = ("127.0.0.1:0".to_owned(), free_address());
        let top =
            format!("workers = {workers}\nadmin = '127.0.0.1:0'\n{}", keep_accessible(&folder));
        write(&file, &top, std::slice::from_ref(&port));
        let mut running = Running::start(&format!("run {}", file.display()), 1);
        let first = running.addresses[0].clone();
        let mut kept = TcpStream::connect(&first).unwrap();

        write(&file, &top, &[unix.clone(), port.clone(), other.clone()]);
        let lines = reload(&mut running);
        assert_eq!(lines[..2], [format!("listening on {unix}"), format!("listening on {other}")]);
        assert_eq!(lines[2..], ["configuration 2 is in force"]);
        for address in [&first, &other] {
            assert!(get(address, "/").starts_with("HTTP/1.1 400 "), "{address}");
        }
        let mut client = UnixStream::connect(folder.0.join("socket")).unwrap();
        client.write_all(b"GET / HTTP/1.0\r\n\r\n").unwrap();
        let mut response = String::new();
        client.read_to_string(&mut response).unwrap();
        assert!(response.starts_with("HTTP/1.1 400 "), "{response}");
        assert!(running.admin_page("/config").contains(&other));

        write(&file, &top, std::slice::from_ref(&port));
        let lines = reload(&mut running);
        let gone =
            [format!("no longer listening on {unix}"), format!("no longer listening on {other}")];
        assert!(lines[..2].iter().all(|line| gone.contains(line)), "{lines:?}");
        assert!(!folder.0.join("socket").exists());
        // For a moment, queued connections are still accepted. Then nothing listens.
        while TcpStream::connect(&other).is_ok() {
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        write(&file, &top, &[port, other.clone()]);
        assert_eq!(reload(&mut running).last().unwrap(), "configuration 4 is in force");
        assert!(get(&other, "/").starts_with("HTTP/1.1 400 "));

        kept.write_all(b"GET / HTTP/1.0\r\n\r\n").unwrap();
        let mut response = String::new();
        kept.read_to_string(&mut response).unwrap();
        assert!(response.starts_with("HTTP/1.1 400 "), "the connection from the start: {response}");
        let metrics = running.admin_page("/metrics");
        for line in ["millrace_reloads_total 3", "millrace_reloads_refused_total 0"] {
            assert!(metrics.contains(&format!("\n{line}\n")), "{metrics}");
        }
        for worker in 0..workers {
            let line = format!("\nmillrace_config_generation{{worker=\"{worker}\"}} 4\n");
            assert!(metrics.contains(&line), "{line} {metrics}");
            // Older configurations are freed when their last listener has emptied its queue.
            let line = format!("\nmillrace_configs_in_use{{worker=\"{worker}\"}} 1\n");
            while !running.admin_page("/metrics").contains(&line) {}
        }
        running.signal("TERM");
        assert_eq!(running.end().0.code(), Some(0));
    }
}

#[test]
fn errors_are_refused_with_the_message_of_check() {
    let folder = Folder::new("refused");
    let file = folder.0.join("run.toml");
    let port = ["127.0.0.1:0".to_owned()];
    write(&file, "workers = 1", &port);
    let mut running = Running::start(&format!("run {} --admin 127.0.0.1:0", file.display()), 1);
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = taken.local_addr().unwrap().to_string();
    for (top, listeners, wrong) in [
        ("workers = 'many'", &port[..], "workers: \"many\""),
        ("nonsense", &port, "TOML"),
        ("workers = 2", &port, "workers: cannot become 2 while the process runs (expected: 1, or"),
        ("memory = '1G'\nworkers = 1", &port, "memory: cannot become 1G while"),
        ("engine = 'epoll'\nworkers = 1", &port, "engine: cannot become epoll while"),
        ("sandbox = 'off'\nworkers = 1", &port, "sandbox: cannot become off while"),
        ("no-cache = true\nworkers = 1", &port, "cache-memory: cannot become 0 (no-cache)"),
        ("cache-memory = '64M'\nworkers = 1", &port, "64M while the process runs (expected: 128M"),
        ("disk = '/tmp/no-such-disk:1G'\nworkers = 1", &port, "disk: cannot become"),
        ("workers = 1\ndisk = '/nowhere/a/b:1G'", &port, "disk /nowhere/a/b: /nowhere/a: No such"),
        ("workers = 1", &["0.0.0.0:0".to_owned()], "other machines can reach"),
        ("workers = 1", std::slice::from_ref(&taken), "address already in use"),
        ("workers = 1\naccess-log = '/nowhere/log'", &port, "/nowhere/log"),
    ] {
        write(&file, top, listeners);
        let lines = reload(&mut running);
        assert!(lines.len() == 1 && lines[0].contains(wrong), "{wrong}: {lines:?}");
        let check = support::command(&format!("check {}", file.display())).output().unwrap();
        if !check.status.success() {
            let line = String::from_utf8(check.stderr).unwrap();
            let line = line.trim_end().strip_prefix("millrace: ").unwrap();
            assert_eq!(lines[0], format!("reload refused: {line}"));
        }
    }
    std::fs::remove_file(&file).unwrap();
    assert!(reload(&mut running)[0].contains("a readable file"));
    let metrics = running.admin_page("/metrics");
    assert!(metrics.contains("\nmillrace_reloads_refused_total 14\n"), "{metrics}");
    assert!(get(&running.addresses[0], "/").starts_with("HTTP/1.1 400 "));

    write(&file, "workers = 1", &port);
    assert_eq!(reload(&mut running), ["configuration 2 is in force"]);
}

#[test]
fn files_that_would_block_are_refused() {
    let folder = Folder::new("pipes");
    let (file, log) = (folder.0.join("run.toml"), folder.0.join("access.log"));
    let port = ["127.0.0.1:0".to_owned()];
    let top = format!("workers = 1\naccess-log = '{}'", log.display());
    write(&file, &top, &port);
    let mut running = Running::start(&format!("run {}", file.display()), 1);
    let pipe = |path: &Path| {
        std::fs::remove_file(path).unwrap();
        assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
    };
    pipe(&log);
    let not_reopened =
        "millrace: cannot reopen the access log: No such device or address (os error 6)";
    running.signal("USR1");
    assert_eq!(running.line(), not_reopened);
    assert!(reload(&mut running)[0].contains("cannot open the access log"));
    assert_eq!(running.line(), not_reopened);
    pipe(&file);
    assert!(reload(&mut running)[0].contains("is not a regular file (expected: a readable file"));
    assert_eq!(running.line(), not_reopened);
    std::fs::remove_file(&file).unwrap();
    std::fs::create_dir(&file).unwrap();
    assert!(reload(&mut running)[0].contains("is not a regular file"));
    assert!(get(&running.addresses[0], "/").starts_with("HTTP/1.1 400 "));
    running.signal("TERM");
    assert_eq!(running.end().0.code(), Some(0));
}

#[test]
fn files_outside_the_sandbox_are_refused() {
    if let Err(error) = millrace_confine::landlock_version() {
        println!("skip: this kernel has no Landlock: {error}");
        return;
    }
    let (folder, elsewhere) = (Folder::new("given-up"), Folder::new("elsewhere"));
    let file = folder.0.join("run.toml");
    let port = ["127.0.0.1:0".to_owned()];
    write(&file, "workers = 1", &port);
    let mut running = Running::start(&format!("run {}", file.display()), 1);
    let (log, socket) = (elsewhere.0.join("log"), elsewhere.0.join("socket"));
    let unix = [format!("unix:{}", socket.display())];
    let with_log = format!("workers = 1\naccess-log = '{}'", log.display());
    for (top, listeners, path) in
        [(with_log.as_str(), &port, &log), ("workers = 1", &unix, &socket)]
    {
        write(&file, top, listeners);
        let lines = reload(&mut running);
        let expected = format!(
            "reload refused: the sandbox of the process does not include {}",
            path.display()
        );
        assert!(lines.len() == 1 && lines[0].starts_with(&expected), "{lines:?}");
        assert!(lines[0].contains("sandbox-folder") && !path.exists(), "{lines:?}");
    }
    write(&file, "workers = 1", &port);
    assert_eq!(reload(&mut running), ["configuration 2 is in force"]);
    assert!(get(&running.addresses[0], "/").starts_with("HTTP/1.1 400 "));
}

#[test]
fn folders_outside_the_sandbox_are_refused() {
    if let Err(error) = millrace_confine::landlock_version() {
        println!("skip: this kernel has no Landlock: {error}");
        return;
    }
    let (folder, elsewhere) = (Folder::new("served"), Folder::new("served-elsewhere"));
    let (file, site) = (folder.0.join("run.toml"), elsewhere.0.join("site"));
    std::fs::create_dir_all(site.join("below")).unwrap();
    let serve = |path: &Path| {
        let path = path.display();
        let text = format!("workers = 1\n[[serve]]\nlisten = '127.0.0.1:0'\nfolder = '{path}'\n");
        std::fs::write(&file, text).unwrap();
    };
    serve(&site);
    let mut running = Running::start(&format!("run {}", file.display()), 1);
    serve(&site.join("below"));
    assert_eq!(reload(&mut running), ["configuration 2 is in force"]);
    serve(&elsewhere.0);
    let lines = reload(&mut running);
    let refused = "reload refused: the sandbox of the process does not include";
    assert!(lines.len() == 1 && lines[0].starts_with(refused), "{lines:?}");
    assert!(lines[0].contains("add it by sandbox-folder"), "{lines:?}");
    serve(&elsewhere.0.join("missing"));
    let lines = reload(&mut running);
    assert!(lines[0].contains(": folder: cannot open the folder \"/"), "{lines:?}");
    // The rule of the sandbox is for the folder that was there at start, not for its name.
    std::fs::rename(&site, elsewhere.0.join("old")).unwrap();
    std::fs::create_dir(&site).unwrap();
    serve(&site);
    let lines = reload(&mut running);
    assert!(lines[0].contains("the directory that has replaced /"), "{lines:?}");
}

#[test]
fn a_command_line_is_reloaded() {
    let folder = Folder::new("no-file");
    let log = folder.0.join("access.log");
    let arguments =
        format!("forward --listen 127.0.0.1:0 --workers 1 --access-log {}", log.display());
    let mut running = Running::start(&arguments, 1);
    assert_eq!(reload(&mut running), ["configuration 2 is in force"]);
    assert_eq!(running.line(), "millrace: access log reopened");
    assert!(get(&running.addresses[0], "/").starts_with("HTTP/1.1 400 "));
}

#[test]
fn a_reload_moves_the_access_log() {
    let folder = Folder::new("log-follows");
    let (file, port) = (folder.0.join("run.toml"), ["127.0.0.1:0".to_owned()]);
    let log = |name: &str| folder.0.join(name);
    let top = |rest: &str| format!("workers = 1\n{}\n{rest}", keep_accessible(&folder));
    let to = |name: &str, format: &str| {
        format!("access-log = '{}'\nlog-format = '{format}'", log(name).display())
    };
    write(&file, &top(""), &port);
    let mut running = Running::start(&format!("run {}", file.display()), 1);
    let address = running.addresses[0].clone();
    get(&address, "/0");
    for (count, (rest, target)) in
        [(to("a", "common"), "/1"), (to("b", "json"), "/2"), (String::new(), "/3")]
            .into_iter()
            .enumerate()
    {
        write(&file, &top(&rest), &port);
        assert_eq!(reload(&mut running), [format!("configuration {} is in force", count + 2)]);
        if !rest.is_empty() {
            assert_eq!(running.line(), "millrace: access log reopened");
        }
        get(&address, target);
        if let Some(name) = [Some("a"), Some("b"), None][count] {
            while std::fs::read_to_string(log(name)).unwrap().is_empty() {
                std::thread::sleep(std::time::Duration::from_millis(10));
            }
        }
    }
    running.signal("TERM");
    assert_eq!(running.end().0.code(), Some(0));
    let read = |name: &str| std::fs::read_to_string(log(name)).unwrap();
    let (a, b) = (read("a"), read("b"));
    assert!(a.lines().count() == 1 && a.contains("\"GET /1 HTTP/1.1\" 400"), "{a}");
    assert!(b.lines().count() == 1 && b.starts_with('{') && b.contains("/2"), "{b}");
}

#[test]
fn a_reload_names_the_services_that_lose_what_they_stored() {
    let folder = Folder::new("reload-renamed");
    let file = folder.0.join("run.toml");
    let named = |name: &str| {
        let text = format!("[[forward]]\nlisten = '127.0.0.1:0'\nname = '{name}'\n");
        std::fs::write(&file, text).unwrap();
    };
    named("one");
    let mut running = Running::start(&format!("run {}", file.display()), 1);
    named("two");
    let lines = reload(&mut running);
    let lost = "the stored responses of service \"one\" can no longer be found: its name or its target \
                rules have changed";
    assert_eq!(lines, [lost, "configuration 2 is in force"]);
    assert_eq!(reload(&mut running), ["configuration 3 is in force"]);
}
