"""Under a service manager: passed sockets, notifications, and log rotation."""

import contextlib
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess

from support import PROJECT, intruder, wire
from support.case import InteropCase
from support.millrace import program
from support.ports import free_port
from support.sockets import passing_on
from test_admin import UnixConnection, send_request
from test_upgrade import Load

# Several times the configured interval of watchdog notifications.
SILENCE_SECONDS = 2


class Manager:
    """Starts a program as a service manager does, and receives its notifications."""

    def __init__(self, case, *, abstract=False, watchdog_us=None):
        self.case = case
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.settimeout(wire.TIMEOUT_SECONDS)
        case.addCleanup(self.socket.close)
        name = str(case.folder / "notify")
        self.address = f"\0{name}" if abstract else name
        self.socket.bind(self.address)
        self.environment = dict(os.environ, NOTIFY_SOCKET=self.address.replace("\0", "@"))
        if watchdog_us:
            self.environment["WATCHDOG_USEC"] = str(watchdog_us)

    def start(self, *words, passed=(), names="", notify=True):
        """Runs millrace with these sockets as descriptors 3 and up."""
        environment = dict(self.environment if notify else os.environ)

        environment.update(LISTEN_FDS=str(len(passed)), LISTEN_FDNAMES=names)
        # LISTEN_PID is the child's own process id, so a shell sets it in the child.
        command = ["sh", "-c", 'LISTEN_PID=$$ exec "$@"', "sh", program(), *map(str, words)]
        process = subprocess.Popen(
            command if passed else [program(), *map(str, words)],
            env=environment, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
            preexec_fn=passing_on(passed), close_fds=not passed,
        )
        self.case.addCleanup(process.stderr.close)
        self.case.addCleanup(process.wait)
        self.case.addCleanup(process.kill)
        return process

    def received(self):
        """Receives the next message and returns it as a dictionary."""
        return dict(line.split("=", 1) for line in self.socket.recv(4096).decode().splitlines())


class Notified(InteropCase):
    def words(self, *more):
        self.admin_path = self.folder / "admin.sock"
        return (
            *("boost", "--origin", "http://127.0.0.1:9", "--listen", "127.0.0.1:0"),
            *("--admin", f"unix:{self.admin_path}", *more),
        )

    def test_ready_and_stopping(self):
        for abstract in (False, True):
            manager = Manager(self, abstract=abstract)
            process = manager.start(*self.words())
            output = manager.received()
            self.assertEqual((output["READY"], output["MAINPID"]), ("1", str(process.pid)))
            self.assertIn("STATUS", output)
            process.terminate()
            self.assertEqual(manager.received()["STOPPING"], "1")
            self.assertEqual(process.wait(60), 0)

    def test_the_watchdog_is_notified_while_all_workers_run(self):
        """The watchdog is notified as often as configured, and no longer if the process stalls."""
        manager = Manager(self, watchdog_us=600_000)
        process = manager.start(*self.words("--workers", "3"))
        self.assertEqual(manager.received()["READY"], "1")
        for _ in range(5):
            self.assertEqual(manager.received(), {"WATCHDOG": "1"})
        process.send_signal(signal.SIGSTOP)
        self.settled(lambda: self.pending(manager))
        process.send_signal(signal.SIGCONT)
        self.assertEqual(manager.received(), {"WATCHDOG": "1"})

    def test_the_watchdog_is_not_notified_while_a_worker_hangs(self):
        """The watchdog notices one stalled worker of three."""
        if os.getuid() != 0:
            self.skipTest("only root may stop a thread of millrace")
        manager = Manager(self, watchdog_us=600_000)
        process = manager.start(*self.words("--workers", "3"))
        self.assertEqual(manager.received()["READY"], "1")
        with intruder.stopped(self.thread(process, "worker-1")):
            self.pending(manager)
            manager.socket.settimeout(SILENCE_SECONDS)
            received = 0
            with contextlib.suppress(TimeoutError):
                while received < 10:
                    manager.received()
                    received += 1
            # All workers may have replied to the previous message.
            self.assertLessEqual(received, 2)
            manager.socket.settimeout(wire.TIMEOUT_SECONDS)
        self.assertEqual(manager.received(), {"WATCHDOG": "1"})

    def thread(self, process, name):
        """Returns the id of a thread."""
        for task in pathlib.Path(f"/proc/{process.pid}/task").iterdir():
            if (task / "comm").read_text().strip() == name:
                return int(task.name)
        raise AssertionError(f"there is no {name}")

    def test_reloads_by_signal_and_admin_address_are_notified(self):
        """RELOADING and READY are sent before and after a reload, by signal or at the admin
        address."""
        file, admin_path = self.folder / "run.toml", self.folder / "admin.sock"
        file.write_text(f'admin = "unix:{admin_path}"\n[[forward]]\nlisten = "127.0.0.1:0"\n')
        manager = Manager(self)
        process = manager.start("run", file)
        self.assertEqual(manager.received()["READY"], "1")

        def by_signal():
            process.send_signal(signal.SIGHUP)

        def by_admin():
            self.assertEqual(self.reload_at(admin_path), status)

        for reload in (by_signal, by_admin):
            for text, status in ((file.read_text(), 200), ("nonsense", 422)):
                before = file.read_text()
                file.write_text(text)
                reload()
                output = manager.received()
                self.assertEqual(output["RELOADING"], "1")
                self.assertGreater(int(output["MONOTONIC_USEC"]), 0)
                self.assertEqual(manager.received()["READY"], "1")
                file.write_text(before)

    def reload_at(self, path):
        """Requests a reload at a Unix socket and returns the status."""
        return send_request(UnixConnection(path), "POST", "/reload", "millrace")[0]

    def pending(self, manager):
        """Discards pending messages and returns their number."""
        manager.socket.setblocking(False)
        count = 0
        try:
            while manager.socket.recv(4096):
                count += 1
        except BlockingIOError:
            pass
        manager.socket.settimeout(wire.TIMEOUT_SECONDS)
        return count

    def test_an_upgrade_changes_the_main_process(self):
        """The old process names the new one, which reports that it is ready and notifies the
        watchdog. It gets the address of the socket from the old one, even if it was started without
        the service manager's environment. The same holds for an abstract socket."""
        for abstract in (False, True):
            self.upgrade_under(Manager(self, abstract=abstract, watchdog_us=600_000))

    def upgrade_under(self, manager):
        old = manager.start(*self.words())
        self.assertEqual(manager.received()["READY"], "1")
        new = manager.start(*self.words("--upgrade"), notify=False)
        output = manager.received()
        while output == {"WATCHDOG": "1"}:
            output = manager.received()
        self.assertEqual(output, {"MAINPID": str(new.pid)})
        output = manager.received()
        self.assertEqual((output["READY"], output["MAINPID"]), ("1", str(new.pid)))
        self.assertEqual(old.wait(60), 0)
        for _ in range(3):
            self.assertEqual(manager.received(), {"WATCHDOG": "1"})
        new.terminate()
        while (output := manager.received()) == {"WATCHDOG": "1"}:
            pass
        self.assertEqual(output["STOPPING"], "1")
        self.assertEqual(new.wait(60), 0)
        manager.socket.close()


