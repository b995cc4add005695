"""The running program has dropped its privileges, as the kernel shows them, and still works."""

import os
import pathlib
import platform
import pwd
import re
import resource
import shutil
import signal
import socket
import subprocess
import threading

from support import PROJECT, intruder, pattern, system_calls, wire
from support.case import InteropCase
from support.millrace import program
from support.secure import SecureCase

NONE = "0" * 16
LOW_PORTS = "0000000000000400"
NOBODY = 65534


def ordinary():
    """Returns the user and group that a process of root changes to by default."""
    for name in ("millrace", "nobody"):
        try:
            found = pwd.getpwnam(name)
            return found.pw_uid, found.pw_gid
        except KeyError:
            pass
    return NOBODY, NOBODY


def become_ordinary():
    """Changes to an ordinary user."""
    os.setgroups([])
    os.setgid(4321)
    os.setuid(4321)


class Case(InteropCase):
    def setUp(self):
        super().setUp()
        if os.getuid() != 0:
            self.skipTest("only root has privileges to drop")
        pattern.write(self.site / "file", 1000)

    def threads(self, proxy):
        """Returns the status of each thread as a dictionary. Checks that there are workers."""
        found = []
        for thread in pathlib.Path(f"/proc/{proxy.process.pid}/task").iterdir():
            lines = (thread / "status").read_text().splitlines()
            pairs = [line.split(":", 1) for line in lines]
            found.append({name: " ".join(value.split()) for name, value in pairs})
        self.assertTrue(any("worker" in status["Name"] for status in found), found)
        return found

    def assert_all(self, proxy, **expected):
        for status in self.threads(proxy):
            seen = {name: status[name] for name in expected}
            self.assertEqual(seen, expected, status["Name"])

    def output(self, proxy, part):
        """Returns the only output line with `part`."""
        (line,) = [line for line in proxy.lines if part in line]
        return line

    def folder_of(self, name, user):
        """Creates a folder that belongs to a user, and that other users can reach."""
        self.folder.chmod(0o755)
        folder = self.folder / name
        folder.mkdir()
        os.chown(folder, user, user)
        return folder

    def is_hidden(self, proxy):
        """Returns whether the process is not dumpable: then root owns its files in /proc."""
        return os.stat(f"/proc/{proxy.process.pid}/maps").st_uid == 0


