//! The program as a process: started, listening, stopped.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// A running program. Killed when dropped.
pub(crate) struct Process {
    child: Child,
    lines: Receiver<String>,
    stderr: String,
    address: String,
}

const START: Duration = Duration::from_secs(20);
const READY: &str = "millrace: listening on ";
const IN_FORCE: &str = " is in force";
const REFUSED: &str = "reload refused: ";

impl Process {
    /// Starts `program` and waits until it listens.
    pub(crate) fn start(
        program: &Path,
        words: impl Iterator<Item = String>,
        options: &[&str],
    ) -> Result<Self, String> {
        let mut command = Command::new(program);
        command.args(words).args(options);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().map_err(|error| format!("{command:?}: {error}"))?;
        let stderr = child.stderr.take().expect("standard error is piped");
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        let mut process = Self { child, lines, stderr: String::new(), address: String::new() };
        let begun = Instant::now();
        while process.address.is_empty() {
            let left = START.saturating_sub(begun.elapsed());
            match process.lines.recv_timeout(left) {
                Ok(line) => process.read_stderr(&line),
                Err(why) => return Err(format!("does not listen ({why}): {}", process.stderr)),
            }
        }
        Ok(process)
    }

    /// Returns the address that the program printed.
    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    /// Sends SIGHUP so that the program reads its file again, and waits for its report.
    pub(crate) fn reload(&mut self) -> Result<(), String> {
        let before = self.stderr.len();
        self.kill(Signal::HUP)?;
        let begun = Instant::now();
        loop {
            let stderr = &self.stderr[before..];
            if let Some(at) = stderr.find(REFUSED) {
                return Err(stderr[at..].lines().next().unwrap_or_default().to_owned());
            }
            if stderr.contains(IN_FORCE) {
                return Ok(());
            }
            let left = START.saturating_sub(begun.elapsed());
            match self.lines.recv_timeout(left) {
                Ok(line) => self.read_stderr(&line),
                Err(why) => return Err(format!("reports no reload ({why})")),
            }
        }
    }

    fn kill(&self, signal: Signal) -> Result<(), String> {
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        let pid = pid.ok_or("a process without a number")?;
        kill_process(pid, signal).map_err(|error| format!("{signal:?}: {error}"))
    }

    /// Makes the program drain and end. Returns its standard error.
    pub(crate) fn stop(mut self, patience: Duration) -> Result<String, String> {
        self.kill(Signal::TERM)?;
        let begun = Instant::now();
        let status: ExitStatus = loop {
            match self.child.try_wait() {
                Ok(Some(status)) => break status,
                Ok(None) if begun.elapsed() < patience => {}
                other => {
                    return Err(format!("does not end: {other:?}; it printed:\n{}", self.stderr));
                }
            }
            match self.lines.recv_timeout(Duration::from_millis(10)) {
                Ok(line) => self.read_stderr(&line),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => {
                    std::thread::sleep(Duration::from_millis(10));
                }
            }
        };
        while let Ok(line) = self.lines.recv_timeout(Duration::from_millis(100)) {
            self.read_stderr(&line);
        }
        match status.success() {
            true => Ok(std::mem::take(&mut self.stderr)),
            false => Err(format!("ended with {status}; it printed:\n{}", self.stderr)),
        }
    }

    fn read_stderr(&mut self, line: &str) {
        if let Some(address) = line.strip_prefix(READY)
            && self.address.is_empty()
        {
            self.address = address.to_owned();
        }
        self.stderr.push_str(line);
        self.stderr.push('\n');
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // After an orderly end there is no process left to kill.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
