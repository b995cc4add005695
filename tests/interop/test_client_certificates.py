"""Certificates of clients: off, optional and required, revocation, the fields for origins, the
cache, and 421. The clients are curl, openssl s_client, and Python's ssl."""

import base64
import hashlib
import json
import os
import socket
import ssl
import subprocess
import threading
import time

from support import tls, wire
from support.millrace import program
from support.scripted import Response, Scripted
from support.secure import NAME, Connection, SecureCase

VERSIONS = (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3)
FORGED = (
    "Client-Cert: :Zm9yZ2Vk:\r\nclient-cert-chain: :Zm9yZ2Vk:\r\nCLIENT-CERT: :Zm9yZ2Vk:\r\n"
    "Client_Cert: :Zm9yZ2Vk:\r\nClient.Cert.Chain: :Zm9yZ2Vk:\r\n"
)


class Raw:
    """An origin that keeps the bytes of each request, one for each connection."""

    def __init__(self, context=None):
        self.listener = socket.create_server(("127.0.0.1", 0))
        scheme = "https" if context else "http"
        self.url = f"{scheme}://127.0.0.1:{self.listener.getsockname()[1]}"
        self.context, self.requests = context, []
        self.thread = threading.Thread(target=self._serve)
        self.thread.start()

    def _serve(self):
        while True:
            try:
                stream, _ = self.listener.accept()
            except OSError:
                return
            stream.settimeout(60)
            if self.context:
                stream = self.context.wrap_socket(stream, server_side=True)
            with stream:
                data = b""
                while not self._is_whole(data):
                    data += stream.recv(1 << 16)
                self.requests.append(data)
                stream.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")

    @staticmethod
    def _is_whole(data):
        head, end, body = data.partition(b"\r\n\r\n")
        return end and (b"chunked" not in head or body.endswith(b"\r\n\r\n"))

    def stop(self):
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        self.thread.join()


def der(path):
    """Returns the first certificate of a PEM file."""
    text = path.read_text()
    return ssl.PEM_cert_to_DER_cert(text[: text.index("-----END") + 25] + "\n")


def decode(value):
    """Returns the byte sequences of a field."""
    members = value.split(", ")
    assert all(it[0] == it[-1] == ":" for it in members), value
    return [base64.b64decode(it[1:-1], validate=True) for it in members]


class Case(SecureCase):
    programs = ("openssl", "curl")

    def setUp(self):
        super().setUp()
        self.clients = tls.Authority(self.folder, "clients")
        self.own, self.other = (self.clients.issue(f"DNS:{name}") for name in ("own", "other"))
        self.log = self.folder / "log"
        self.logging = ("--access-log", self.log, "--log-format", "json")
        self.upstream = Scripted()
        self.addCleanup(self.upstream.stop)
        self.upstream.responses["/"] = Response(b"page")

    def requested(self, mode, *more):
        return ("--client-certificate", mode, "--client-ca", self.clients.path, *more)

    def start(self, mode, *more, pairs=()):
        options = (*self.requested(mode), "--workers", "1", *self.logging, *more)
        return self.secure_boost(self.upstream.url, *options, pairs=pairs)

    def identified(self, pair=None, version=None):
        """Returns the context of a client with a certificate."""
        context = ssl.create_default_context(cafile=self.authority.path)
        if version:
            context.minimum_version = context.maximum_version = version
        if pair:
            context.load_cert_chain(*pair)
        return context

    def get(self, proxy, pair=None, target="/", name=NAME, host=NAME, extra=""):
        """Makes one request on a new connection."""
        client = self.connect(proxy, context=self.identified(pair), name=name)
        client.get(target, host, extra)
        return client.read_response()

    def refusal(self, proxy, pair, version):
        """Returns the error of a client whose certificate is refused."""
        with self.assertRaises((ssl.SSLError, ConnectionError)) as raised:
            client = self.connect(proxy, context=self.identified(pair, version))
            client.get("/")
            client.read_response()
        return str(raised.exception)

    def records(self, count):
        """Returns the records of the access log, once there are `count`."""
        read = lambda: self.log.read_text().splitlines() if self.log.exists() else []
        self.wait_until(f"{count} records", lambda: len(read()) >= count)
        return [json.loads(line) for line in read()]

    def fields(self):
        """Returns the fields of the last request that reached the origin."""
        return {name.lower(): value for name, value in self.upstream.seen[-1][2].items()}


