"""Bodies through a tls:// listener, byte by byte: sizes around those of a record, each framing,
cached, in ranges, uploads, pipelines, and records cut into single bytes."""

import hashlib
import http.server
import json
import socket
import threading

from support import pattern, wire
from support.secure import NAME, SecureCase, one_byte_each
from support.server import Listener, LocalServer

MEGABYTE = 1 << 20
SIZES = [0, 1, 16383, 16384, 16385, 65536, MEGABYTE, 20 * MEGABYTE]


def content(length):
    """Returns the body of `length` bytes."""
    return b"".join(pattern.blocks(length))


class Handler(http.server.BaseHTTPRequestHandler):
    """`/FRAMING/LENGTH` with the framing `length`, `cached`, `chunked` or `close`."""

    protocol_version = "HTTP/1.1"
    timeout = 300

    def log_message(self, *_):
        """Logs nothing; `Sizes.count` counts the requests."""

    def do_GET(self):
        self.server.count += 1
        _, framing, length = self.path.split("/")
        body = content(int(length))
        self.send_response(200)
        if framing == "chunked":
            self.send_header("Transfer-Encoding", "chunked")
        elif framing == "close":
            self.close_connection = True
            self.send_header("Connection", "close")
        else:
            self.send_header("Content-Length", length)
        if framing == "cached":
            self.send_header("Cache-Control", "max-age=600")
            self.send_header("ETag", f'"{length}"')
        self.end_headers()
        if self.command == "HEAD":
            return
        # The pieces have another size than records, chunks of the proxy, and its steps.
        for start in range(0, len(body), 50_001):
            piece = body[start : start + 50_001]
            self.wfile.write(b"%x\r\n%b\r\n" % (len(piece), piece) if framing == "chunked" else piece)
        if framing == "chunked":
            self.wfile.write(b"0\r\n\r\n")

    do_HEAD = do_GET


class Sizes(LocalServer):
    """An origin of bodies of each size and framing."""

    def __init__(self):
        self.count = 0
        super().__init__(Handler)

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_port}"

    def stop(self):
        self.shutdown()
        self.server_close()


