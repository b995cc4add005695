//! Plays a scenario against the real program: a process, sockets of this machine, and a thread for
//! each connection.
//!
//! `PATIENCE` bounds each script, each wait for a signal, and the wait for the program's end. The
//! start and reloads of the program have a limit of their own. No successful run comes near these
//! limits. No outcome depends on the duration of a step.

mod configurations;
mod folders;
pub(crate) mod process;
mod stream;

use std::net::TcpListener;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use millrace_engine::{Clock, EngineOptions, Error, UringEngine};

use crate::scenario::{
    End, Listen, Need, OriginKind, Placeholders, Play, RequestScripts, RunnerTask, Scenario,
    Script, ScriptSignals, Tolerance,
};
use configurations::Configurations;
use folders::Folders;
use stream::{OriginListener, Stream};

/// The limit after which a script or a wait counts as hung. After the first failure of a run,
/// scripts have a tenth of it.
const PATIENCE: Duration = Duration::from_secs(60);
/// Interval at which a waiting thread checks for other events.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// The state that the threads of one run share.
struct RealRun {
    names: Placeholders,
    signals: ScriptSignals,
    begun: Instant,
    /// Whether all clients have ended, so that origins need not wait for connections.
    over: AtomicBool,
    failures: Mutex<Vec<String>>,
}

/// Returns the engines for the real program: the one that ENGINE names, or epoll, and uring if this
/// machine supports it.
pub fn engines() -> Vec<String> {
    if let Ok(engine) = std::env::var("ENGINE") {
        return vec![engine];
    }
    let mut engines = vec!["epoll".to_owned()];
    let options = EngineOptions { budget_bytes: 1, log: None, clock: Clock::new() };
    match UringEngine::new(options) {
        Err(Error::Unsupported(reason)) => {
            println!("skip: uring: {}: {}", reason.feature(), reason.reason());
        }
        // The program reports any other problem.
        _ => engines.push("uring".to_owned()),
    }
    engines
}

/// Plays `scenario` with the program at `program` on `engine`.
///
/// # Errors
/// Returns every expectation that did not hold, and the standard error of the program.
pub fn play(scenario: &Scenario, program: &Path, engine: &str) -> Result<(), String> {
    let folder = std::env::temp_dir().join(format!(
        "millrace-scenario-{}-{}",
        std::process::id(),
        scenario.name
    ));
    std::fs::create_dir_all(&folder).map_err(|error| format!("a folder for sockets: {error}"))?;
    let result = play_in(scenario, program, engine, &folder);
    // Files left in a temporary folder are harmless.
    let _ = std::fs::remove_dir_all(&folder);
    result
}

