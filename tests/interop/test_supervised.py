"""Kills of a serving process under runit: effects on clients, addresses and files."""

import os
import pathlib
import signal
import socket
import subprocess
import time

from support import websocket, wire
from support.case import InteropCase
from support.millrace import program
from support.ports import free_port
from support.runit import Service
from test_upgrade import Load

ORDINARY = 12345
MEGABYTE = 1 << 20


class SupervisedCase(InteropCase):
    programs = ("runsv",)

    def setUp(self):
        super().setUp()
        self.plain, self.echo = self.origin(), websocket.EchoOrigin()
        self.addCleanup(self.echo.stop)
        self.address = "127.0.0.1", free_port()
        self.home = self.folder / "service"
        self.home.mkdir()
        self.unix, self.admin_path = self.home / "http.sock", self.home / "admin.sock"
        self.file = self.home / "millrace.toml"
        self.configure()

    def configure(self, top=""):
        engine = os.environ.get("ENGINE", "auto")
        self.file.write_text(
            f"""workers = 2
engine = "{engine}"
admin = "unix:{self.admin_path}"
{top}
[[boost]]
listen = ["127.0.0.1:{self.address[1]}", "unix:{self.unix}"]
[[boost.route]]
path = "/echo"
origins = "{self.echo.url}"
[[boost.route]]
origins = "{self.plain.url}"
"""
        )

    def supervise(self, **how):
        """Starts the service under runsv. At the end of the test no process or file of it may be
        left."""
        service = Service(self.folder / "sv", program(), self.file, **how)
        self.addCleanup(self.assert_nothing_left, service, how.get("passed", ()))
        self.addCleanup(lambda: self.assertEqual(service.stop(), 0, service.lines[-5:]))
        service.wait_for_start(1)
        return service

    def assert_nothing_left(self, service, passed):
        self.assertEqual([line for line in service.lines if "panic" in line], [])
        processes = [path for path in pathlib.Path("/proc").iterdir() if path.name.isdigit()]
        left = [path.name for path in processes if self.belongs(path, service)]
        self.assertEqual(left, [], "processes of the service")
        self.assertEqual(self.unix.exists(), bool(passed), "a service manager's file is its own")
        self.assertFalse(self.admin_path.exists())
        if not passed:
            with self.assertRaises(ConnectionRefusedError):
                socket.create_connection(self.address, 10)

    def belongs(self, path, service):
        try:
            command = (path / "cmdline").read_bytes()
        except OSError:
            return False
        return any(str(at).encode() in command for at in (self.file, service.folder))

    def killed(self, service):
        """Kills the process and waits until another process serves."""
        before, starts = service.pid(), service.starts()
        service.kill()
        service.wait_for_start(starts + 1)
        self.assertNotEqual(service.pid(), before)

    def at_unix(self, path, target):
        """Returns the response of a request at a Unix socket."""
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(wire.TIMEOUT_SECONDS)
            client.connect(str(path))
            client.sendall(
                f"GET {target} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode()
            )
            return client.makefile("rb").read()

    def assert_serves_everywhere(self):
        """Checks TCP, a WebSocket, the Unix socket and the admin socket."""
        self.assertEqual(wire.get(self.address, "/").status, 200)
        self.assert_echoes(self.open_websocket())
        for path, target in ((self.unix, "/"), (self.admin_path, "/healthz")):
            self.assertRegex(self.at_unix(path, target), rb"\AHTTP/1.1 200 ")

    def open_websocket(self):
        frames = websocket.connect(self.address)
        self.addCleanup(frames.stream.close)
        self.addCleanup(frames.reader.close)
        return frames

    def assert_echoes(self, frames):
        frames.send(websocket.TEXT, b"still there")
        self.assertEqual(frames.receive(), (websocket.TEXT, b"still there"))

    def open_idle(self):
        """Returns an idle connection that has received a response."""
        idle = wire.Connection(self.address)
        self.addCleanup(idle.close)
        idle.get("/")
        self.assertEqual(idle.read_response().status, 200)
        return idle

    def assert_ended(self, receive):
        """Checks that the connection has ended without further bytes."""
        try:
            self.assertEqual(receive(4096), b"")
        except ConnectionResetError:
            pass

    def serves_more(self, load):
        before = load.served
        self.wait_until("more requests are served", lambda: load.served > before + 20)


