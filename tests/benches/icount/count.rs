//! Runs scripts under callgrind and reads what it collected.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use millrace_tests::border;

use crate::script::Script;

/// Describes everything besides the code that the counts depend on: the versions of the compiler,
/// the C library and valgrind, and the instruction sets by which the C library and memchr choose
/// their code. Two tables are comparable only if their descriptions are equal.
///
/// # Errors
/// Returns an error if a tool for counting is missing.
pub(crate) fn maker() -> Result<String, String> {
    if !cfg!(all(target_arch = "x86_64", target_os = "linux")) {
        return Err("the baseline is for x86-64 Linux".to_owned());
    }
    let valgrind = first_line("valgrind", &["--version"])
        .ok_or("valgrind is not installed (scripts/setup test installs it)")?;
    let rustc = first_line("rustc", &["--version"]).ok_or("rustc --version failed")?;
    let libc = first_line("getconf", &["GNU_LIBC_VERSION"]).unwrap_or("another libc".to_owned());
    let avx2 = if has_avx2() { "with AVX2" } else { "without AVX2" };
    Ok(format!("{rustc}, {valgrind}, {libc}, x86-64 {avx2}"))
}

#[cfg(target_arch = "x86_64")]
fn has_avx2() -> bool {
    std::is_x86_feature_detected!("avx2")
}

#[cfg(not(target_arch = "x86_64"))]
fn has_avx2() -> bool {
    false
}

fn first_line(program: &str, arguments: &[&str]) -> Option<String> {
    let output = Command::new(program).args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    text.lines().next().filter(|_| output.status.success()).map(str::to_owned)
}

/// Counts instructions per exchange of each script. Subtracting a short run from a long one removes
/// the cost of the start and of the first connections.
///
/// # Errors
/// Returns the output of the run that failed.
pub(crate) fn count(scripts: &[Script]) -> Result<Vec<(String, u64)>, String> {
    let mut rows = Vec::new();
    for script in scripts {
        let runs = script.exchanges.map(|exchanges| Run::start(script, exchanges));
        let [short, long] = runs.map(|run| run.and_then(Run::end));
        let difference = long?.checked_sub(short?).ok_or("a longer run took fewer instructions")?;
        let exchanges = u64::from(script.exchanges[1] - script.exchanges[0]);
        rows.push((script.name.to_owned(), difference / exchanges));
    }
    Ok(rows)
}

/// A run of a script under callgrind.
struct Run {
    child: Child,
    out: PathBuf,
}

impl Run {
    /// Starts the run. The environment has only PATH and the length of the program's name is
    /// constant, so that the stack begins at the same place: the cost of a copy depends on its
    /// alignment.
    fn start(script: &Script, exchanges: u32) -> Result<Self, String> {
        let program = std::env::current_exe().map_err(|error| error.to_string())?;
        let (folder, name) = (program.parent(), program.file_name());
        let (Some(folder), Some(name)) = (folder, name) else {
            return Err("this program has no path".to_owned());
        };
        let process = std::process::id();
        let out = folder.join(format!("icount-{process}-{}-{exchanges}.out", script.name));
        let valgrind = Command::new("valgrind")
            .current_dir(folder)
            .env_clear()
            .envs(std::env::var_os("PATH").map(|path| ("PATH", path)))
            .args(["--tool=callgrind", "--collect-atstart=no", "--combine-dumps=yes"])
            .args(border::SWITCHES.map(|pattern| format!("--toggle-collect={pattern}")))
            .arg(format!("--callgrind-out-file={}", out.display()))
            .arg(Path::new(".").join(name))
            .args(["play", script.name, &format!("{exchanges:05}")])
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn();
        let child = valgrind.map_err(|error| format!("valgrind does not start: {error}"))?;
        Ok(Self { child, out })
    }

    /// Returns the collected instructions.
    fn end(self) -> Result<u64, String> {
        let output = self.child.wait_with_output().map_err(|error| error.to_string())?;
        let profile = fs::read_to_string(&self.out).unwrap_or_default();
        let _ = fs::remove_file(&self.out);
        let stderr = String::from_utf8_lossy(&output.stderr);
        if !output.status.success() {
            return Err(format!("a script failed: {}\n{stderr}", output.status));
        }
        let totals = profile.lines().find_map(|line| line.strip_prefix("totals: "));
        let collected = totals.and_then(|totals| totals.trim().parse().ok());
        collected.filter(|&count| count > 0).ok_or(format!("nothing was collected:\n{stderr}"))
    }
}
