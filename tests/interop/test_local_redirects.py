"""Local redirects of programs (RFC 3875 section 6.2.2): the response to another path, chains and
loops, bodies, caches, routes of other kinds, and the access log."""

import contextlib
import json

from support import fastcgi, wire
from support.case import InteropCase

ENVIRONMENT = "REQUEST_METHOD REQUEST_URI QUERY_STRING SCRIPT_NAME PATH_INFO CONTENT_LENGTH HTTP_COOKIE"


class Cgi(InteropCase):
    def setUp(self):
        super().setUp()
        self.folder.chmod(0o755)
        self.cgi = self.folder / "cgi"
        self.cgi.mkdir()
        self.log = self.folder / "access.log"
        (self.site / "page.html").write_text("page")
        (self.site / "folder").mkdir()
        (self.site / "folder/index.html").write_text("index")
        (self.site / ".hidden").write_text("secret")
        shown = "".join(f"{name}=${name} " for name in ENVIRONMENT.split())
        self.shell("env.sh", f'printf "\\n"; echo "{shown}"; cat')

    def shell(self, name, text):
        path = self.cgi / name
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)

    def move(self, name, location, more=""):
        self.shell(name, f"printf 'Location: {location}\\n{more}\\n'")

    def start(self, *options):
        logging = ("--access-log", self.log, "--log-format", "json")
        return self.serve("--cgi", self.cgi, *logging, *options)

    def request(self, connection, head, body=b"", method="GET"):
        connection.send(f"{head}\r\nHost: a\r\n\r\n".encode() + body)
        return connection.read_response(method=method)

    def logged(self, count):
        """Returns the records of the access log, once there are `count`."""
        lines = lambda: self.log.read_text().splitlines() if self.log.exists() else []  # noqa: E731
        self.wait_until(f"{count} requests are logged", lambda: len(lines()) >= count)
        return [json.loads(line) for line in lines()]

    def test_another_program_responds(self):
        self.move("move.sh", "/cgi-bin/env.sh/more?x=1")
        connection = wire.Connection(self.start().address)
        with contextlib.closing(connection.socket):
            fields = "\r\nCookie: c\r\nContent-Type: a/b\r\nContent-Length: 4"
            for method in ("GET", "POST", "PUT"):
                head = f"{method} /cgi-bin/move.sh?old HTTP/1.1"
                sends = method != "GET"
                found = self.request(
                    connection, head + (fields if sends else "\r\nCookie: c"), b"body" * sends
                )
                self.assertEqual(found.status, 200)
                self.assertNotIn("location", found.fields)
                expected = (
                    "REQUEST_METHOD=GET REQUEST_URI=/cgi-bin/move.sh?old QUERY_STRING=x=1 "
                    "SCRIPT_NAME=/cgi-bin/env.sh PATH_INFO=/more CONTENT_LENGTH= HTTP_COOKIE=c \n"
                )
                self.assertEqual(found.body.decode(), expected)
        records = self.logged(3)
        self.assertEqual({it["target"] for it in records}, {"/cgi-bin/move.sh?old"})
        self.assertEqual([it["method"] for it in records], ["GET", "POST", "PUT"])
        self.assertEqual([it["bytes_from_client"] for it in records], [0, 4, 4])

    def test_a_file_responds(self):
        self.move("file.sh", "/page.html")
        connection = wire.Connection(self.start().address)
        with contextlib.closing(connection.socket):
            found = self.request(connection, "GET /cgi-bin/file.sh HTTP/1.1")
            self.assertEqual((found.status, found.body), (200, b"page"))
            head = self.request(connection, "HEAD /cgi-bin/file.sh HTTP/1.1", method="HEAD")
            self.assertEqual((head.status, head.fields["content-length"]), (200, "4"))
        for record in self.logged(2):
            self.assertEqual(record["target"], "/cgi-bin/file.sh")
            self.assertEqual(record["file"], f"{self.site}/page.html")

    def test_the_rules_hold_for_the_new_path(self):
        for name, location in {
            "hidden": "/.hidden",
            "outside": "/../../etc/passwd",
            "escaped": "/%2e%2e/%2e%2e/etc/passwd",
            "nul": "/a%%00",
            "none": "/none",
        }.items():
            self.move(f"{name}.sh", location.replace("%2e", "%%2e"))
        self.move("folder.sh", "/folder?q")
        self.shell("words.sh", "printf 'Location: /a b\\n\\n'")
        self.shell("split.sh", "printf 'Location: /page.html HTTP/1.1\\rX: y\\n\\n'")
        proxy = self.start()
        for name in ("hidden", "outside", "escaped", "nul", "none"):
            found = wire.get(proxy.address, f"/cgi-bin/{name}.sh")
            self.assertIn(found.status, (400, 404), name)
            self.assertNotIn(b"secret", found.body)
        for name in ("words", "split"):
            self.assertEqual(wire.get(proxy.address, f"/cgi-bin/{name}.sh").status, 502, name)
        moved = wire.get(proxy.address, "/cgi-bin/folder.sh")
        self.assertEqual((moved.status, moved.fields["location"]), (301, "/folder/?q"))

    def test_what_the_client_gets(self):
        self.move("status.sh", "/page.html", "Status: 303 Other\\n")
        self.move("fragment.sh", "/page.html#there")
        self.move("host.sh", "//other.test/page.html")
        self.move("ok.sh", "/page.html", "Status: 200 OK\\nContent-Type: a/b\\nX-A: b\\n")
        self.shell("document.sh", "printf 'Location: /page.html\\n\\nsome text'")
        proxy = self.start()
        for name, status, location in (
            ("status", 303, "/page.html"),
            ("fragment", 302, "/page.html#there"),
            ("host", 302, "//other.test/page.html"),
        ):
            found = wire.get(proxy.address, f"/cgi-bin/{name}.sh")
            self.assertEqual((found.status, found.fields["location"]), (status, location))
        for name in ("ok", "document"):
            found = wire.get(proxy.address, f"/cgi-bin/{name}.sh")
            self.assertEqual((found.status, found.body), (200, b"page"), name)
            self.assertNotIn("x-a", found.fields)

    def test_ten_redirects_and_not_one_more(self):
        self.move("0.sh", "/page.html")
        for number in range(1, 11):
            self.move(f"{number}.sh", f"/cgi-bin/{number - 1}.sh")
        self.move("loop.sh", "/cgi-bin/loop.sh")
        connection = wire.Connection(self.start().address)
        with contextlib.closing(connection.socket):
            found = self.request(connection, "GET /cgi-bin/9.sh HTTP/1.1")
            self.assertEqual((found.status, found.body), (200, b"page"))
            for name in ("10", "loop"):
                found = self.request(connection, f"GET /cgi-bin/{name}.sh HTTP/1.1")
                self.assertEqual(found.status, 500)
            found = self.request(connection, "GET /page.html HTTP/1.1")
            self.assertEqual((found.status, found.body), (200, b"page"))
        reasons = [it["reason"] for it in self.logged(4)]
        self.assertEqual(reasons, [None, "too-many-redirects", "too-many-redirects", None])

    def test_a_body_that_no_program_reads(self):
        self.move("deaf.sh", "/page.html")
        (self.site / "next").write_text("next")
        proxy = self.start()
        connection = wire.Connection(proxy.address)
        with contextlib.closing(connection.socket):
            # The program responds while the client sends, so the rest is no request.
            connection.send(
                b"POST /cgi-bin/deaf.sh HTTP/1.1\r\nHost: a\r\nContent-Length: 3000000\r\n\r\n"
                + b"GET /next HTTP/1.1\r\nHost: a\r\n\r\n" * 30_000
            )
            found = connection.read_response()
            self.assertEqual((found.status, found.body), (200, b"page"))
            self.assertEqual(found.fields["connection"], "close")
            self.assertEqual(connection.held, b"")
        self.assertEqual(wire.get(proxy.address, "/page.html").body, b"page")

    def test_pipelined_requests(self):
        self.move("file.sh", "/page.html")
        connection = wire.Connection(self.start().address)
        with contextlib.closing(connection.socket):
            targets = ["/cgi-bin/file.sh", "/page.html", "/cgi-bin/file.sh", "/cgi-bin/none"] * 5
            head = "GET {} HTTP/1.1\r\nHost: a\r\n\r\n"
            connection.send("".join(map(head.format, targets)).encode())
            found = [connection.read_response().status for _ in targets]
            self.assertEqual(found, [200, 200, 200, 404] * 5)