fn play_in(scenario: &Scenario, program: &Path, engine: &str, folder: &Path) -> Result<(), String> {
    let mut names = Placeholders::default();
    names.set("users", &crate::simulated::users_file());
    let mut listeners = Vec::new();
    for origin in &scenario.origins {
        let listener = listen(origin.kind, &folder.join(&origin.name));
        let listener = listener.map_err(|error| format!("origin {}: {error}", origin.name))?;
        names.set(&origin.name, &listener.address());
        listeners.push(listener);
    }
    let listen = match &scenario.listen {
        Listen::Tcp(address) => address.clone(),
        Listen::Unix => format!("unix:{}", folder.join("proxy").display()),
    };
    for socket in &scenario.sockets {
        names.set(socket, &folder.join(socket).display().to_string());
    }
    let folders = Folders::create(scenario, folder, &mut names);
    let folders = folders.map_err(|error| format!("a folder of files: {error}"))?;
    let configurations = Configurations::new(scenario, &names, listen, folder);
    let mut process = configurations.start(program, engine)?;
    names.set("proxy", process.address());
    let run = Arc::new(RealRun {
        names,
        signals: ScriptSignals::default(),
        begun: Instant::now(),
        over: AtomicBool::new(false),
        failures: Mutex::new(Vec::new()),
    });
    let address = process.address().to_owned();
    std::thread::scope(|scope| {
        for (origin, listener) in scenario.origins.iter().zip(&listeners) {
            let run = &run;
            scope.spawn(move || play_origin(run, origin, listener));
        }
        let clients: Vec<_> = scenario
            .clients
            .iter()
            .map(|client| {
                let (run, address) = (&run, &address);
                scope.spawn(move || {
                    let ended = play_client(run, client, address);
                    run.fail(&client.name, ended);
                    run.signals.signal(&ended_signal(&client.name));
                })
            })
            .collect();
        while !clients.iter().all(std::thread::ScopedJoinHandle::is_finished) {
            if let Some((number, task)) = run.signals.pending_task() {
                let outcome = match task {
                    RunnerTask::Reload(name) => configurations.reload(&mut process, &name),
                    RunnerTask::Write(change) => folders.change(&change),
                };
                run.signals.finish_task(number, outcome);
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        for client in clients {
            if client.join().is_err() {
                run.fail("a client", Err("its thread panicked".to_owned()));
            }
        }
        // The origins stop accepting, and stop waiting on connections whose scripts have ended.
        run.over.store(true, Ordering::Release);
    });
    run.result(process.stop(PATIENCE))
}

impl RealRun {
    /// Returns the result of the run, whose process has ended as `stopped` says.
    fn result(&self, stopped: Result<String, String>) -> Result<(), String> {
        let mut failures = self.failures.lock().map_or_else(|_| Vec::new(), |it| it.clone());
        match stopped {
            Ok(stderr) if !failures.is_empty() => {
                failures.push(format!("standard error of the program:\n{stderr}"))
            }
            Ok(_) => {}
            Err(wrong) => failures.push(wrong),
        }
        if failures.is_empty() { Ok(()) } else { Err(failures.join("\n")) }
    }

    fn now(&self) -> u64 {
        u64::try_from(self.begun.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    fn fail(&self, actor: &str, result: Result<(), String>) {
        if let (Err(why), Ok(mut failures)) = (result, self.failures.lock()) {
            failures.push(format!("{actor}: {why}"));
        }
    }

    fn has_failed(&self) -> bool {
        self.failures.lock().map_or(true, |failures| !failures.is_empty())
    }
}

fn ended_signal(client: &str) -> String {
    format!("client {client} has ended")
}

fn listen(kind: OriginKind, path: &PathBuf) -> std::io::Result<OriginListener> {
    match kind {
        OriginKind::Tcp => TcpListener::bind("127.0.0.1:0").map(OriginListener::Tcp),
        OriginKind::Tcp6 => TcpListener::bind("[::1]:0").map(OriginListener::Tcp),
        OriginKind::Unix => UnixListener::bind(path).map(OriginListener::Unix),
        OriginKind::Refusing => stream::refusing(),
    }
}

fn play_client(run: &RealRun, client: &crate::scenario::Client, at: &str) -> Result<(), String> {
    let ended = client.after.iter().map(|other| ended_signal(other));
    for signal in ended.chain(client.when.iter().cloned()) {
        let begun = Instant::now();
        while !run.signals.is_set(&signal) {
            if begun.elapsed() > PATIENCE {
                return Err(format!("timed out waiting for: {signal}"));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    let socket = client.at.as_ref().map(|name| run.names.fill(&format!("unix:{{{name}}}")));
    let at = socket.as_deref().unwrap_or(at);
    let mut stream = Stream::connect(at).map_err(|error| format!("connect: {error}"))?;
    let mut play = Play::new(&client.script, &run.names, &run.signals, Tolerance::Exact);
    let left = drive(run, &mut stream, &mut play)?;
    if left == ScriptEnd::Open && !play.inbox().is_empty() {
        return Err(format!("unexpected bytes: \"{}\"", play.inbox().escape_ascii()));
    }
    Ok(())
}

fn play_origin(run: &RealRun, origin: &crate::scenario::Origin, listener: &OriginListener) {
    let mut accepted = 0;
    let picks = &RequestScripts::new(origin.any.clone(), &run.names);
    std::thread::scope(|scope| {
        while !run.over.load(Ordering::Acquire) {
            let Some(stream) = listener.accept(POLL_INTERVAL) else { continue };
            let script = origin.scripts.get(accepted).or(origin.each.as_ref());
            accepted += 1;
            let name = format!("{} connection {accepted}", origin.name);
            if script.is_none() && origin.any.is_empty() {
                run.fail(&name, Err("no script for this connection".to_owned()));
                continue;
            }
            scope.spawn(move || {
                let result = match script {
                    Some(script) => play_accepted(run, stream, script),
                    None => play_requests(run, stream, picks),
                };
                run.fail(&name, result);
            });
        }
    });
    if accepted < origin.scripts.len() {
        let wanted = origin.scripts.len();
        run.fail(&origin.name, Err(format!("{accepted} of {wanted} connections arrived")));
    }
}

/// Plays an origin connection and keeps it open until the proxy closes it or the run ends. An
/// origin that has finished its script does not end connections by itself.
fn play_accepted(run: &RealRun, mut stream: Stream, script: &Script) -> Result<(), String> {
    let mut play = Play::new(script, &run.names, &run.signals, Tolerance::Exact);
    if drive(run, &mut stream, &mut play)? == ScriptEnd::Closed {
        return Ok(());
    }
    let mut rest = play.inbox().to_vec();
    while rest.is_empty() && !run.over.load(Ordering::Acquire) {
        match stream.read(POLL_INTERVAL) {
            Ok(Some(bytes)) if bytes.is_empty() => return Ok(()),
            Ok(Some(bytes)) => rest = bytes,
            Ok(None) => {}
            Err(_) => return Ok(()),
        }
    }
    match rest.is_empty() {
        true => Ok(()),
        false => Err(format!("unexpected bytes: \"{}\"", rest.escape_ascii())),
    }
}

/// Responds to requests as they come, until the proxy closes or the run ends.
fn play_requests(run: &RealRun, mut stream: Stream, picks: &RequestScripts) -> Result<(), String> {
    let mut inbox = Vec::new();
    while !run.over.load(Ordering::Acquire) {
        if let Some(script) = picks.pick(&inbox)? {
            let mut play = Play::new(&script, &run.names, &run.signals, Tolerance::Exact);
            play.received(&inbox);
            if drive(run, &mut stream, &mut play)? == ScriptEnd::Closed {
                return Ok(());
            }
            inbox = play.inbox().to_vec();
            continue;
        }
        match stream.read(POLL_INTERVAL) {
            Ok(Some(bytes)) if bytes.is_empty() => return Ok(()),
            Ok(Some(bytes)) => inbox.extend(bytes),
            Ok(None) => {}
            Err(_) => return Ok(()),
        }
    }
    Ok(())
}

/// The state of a connection after its script.
#[derive(PartialEq, Eq)]
enum ScriptEnd {
    Open,
    Closed,
}

fn drive(run: &RealRun, stream: &mut Stream, play: &mut Play) -> Result<ScriptEnd, String> {
    let begun = Instant::now();
    loop {
        if begun.elapsed() > PATIENCE || (run.has_failed() && begun.elapsed() > PATIENCE / 10) {
            let inbox = play.inbox().escape_ascii().to_string();
            return Err(format!("line {}: timed out; received: \"{inbox}\"", play.line()));
        }
        match play.need(run.now()) {
            Need::Write(bytes, _) => match stream.write(bytes, POLL_INTERVAL) {
                Ok(0) => std::thread::sleep(Duration::from_millis(1)),
                Ok(count) => play.written(count),
                Err(_) => play.broken(),
            },
            Need::Read => read(stream, play, POLL_INTERVAL),
            Need::ReadUntil(until) => {
                let left = Duration::from_millis(until.saturating_sub(run.now()).max(1));
                read(stream, play, left.min(POLL_INTERVAL));
            }
            Need::Until(until) => {
                let left = Duration::from_millis(until.saturating_sub(run.now()));
                std::thread::sleep(left.min(POLL_INTERVAL));
            }
            Need::Signal => std::thread::sleep(Duration::from_millis(1)),
            Need::Finish => {
                stream.finish();
                play.advance();
            }
            Need::Close => {
                stream.close();
                return Ok(ScriptEnd::Closed);
            }
            Need::Reset => {
                stream.reset();
                return Ok(ScriptEnd::Closed);
            }
            Need::Over => return Ok(ScriptEnd::Open),
            Need::Failed(why) => return Err(why),
        }
    }
}

fn read(stream: &mut Stream, play: &mut Play, wait: Duration) {
    match stream.read(wait) {
        Ok(Some(bytes)) if bytes.is_empty() => play.ended(End::Finished),
        Ok(Some(bytes)) => play.received(&bytes),
        Ok(None) => {}
        Err(_) => play.ended(End::Reset),
    }
}

/// Returns the program that was built beside the running test.
///
/// # Errors
/// Returns the command that builds the program, if it is missing.
pub fn program() -> Result<PathBuf, String> {
    let test =
        std::env::current_exe().map_err(|error| format!("the path of this test: {error}"))?;
    let profile = test.parent().and_then(Path::parent).unwrap_or(Path::new("."));
    let program = profile.join("millrace");
    if program.is_file() {
        return Ok(program);
    }
    Err(format!("{} is not built (cargo build -p millrace builds it)", program.display()))
}