class Handshakes(Case):
    def test_valid_certificates_are_accepted(self):
        fingerprint = hashlib.sha256(der(self.own[0])).hexdigest()
        for mode in ("optional", "required"):
            proxy, cert = self.start(mode), self.own
            for version in VERSIONS:
                client = self.connect(proxy, context=self.identified(cert, version))
                for _ in range(2):
                    client.get("/")
                    self.assertEqual(client.read_response().body, b"page")
                    self.assertEqual(decode(self.fields()["client-cert"]), [der(cert[0])])
                    self.assertNotIn("client-cert-chain", self.fields())
            port = proxy.address[1]
            self.run_client(
                *["curl", "--fail", "--silent", "--cacert", self.authority.path],
                *["--cert", cert[0], "--key", cert[1], f"https://127.0.0.1:{port}/"],
            )
            self.assertEqual(decode(self.fields()["client-cert"]), [der(cert[0])])
            request = f"GET / HTTP/1.1\r\nHost: {NAME}\r\nConnection: close\r\n\r\n".encode()
            for version in ("-tls1_2", "-tls1_3"):
                options = ("-quiet", version, "-cert", cert[0], "-key", cert[1])
                status, output = self.s_client(proxy, *options, request=request)
                self.assertIn("200 OK", output)
            proxy.stop()
            records = self.records(7)
            self.assertEqual([it["client_certificate"] for it in records], [fingerprint] * 7)
            self.log.unlink()

    def test_a_client_without_a_certificate(self):
        proxy = self.start("optional")
        self.assertEqual(self.get(proxy).body, b"page")
        self.assertNotIn("client-cert", self.fields())
        self.assertNotIn("client_certificate", self.records(1)[0])
        self.log.unlink()
        proxy = self.start("required", "--admin", f"unix:{self.folder}/admin")
        for version in VERSIONS:
            error = self.refusal(proxy, None, version)
            self.assertIn("alert", error)
            option = {VERSIONS[0]: "-tls1_2", VERSIONS[1]: "-tls1_3"}[version]
            _, output = self.s_client(proxy, option, "-quiet", request=b"GET / HTTP/1.1\r\n\r\n")
            self.assertRegex(output, "alert (certificate required|handshake failure)")
        for record in self.records(4):
            self.assertEqual(record["reason"], "tls-certificate-missing")
            self.assertEqual((record["sni"], record["status"]), (NAME, None))
        metrics = self.run_client(
            *["curl", "--silent", "--unix-socket", self.folder / "admin", "http://a/metrics"]
        )
        self.assertIn(b'millrace_tls_handshakes_failed_total{reason="tls-certificate-missing"} 4',
                      metrics.stdout)

    def test_certificates_that_are_not_valid(self):
        """In both modes: an unknown authority, an expired certificate, one that is not valid yet,
        and one whose chain is too long."""
        day = lambda days: time.strftime("%Y%m%d%H%M%SZ", time.gmtime(time.time() + days * 86_400))
        stranger = tls.Authority(self.folder, "stranger").issue("DNS:own")
        expired = self.clients.issue("DNS:own", since=day(-20), until=day(-10))
        early = self.clients.issue("DNS:own", since=day(10), until=day(20))
        long = self.folder / "long.pem"
        long.write_text(self.own[0].read_text() + self.clients.path.read_text() * 8)
        cases = [
            (stranger, "tls-unknown-issuer", "unknown ca"),
            (expired, "tls-certificate-time", "certificate expired"),
            (early, "tls-certificate-time", "alert"),
            ((long, self.own[1]), "tls-certificate", "alert"),
        ]
        for mode in ("optional", "required"):
            proxy = self.start(mode)
            for pair, _, alert in cases:
                for version in VERSIONS:
                    self.assertIn(alert, self.refusal(proxy, pair, version))
            self.assertEqual(self.get(proxy, self.own).status, 200, "others are served")
            proxy.stop()
            seen = [(record["reason"], record["status"]) for record in self.records(9)]
            expected = [(reason, None) for _, reason, _ in cases for _ in VERSIONS]
            self.assertEqual(seen, [*expected, (None, 200)])
            self.log.unlink()
        self.assertEqual({target for _, target, _ in self.upstream.seen}, {"/"})

    def test_no_session_is_resumed_with_them(self):
        for options, resumes in [
            ((), True),
            (self.requested("optional"), False),
            (self.requested("required"), False),
            (self.requested("required", "--client-certificate-name", "other.test"), True),
        ]:
            proxy = self.secure_boost(self.upstream.url, *options)
            for version in VERSIONS:
                context, saved = self.identified(self.own, version), None
                reused = []
                for _ in range(3):
                    client = self.connect(proxy, context=context, saved=saved)
                    client.get("/")
                    self.assertEqual(client.read_response().status, 200)
                    reused.append(client.tls.session_reused)
                    saved = client.tls.session
                self.assertEqual(reused, [False, resumes, resumes], (options, version))
            proxy.stop()


