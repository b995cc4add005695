"""The scheme of requests over TLS: the fields that an origin receives, cache keys, and purges by
https:// URLs. The clients are curl and raw TLS connections."""

import contextlib
import http.client
import socket
import ssl

from support.scripted import Response
from support.shop import ShopCase
from support.tls import certificate


class HttpsScheme(ShopCase):
    def setUp(self):
        super().setUp()
        self.authority, (self.chain, self.key) = certificate(self.folder)
        self.responses["/a"] = Response(b"page", Cache_Control="max-age=1000")

    def tls_boost(self, *options):
        """Starts a reverse proxy with a plain and a TLS listener, in this order."""
        pair = ("--certificate", self.chain, "--key", self.key)
        admin = ("--admin", f"unix:{self.admin_path}")
        proxy = self.boost(self.shop.url, "--listen", "tls://127.0.0.1:0", *pair, *admin, *options)
        self.wait_until("both listeners are open", lambda: len(self.listeners(proxy)) == 2)
        return proxy

    def listeners(self, proxy):
        """Returns the ports of the TCP listeners."""
        addresses = [it for it in proxy.addresses if not it.startswith("unix:")]
        return [int(it.rpartition(":")[2]) for it in addresses]

    def fetch(self, proxy, url, *arguments):
        """Fetches a URL of localhost by curl, with the default port of its scheme connected to the
        listener. Returns the status, the fields (names in lower case) and the body."""
        plain, secure = self.listeners(proxy)
        body = self.folder / "body"
        done = self.run_client(
            *["curl", "--silent", "--show-error", "--max-time", "120", "--cacert", self.authority],
            *["--connect-to", f"localhost:80:127.0.0.1:{plain}"],
            *["--connect-to", f"localhost:443:127.0.0.1:{secure}"],
            *["--dump-header", "-", "--output", body, *arguments, url],
        )
        lines = done.stdout.decode("latin-1").split("\r\n")
        fields = dict(line.split(": ", 1) for line in lines[1:] if ": " in line)
        content = body.read_bytes() if body.exists() else b""
        body.unlink(missing_ok=True)
        return int(lines[0].split()[1]), {k.lower(): v for k, v in fields.items()}, content

    def exchange(self, proxy, head, secure):
        """Sends a request header over a raw connection, plain or TLS. Returns the status."""
        address = ("127.0.0.1", self.listeners(proxy)[1 if secure else 0])
        with contextlib.ExitStack() as stack:
            connection = stack.enter_context(socket.create_connection(address, 60))
            if secure:
                context = ssl.create_default_context(cafile=self.authority)
                connection = stack.enter_context(
                    context.wrap_socket(connection, server_hostname="localhost")
                )
            connection.sendall(head.encode())
            response = http.client.HTTPResponse(connection)
            response.begin()
            response.read()
            return response.status

    def last_fields(self):
        """Returns the fields of the last request that the origin received."""
        return {name.lower(): value for name, value in self.shop.seen[-1][2].items()}

    def urls(self):
        """Returns the URLs that `millrace cache list` prints, without the service."""
        return sorted(it["url"].split("\n")[0].split(" ")[0] for it in self.cached())

    def test_the_origin_learns_the_scheme_of_the_client(self):
        proxy = self.tls_boost("--no-cache")
        for scheme, host in [("https", "localhost"), ("http", "localhost")]:
            self.assertEqual(self.fetch(proxy, f"{scheme}://localhost/a")[0], 200)
            fields = self.last_fields()
            self.assertEqual(fields["x-forwarded-proto"], scheme)
            self.assertIn(f"proto={scheme};", fields["forwarded"])
            self.assertEqual((fields["host"], fields["x-forwarded-host"]), (host, host))
        claimed = ("--header", "X-Forwarded-Proto: http", "--header", "Host: localhost:443")
        self.fetch(proxy, "https://localhost/a", *claimed)
        fields = self.last_fields()
        self.assertEqual((fields["x-forwarded-proto"], fields["host"]), ("https", "localhost"))

    def test_a_trusted_peer_describes_the_request(self):
        proxy = self.tls_boost("--trust", "127.0.0.1")
        claimed = ("--header", "X-Forwarded-Proto: http")
        self.fetch(proxy, "https://localhost/a", *claimed)
        self.assertEqual(self.last_fields()["x-forwarded-proto"], "http")
        # The value that the proxy writes itself adds nothing to the key.
        self.fetch(proxy, "https://localhost/a")
        self.assertEqual(self.shop.count("/a"), 2)
        own = ("--header", "X-Forwarded-Proto: https")
        status = self.fetch(proxy, "https://localhost/a", *own)[1]["cache-status"]
        self.assertIn("hit", status)
        self.assertEqual(self.shop.count("/a"), 2)

    def test_absolute_targets_have_the_scheme_of_their_connection(self):
        proxy = self.tls_boost()

        def status(scheme, secure):
            head = f"GET {scheme}://localhost/a HTTP/1.1\r\nHost: localhost\r\n\r\n"
            return self.exchange(proxy, head, secure)

        self.assertEqual(status("https", True), 200)
        self.assertEqual(status("http", True), 421)
        self.assertEqual(status("http", False), 200)
        self.assertEqual(status("https", False), 400)
        self.assertEqual(self.urls(), ["http://localhost/a", "https://localhost/a"])

    def test_each_scheme_has_an_entry(self):
        proxy = self.tls_boost()
        for _ in range(2):
            for scheme in ("http", "https"):
                self.assertEqual(self.fetch(proxy, f"{scheme}://localhost/a")[2], b"page")
        self.assertEqual(self.shop.count("/a"), 2)
        self.assertEqual(self.urls(), ["http://localhost/a", "https://localhost/a"])
        self.assertIn("https://localhost/a", self.cache("show", "https://localhost/a"))
        self.cache("purge", "https://localhost/a")
        self.assertEqual(self.urls(), ["http://localhost/a"])
        self.fetch(proxy, "https://localhost/a")
        self.assertEqual(self.shop.count("/a"), 3)
        self.cache("purge", "--prefix", "https://localhost/")
        self.assertEqual(self.urls(), ["http://localhost/a"])

    def test_an_unsafe_request_invalidates_locations_of_its_own_origin(self):
        proxy = self.tls_boost()
        self.responses["/form"] = Response(b"done", 201, Location="https://localhost/a")
        for scheme in ("http", "https"):
            self.fetch(proxy, f"{scheme}://localhost/a")
        self.fetch(proxy, "http://localhost/form", "--data", "x")
        for scheme in ("http", "https"):
            self.assertIn("hit", self.fetch(proxy, f"{scheme}://localhost/a")[1]["cache-status"])
        self.fetch(proxy, "https://localhost/form", "--data", "x")
        self.assertIn("hit", self.fetch(proxy, "http://localhost/a")[1]["cache-status"])
        self.assertNotIn("hit", self.fetch(proxy, "https://localhost/a")[1]["cache-status"])

    def test_groups_belong_to_a_scheme(self):
        self.responses["/a"].fields["Cache-Groups"] = '"g"'
        proxy = self.tls_boost()
        for scheme in ("http", "https"):
            self.fetch(proxy, f"{scheme}://localhost/a")
        self.cache("purge", "--group", "g", "--site", "https://localhost")
        self.assertEqual(self.urls(), ["http://localhost/a"])

    def test_a_refresh_keeps_the_scheme(self):
        control = "max-age=0, stale-while-revalidate=1000"
        self.responses["/a"] = Response(b"page", ETag='"1"', Cache_Control=control)
        proxy = self.tls_boost()
        for _ in range(2):
            self.assertEqual(self.fetch(proxy, "https://localhost/a")[2], b"page")
        self.wait_until("the refresh reaches the origin", lambda: self.shop.count("/a") >= 2)
        self.assertEqual(self.last_fields()["if-none-match"], '"1"')
        self.assertEqual(self.last_fields()["x-forwarded-proto"], "https")
        self.assertEqual(self.urls(), ["https://localhost/a"])

    def test_shared_schemes_have_one_entry(self):
        self.responses["/a"].fields["Cache-Groups"] = '"g"'
        proxy = self.tls_boost("--share-schemes", "on")
        self.fetch(proxy, "https://localhost/a")
        self.assertIn("hit", self.fetch(proxy, "http://localhost/a")[1]["cache-status"])
        self.assertEqual((self.shop.count("/a"), self.urls()), (1, ["http://localhost/a"]))
        self.cache("purge", "--group", "g", "--site", "http://localhost")
        self.assertEqual(self.urls(), [])

    def test_a_forward_proxy_over_tls_keys_the_scheme_of_the_target(self):
        admin = ("--admin", f"unix:{self.admin_path}")
        listen = ("--listen", "tls://127.0.0.1:0")
        pair = ("--certificate", self.chain, "--key", self.key)
        proxy = self.forward(*listen, *pair, *admin, "--allow-port", "all")
        self.wait_until("both listeners are open", lambda: len(self.listeners(proxy)) == 2)
        secure = f"https://localhost:{self.listeners(proxy)[1]}"
        through = ("--proxy", secure, "--proxy-cacert", self.authority)
        target = f"{self.shop.url}/a"
        for _ in range(2):
            self.assertEqual(self.fetch(proxy, target, *through)[2], b"page")
        self.assertEqual(self.fetch(proxy, target, "--proxy", proxy.url)[2], b"page")
        self.assertEqual(self.shop.count("/a"), 1)
        self.assertNotIn("x-forwarded-proto", self.last_fields())
        self.assertEqual(self.urls(), [target])
        done = self.fetch(proxy, target, *through, "--proxytunnel")
        self.assertEqual((done[2], self.shop.count("/a")), (b"page", 2))
        self.assertNotIn("via", self.last_fields())
