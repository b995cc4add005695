"""`fetch-https`: a forward proxy that fetches https:// targets over TLS, for clients that request
them like http://. The clients are raw connections."""

import ssl

from support.scripted import Response, Scripted
from support.secure import NAME, SecureCase
from support.wire import Connection


class FetchHttps(SecureCase):
    def setUp(self):
        super().setUp()
        self.shop = self.shop_with(self.pair)
        self.shop.responses["/a"] = Response(b"page", Cache_Control="max-age=1000")

    def shop_with(self, pair):
        """Starts an origin with TLS."""
        shop = Scripted()
        self.addCleanup(shop.stop)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*pair)
        shop.names = []
        context.sni_callback = lambda _, name, __: shop.names.append(name)
        shop.socket = context.wrap_socket(shop.socket, server_side=True)
        return shop

    def proxy(self, *options, ca=True):
        """Starts a forward proxy that fetches https:// targets."""
        authority = ("--fetch-ca", self.authority.path) if ca else ()
        return self.forward("--fetch-https", "on", *authority, *options)

    def get(self, proxy, target, *, method="GET", fields="", body=b""):
        """Requests a target of the proxy. Returns the response."""
        connection = Connection(proxy.address)
        self.addCleanup(connection.close)
        host = target.split("/")[2]
        head = f"{method} {target} HTTP/1.1\r\nHost: {host}\r\n{fields}\r\n".encode()
        connection.send(head + body)
        return connection.read_response(method=method)

    def url(self, host="localhost", path="/a", port=None):
        return f"https://{host}:{port or self.shop.server_port}{path}"

    def test_a_target_is_fetched_over_tls_and_cached(self):
        proxy = self.proxy("--cache-status", "on")
        for number in range(2):
            response = self.get(proxy, self.url())
            self.assertEqual((response.status, response.body), (200, b"page"))
            self.assertEqual("hit" in response.fields["cache-status"], number == 1)
        method, path, fields = self.shop.seen[-1]
        self.assertEqual((method, path), ("GET", "/a"))
        self.assertEqual(fields["Host"], f"localhost:{self.shop.server_port}")
        self.assertIn("millrace", fields["Via"])
        self.assertNotIn("X-Forwarded-Proto", fields)
        self.assertEqual(self.shop.names, ["localhost"], "SNI is the host of the target")

    def test_the_key_has_the_scheme(self):
        """The same host and port by http:// is another response, and is not sent over TLS."""
        proxy = self.proxy("--cache-status", "on")
        self.assertEqual(self.get(proxy, self.url()).status, 200)
        plain = self.get(proxy, self.url().replace("https://", "http://"))
        self.assertNotEqual(plain.status, 200)
        self.assertIn("hit", self.get(proxy, self.url()).fields["cache-status"])

    def test_a_body_is_sent_and_connections_are_reused(self):
        proxy = self.proxy("--no-cache", "--workers", "1")
        for _ in range(3):
            response = self.get(
                proxy, self.url(), method="POST", fields="Content-Length: 4\r\n", body=b"form"
            )
            self.assertEqual((response.status, response.body), (200, b"page"))
        self.assertEqual([method for method, _, _ in self.shop.seen], ["POST"] * 3)
        self.assertEqual(len(self.shop.names), 1, "one connection")

    def test_an_address_is_verified_as_an_address(self):
        proxy = self.proxy()
        self.assertEqual(self.get(proxy, self.url("127.0.0.1")).status, 200)
        self.assertEqual(self.shop.names, [None], "an address is no SNI")
        by_name = self.shop_with(self.authority.issue("DNS:localhost"))
        response = self.get(proxy, self.url("127.0.0.1", port=by_name.server_port))
        self.assertEqual(response.status, 502)
        self.assertIn("tls_certificate_error", response.fields["proxy-status"])

    def test_certificates_that_are_not_valid(self):
        other = self.shop_with(self.authority.issue(f"DNS:{NAME}"))
        proxy = self.proxy()
        response = self.get(proxy, self.url(port=other.server_port))
        self.assertEqual(response.status, 502, "another name")
        self.assertIn("tls_certificate_error", response.fields["proxy-status"])
        self.assertEqual(self.get(self.proxy(ca=False), self.url()).status, 502, "unknown authority")
        self.assertEqual((self.shop.seen, other.seen), ([], []))

    def test_without_the_option_targets_are_refused(self):
        proxy = self.forward()
        response = self.get(proxy, self.url())
        self.assertEqual(response.status, 400)
        self.assertIn(b"https:// URLs only with fetch-https", response.body)
        self.assertEqual(self.shop.names, [])

    def test_the_listener_decides_nothing(self):
        """A client over TLS gets https:// targets only with the option, and http:// ones plain."""
        plain = Scripted()
        self.addCleanup(plain.stop)
        plain.responses["/a"] = Response(b"plain")
        fetch = ("--fetch-https", "on", "--fetch-ca", self.authority.path)
        for options, status in [((), 400), (fetch, 200)]:
            client = self.connect(self.secure_forward(*options), name="localhost")
            client.get(f"{plain.url}/a", host=plain.url.removeprefix("http://"))
            self.assertEqual(client.read_response().body, b"plain")
            client.get(self.url(), host=f"localhost:{self.shop.server_port}")
            self.assertEqual(client.read_response().status, status)
        self.assertEqual((plain.count("/a"), self.shop.count("/a")), (2, 1))

    def test_a_server_without_tls(self):
        plain = Scripted()
        self.addCleanup(plain.stop)
        response = self.get(self.proxy(), self.url(port=plain.server_port))
        self.assertEqual(response.status, 502)
        self.assertIn("tls_protocol_error", response.fields["proxy-status"])
        self.assertEqual(plain.seen, [])

    def test_the_rules_for_targets_hold(self):
        denied = self.proxy("--deny-target", "127.0.0.0/8")
        self.assertEqual(self.get(denied, self.url()).status, 403)
        domain = self.proxy("--deny-domain", "localhost")
        self.assertEqual(self.get(domain, self.url()).status, 403)
        private = self.proxy("--allow-private", "off")
        self.assertEqual(self.get(private, self.url()).status, 403)
        # The port of a target without one is 443.
        port = self.proxy("--deny-port", "443")
        self.assertEqual(self.get(port, "https://localhost/a").status, 403)
        self.assertEqual(self.get(port, self.url()).status, 200)
        low = self.proxy("--allow-port", "80")
        self.assertEqual(self.get(low, "https://localhost:444/a").status, 403)
        self.assertEqual(len(self.shop.seen), 1)

    def test_a_host_that_no_certificate_can_have(self):
        response = self.get(self.proxy(), "https://a_b.-c/")
        self.assertIn(response.status, (400, 502))
        self.assertEqual(self.shop.names, [])
