"""Origins by https://: verified certificates, mutual TLS, and origins that end their streams in
every way."""

import os
import shutil
import socket
import ssl
import subprocess
import threading

from support import pattern, tls, wire
from support.case import InteropCase
from support.millrace import program

SIZES = (0, 1, 16383, 16384, 16385, 65536, 1_000_000, 5_000_000)


class TlsOrigin:
    """An origin that serves each connection by a function of its TLS socket."""

    def __init__(self, context, respond):
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.url = f"https://127.0.0.1:{self.port}"
        self.context, self.respond = context, respond
        self.thread = threading.Thread(target=self._serve)
        self.thread.start()

    def _serve(self):
        while True:
            try:
                plain, _ = self.listener.accept()
            except OSError:
                return
            with plain:
                plain.settimeout(60)
                try:
                    with self.context.wrap_socket(plain, server_side=True) as secured:
                        while b"\r\n\r\n" not in secured.recv(4096):
                            pass
                        self.respond(secured)
                except OSError:
                    pass

    def stop(self):
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        self.thread.join()


class HttpsOrigins(InteropCase):
    programs = ("openssl", "curl")

    def setUp(self):
        super().setUp()
        self.authority, self.pair = tls.certificate(self.folder)
        self.trusted = ("--origin-ca", str(self.authority))

    def secured_nginx(self, **how):
        return self.nginx(certificate=self.pair, **how)

    def status_of(self, proxy, target="/"):
        """Returns the status and the Proxy-Status error of a response."""
        response = wire.get(proxy.address, target)
        return response.status, response.fields.get("proxy-status", "")

    def test_bodies_of_every_size_arrive_over_a_reused_connection(self):
        for size in SIZES:
            pattern.write(self.site / f"body-{size}", size)
        origin = self.secured_nginx()
        proxy = self.boost(origin.url, *self.trusted, "--workers", "1", "--cache-ttl", "origin")
        for _ in range(2):
            for size in SIZES:
                response = wire.get(proxy.address, f"/body-{size}")
                wanted = pattern.of_file(self.site / f"body-{size}")
                self.assertEqual((response.length, response.digest), (size, wanted))
        requests = origin.requests(2 * len(SIZES))
        connections = {request["connection"] for request in requests}
        self.assertEqual(len(connections), 1, "one connection serves all requests in turn")

    def test_a_certificate_that_is_not_valid_is_a_502(self):
        origin = self.secured_nginx()
        (self.folder / "other").mkdir()
        other, _ = tls.certificate(self.folder / "other")
        for options in (
            ("--origin-ca", str(other)),
            (*self.trusted, "--origin-name", "shop.example"),
        ):
            proxy = self.boost(origin.url, *options, "--no-cache", "--proxy-status", "on")
            status, reported = self.status_of(proxy)
            self.assertEqual(status, 502, options)
            self.assertIn("tls_certificate_error", reported)
        for options in ((*self.trusted, "--origin-name", "localhost"), ("--origin-verify", "off")):
            proxy = self.boost(origin.url, *options, "--no-cache")
            (self.site / "index.html").write_text("here")
            self.assertEqual(wire.get(proxy.address, "/").body, b"here", options)
        self.assertEqual({request["status"] for request in origin.requests(2)}, {"200"})

    def test_a_self_signed_certificate_is_trusted_if_it_is_listed(self):
        (self.site / "index.html").write_text("here")
        pair = tuple(self.folder / f"own.{end}" for end in ("pem", "key"))
        # openssl marks it as the certificate of an authority.
        tls.openssl(
            *["req", "-x509", *tls.KINDS["ecdsa"], "-nodes", "-subj", "/CN=own", "-days", "9"],
            *["-addext", "subjectAltName=IP:127.0.0.1", "-out", pair[0], "-keyout", pair[1]],
        )
        origin = self.nginx(certificate=pair)
        proxy = self.boost(origin.url, "--origin-ca", str(pair[0]), "--no-cache")
        self.assertEqual(wire.get(proxy.address, "/").body, b"here")
        other = self.boost(origin.url, *self.trusted, "--no-cache")
        self.assertEqual(wire.get(other.address, "/").status, 502)

    def test_a_client_certificate_is_sent_to_the_origin(self):
        (self.site / "index.html").write_text("here")
        wanted = f"ssl_client_certificate {self.authority}; ssl_verify_client on;"
        origin = self.secured_nginx(extra=wanted)
        without = self.boost(origin.url, *self.trusted, "--no-cache")
        self.assertEqual(wire.get(without.address, "/").status, 400)
        chain, key = map(str, self.pair)
        mutual = ("--origin-certificate", chain, "--origin-key", key)
        proxy = self.boost(origin.url, *self.trusted, *mutual, "--no-cache")
        self.assertEqual(wire.get(proxy.address, "/").body, b"here")

    def test_a_proxy_header_precedes_the_handshake(self):
        (self.site / "index.html").write_text("here")
        origin = self.secured_nginx(listen_more="proxy_protocol")
        proxy = self.boost(origin.url, *self.trusted, "--no-cache", "--send-proxy", "v2")
        self.assertEqual(wire.get(proxy.address, "/").body, b"here")

    def test_origins_that_do_not_speak_tls_are_a_502_or_504(self):
        (self.site / "index.html").write_text("here")
        plain = self.nginx()
        url = f"https://127.0.0.1:{plain.port}"
        proxy = self.boost(url, *self.trusted, "--no-cache", "--proxy-status", "on")
        status, reported = self.status_of(proxy)
        self.assertEqual(status, 502)
        self.assertIn("tls_protocol_error", reported)
        with socket.create_server(("127.0.0.1", 0)) as silent:
            port = silent.getsockname()[1]
            proxy = self.boost(
                f"https://127.0.0.1:{port}", *self.trusted, "--no-cache",
                *("--limit", "connect_ms=300", "--limit", "retries=0"),
            )
            self.assertEqual(self.status_of(proxy)[0], 504)

    def end_of_body(self, end):
        """Returns curl's status and the number of requests that three requests for a body cause
        whose end is the end of the stream."""
        server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        server.load_cert_chain(*self.pair)
        seen = []

        def respond(secured):
            seen.append(1)
            header = b"HTTP/1.1 200 OK\r\nCache-Control: max-age=60\r\n\r\n"
            secured.sendall(header + b"x" * 70000)
            end(secured)

        origin = TlsOrigin(server, respond)
        self.addCleanup(origin.stop)
        proxy = self.boost(origin.url, *self.trusted, "--limit", "retries=0")
        bodies = []
        for _ in range(3):
            try:
                bodies.append(wire.get(proxy.address, "/").body)
            except (ConnectionError, ValueError, EOFError):
                bodies.append(None)
        return bodies, len(seen)

    def test_an_announced_end_completes_a_body_and_another_end_cuts_it(self):
        whole, requests = self.end_of_body(lambda secured: secured.unwrap())
        self.assertEqual(whole, [b"x" * 70000] * 3)
        self.assertEqual(requests, 1, "the body was stored")
        cut, requests = self.end_of_body(lambda secured: secured.shutdown(socket.SHUT_RDWR))
        self.assertEqual(cut, [None] * 3, "the client sees that the body is cut")
        self.assertEqual(requests, 3, "a cut body is not stored")

    def test_a_response_before_a_failure_of_tls_is_delivered(self):
        """A record with another key follows in the same packet."""
        def respond(secured):
            secured.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, 1)
            secured.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nwhole")
            os.write(secured.fileno(), b"\x17\3\3\0\x40" + b"x" * 64)
            secured.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, 0)
            while secured.recv(4096):
                pass

        server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        server.load_cert_chain(*self.pair)
        origin = TlsOrigin(server, respond)
        self.addCleanup(origin.stop)
        proxy = self.boost(origin.url, *self.trusted)
        for _ in range(3):
            response = wire.get(proxy.address, "/")
            self.assertEqual((response.status, response.length), (200, 5))

    def test_health_checks_use_the_same_settings(self):
        (self.site / "up").write_text("")
        origin = self.secured_nginx()
        quick = ("--check", "/up", "--limit", "check_interval_ms=100", "--limit", "check_fails=1")
        good = self.boost(origin.url, *self.trusted, *quick, "--no-cache")
        self.wait_until("it was checked", lambda: origin.requests())
        self.assertEqual(wire.get(good.address, "/up").status, 200)
        failed = f"millrace: health check of {origin.url} /up"
        self.assertEqual([line for line in good.lines if line.startswith(failed)], [])
        bad = self.boost(origin.url, *self.trusted, *quick, "--origin-name", "a.b", "--no-cache")
        self.wait_until("a failure", lambda: [it for it in bad.lines if it.startswith(failed)])