class Activated(InteropCase):
    def listener(self):
        listener = socket.create_server(("127.0.0.1", 0), backlog=100)
        self.addCleanup(listener.close)
        return listener, "%s:%d" % listener.getsockname()

    def test_sockets_are_matched_by_address(self):
        """Listeners and an admin address are passed in any order. Clients that connected before the
        start wait. Passed sockets are not removed."""
        manager, origin = Manager(self), self.origin()
        (one, first), (two, second) = self.listener(), self.listener()
        path = self.folder / "http.sock"
        unix = socket.socket(socket.AF_UNIX)
        self.addCleanup(unix.close)
        unix.bind(str(path))
        unix.listen(10)
        early = wire.Connection(one.getsockname())
        self.addCleanup(early.close)
        early.get("/")
        words = (
            *("boost", "--origin", origin.url, "--workers", "3", "--listen", first),
            *("--listen", f"unix:{path}", "--listen", "127.0.0.1:0", "--admin", second),
        )
        process = manager.start(*words, passed=(two, unix, one), names="admin:unix:http")
        self.assertEqual(manager.received()["READY"], "1")
        self.assertEqual(early.read_response().status, 200)
        host = "127.0.0.1:%d" % two.getsockname()[1]
        self.assertEqual(wire.get(two.getsockname(), "/healthz", host=host).status, 200)
        for _ in range(20):
            self.assertEqual(wire.get(one.getsockname(), "/").status, 200)
        process.terminate()
        self.assertEqual(process.wait(60), 0)
        self.assertTrue(path.exists(), "the socket is its owner's")
        # The port stays open: the next process serves clients that connect between the two.
        between = wire.Connection(one.getsockname())
        self.addCleanup(between.close)
        between.get("/")
        process = manager.start(*words, passed=(two, unix, one))
        self.assertEqual(between.read_response().status, 200)

    def test_a_listener_of_both_families_knows_ipv4_clients_by_their_ipv4_address(self):
        manager, origin = Manager(self), self.origin()
        listener = socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True)
        self.addCleanup(listener.close)
        port = listener.getsockname()[1]
        log = self.folder / "access.log"
        words = ("boost", "--origin", origin.url, "--listen", f"[::]:{port}", "--access-log", log)
        process = manager.start(*words, passed=(listener,))
        self.assertEqual(manager.received()["READY"], "1")
        self.assertEqual(wire.get(("127.0.0.1", port), "/four").status, 200)
        self.assertEqual(wire.get(("::1", port), "/six").status, 200)
        named = [fields["X-Forwarded-For"] for _, path, fields in origin.seen]
        self.assertEqual(named, ["127.0.0.1", "::1"])
        process.terminate()
        self.assertEqual(process.wait(60), 0)
        self.assertNotIn("::ffff:", log.read_text())

    def test_a_passed_socket_without_a_listener_is_an_error(self):
        manager = Manager(self)
        (one, first), (two, second) = self.listener(), self.listener()
        process = manager.start("forward", "--listen", first, passed=(one, two))
        output = process.stderr.read()
        self.assertEqual(process.wait(60), 1)
        self.assertIn(f"passes a socket at {second}", output)
        pair = socket.socketpair()
        for end in pair:
            self.addCleanup(end.close)
        process = manager.start("forward", "--listen", first, passed=(one, pair[0]), names="a:log")
        self.assertIn('"log": not a listening stream socket', process.stderr.read())
        self.assertEqual(process.wait(60), 1)

    def test_by_systemd(self):
        """systemd-socket-activate starts millrace at the first connection, which is served."""
        activate = shutil.which("systemd-socket-activate")
        if not activate:
            self.skipTest("systemd-socket-activate is not installed")
        address = ("127.0.0.1", free_port())
        words = ("boost", "--origin", self.origin().url, "--listen", "%s:%d" % address)
        process = subprocess.Popen(
            [activate, "-l", "%s:%d" % address, program(), *words],
            stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        )
        self.addCleanup(process.stderr.close)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        self.assertIn("Listening on", process.stderr.readline())
        for _ in range(3):
            self.assertEqual(wire.get(address, "/").status, 200)
        process.terminate()
        self.assertEqual(process.wait(60), 0)

    def test_an_upgrade_passes_borrowed_sockets_on(self):
        """The sockets of a service manager stay its own through an upgrade."""
        manager, origin = Manager(self), self.origin()
        path, admin_path = self.folder / "http.sock", self.folder / "admin.sock"
        unix = socket.socket(socket.AF_UNIX)
        self.addCleanup(unix.close)
        unix.bind(str(path))
        unix.listen(10)
        words = ("boost", "--origin", origin.url, "--listen", f"unix:{path}")
        words += ("--admin", f"unix:{admin_path}")
        old = manager.start(*words, passed=(unix,))
        self.assertEqual(manager.received()["READY"], "1")
        new = manager.start(*words, "--upgrade", notify=False)
        self.assertEqual(manager.received(), {"MAINPID": str(new.pid)})
        self.assertEqual(manager.received()["READY"], "1")
        self.assertEqual(old.wait(60), 0)
        new.terminate()
        self.assertEqual(new.wait(60), 0)
        self.assertTrue(path.exists())
        self.assertFalse(admin_path.exists())


