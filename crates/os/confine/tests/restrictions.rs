//! Calls that a restricted process can no longer make, tried on the running kernel. Restrictions
//! cannot be undone, so each test runs its part in a child process: this program again, with one
//! test.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::ffi::OsStr;
use std::io::{IoSlice, Read, Write};
use std::net::{TcpStream, ToSocketAddrs, UdpSocket};
use std::ops::ControlFlow;
use std::os::fd::AsFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::os::unix::process::{ExitStatusExt, parent_id};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::Duration;

use millrace_confine::{ExtraCalls, Grant, Identity};
use millrace_sys::{BeneathRules, BeneathUse, Errno, OpenMode};
use millrace_uring::Ring;

const PART: &str = "MILLRACE_TEST_PART";
const FOLDER: &str = "MILLRACE_TEST_FOLDER";

/// Runs a part of a test in a child process, with a directory of its own, and returns the exit
/// status of the child. `test` is the full name of the calling test, and `part` names the part. The
/// child executes the same test: there, the function calls `run` if the child is for this part, and
/// returns `None`.
fn run_in_child(test: &str, part: &str, run: impl FnOnce(&Path)) -> Option<ExitStatus> {
    let name = format!("{test} {part}");
    if let Ok(asked) = std::env::var(PART) {
        if asked == name {
            run(Path::new(&std::env::var_os(FOLDER).unwrap()));
        }
        return None;
    }
    let folder = format!("millrace-{test}-{}-{}", part.replace(' ', "-"), std::process::id());
    let folder = std::env::temp_dir().join(folder);
    std::fs::create_dir(&folder).unwrap();
    let status = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture", "--test-threads=1"])
        .envs([(PART, OsStr::new(&name)), (FOLDER, folder.as_os_str())])
        .stdout(Stdio::null())
        .status();
    std::fs::remove_dir_all(&folder).unwrap();
    Some(status.unwrap())
}

/// Like [`run_in_child`], and asserts that the part succeeds.
fn succeed_in_child(test: &str, part: &str, run: impl FnOnce(&Path)) {
    if let Some(status) = run_in_child(test, part, run) {
        assert!(status.success(), "{test} {part}: {status}");
    }
}

/// Makes a system call, given its number and its first arguments.
fn call(number: libc::c_long, arguments: [libc::c_long; 3]) -> Result<libc::c_long, Errno> {
    let [first, second, third] = arguments;
    // SAFETY: the callers pass numbers, and null for pointers, which the kernel rejects.
    let result = unsafe { libc::syscall(number, first, second, third, 0, 0, 0) };
    if result >= 0 {
        return Ok(result);
    }
    Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap())
}

/// Sends bytes through a TCP connection within this thread.
fn echo() {
    let listener = millrace_sys::listen_tcp("127.0.0.1:0".parse().unwrap(), false).unwrap();
    let address = millrace_sys::local_address(listener.as_fd()).unwrap().unwrap();
    let mut client = TcpStream::connect(address).unwrap();
    client.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let (server, _) = millrace_sys::accept(listener.as_fd()).unwrap();
    client.write_all(b"bytes").unwrap();
    millrace_sys::send(server.as_fd(), &[b"an", b"swer"], false).unwrap();
    let mut answer = [0; 6];
    client.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"answer");
}

