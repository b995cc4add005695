//! uselect: runs a program with its waits answered from memory.

use std::env;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use uselect::{Mode, Tracker};

const USAGE: &str = "usage: uselect run [OPTION]... [--] PROGRAM [ARGUMENT]...
Runs PROGRAM with poll, select and epoll of its TCP sockets answered from memory.
  --stats            each process of it that ends tells how its waits were answered
  --socket PATH      where uselectd listens; /run/uselectd.sock
  --backend NAME     auto, bpf, multishot or calls; auto, the first that there is
  --help             this text";

const LIBRARY: &str = "libuselect_preload.so";

fn main() -> ExitCode {
    let words: Vec<OsString> = env::args_os().skip(1).collect();
    let error = match Run::of(&words) {
        Ok(None) => {
            println!("{USAGE}");
            return ExitCode::SUCCESS;
        }
        Ok(Some(run)) => run.run(),
        Err(error) => error,
    };
    eprintln!("uselect: {error}");
    if let Error::Usage(_) = error {
        eprintln!("{USAGE}");
    }
    error.status()
}

/// Why the program does not run.
enum Error {
    Usage(String),
    /// There is nothing to be preloaded.
    NoLibrary(PathBuf),
    /// What was asked for by name is not there.
    NoBackend(uselect::Error, PathBuf),
    Program(OsString, io::Error),
}

impl Error {
    /// As env(1) has it for a program that is not there, or cannot be run.
    fn status(&self) -> ExitCode {
        ExitCode::from(match self {
            Self::Usage(_) => 2,
            Self::NoLibrary(_) | Self::NoBackend(..) => 1,
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
                write!(out, "the backend that was asked for: {}", error.at(socket))
            }
            Self::Program(name, error) => write!(out, "{}: {error}", name.display()),
        }
    }
}

/// What the command line says.
#[derive(Default)]
struct Run {
    stats: bool,
    socket: Option<OsString>,
    backend: Option<String>,
    program: OsString,
    arguments: Vec<OsString>,
}

impl Run {
    /// `None`: the usage is asked for.
    fn of(words: &[OsString]) -> Result<Option<Self>, Error> {
        let usage = |mistake: String| Err(Error::Usage(mistake));
        let (mut run, mut rest) = (Self::default(), words.iter());
        match rest.next().and_then(|word| word.to_str()) {
            Some("run") => {}
            Some("--help") => return Ok(None),
            Some(word) => return usage(format!("no command is {word}: run")),
            None => return usage("a command is missing: run".to_owned()),
        }
        let mut program = None;
        while let Some(word) = rest.next() {
            let mut value = || {
                let name = word.display();
                rest.next().ok_or_else(|| Error::Usage(format!("{name} wants a value")))
            };
            match word.to_str() {
                Some("--help") => return Ok(None),
                Some("--stats") => run.stats = true,
                Some("--socket") => run.socket = Some(socket(value()?)?),
                Some("--backend") => run.backend = Some(backend(value()?)?),
                Some("--") => {
                    program = rest.next();
                    break;
                }
                Some(option) if option.starts_with('-') => {
                    return usage(format!("no option is {option}"));
                }
                _ => {
                    program = Some(word);
                    break;
                }
            }
        }
        let Some(program) = program else { return usage("a program is missing".to_owned()) };
        run.program.clone_from(program);
        run.arguments = rest.cloned().collect();
        Ok(Some(run))
    }

    /// Comes back only with an error.
    fn run(self) -> Error {
        if let Err(error) = self.check_backend() {
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
        set(&mut command, "USELECT_STATS", self.stats.then_some(OsStr::new("1")));
        Error::Program(self.program, command.exec())
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
