"""`redirect-https` and `hsts`: which requests are redirected and where, and which responses have
Strict-Transport-Security. The clients are curl and raw connections."""

import socket

from support import secure
from support.scripted import Response, Scripted
from support.secure import NAME, SecureCase
from support.wire import Connection

LINE = "max-age=31536000"


class Case(SecureCase):
    programs = ("curl",)

    def setUp(self):
        super().setUp()
        self.shop = Scripted()
        self.addCleanup(self.shop.stop)
        self.shop.responses["/a"] = Response(b"page", Cache_Control="max-age=1000")

    def start(self, *options):
        """Starts a reverse proxy that redirects from a plain listener to one with TLS."""
        listen = ("--listen", "127.0.0.1:0")
        return self.start_at(self.free_port(), *listen, "--redirect-https", "on", *options)

    def start_at(self, port, *options):
        """Starts a reverse proxy with TLS at a port, which the URL of a redirect needs."""
        certificate, key = self.pair
        pair = ("--certificate", certificate, "--key", key)
        secure = ("--listen", f"tls://127.0.0.1:{port}")
        proxy = self.millrace("boost", "--origin", self.shop.url, *options, *secure, *pair)
        self.wait_until("TLS is served", lambda: f"127.0.0.1:{port}" in proxy.addresses)
        return proxy

    def free_port(self):
        """Returns a free port, and keeps it as `port`."""
        with socket.create_server(("127.0.0.1", 0)) as server:
            self.port = server.getsockname()[1]
        return self.port


