//! The time of filters over `iol_read` and `iol_write` beside the same filters over read(2) and
//! write(2), and of gcc with libiolite-stdio beside gcc: `cargo bench -p iolited --bench programs`,
//! optionally followed by `--`, a number of rounds, and `csv`. CPU time is that of all processes,
//! with the daemon. With `csv`, each round is a line instead.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../..");
const FILTERS: [&str; 4] = ["cat", "grep", "permute", "wc"];
const ROUNDS: usize = 9;
/// The bytes of the long file.
const FILE_BYTES: usize = 64 << 20;
/// iolited compares bytes of a file again that was changed less than this time before.
const SETTLING_TIME: Duration = Duration::from_millis(2100);
/// The functions of the long source: 200 KB.
const FUNCTIONS: usize = 780;

/// A line of sh(1), and how often it runs in one round. A word `%wc` stands for a filter.
struct Row {
    name: &'static str,
    line: &'static str,
    count: u32,
}

const ROWS: [Row; 6] = [
    Row { name: "wc -l file", line: "%wc -l file", count: 20 },
    Row { name: "cat | wc -l", line: "%cat file | %wc -l", count: 10 },
    Row { name: "cat | grep | wc", line: "%cat file | %grep needle | %wc", count: 6 },
    Row {
        name: "permute | wc",
        line: "%permute abcd efgh ijkl mnop qrst uvwx yzab cdef ghij klmn | %wc",
        count: 2,
    },
    Row { name: "gcc short source", line: "%gcc -pipe -c short.c -o object", count: 20 },
    Row { name: "gcc 200 KB", line: "%gcc -pipe -c long.c -o object", count: 1 },
];

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|of| of != "--bench").collect();
    let is_csv = arguments.iter().any(|of| of == "csv");
    let count = arguments.iter().find_map(|of| of.parse().ok()).unwrap_or(ROUNDS);
    assert!(count > 0, "a number of rounds");
    let place = Place::new();
    if is_csv {
        println!("program,kind,round,ms,cpu_ms");
    } else {
        println!("64 MB file; milliseconds, median of {count} rounds");
        println!(
            "{:18} {:>9} {:>9} {:>6} {:>9} {:>9} {:>6}",
            "", "elapsed", "iolite", "ratio", "CPU", "iolite", "ratio"
        );
    }
    std::thread::sleep(SETTLING_TIME);
    for row in &ROWS {
        place.run(row, true);
        let mut rounds: [Vec<[f64; 2]>; 2] = Default::default();
        for round in 0..count {
            for (has_iolite, times) in [false, true].into_iter().zip(&mut rounds) {
                let [time, cpu] = place.run(row, has_iolite);
                if is_csv {
                    let kind = if has_iolite { "iolite" } else { "ordinary" };
                    println!("{},{kind},{round},{time:.4},{cpu:.4}", row.name);
                }
                times.push([time, cpu]);
            }
        }
        if is_csv {
            continue;
        }
        print!("{:18}", row.name);
        for kind in [0, 1] {
            let [ordinary, iolite] = [&rounds[0], &rounds[1]].map(|times| {
                let mut times: Vec<f64> = times.iter().map(|of| of[kind]).collect();
                times.sort_by(f64::total_cmp);
                times[times.len() / 2]
            });
            print!(" {ordinary:9.2} {iolite:9.2} {:6.3}", iolite / ordinary);
        }
        println!();
    }
}

/// The folder with the files and the programs, and the daemon.
struct Place {
    folder: PathBuf,
    daemon: Child,
}

