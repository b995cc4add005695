"""TCP below HTTP: congestion control is as configured, and no request or response waits for an
acknowledgement."""

import pathlib
import socket
import subprocess
import threading
import time
import unittest

from support import sockets, wire
from support.case import INSPECTABLE, InteropCase
from support.millrace import program
from support.namespace import add_address, counted, isolated, mounted, set_system


# Algorithms for processes without privileges (tcp(7)): reno, the default, and the system's own.
ALLOWED_FILE = pathlib.Path("/proc/sys/net/ipv4/tcp_allowed_congestion_control")
ALLOWED = ALLOWED_FILE.read_text().split()


class Congestion(InteropCase):
    def exchanged(self, *options, host="127.0.0.1"):
        """Returns the algorithms of the client connection and of the origin connection after one
        request."""
        origin = self.origin()
        listen = ("--listen", f"{host}:0")
        proxy = self.millrace("boost", "--origin", origin.url, *listen, *options, *INSPECTABLE)
        client = wire.Connection(proxy.address)
        self.addCleanup(client.close)
        client.get("/bytes/10")
        self.assertEqual(client.read_response().status, 200)
        found = {}
        for connection in sockets.of_process(proxy.process.pid):
            side = "origin" if connection.getpeername()[1] == origin.port else "client"
            found[side] = sockets.congestion(connection)
            connection.close()
        return found["client"], found["origin"]

    def test_by_name(self):
        other = next((name for name in ALLOWED if name != "reno"), None)
        if other is None:
            self.skipTest("the system allows reno alone")
        for client, origin in (("reno", other), (other, "reno")):
            found = self.exchanged("--congestion", client, "--origin-congestion", origin)
            self.assertEqual(found, (client, origin))

    @unittest.skipUnless("cubic" in ALLOWED, "the system allows cubic to root alone")
    @mounted
    def test_an_algorithm_that_needs_privileges_is_refused(self):
        """A process that starts as root may set any algorithm at the start, and later only those
        for unprivileged processes."""
        allowed = self.folder / "allowed"
        allowed.write_text("reno\n")
        subprocess.run(["mount", "--bind", allowed, ALLOWED_FILE], check=True)
        self.forward("--origin-congestion", "reno")
        for option in ("--congestion", "--origin-congestion"):
            command = [program(), "forward", "--listen", "127.0.0.1:0", option, "cubic"]
            done = subprocess.run(command, capture_output=True, text=True, timeout=60)
            output = (
                f'millrace: {option}: "cubic" needs CAP_NET_ADMIN, which millrace does not '
                "keep (net.ipv4.tcp_allowed_congestion_control) (expected: system, auto, reno)\n"
            )
            self.assertEqual((done.returncode, done.stderr), (2, output))

    @unittest.skipUnless("cubic" in ALLOWED, "the system allows cubic to root alone")
    @isolated
    def test_auto(self):
        """The system's default is reno. With `auto`, a peer on loopback gets cubic and another peer
        the default. Without the options the algorithm is not changed."""
        set_system("net/ipv4/tcp_congestion_control", "reno")
        elsewhere = "203.0.113.1"
        add_address(f"{elsewhere}/32")
        auto = ("--congestion", "auto", "--origin-congestion", "auto")
        self.assertEqual(self.exchanged(*auto), ("cubic", "cubic"))
        self.assertEqual(self.exchanged(*auto, host=elsewhere), ("reno", "cubic"))
        self.assertEqual(self.exchanged(), ("reno", "reno"))