class Revocation(Case):
    def setUp(self):
        super().setUp()
        self.lists, self.config = self.folder / "lists.pem", self.folder / "millrace.toml"
        self.config.write_text(
            f'access-log = "{self.log}"\nlog-format = "json"\n'
            "limits = { certificate_check_ms = 100 }\n[boost]\n"
            f'listen = "tls://127.0.0.1:0"\n'
            f'certificate = "{self.pair[0]}"\nkey = "{self.pair[1]}"\n'
            f'client-certificate = "required"\nclient-ca = "{self.clients.path}"\n'
            f'client-crl = "{self.lists}"\n[[boost.route]]\norigins = "{self.upstream.url}"\n'
        )

    def use(self, listed):
        new = self.lists.with_suffix(".new")
        new.write_bytes(listed.read_bytes())
        os.replace(new, self.lists)

    def check(self):
        done = subprocess.run(
            [program(), "check", self.config], capture_output=True, text=True, timeout=60
        )
        return done.returncode, done.stderr.splitlines()

    def test_a_revoked_certificate_is_refused_once_the_list_has_changed(self):
        self.use(self.clients.revoke(self.other[0]))
        proxy = self.millrace("run", self.config)
        kept = self.connect(proxy, context=self.identified(self.own))
        for version in VERSIONS:
            self.assertIn("revoked", self.refusal(proxy, self.other, version))
        self.assertEqual([it["reason"] for it in self.records(2)], ["tls-certificate-revoked"] * 2)
        kept.get("/")
        self.assertEqual(kept.read_response().status, 200)
        self.use(self.clients.revoke(self.other[0], self.own[0]))
        self.wait_until("the list is read", lambda: any("2 is in force" in x for x in proxy.lines))
        self.assertIn("revoked", self.refusal(proxy, self.own, None))
        kept.get("/")
        self.assertEqual(kept.read_response().status, 200, "an old connection lives on")
        self.assertEqual(decode(self.fields()["client-cert"]), [der(self.own[0])])
        self.use(self.clients.revoke())
        self.wait_until("the list is read", lambda: any("3 is in force" in x for x in proxy.lines))
        self.assertEqual(self.get(proxy, self.own).status, 200)

    def test_replaced_authorities_are_noticed(self):
        authorities = self.folder / "authorities.pem"
        authorities.write_bytes(self.clients.path.read_bytes())
        written = self.config.read_text().replace(f'client-crl = "{self.lists}"\n', "")
        self.config.write_text(written.replace(str(self.clients.path), str(authorities)))
        proxy = self.millrace("run", self.config)
        self.assertEqual(self.get(proxy, self.own).status, 200)
        new, stranger = authorities.with_suffix(".new"), tls.Authority(self.folder, "stranger")
        new.write_bytes(stranger.path.read_bytes())
        os.replace(new, authorities)
        self.wait_until("it is read", lambda: any("2 is in force" in x for x in proxy.lines))
        self.refusal(proxy, self.own, None)
        self.assertEqual(self.get(proxy, stranger.issue("DNS:own")).status, 200)

    def test_a_certificate_without_a_list_of_its_issuer_is_refused(self):
        self.use(tls.Authority(self.folder, "stranger").revoke())
        proxy = self.millrace("run", self.config)
        self.refusal(proxy, self.own, None)
        self.assertEqual(self.records(1)[0]["reason"], "tls-revocation-unknown")

    def test_names_without_a_certificate_are_noted(self):
        """At check: probably they are misspelt."""
        self.use(self.clients.revoke())
        names = ["interop.test", "*.test", "INTEROP.test", "typo.test", "*.interop.test"]
        self.config.write_text(self.config.read_text().replace(
            "client-crl", f"client-certificate-name = {json.dumps(names)}\nclient-crl"
        ))
        status, lines = self.check()
        noted = [line for line in lines if "client-certificate-name " in line]
        text = "millrace: client-certificate-name {}: no certificate of the service is for this name"
        self.assertEqual(noted, [text.format(name) for name in ("typo.test", "*.interop.test")])
        self.assertEqual(status, 0)

    def test_bad_files_are_one_line_at_check_and_reload(self):
        good = self.clients.revoke()
        self.use(good)
        self.assertEqual(self.check()[0], 0)
        proxy = self.millrace("run", self.config)
        text, binary = self.folder / "text", self.folder / "der"
        text.write_text("hello\n")
        tls.openssl("crl", "-in", good, "-outform", "DER", "-out", binary)
        old = time.strftime("%Y%m%d%H%M%SZ", time.gmtime(time.time() - 10 * 86_400))
        cases = [
            (text, "is not PEM: it has no revocation list"),
            (binary, "is DER; convert it with: openssl crl -inform DER"),
            (self.clients.path, "contains no revocation list"),
            (self.clients.revoke(until=old), 'has a revocation list of "CN=interop clients" that'),
        ]
        for count, (listed, problem) in enumerate(cases, 1):
            self.use(listed)
            status, lines = self.check()
            self.assertEqual((status, len(lines)), (2, 1), lines)
            self.assertIn(f"client-crl {self.lists}: {problem}", lines[0])
            self.assertIn("(expected: a PEM file", lines[0])
            self.wait_until(
                "the reload is refused",
                lambda: sum("reload refused" in line for line in proxy.lines) >= count,
            )
            self.assertEqual(self.get(proxy, self.own).status, 200, "the old list serves on")
        self.use(good)
        written = self.config.read_text()
        for ca, problem in [
            (self.folder / "no", "no: No such file"),
            (self.folder, "is not a regular file"),
            (text, "is not PEM: it has no certificate"),
            (good, "contains no certificate"),
        ]:
            self.config.write_text(written.replace(str(self.clients.path), str(ca)))
            status, lines = self.check()
            self.assertEqual((status, len(lines)), (2, 1), lines)
            self.assertIn("client-ca", lines[0])
            self.assertIn(problem, lines[0])