class Cached(InteropCase):
    def start(self, respond):
        self.program = fastcgi.Program(respond)
        self.addCleanup(self.program.stop)
        self.origin = self.nginx()
        config = self.folder / "millrace.toml"
        config.write_text(
            'workers = 1\n[[boost]]\nlisten = "127.0.0.1:0"\n[[boost.route]]\npath = "/app/"\n'
            f'fastcgi = "127.0.0.1:{self.program.port}"\n'
            f'[[boost.route]]\norigins = "{self.origin.url}"\n'
        )
        return self.millrace("run", config)

    def requested(self):
        return [it["SCRIPT_NAME"] + it["PATH_INFO"] for it in self.program.environments]

    def test_the_response_is_stored_for_its_own_path(self):
        def respond(environment, *_):
            if environment["PATH_INFO"] == "/first":
                return fastcgi.output(b"Location: /app/second\nCache-Control: max-age=60\n\n")
            return fastcgi.output(b"Cache-Control: max-age=60\n\nsecond")

        proxy = self.start(respond)
        for _ in range(3):
            found = wire.get(proxy.address, "/app/first")
            self.assertEqual((found.status, found.body), (200, b"second"))
        self.assertEqual(wire.get(proxy.address, "/app/second").body, b"second")
        self.assertEqual(self.requested(), ["/app/first", "/app/second", "/app/first", "/app/first"])
        self.assertEqual(self.program.connections, 1, "the connection is kept")

    def test_an_unsafe_request_invalidates_both_paths(self):
        count = 0

        def respond(environment, *_):
            nonlocal count
            if environment["REQUEST_METHOD"] == "POST":
                return fastcgi.output(b"Location: /app/page\n\n")
            count += 1
            return fastcgi.output(b"Cache-Control: max-age=60\n\n%d" % count)

        proxy = self.start(respond)
        for _ in range(2):
            self.assertEqual(wire.get(proxy.address, "/app/page").body, b"1")
        connection = wire.Connection(proxy.address)
        with contextlib.closing(connection.socket):
            connection.send(b"POST /app/page HTTP/1.1\r\nHost: interop.test\r\nContent-Length: 1\r\n\r\nx")
            self.assertEqual(connection.read_response().body, b"2")
        self.assertEqual(wire.get(proxy.address, "/app/page").body, b"2")

    def test_an_origin_of_http_responds(self):
        (self.site / "page.html").write_text("page")
        proxy = self.start(lambda *_: fastcgi.output(b"Location: /page.html\n\n"))
        found = wire.get(proxy.address, "/app/x")
        self.assertEqual((found.status, found.body), (200, b"page"))
