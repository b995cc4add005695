"""A binary upgrade: a new process takes over the listening sockets of the running one. Clients must
not notice an upgrade, and a failed upgrade must change nothing."""

import array
import contextlib
import os
import shutil
import signal
import socket
import subprocess
import threading
import time

from support import websocket, wire
from support.case import InteropCase
from support.millrace import Millrace, program
from support.ports import free_port

PROTOCOL = "millrace-takeover/1"


class Load(threading.Thread):
    """A client that makes requests alternately on a persistent and on a new connection, until it is
    stopped. It reopens the persistent connection after a response with `Connection: close`. Any
    other lost request counts as failed."""

    def __init__(self, address):
        super().__init__(daemon=True)
        self.address, self.count, self.failed = address, 0, []
        self.ending = threading.Event()
        self.start()

    def run(self):
        persistent = None
        while not self.ending.is_set():
            try:
                if self.count % 2:
                    response = wire.get(self.address, "/")
                else:
                    persistent = persistent or wire.Connection(self.address)
                    persistent.get("/")
                    response = persistent.read_response()
                    if "close" in response.fields.get("connection", ""):
                        persistent.close()
                        persistent = None
                if response.status != 200:
                    self.failed.append(response.status)
            except (OSError, EOFError) as error:
                self.failed.append(repr(error))
                persistent = None
            self.count += 1
        if persistent:
            persistent.close()

    def stop(self):
        self.ending.set()
        self.join(60)
        return self.count, self.failed


class NewConnectionLoad(Load):
    """A client that makes each request on a new connection. A forward proxy refuses these requests
    itself."""

    def run(self):
        while not self.ending.is_set():
            try:
                if wire.get(self.address, "/").status != 400:
                    self.failed.append("another status")
            except (OSError, EOFError) as error:
                self.failed.append(repr(error))
            self.count += 1


def listens(process, port):
    """Returns whether a process has a listening socket of an IPv4 port."""
    folder, found = f"/proc/{process.process.pid}/fd", set()
    for name in os.listdir(folder):
        # Descriptors may be closed meanwhile.
        with contextlib.suppress(FileNotFoundError):
            found.add(os.readlink(f"{folder}/{name}"))
    with open("/proc/net/tcp") as table:
        rows = [line.split() for line in table.readlines()[1:]]
    return any(row[3] == "0A" and row[1].endswith(f":{port:04X}") and f"socket:[{row[9]}]" in found
               for row in rows)