class Refusing(Listener):
    """An origin that refuses each request as soon as its header section is complete."""

    def serve(self, connection):
        data = b""
        while b"\r\n\r\n" not in data:
            data += connection.recv(1000)
        connection.sendall(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 2\r\n\r\nno")
        # The test ends the connection.
        connection.recv(1, socket.MSG_WAITALL)


class Downloads(SecureCase):
    def setUp(self):
        super().setUp()
        self.source = Sizes()
        self.addCleanup(self.source.stop)

    def fetch(self, client, framing, length):
        """Fetches a body and compares it."""
        client.get(f"/{framing}/{length}")
        response = client.read_response()
        found = (response.status, response.length, response.digest)
        self.assertEqual(found, (200, length, hashlib.sha256(content(length)).hexdigest()))
        return response

    def test_each_size_and_framing(self):
        proxy = self.secure_boost(self.source.url)
        client = self.connect(proxy)
        for framing in ("length", "chunked", "close"):
            for length in SIZES:
                with self.subTest(framing=framing, length=length):
                    self.fetch(client, framing, length)

    def test_cached(self):
        """Each body from the origin, and then from the cache: whole, in ranges, to HEAD, and to a
        condition."""
        proxy = self.secure_boost(self.source.url, "--cache-memory", "200M")
        client = self.connect(proxy)
        for length in SIZES:
            # A large body is stored when it is requested again.
            for _ in range(3):
                response = self.fetch(client, "cached", length)
            self.assertIn("; hit", response.fields["cache-status"])
        count = self.source.count
        whole = content(MEGABYTE)
        for first, last in ((0, 0), (16383, 16384), (16384, 65536), (100, MEGABYTE - 1)):
            client.get(f"/cached/{MEGABYTE}", extra=f"Range: bytes={first}-{last}\r\n")
            response = client.read_response()
            self.assertEqual(response.status, 206)
            self.assertEqual(response.body, whole[first : last + 1])
        client.get(f"/cached/{MEGABYTE}", extra=f'If-None-Match: "{MEGABYTE}"\r\n')
        self.assertEqual(client.read_response().status, 304)
        client.send(f"HEAD /cached/{MEGABYTE} HTTP/1.1\r\nHost: {NAME}\r\n\r\n".encode())
        response = client.read_response(method="HEAD")
        self.assertEqual((response.status, response.fields["content-length"]), (200, str(MEGABYTE)))
        self.fetch(client, "cached", 16385)
        self.assertEqual(self.source.count, count)

    def test_a_plain_and_a_tls_listener_of_one_service(self):
        proxy = self.secure_boost(self.source.url, "--listen", "127.0.0.1:0")
        self.wait_until("both listeners are open", lambda: len(proxy.addresses) == 2)
        plain = proxy.addresses[1].rpartition(":")
        for length in SIZES[:-1]:
            self.fetch(self.connect(proxy), "chunked", length)
            response = wire.get((plain[0], int(plain[2])), f"/chunked/{length}", host=NAME)
            self.assertEqual(response.digest, hashlib.sha256(content(length)).hexdigest())

    def test_many_clients_at_once(self):
        """100 clients, each with its own sizes."""
        proxy = self.secure_boost(self.source.url)
        failed = []

        def run(number):
            try:
                client = self.connect(proxy)
                for round in range(5):
                    length = (number * 7919 + round * 104_729) % 200_000
                    self.fetch(client, ("length", "cached", "chunked")[round % 3], length)
            except (AssertionError, OSError, EOFError) as error:
                failed.append(repr(error))

        threads = [threading.Thread(target=run, args=(number,)) for number in range(100)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(failed, [])

    def test_pipelines(self):
        """50 requests in one record, and with their records in pieces of one byte, and with a
        record for each byte."""
        proxy = self.secure_boost(self.source.url)
        lengths = [number * 331 for number in range(50)]
        requests = b"".join(
            f"GET /{'chunked' if length % 2 else 'cached'}/{length} HTTP/1.1\r\n"
            f"Host: {NAME}\r\n\r\n".encode() for length in lengths
        )
        one_record = self.connect(proxy)
        self.assertLess(len(requests), 16384)
        one_record.send(requests)
        pieces = self.connect(proxy, pieces=one_byte_each)
        pieces.send(requests)
        records = self.connect(proxy)
        tiny = b"".join(records.seal(byte) for byte in one_byte_each(requests))
        self.assertGreater(len(tiny), 20 * len(requests))
        records.socket.sendall(tiny)
        for client in (one_record, pieces, records):
            for length in lengths:
                response = client.read_response()
                self.assertEqual(response.body, content(length))

    def test_slow_reader(self):
        """A client with a small receive buffer that reads late."""
        proxy = self.secure_boost(self.source.url)
        client = self.connect(proxy)
        for framing in ("length", "cached", "cached"):
            client.get(f"/{framing}/{20 * MEGABYTE}")
            self.assertEqual(client.head()[1], 200)
            self.wait_until("the proxy sends", lambda: client.held or client._more() is None)
            digest = hashlib.sha256()
            client.exactly(20 * MEGABYTE, digest.update)
            expected = hashlib.sha256(content(20 * MEGABYTE)).hexdigest()
            self.assertEqual(digest.hexdigest(), expected)


class Uploads(SecureCase):
    def setUp(self):
        super().setUp()
        self.upstream = self.origin()
        self.proxy = self.secure_boost(self.upstream.url)

    def head(self, *fields, method="POST", target="/upload"):
        return "\r\n".join(
            [f"{method} {target} HTTP/1.1", f"Host: {NAME}", *fields, "\r\n"]
        ).encode()

    def check(self, client, body):
        """Reads the report of the origin and compares it."""
        response = client.read_response()
        self.assertEqual(response.status, 200)
        report = json.loads(response.body)
        found = (report["length"], report["sha256"])
        self.assertEqual(found, (len(body), hashlib.sha256(body).hexdigest()))

    def test_each_size_and_framing(self):
        client = self.connect(self.proxy)
        for length in SIZES:
            body = content(length)
            with self.subTest(length=length):
                client.send(self.head(f"Content-Length: {length}") + body)
                self.check(client, body)
                chunks = b"".join(
                    b"%x\r\n%b\r\n" % (len(piece), piece)
                    for piece in (body[at : at + 30_011] for at in range(0, length, 30_011))
                )
                client.send(self.head("Transfer-Encoding: chunked") + chunks + b"0\r\n\r\n")
                self.check(client, body)

    def test_records_cut_anywhere(self):
        """Pieces that end inside of headers and bodies of records."""
        body = content(100_000)
        for size in (1, 2, 5, 6, 1447, 16383, 16405, 16406, 16407, 40_000):
            with self.subTest(size=size):
                client = self.connect(
                    self.proxy,
                    pieces=lambda data: (data[at : at + size] for at in range(0, len(data), size)),
                )
                client.send(self.head(f"Content-Length: {len(body)}") + body)
                self.check(client, body)

    def test_expect_100_continue(self):
        body = content(70_000)
        client = self.connect(self.proxy)
        client.send(self.head("Expect: 100-continue", f"Content-Length: {len(body)}"))
        self.assertEqual(client.head()[1], 100)
        client.send(body)
        self.check(client, body)

    def test_an_early_response(self):
        """The origin responds before it has read the body, and reads no more."""
        source = Refusing()
        self.addCleanup(source.stop)
        client = self.connect(self.secure_boost(source.url))
        client.send(self.head("Content-Length: 100000000") + b"x" * 100_000)
        response = client.read_response()
        self.assertEqual((response.status, response.body), (403, b"no"))

    def test_curl_uploads(self):
        path = self.folder / "body"
        digest = pattern.write(path, 5 * MEGABYTE)
        port = self.proxy.address[1]
        for options in (["--upload-file", path], ["-H", "Transfer-Encoding: chunked", "-T", path]):
            done = self.run_client(
                *["curl", "--silent", "--show-error", "--noproxy", "*"],
                *["--cacert", self.authority.path, "--resolve", f"{NAME}:{port}:127.0.0.1"],
                *[*options, f"https://{NAME}:{port}/upload"],
            )
            self.assertEqual(json.loads(done.stdout)["sha256"], digest)