class DroppedPrivileges(Case):
    def test_a_process_of_root_drops_all_privileges(self):
        """Every thread has another user, no group, no capability, and two filters."""
        origin = self.origin()
        proxy = self.forward("--admin", "127.0.0.1:0")
        user, group = ordinary()
        self.assert_all(
            proxy,
            Uid=" ".join([str(user)] * 4),
            Gid=" ".join([str(group)] * 4),
            Groups="",
            CapInh=NONE,
            CapPrm=NONE,
            CapEff=NONE,
            CapBnd=NONE,
            CapAmb=NONE,
            NoNewPrivs="1",
            Seccomp="2",
        )
        self.assertTrue(self.is_hidden(proxy))
        limits = pathlib.Path(f"/proc/{proxy.process.pid}/limits").read_text()
        self.assertRegex(limits, r"Max core file size +1 +1 ")
        line = self.output(proxy, "runs as user ")
        self.assertRegex(line, r"without capabilities; (files by Landlock \d|FILES NOT)")
        self.assertIn("system calls filtered", line)
        # Names are still resolved, and metrics are still read from /proc.
        self.assertEqual(
            wire.get(proxy.address, f"http://localhost:{origin.port}/small").status, 200
        )
        admin = self.output(proxy, "admin at ").rpartition(":")[2]
        host = f"127.0.0.1:{admin}"
        page = wire.get(("127.0.0.1", int(admin)), "/metrics", host=host).body.decode()
        for name in ("process_open_fds", "process_resident_memory_bytes"):
            (value,) = [row.split()[1] for row in page.splitlines() if row.startswith(f"{name} ")]
            self.assertGreater(int(float(value)), 0)

    def test_a_new_disk_folder_belongs_to_the_new_user(self):
        self.folder.chmod(0o755)
        disk = self.folder / "disk"
        proxy = self.forward("--disk", f"{disk}:64M")
        user, group = ordinary()
        self.output(proxy, f"({user}:{group})")
        made = disk.stat()
        self.assertEqual((made.st_uid, made.st_gid), (user, group))
        self.assertEqual(made.st_mode & 0o7777, 0o700)

    def test_a_disk_folder_of_root_keeps_the_process_root(self):
        disk = self.folder_of("disk", 0)
        disk.chmod(0o700)
        proxy = self.forward("--disk", f"{disk}:64M")
        self.output(proxy, f"does not own the disk folder {disk}; stays root")

    def test_a_socket_in_a_folder_of_root_keeps_the_process_root(self):
        """The process could not remove the socket as another user."""
        folder = self.folder_of("run", 0)
        proxy = self.forward("--admin", f"unix:{folder}/admin.sock")
        problem = f"may not write to {folder}, so unix:{folder}/admin.sock would remain after"
        self.assertIn("; stays root", self.output(proxy, problem))

    def test_low_ports_are_kept_if_one_is_used(self):
        for port in range(1023, 600, -1):
            with socket.socket() as probe:
                try:
                    probe.bind(("127.0.0.1", port))
                    break
                except OSError:
                    pass
        origin = self.origin().url
        proxy = self.millrace("boost", "--origin", origin, "--listen", f"127.0.0.1:{port}")
        self.assert_all(proxy, CapPrm=LOW_PORTS, CapEff=LOW_PORTS, CapBnd=LOW_PORTS, CapAmb=NONE)
        self.output(proxy, "with low ports only")
        self.assertEqual(wire.get(proxy.address, "/small").status, 200)

    def test_a_user_is_named(self):
        proxy = self.forward("--user", "12345:12346")
        self.assert_all(proxy, Uid="12345 " * 3 + "12345", Gid="12346 " * 3 + "12346", Groups="")
        self.output(proxy, "runs as user 12345:12346, without capabilities")
        refused = subprocess.run(
            [program(), "forward", "--user", "no-such-user"], capture_output=True, text=True
        )
        self.assertEqual(refused.returncode, 2)
        self.assertIn('/etc/passwd has no "no-such-user"', refused.stderr)

    def test_files_of_root_keep_the_process_root(self):
        """The process reports that it stays root, and drops its capabilities."""
        log = self.folder / "access.log"
        proxy = self.boost(self.nginx().url, "--access-log", log)
        self.assert_all(proxy, Uid="0 0 0 0", CapPrm=NONE, CapBnd=NONE, Seccomp="2")
        self.output(proxy, f"may not write the access log {log}; stays root")
        self.assertEqual(wire.get(proxy.address, "/file").status, 200)
        self.assertEqual(proxy.stop(), 0)
        self.assertEqual(len(log.read_text().splitlines()), 1)

    def test_an_unwritable_access_log_is_an_error_at_start(self):
        log = self.folder / "access.log"
        command = ["forward", "--listen", "127.0.0.1:0", "--user", "nobody", "--access-log", log]
        refused = subprocess.run([program(), *command], capture_output=True, text=True)
        self.assertEqual(refused.returncode, 1)
        self.assertIn(f"may not write the access log {log}", refused.stderr)
        self.assertIn("Permission denied", refused.stderr.splitlines()[-1])

    def test_an_ordinary_user_is_restricted_too(self):
        self.folder.chmod(0o755)
        copy = shutil.copy(program(), self.folder / "millrace")
        proxy = self.forward("--user", "nobody", before=become_ordinary, binary=copy)
        self.assert_all(proxy, Uid="4321 4321 4321 4321", NoNewPrivs="1", Seccomp="2")
        self.output(proxy, "cannot change to user ")

    def test_a_missing_kernel_feature_is_reported(self):
        """Everything else is still confined, and doctor reports it."""
        call = system_calls.LANDLOCK_CREATE_RULESET
        proxy = self.forward(before=lambda: system_calls.without(call))
        self.assert_all(proxy, CapPrm=NONE, NoNewPrivs="1", Seccomp="2")
        self.assertIn("FILES NOT RESTRICTED (", self.output(proxy, "runs as user "))
        output = subprocess.run(
            [program(), "doctor"],
            capture_output=True,
            text=True,
            preexec_fn=lambda: system_calls.without(call),
        )
        self.assertEqual(output.returncode, 0, output.stderr)
        self.assertRegex(output.stdout, r"note +files +NOT RESTRICTED")
        self.assertRegex(output.stdout, r"ok +system calls +filtered by seccomp")

    def test_the_sandbox_is_switched_off(self):
        """Users and capabilities are still dropped; debugging tools see the process."""
        proxy = self.forward("--sandbox", "off")
        user, _ = ordinary()
        self.assert_all(
            proxy, Uid=" ".join([str(user)] * 4), CapPrm=NONE, NoNewPrivs="0", Seccomp="0"
        )
        self.assertFalse(self.is_hidden(proxy))
        self.output(proxy, "sandbox off")


