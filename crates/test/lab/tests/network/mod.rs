//! Two network namespaces, and the emulated network between them.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::thread::{Scope, ScopedJoinHandle};

use rustix::process::{Pid, Signal, kill_process};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

pub(crate) const CLIENT: &str = "10.9.0.1";
pub(crate) const SERVER: &str = "10.9.1.1";

/// A network namespace. It ends with this process, because its only process reads a pipe.
pub(crate) struct Namespace {
    process: Child,
    _stdin: ChildStdin,
}

impl Namespace {
    pub(crate) fn new() -> Self {
        let mut command = Command::new("unshare");
        command.args(["--net", "sh", "-c", "echo ready; exec cat"]);
        let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        let output = process.stdout.as_mut().unwrap();
        BufReader::new(output).read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
        let stdin = process.stdin.take().unwrap();
        Self { process, _stdin: stdin }
    }

    /// Returns the file that denotes it.
    pub(crate) fn path(&self) -> PathBuf {
        format!("/proc/{}/ns/net", self.id()).into()
    }

    /// Returns the id of its process.
    pub(crate) fn id(&self) -> u32 {
        self.process.id()
    }

    /// Moves this thread into it.
    pub(crate) fn enter(&self) {
        let file = File::open(self.path()).unwrap();
        move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The running emulator.
pub(crate) struct Network {
    emulator: Child,
    pub(crate) clients: Namespace,
    pub(crate) servers: Namespace,
}

impl Network {
    /// Starts the emulator with options for the path, and with settings of both links that begin
    /// with a comma, or none. `None` without the privilege, with a message.
    pub(crate) fn start(paths: &[&str], links: &str) -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            eprintln!("skipped: network namespaces and TUN devices need root");
            return None;
        }
        if !Path::new("/dev/net/tun").exists() {
            eprintln!("skipped: this kernel has no TUN devices");
            return None;
        }
        let (clients, servers) = (Namespace::new(), Namespace::new());
        let link =
            |namespace: &Namespace, address| format!("{},{address}/24{links}", namespace.id());
        let mut command = Command::new(env!("CARGO_BIN_EXE_millrace-lab"));
        command.args(["wan", "--clients", &link(&clients, CLIENT)]);
        command.args(["--servers", &link(&servers, SERVER)]).args(paths);
        let mut emulator = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut line = [0; "wan: ready\n".len()];
        emulator.stdout.as_mut().unwrap().read_exact(&mut line).unwrap();
        assert_eq!(&line, b"wan: ready\n");
        Some(Self { emulator, clients, servers })
    }

    /// Runs `run` on a thread among the clients.
    pub(crate) fn client<'scope, T: Send + 'scope>(
        &'scope self,
        scope: &'scope Scope<'scope, '_>,
        run: impl FnOnce() -> T + Send + 'scope,
    ) -> ScopedJoinHandle<'scope, T> {
        scope.spawn(|| {
            self.clients.enter();
            run()
        })
    }

    /// Runs `run` on a thread among the servers.
    pub(crate) fn server<'scope, T: Send + 'scope>(
        &'scope self,
        scope: &'scope Scope<'scope, '_>,
        run: impl FnOnce() -> T + Send + 'scope,
    ) -> ScopedJoinHandle<'scope, T> {
        scope.spawn(|| {
            self.servers.enter();
            run()
        })
    }

    /// Ends the emulator. Returns its last line.
    pub(crate) fn end(mut self) -> String {
        let process = Pid::from_child(&self.emulator);
        kill_process(process, Signal::TERM).unwrap();
        let mut text = String::new();
        self.emulator.stdout.as_mut().unwrap().read_to_string(&mut text).unwrap();
        assert!(self.emulator.wait().unwrap().success());
        text
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        let _ = self.emulator.kill();
        let _ = self.emulator.wait();
    }
}
