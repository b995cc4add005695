"""How TLS connections begin and end at a tls:// listener: cut and foreign ClientHellos, key updates,
close_notify, its absence, and resets."""

import contextlib
import hashlib
import json
import os
import socket
import ssl
import subprocess
import threading
import time
import unittest.mock

from support import pattern, websocket, wire
from support.secure import NAME, Connection, SecureCase, everything, one_byte_each
from support.server import Listener

GET = f"GET /bytes/5 HTTP/1.1\r\nHost: {NAME}\r\n\r\n".encode()


class Halves(Listener):
    """Passes a connection on to a port of 127.0.0.1, and the client's bytes in halves."""

    def __init__(self, target):
        self.target = target
        super().__init__()

    def serve(self, client):
        with socket.create_connection(("127.0.0.1", self.target)) as server:
            threading.Thread(target=self._forward, args=(client, server), daemon=True).start()
            while data := server.recv(65536):
                client.sendall(data)

    @staticmethod
    def _forward(client, server):
        with contextlib.suppress(OSError):
            while data := client.recv(65536):
                for half in (data[: len(data) // 2], data[len(data) // 2 :]):
                    server.sendall(half)
                    time.sleep(0.1)


class Target(Listener):
    """A server that notes what it receives and how each stream ends: `fin` or `reset`. It sends
    `greeting` first."""

    def __init__(self, greeting=b""):
        self.greeting, self.received, self.ends = greeting, b"", []
        super().__init__()

    def serve(self, connection):
        connection.sendall(self.greeting)
        try:
            while data := connection.recv(65536):
                self.received += data
            self.ends.append("fin")
        except ConnectionResetError:
            self.ends.append("reset")


class Case(SecureCase):
    def setUp(self):
        super().setUp()
        self.log = self.folder / "log"
        self.log_options = ["--access-log", self.log, "--log-format", "json"]
        self.upstream = self.origin()

    def start(self, *options):
        return self.secure_boost(self.upstream.url, *self.log_options, *options)

    def target(self, **how):
        started = Target(**how)
        self.addCleanup(started.stop)
        return started

    def reasons(self, proxy):
        """Ends the proxy. Returns the reasons in its log."""
        self.assertEqual(proxy.stop(), 0)
        return [json.loads(line)["reason"] for line in self.log.read_text().splitlines()]

    def hello(self):
        """Returns the bytes of a ClientHello."""
        sealed = ssl.MemoryBIO()
        tls = self.context.wrap_bio(ssl.MemoryBIO(), sealed, server_hostname=NAME)
        with self.assertRaises(ssl.SSLWantReadError):
            tls.do_handshake()
        return sealed.read()

    def tunnel(self, proxy, target):
        """Opens a tunnel to a target."""
        client = self.connect(proxy)
        host = f"127.0.0.1:{target.port}"
        client.send(f"CONNECT {host} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
        self.assertEqual(client.head()[1], 200)
        return client


class Handshakes(Case):
    def test_a_hello_cut_at_any_byte(self):
        """A client that ends there gets no response, one that continues is served."""
        proxy = self.start()
        length = len(self.hello())
        for cut in {0, 1, 4, 5, 6, 9, 43, 44, length - 1, *range(7, length, 41)}:
            with self.subTest(cut=cut):
                ended = self.raw(proxy, self.hello()[:cut])
                ended.shutdown(socket.SHUT_WR)
                self.assertEqual(everything(ended)[0], b"")
                client = self.connect(
                    proxy, pieces=lambda data: [data[:cut], data[cut:]] if cut else [data]
                )
                client.send(GET)
                self.assertEqual(client.read_response().status, 200)
        client = self.connect(proxy, pieces=one_byte_each)
        client.send(GET)
        self.assertEqual(client.read_response().status, 200)
        client.close()
        self.assertEqual(set(self.reasons(proxy)), {"tls-closed", None})

    def test_second_hellos_wait_for_their_turn(self):
        """After a HelloRetryRequest the key exchange follows the second ClientHello. A worker that
        finds 200 of them continues only a few handshakes in a turn."""
        with unittest.mock.patch.dict(os.environ, MILLRACE_TRACE="1"):
            proxy = self.start("--workers", "1")
        share = b"\0\x33\0\x26\0\x24\0\x1d\0\x20"
        hello = self.hello()
        self.assertEqual(hello.count(share), 1)
        of_unknown_group = hello.replace(share, share[:6] + b"\x0a\x0a\0\x20")
        streams = []
        for _ in range(200):
            streams.append(self.raw(proxy, of_unknown_group))
            self.assertEqual(streams[-1].recv(1), b"\x16")
        waited = lambda: [line for line in proxy.lines if "Handshake <- CapacityFreed" in line]
        self.assertEqual(waited(), [])
        proxy.pause()
        for stream in streams:
            stream.sendall(hello)
        proxy.resume()
        self.wait_until("handshakes wait for a turn", waited, seconds=30)

    def test_a_client_that_resets_during_the_handshake(self):
        proxy = self.start()
        for cut in (0, 1, 100, None):
            stream = self.raw(proxy, self.hello()[:cut])
            if cut is None:
                self.assertTrue(stream.recv(1))
            stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            stream.close()
        client = self.connect(proxy)
        client.send(GET)
        self.assertEqual(client.read_response().status, 200)

    def test_plain_http(self):
        """The response says what is wrong."""
        proxy = self.start()
        for method in (b"GET", b"POST", b"CONNECT", b"PRI"):
            stream = self.raw(proxy, method + b" / HTTP/1.1\r\nHost: a\r\n\r\n")
            data, is_reset = everything(stream)
            self.assertFalse(is_reset)
            head, _, body = data.partition(b"\r\n\r\n")
            self.assertTrue(head.startswith(b"HTTP/1.1 400 "), data)
            self.assertIn(b"Content-Length: %d" % len(body), head)
            self.assertIn(b"https://", body)
        self.assertEqual(self.reasons(proxy), ["tls-plain-http"] * 4)

    def test_other_bytes(self):
        """Bytes that are no TLS. The client is disconnected, with an alert at most."""
        proxy = self.start()
        cases = [
            b"\0" * 100, b"\x80\x2e\1\0\2", b"hello\r\n", b"SSH-2.0-x\r\n", b"\x16\3\1\0\0",
            b"\x16\3\1\0\4\2\0\0\0", b"\x16\3\1\xff\xff" + b"x" * 70_000,
            b"\x17\3\3\0\5hello", self.hello()[:5] + b"\xff" * 300,
        ]
        for case in cases:
            with self.subTest(case=case[:20]):
                stream = self.raw(proxy, case)
                stream.shutdown(socket.SHUT_WR)
                data, _ = everything(stream)
                self.assertTrue(data == b"" or data[0] == 21 or data.startswith(b"HTTP/1.1 400"),
                                data)
        self.connect(proxy).close()
        for reason in self.reasons(proxy):
            self.assertIn(reason, ("tls-malformed", "tls-closed", "tls-plain-http"))

    def test_a_hello_that_never_ends(self):
        """Handshake records that announce a message of 16 MB."""
        proxy = self.start()
        stream = self.raw(proxy)
        record = b"\x16\3\1\x40\0" + b"\1\xff\xff\xff" + b"x" * 16380
        try:
            for _ in range(100):
                stream.sendall(record)
        except OSError:
            pass
        everything(stream)
        stream.close()
        self.assertIn(self.reasons(proxy)[0], ("tls-hello-too-large", "tls-malformed"))

    def test_handshakes_time_out(self):
        proxy = self.start("--limit", "handshake_ms=200")
        streams = [self.raw(proxy, self.hello()[:cut]) for cut in (0, 10, None)]
        for stream in streams:
            everything(stream)
        self.assertEqual(self.reasons(proxy), ["tls-timed-out"] * 3)

    def test_tls_at_a_plain_port(self):
        proxy = self.boost(self.upstream.url)
        with self.assertRaises(ssl.SSLError):
            Connection(proxy.address, self.context)
        self.assertEqual(wire.get(proxy.address, "/bytes/5").status, 200)

    def test_garbage_after_the_handshake(self):
        """A record with another key ends the connection by the alert bad_record_mac."""
        proxy = self.start()
        client = self.connect(proxy)
        client.send(GET)
        self.assertEqual(client.read_response().status, 200)
        client.socket.sendall(b"\x17\3\3\0\x40" + b"x" * 64)
        with self.assertRaisesRegex(ssl.SSLError, "BAD_RECORD_MAC"):
            client.receive()
        self.assertEqual(self.reasons(proxy), [None])

    def test_a_damaged_record_in_an_upload(self):
        """No byte of it reaches the origin, and the origin gets no complete request."""
        target = self.target()
        proxy = self.secure_boost(target.url, *self.log_options)
        client = self.connect(proxy)
        client.send(f"POST / HTTP/1.1\r\nHost: {NAME}\r\nContent-Length: 20\r\n\r\n".encode())
        self.wait_until("the origin has the header section", lambda: b"\r\n\r\n" in target.received)
        sealed = bytearray(client.seal(b"forged-forged-forged"))
        sealed[10] ^= 1
        client.socket.sendall(sealed)
        self.wait_until("the origin sees the end", lambda: target.ends)
        self.assertNotIn(b"forged", target.received)
        self.assertEqual(self.reasons(proxy), ["tls-bad-record"])

    def test_proxy_protocol_precedes_the_hello(self):
        proxy = self.start("--trust", "127.0.0.1", "--proxy-protocol")
        for version, header in (
            (1, b"PROXY TCP4 192.0.2.7 192.0.2.8 1000 443\r\n"),
            (2, b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c\xc0\0\2\7\xc0\0\2\x08\3\xe8\1\xbb"),
        ):
            with self.subTest(version=version):
                client = self.connect(proxy, before=header)
                client.send(GET)
                self.assertEqual(client.read_response().status, 200)
                client.close()
        self.assertEqual(proxy.stop(), 0)
        records = [json.loads(line) for line in self.log.read_text().splitlines()]
        self.assertEqual([(it["client"], it["sni"]) for it in records], [("192.0.2.7", NAME)] * 2)

    def test_proxy_protocol_is_required(self):
        proxy = self.start("--trust", "127.0.0.1", "--proxy-protocol")
        stream = self.raw(proxy, self.hello())
        self.assertEqual(everything(stream)[0], b"")


class PartsOfRecords(Case):
    def test_a_part_of_a_record_begins_a_request(self):
        """A client that sends no more of it gets the response of one that sends a part of a header,
        although its connection may be idle for longer. The part may come with a request."""
        proxy = self.start("--limit", "head_ms=300", "--limit", "idle_ms=600000")
        for is_alone in (True, False):
            with self.subTest(is_alone=is_alone):
                client = self.connect(proxy)
                whole, part = client.seal(GET), client.seal(GET)[:20]
                if is_alone:
                    client.socket.sendall(whole)
                    self.assertEqual(client.read_response().status, 200)
                    client.socket.sendall(part)
                else:
                    client.socket.sendall(whole + part)
                    self.assertEqual(client.read_response().status, 200)
                self.assertEqual(client.read_response().status, 408)
        # Each worker writes its own records, so their order says nothing.
        self.assertCountEqual(self.reasons(proxy), [None, "head-timed-out"] * 2)

    def test_key_updates_in_halves_extend_no_deadline(self):
        """An idle connection is closed, although parts of records arrive all the time."""
        proxy = self.start("--limit", "head_ms=1000", "--limit", "idle_ms=1500")
        relay = Halves(proxy.address[1])
        self.addCleanup(relay.stop)
        client = subprocess.Popen(
            ["openssl", "s_client", "-connect", f"127.0.0.1:{relay.port}", "-servername",
             NAME, "-tls1_3", "-quiet", "-no_ign_eof"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        )
        self.addCleanup(client.stdout.close)
        self.addCleanup(client.kill)
        client.stdin.write(GET)
        client.stdin.flush()
        self.assertEqual(client.stdout.read(12), b"HTTP/1.1 200")
        with contextlib.suppress(BrokenPipeError):
            for _ in range(30):
                client.stdin.write(b"k\n")
                client.stdin.flush()
                time.sleep(0.3)
        self.assertIsNotNone(client.poll(), "the connection is open after 30 updates")

    def test_parts_of_records_take_no_memory_from_others(self):
        """Clients that hold all memory of the worker by parts of records make room for others."""
        proxy = self.start(
            "--workers", "1", "--memory", "1M", "--limit", "head_ms=600000",
            "--limit", "idle_ms=600000", "--limit", "handshake_ms=600000",
        )
        holders = []
        for _ in range(100):
            holders.append(self.connect(proxy))
            holders[-1].socket.sendall(holders[-1].seal(b"x" * 16_000)[:15_000])
        client = self.connect(proxy)
        client.send(GET)
        self.assertEqual(client.read_response().status, 200)


class Keys(Case):
    def test_key_updates_of_openssl(self):
        """`K` requests an update of both directions, `k` updates that of the client. Requests are
        served before, between and after them."""
        proxy = self.start()
        client = subprocess.Popen(
            ["openssl", "s_client", "-connect", "%s:%d" % proxy.address, "-servername", NAME,
             "-tls1_3", "-quiet", "-no_ign_eof"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )
        self.addCleanup(client.stdout.close)
        self.addCleanup(client.stderr.close)
        self.addCleanup(client.kill)
        for command in (b"", b"K\n", b"k\n", b"K\n", b"k\n", b"k\n"):
            # A command has to be read alone. openssl confirms it.
            if command:
                client.stdin.write(command)
                client.stdin.flush()
                while (line := client.stderr.readline()) != b"KEYUPDATE\n":
                    self.assertTrue(line, f"ended after {command}")
            client.stdin.write(GET)
            client.stdin.flush()
            head = b""
            while not head.endswith(b"\r\n\r\n"):
                byte = client.stdout.read(1)
                self.assertTrue(byte, f"ended after {command} and {head}")
                head += byte
            self.assertTrue(head.startswith(b"HTTP/1.1 200 "), head)
            self.assertEqual(client.stdout.read(5), b"\0" * 5)
        client.stdin.close()
        client.wait()
        self.assertEqual(self.reasons(proxy), [None] * 6)

    def test_renegotiation_is_refused(self):
        """TLS 1.2: the connection ends, or the request for it is refused by a warning."""
        proxy = self.start()
        status, output = self.s_client(
            proxy, "-tls1_2", "-legacy_renegotiation", request=b"R\n"
        )
        self.assertIn("RENEGOTIATING", output)
        self.assertNotIn("verify return:1\nverify return:1\nRENEGOTIATING\nverify", output)
        client = self.connect(proxy)
        client.send(GET)
        self.assertEqual(client.read_response().status, 200)


class Ends(Case):
    def test_close_notify_before_the_response(self):
        """The client announces its end after a request and keeps its socket. It gets the response,
        close_notify, and the end of the stream."""
        proxy = self.start()
        client = self.connect(proxy)
        client.send(GET)
        client.announce_end()
        self.assertEqual(client.read_response().status, 200)
        self.assertEqual(client.receive(), b"")

    def test_close_notify_in_the_flight_that_ends_the_handshake(self):
        """The end of the handshake, a request and close_notify arrive at once. The client keeps its
        socket, and gets the response, close_notify, and the end of the stream."""
        proxy = self.start("--limit", "idle_ms=600000")
        flight = []

        def keep_after_hello(data):
            flight.append(data)
            return [data] if len(flight) == 1 else []

        client = self.connect(proxy, pieces=keep_after_hello)
        client.pieces = None
        last = b"".join(flight[1:]) + client.seal(GET)
        with self.assertRaises(ssl.SSLWantReadError):
            client.tls.unwrap()
        client.socket.sendall(last + client.sealed.read())
        self.assertEqual(client.read_response().status, 200)
        self.assertEqual(client.receive(), b"")

    def test_close_notify_of_an_idle_client(self):
        proxy = self.start()
        client = self.connect(proxy)
        client.send(GET)
        self.assertEqual(client.read_response().status, 200)
        client.announce_end()
        self.assertEqual(client.receive(), b"", "close_notify")
        self.assertEqual(everything(client.socket), (b"", False))

    def test_connection_close_is_announced(self):
        proxy = self.start()
        client = self.connect(proxy)
        client.get("/bytes/100000", NAME, "Connection: close\r\n")
        self.assertEqual(client.read_response().length, 100_000)
        self.assertEqual(client.receive(), b"", "close_notify")

    def test_fin_after_a_whole_request(self):
        """The request is complete by its framing, so its response is sent."""
        proxy = self.start()
        client = self.connect(proxy)
        client.send(GET)
        client.end()
        self.assertEqual(client.read_response().status, 200)

    def test_fin_in_an_upload(self):
        """The origin must not take the body for complete, however it is framed."""
        for field in ("Content-Length: 20", "Transfer-Encoding: chunked"):
            for ending in (Connection.end, Connection.announce_end, Connection.reset):
                with self.subTest(field=field, ending=ending.__name__):
                    target = self.target()
                    client = self.connect(self.secure_boost(target.url))
                    head = f"POST / HTTP/1.1\r\nHost: {NAME}\r\n{field}\r\n\r\n"
                    client.send(head.encode() + b"5\r\nhello\r\n")
                    self.wait_until("the body begins", lambda: b"hello" in target.received)
                    ending(client)
                    self.wait_until("the origin sees the end", lambda: target.ends)
                    self.assertNotIn(b"\r\n0\r\n", target.received)

    def test_fin_in_a_tunnel(self):
        """Without close_notify the target sees a reset, and with it an orderly end."""
        proxy = self.secure_forward("--allow-private", "on", "--allow-port", "all")
        for ending, seen in (
            (Connection.end, "reset"), (Connection.reset, "reset"),
            (Connection.announce_end, "fin"),
        ):
            with self.subTest(ending=ending.__name__):
                target = self.target()
                client = self.tunnel(proxy, target)
                client.send(b"payload")
                self.wait_until("the target has it", lambda: target.received == b"payload")
                ending(client)
                self.wait_until("the target sees the end", lambda: target.ends)
                self.assertEqual(target.ends, [seen])

    def test_websocket(self):
        """Messages of sizes around those of a record."""
        echo = websocket.EchoOrigin()
        self.addCleanup(echo.stop)
        proxy = self.secure_boost(echo.url)
        stream = socket.create_connection(proxy.address, 120)
        secured = self.context.wrap_socket(stream, server_hostname=NAME)
        self.addCleanup(secured.close)
        frames = websocket.open_on(secured)
        for length in (0, 1, 125, 126, 16383, 65536, 1 << 20):
            payload = b"".join(pattern.blocks(length))
            frames.send(websocket.BINARY, payload)
            self.assertEqual(frames.receive(), (websocket.BINARY, payload))

    def test_a_tunnel_carries_bytes_of_both_sides(self):
        """5 MB in each direction at the same time, and what a target sends first."""
        body = b"".join(pattern.blocks(5 << 20))
        target = self.target(greeting=body)
        proxy = self.secure_forward("--allow-private", "on", "--allow-port", "all")
        client = self.tunnel(proxy, target)
        sender = threading.Thread(target=client.socket.sendall, args=(client.seal(body),))
        sender.start()
        digest = hashlib.sha256()
        client.exactly(len(body), digest.update)
        sender.join()
        self.assertEqual(digest.hexdigest(), hashlib.sha256(body).hexdigest())
        self.wait_until("the target has it", lambda: len(target.received) == len(body))
        self.assertTrue(target.received == body)

    def test_curl_through_a_tls_proxy(self):
        """An `https` proxy: absolute-form requests, and tunnels with TLS inside of TLS."""
        proxy = self.secure_forward("--allow-private", "on", "--allow-port", "all")
        inner = self.secure_boost(self.upstream.url)
        port = inner.address[1]
        for options in (
            [f"{self.upstream.url}/bytes/100000"],
            ["--cacert", self.authority.path, "--resolve", f"{NAME}:{port}:127.0.0.1",
             f"https://127.0.0.1:{port}/bytes/100000"],
        ):
            done = self.run_client(
                *["curl", "--silent", "--show-error", "--noproxy", "", "--proxy-cacert"],
                *[self.authority.path, "--proxy", f"https://127.0.0.1:{proxy.address[1]}"],
                *options,
            )
            self.assertEqual(done.stdout, b"".join(pattern.blocks(100_000)))

    def test_a_cut_response_is_no_end(self):
        """The origin breaks off in the middle of the body: no close_notify, so the client notices
        it, although the end delimits the body."""
        class Cut(Listener):
            def serve(self, connection):
                connection.recv(65536)
                connection.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n")
                connection.close()

        source = Cut()
        self.addCleanup(source.stop)
        proxy = self.secure_boost(source.url)
        client = self.connect(proxy)
        client.send(f"GET / HTTP/1.0\r\nHost: {NAME}\r\n\r\n".encode())
        with self.assertRaises((ssl.SSLEOFError, ConnectionResetError)):
            client.read_response()