#[test]
fn the_calls_of_a_proxy_succeed_under_the_filter() {
    succeed_in_child("the_calls_of_a_proxy_succeed_under_the_filter", "all", |folder| {
        std::os::unix::fs::symlink("served", folder.join("link")).unwrap();
        let (one, _other) = millrace_sys::packet_pair().unwrap();
        let all = ExtraCalls { rings: true, select: true, stores: true, channels: true };
        millrace_confine::restrict_syscalls(all).unwrap();
        let file = millrace_sys::create_memory_file("test", 4096).unwrap();
        millrace_sys::seal_contents(file.as_fd()).unwrap();
        assert!(millrace_sys::has_sealed_contents(file.as_fd()).unwrap());
        let process = millrace_sys::open_process(std::process::id()).unwrap();
        millrace_sys::send_packet(one.as_fd(), &[b"files"], &[file.as_fd(), process.as_fd()])
            .unwrap();
        let missing = millrace_sys::connect_packets(&folder.join("none")).unwrap_err();
        assert_eq!(missing, Errno::NOENT, "the call is allowed");
        echo();
        std::thread::Builder::new().name("another".to_owned()).spawn(echo).unwrap().join().unwrap();
        let panicked = std::thread::spawn(|| panic!("as intended")).join();
        assert!(panicked.is_err());
        match Ring::new(8, 8) {
            Ok(mut ring) => ring.enter(Some(Duration::ZERO)).unwrap(),
            Err(error) => assert_ne!(error, Errno::NOSYS),
        }
        let (read, write, _) = millrace_sys::pipe(1 << 16).unwrap();
        assert_eq!(millrace_sys::splice(read.as_fd(), write.as_fd(), 1), Err(Errno::INVAL));
        assert_eq!(millrace_sys::tee(read.as_fd(), write.as_fd(), 1), Err(Errno::INVAL));
        assert!(("localhost", 80).to_socket_addrs().unwrap().next().is_some());
        UdpSocket::bind("127.0.0.1:0").unwrap();
        let socket = folder.join("socket");
        let unix = millrace_sys::listen_unix(&socket, 0o666).unwrap();
        assert!(millrace_sys::is_listening(unix.as_fd()).unwrap());
        std::fs::write(folder.join("file"), "text").unwrap();
        std::fs::remove_file(socket).unwrap();
        assert!(std::fs::read_dir(folder).unwrap().count() == 2);
        assert!(millrace_sys::descriptor_count().unwrap() > 0);
        assert!(millrace_sys::resident_bytes().unwrap() > 0);
        assert!(millrace_sys::descriptor_limit() > 0);
        std::thread::available_parallelism().unwrap();
        assert_eq!(
            call(libc::SYS_kill, [std::process::id().into(), 0, 0]),
            Ok(0),
            "the process itself"
        );
        std::thread::sleep(Duration::from_millis(1));
        let mut random = [0; 8];
        millrace_sys::fill_random(&mut random);
        store(folder);
        serve(folder);
    });
}

/// Uses a directory like a disk of the cache does.
fn store(folder: &Path) {
    millrace_sys::create_directory(folder).unwrap();
    let folder = millrace_sys::open_directory(folder).unwrap();
    let file = millrace_sys::open_file(folder.as_fd(), "stored", OpenMode::New).unwrap();
    assert_eq!(millrace_sys::lock_file(file.as_fd()), Ok(true));
    let parts = [IoSlice::new(b"one"), IoSlice::new(b"two")];
    assert_eq!(millrace_sys::write_parts_at(file.as_fd(), &parts, 1), Ok(6));
    millrace_sys::truncate_file(file.as_fd(), 4).unwrap();
    millrace_sys::sync_file(file.as_fd()).unwrap();
    millrace_sys::rename_file(folder.as_fd(), "stored", "renamed").unwrap();
    millrace_sys::sync_directory(folder.as_fd()).unwrap();
    let mut read = [0; 8];
    assert_eq!(millrace_sys::read_at(file.as_fd(), &mut read, 0), Ok(4));
    assert_eq!(&read, b"\0one\0\0\0\0");
    assert!(millrace_sys::list_directory(folder.as_fd()).unwrap().contains(&"renamed".to_owned()));
    millrace_sys::remove_file(folder.as_fd(), "renamed").unwrap();
}

/// Uses a directory, which has a link to `served`, like a folder whose files are served.
fn serve(folder: &Path) {
    std::fs::write(folder.join("served"), "text").unwrap();
    let root = millrace_sys::open_folder(folder).unwrap();
    let open = |path: &str, purpose| {
        millrace_sys::open_beneath(root.as_fd(), path.as_bytes(), purpose, FOLLOW).unwrap()
    };
    let file = open("link", BeneathUse::Read);
    assert_eq!(millrace_sys::inode_status(file.as_fd()).unwrap().bytes, 4);
    let mut read = [0; 8];
    let cached = millrace_sys::read_cached_at(file.as_fd(), &mut read, 0);
    assert!(matches!(cached, Ok(4) | Err(Errno::AGAIN | Errno::OPNOTSUPP)), "{cached:?}");
    assert_eq!(millrace_sys::read_at(file.as_fd(), &mut read, 0), Ok(4));
    assert_eq!(
        millrace_sys::read_link(open("link", BeneathUse::FindLink).as_fd()).unwrap(),
        b"served"
    );
    let list = open(".", BeneathUse::List);
    let mut names = Vec::new();
    millrace_sys::visit_entries(list.as_fd(), &mut |name, _| {
        millrace_sys::entry_status(list.as_fd(), name).unwrap();
        names.push(name.to_vec());
        ControlFlow::Continue(())
    })
    .unwrap();
    assert!(names.contains(&b"link".to_vec()));
}