class Fields(Case):
    def raw(self, context=None):
        origin = Raw(context)
        self.addCleanup(origin.stop)
        return origin

    def test_the_verified_chain_reaches_the_origin(self):
        """In the order of its signatures, without the client's own certificate, the root, and
        certificates that are not part of it."""
        upper = tls.Authority(self.folder, "upper", issuer=self.clients)
        lower = tls.Authority(self.folder, "lower", issuer=upper)
        stranger = tls.Authority(self.folder, "stranger")
        certificate, key = lower.issue("DNS:own")
        orders = [
            (lower, upper), (upper, lower), (lower, upper, self.clients), (stranger, lower, upper),
        ]
        proxy = self.start("required")
        for order in orders:
            chain = self.folder / "chain.pem"
            chain.write_text("".join(it.read_text() for it in
                                     (certificate, *(one.path for one in order))))
            for version in VERSIONS:
                client = self.connect(proxy, context=self.identified((chain, key), version))
                client.get("/", extra=FORGED)
                self.assertEqual(client.read_response().status, 200)
                self.assertEqual(decode(self.fields()["client-cert"]), [der(certificate)])
                expected = [der(lower.path), der(upper.path)]
                self.assertEqual(decode(self.fields()["client-cert-chain"]), expected)

    def test_forged_fields_never_reach_an_origin(self):
        """On plain and TLS listeners, from clients with and without a certificate, to plain and TLS
        origins, through reverse and forward proxies; also in trailers, and named by Connection."""
        server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        server.load_cert_chain(*self.pair)
        named = "Connection: client-cert, client-cert-chain\r\n"
        requests = [
            f"GET / HTTP/1.1\r\nHost: {NAME}\r\n{FORGED}\r\n",
            f"GET / HTTP/1.1\r\nHost: {NAME}\r\n{named}{FORGED}\r\n",
            f"POST / HTTP/1.1\r\nHost: {NAME}\r\nTransfer-Encoding: chunked\r\n"
            f"Trailer: client-cert\r\n\r\n1\r\na\r\n0\r\nX-End: 1\r\n{FORGED}\r\n",
        ]
        for context in (None, server):
            origin = self.raw(context)
            options = ("--listen", "127.0.0.1:0", "--trust", "127.0.0.0/8", "--no-cache")
            if context:
                options += ("--origin-ca", self.authority.path)
            proxy = self.secure_boost(origin.url, *self.requested("optional"), *options)
            self.wait_until("both listeners are open", lambda: len(proxy.addresses) == 2)
            plain = ("127.0.0.1", int(proxy.addresses[1].rpartition(":")[2]))
            for request in requests:
                for pair in ("plain", None, self.own):
                    client = wire.Connection(plain) if pair == "plain" else self.connect(
                        proxy, context=self.identified(pair)
                    )
                    self.addCleanup(client.close)
                    client.send(request.encode())
                    self.assertEqual(client.read_response().status, 200)
                    seen = origin.requests[-1].lower()
                    self.assertNotIn(b"zm9y", seen)
                    self.assertEqual(seen.count(b"\r\nclient"), 1 if pair == self.own else 0)
                    self.assertNotIn(b"client-cert-chain:", seen)
        origin = self.raw()
        secured = self.secure_forward(*self.requested("optional"), "--no-cache")
        for client in (
            wire.Connection(self.forward("--no-cache").address),
            self.connect(secured, context=self.identified(self.own)),
        ):
            self.addCleanup(client.close)
            client.send(f"GET {origin.url}/ HTTP/1.1\r\nHost: a\r\n{FORGED}\r\n".encode())
            self.assertEqual(client.read_response().status, 200)
            self.assertNotIn(b"\r\nclient", origin.requests[-1].lower())


