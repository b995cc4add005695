"""The name (SNI) in the ClientHello of CONNECT tunnels: rules, log records, and tunnels of other
protocols; and forward proxies over TLS."""

import base64
import json
import socket
import ssl
import struct
import subprocess

from support import pattern, wire
from support.secure import SecureCase, everything, one_byte_each
from support.server import Listener

HELLO_BYTES_MAX = 16 * 1024
LOCAL = ("--allow-target", "127.0.0.1", "--allow-target", "::1")
DENY = ("--deny-domain", "*.bad.test")
MATCH = ("--sni-must-match", "on")


def extension(number, data):
    return struct.pack(">HH", number, len(data)) + data


def server_name(name):
    """Returns the extension that asks for a name (RFC 6066 section 3)."""
    return extension(0, struct.pack(">HBH", len(name) + 3, 0, len(name)) + name.encode())


def hello(name, more=b"", record_bytes=1 << 14):
    """Returns a ClientHello that asks for `name`, in records of at most `record_bytes`."""
    extensions = server_name(name) + extension(13, b"\0\2\4\3") + more
    body = b"\3\3" + b"r" * 32 + b"\0\0\2\x13\1\1\0" + struct.pack(">H", len(extensions))
    message = b"\1" + (len(body) + len(extensions)).to_bytes(3, "big") + body + extensions
    parts = (message[at : at + record_bytes] for at in range(0, len(message), record_bytes))
    return b"".join(b"\x16\3\1" + struct.pack(">H", len(part)) + part for part in parts)


def by_text(records):
    """Sorts records that may have None."""
    return sorted(records, key=str)


# The outer ClientHello of ECH has an extension with the encrypted one (draft-ietf-tls-esni).
ECH = extension(0xFE0D, b"\0\0\1\0\1\7\0\x20" + b"k" * 32 + b"\0\x40" + b"e" * 64)


class Target(Listener):
    """A server that sends `greeting`, returns all bytes, and notes what it received."""

    def __init__(self, greeting=b""):
        self.greeting, self.received, self.ends = greeting, b"", []
        super().__init__()

    def serve(self, connection):
        try:
            connection.sendall(self.greeting)
            while data := connection.recv(65536):
                self.received += data
                connection.sendall(data)
            self.ends.append("fin")
        except (ConnectionResetError, BrokenPipeError):
            self.ends.append("reset")


class Case(SecureCase):
    programs = ("curl", "openssl")

    def setUp(self):
        super().setUp()
        self.log = self.folder / "log"
        self.logging = ("--access-log", self.log, "--log-format", "json")

    def start(self, *options):
        self.log.unlink(missing_ok=True)
        return self.forward(*LOCAL, *self.logging, *options)

    def target(self, **how):
        started = Target(**how)
        self.addCleanup(started.stop)
        return started

    def open(self, proxy, target, ahead=b"", host="localhost"):
        """Opens a tunnel to a target. `ahead` is sent in the same segment as the request."""
        client = wire.Connection(proxy.address)
        self.addCleanup(client.close)
        client.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        at = f"{host}:{target.port}"
        client.send(f"CONNECT {at} HTTP/1.1\r\nHost: {at}\r\n\r\n".encode() + ahead)
        self.assertEqual(client.head()[1], 200)
        return client

    def echoed(self, client, data):
        """Checks that the tunnel returns these bytes."""
        got = []
        client.exactly(len(data), got.append)
        self.assertEqual(b"".join(got), data)

    def assert_closed(self, client):
        """Checks that a tunnel is reset without another byte."""
        data, is_reset = everything(client.socket)
        self.assertEqual((client.held + data, is_reset), (b"", True))

    def records(self, proxy):
        """Ends the proxy. Returns (sni, reason) of each record, sorted: the order of records of
        several workers is not defined."""
        self.assertEqual(proxy.stop(), 0)
        lines = map(json.loads, self.log.read_text().splitlines())
        return by_text((line["sni"], line["reason"]) for line in lines)


