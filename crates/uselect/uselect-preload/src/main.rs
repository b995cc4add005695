//! uselect: runs a program with its waits answered from memory.

use std::env;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use uselect::{Mode, Tracker};

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
    let words: Vec<OsString> = env::args_os().skip(1).collect();
    let error = match Run::of(&words) {
        Ok(Asked::Text(text)) => {
            return print(text);
        }
        Ok(Asked::Run(run)) => run.run(),
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

impl fmt::Display for Error {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Usage(mistake) => out.write_str(mistake),
            Self::NoLibrary(folder) => {
                let folder = folder.display();
                write!(out, "{LIBRARY} is neither in {folder} nor in {folder}/../lib")
            }
            Self::NoBackend(error, socket) => {
                write!(out, "the backend that was asked for is not there: {}", error.at(socket))
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
    fn of(words: &[OsString]) -> Result<Asked, Error> {
        let usage = |mistake: String| Err(Error::Usage(mistake));
        let (mut run, mut rest) = (Self::default(), words.iter());
        match rest.next().and_then(|word| word.to_str()) {
            Some("run") => {}
            Some(word) => match text(word) {
                Some(text) => return Ok(Asked::Text(text)),
                None => return usage(format!("no command is {word}: run")),
            },
            None => return usage("a command is missing: run".to_owned()),
        }
        let mut program = None;
        while let Some(word) = rest.next() {
            let (name, given) = parts(word);
            let mut value = || {
                let value = given.or_else(|| rest.next().map(OsString::as_os_str));
                value.ok_or_else(|| Error::Usage(format!("{} wants a value", name.display())))
            };
            match name.to_str() {
                Some("--stats") => run.stats = Some(stats(given)?),
                Some("--socket") => run.socket = Some(socket(value()?)?),
                Some("--backend") => run.backend = Some(backend(value()?)?),
                Some("--") if given.is_none() => {
                    program = rest.next();
                    break;
                }
                Some(option) if option.starts_with('-') => match text(option) {
                    Some(text) if given.is_none() => return Ok(Asked::Text(text)),
                    _ => return usage(format!("no option is {}", word.display())),
                },
                _ => {
                    program = Some(word);
                    break;
                }
            }
        }
        let Some(program) = program else { return usage("a program is missing".to_owned()) };
        run.program.clone_from(program);
        run.arguments = rest.cloned().collect();
        Ok(Asked::Run(run))
    }

    /// Comes back only with an error.
    fn run(self) -> Error {
        if let Err(error) = self.check_backend() {
            return error;
        }
        if let Err(error) = self.check_stats() {
            return error;
        }
        let library = match library() {
            Ok(library) => library,
            Err(error) => return error,
        };
        let mut preload = library.into_os_string();
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
        Error::Program(self.program, command.exec())
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
        let socket = self.socket.as_deref().map_or(Path::new(uselect::SOCKET), Path::new);
        let made = match self.backend.as_deref() {
            Some("bpf") => Tracker::register(socket, Mode::Exact),
            Some("multishot") => Tracker::multishot(),
            _ => return Ok(()),
        };
        made.map(drop).map_err(|error| Error::NoBackend(error, socket.to_owned()))
    }
}

/// What an option prints that asks for nothing else.
fn text(option: &str) -> Option<&'static str> {
    match option {
        "--help" => Some(USAGE),
        "--version" => Some(VERSION),
        _ => None,
    }
}

/// The name and the value of `--name=value`; of anything else, all of it and no value.
fn parts(word: &OsStr) -> (&OsStr, Option<&OsStr>) {
    let bytes = word.as_bytes();
    match bytes.iter().position(|byte| *byte == b'=') {
        Some(at) if bytes.starts_with(b"--") => {
            (OsStr::from_bytes(&bytes[..at]), Some(OsStr::from_bytes(&bytes[at + 1..])))
        }
        _ => (word, None),
    }
}

/// Where statistics go: a program may change its folder.
fn stats(file: Option<&OsStr>) -> Result<PathBuf, Error> {
    let Some(file) = file else { return Ok(PathBuf::new()) };
    if file.is_empty() {
        return Err(Error::Usage("--stats= wants a file".to_owned()));
    }
    std::path::absolute(file).map_err(|error| Error::NoStats(file.into(), error))
}

fn socket(value: &OsStr) -> Result<OsString, Error> {
    const PATH_MAX: usize = 107;
    match value.len() {
        1..=PATH_MAX => Ok(value.to_owned()),
        count => Err(Error::Usage(format!(
            "--socket has {count} bytes: the path of a Unix socket has 1 to {PATH_MAX}"
        ))),
    }
}

fn backend(value: &OsStr) -> Result<String, Error> {
    match value.to_str() {
        Some(name @ ("auto" | "bpf" | "multishot" | "calls")) => Ok(name.to_owned()),
        _ => Err(Error::Usage(format!(
            "--backend {}: auto, bpf, multishot or calls",
            value.display()
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