class CoreDumps(SecureCase):
    """Crashes of processes whose core dumps are unlimited, in a folder that all users can write."""

    def is_dumped(self, started):
        """Sends SIGABRT, and returns whether the kernel wrote a core dump."""
        started.process.send_signal(signal.SIGABRT)
        _, status = os.waitpid(started.process.pid, 0)
        started.process.returncode = os.waitstatus_to_exitcode(status)
        self.assertEqual(started.process.returncode, -signal.SIGABRT)
        return os.WCOREDUMP(status)

    def start(self, origin, *options, limit=resource.RLIM_INFINITY):
        self.folder.chmod(0o777)

        def before():
            os.chdir(self.folder)
            resource.setrlimit(resource.RLIMIT_CORE, (limit, limit))

        return self.boost(origin, *options, before=before)

    def test_keys_are_in_no_core_dump(self):
        """Neither with the sandbox nor without it; a process without keys shows that the test can
        see a dump."""
        if resource.getrlimit(resource.RLIMIT_CORE)[1] != resource.RLIM_INFINITY:
            self.skipTest("core dumps are limited here")
        plain, secure, off = "http://127.0.0.1:1", "https://127.0.0.1:1", ("--sandbox", "off")
        for origin, options, expected in [
            (plain, off, True),
            (plain, (), False),
            (plain, (*self.options(), *off), False),
            (plain, self.options(), False),
            (secure, ("--origin-ca", self.authority.path, *off), False),
        ]:
            with self.subTest(origin=origin, options=options):
                self.assertEqual(self.is_dumped(self.start(origin, *options)), expected)


    def test_a_limit_of_zero_bytes(self):
        """The kernel pipes a dump to a program even then (core(5)). So the limit becomes one byte,
        or a line says that the process may not raise it."""
        origin, line = "http://127.0.0.1:1", "core dumps cannot be forbidden"
        for options in (("--sandbox", "off"), ()):
            with self.subTest(options=options):
                started = self.start(origin, *self.options(), *options, limit=0)
                limits = pathlib.Path(f"/proc/{started.process.pid}/limits").read_text()
                is_raised = re.search(r"Max core file size +1 +1 ", limits) is not None
                is_reported = any(line in it for it in started.lines)
                self.assertEqual(is_reported, bool(options) and not is_raised, started.lines)
                self.assertEqual(started.stop(), 0)


