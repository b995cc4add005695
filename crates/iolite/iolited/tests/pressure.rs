//! `--cache-memory auto` in a control group without enough memory for all.

mod common;

use std::fs;
use std::io::{BufRead, BufReader, Read, Write, stdin};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use common::{Actor, Daemon, Folder, by_kernel, pattern, wait_until, whole};

const MEGABYTE: u64 = 1 << 20;
/// The memory of the group.
const GROUP_BYTES: u64 = 192 * MEGABYTE;
/// The memory that another process takes at a time.
const TAKEN_BYTES: u64 = 4 * MEGABYTE;

/// A control group that limits memory. It is removed at the end.
struct Group {
    folder: PathBuf,
    usage: &'static str,
}

impl Group {
    /// Makes a group below the root of the hierarchy, or returns the reason why that cannot be.
    fn make() -> Result<Self, String> {
        if millrace_sys::effective_user() != 0 {
            return Err("only root makes control groups".to_owned());
        }
        let mounts = fs::read_to_string("/proc/self/mountinfo").expect("proc(5)");
        let version_1 = find_mount(&mounts, |kind, options| {
            kind == "cgroup" && options.split(',').any(|option| option == "memory")
        });
        let version_2 = find_mount(&mounts, |kind, _| kind == "cgroup2");
        let (mount, limit, usage) = match (version_1, version_2) {
            (Some(mount), _) => (mount, "memory.limit_in_bytes", "memory.usage_in_bytes"),
            (None, Some(mount)) => (mount, "memory.max", "memory.current"),
            (None, None) => return Err("no control groups are mounted".to_owned()),
        };
        let given = fs::read_to_string(mount.join("cgroup.subtree_control"));
        if given.is_ok_and(|given| !given.split_whitespace().any(|of| of == "memory")) {
            return Err("memory is not controlled below the root".to_owned());
        }
        let folder = mount.join(format!("iolited-test-{}", std::process::id()));
        fs::create_dir(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
        fs::write(folder.join(limit), GROUP_BYTES.to_string()).expect("a limit");
        Ok(Self { folder, usage })
    }

    /// Returns a command that starts another one in the group.
    fn command(&self, program: impl AsRef<Path>) -> Command {
        let mut command = Command::new("/bin/sh");
        let script = "echo $$ > \"$0\" && exec \"$@\"";
        command.args(["-c", script]).arg(self.folder.join("cgroup.procs")).arg(program.as_ref());
        command
    }

    fn free_bytes(&self) -> u64 {
        let usage = fs::read_to_string(self.folder.join(self.usage)).expect("the usage");
        GROUP_BYTES.saturating_sub(usage.trim().parse().expect("a number"))
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // The kernel has its last process for some time yet.
        for _ in 0..1000 {
            if fs::remove_dir(&self.folder).is_ok() {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        println!("cannot remove {}", self.folder.display());
    }
}

fn find_mount(mounts: &str, is_it: impl Fn(&str, &str) -> bool) -> Option<PathBuf> {
    mounts.lines().find_map(|line| {
        let (left, right) = line.split_once(" - ")?;
        let mut kind = right.split(' ');
        let (kind, options) = (kind.next()?, kind.nth(1)?);
        is_it(kind, options).then(|| left.split(' ').nth(4).map(PathBuf::from))?
    })
}

/// Takes memory for each byte that it receives, and confirms it.
#[test]
fn plays_a_role() {
    if common::role().is_none() {
        return;
    }
    let mut taken = Vec::new();
    while stdin().read(&mut [0]).expect("the test") > 0 {
        taken.push(pattern(TAKEN_BYTES as usize, 1));
        println!("taken {}", taken.len());
    }
}

/// Has a process in a group take memory, each time when some is free.
fn take_memory(group: &Group, folder: &Folder, daemon: &Daemon, times: u64) -> Actor {
    let program = std::env::current_exe().expect("this program");
    let role = Actor::command(&program, "takes-memory", &daemon.socket, folder);
    let mut command = group.command(&program);
    command.args(role.get_args()).stdin(Stdio::piped()).stdout(Stdio::piped());
    command.envs(role.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let mut actor = Actor(command.spawn().expect("a process"));
    let mut lines = BufReader::new(actor.0.stdout.take().expect("a pipe")).lines();
    for time in 1..=times {
        wait_until("the cache leaves memory", || group.free_bytes() >= 2 * TAKEN_BYTES);
        actor.0.stdin.as_mut().expect("a pipe").write_all(&[1]).expect("it runs");
        let line = format!("taken {time}");
        assert!(lines.any(|read| read.expect("its output").ends_with(&line)), "it was killed");
    }
    actor
}

#[test]
fn the_cache_leaves_memory_to_other_processes_and_takes_it_again() {
    let group = match Group::make() {
        Ok(group) => group,
        Err(reason) => return println!("skip: {reason}"),
    };
    let folder = Folder::new("pressure");
    let program = env!("CARGO_BIN_EXE_iolited");
    let daemon = Daemon::start_by(group.command(program), &folder, &["--cache-memory", "auto"]);
    let files: Vec<_> =
        (0..20).map(|number| folder.file(&number.to_string(), &pattern(4 << 20, number))).collect();
    let read_all = || {
        let client = daemon.client();
        for file in &files {
            assert!(whole(&client, file).to_vec() == by_kernel(file));
        }
        client.stats()
    };
    let mut full = 0;
    wait_until("the cache has all files", || {
        read_all();
        full = daemon.memory().0;
        full >= 80 * MEGABYTE
    });
    // More than the rest of the group, so the kernel would end a process of it.
    let taker = take_memory(&group, &folder, &daemon, 34);
    let shrunk = daemon.memory().0;
    assert!(shrunk <= GROUP_BYTES - 34 * TAKEN_BYTES, "{shrunk} of {full} bytes are left");
    let stats = read_all();
    assert!(stats.received > 0, "{stats:?}");
    assert!(daemon.memory().0 <= GROUP_BYTES - 34 * TAKEN_BYTES, "it stays small");
    drop(taker);
    wait_until("the cache has grown again", || {
        read_all();
        daemon.memory().0 >= shrunk + 4 * MEGABYTE
    });
}
