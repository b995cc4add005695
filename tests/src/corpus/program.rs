//! A running program and the origin behind it.

use std::collections::VecDeque;
use std::env;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;

use super::client::{Client, Pace};
use super::literal::{Role, Substitutions, fill};
use super::origin::{Origin, Seen};
use super::relay;
use super::timeouts::PATIENCE;
use crate::real;

/// A program with an origin of its own. Dropping this ends the program.
pub struct ProgramUnderTest {
    /// The role of the program.
    pub role: Role,
    /// The address of the program.
    pub address: SocketAddr,
    /// The origin behind it.
    pub origin: Origin,
    /// The program's pseudonym in Via.
    via: String,
    /// `None` if something else than the program is before the origin.
    child: Option<Child>,
    stderr: Arc<Mutex<VecDeque<String>>>,
}

impl ProgramUnderTest {
    /// Starts an origin, and the program before it on this engine.
    ///
    /// # Panics
    /// Panics if the program is missing or does not print its address.
    pub fn start(role: Role, engine: &str) -> Self {
        Self::start_with(role, engine, &["--no-cache"])
    }

    /// Like [`start`](Self::start), with the program's cache.
    ///
    /// # Panics
    /// Panics as `start` does.
    pub fn caching(role: Role, engine: &str) -> Self {
        Self::start_with(role, engine, &["--cache-memory", "16M"])
    }

    fn start_with(role: Role, engine: &str, options: &[&str]) -> Self {
        let origin = Origin::start();
        let mut command = Command::new(program());
        command.args(arguments(role, origin.address)).args(["--engine", engine]).args(options);
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
        let address = receive.recv_timeout(PATIENCE).ok().and_then(|text| text.parse().ok());
        let via = String::new();
        let child = Some(child);
        let started = |address| Self { role, address, origin, via, child, stderr };
        match address {
            Some(address) => started(address).with_pseudonym(),
            None => {
                let started = started(SocketAddr::from(([127, 0, 0, 1], 0)));
                panic!(
                    "the program did not print its address; it printed: {}",
                    started.last_lines()
                );
            }
        }
    }

    /// Starts an origin with a proxy before it that forwards everything, instead of the program.
    ///
    /// # Panics
    /// Panics if no loopback port is available.
    pub fn relay() -> Self {
        let origin = Origin::start();
        let address = relay::start(origin.address);
        let (via, stderr) = (String::new(), Arc::default());
        Self { role: Role::Boost, address, origin, via, child: None, stderr }
    }

    /// Returns the values of the placeholders of a case.
    pub fn substitutions(&self) -> Substitutions {
        Substitutions {
            host: self.origin.address.to_string(),
            role: self.role,
            own: self.address.to_string(),
            via: self.via.clone(),
        }
    }

    /// Learns the program's pseudonym in Via from a first request.
    fn with_pseudonym(mut self) -> Self {
        let lines = ["GET {/} HTTP/1.1", "Host: {host}", "Connection: close", ""];
        let first =
            fill(&lines.map(str::to_owned), &self.substitutions(), true).expect("known marks");
        let talk = || -> Result<Vec<Seen>, String> {
            let mut client = Client::connect(self.address)?;
            client.send(&first.steps, Pace::Whole, &self.origin)?;
            client.rest()?;
            self.origin.settle()
        };
        let seen =
            talk().unwrap_or_else(|why| panic!("a first request: {why}; {}", self.last_lines()));
        let [Seen::Whole(message)] = &seen[..] else {
            panic!("the origin received the first request as {seen:?}")
        };
        self.origin.begin(Vec::new());
        let via = message.fields.iter().find(|field| field.is("via"));
        let via = via.map(|field| String::from_utf8_lossy(&field.value).into_owned());
        self.via = via.and_then(|via| Some(via.split_once(' ')?.1.to_owned())).unwrap_or_default();
        self
    }

    /// Returns the last lines of the program's standard error.
    pub fn last_lines(&self) -> String {
        let stderr = self.stderr.lock().expect("no thread panics with the lock");
        stderr.iter().cloned().collect::<Vec<_>>().join("\n")
    }

    /// Returns a message if the program has ended, which it must not.
    pub fn ended(&mut self) -> Option<String> {
        match self.child.as_mut()?.try_wait() {
            Ok(Some(status)) => {
                Some(format!("the program ended ({status}): {}", self.last_lines()))
            }
            _ => None,
        }
    }
}

impl Drop for ProgramUnderTest {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn arguments(role: Role, origin: SocketAddr) -> Vec<String> {
    let mut arguments = match role {
        Role::Boost => vec!["boost".to_owned(), "--origin".to_owned(), format!("http://{origin}")],
        Role::Forward => vec!["forward".to_owned()],
    };
    for argument in ["--listen", "127.0.0.1:0", "--workers", "1"] {
        arguments.push(argument.to_owned());
    }
    if role == Role::Forward {
        // Every address except those of this machine: no mutant may leave it.
        for network in [
            "0.0.0.0/2",
            "64.0.0.0/3",
            "96.0.0.0/4",
            "112.0.0.0/5",
            "120.0.0.0/6",
            "124.0.0.0/7",
            "126.0.0.0/8",
            "128.0.0.0/1",
            "::/0",
        ] {
            arguments.extend(["--deny-target".to_owned(), network.to_owned()]);
        }
    }
    arguments
}

/// Returns the path of the program under test: `MILLRACE`, or the program beside the folder of this
/// test.
fn program() -> PathBuf {
    match env::var_os("MILLRACE") {
        Some(path) => PathBuf::from(path),
        None => real::program().unwrap_or_else(|why| panic!("{why}")),
    }
}