class ReplacedFiles(InteropCase):
    """The files of a route to an origin by https://, which are replaced while it is served."""

    programs = ("openssl",)

    def setUp(self):
        super().setUp()
        self.authority = tls.Authority(self.folder)
        self.upstream = self.nginx(
            certificate=self.authority.issue("IP:127.0.0.1"),
            location='return 200 "$ssl_client_serial";',
            extra=f"ssl_client_certificate {self.authority.path}; ssl_verify_client on;",
        )
        self.ca, self.chain, self.key = (self.folder / name for name in ("ca", "chain", "key"))
        self.config = self.folder / "millrace.toml"
        self.config.write_text(
            "limits = { certificate_check_ms = 100 }\nno-cache = true\n[boost]\n"
            f'listen = "127.0.0.1:0"\n[[boost.route]]\norigins = "{self.upstream.url}"\n'
            f'origin-ca = "{self.ca}"\norigin-certificate = "{self.chain}"\n'
            f'origin-key = "{self.key}"\n'
        )
        self.pair = self.authority.issue("DNS:client")
        self.use({self.ca: self.authority.path, self.chain: self.pair[0], self.key: self.pair[1]})
        self.proxy = self.millrace("run", self.config)

    def use(self, files):
        """Replaces files, as `mv` does."""
        for target, source in files.items():
            new = target.with_suffix(".new")
            shutil.copyfile(source, new)
            new.chmod(0o600)
            os.replace(new, target)

    def count(self, text):
        return sum(text in line for line in self.proxy.lines)

    def assert_serves(self, pair):
        """Checks that the origin gets a certificate."""
        response = wire.get(self.proxy.address, "/")
        serial = tls.openssl("x509", "-noout", "-serial", "-in", pair[0]).decode().strip()
        self.assertEqual((response.status, response.body.decode()), (200, serial[7:]))

    def wait_for(self, number):
        text = f"{number} is in force"
        self.wait_until(text, lambda: self.count(text) == 1)

    def test_authorities_certificate_and_key_are_read_again(self):
        """Also for connections that were idle before: they belong to the old settings."""
        self.assert_serves(self.pair)
        self.use({self.ca: tls.Authority(self.folder, "other").path})
        self.wait_for(2)
        self.assertEqual(wire.get(self.proxy.address, "/").status, 502)
        self.use({self.ca: self.authority.path})
        self.wait_for(3)
        self.assert_serves(self.pair)
        new = self.authority.issue("DNS:client")
        self.use({self.chain: new[0]})
        self.wait_until("it is refused", lambda: self.count("is not the key of certificate") > 0)
        self.assert_serves(self.pair)
        self.use({self.key: new[1]})
        self.wait_for(4)
        self.assert_serves(new)

    def test_bad_files_are_refused(self):
        """One line at check and at the reload; the old ones are used on."""
        text, key = self.folder / "text", self.pair[1]
        text.write_text("hello\n")
        expired = self.authority.issue("DNS:client", since="20200101000000Z", until="20200201000000Z")
        files = {self.ca: self.authority.path, self.chain: self.pair[0], self.key: key}
        for target, source, problem in [
            (self.ca, text, f"origin-ca {self.ca}: is not PEM: it has no certificate"),
            (self.ca, key, f"origin-ca {self.ca}: contains no certificate"),
            (self.chain, text, f"origin-certificate {self.chain}: is not PEM"),
            (self.chain, expired[0], f"origin-certificate {self.chain}: expired "),
            (
                self.key, expired[1],
                f"origin-key {self.key}: is not the key of certificate {self.chain}",
            ),
        ]:
            with self.subTest(problem):
                pair = {self.key: expired[1]} if source == expired[0] else {}
                self.use({target: source, **pair})
                done = subprocess.run(
                    [program(), "check", self.config], capture_output=True, text=True, timeout=60
                )
                self.assertEqual((done.returncode, done.stderr.count("\n")), (2, 1), done.stderr)
                self.assertIn(problem, done.stderr)
                self.wait_until("it is refused", lambda: self.count(problem) > 0)
                self.assert_serves(self.pair)
                self.use(files)