const FOLLOW: BeneathRules = BeneathRules { follows_links: true, may_wait: true };

#[test]
fn other_calls_do_not_exist_under_the_filter() {
    succeed_in_child("other_calls_do_not_exist_under_the_filter", "all", |_| {
        millrace_confine::restrict_syscalls(ExtraCalls::default()).unwrap();
        let missing = Err(Errno::NOSYS);
        let (stream, raw) = (libc::SOCK_STREAM.into(), libc::SOCK_RAW.into());
        for [family, kind, protocol] in [
            [libc::AF_INET.into(), raw, libc::IPPROTO_ICMP.into()],
            [libc::AF_INET6.into(), raw, libc::IPPROTO_TCP.into()],
            [libc::AF_PACKET.into(), raw, 0],
            [libc::AF_NETLINK.into(), raw, 0],
            [libc::AF_VSOCK.into(), stream, 0],
            [libc::AF_ALG.into(), libc::SOCK_SEQPACKET.into(), 0],
            [libc::AF_INET.into(), stream, libc::IPPROTO_SCTP.into()],
            [libc::AF_UNIX.into(), libc::SOCK_SEQPACKET.into(), 0],
        ] {
            let opened = call(libc::SYS_socket, [family, kind, protocol]);
            assert_eq!(opened, missing, "{family} {kind} {protocol}");
        }
        let executable = (libc::PROT_READ | libc::PROT_EXEC).into();
        assert_eq!(call(libc::SYS_mmap, [0, 4096, executable]), missing);
        assert_eq!(call(libc::SYS_mprotect, [0, 4096, executable]), missing);
        assert_eq!(
            call(libc::SYS_clone, [libc::SIGCHLD.into(), 0, 0]),
            missing,
            "without CLONE_THREAD"
        );
        let thread = libc::CLONE_THREAD | libc::CLONE_VM | libc::CLONE_SIGHAND;
        let namespaced = (thread | libc::CLONE_NEWUSER).into();
        assert_eq!(call(libc::SYS_clone, [namespaced, 0, 0]), missing);
        assert_eq!(call(libc::SYS_clone3, [0, 0, 0]), missing);
        assert_eq!(call(libc::SYS_kill, [1, 0, 0]), missing);
        assert_eq!(call(libc::SYS_tgkill, [1, 1, 0]), missing);
        assert_eq!(call(libc::SYS_prctl, [libc::PR_SET_DUMPABLE.into(), 1, 0]), missing);
        assert_eq!(call(libc::SYS_fchmodat, [0, 0, 0]), missing);
        assert_eq!(call(libc::SYS_memfd_create, [0, 0, 0]), missing);
        assert_eq!(call(libc::SYS_pidfd_open, [1, 0, 0]), missing, "channels were not requested");
        assert_eq!(call(libc::SYS_fcntl, [0, libc::F_GET_SEALS.into(), 0]), missing);
        assert_eq!(call(libc::SYS_io_uring_setup, [8, 0, 0]), missing, "rings were not requested");
        assert_eq!(call(libc::SYS_flock, [0, 0, 0]), missing, "stores were not requested");
        assert_eq!(call(libc::SYS_seccomp, [0, 0, 0]), missing);
        assert_eq!(call(9999, [0, 0, 0]), missing, "a call of a later kernel");
    });
}

#[test]
fn fatal_calls_kill_the_process() {
    let test = "fatal_calls_kill_the_process";
    for (name, number) in [
        ("execve", libc::SYS_execve),
        ("ptrace", libc::SYS_ptrace),
        ("bpf", libc::SYS_bpf),
        ("unshare", libc::SYS_unshare),
        ("setuid", libc::SYS_setuid),
        ("process_vm_readv", libc::SYS_process_vm_readv),
        ("open_by_handle_at", libc::SYS_open_by_handle_at),
    ] {
        let ended = run_in_child(test, name, |_| {
            millrace_confine::restrict_syscalls(ExtraCalls::default()).unwrap();
            let _ = call(number, [0, 0, 0]);
        });
        if let Some(status) = ended {
            assert_eq!(status.signal(), Some(libc::SIGSYS), "{name}: {status}");
        }
    }
}