class Intruder(Case):
    """An attacker makes the program do system calls that are not in its code."""

    AT_CWD = -100

    def setUp(self):
        super().setUp()
        if platform.machine() != "x86_64":
            self.skipTest("system calls are planted on x86-64 only")

    def opened(self, proxy, path, flags=os.O_RDONLY):
        return intruder.call(
            proxy.process, intruder.OPENAT, self.AT_CWD, os.fsencode(path), flags, 0o600
        )

    def test_files_are_out_of_reach(self):
        """Landlock alone stops root."""
        for options, etc in [((), "passwd"), (("--user", "root"), "hosts")]:
            proxy = self.forward(*options)
            self.assertEqual(self.opened(proxy, "/etc/shadow"), "EACCES")
            self.assertEqual(self.opened(proxy, self.site / "file"), "EACCES")
            self.assertEqual(self.opened(proxy, "/proc/1/environ"), "EACCES")
            self.assertEqual(self.opened(proxy, "/tmp/new", os.O_CREAT | os.O_WRONLY), "EACCES")
            self.assertGreaterEqual(self.opened(proxy, f"/etc/{etc}"), 0)
        off = self.forward("--user", "root", "--sandbox", "off")
        self.assertGreaterEqual(self.opened(off, "/etc/shadow"), 0)

    def test_filtered_calls_fail(self):
        proxy = self.forward()
        raw = (socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)
        self.assertEqual(intruder.call(proxy.process, intruder.SOCKET, *raw), "ENOSYS")
        packets = (socket.AF_PACKET, socket.SOCK_RAW, 0)
        self.assertEqual(intruder.call(proxy.process, intruder.SOCKET, *packets), "ENOSYS")
        executable = (0, 4096, 5, 0x22, -1, 0)
        self.assertEqual(intruder.call(proxy.process, intruder.MMAP, *executable), "ENOSYS")
        # A worker over io_uring that is restarted makes a new ring.
        expected = "EFAULT" if any("engine uring" in line for line in proxy.lines) else "ENOSYS"
        self.assertEqual(intruder.call(proxy.process, intruder.IO_URING_SETUP, 8, 0), expected)
        # The process continues, and allowed calls still work.
        stream = (socket.AF_INET, socket.SOCK_STREAM, 0)
        self.assertGreaterEqual(intruder.call(proxy.process, intruder.SOCKET, *stream), 0)
        response = wire.get(proxy.address, f"http://localhost:{self.origin().port}/small")
        self.assertEqual(response.status, 200)

    def test_some_calls_end_the_process(self):
        calls = [(intruder.EXECVE, b"/bin/sh", 0, 0), (intruder.PTRACE, intruder.ATTACH, 1, 0, 0)]
        for number, *arguments in calls:
            proxy = self.forward()
            with self.assertRaisesRegex(intruder.Killed, "SIGSYS"):
                intruder.call(proxy.process, number, *arguments)


