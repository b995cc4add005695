//! uselect: runs a program with select, poll and epoll served from memory.

use std::convert::Infallible;
use std::env;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use lexopt::Arg::{Long, Value};
use lexopt::Parser;
use uselect::{Tracker, TrackingMode};

const USAGE: &str = "usage: uselect run [OPTION]... [--] PROGRAM [ARGUMENT]...
Run PROGRAM with select, poll and epoll of its TCP sockets served from memory.

Example: uselect run --stats -- lighttpd -D -f lighttpd.conf

Options:
  --stats[=FILE]     Report at the exit of each process how its waits were served, on standard
                     error or appended to FILE
  --socket PATH      Socket of uselectd [default: /run/uselectd.sock]
  --backend NAME     How waits are served [possible values: auto, bpf, multishot, calls]
                     [default: auto, the first available one]
  --help             Print this help
  --version          Print the version";

const VERSION: &str = concat!("uselect ", env!("CARGO_PKG_VERSION"));

const LIBRARY: &str = "libuselect_preload.so";

fn main() -> ExitCode {
    let error = match RunCommand::parse(Parser::from_env()) {
        Ok(CommandLine::Text(text)) => return print(text),
        Ok(CommandLine::Run(run)) => {
            let Err(error) = run.run();
            error
        }
        Err(error) => error,
    };
    eprintln!("uselect: {error}");
    if let Error::Usage(_) = error {
        eprintln!("{USAGE}");
    }
    error.status()
}

/// Writes help or version to standard output. A closed pipe is no error; any other failure is.
fn print(text: &str) -> ExitCode {
    let mut output = io::stdout().lock();
    match writeln!(output, "{text}").and_then(|()| output.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            eprintln!("uselect: cannot write to standard output: {error}");
            ExitCode::FAILURE
        }
        _ => ExitCode::SUCCESS,
    }
}

/// Why the program was not run.
enum Error {
    /// The command line is invalid.
    Usage(String),
    /// The preload library was not found.
    NoLibrary(PathBuf),
    /// The named backend is not available.
    NoBackend(String, uselect::Error, PathBuf),
    /// The file for statistics cannot be opened.
    NoStats(PathBuf, io::Error),
    /// The program cannot be executed.
    Program(OsString, io::Error),
}

impl Error {
    /// Returns the exit status; for a program that is missing or cannot be executed, the one that
    /// env(1) has.
    fn status(&self) -> ExitCode {
        ExitCode::from(match self {
            Self::Usage(_) => 2,
            Self::NoLibrary(_) | Self::NoBackend(..) | Self::NoStats(..) => 1,
            Self::Program(_, error) if error.kind() == io::ErrorKind::NotFound => 127,
            Self::Program(..) => 126,
        })
    }
}

impl From<lexopt::Error> for Error {
    fn from(error: lexopt::Error) -> Self {
        Self::Usage(error.to_string())
    }
}

impl fmt::Display for Error {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Usage(error) => out.write_str(error),
            Self::NoLibrary(directory) => {
                let directory = directory.display();
                write!(out, "{LIBRARY}: not found in {directory} or {directory}/../lib")
            }
            Self::NoBackend(name, error, socket) => {
                write!(out, "backend {name} is not available: {}", error.at_path(socket))
            }
            Self::NoStats(file, error) => write!(out, "--stats={}: {error}", file.display()),
            Self::Program(name, error) => write!(out, "{}: {error}", name.display()),
        }
    }
}

/// A parsed command line.
enum CommandLine {
    Text(&'static str),
    Run(RunCommand),
}

/// The arguments of `uselect run`.
#[derive(Default)]
struct RunCommand {
    /// The file for statistics, if they are requested; empty for standard error.
    stats: Option<PathBuf>,
    socket: Option<OsString>,
    backend: Option<String>,
    program: OsString,
    arguments: Vec<OsString>,
}

impl RunCommand {
    fn parse(mut arguments: Parser) -> Result<CommandLine, Error> {
        let mut run = Self::default();
        match arguments.next()? {
            Some(Value(command)) if command == "run" => {}
            Some(Long("help")) => return Ok(CommandLine::Text(USAGE)),
            Some(Long("version")) => return Ok(CommandLine::Text(VERSION)),
            Some(Value(command)) => {
                return Err(Error::Usage(format!("unknown command {command:?} (expected: run)")));
            }
            Some(other) => return Err(other.unexpected().into()),
            None => return Err(Error::Usage("missing command (expected: run)".to_owned())),
        }
        while let Some(word) = arguments.next()? {
            match word {
                Long("stats") => run.stats = Some(stats(arguments.optional_value())?),
                Long("socket") => run.socket = Some(socket(arguments.value()?)?),
                Long("backend") => run.backend = Some(backend(&arguments.value()?)?),
                Long("help") => return Ok(CommandLine::Text(USAGE)),
                Long("version") => return Ok(CommandLine::Text(VERSION)),
                Value(program) => {
                    run.program = program;
                    run.arguments = arguments.raw_args()?.collect();
                    return Ok(CommandLine::Run(run));
                }
                other => return Err(other.unexpected().into()),
            }
        }
        Err(Error::Usage("missing program".to_owned()))
    }

