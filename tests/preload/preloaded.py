"""Runs a program under `uselect run --stats` with its own uselectd, and clients that compare all
bytes."""

import concurrent.futures
import hashlib
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import time

from support import PROJECT, pattern
from support.case import InteropCase
from support.ports import free_port

PROGRAMS = pathlib.Path(
    os.environ.get("PROGRAMS")
    or pathlib.Path(os.environ.get("CARGO_TARGET_DIR", PROJECT / "target")) / "debug"
)
BACKEND = os.environ.get("BACKEND", "bpf")
# The exit report of a process.
LINE = re.compile(
    r"^uselect: process (\d+) \(.+?\): (\d+) waits, (\d+) \([\d.]+ %\) without a system call, "
    r"(\d+) sleeps; (.*)$",
    re.M,
)
SECONDS_MAX = 60
CLIENTS = 4
CONNECTIONS = 16
ROUNDS = 20
# Small files, one that fits the send buffer, and one for which the server waits for send space.
SIZES = {"empty": 0, "small": 100, "page": 8192, "large": 3_000_000}


def may_load():
    """Whether this process may load eBPF programs; root in a container may not."""
    status = pathlib.Path("/proc/self/status").read_text()
    effective = int(re.search(r"^CapEff:\t([0-9a-f]+)$", status, re.M)[1], 16)
    return all(effective >> capability & 1 for capability in (12, 38, 39))


class PreloadCase(InteropCase):
    # Options of the daemon besides --socket.
    daemon_options = ()

    def setUp(self):
        super().setUp()
        self.assertTrue((PROGRAMS / "uselect").exists(), f"{PROGRAMS} has no uselect: build it")
        self.hashes = {name: pattern.write(self.site / name, size) for name, size in SIZES.items()}
        self.options = self._daemon()

    def _daemon(self, name="uselectd.sock"):
        if BACKEND != "bpf":
            return ["--backend", BACKEND]
        if not may_load():
            self.skipTest("needs CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON for uselectd")
        path = self.folder / name
        command = [PROGRAMS / "uselectd", "--socket", path, *self.daemon_options]
        daemon = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        self.addCleanup(self._end_daemon, daemon)
        self.daemon = daemon
        stderr_text = daemon.stderr.readline()
        unavailable = "namespace (expected: the initial one)", "the kernel refuses the BPF iterator"
        if any(reason in stderr_text for reason in unavailable):
            self.skipTest(stderr_text.strip())
        self.assertIn("listening", stderr_text)
        return ["--socket", path]

    def _end_daemon(self, daemon):
        daemon.terminate()
        daemon.wait()
        daemon.stderr.close()

    def programs_for_all(self):
        """A directory with uselect and its library that every user can read."""
        self.folder.chmod(0o755)
        for name in ("uselect", "libuselect_preload.so"):
            shutil.copy(PROGRAMS / name, self.folder)
        return self.folder

    def preload(self, *command, port, stop_signal=signal.SIGTERM, **options):
        """A running server that listens at `port`."""
        started = PreloadedServer(self, command, stop_signal, options)
        self.wait_until("it listens", lambda: started.listens(port), SECONDS_MAX)
        return started

    def path_of(self, name):
        """The path of a program, also in /sbin and /usr/sbin."""
        path = shutil.which(name, path=os.environ["PATH"] + ":/usr/sbin:/sbin")
        self.assertTrue(path, f"{name} is missing: run scripts/setup test")
        return path

    def request_files(self, port, prefix="", rounds=ROUNDS):
        """Requests each file over many persistent connections, from several clients at once, so
        that the server always has more work."""
        with concurrent.futures.ThreadPoolExecutor(CLIENTS) as clients:
            results = [
                clients.submit(self._request_files, port, prefix, rounds) for _ in range(CLIENTS)
            ]
            for result in results:
                result.result()

    def _request_files(self, port, prefix, rounds):
        """Sends a request on each connection before it reads a response."""
        connections = [Connection(port) for _ in range(CONNECTIONS)]
        names = list(SIZES)
        for round_number in range(rounds):
            requested = [names[(round_number + at) % len(names)] for at in range(CONNECTIONS)]
            if round_number % 5:
                # Most rounds have only small files, which the server sends at once.
                requested = [name if name != "large" else "small" for name in requested]
            for connection, name in zip(connections, requested):
                connection.send_request(f"{prefix}/{name}")
            for connection, name in zip(connections, requested):
                status, body = connection.read_response()
                self.assertEqual(status, 200, name)
                self.assertEqual(hashlib.sha256(body).hexdigest(), self.hashes[name], name)
        for connection in connections:
            connection.close()


class PreloadedServer:
    def __init__(self, case, command, stop_signal, options):
        self.case, self.stop_signal = case, stop_signal
        self.stderr_path = case.folder / f"stderr-{free_port()}"
        with open(self.stderr_path, "wb") as stderr:
            self.process = subprocess.Popen(
                [PROGRAMS / "uselect", "run", "--stats", *case.options, "--", *command],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=stderr,
                start_new_session=True,
                **options,
            )
        case.addCleanup(self._kill)

    def _kill(self):
        """Kills all processes of the server's session."""
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.wait()

    def listens(self, port):
        if self.process.poll() is not None:
            stderr_text = self.stderr_path.read_text()[-2000:]
            self.case.fail(f"status {self.process.returncode}: {stderr_text}")
        try:
            socket.create_connection(("127.0.0.1", port), 5).close()
            return True
        except OSError:
            return False

    def stop(self):
        """Stops the program and returns its status."""
        self.process.send_signal(self.stop_signal)
        return self.process.wait(SECONDS_MAX)

    def assert_served_from_memory(self):
        """Checks the reports of its processes. Backends other than bpf make a system call for each
        ready socket, so only their name is checked."""
        stderr_text = self.stderr_path.read_text(errors="replace")
        lines = LINE.findall(stderr_text)
        status = self.process.returncode
        self.case.assertTrue(lines, f"no report, status {status}: {stderr_text[-2000:]}")
        named = [line for line in lines if line[4] == f"backend {BACKEND}"]
        self.case.assertTrue(named, f"no process used backend {BACKEND}: {lines}")
        served = [line for line in named if int(line[2]) > 0 or BACKEND != "bpf"]
        self.case.assertTrue(served, f"no wait was served from memory: {lines}")

    def end(self):
        self.stop()
        self.assert_served_from_memory()


class Connection:
    """An HTTP/1.1 connection with one request at a time."""

    def __init__(self, port):
        for _ in range(100):
            try:
                self.socket = socket.create_connection(("127.0.0.1", port), SECONDS_MAX)
                break
            except ConnectionRefusedError:
                time.sleep(0.05)
        self.file = self.socket.makefile("rb")

    def send_request(self, target):
        self.socket.sendall(f"GET {target} HTTP/1.1\r\nHost: test\r\n\r\n".encode())

    def read_response(self):
        status = int(self.file.readline().split()[1])
        length = None
        while (line := self.file.readline().strip()):
            name, _, value = line.partition(b":")
            if name.lower() == b"content-length":
                length = int(value)
        return status, self.file.read(length)

    def close(self):
        self.file.close()
        self.socket.close()
