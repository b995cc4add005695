"""Origins that name files by X-Sendfile and X-Accel-Redirect, as web frameworks do."""

import http.client
import http.server
import os
import threading
import urllib.parse

from support.case import InteropCase

BYTES = bytes(range(256)) * 1000
TEXT = b"a line of text\n" * 1000


class Handler(http.server.BaseHTTPRequestHandler):
    """Responds with the fields that the query of the request has, and a body that no client may
    get if they name a file."""

    protocol_version = "HTTP/1.1"

    def respond(self):
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        query = urllib.parse.urlsplit(self.path).query
        fields = dict(urllib.parse.parse_qsl(query))
        self.send_response(int(fields.pop("status", 200)))
        for name, value in fields.items():
            self.send_header(name, value)
        self.send_header("Content-Length", "4")
        self.send_header("ETag", '"of-the-origin"')
        self.send_header("Set-Cookie", "a=b")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(b"body")

    do_GET = do_HEAD = do_POST = respond

    def log_message(self, *_):
        pass


class Sendfile(InteropCase):
    def setUp(self):
        super().setUp()
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever).start()
        self.addCleanup(server.server_close)
        self.addCleanup(server.shutdown)
        self.private = self.folder / "private"
        (self.private / "sub").mkdir(parents=True)
        self.folder.chmod(0o755)
        (self.private / "a b.bin").write_bytes(BYTES)
        (self.private / "sub" / "b.txt").write_bytes(b"text")
        (self.private / "sub" / "c.txt").write_bytes(TEXT)
        (self.private / "c.php").write_bytes(b"source")
        (self.folder / "outside").write_bytes(b"outside")
        os.symlink("../outside", self.private / "link")
        (self.private / "link.txt").symlink_to("sub/b.txt")
        file = self.folder / "millrace.toml"
        file.write_text(f"""
[[boost]]
listen = ["127.0.0.1:0"]
[[boost.route]]
path = "/files/"
folder = "{self.private}/sub"
internal = true
compress = "files"
[[boost.route]]
path = "/etc/"
folder = "/etc"
internal = true
[[boost.route]]
path = "/plain/"
origins = ["http://127.0.0.1:{server.server_port}"]
[[boost.route]]
origins = ["http://127.0.0.1:{server.server_port}"]
sendfile-path = "{self.private}"
""")
        self.proxy = self.millrace("run", file)

    def get(self, path, method="GET", body=None, **fields):
        connection = http.client.HTTPConnection(*self.proxy.address, timeout=60)
        self.addCleanup(connection.close)
        fields = {name.replace("_", "-"): value for name, value in fields.items()}
        connection.request(method, path, body, headers=fields)
        response = connection.getresponse()
        response.content = response.read()
        for name in ("X-Sendfile", "X-Accel-Redirect"):
            self.assertIsNone(response.getheader(name))
        return response

    def sent(self, value, name="X-Sendfile", more="", **how):
        return self.get(f"/?{name}={urllib.parse.quote(str(value))}{more}", **how)

    def test_the_client_gets_the_file_with_the_fields_of_the_response(self):
        path = f"{self.private}/a b.bin"
        more = "&Content-Type=a/b&Content-Disposition=attachment&Cache-Control=private"
        for _ in range(2):
            response = self.sent(path, more=more)
            self.assertEqual((response.status, response.content), (200, BYTES))
        for name, value in (("Content-Type", "a/b"), ("Content-Disposition", "attachment"),
                            ("Cache-Control", "private"), ("Set-Cookie", "a=b"),
                            ("Accept-Ranges", "bytes"), ("Content-Length", str(len(BYTES)))):
            self.assertEqual(response.headers.get_all(name), [value], name)
        tag = response.getheader("ETag")
        self.assertNotEqual(tag, '"of-the-origin"')
        response = self.sent(path, Range="bytes=256-258", If_Range=tag)
        self.assertEqual((response.status, response.content), (206, b"\0\1\2"))
        self.assertEqual(self.sent(path, If_None_Match=tag).status, 304)
        response = self.sent(path, method="HEAD")
        length = response.getheader("Content-Length")
        self.assertEqual((response.content, length), (b"", str(len(BYTES))))
        # Conditions are about the resource to which the client posts.
        response = self.sent(path, method="POST", body=b"x" * 9000, If_None_Match=tag)
        self.assertEqual((response.status, response.content), (200, BYTES))
        response = self.sent(f"{self.private}/sub/b.txt")
        self.assertEqual(response.getheader("Content-Type"), "text/plain; charset=utf-8")

    def test_a_route_is_named_by_its_path(self):
        response = self.sent("/files/b.txt?a=b", name="X-Accel-Redirect")
        self.assertEqual((response.status, response.content), (200, b"text"))
        self.assertEqual(self.get("/files/b.txt").status, 404, "for clients, it is missing")
        self.assertEqual(self.sent("/files/no", name="X-Accel-Redirect").status, 404)
        # Its folder is not inside sendfile-path.
        self.assertEqual(self.sent("/etc/hostname", name="X-Accel-Redirect").status, 502)
        for path in ("/plain/a", "files/b.txt", "/files/../files/b.txt", "//files/b.txt"):
            self.assertEqual(self.sent(path, name="X-Accel-Redirect").status, 502, path)

    def test_a_file_is_coded_only_if_the_response_permits_it(self):
        def is_coded():
            response = self.sent("/files/c.txt", name="X-Accel-Redirect", Accept_Encoding="br")
            coding = response.getheader("Content-Encoding")
            self.assertEqual(len(response.content) < len(TEXT), coding == "br")
            return coding == "br"

        # A worker that has found it just after it was written sends it as it is for a while.
        self.wait_until("the file is compressed", is_coded)
        for field, value in (("Cache-Control", "no-transform"), ("Content-MD5", "x"),
                             ("Repr-Digest", "sha-256=:x:"), ("Content-Type", "image/png"),
                             ("Content-Encoding", "x-own")):
            more = f"&{field}={value}"
            response = self.sent(
                "/files/c.txt", name="X-Accel-Redirect", more=more, Accept_Encoding="br"
            )
            codings = response.headers.get_all("Content-Encoding")
            self.assertEqual(codings, ["x-own"] if value == "x-own" else None, field)
            self.assertEqual(response.content, TEXT, field)

    def test_only_files_inside_are_sent(self):
        for path, status in (("link", 404), ("no", 404), ("c.php", 404), ("sub", 404),
                             ("sub/", 404), ("../outside", 502), ("%2e%2e/outside", 502),
                             ("sub/..%2f..%2foutside", 502), ("a%00b", 502)):
            self.assertEqual(self.sent(f"{self.private}/{path}").status, status, path)
        for path in ("/etc/hostname", f"{self.private}x/a", self.private, "sub/b.txt"):
            self.assertEqual(self.sent(path).status, 502, path)
        self.assertEqual(self.sent(f"{self.private}/link.txt").content, b"text")

    def test_other_responses_are_passed_on(self):
        path = f"{self.private}/a b.bin"
        response = self.sent(path, more="&status=404")
        self.assertEqual((response.status, response.content), (404, b"body"))
        response = self.get(f"/plain/?X-Sendfile={urllib.parse.quote(path)}")
        self.assertEqual((response.status, response.content), (200, b"body"))
        self.assertEqual(self.get("/?a=b").content, b"body")

    def test_the_response_is_not_stored(self):
        more = "&Cache-Control=max-age=600"
        self.sent(f"{self.private}/link.txt", more=more)
        (self.private / "sub" / "b.txt").write_bytes(b"other")
        response = lambda: self.sent(f"{self.private}/link.txt", more=more).content
        self.wait_until("the file changes", lambda: response() == b"other")
