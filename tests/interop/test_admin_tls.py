"""The admin address over TLS: requests by Python and by `millrace cache`, access, and the
replacement of the certificate."""

import http.client
import os
import shutil
import socket
import ssl
import subprocess

from support.millrace import program
from support.secure import SecureCase, everything

TOKEN = "0123456789abcdef"


class AdminTls(SecureCase):
    def setUp(self):
        super().setUp()
        self.chain, self.key = self.folder / "chain.pem", self.folder / "key.pem"
        self.use(self.pair)
        self.token = self.folder / "token"
        self.token.write_text(TOKEN + "\n")
        self.token.chmod(0o600)
        self.config = self.folder / "millrace.toml"
        self.config.write_text(
            'limits = { certificate_check_ms = 100 }\nadmin = "tls://127.0.0.1:0"\n'
            f'admin-certificate = "{self.chain}"\nadmin-key = "{self.key}"\n'
            f'admin-token-file = "{self.token}"\n[[boost]]\nlisten = "127.0.0.1:0"\n'
            f'[[boost.route]]\norigins = "{self.origin().url}"\n'
        )

    def use(self, pair):
        """Replaces the certificate and the key, as `mv` does."""
        for source, target in zip(pair, (self.chain, self.key)):
            new = target.with_suffix(".new")
            shutil.copyfile(source, new)
            new.chmod(0o600)
            os.replace(new, target)

    def start(self):
        """Starts a process. Returns it and its admin address."""
        running = self.millrace("run", self.config)
        start = "millrace: admin at tls://"
        line = next(line for line in running.lines if line.startswith(start))
        host, port = line.removeprefix(start).split(":")
        return running, (host, int(port))

    def ask(self, address, path, *, method="GET", token=None, **fields):
        """Makes a request. Returns the status, the body and the certificate's serial number."""
        client = http.client.HTTPSConnection(*address, context=self.context, timeout=60)
        if token:
            fields["Authorization"] = f"Bearer {token}"
        try:
            client.request(method, path, headers=fields)
            serial = client.sock.getpeercert()["serialNumber"]
            response = client.getresponse()
            return response.status, response.read().decode(), serial
        finally:
            client.close()

    def cache(self, address, *words, ca=True, name=()):
        """Runs `millrace cache`. Returns its status, its output and its errors."""
        authority = ("--ca", self.authority.path) if ca else ()
        command = [program(), "cache", *words, "--admin", "tls://%s:%d" % address]
        done = subprocess.run(
            [*map(str, command), *map(str, authority), *name, "--token-file", str(self.token)],
            capture_output=True, text=True, timeout=120,
        )
        return done.returncode, done.stdout, done.stderr

    def test_every_use_works(self):
        running, address = self.start()
        self.assertEqual(self.ask(address, "/healthz")[:2], (200, "ok\n"))
        self.assertIn("millrace_requests", self.ask(address, "/metrics")[1])
        self.assertIn('admin = "tls://127.0.0.1:', self.ask(address, "/config")[1])
        self.assertEqual(self.ask(address, "/reload", method="POST")[0], 401)
        self.assertEqual(self.ask(address, "/reload", method="POST", token="x" * 16)[0], 401)
        status, body, _ = self.ask(address, "/reload", method="POST", token=TOKEN)
        self.assertEqual((status, body), (200, "configuration 2 is in force\n"))
        self.assertEqual(self.ask(address, "/cache", token=TOKEN)[0], 200)
        done = self.ask(address, "/cache/purge?all=", method="POST", token=TOKEN)
        self.assertEqual(done[0], 200, done[1])
        self.assertEqual(self.ask(address, "/drain", method="POST", token=TOKEN)[0], 202)
        self.assertEqual(running.wait(), 0)

    def test_the_cache_command(self):
        _, address = self.start()
        status, output, error = self.cache(address, "stat")
        self.assertEqual((status, error), (0, ""))
        self.assertNotEqual(output, "")
        self.assertEqual(self.cache(address, "purge", "--all")[0], 3, "nothing is stored")
        self.assertEqual(self.cache(address, "list", name=("--server-name", "localhost"))[0], 0)
        status, _, error = self.cache(address, "list", name=("--server-name", "other.test"))
        self.assertEqual(status, 1)
        self.assertEqual(len(error.splitlines()), 1)
        self.assertIn("cannot reach the process at tls://127.0.0.1:", error)
        self.assertEqual(self.cache(address, "stat", ca=False)[0], 1, "an unknown authority")

    def test_access_is_that_of_a_tcp_address(self):
        _, address = self.start()
        self.assertEqual(self.ask(address, "/healthz", Host="evil.test")[0], 421)
        self.assertEqual(self.ask(address, "/healthz", Host="localhost:%d" % address[1])[0], 200)
        own = "https://%s:%d" % address
        for origin, status in [(own, 200), (own.replace("https", "http"), 403), ("null", 403)]:
            done = self.ask(address, "/reload", method="POST", token=TOKEN, Origin=origin)
            self.assertEqual(done[0], status, origin)

    def test_a_connection_without_tls_gets_nothing(self):
        _, address = self.start()
        with socket.create_connection(address, 60) as stream:
            stream.sendall(b"GET /config HTTP/1.1\r\nHost: x\r\n\r\n")
            self.assertNotIn(b"admin", everything(stream)[0])
        old = ssl.create_default_context(cafile=self.authority.path)
        old.maximum_version = ssl.TLSVersion.TLSv1_2
        with socket.create_connection(address, 60) as stream:
            with old.wrap_socket(
                stream, server_hostname="localhost", suppress_ragged_eofs=False
            ) as client:
                client.sendall(b"GET /healthz HTTP/1.0\r\n\r\n")
                response = everything(client)[0]
                self.assertTrue(response.endswith(b"\r\n\r\nok\n"), response)

    def test_stalled_handshakes_block_no_one_and_end(self):
        _, address = self.start()
        hello = ssl.MemoryBIO()
        client = self.context.wrap_bio(ssl.MemoryBIO(), hello, server_hostname="localhost")
        with self.assertRaises(ssl.SSLWantReadError):
            client.do_handshake()
        part = hello.read()[:100]
        # More than are served: the oldest are evicted. One at a time they would take minutes.
        streams = [socket.create_connection(address, 60) for _ in range(40)]
        for stream in streams:
            self.addCleanup(stream.close)
            stream.sendall(part)

        def is_served():
            try:
                return self.ask(address, "/healthz")[0] == 200
            except (ConnectionError, ssl.SSLError):
                return False

        self.wait_until("a request is served", is_served)
        for stream in streams:
            self.assertEqual(everything(stream)[0], b"")

    def test_a_replaced_certificate_is_used(self):
        running, address = self.start()
        before = self.ask(address, "/healthz")[2]
        pair = self.authority.issue("IP:127.0.0.1")
        self.use(pair)
        self.wait_until(
            "the new certificate is used", lambda: self.ask(address, "/healthz")[2] != before
        )
        serial = self.ask(address, "/healthz")[2]
        self.chain.write_text("damaged")
        self.wait_until(
            "it is refused", lambda: any("admin-certificate" in line for line in running.lines)
        )
        self.assertEqual(self.ask(address, "/healthz")[2], serial)

    def test_wrong_settings_are_one_line(self):
        certificate, key = self.pair
        for options, text in [
            (["--admin", "tls://127.0.0.1:0"], "a tls:// address needs --admin-certificate"),
            (["--admin-key", key], "--admin-key: has no effect: no admin address uses TLS"),
            (["--admin", "tls://127.0.0.1:0", "--admin-certificate", certificate],
             "needs --admin-certificate and --admin-key"),
            (["--admin", "tls://127.0.0.1:0", "--admin-certificate", key, "--admin-key", key],
             "contains no certificate"),
        ]:
            command = [program(), "forward", "--listen", "127.0.0.1:0", *options]
            done = subprocess.run(
                [*map(str, command)], capture_output=True, text=True, timeout=60
            )
            self.assertEqual((done.returncode, len(done.stderr.splitlines())), (2, 1), done.stderr)
            self.assertIn(text, done.stderr)