class Cache(Case):
    def respond(self, control, **more):
        self.upstream.responses["/c"] = Response(b"body", Cache_Control=control, **more)

    def ask(self, proxy, pair):
        response = self.get(proxy, pair, "/c")
        self.assertEqual(response.status, 200)
        return response.fields["cache-status"]

    def test_certificates_do_not_share_responses(self):
        proxy = self.start("optional", "--cache-status", "on")
        self.respond("public, max-age=100")
        for count, pair in enumerate((self.own, self.other, None), 1):
            self.assertRegex(self.ask(proxy, pair), "fwd=.*miss; .*stored")
            self.assertIn("hit", self.ask(proxy, pair))
            self.assertEqual(self.upstream.count("/c"), count)
        for pair in (self.own, self.other, None):
            self.assertIn("hit", self.ask(proxy, pair))

    def test_a_response_needs_permission_to_be_stored(self):
        """As after a request with Authorization (RFC 9111 section 3.5)."""
        proxy = self.start("optional", "--cache-status", "on")
        self.respond("max-age=100")
        for count in (1, 2):
            self.assertIn("authorization", self.ask(proxy, self.own))
            self.assertEqual(self.upstream.count("/c"), count)
        self.assertIn("stored", self.ask(proxy, None))
        self.assertIn("hit", self.ask(proxy, None))
        self.assertIn("authorization", self.ask(proxy, self.own), "what others got is not used")

    def test_requests_do_not_wait_for_those_of_another_certificate(self):
        """Each reaches the origin although the response to none has arrived."""
        proxy = self.start("optional")
        self.respond("no-store")
        self.upstream.responses["/c"].held = True
        clients = [self.connect(proxy, context=self.identified(pair))
                   for pair in (self.own, self.other, self.own)]
        for client in clients:
            client.get("/c")
        self.wait_until("all are at the origin", lambda: self.upstream.count("/c") == 3)
        seen = [decode(dict(fields)["Client-Cert"])[0]
                for _, target, fields in self.upstream.seen if target == "/c"]
        expected = [der(pair[0]) for pair in (self.own, self.other, self.own)]
        self.assertEqual(sorted(seen), sorted(expected))
        self.upstream.go()
        for client in clients:
            self.assertEqual(client.read_response().body, b"body")