class FilesAfterStart(Case):
    """Features that need files after the start."""

    def test_a_log_is_rotated(self):
        user, _ = ordinary()
        folder = self.folder_of("logs", user)
        log = folder / "access.log"
        proxy = self.boost(self.nginx().url, "--access-log", log)
        for number in range(1, 4):
            self.assertEqual(wire.get(proxy.address, "/file").status, 200)
            log.rename(folder / f"access.log.{number}")
            proxy.process.send_signal(signal.SIGUSR1)
            self.wait_until(
                "the log is reopened",
                lambda: sum("access log reopened" in line for line in proxy.lines) == number,
            )
        self.assertEqual(wire.get(proxy.address, "/file").status, 200)
        self.assertEqual(proxy.stop(), 0)
        records = [line for file in folder.iterdir() for line in file.read_text().splitlines()]
        self.assertEqual(len(records), 4)
        self.assertEqual(os.stat(log).st_uid, user)

    def test_unix_sockets_on_both_sides(self):
        user, _ = ordinary()
        folder = self.folder_of("sockets", user)
        origin = socket.socket(socket.AF_UNIX)
        self.addCleanup(origin.close)
        origin.bind(str(folder / "origin"))
        os.chmod(folder / "origin", 0o666)
        origin.listen()

        def respond():
            connection, _ = origin.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
                connection.recv(1)

        server = threading.Thread(target=respond, daemon=True)
        server.start()
        listener = folder / "proxy"
        words = ["--origin", f"unix:{folder}/origin", "--listen", f"unix:{listener}"]
        proxy = self.millrace("boost", *words)
        self.assert_all(proxy, Uid=" ".join([str(user)] * 4))
        self.assertEqual(os.stat(listener).st_mode & 0o777, 0o666)
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(listener))
            client.sendall(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
            received = b""
            while part := client.recv(4096):
                received += part
        self.assertTrue(received.startswith(b"HTTP/1.1 200 OK\r\n"), received)
        self.assertEqual(proxy.stop(), 0)
        self.assertFalse(listener.exists(), "its file is removed at the end")
        server.join(60)

    def test_an_upgrade_of_an_ordinary_user(self):
        """A new process of root takes over from a process that became an ordinary user, and then
        becomes one itself. Sockets of all kinds are passed, with fewer and with more workers, and
        the file is reloaded in between."""
        user, _ = ordinary()
        folder = self.folder_of("service", user)
        file, admin_path = folder / "run.toml", folder / "admin.sock"
        origin = self.origin()

        def configure(fields):
            file.write_text(
                f"""admin = ["unix:{admin_path}", "127.0.0.1:0"]
access-log = "{folder}/access.log"
limits.fields = {fields}
[[boost]]
listen = ["127.0.0.1:0", "unix:{folder}/http.sock"]
[[boost.route]]
origins = "{origin.url}"
"""
            )
            file.chmod(0o644)

        configure(100)
        running = self.millrace("run", file, "--workers", "2")
        address = running.address
        for count, workers in enumerate((1, 3)):
            new = self.millrace("run", file, "--upgrade", "--workers", workers)
            self.assertEqual(running.wait(), 0, running.lines)
            running = new
            self.assertEqual(running.address, address)
            self.assert_all(running, Uid=" ".join([str(user)] * 4), CapPrm=NONE)
            for _ in range(10):
                self.assertEqual(wire.get(address, "/small").status, 200)
            configure(101 + count)
            self.assertEqual(self.send_request(admin_path, "POST /reload")[:12], b"HTTP/1.1 200")
        self.assertEqual(running.stop(), 0)
        self.assertFalse(admin_path.exists() or (folder / "http.sock").exists())
        self.assertEqual(len((folder / "access.log").read_text().splitlines()), 20)

    def send_request(self, path, line, *, user=None):
        """Makes a request at a Unix socket, in a process of `user` if it is given."""
        code = (
            "import socket, sys; client = socket.socket(socket.AF_UNIX); "
            "client.connect(sys.argv[1]); "
            "client.sendall(sys.argv[2].encode() + b' HTTP/1.1\\r\\nHost: a\\r\\n' "
            "b'Upgrade: millrace-takeover/1\\r\\n\\r\\n'); "
            "client.shutdown(socket.SHUT_WR); "
            "sys.stdout.buffer.write(client.makefile('rb').read())"
        )
        return self.run_client("/usr/bin/env", "python3", "-c", code, path, line, user=user).stdout

    def test_another_user_changes_nothing(self):
        """Even if the file of the socket allows all users: the kernel reports the user of the
        peer."""
        folder = self.folder_of("service", 0)
        admin_path = folder / "admin.sock"
        proxy = self.forward("--admin", f"unix:{admin_path}")
        admin_path.chmod(0o666)
        for call in ("drain", "reload", "log/reopen", "upgrade"):
            output = self.send_request(admin_path, f"POST /{call}", user=4321)
            self.assertEqual(output[:12], b"HTTP/1.1 403", call)
            self.assertIn(b"permission denied (allowed: the same user, root)", output)
        output = self.send_request(admin_path, "GET /healthz", user=4321)
        self.assertEqual(output[:12], b"HTTP/1.1 200")
        self.assertIsNone(proxy.process.poll())


class Unit(Case):
    def test_the_example_leaves_what_is_needed(self):
        """Under the system call filter of examples/systemd, millrace of an ordinary user starts,
        drops its privileges, and serves. libseccomp makes the filter, as in systemd."""
        if not shutil.which("systemd-analyze"):
            self.skipTest("systemd is not installed")
        unit = (PROJECT / "examples" / "systemd" / "millrace.service").read_text()
        calls = system_calls.of_unit(unit)
        self.folder.chmod(0o755)
        copy = shutil.copy(program(), self.folder / "millrace")

        def confined():
            become_ordinary()
            system_calls.only(calls)

        proxy = self.forward(before=confined, binary=copy)
        self.assert_all(proxy, CapPrm=NONE, NoNewPrivs="1")
        line = self.output(proxy, "runs as user ")
        self.assertIn("system calls filtered", line)
        doctor = self.run_client(program(), "doctor").stdout.decode()
        self.assertEqual("FILES NOT" in line, "NOT RESTRICTED" in doctor, line)
        response = wire.get(proxy.address, f"http://127.0.0.1:{self.origin().port}/small")
        self.assertEqual(response.status, 200)
        for thread in self.threads(proxy):
            self.assertEqual(thread["Seccomp_filters"], "3", "the unit's and two of its own")