class Clients(Case):
    """Real clients and a TLS origin."""

    def setUp(self):
        super().setUp()
        names = ("localhost", "www.good.test", "www.bad.test")
        pair = self.authority.issue(*(f"DNS:{name}" for name in names))
        (self.site / "file").write_bytes(b"".join(pattern.blocks(300_000)))
        self.server = self.nginx(
            certificate=pair, extra="ssl_protocols TLSv1.2 TLSv1.3;"
        )

    def curl(self, proxy, name, *options):
        """Fetches a file by `name`, through a tunnel to localhost. Returns the exit status; after a
        success the file is whole."""
        status, body = self.status(
            *["curl", "--silent", "--show-error", "--noproxy", "", "--cacert", self.authority.path],
            *["--proxy", proxy.url, "--connect-to", f"{name}:443:localhost:{self.server.port}"],
            *[f"https://{name}/file", *options],
        )
        if status == 0:
            self.assertEqual(body, (self.site / "file").read_bytes())
        return status

    def status(self, *command):
        """Runs a client. Returns its exit status and output."""
        done = subprocess.run(
            list(map(str, command)), env=self.environment(), stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=wire.TIMEOUT_SECONDS,
        )
        return done.returncode, done.stdout

    def test_each_rule(self):
        for options, name, wanted, reason in (
            ((), "www.bad.test", True, None),
            (DENY, "www.good.test", True, None),
            (DENY, "www.bad.test", False, "sni-denied"),
            (("--allow-domain", "localhost"), "localhost", True, None),
            (("--allow-domain", "localhost"), "www.good.test", False, "sni-not-allowed"),
            (MATCH, "localhost", True, None),
            (MATCH, "www.good.test", False, "sni-mismatch"),
        ):
            with self.subTest(options=options, name=name):
                proxy = self.start(*options)
                for version in ("--tlsv1.2", "--tlsv1.3"):
                    limit = ("--tls-max", version[-3:])
                    done = self.curl(proxy, name, version, *limit)
                    self.assertEqual(done == 0, wanted, f"exit status {done}")
                self.assertEqual(self.records(proxy), [(name, reason)] * 2)

    def test_openssl_with_and_without_a_name(self):
        at = f"localhost:{self.server.port}"
        for options, names, reason in (
            (DENY, ["-servername", "a.bad.test"], "sni-denied"),
            (DENY, ["-servername", "A.BAD.TEST."], "sni-denied"),
            (DENY, ["-noservername"], None),
            (MATCH, ["-servername", "LocalHost."], None),
            (MATCH, ["-noservername"], "sni-missing"),
        ):
            with self.subTest(options=options, names=names):
                proxy = self.start(*options)
                status, _ = self.status(
                    *["openssl", "s_client", "-proxy", "%s:%d" % proxy.address, "-connect", at],
                    *["-tls1_3", *names],
                )
                self.assertEqual(status == 0, reason is None)
                self.assertEqual(self.records(proxy)[0][1], reason)

    def test_openssl_with_a_second_hello_and_with_a_resumed_session(self):
        """The server requests another group, and TLS 1.2 goes on with encrypted messages."""
        server = self.nginx(
            certificate=self.pair,
            extra="ssl_protocols TLSv1.2 TLSv1.3; ssl_ecdh_curve secp384r1; ssl_session_cache"
            " shared:a:1m;",
        )
        at, session = f"localhost:{server.port}", self.folder / "session"
        for options in (
            ["-tls1_3", "-groups", "P-256:P-384"],
            ["-tls1_2", "-sess_out", session],
            *[["-tls1_2", "-sess_in", session]] * 3,
        ):
            proxy = self.start(*DENY, *MATCH)
            status, output = self.status(
                *["openssl", "s_client", "-proxy", "%s:%d" % proxy.address, "-connect", at],
                *["-servername", "localhost", *options],
            )
            self.assertEqual(status, 0, output)
            is_resumed = "-sess_in" in options
            self.assertIn(b"Reused, " if is_resumed else b"New, ", output)
            self.assertEqual(self.records(proxy), [("localhost", None)])

    def test_a_proxy_over_tls(self):
        """curl and Python: tunnels, absolute-form requests, and passwords."""
        (self.folder / "users").write_text("alice:" + self.hash("secret") + "\n")
        (self.folder / "users").chmod(0o600)
        plain = self.origin()
        proxy = self.secure_forward(
            *LOCAL, *DENY, *self.logging, "--auth-file", self.folder / "users"
        )
        port = proxy.address[1]
        for url in (f"{plain.url}/bytes/100000", f"https://localhost:{self.server.port}/file"):
            for user, wanted in (("alice:secret@", True), ("alice:wrong@", False), ("", False)):
                status, body = self.status(
                    *["curl", "--silent", "--show-error", "--fail", "--noproxy", ""],
                    *["--cacert", self.authority.path, "--proxy-cacert", self.authority.path],
                    *["--proxy", f"https://{user}localhost:{port}", url],
                )
                self.assertEqual(status == 0, wanted)
                length = 100_000 if "bytes" in url else 300_000
                self.assertEqual(body, b"".join(pattern.blocks(length)) if wanted else b"")
        self.python(port, plain.url)
        records = self.records(proxy)
        self.assertIn(("localhost", None), records)
        self.assertEqual(sum(reason == "auth-failed" for _, reason in records), 2)
        self.assertNotIn("secret", self.log.read_text())

    def python(self, port, plain):
        """Sends an absolute-form request, and CONNECT with TLS inside of TLS."""
        password = base64.b64encode(b"alice:secret").decode()
        granted = f"Proxy-Authorization: Basic {password}\r\n"
        client = self.connect_to(port)
        host = plain.removeprefix("http://")
        client.sendall(f"GET {plain}/bytes/5 HTTP/1.1\r\nHost: {host}\r\n{granted}\r\n".encode())
        self.assertTrue(client.recv(9999).startswith(b"HTTP/1.1 200 "))
        client.close()
        for name, works in (("localhost", True), ("a.bad.test", False)):
            client = self.connect_to(port)
            at = f"localhost:{self.server.port}"
            client.sendall(f"CONNECT {at} HTTP/1.1\r\nHost: {at}\r\n{granted}\r\n".encode())
            self.assertTrue(client.recv(9999).startswith(b"HTTP/1.1 200 "))
            inner = self.inner(client, name)
            if works:
                self.assertTrue(inner())
            else:
                self.assertRaises((ConnectionResetError, ssl.SSLError, EOFError), inner)
            client.close()

    def connect_to(self, port):
        stream = socket.create_connection(("127.0.0.1", port), wire.TIMEOUT_SECONDS)
        secured = self.context.wrap_socket(stream, server_hostname="localhost")
        self.addCleanup(secured.close)
        return secured

    def inner(self, outer, name):
        """Returns a function that makes a handshake over another TLS connection."""
        received, sealed = ssl.MemoryBIO(), ssl.MemoryBIO()
        session = self.context.wrap_bio(received, sealed, server_hostname=name)

        def handshake():
            while True:
                try:
                    session.do_handshake()
                    return session.version()
                except ssl.SSLWantReadError:
                    outer.sendall(sealed.read())
                    if not (data := outer.recv(1 << 16)):
                        raise EOFError("the tunnel ended")
                    received.write(data)

        return handshake

    def hash(self, password):
        return self.run_client("openssl", "passwd", "-6", password).stdout.decode().strip()