#[test]
fn files_that_were_not_granted_are_out_of_reach() {
    if let Err(error) = millrace_confine::landlock_version() {
        println!("skip: no Landlock here: {error}");
        return;
    }
    succeed_in_child("files_that_were_not_granted_are_out_of_reach", "all", |folder| {
        let in_folder = |name: &str| folder.join(name);
        for name in ["read", "append", "sockets", "store", "other"] {
            std::fs::create_dir(in_folder(name)).unwrap();
            std::fs::write(in_folder(name).join("old"), "old").unwrap();
        }
        // Landlock does not restrict O_PATH, but what is opened below it.
        let roots = ["read", "other"].map(|name| millrace_sys::open_folder(&in_folder(name)));
        millrace_confine::restrict_files(
            &[
                (in_folder("read"), Grant::Read),
                (in_folder("append"), Grant::Append),
                (in_folder("sockets"), Grant::Sockets),
                (in_folder("store"), Grant::Store),
                (PathBuf::from("/proc/self"), Grant::Read),
                (PathBuf::from("/nowhere"), Grant::Read),
            ],
            false,
        )
        .unwrap();
        let denied = |result: std::io::Result<()>| {
            result.is_err_and(|error| error.kind() == std::io::ErrorKind::PermissionDenied)
        };
        let append = |path: &Path| {
            let file = std::fs::OpenOptions::new().append(true).create(true).open(path);
            file.and_then(|mut file| file.write_all(b"more"))
        };
        assert_eq!(std::fs::read(in_folder("read/old")).unwrap(), b"old");
        let opened = roots.map(|root| {
            let root = root.unwrap();
            millrace_sys::open_beneath(root.as_fd(), b"old", BeneathUse::Read, FOLLOW).map(drop)
        });
        assert_eq!(opened, [Ok(()), Err(Errno::ACCESS)]);
        append(&in_folder("append/old")).unwrap();
        append(&in_folder("append/new")).unwrap();
        millrace_sys::listen_unix(&in_folder("sockets/new"), 0o600).unwrap();
        std::fs::remove_file(in_folder("sockets/new")).unwrap();
        std::fs::write(in_folder("store/new"), "new").unwrap();
        std::fs::rename(in_folder("store/new"), in_folder("store/old")).unwrap();
        assert_eq!(std::fs::read(in_folder("store/old")).unwrap(), b"new");
        std::fs::remove_file(in_folder("store/old")).unwrap();
        assert_eq!(std::fs::read_dir(in_folder("store")).unwrap().count(), 0);
        // This reads a directory in /proc. The grant holds even if the kernel has dropped the
        // directory's inode meanwhile.
        assert!(millrace_sys::descriptor_count().unwrap() > 0);
        for path in ["/etc/shadow", "/etc/passwd", "/proc/1/status"] {
            assert!(denied(std::fs::read(path).map(drop)), "{path}");
        }
        assert!(denied(std::fs::read(in_folder("append/old")).map(drop)));
        assert!(denied(std::fs::read(in_folder("other/old")).map(drop)));
        assert!(denied(std::fs::write(in_folder("append/old"), "")), "the file is not truncated");
        assert!(denied(std::fs::remove_file(in_folder("append/old"))));
        assert!(denied(append(&in_folder("read/old"))));
        assert!(denied(append(&in_folder("sockets/file"))));
        assert!(denied(std::fs::create_dir(in_folder("store/folder"))));
        assert!(denied(Command::new("/bin/true").status().map(drop)), "nothing is executed");
    });
}

#[test]
fn processes_outside_and_abstract_sockets_are_out_of_reach() {
    match millrace_confine::landlock_version() {
        Ok(6..) => {}
        other => return println!("skip: this needs Landlock 6, of Linux 6.12; here: {other:?}"),
    }
    let test = "processes_outside_and_abstract_sockets_are_out_of_reach";
    // The parent, which starts a child for each part, is not restricted.
    let is_outside = std::env::var_os(PART).is_none();
    let outside = if is_outside { std::process::id() } else { parent_id() };
    let address = SocketAddr::from_abstract_name(format!("millrace-outside-{outside}")).unwrap();
    let _listener = is_outside.then(|| UnixListener::bind_addr(&address).unwrap());
    for (part, allowed) in [("without sockets", false), ("with sockets", true)] {
        succeed_in_child(test, part, |folder| {
            millrace_confine::restrict_files(&[(folder, Grant::Read)], allowed).unwrap();
            let refused = UnixStream::connect_addr(&address).map_err(|error| error.raw_os_error());
            assert_eq!(refused.err(), (!allowed).then_some(Some(libc::EPERM)));
            assert_eq!(call(libc::SYS_kill, [outside.into(), 0, 0]), Err(Errno::PERM));
        });
    }
}