class Latency(InteropCase):
    """Detects Nagle's algorithm, and segments that are held back (MSG_MORE, TCP_CORK). The end of
    such a message waits until the peer acknowledges the bytes before it. The peer delays this
    acknowledgement by 40 ms, which increments the kernel's counter DelayedACKs. Without such a
    wait, request and response acknowledge each other, and the counter stays. A busy machine may add
    a delayed acknowledgement now and then, but not to every third exchange in three series in a
    row.

    If nothing is in flight, the sender's timer sends the held bytes after 200 ms. It has no
    counter, but it slows every exchange of that size, so the fastest exchange is checked. """

    measures = True
    ROUNDS = 15
    TRIES = 3
    TIMER_SECONDS = 0.19
    SIZES = sorted(
        {1, 100, 1000, 1 << 20, (1 << 20) - 1, 5 * 1460}
        | {base + off for base in (1460, 1 << 14, 1 << 15, 1 << 16, 3 << 16, 1 << 18, 3 << 18)
           for off in (-1, 0, 1)}
    )

    def setUp(self):
        super().setUp()
        self.body = bytes(1 << 21)

    def proxy_and_client(self):
        """Starts a reverse proxy before an origin of its own, and connects to it."""
        origin = SplitOrigin(self.body)
        self.addCleanup(origin.stop)
        proxy = self.boost(origin.url, "--workers", "1", *INSPECTABLE)
        client = wire.Connection(proxy.address)
        self.addCleanup(client.close)
        client.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return proxy, client

    @isolated
    def test_no_response_waits(self):
        """The origin sends each size in one write, with a separate header, and in chunks."""
        proxy, client = self.proxy_and_client()

        def exchange(form, size):
            client.get(f"/{form}/{size}")
            response = client.read_response(keep=0)
            self.assertEqual((response.status, response.length), (200, size))

        for form in ("whole", "apart", "chunked"):
            for size in self.SIZES:
                self.check(f"{form} responses of {size} bytes", lambda: exchange(form, size))
        self.check_nodelay(proxy)

    @isolated
    def test_no_request_waits(self):
        """The same for request bodies."""
        proxy, client = self.proxy_and_client()

        def exchange(size):
            head = f"POST /whole/2 HTTP/1.1\r\nHost: interop.test\r\nContent-Length: {size}\r\n\r\n"
            client.send(head.encode())
            client.send(memoryview(self.body)[:size])
            self.assertEqual(client.read_response(keep=0).status, 200)

        for size in self.SIZES:
            self.check(f"requests of {size} bytes", lambda: exchange(size))
        self.check_nodelay(proxy)

    def check(self, what, exchange):
        """Repeats an exchange and checks the counter and the fastest time."""
        found = []
        for _ in range(self.TRIES):
            delayed, fastest = counted("DelayedACKs"), float("inf")
            for _ in range(self.ROUNDS):
                since = time.monotonic()
                exchange()
                fastest = min(fastest, time.monotonic() - since)
            found.append((counted("DelayedACKs") - delayed, round(fastest, 3)))
            if found[-1][0] <= self.ROUNDS // 3 and fastest < self.TIMER_SECONDS:
                return
        self.fail(f"{what} wait: (delayed of {self.ROUNDS}, fastest in seconds) were {found}")

    def check_nodelay(self, proxy):
        """Checks that TCP_NODELAY is set on both connections."""
        connections = sockets.of_process(proxy.process.pid)
        found = [sockets.nodelay(connection) for connection in connections]
        for connection in connections:
            connection.close()
        self.assertEqual(found, [True, True], "the client's connection and the origin's")


class SplitOrigin:
    """Serves `/FORM/SIZE`: `whole` is one write, `apart` the head first, `chunked` a write for each
    chunk of 16 KiB and for the last. Its own sends are not delayed."""

    CHUNK = 1 << 14

    def __init__(self, body):
        self.body = body
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def stop(self):
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()

    def _accept(self):
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection):
        with connection, connection.makefile("rb") as reader:
            while line := reader.readline():
                _, form, size = line.split()[1].split(b"/")
                length = 0
                while field := reader.readline().strip():
                    name, _, value = field.lower().partition(b":")
                    if name == b"content-length":
                        length = int(value)
                while length:
                    length -= len(reader.read(min(length, 1 << 16)))
                self._respond(connection, form, memoryview(self.body)[: int(size)])

    def _respond(self, connection, form, body):
        head = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body)
        if form == b"whole":
            connection.sendall(head + body)
        elif form == b"apart":
            connection.sendall(head)
            connection.sendall(body)
        else:
            connection.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
            for at in range(0, len(body), self.CHUNK):
                chunk = body[at : at + self.CHUNK]
                connection.sendall(b"%x\r\n%b\r\n" % (len(chunk), chunk))
            connection.sendall(b"0\r\n\r\n")