class Bytes(Case):
    """Bytes made by hand."""

    def test_a_hello_cut_at_any_byte(self):
        """Allowed bytes all arrive, and no byte of a denied ClientHello does."""
        proxy = self.start(*DENY)
        target = self.target()
        good, bad = hello("a.good.test", record_bytes=40), hello("a.bad.test", record_bytes=40)
        for cut in range(1, len(good)):
            client = self.open(proxy, target)
            client.send(good[:cut])
            client.send(good[cut:] + b"more")
            self.echoed(client, good + b"more")
            client.close()
        self.assertEqual(target.received, (good + b"more") * (len(good) - 1))
        silent = self.target()
        for cut in range(1, len(bad)):
            client = self.open(proxy, silent)
            client.send(bad[:cut])
            try:
                client.send(bad[cut:])
            except OSError:
                pass
            self.assert_closed(client)
        client = self.open(proxy, target)
        for byte in one_byte_each(good):
            client.send(byte)
        self.echoed(client, good)
        client.close()
        self.wait_until("all tunnels ended", lambda: len(silent.ends) == len(bad) - 1)
        self.assertEqual(silent.received, b"")
        records = self.records(proxy)
        self.assertEqual(records.count(("a.good.test", None)), len(good))
        self.assertEqual(records.count(("a.bad.test", "sni-denied")), len(bad) - 1)

    def test_bytes_ahead(self):
        """Bytes in the segment of the request, with a whole ClientHello and with a part."""
        proxy = self.start(*DENY)
        target = self.target()
        good, bad = hello("good.test"), hello("a.bad.test")
        for cut in (1, 5, 6, 50, len(good)):
            client = self.open(proxy, target, ahead=good[:cut])
            client.send(good[cut:] + b"more")
            self.echoed(client, good + b"more")
        silent = self.target()
        for cut in (1, 5, 6, 50):
            client = self.open(proxy, silent, ahead=bad[:cut])
            client.send(bad[cut:])
            self.assert_closed(client)
        client = wire.Connection(proxy.address)
        self.addCleanup(client.close)
        at = f"localhost:{silent.port}"
        client.send(f"CONNECT {at} HTTP/1.1\r\nHost: {at}\r\n\r\n".encode() + bad)
        self.assertTrue(everything(client.socket)[1])
        self.wait_until("all tunnels ended", lambda: len(silent.ends) == 5)
        self.assertEqual(silent.received, b"")

    def test_a_second_hello(self):
        """nginx and GnuTLS serve the name of the ClientHello that they requested, so it is checked
        as the first one is."""
        first, change = hello("localhost"), b"\x14\3\3\0\1\1"
        for options, reason in ((DENY, "sni-denied"), (MATCH, "sni-mismatch")):
            bad = change + hello("a.bad.test", record_bytes=20)
            proxy, target = self.start(*options), self.target()
            for cut in (0, 1, 6, 12, 30, len(bad) - 1):
                client = self.open(proxy, target)
                client.send(first)
                self.echoed(client, first)
                client.send(bad[:cut])
                client.send(bad[cut:])
                self.assert_closed(client)
            self.assertEqual(target.received, first * 6)
            ahead = self.open(proxy, target)
            ahead.send(first + bad)
            self.assert_closed(ahead)
            self.assertEqual(target.received, first * 6)
            records = [("a.bad.test", reason)] * 6 + [(None, "sni-unreadable")]
            self.assertEqual(self.records(proxy), by_text(records))

    def test_bytes_behind_the_first_hello(self):
        """A second ClientHello for the same name, early data, the messages of TLS 1.2, and the
        end of the stream."""
        first, change = hello("localhost"), b"\x14\3\3\0\1\1"
        encrypted = b"\x16\3\3\0\x28\1\0\0\0\0\0\0\0" + b"e" * 32
        proxy, target = self.start(*DENY, *MATCH), self.target()
        followers = (
            change + hello("localhost"), change + b"\x17\3\3\0\1e", change + encrypted,
            b"\x16\3\3\0\5\x10\0\0\1\0", b"other", change,
        )
        for follower in followers:
            for waits in (True, False):
                if b"\x16" in follower and not waits:
                    continue
                client = self.open(proxy, target)
                if waits:
                    client.send(first)
                    self.echoed(client, first)
                    client.send(follower)
                else:
                    client.send(first + follower)
                client.socket.shutdown(socket.SHUT_WR)
                self.echoed(client, follower if waits else first + follower)
                self.assertEqual(everything(client.socket), (b"", False))
        self.assertEqual(set(self.records(proxy)), {("localhost", None)})

    def test_the_outer_name_of_an_encrypted_hello_counts(self):
        for options, reason in (
            (MATCH, "sni-mismatch"), (("--deny-domain", "public.test"), "sni-denied"),
        ):
            proxy, target = self.start(*options), self.target()
            client = self.open(proxy, target)
            client.send(hello("public.test", ECH))
            self.assert_closed(client)
            self.assertEqual(self.records(proxy), [("public.test", reason)])

    def test_an_address_never_matches(self):
        """Neither CONNECT to an address, nor an address in place of the name."""
        proxy, target = self.start(*MATCH), self.target()
        for host, name in (("127.0.0.1", "localhost"), ("127.0.0.1", "127.0.0.1")):
            client = self.open(proxy, target, host=host)
            client.send(hello(name))
            self.assert_closed(client)
        self.assertEqual(
            self.records(proxy), by_text([("localhost", "sni-mismatch"), (None, "sni-missing")])
        )

    def test_the_server_speaks_first(self):
        """Its bytes arrive before the first byte of the client, while a part of a ClientHello is
        held, and after the client's first bytes."""
        for options in ((), DENY):
            proxy, target = self.start(*options), self.target(greeting=b"220 ready\r\n")
            client = self.open(proxy, target)
            self.echoed(client, b"220 ready\r\n")
            client.send(b"EHLO a.test\r\n")
            self.echoed(client, b"EHLO a.test\r\n")
            held = self.open(proxy, target, ahead=hello("good.test")[:30])
            self.echoed(held, b"220 ready\r\n")
            held.send(hello("good.test")[30:])
            self.echoed(held, hello("good.test"))
        proxy, target = self.start(*MATCH), self.target(greeting=b"220 ready\r\n")
        client = self.open(proxy, target)
        self.echoed(client, b"220 ready\r\n")
        client.send(b"EHLO a.test\r\n")
        self.assert_closed(client)
        self.assertEqual(target.received, b"")

    def test_the_client_speaks_first_in_another_protocol(self):
        others = [
            b"SSH-2.0-x\r\n", b"\0\1\2", b"GET / HTTP/1.1\r\n\r\n",
            b"\x16\3\3\0\4\2\0\0\0", b"\x80\x2e\1\3\1",
        ]
        proxy, target = self.start(*DENY), self.target()
        for other in others:
            client = self.open(proxy, target)
            client.send(other)
            self.echoed(client, other)
        strict, silent = self.forward(*LOCAL, *MATCH), self.target()
        for other in others:
            client = self.open(strict, silent)
            client.send(other)
            self.assert_closed(client)
        self.assertEqual(silent.received, b"")

    def test_hellos_that_cannot_be_read(self):
        """They are closed only if names are checked. The first one is too large."""
        large = hello("good.test", extension(0xFAFA, b"x" * HELLO_BYTES_MAX))
        small = hello("good.test", extension(0xFAFA, b"x" * (HELLO_BYTES_MAX - 200)))
        malformed = hello("good.test")[:-4] + b"\xff\xff\xff\xff"
        twice = hello("good.test", server_name("a.bad.test"))
        # Go skips the warning, and GnuTLS the ChangeCipherSpec.
        behind = [b"\x15\3\1\0\2\1\x5a", b"\x14\3\3\0\1\1", b"\x17\3\3\0\1x"]
        behind = [record + hello("a.bad.test") for record in behind]
        for options, reason in ((DENY, "sni-unreadable"), ((), None)):
            proxy, target = self.start(*options), self.target()
            client = self.open(proxy, target)
            client.send(small)
            self.echoed(client, small)
            client.close()
            for bytes in (large, malformed, twice, *behind):
                client = self.open(proxy, target)
                client.send(bytes)
                if reason:
                    self.assert_closed(client)
                else:
                    self.echoed(client, bytes)
                client.close()
            self.assertEqual(target.received[: len(small)], small)
            self.assertEqual(len(target.received) == len(small), reason is not None)
            expected = by_text([("good.test", None)] + [(None, reason)] * 6)
            self.assertEqual(self.records(proxy), expected)

    def test_half_a_hello(self):
        """The client stops, or ends its stream. Without rules its bytes are then forwarded."""
        half = hello("good.test")[:40]
        for options, reasons in ((DENY, ["sni-timed-out", "sni-unreadable"]), ((), [None, None])):
            proxy = self.start(*options, "--limit", "handshake_ms=300")
            target = self.target(greeting=b"220 ready\r\n")
            for ends, reason in zip((False, True), reasons):
                client = self.open(proxy, target)
                client.send(half)
                self.echoed(client, b"220 ready\r\n")
                if ends:
                    client.socket.shutdown(socket.SHUT_WR)
                if reason:
                    self.assert_closed(client)
                else:
                    self.echoed(client, half)
                client.close()
            self.wait_until("both tunnels ended", lambda: len(target.ends) == 2)
            self.assertEqual(target.received, b"" if reasons[0] else half * 2)
            self.assertEqual(self.records(proxy), by_text((None, it) for it in reasons))

    def test_the_counters_have_the_reasons(self):
        admin = self.folder / "admin"
        proxy = self.forward(*LOCAL, *DENY, "--admin", f"unix:{admin}")
        target = self.target()
        for _ in range(3):
            client = self.open(proxy, target)
            client.send(hello("a.bad.test"))
            self.assert_closed(client)
        stream = socket.socket(socket.AF_UNIX)
        stream.connect(str(admin))
        stream.sendall(b"GET /metrics HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
        metrics = everything(stream)[0].decode()
        stream.close()
        self.assertIn('millrace_exchanges_aborted_total{reason="sni-denied"} 3', metrics)