class Rotation(InteropCase):
    def test_no_record_is_lost_or_torn(self):
        """The log is rotated repeatedly under load, by logrotate if it is installed. Each request
        has exactly one complete record in one of the files."""
        log = self.folder / "access.log"
        proxy = self.boost(self.origin().url, "--access-log", log, "--log-format", "json")
        load = [Load(proxy.address) for _ in range(3)]
        rotate = self.rotation(log, proxy.process.pid)
        for _ in range(8):
            before = load[0].count
            self.wait_until("more requests are made", lambda: load[0].count > before + 30)
            self.wait_until("there is something to rotate", lambda: log.stat().st_size)
            rotate()
        counts, failed = zip(*(client.stop() for client in load))
        self.assertEqual([each for client in failed for each in client], [])
        self.assertEqual(proxy.stop(), 0)
        files = sorted(self.folder.glob("access.log*"))
        self.assertEqual(len(files), 9, files)
        text = b"".join(file.read_bytes() for file in files)
        self.assertTrue(text.endswith(b"\n"))
        records = [json.loads(line) for line in text.splitlines()]
        self.assertEqual(len(records), sum(counts))
        self.assertEqual({record["status"] for record in records}, {200})

    def rotation(self, log, pid):
        """Returns the command that rotates the log once."""
        if not shutil.which("logrotate"):
            numbers = iter(range(1, 100))

            def rotate():
                log.rename(f"{log}.{next(numbers)}")
                os.kill(pid, signal.SIGUSR1)
                self.wait_until("the log is there again", log.exists)

            return rotate
        example = (PROJECT / "examples" / "logrotate" / "millrace").read_text()
        config = self.folder / "rotate.conf"
        text = example.replace("/var/log/millrace/*.log", str(log))
        text = re.sub(r"systemctl kill.*", f"kill -USR1 {pid}", text)
        text = re.sub(r"\n    (daily|(delay)?compress)(?=\n)", "", text)
        config.write_text(text)
        config.chmod(0o600)

        def rotate():
            state = self.folder / "state"
            command = ["logrotate", "--force", "--state", str(state), str(config)]
            self.run_client(*command)
            self.wait_until("the log is there again", log.exists)

        return rotate

    def test_a_full_pipe_as_access_log_does_not_block(self):
        """With a full pipe as standard output the process still serves, and ends on SIGTERM."""
        words = ("boost", "--origin", self.origin().url, "--listen", "127.0.0.1:0")
        process = subprocess.Popen(
            [program(), *words, "--access-log", "-"], stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        self.addCleanup(process.stderr.close)
        self.addCleanup(process.stdout.close)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        output = next(line for line in process.stderr if "listening on " in line)
        address = "127.0.0.1", int(output.rpartition(":")[2])
        for _ in range(100):
            self.assertEqual(wire.get(address, "/?" + 4000 * "a").status, 200)
        process.terminate()
        self.assertEqual(process.wait(60), 0)