class Upgrade(InteropCase):
    def setUp(self):
        super().setUp()
        self.echo = websocket.EchoOrigin()
        self.addCleanup(self.echo.stop)
        self.port = free_port()
        self.admin_path, self.unix = self.folder / "admin.sock", self.folder / "http.sock"
        self.address = "127.0.0.1", self.port

    def start(self, *options, origin=None, binary=None):
        """Starts a process of the service."""
        words = [
            *("boost", "--origin", origin or self.origin_url),
            *("--listen", f"127.0.0.1:{self.port}", "--listen", f"unix:{self.unix}"),
            *("--admin", f"unix:{self.admin_path}", "--limit", "drain_ms=20s", *options),
        ]
        started = Millrace(*words, binary=binary)
        self.addCleanup(self._end, started)
        return started

    @property
    def origin_url(self):
        self.__dict__.setdefault("plain", self.origin())
        return self.plain.url

    def ended(self, process):
        """Waits until the old process has ended, with status 0."""
        self.wait_until("the old process ends", lambda: process.process.poll() is not None)
        self.assertEqual(process.wait(), 0, process.lines)

    def served_at_unix(self):
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(self.unix))
            client.sendall(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
            return client.makefile("rb").read().startswith(b"HTTP/1.1 200 ")

    def test_upgrades_in_a_row_under_load(self):
        """Five upgrades with different numbers of workers and engines. No request fails, and the
        files of Unix sockets are removed only by the last process."""
        running = self.start("--workers", "2")
        load = [Load(self.address) for _ in range(4)]
        for workers, engine in ((3, "epoll"), (1, "auto"), (2, "epoll"), (4, "auto"), (1, "epoll")):
            before = sum(client.count for client in load)
            following = self.start("--upgrade", "--workers", workers, "--engine", engine)
            self.ended(running)
            running = following
            self.assertTrue(self.served_at_unix())
            self.wait_until(
                "more requests are made",
                lambda: sum(client.count for client in load) > before + 200,
            )
        counts, failed = zip(*(client.stop() for client in load))
        self.assertEqual([each for client in failed for each in client], [])
        self.assertGreater(sum(counts), 1000)
        self.assertEqual(running.stop(), 0)
        self.assertFalse(self.unix.exists() or self.admin_path.exists())

    def test_tunnels_live_until_the_drain_limit(self):
        """Open WebSockets stay connected to the old process until its drain limit."""
        old = self.start("--limit", "drain_ms=3s", origin=self.echo.url)
        sockets = [websocket.connect(self.address) for _ in range(20)]
        new = self.start("--upgrade", origin=self.echo.url)
        # It says so before its workers have closed their listeners, which may still accept.
        self.wait_until("the old one drains", lambda: any("draining" in x for x in old.lines))
        self.wait_until("the old one listens no more", lambda: not listens(old, self.port))
        sockets.append(websocket.connect(self.address))
        for number, frames in enumerate(sockets):
            frames.send(websocket.TEXT, b"still %d" % number)
            self.assertEqual(frames.receive(), (websocket.TEXT, b"still %d" % number))
        self.assertIsNone(old.process.poll())
        self.ended(old)
        self.assertTrue(any("aborting the remaining requests" in line for line in old.lines),
                        old.lines)
        sockets[-1].send(websocket.TEXT, b"new")
        self.assertEqual(sockets[-1].receive(), (websocket.TEXT, b"new"))
        for frames in sockets:
            frames.reader.close()
            frames.stream.close()
        self.assertEqual(new.stop(), 0)

    def fails(self, *words, part):
        """Checks that a start fails with an error that contains `part`."""
        done = subprocess.run(
            [program(), *map(str, words)], stdin=subprocess.DEVNULL, capture_output=True,
            text=True, timeout=60,
        )
        self.assertNotEqual(done.returncode, 0)
        self.assertIn(part, done.stderr)

    def test_a_successor_that_fails_changes_nothing(self):
        running = self.start("--workers", "2")
        load = Load(self.address)
        admin_path = ("--admin", f"unix:{self.admin_path}")
        service = ("boost", "--origin", self.origin_url, "--upgrade", *admin_path)
        self.fails(*service, "--listen", "unix:/nowhere/at/all", part="/nowhere/at: No such file")
        self.fails(*service, "--listen", f"unix:{self.folder}", part="address already in use")
        with socket.create_server(("127.0.0.1", 0)) as taken:
            at = f"127.0.0.1:{taken.getsockname()[1]}"
            self.fails(*service, "--listen", at, part="address already in use")
        log = ("--listen", "127.0.0.1:0", "--access-log", self.folder)
        self.fails(*service, *log, part="access log")
        self.fails("boost", "--origin", self.origin_url, "--upgrade",
                   part="--upgrade: no admin Unix socket")
        self.fails("boost", "--origin", "ftp://a", "--upgrade", *admin_path, part="https://")
        nobody = f"unix:{self.folder / 'nobody'}"
        self.fails("forward", "--upgrade", "--admin", nobody, part="cannot take over from")
        self.wait_until("more requests are made", lambda: load.count > 200)
        self.assertEqual(load.stop()[1], [])
        self.assertTrue(self.served_at_unix())
        self.assertIsNone(running.process.poll())
        self.assertEqual(sum("this process continues" in line for line in running.lines), 3,
                         running.lines)

    def forward_words(self, *more):
        admin_path = ("--admin", f"unix:{self.admin_path}", "--limit", "drain_ms=1s")
        return ("forward", "--listen", f"127.0.0.1:{self.port}", *admin_path, *more)

    def test_failed_takeovers_with_more_workers_lose_no_client(self):
        """Clients connect all the time, while upgrades to more workers fail because of their access
        log."""
        running = self.millrace(*self.forward_words("--workers", "2"))
        load = [NewConnectionLoad(self.address) for _ in range(4)]
        log = ("--engine", "epoll", "--workers", "8", "--access-log", self.folder)
        for _ in range(50):
            self.fails(*self.forward_words("--upgrade", *log), part="access log")
        counts, failed = zip(*(client.stop() for client in load))
        self.assertEqual([each for client in failed for each in client], [])
        self.assertGreater(sum(counts), 1000)
        self.assertEqual(running.stop(), 0)

    def test_one_process_serves_whenever_descriptors_run_out(self):
        """The new process runs out of descriptors at each point of its start. Either it fails
        before it has taken over and the old process serves, or it serves itself."""
        running, ends = self.millrace(*self.forward_words("--workers", "2")), set()
        for count in range(14, 60):
            new = subprocess.Popen(
                [
                    *("prlimit", f"--nofile={count}:{count}", program()),
                    *self.forward_words("--upgrade", "--workers", "6", "--engine", "epoll"),
                ],
                stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
            )
            self.addCleanup(new.stderr.close)
            self.addCleanup(new.wait)
            self.addCleanup(new.kill)
            output = []
            for line in new.stderr:
                output.append(line)
                if "listening on" in line:
                    break
            ends.add(new.poll() is None and "listening on" in output[-1])
            self.assertEqual(wire.get(self.address, "/").status, 400, output)
            if "listening on" in output[-1]:
                self.ended(running)
                break
            self.assertEqual(new.wait(60), 1, output)
        self.assertEqual(ends, {False, True})
        self.assertEqual(wire.get(self.address, "/").status, 400)

    def takeover(self):
        """Performs a takeover up to the offer. Returns the connection and the descriptors."""
        client = socket.socket(socket.AF_UNIX)
        self.addCleanup(client.close)
        client.settimeout(wire.TIMEOUT_SECONDS)
        client.connect(str(self.admin_path))
        client.sendall(
            f"POST /upgrade HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\n"
            f"Upgrade: {PROTOCOL}\r\n\r\n".encode()
        )
        output, descriptors = b"", []
        # The last message of the offer has kind 6. Its text is the number of sockets.
        while not output.endswith(b"\x06\x00\x00\x01" + str(len(descriptors)).encode()):
            data, control, _, _ = client.recvmsg(4096, socket.CMSG_SPACE(64 * 4))
            self.assertTrue(data, output)
            output += data
            for _, _, rights in control:
                numbers = array.array("i")
                numbers.frombytes(rights)
                descriptors += numbers
        self.addCleanup(lambda: [os.close(number) for number in descriptors])
        return client, descriptors

    def test_a_successor_that_dies_or_sends_errors_changes_nothing(self):
        """A takeover ends early or is malformed at each step. The running process continues, and a
        later upgrade succeeds."""
        running = self.start("--workers", "2")
        for word in (b"", b"\xff\x00\x00\x00", b"\x08\x00\x00\x00", b"\x07\x00\xff"):
            client, descriptors = self.takeover()
            # A TCP socket for each worker, one for the Unix listener, one for the admin address.
            self.assertEqual(len(descriptors), 4)
            client.sendall(word)
            client.shutdown(socket.SHUT_WR)
            while client.recv(4096):
                pass
            self.assertEqual(wire.get(self.address, "/").status, 200)
        new = self.start("--upgrade")
        self.ended(running)
        self.assertEqual(wire.get(self.address, "/").status, 200)
        self.assertEqual(new.stop(), 0)

    def test_the_running_one_dies_during_a_takeover(self):
        """If the running process dies after its offer, the new process serves, whether or not it
        has already reported that it listens."""
        for reads_report in (False, True):
            admin = socket.socket(socket.AF_UNIX)
            admin.bind(str(self.admin_path))
            admin.listen()
            served = threading.Thread(
                target=self.offer_and_die, args=(admin, reads_report), daemon=True
            )
            served.start()
            new = self.start("--upgrade")
            served.join(60)
            self.assertEqual(wire.get(self.address, "/").status, 200)
            self.assertTrue(any("ended before it had drained" in x for x in new.lines), new.lines)
            self.assertEqual(new.stop(), 0)
            self.assertFalse(self.admin_path.exists())

    def offer_and_die(self, admin, reads_report):
        """Acts as a running process that has only an admin address, and ends during the
        takeover."""
        client, _ = admin.accept()
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            head += client.recv(4096)
        client.sendall(
            b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: %s\r\nConnection: Upgrade\r\n\r\n"
            % PROTOCOL.encode()
        )
        rights = array.array("i", [admin.fileno()])
        control = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)]
        # The offer: one socket of an admin address, and no service manager.
        client.sendmsg([b"\x03\x01\x00\x00"], control)
        client.sendall(b"\x05\x00\x00\x020 \x06\x00\x00\x011")
        if reads_report:
            client.recv(1, socket.MSG_PEEK)
        admin.close()
        client.close()

    def test_a_takeover_waits_for_the_end_of_one_that_fails(self):
        """A takeover waits until the failed takeover of a dead process is noticed."""
        self.start()
        client, _ = self.takeover()
        begun = []
        second = threading.Thread(target=lambda: begun.append(self.takeover()), daemon=True)
        second.start()
        time.sleep(0.3)
        client.close()
        second.join(60)
        self.assertEqual(len(begun), 1)

    def test_sigterm_during_a_takeover_waits_for_its_end(self):
        """SIGTERM to the old process during a takeover loses no request."""
        waits = "draining will start when the takeover ends"
        for succeeds in (False, True):
            # The passed sockets are open until the test ends, so each round needs another port.
            self.port = free_port()
            self.address = "127.0.0.1", self.port
            running = self.start()
            client, _ = self.takeover()
            running.terminate()
            self.wait_until("SIGTERM is noticed", lambda: any(waits in x for x in running.lines))
            self.assertEqual(wire.get(self.address, "/").status, 200)
            if succeeds:
                client.sendall(b"\x07\x00\x00\x00")
                self.assertEqual(client.recv(4), b"\x08\x00\x00\x00")
            client.close()
            self.ended(running)
            self.assertEqual(any("has taken over" in x for x in running.lines), succeeds)
            for file in (self.unix, self.admin_path):
                self.assertEqual(file.exists(), succeeds, "they are the new one's")
                file.unlink(missing_ok=True)

    def test_no_takeover_from_a_draining_process(self):
        """After SIGTERM a takeover is refused with the reason, and open connections are still
        served."""
        running = self.start(origin=self.echo.url)
        frames = websocket.connect(self.address)
        running.terminate()
        self.wait_until("it drains", lambda: any("draining" in x for x in running.lines))
        self.fails(
            *("boost", "--origin", self.origin_url, "--upgrade"),
            *("--admin", f"unix:{self.admin_path}"),
            part="409: this process is draining, so no other process can take over",
        )
        frames.send(websocket.TEXT, b"still")
        self.assertEqual(frames.receive(), (websocket.TEXT, b"still"))
        frames.reader.close()
        frames.stream.close()
        self.ended(running)

    def test_no_reload_while_another_takes_over(self):
        """A reload during an upgrade is refused with the reason, because the new process may have
        read the file before."""
        file = self.folder / "run.toml"
        file.write_text(f'admin = "unix:{self.admin_path}"\n[[forward]]\nlisten = "127.0.0.1:0"\n')
        running = self.millrace("run", file)
        client, _ = self.takeover()
        running.process.send_signal(signal.SIGHUP)
        refused = "reload refused: another process is taking over"
        self.wait_until("it is refused", lambda: any(refused in x for x in running.lines))
        client.close()
        self.wait_until("the takeover is given up",
                        lambda: any("this process continues" in x for x in running.lines))
        running.process.send_signal(signal.SIGHUP)
        done = "configuration 2 is in force"
        self.wait_until("it is done", lambda: any(done in x for x in running.lines))

    def test_only_one_takes_over_at_a_time(self):
        running = self.start()
        client, _ = self.takeover()
        self.fails(
            *("boost", "--origin", self.origin_url, "--upgrade"),
            *("--admin", f"unix:{self.admin_path}"),
            part="409: another process is taking over",
        )
        client.close()
        self.wait_until("the first is given up",
                        lambda: any("this process continues" in x for x in running.lines))
        new = self.start("--upgrade")
        self.ended(running)
        self.assertEqual(new.stop(), 0)

    def test_a_successor_killed_at_any_moment(self):
        """The new process is killed at different moments of its start. Until it has taken over, the
        running process serves. Afterwards another process can take over."""
        running = self.start("--workers", "2")
        has_handed_over = lambda: any("has taken over" in line for line in running.lines)
        for pause in (0, 0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3):
            process = subprocess.Popen(
                [
                    *(program(), "boost", "--origin", self.origin_url, "--engine", "epoll"),
                    *("--listen", f"127.0.0.1:{self.port}", "--listen", f"unix:{self.unix}"),
                    *("--admin", f"unix:{self.admin_path}", "--upgrade"),
                ],
                stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            )
            time.sleep(pause)
            process.kill()
            process.wait()
            if has_handed_over():
                break
            try:
                self.assertEqual(wire.get(self.address, "/").status, 200)
            except (OSError, EOFError):
                # Only a process that has handed over may fail; its line may still be on its way.
                self.wait_until("the running process has handed over", has_handed_over)
        if has_handed_over():
            self.ended(running)
        else:
            new = self.start("--upgrade")
            self.ended(running)
            self.assertEqual(wire.get(self.address, "/").status, 200)
            self.assertEqual(new.stop(), 0)

    def test_the_protocol_has_a_version(self):
        self.start()
        for version, status in (("millrace-takeover/2", b"426"), ("websocket", b"426")):
            with socket.socket(socket.AF_UNIX) as client:
                client.connect(str(self.admin_path))
                client.sendall(
                    f"POST /upgrade HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\n"
                    f"Upgrade: {version}\r\n\r\n".encode()
                )
                output = client.makefile("rb").read()
            self.assertEqual(output.split()[1], status)
            self.assertIn(PROTOCOL.encode(), output)

    def test_another_binary_takes_over(self):
        """The new process may run another file than the running one."""
        running = self.start()
        copy = self.folder / "millrace-new"
        shutil.copy(program(), copy)
        new = self.start("--upgrade", binary=copy)
        self.ended(running)
        self.assertEqual(os.readlink(f"/proc/{new.process.pid}/exe"), str(copy))
        new.process.send_signal(signal.SIGTERM)
        self.assertEqual(new.wait(), 0)


class NeverDown(InteropCase):
    def test_a_short_run_of_never_down(self):
        """A short run of `scripts/never-down`; the full run is started by hand."""
        done = self.run_script(
            *("never-down", "--seconds", "10", "--reloads", "10", "--upgrades", "2"),
            *("--rate", "300", "--websockets", "50", "--drain", "2"),
        )
        self.assertRegex(done.stdout, rb"\b0 failed")
        self.assertRegex(done.stdout, rb"\b0 dropped before their time")