impl Place {
    fn new() -> Self {
        let folder = std::env::temp_dir().join(format!("iolited-bench-{}", std::process::id()));
        std::fs::create_dir(&folder).expect("a folder");
        let test = std::env::current_exe().expect("this program");
        let libraries = test.parent().expect("its folder");
        let include = format!("-I{ROOT}/crates/iolite/iolite-c/include");
        for name in FILTERS {
            let source = format!("examples/iolite/{name}.c");
            let library = libraries.join("libiolite_c.a");
            compile(&source, &folder.join(format!("iolite-{name}")), |cc| {
                cc.arg(&include).arg(&library).args(["-lpthread", "-ldl", "-lm"])
            });
            let ordinary = folder.join(format!("ordinary-{name}"));
            compile(&source, &ordinary, |cc| cc.arg("-DORDINARY"));
        }
        let stdio = "crates/iolite/iolite-stdio/iolite-stdio.c";
        compile(stdio, &folder.join("libiolite-stdio.so.0"), |cc| {
            cc.arg(&include).args(["-shared", "-fPIC", "-Wl,-rpath,$ORIGIN", "-ldl"])
        });
        std::os::unix::fs::symlink(libraries.join("libiolite_c.so"), folder.join("libiolite.so.0"))
            .expect("a link");
        std::fs::write(folder.join("file"), text()).expect("a file");
        std::fs::write(folder.join("short.c"), SHORT_SOURCE).expect("a file");
        std::fs::write(folder.join("long.c"), long_source()).expect("a file");

        let socket = folder.join("socket");
        let mut daemon = Command::new(env!("CARGO_BIN_EXE_iolited"));
        let daemon = daemon.arg("--socket").arg(&socket).stderr(Stdio::null()).spawn();
        while !socket.exists() {
            std::thread::sleep(Duration::from_millis(1));
        }
        Self { folder, daemon: daemon.expect("the daemon starts") }
    }

    /// Returns the elapsed time and the CPU time of one run of a row, in milliseconds.
    fn run(&self, row: &Row, has_iolite: bool) -> [f64; 2] {
        let preload = format!("LD_PRELOAD={}/libiolite-stdio.so.0 gcc", self.folder.display());
        let gcc = if has_iolite { &preload } else { "gcc" };
        let kind = if has_iolite { "./iolite-" } else { "./ordinary-" };
        let line = row.line.replace("%gcc", gcc).replace('%', kind);
        let repeat = format!("i=0; while [ $i -lt {} ]; do {line}; i=$((i+1)); done", row.count);
        let mut shell = Command::new("sh");
        shell.args(["-c", &repeat]).current_dir(&self.folder).stdout(Stdio::null());
        shell.env("IOLITED_SOCKET", self.folder.join("socket")).env("LC_ALL", "C");
        let (began, cpu_before) = (Instant::now(), self.cpu_time());
        assert!(shell.status().expect("sh").success(), "{line}");
        let times = [began.elapsed(), self.cpu_time() - cpu_before];
        times.map(|time| time.as_secs_f64() * 1e3 / f64::from(row.count))
    }

    /// Returns the CPU time of all processes that have ended, and of the daemon.
    fn cpu_time(&self) -> Duration {
        children_cpu_time() + millrace_sys::cpu_time_of(self.daemon.id()).expect("it runs")
    }
}

fn children_cpu_time() -> Duration {
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::uninit();
    // SAFETY: the kernel stores the usage, and `usage` outlives the call.
    let result = unsafe { libc::getrusage(libc::RUSAGE_CHILDREN, usage.as_mut_ptr()) };
    assert_eq!(result, 0);
    // SAFETY: the kernel has stored it.
    let usage = unsafe { usage.assume_init() };
    let time = |of: libc::timeval| Duration::new(of.tv_sec as u64, of.tv_usec as u32 * 1000);
    time(usage.ru_utime) + time(usage.ru_stime)
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = self.daemon.kill();
        let _ = self.daemon.wait();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

fn compile(source: &str, output: &Path, options: impl Fn(&mut Command) -> &mut Command) {
    let mut cc = Command::new("cc");
    cc.args(["-O3", "-o"]).arg(output).arg(Path::new(ROOT).join(source));
    assert!(options(&mut cc).status().expect("cc").success(), "{source}");
}

/// Returns lines of text, with a needle in one of 50.
fn text() -> String {
    let (mut text, mut state) = (String::new(), 1_u64);
    while text.len() < FILE_BYTES {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        let (number, word) = (state >> 40, state >> 44 & 0xffff);
        let needle = if number.is_multiple_of(50) { "needle" } else { "" };
        writeln!(text, "{number} word {word:x} {needle}").expect("a string takes all text");
    }
    text
}

const SHORT_SOURCE: &str = "\
#include <stdio.h>
int main(void) { puts(\"hello\"); return 0; }
";

fn long_source() -> String {
    let mut source = "#include <stdio.h>\n#include <string.h>\n".to_owned();
    for number in 0..FUNCTIONS {
        let function = format!(
            "int function_{number}(int a, const char *text)\n{{\n    int sum = {number};\n    \
             for (int j = 0; j < a; j++)\n        sum += text[j] * {} + (int)strlen(text + j);\n    \
             if (sum > {})\n        printf(\"%d %s\\n\", sum, text);\n    return sum;\n}}\n",
            number % 97,
            number * 3
        );
        source += &function;
    }
    source
}