    /// Executes the program. Returns only with an error.
    fn run(self) -> Result<Infallible, Error> {
        self.check_backend()?;
        self.check_stats()?;
        let mut preload = library()?.into_os_string();
        if let Some(others) = env::var_os("LD_PRELOAD").filter(|others| !others.is_empty()) {
            preload.push(":");
            preload.push(others);
        }
        let mut command = Command::new(&self.program);
        command.args(&self.arguments).env("LD_PRELOAD", preload);
        let set = |command: &mut Command, name: &str, value: Option<&OsStr>| match value {
            Some(value) => drop(command.env(name, value)),
            None => drop(command.env_remove(name)),
        };
        set(&mut command, "USELECT_SOCKET", self.socket.as_deref());
        set(&mut command, "USELECT_BACKEND", self.backend.as_deref().map(OsStr::new));
        let stats = self.stats.as_ref().map(|file| match file.as_os_str() {
            none if none.is_empty() => OsStr::new("1"),
            file => file,
        });
        set(&mut command, "USELECT_STATS", stats);
        Err(Error::Program(self.program, command.exec()))
    }

    /// Fails if the file for statistics cannot be appended to.
    fn check_stats(&self) -> Result<(), Error> {
        let Some(file) = self.stats.as_ref().filter(|file| !file.as_os_str().is_empty()) else {
            return Ok(());
        };
        let opened = File::options().append(true).create(true).open(file);
        opened.map(drop).map_err(|error| Error::NoStats(file.clone(), error))
    }

    /// Fails if a named backend is not available. Once the program runs, its start cannot be
    /// refused any more.
    fn check_backend(&self) -> Result<(), Error> {
        let socket = self.socket.as_deref().map_or(Path::new(uselect::DEFAULT_SOCKET), Path::new);
        let name = self.backend.as_deref().unwrap_or_default();
        let tracker = match name {
            "bpf" => Tracker::register(socket, TrackingMode::Exact),
            "multishot" => Tracker::multishot(),
            _ => return Ok(()),
        };
        tracker
            .map(drop)
            .map_err(|error| Error::NoBackend(name.to_owned(), error, socket.to_owned()))
    }
}

/// Returns the file for statistics as an absolute path, because a program may change its directory.
fn stats(file: Option<OsString>) -> Result<PathBuf, Error> {
    let Some(file) = file else { return Ok(PathBuf::new()) };
    if file.is_empty() {
        return Err(Error::Usage("invalid --stats \"\" (expected: a file)".to_owned()));
    }
    std::path::absolute(&file).map_err(|error| Error::NoStats(file.into(), error))
}

fn socket(value: OsString) -> Result<OsString, Error> {
    const PATH_MAX: usize = 107;
    match value.len() {
        1..=PATH_MAX => Ok(value),
        _ => Err(Error::Usage(format!(
            "invalid --socket {value:?} (expected: a path of 1 to {PATH_MAX} bytes)"
        ))),
    }
}

fn backend(value: &OsStr) -> Result<String, Error> {
    match value.to_str() {
        Some(name @ ("auto" | "bpf" | "multishot" | "calls")) => Ok(name.to_owned()),
        _ => Err(Error::Usage(format!(
            "invalid --backend {value:?} (expected: auto, bpf, multishot or calls)"
        ))),
    }
}

/// Finds the library: in the directory of this program, or in `../lib` from there.
fn library() -> Result<PathBuf, Error> {
    let program = env::current_exe().unwrap_or_default();
    let directory = program.parent().unwrap_or(Path::new("/"));
    let places = [directory.join(LIBRARY), directory.join("../lib").join(LIBRARY)];
    let found = places.into_iter().find(|place| place.is_file());
    found.ok_or_else(|| Error::NoLibrary(directory.to_owned()))
}