class Redirect(Case):
    def curl(self, proxy, url, *arguments):
        """Fetches a URL by curl, with the default port of http connected to the plain listener and
        the port of the redirect to that with TLS. Returns (statuses, final URL, body)."""
        host, plain = proxy.address
        body = self.folder / "body"
        done = self.run_client(
            *["curl", "--silent", "--show-error", "--max-time", "120", "--location"],
            *["--cacert", self.authority.path, "--output", body],
            *["--connect-to", f"{NAME}:80:{host}:{plain}"],
            *["--connect-to", f"{NAME}:{self.port}:127.0.0.1:{self.port}"],
            *["--dump-header", "-", "--write-out", "%{url_effective}", *arguments, url],
        )
        *heads, last = done.stdout.decode().split("\r\n")
        statuses = [int(line.split()[1]) for line in heads if line.startswith("HTTP/")]
        return statuses, last, body.read_bytes()

    def ask(self, proxy, head):
        """Sends a request over the plain listener. Returns the response."""
        connection = Connection(proxy.address)
        self.addCleanup(connection.close)
        connection.send(f"{head}\r\n".encode("latin-1"))
        return connection.read_response(method=head.split()[0])

    def location(self, proxy, target, host, method="GET"):
        """Returns the Location of the response to a request; its status if there is none."""
        response = self.ask(proxy, f"{method} {target} HTTP/1.1\r\nHost: {host}\r\n")
        return response.fields.get("location", response.status)

    def test_curl_follows_and_keeps_the_method(self):
        proxy = self.start()
        url = f"https://{NAME}:{self.port}/a"
        self.assertEqual(self.curl(proxy, f"http://{NAME}/a"), ([301, 200], url, b"page"))
        done = self.curl(proxy, f"http://{NAME}/a", "--data", "some=form")
        self.assertEqual(done, ([308, 200], url, b"page"))
        seen = [(method, fields["X-Forwarded-Proto"]) for method, _, fields in self.shop.seen]
        self.assertEqual(seen, [("GET", "https"), ("POST", "https")])

    def test_each_method_has_its_status(self):
        proxy = self.start()
        for method, status in [("GET", 301), ("HEAD", 301), ("PUT", 308), ("DELETE", 308),
                               ("OPTIONS", 308), ("ODD", 308)]:
            response = self.ask(proxy, f"{method} /a HTTP/1.1\r\nHost: {NAME}\r\n")
            self.assertEqual(response.status, status, method)
            self.assertEqual(response.fields["location"], f"https://{NAME}:{self.port}/a")
            self.assertNotIn("strict-transport-security", response.fields)
        self.assertEqual(self.ask(proxy, f"CONNECT {NAME}:443 HTTP/1.1\r\nHost: {NAME}\r\n").status, 405)
        self.assertEqual(self.shop.seen, [])

    def test_a_body_is_not_read_as_a_request(self):
        proxy = self.start()
        connection = Connection(proxy.address)
        self.addCleanup(connection.close)
        body = b"GET /b HTTP/1.1\r\nHost: x\r\n\r\n"
        head = f"POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode()
        connection.send(head + body)
        response = connection.read_response()
        self.assertEqual(response.fields["location"], f"https://x:{self.port}/a")
        self.assertEqual(response.fields["connection"], "close")
        with self.assertRaises(EOFError):
            connection.read_response()

    def test_the_url_has_the_host_of_the_request(self):
        proxy = self.start()
        port = self.port
        for target, host, expected in [
            ("/", "a.test", f"https://a.test:{port}/"),
            ("/p?q=1&r=%0d%0a", "a.test:80", f"https://a.test:{port}/p?q=1&r=%0d%0a"),
            ("/", "a.test:81", f"https://a.test:{port}/"),
            ("//b.test/", "a.test", f"https://a.test:{port}//b.test/"),
            ("/", "A.Test.", f"https://a.test.:{port}/"),
            ("/", "192.0.2.1", f"https://192.0.2.1:{port}/"),
            ("/", "[2001:DB8::1]:80", f"https://[2001:db8::1]:{port}/"),
            ("http://b.test/x", "a.test", f"https://b.test:{port}/x"),
            ("http://b.test?x", "a.test", f"https://b.test:{port}/?x"),
        ]:
            self.assertEqual(self.location(proxy, target, host), expected, (target, host))
        self.assertEqual(self.location(proxy, "*", "a.test", "OPTIONS"), f"https://a.test:{port}")

    def test_a_hostile_host_is_refused(self):
        proxy = self.start()
        for host in ["a.test\r\n\tSet-Cookie: x=1", "a.test\rSet-Cookie: x=1", 'a"b', "a\\b",
                     "user@a.test", "user:word@a.test", "a.test/b.test", "a.test#", "a.test?x",
                     "a b", "a<b>", "a.test, b.test", "[::1", "a:b:c", "a.test:99999", ""]:
            response = self.ask(proxy, f"GET / HTTP/1.1\r\nHost: {host}\r\n")
            self.assertEqual(response.status, 400, host)
            self.assertNotIn("location", response.fields, host)
            self.assertNotIn("set-cookie", response.fields, host)
        for target in ["http://user@a.test/", "http://user:word@a.test/"]:
            self.assertEqual(self.location(proxy, target, "a.test"), 400, target)
        self.assertEqual(self.ask(proxy, "GET / HTTP/1.0\r\n").status, 400)

    def test_a_trusted_peer_that_says_https_is_not_redirected(self):
        claimed = f"GET /a HTTP/1.1\r\nHost: {NAME}\r\nX-Forwarded-Proto: %s\r\n"
        proxy = self.start("--trust", "127.0.0.1")
        self.assertEqual(self.ask(proxy, claimed % "https").body, b"page")
        self.assertEqual(self.ask(proxy, claimed % "http").status, 301)
        self.assertEqual(self.location(proxy, "/a", NAME), f"https://{NAME}:{self.port}/a")
        self.assertEqual(self.ask(self.start(), claimed % "https").status, 301)

    def test_port_443_is_left_out(self):
        # Only a network namespace or root has this port; the redirect itself opens nothing else.
        try:
            with socket.create_server(("127.0.0.1", 443)):
                pass
        except OSError as error:
            self.skipTest(f"port 443: {error}")
        listen = ("--listen", "127.0.0.1:0", "--listen", f"tls://127.0.0.1:{self.free_port()}")
        proxy = self.start_at(443, *listen, "--redirect-https", "on")
        self.assertEqual(self.location(proxy, "/a", f"{NAME}:81"), f"https://{NAME}/a")


