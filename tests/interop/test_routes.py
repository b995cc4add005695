"""Routes selected by path before nginx, which decodes and normalises paths before it selects a
location: no client gets another client's page by a path that millrace and nginx interpret
differently."""

from support import wire
from support.case import InteropCase

ROUTES = """
[[boost]]
listen = "127.0.0.1:0"
path-strict = {strict}
[[boost.route]]
path = "/static/"
origins = "{origin}"
cache-ttl = "override 7d"
path-forward = "{forward}"
[[boost.route]]
path = "/account"
origins = "{origin}"
cache = false
path-forward = "{forward}"
[[boost.route]]
path = "/@me"
origins = "{origin}"
cache = false
path-forward = "{forward}"
[[boost.route]]
origins = "{origin}"
cache-ttl = "default 1m"
path-forward = "{forward}"
"""

# nginx interprets each of these as /account or /@me.
DISGUISED = (
    "/static/../account",
    "/static/%2e%2e/account",
    "/static/..%2faccount",
    "/static/x/..%2f../account",
    "//account",
    "/./account",
    "/%61ccount",
    "/static/..//account",
    "/static/a%2fb/../..%2faccount",
    "/%40me",
)
REFUSED = (
    "/static/a%00b",
    "/static/%2e/a",
    "/static/..;/account",
    "/static/..%5caccount",
    "/static/a%2fb/../..%2faccount",
    "/static/a%5cb/../..%5caccount",
    "/%40me",
    "/static/..%252faccount",
    "/static/..%3bx/account",
    "/%2561ccount",
)


class Routes(InteropCase):
    def setUp(self):
        super().setUp()
        (self.site / "static").mkdir()
        (self.site / "static" / "style.css").write_text("static")
        account = (
            "location ~ ^/(account|@me) { default_type text/plain; "
            'return 200 "account of $http_cookie by $request_uri"; }'
        )
        self.seen = self.nginx(extra=account)

    def proxy(self, strict="true", forward="as-sent", routes=ROUTES):
        file = self.folder / "millrace.toml"
        file.write_text(routes.format(origin=self.seen.url, strict=strict, forward=forward))
        return self.millrace("run", file)

    def get(self, proxy, path, cookie=""):
        client = wire.Connection(proxy.address)
        self.addCleanup(client.close)
        client.get(path, extra=f"Cookie: {cookie}\r\n" if cookie else "")
        return client.read_response()

    def test_no_page_of_another_client_is_stored(self):
        for strict in ("true", "false"):
            proxy = self.proxy(strict)
            for path in DISGUISED:
                with self.subTest(path=path, strict=strict):
                    if strict == "false" and ("%2f" in path or "%40" in path):
                        # With path-strict = false, the operator states that the origin does not
                        # decode these escapes.
                        continue
                    victim = self.get(proxy, path, "session=victim")
                    other = self.get(proxy, path)
                    self.assertIn(victim.status, (200, 400))
                    self.assertNotIn(b"victim", other.body)
            self.assertEqual(self.get(proxy, "/static/style.css").body, b"static")
            self.assertIn("hit", self.get(proxy, "/static/style.css").fields["cache-status"])

    def test_ambiguous_paths_are_refused(self):
        proxy = self.proxy()
        for path in REFUSED + ("/static/..%2faccount", "/static/../account"):
            with self.subTest(path=path):
                response = self.get(proxy, path)
                self.assertEqual(response.status, 400)
                self.assertIn("ambiguous-path", response.fields["proxy-status"])
        # A path with the same route in every interpretation is not refused.
        self.assertEqual(self.get(proxy, "/static/x%2fstyle.css").status, 404)
        self.assertEqual(self.get(proxy, "//static//style.css").status, 400)

    def test_services_without_path_routes_refuse_no_path(self):
        routes = '[[boost]]\nlisten = "127.0.0.1:0"\n[[boost.route]]\norigins = "{origin}"\n'
        proxy = self.proxy(routes=routes)
        for path in ("/@scope%2fpackage", "/a/..%2fb", "/a/%2e%2e/b", "/a;b/../c"):
            self.assertEqual(self.get(proxy, path).status, 404, path)

    def test_the_normal_form_is_sent_and_keyed(self):
        proxy = self.proxy("false", "normalised")
        body = self.get(proxy, "/x/../%61ccount?a=%61", "c").body
        self.assertEqual(body, b"account of c by /account?a=%61")
        self.assertEqual(self.get(proxy, "/static//%73tyle.css").status, 200)
        self.assertIn("hit", self.get(proxy, "/static/style.css").fields["cache-status"])
