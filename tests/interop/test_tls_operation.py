"""Draining, upgrades, engines, metrics and abuse of a tls:// listener."""

import hashlib
import json
import socket
import ssl
import threading

from support import pattern, wire
from support.millrace import Millrace
from support.ports import free_port
from support.secure import NAME, Connection, SecureCase

MEGABYTE = 1 << 20


def digest(length):
    """Returns the hash of the body of `/bytes/LENGTH`."""
    whole = hashlib.sha256()
    for block in pattern.blocks(length):
        whole.update(block)
    return whole.hexdigest()


class Operation(SecureCase):
    def refused(self, address):
        """Returns whether a new connection is refused. One that arrives while the listener closes is
        reset."""
        try:
            socket.create_connection(address, 10).close()
        except ConnectionRefusedError:
            return True
        except ConnectionResetError:
            pass
        return False

    def metric(self, proxy, name):
        """Returns the sum of a metric's values."""
        (line,) = [line for line in proxy.lines if "admin at " in line]
        port = int(line.rpartition(":")[2])
        page = wire.get(("127.0.0.1", port), "/metrics", host=f"127.0.0.1:{port}").body.decode()
        rows = [row for row in page.splitlines() if row.startswith(name)]
        self.assertTrue(rows, f"no {name}")
        return sum(int(float(row.split()[-1])) for row in rows)

    def test_sigterm_lets_downloads_end(self):
        """A download completes and is followed by close_notify, a handshake in progress and an idle
        connection end, and the exit status is 0."""
        proxy = self.secure_boost(self.origin().url)
        idle = self.connect(proxy)
        idle.get("/bytes/5")
        idle.read_response()
        busy = self.connect(proxy)
        busy.get(f"/bytes/{64 * MEGABYTE}")
        self.assertEqual(busy.head()[1], 200)
        proxy.terminate()
        self.wait_until("new connections are refused", lambda: self.refused(proxy.address))
        self.assertEqual(idle.receive(), b"", "close_notify")
        self.assertIsNone(proxy.process.poll(), "it ended before the download")
        sink = hashlib.sha256()
        busy.exactly(64 * MEGABYTE, sink.update)
        self.assertEqual(sink.hexdigest(), digest(64 * MEGABYTE))
        self.assertEqual(busy.receive(), b"", "close_notify")
        self.assertEqual(proxy.wait(), 0)

    def test_sigterm_during_handshakes(self):
        """Connections that never finish their handshake do not delay the end beyond its limit."""
        proxy = self.secure_boost(self.origin().url, "--limit", "handshake_ms=500")
        streams = [self.raw(proxy, b"\x16\3\1"[:number % 4]) for number in range(20)]
        self.connect(proxy).close()
        proxy.terminate()
        self.assertEqual(proxy.wait(), 0)
        for stream in streams:
            try:
                self.assertEqual(stream.recv(100), b"")
            except ConnectionResetError:
                pass

    def test_upgrades_with_clients(self):
        """Downloads on the old process complete, and new clients get the new process, which has
        another certificate."""
        port, admin = free_port(), self.folder / "admin.sock"
        origin = self.origin()
        self.context.check_hostname = False

        def start(pair, *options):
            started = Millrace(
                "boost", "--origin", origin.url, "--listen", f"tls://127.0.0.1:{port}",
                "--certificate", pair[0], "--key", pair[1], "--admin", f"unix:{admin}",
                "--limit", "drain_ms=60s", *options,
            )
            self.addCleanup(self._end, started)
            return started

        running = start(self.pair)
        for name in ("a.test", "b.test"):
            busy = Connection(running.address, self.context)
            busy.get(f"/bytes/{20 * MEGABYTE}")
            self.assertEqual(busy.head()[1], 200)
            following = start(self.authority.issue(f"DNS:{name}"), "--upgrade")
            fresh = self.connected_to(following.address, name)
            fresh.get("/bytes/100000")
            self.assertEqual(fresh.read_response().digest, digest(100_000))
            sink = hashlib.sha256()
            busy.exactly(20 * MEGABYTE, sink.update)
            self.assertEqual(sink.hexdigest(), digest(20 * MEGABYTE))
            busy.close()
            fresh.close()
            self.assertEqual(running.wait(), 0)
            running = following

    def connected_to(self, address, name):
        """Connects until the certificate is for `name`: the workers of the old process accept until
        they have read that another process has taken over."""
        held = []

        def is_connected():
            held.append(Connection(address, self.context))
            if held[-1].tls.getpeercert()["subjectAltName"] == (("DNS", name),):
                return True
            held.pop().close()
            return False

        self.wait_until(f"a connection to {name}", is_connected)
        return held[0]

    def test_metrics(self):
        proxy = self.secure_boost(self.origin().url, "--admin", "127.0.0.1:0")
        for _ in range(3):
            self.connect(proxy)
        self.raw(proxy, b"GET / HTTP/1.1\r\n\r\n").recv(1000)
        done, failed = "millrace_tls_handshakes_total", "millrace_tls_handshakes_failed_total"
        self.wait_until("3 are complete", lambda: self.metric(proxy, done) == 3)
        self.wait_until(
            "one has failed",
            lambda: self.metric(proxy, failed + '{reason="tls-plain-http"}') == 1,
        )
        self.assertEqual(self.metric(proxy, failed), 1)
        client = self.connect(proxy)
        client.get("/bytes/5")
        self.assertEqual(client.read_response().status, 200)
        client.socket.sendall(b"\x17\3\3\0\x40" + b"x" * 64)
        damaged = 'millrace_tls_sessions_failed_total{reason="tls-bad-record"}'
        self.wait_until("a session has failed", lambda: self.metric(proxy, damaged) == 1)

    def test_each_engine(self):
        """Downloads, uploads and a tunnel's end with each engine that this machine has."""
        for engine in ("epoll", "uring", "uselect"):
            with self.subTest(engine=engine):
                try:
                    proxy = self.secure_boost(self.origin().url, "--engine", engine)
                except RuntimeError as error:
                    self.assertRegex(str(error), "engine|uselect")
                    print(f"skip: engine {engine}: {error}")
                    continue
                client = self.connect(proxy)
                for length in (0, 1, 16384, 65537, 5 * MEGABYTE):
                    client.get(f"/bytes/{length}")
                    self.assertEqual(client.read_response().digest, digest(length))
                    body = b"".join(pattern.blocks(length))
                    head = f"POST /u HTTP/1.1\r\nHost: {NAME}\r\nContent-Length: {length}\r\n\r\n"
                    client.send(head.encode() + body)
                    report = json.loads(client.read_response().body)
                    self.assertEqual(report["sha256"], digest(length))
                client.announce_end()
                self.assertEqual(client.receive(), b"")

    def test_limit_of_handshakes(self):
        """Connections beyond the limit are closed at once; those under way go on."""
        proxy = self.secure_boost(
            self.origin().url, "--workers", "1", "--limit", "handshakes=3", "--admin", "127.0.0.1:0"
        )
        held = [self.raw(proxy, b"\x16") for _ in range(3)]
        self.wait_until("a further one is closed", lambda: self.is_refused(proxy))
        held.pop().close()
        self.wait_until("there is room again", lambda: self.is_served(proxy))

    def test_limit_of_handshakes_after_proxy_headers(self):
        """Connections that wait for a PROXY header are no handshakes yet."""
        proxy = self.secure_boost(
            self.origin().url, "--workers", "1", "--limit", "handshakes=1", "--trust", "127.0.0.1",
            "--proxy-protocol",
        )
        waiting = [self.raw(proxy) for _ in range(5)]
        for stream in waiting:
            stream.sendall(b"PROXY TCP4 192.0.2.7 192.0.2.8 1000 443\r\n\x16")
        self.wait_until(
            "all but one are closed",
            lambda: [self.is_closed(stream) for stream in waiting].count(False) == 1,
        )

    def is_refused(self, proxy):
        """Opens a connection. The reset may arrive before connect(2) has returned."""
        try:
            return self.is_closed(self.raw(proxy))
        except ConnectionResetError:
            return True

    def is_closed(self, stream):
        stream.settimeout(0.2)
        try:
            return stream.recv(1) == b""
        except (TimeoutError, ConnectionResetError) as error:
            return isinstance(error, ConnectionResetError)

    def is_served(self, proxy):
        try:
            self.connect(proxy).close()
        except (OSError, ssl.SSLError):
            return False
        return True

    def test_a_flood_of_handshakes(self):
        """300 clients begin at the same time, and each is served."""
        # On a busy machine these clients need longer than the default.
        proxy = self.secure_boost(self.origin().url, "--limit", "handshake_ms=600000")
        failed, barrier = [], threading.Barrier(300)

        def run():
            barrier.wait()
            try:
                client = Connection(proxy.address, self.context)
                client.get("/bytes/1000")
                if client.read_response().digest != digest(1000):
                    failed.append("another body")
                client.close()
            except (OSError, EOFError) as error:
                failed.append(repr(error))

        threads = [threading.Thread(target=run) for _ in range(300)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(failed, [])
