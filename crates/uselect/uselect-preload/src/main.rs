//! uselect: runs a program with its waits answered from memory.

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
Runs PROGRAM with poll, select and epoll of its TCP sockets answered from memory.
  --stats[=FILE]     each process of it that ends tells how its waits were answered, on standard
                     error or at the end of FILE
  --socket PATH      where uselectd listens; /run/uselectd.sock
  --backend NAME     auto, bpf, multishot or calls; auto, the first that there is
  --help             this text
  --version          the version";

const VERSION: &str = concat!("uselect ", env!("CARGO_PKG_VERSION"));

const LIBRARY: &str = "libuselect_preload.so";

fn main() -> ExitCode {
    let error = match Run::parse(Parser::from_env()) {
        Ok(Asked::Text(text)) => return print(text),
        Ok(Asked::Run(run)) => {
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

/// Writes help or version to standard output. A reader may close its pipe early; any other failure
/// is an error.
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

/// Why the program does not run.
enum Error {
    Usage(String),
    /// There is nothing to be preloaded.
    NoLibrary(PathBuf),
    /// What was asked for by name is not there.
    NoBackend(uselect::Error, PathBuf),
    /// The file for statistics cannot be opened.
    NoStats(PathBuf, io::Error),
    Program(OsString, io::Error),
}

impl Error {
    /// As env(1) has it for a program that is not there, or cannot be run.
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
    fn from(mistake: lexopt::Error) -> Self {
        Self::Usage(mistake.to_string())
    }
}

impl fmt::Display for Error {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Usage(mistake) => out.write_str(mistake),
            Self::NoLibrary(folder) => {
                let folder = folder.display();
                write!(out, "{LIBRARY} is neither in {folder} nor in {folder}/../lib")
            }
            Self::NoBackend(error, socket) => {
                write!(
                    out,
                    "the backend that was asked for is not there: {}",
                    error.at_path(socket)
                )
            }
            Self::NoStats(file, error) => write!(out, "--stats={}: {error}", file.display()),
            Self::Program(name, error) => write!(out, "{}: {error}", name.display()),
        }
    }
}

/// What a command line asks for.
enum Asked {
    Text(&'static str),
    Run(Run),
}

/// What is to be run, and how.
#[derive(Default)]
struct Run {
    /// Where statistics go, if they are asked for; standard error if the path is empty.
    stats: Option<PathBuf>,
    socket: Option<OsString>,
    backend: Option<String>,
    program: OsString,
    arguments: Vec<OsString>,
}

impl Run {
    fn parse(mut words: Parser) -> Result<Asked, Error> {
        let mut run = Self::default();
        match words.next()? {
            Some(Value(command)) if command == "run" => {}
            Some(Long("help")) => return Ok(Asked::Text(USAGE)),
            Some(Long("version")) => return Ok(Asked::Text(VERSION)),
            Some(Value(command)) => {
                return Err(Error::Usage(format!("unknown command {command:?} (expected: run)")));
            }
            Some(other) => return Err(other.unexpected().into()),
            None => return Err(Error::Usage("missing command (expected: run)".to_owned())),
        }
        while let Some(word) = words.next()? {
            match word {
                Long("stats") => run.stats = Some(stats(words.optional_value())?),
                Long("socket") => run.socket = Some(socket(words.value()?)?),
                Long("backend") => run.backend = Some(backend(&words.value()?)?),
                Long("help") => return Ok(Asked::Text(USAGE)),
                Long("version") => return Ok(Asked::Text(VERSION)),
                Value(program) => {
                    run.program = program;
                    run.arguments = words.raw_args()?.collect();
                    return Ok(Asked::Run(run));
                }
                other => return Err(other.unexpected().into()),
            }
        }
        Err(Error::Usage("missing program".to_owned()))
    }

    /// Comes back only with an error.
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

    /// A file that cannot be appended to is an error here, as the backend is.
    fn check_stats(&self) -> Result<(), Error> {
        let Some(file) = self.stats.as_ref().filter(|file| !file.as_os_str().is_empty()) else {
            return Ok(());
        };
        let opened = File::options().append(true).create(true).open(file);
        opened.map(drop).map_err(|error| Error::NoStats(file.clone(), error))
    }

    /// A backend that was named and cannot be had is an error here. Later it would be one of a
    /// program that knows nothing of it.
    fn check_backend(&self) -> Result<(), Error> {
        let socket = self.socket.as_deref().map_or(Path::new(uselect::DEFAULT_SOCKET), Path::new);
        let made = match self.backend.as_deref() {
            Some("bpf") => Tracker::register(socket, TrackingMode::Exact),
            Some("multishot") => Tracker::multishot(),
            _ => return Ok(()),
        };
        made.map(drop).map_err(|error| Error::NoBackend(error, socket.to_owned()))
    }
}

/// Where statistics go: a program may change its folder.
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

/// Beside this program where it was built, in `../lib` where it was installed.
fn library() -> Result<PathBuf, Error> {
    let program = env::current_exe().unwrap_or_default();
    let folder = program.parent().unwrap_or(Path::new("/"));
    let places = [folder.join(LIBRARY), folder.join("../lib").join(LIBRARY)];
    let found = places.into_iter().find(|place| place.is_file());
    found.ok_or_else(|| Error::NoLibrary(folder.to_owned()))
}