class ContinuousLoad(Load):
    """A load that continues while no process listens."""

    @property
    def served(self):
        return self.count - len(self.failed)


class Killed(SupervisedCase):
    def test_it_serves_again_at_the_same_addresses(self):
        """Four kills under load. The next process takes over the stale socket files. Clients of the
        killed process see their connections end, and no response is wrong."""
        service = self.supervise()
        load = [ContinuousLoad(self.address) for _ in range(2)]
        for _ in range(4):
            for client in load:
                self.serves_more(client)
            idle, frames = self.open_idle(), self.open_websocket()
            self.assert_echoes(frames)
            busy = wire.Connection(self.address)
            self.addCleanup(busy.close)
            busy.get(f"/bytes/{64 * MEGABYTE}")
            self.assertEqual(busy.head()[1], 200)
            self.killed(service)
            self.assert_ended(idle.socket.recv)
            self.assert_ended(frames.stream.recv)
            with self.assertRaises((EOFError, ConnectionResetError)):
                busy.exactly(64 * MEGABYTE, lambda piece: None)
            self.assert_serves_everywhere()
        for client in load:
            self.serves_more(client)
        failed = [why for client in load for why in client.stop()[1]]
        self.assertTrue(failed, "the load did not notice")
        self.assertEqual([why for why in failed if isinstance(why, int)], [], "wrong responses")

    def test_as_an_ordinary_user(self):
        """The sockets were opened by root, and the killed process had another user. The next
        process still takes over files and port."""
        if os.getuid() != 0:
            self.skipTest("only root may change its user")
        self.folder.chmod(0o755)
        os.chown(self.home, ORDINARY, ORDINARY)
        self.configure(f'user = "{ORDINARY}:{ORDINARY}"')
        service = self.supervise()
        for _ in range(2):
            status = pathlib.Path(f"/proc/{service.pid()}/status").read_text()
            self.assertIn(f"Uid:\t{ORDINARY}\t", status)
            self.killed(service)
            self.assert_serves_everywhere()

    def test_killed_at_any_moment_of_its_start(self):
        """The next process serves, whatever files the processes left that were killed during their
        start."""
        command = [program(), "run", str(self.file)]
        for pause in (0, 0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.1, 0.15, 0.2, 0.3):
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            )
            time.sleep(pause)
            process.kill()
            process.wait()
        self.supervise()
        self.assert_serves_everywhere()

    def test_a_start_right_after_a_kill(self):
        """The kernel closes sockets of io_uring shortly after the end of their process. The next
        process waits until the addresses are free."""
        for engine in ("uring", "epoll"):
            for number in range(15):
                try:
                    process = self.millrace("run", self.file, "--engine", engine)
                except RuntimeError as error:
                    if engine == "uring" and "io_uring" in str(error):
                        break
                    raise
                self.assertEqual(wire.get(self.address, "/").status, 200)
                self.assertRegex(self.at_unix(self.unix, "/"), rb"\AHTTP/1.1 200 ")
                process.kill()
        self.supervise()
        self.assert_serves_everywhere()


class Held(SupervisedCase):
    """The supervisor holds the listening sockets, as systemd does for a unit with sockets."""

    def setUp(self):
        super().setUp()
        self.passed = socket.create_server(self.address), socket.socket(socket.AF_UNIX)
        for listener in self.passed:
            self.addCleanup(listener.close)
        self.passed[1].bind(str(self.unix))
        self.passed[1].listen()

    def test_clients_wait_for_the_next_process(self):
        """No client is refused: the next process serves those that connect while none runs."""
        service = self.supervise(passed=self.passed)
        load = ContinuousLoad(self.address)
        for _ in range(3):
            self.serves_more(load)
            idle = self.open_idle()
            service.process.send_signal(signal.SIGSTOP)
            service.kill()
            self.assert_ended(idle.socket.recv)
            waiting = wire.Connection(self.address)
            self.addCleanup(waiting.close)
            waiting.get("/")
            starts = service.starts()
            service.process.send_signal(signal.SIGCONT)
            self.assertEqual(waiting.read_response().status, 200)
            service.wait_for_start(starts + 1)
            self.assert_serves_everywhere()
        failed = load.stop()[1]
        self.assertTrue(failed, "the load did not notice")
        wrong = [why for why in failed if isinstance(why, int) or "Refused" in why]
        self.assertEqual(wrong, [])
