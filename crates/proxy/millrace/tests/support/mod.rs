//! Helpers of the program's tests: a running millrace, and a folder for its files.

#![allow(unreachable_pub, dead_code, reason = "each test file uses a part of it")]
#![allow(missing_docs, reason = "it is a part of the tests")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Child, ChildStderr, Command, ExitStatus, Stdio};

pub fn command(arguments: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_millrace"));
    command.args(arguments.split_whitespace()).stdin(Stdio::null());
    command
}

/// A folder for one test, removed at the end.
pub struct Folder(pub PathBuf);

impl Folder {
    pub fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("millrace-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    pub fn file(&self, name: &str, text: impl AsRef<[u8]>) -> String {
        let path = self.0.join(name);
        std::fs::write(&path, text).unwrap();
        path.display().to_string()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A running millrace. It is killed if its test fails.
pub struct Running {
    pub child: Child,
    errors: BufReader<ChildStderr>,
    pub addresses: Vec<String>,
    pub admin: Option<String>,
}

impl Running {
    /// Starts millrace and reads log lines until they report this number of listening addresses.
    pub fn start(arguments: &str, addresses: usize) -> Self {
        Self::start_by(command(arguments), addresses)
    }

    /// Like [`Running::start`], with a prepared command.
    pub fn start_by(mut command: Command, addresses: usize) -> Self {
        let mut child = command
            .stderr(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the program starts");
        let errors = BufReader::new(child.stderr.take().unwrap());
        let mut running = Self { child, errors, addresses: Vec::new(), admin: None };
        while running.addresses.len() < addresses {
            let line = running.line();
            if let Some(address) = line.strip_prefix("millrace: listening on ") {
                running.addresses.push(address.to_owned());
            } else if let Some(address) = line.strip_prefix("millrace: admin at ") {
                running.admin = Some(address.to_owned());
            }
        }
        running
    }

    /// Returns the next line of standard error.
    pub fn line(&mut self) -> String {
        let mut line = String::new();
        assert!(self.errors.read_line(&mut line).unwrap() > 0, "the program ended");
        line.trim_end().to_owned()
    }

    pub fn signal(&self, name: &str) {
        let kill = format!("kill -{name} {}", self.child.id());
        assert!(Command::new("sh").args(["-c", &kill]).status().unwrap().success());
    }

    /// Waits for the end. Returns the exit status and the remaining log lines.
    pub fn end(mut self) -> (ExitStatus, String) {
        let mut rest = String::new();
        self.errors.read_to_string(&mut rest).unwrap();
        (self.child.wait().unwrap(), rest)
    }

    pub fn admin_page(&self, path: &str) -> String {
        get(self.admin.as_ref().expect("--admin was given"), path)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Sends one GET over a new connection. Returns the whole response.
pub fn get(address: &str, path: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    let mut response = String::new();
    stream.read_to_string(&mut response).unwrap();
    response
}