class Hsts(Case):
    def start(self, *options):
        return self.start_at(self.free_port(), "--listen", "127.0.0.1:0", "--hsts", "365d", *options)

    def values(self, target, *, method="GET", extra="", host=NAME, is_secure=True):
        """Makes a request. Returns the status and all values of Strict-Transport-Security."""
        address = ("127.0.0.1", self.port)
        connection = secure.Connection(address, self.context) if is_secure else None
        connection = connection or Connection(self.proxy.address)
        self.addCleanup(connection.close)
        connection.send(f"{method} {target} HTTP/1.1\r\nHost: {host}\r\n{extra}\r\n".encode())
        status, values = int(connection.line().split()[1]), []
        while line := connection.line().decode():
            name, value = line.split(":", 1)
            if name.lower() == "strict-transport-security":
                values.append(value.strip())
        return status, values

    def test_every_response_over_tls_has_the_field(self):
        self.proxy = self.start()
        self.shop.responses["/new"] = Response(b"new", Cache_Control="no-store")
        for target, how, status in [
            ("/a", {}, 200),
            ("/a", {}, 200),
            ("/a", {"method": "HEAD"}, 200),
            ("/a", {"extra": "Range: bytes=1-2\r\n"}, 206),
            ("/a", {"extra": "Range: bytes=0-0,2-3\r\n"}, 206),
            ("/a", {"extra": "Range: bytes=99-\r\n"}, 416),
            ("/new", {}, 200),
            ("/none", {}, 404),
            ("/a", {"method": "POST", "extra": "Content-Length: 0\r\n"}, 200),
            ("/a", {"host": ""}, 400),
            ("/a", {"extra": "no field\r\n"}, 400),
            ("/" + "a" * 20_000, {}, 414),
            ("http://x/", {}, 421),
            (f"{NAME}:443", {"method": "CONNECT"}, 405),
            ("*", {"method": "OPTIONS", "extra": "Max-Forwards: 0\r\n"}, 200),
        ]:
            self.assertEqual(self.values(target, **how), (status, [LINE]), (target[:20], how))
        self.assertEqual(self.shop.count("/a"), 2, "a GET and a POST; the rest are hits")
        self.shop.stop()
        self.proxy = self.start()
        self.assertEqual(self.values("/other"), (502, [LINE]))

    def test_the_field_of_the_origin_is_replaced(self):
        theirs = "max-age=1; includeSubDomains"
        fields = {"Cache_Control": "max-age=1000", "ETag": '"1"'}
        self.shop.responses["/b"] = Response(b"page", Strict_Transport_Security=theirs, **fields)
        self.proxy = self.start()
        for extra, status in [("", 200), ("", 200), ('If-None-Match: "1"\r\n', 304),
                              ("Range: bytes=1-2\r\n", 206)]:
            self.assertEqual(self.values("/b", extra=extra), (status, [LINE]))
        self.assertEqual(self.shop.count("/b"), 1)
        self.assertEqual(self.values("/b", is_secure=False), (200, [theirs]))
        self.assertEqual(self.values("/a", is_secure=False), (200, []))
        self.assertEqual(self.values("/no host", is_secure=False)[1], [])

    def test_without_the_option_the_field_of_the_origin_is_kept(self):
        self.shop.responses["/b"] = Response(b"page", Strict_Transport_Security="max-age=1")
        listen = ("--listen", "127.0.0.1:0")
        self.proxy = self.start_at(self.free_port(), *listen)
        self.assertEqual(self.values("/b"), (200, ["max-age=1"]))
        self.assertEqual(self.values("/a"), (200, []))
        self.proxy = self.start_at(self.free_port(), *listen, "--hsts", "0s")
        self.assertEqual(self.values("/b"), (200, ["max-age=0"]))