/// Returns the value of the line `name` in /proc/thread-self/status, with single blanks.
fn status(name: &str) -> String {
    let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
    line.trim_start_matches(':').split_whitespace().collect::<Vec<_>>().join(" ")
}

const NOBODY: Identity = Identity { user: 65534, group: 65534 };
const LOW_PORTS: &str = "0000000000000400";
const NONE: &str = "0000000000000000";

#[test]
fn dropped_privileges_do_not_come_back() {
    if Identity::current().user != 0 {
        println!("skip: only root has what is given up here");
        return;
    }
    let test = "dropped_privileges_do_not_come_back";
    for (part, low_ports, kept) in [("all", false, NONE), ("but low ports", true, LOW_PORTS)] {
        succeed_in_child(test, part, |folder| {
            let private = folder.join("private");
            std::fs::write(&private, "secret").unwrap();
            let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
            std::fs::set_permissions(&private, mode).unwrap();
            assert!(NOBODY.run_as(|| std::fs::read(&private).is_err()).unwrap());
            assert_eq!(std::fs::read(&private).unwrap(), b"secret", "the old rights are restored");
            millrace_confine::drop_privileges(Some(NOBODY), low_ports).unwrap();
            let left = if low_ports { millrace_confine::NET_BIND_SERVICE } else { 0 };
            assert_eq!(millrace_confine::capabilities(), Ok(left));
            millrace_confine::set_no_new_privs().unwrap();
            millrace_confine::set_dumpable(false).unwrap();
            std::thread::spawn(move || {
                assert_eq!(status("Uid"), "65534 65534 65534 65534");
                assert_eq!(status("Gid"), "65534 65534 65534 65534");
                assert_eq!((status("Groups"), status("NoNewPrivs")), (String::new(), "1".into()));
                for set in ["CapPrm", "CapEff", "CapBnd"] {
                    assert_eq!(status(set), kept, "{set}");
                }
                for set in ["CapInh", "CapAmb"] {
                    assert_eq!(status(set), NONE, "{set}");
                }
            })
            .join()
            .unwrap();
            assert!(std::fs::read("/etc/shadow").is_err());
            assert_eq!(call(libc::SYS_setuid, [0, 0, 0]), Err(Errno::PERM));
            let address = "127.0.0.1:1".parse().unwrap();
            let low = millrace_sys::listen_tcp(address, false).map(drop);
            assert_eq!(low, if low_ports { Ok(()) } else { Err(Errno::ACCESS) });
        });
    }
    succeed_in_child(test, "of root itself", |_| {
        millrace_confine::drop_privileges(None, false).unwrap();
        assert_eq!((status("Uid"), status("CapPrm")), ("0 0 0 0".into(), NONE.to_owned()));
        assert_eq!(millrace_confine::capabilities(), Ok(0));
        assert_eq!(NOBODY.run_as(|| ()), Err(Errno::PERM));
    });
}

#[test]
fn only_files_of_granted_folders_are_executed() {
    if millrace_confine::landlock_version().is_err() {
        return println!("skip: no Landlock");
    }
    succeed_in_child("only_files_of_granted_folders_are_executed", "run", |folder| {
        let [own, other] = ["own", "other"].map(|name| folder.join(name));
        for place in [&own, &other] {
            std::fs::create_dir(place).unwrap();
            std::fs::copy("/bin/true", place.join("true")).unwrap();
        }
        millrace_confine::set_no_new_privs().unwrap();
        let mut granted = vec![own.clone()];
        granted.extend(["/usr", "/bin", "/lib", "/lib64"].map(PathBuf::from));
        millrace_confine::restrict_execution(&granted).unwrap();
        let run = |place: &Path| Command::new(place.join("true")).status().map_err(|it| it.kind());
        assert!(run(&own).unwrap().success() && run(Path::new("/bin")).unwrap().success());
        assert_eq!(run(&other).unwrap_err(), std::io::ErrorKind::PermissionDenied);
        std::fs::write(other.join("file"), "programs write").unwrap();
    });
}