class Misdirected(Case):
    """421 (RFC 9110 section 15.5.20)."""

    def status(self, proxy, name, host, pair=None):
        return self.get(proxy, pair, name=name, host=host).status

    def loose(self):
        """Makes the clients ask for any name, and for none."""
        def context(pair=None, version=None):
            made = Case.identified(self, pair, version)
            made.check_hostname = False
            return made
        self.identified = context

    def test_a_host_with_another_request_for_certificates(self):
        self.loose()
        pair = self.authority.issue("DNS:open.test", "DNS:closed.test", "DNS:*.in.test")
        option = "--client-certificate-name"
        proxy = self.start("required", option, "closed.test", option, "*.in.test", pairs=[pair])
        for name in ("open.test", None):
            self.assertEqual(self.status(proxy, name, "open.test"), 200)
            self.assertEqual(self.status(proxy, name, "unknown.test:80"), 200)
            for host in ("closed.test", "CLOSED.test.", "closed.test:8443", "a.in.test",
                         "b.a.in.test"):
                self.assertEqual(self.status(proxy, name, host), 421, (name, host))
                absolute = self.connect(proxy, context=self.identified(), name=name)
                absolute.get(f"https://{host}/", "open.test")
                self.assertEqual(absolute.read_response().status, 421, (name, host))
        self.assertEqual(self.status(proxy, "closed.test", "closed.test", self.own), 200)
        self.assertEqual(decode(self.fields()["client-cert"]), [der(self.own[0])])
        self.assertEqual(self.status(proxy, "closed.test", "a.in.test", self.own), 200)
        self.assertEqual(self.status(proxy, "closed.test", "open.test", self.own), 421)
        record = [it for it in self.records(20) if it["status"] == 421][-1]
        self.assertEqual(record["reason"], "misdirected")

    def test_a_host_with_another_certificate(self):
        self.loose()
        issue = self.authority.issue
        pairs = [issue("DNS:a.test", "DNS:b.test"), issue("DNS:c.test")]
        proxy = self.secure_boost(self.upstream.url, pairs=pairs)
        for name, host, expected in [
            ("a.test", "b.test", 200), ("a.test", "A.TEST", 200), ("a.test", "unknown.test", 200),
            ("a.test", "c.test", 421), ("c.test", "a.test", 421), ("c.test", "c.test:443", 200),
            ("c.test", "127.0.0.1", 421), (None, "c.test", 200), (None, "a.test", 200),
        ]:
            self.assertEqual(self.status(proxy, name, host), expected, (name, host))
        client = self.connect(proxy, context=self.identified(), name="c.test")
        client.send(b"GET / HTTP/1.0\r\n\r\n")
        self.assertEqual(client.read_response().status, 200, "a request without Host")

    def test_a_connection_serves_on_after_a_421(self):
        self.loose()
        pairs = [self.authority.issue("DNS:a.test"), self.authority.issue("DNS:c.test")]
        proxy = self.secure_boost(self.upstream.url, pairs=pairs)
        client = self.connect(proxy, context=self.identified(), name="a.test")
        for host, expected in (("c.test", 421), ("a.test", 200), ("c.test", 421)):
            client.get("/", host)
            self.assertEqual(client.read_response().status, expected)

    def test_a_reload(self):
        """A renewal misdirects no request. New settings apply to the requests of old connections,
        which keep their certificates."""
        self.loose()
        config = self.folder / "millrace.toml"

        def write(pairs, *lines):
            quoted = lambda paths: ", ".join(f'"{path}"' for path in paths)
            config.write_text("\n".join([
                "[boost]", 'listen = "tls://127.0.0.1:0"',
                f"certificate = [{quoted(pair[0] for pair in pairs)}]",
                f"key = [{quoted(pair[1] for pair in pairs)}]", *lines,
                "[[boost.route]]", f'origins = "{self.upstream.url}"', "",
            ]))

        def reload(number):
            proxy.process.send_signal(1)
            self.wait_until("the reload is applied",
                            lambda: any(f"{number} is in force" in it for it in proxy.lines))

        issue = lambda: [self.authority.issue(f"DNS:{name}") for name in ("a.test", "c.test")]
        optional = ('client-certificate = "optional"', f'client-ca = "{self.clients.path}"')
        write(issue(), *optional)
        proxy = self.millrace("run", config)
        client = self.connect(proxy, context=self.identified(self.own), name="a.test")

        def status(host="a.test"):
            client.get("/", host)
            return client.read_response().status

        self.assertEqual((status(), status("c.test")), (200, 421))
        write(issue(), *optional)
        reload(2)
        self.assertEqual((status(), status("c.test")), (200, 421))
        self.assertEqual(decode(self.fields()["client-cert"]), [der(self.own[0])])
        write(issue()[::-1], *optional)
        reload(3)
        self.assertEqual((status(), status("c.test")), (200, 421), "another order")
        write(issue(), 'client-certificate = "required"', optional[1])
        reload(4)
        self.assertEqual(status(), 421, "it is required now")
        write(issue(), *optional)
        reload(5)
        self.assertEqual(status(), 200)
