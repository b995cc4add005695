"""A WSGI application on uWSGI, which serves it by FastCGI: environment, bodies of requests and
responses, HEAD and errors."""

import hashlib
import json
import subprocess

from support import pattern, wire
from support.case import InteropCase

APPLICATION = """
import json

def application(environ, start_response):
    path, body = environ["PATH_INFO"], b""
    if path == "/environment":
        body = json.dumps({name: value for name, value in environ.items()
                           if isinstance(value, str)}).encode()
        start_response("200 OK", [("Content-Type", "application/json")])
    elif path == "/echo":
        length = int(environ.get("CONTENT_LENGTH") or 0)
        body = environ["wsgi.input"].read(length)
        fields = [("X-Length", str(length)), ("X-Method", environ["REQUEST_METHOD"])]
        start_response("200 OK", [*fields, ("Content-Length", str(len(body)))])
    elif path == "/long":
        start_response("200 OK", [("Content-Type", "text/plain")])
        return (bytes([65 + number % 26]) * 1000 for number in range(5000))
    elif path == "/cookies":
        start_response("302 Found", [("Location", "/app/"), ("Set-Cookie", "a=1"),
                                     ("Set-Cookie", "b=2")])
    elif path == "/error":
        body = b"no database"
        start_response("500 Internal Server Error", [("X-Error", "yes")])
    elif path == "/broken":
        raise RuntimeError("the application is broken")
    else:
        body = b"not here"
        start_response("404 Not Found", [("Content-Length", "8")])
    return [body]
"""


class Uwsgi(InteropCase):
    programs = ("uwsgi",)

    def setUp(self):
        super().setUp()
        self.folder.chmod(0o755)
        application, path = self.folder / "application.py", self.folder / "uwsgi.sock"
        application.write_text(APPLICATION)
        output = open(self.folder / "uwsgi.log", "wb")
        uwsgi = subprocess.Popen(
            ["uwsgi", "--plugin", "python3", "--fastcgi-socket", path, "--chmod-socket=666",
             "--wsgi-file", application, "--need-app", "--threads", "4", "--die-on-term"],
            stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=self.environment(),
        )
        output.close()
        self.addCleanup(uwsgi.wait)
        self.addCleanup(uwsgi.terminate)
        self.wait_until("it listens", lambda: self.is_listening() or uwsgi.poll() is not None)
        self.assertIsNone(uwsgi.poll(), (self.folder / "uwsgi.log").read_text())
        config = self.folder / "millrace.toml"
        config.write_text(
            '[[serve]]\nlisten = "127.0.0.1:0"\n[[serve.route]]\npath = "/app/"\n'
            f'fastcgi = "unix:{path}"\n'
        )
        self.proxy = self.millrace("run", config)

    def is_listening(self):
        """Returns whether uWSGI has loaded the application, after which it accepts requests."""
        return b"WSGI app 0" in (self.folder / "uwsgi.log").read_bytes()

    def send(self, connection, method, target, body=b"", fields=""):
        if body and "Transfer-Encoding" not in fields:
            fields += f"Content-Length: {len(body)}\r\n"
        head = f"{method} {target} HTTP/1.1\r\nHost: interop.test\r\n{fields}\r\n"
        connection.send(head.encode() + body)
        return connection.read_response(method=method, keep=8 << 20)

    def connect(self):
        connection = wire.Connection(self.proxy.address)
        self.addCleanup(connection.close)
        return connection

    def test_environment(self):
        fields = "X-A: 1\r\nAuthorization: Basic eA==\r\nProxy: evil\r\n"
        found = self.send(self.connect(), "GET", "/app/environment?a=b&c", fields=fields)
        self.assertEqual(found.status, 200, found.body)
        environment = json.loads(found.body)
        names = (
            "SCRIPT_NAME PATH_INFO QUERY_STRING REQUEST_METHOD REQUEST_URI SERVER_NAME "
            "SERVER_PROTOCOL REMOTE_ADDR HTTP_HOST HTTP_X_A HTTP_AUTHORIZATION HTTP_PROXY "
            "wsgi.url_scheme"
        ).split()
        self.assertEqual(
            {name: environment.get(name) for name in names},
            {
                "SCRIPT_NAME": "/app",
                "PATH_INFO": "/environment",
                "QUERY_STRING": "a=b&c",
                "REQUEST_METHOD": "GET",
                "REQUEST_URI": "/app/environment?a=b&c",
                "SERVER_NAME": "interop.test",
                "SERVER_PROTOCOL": "HTTP/1.1",
                "REMOTE_ADDR": "127.0.0.1",
                "HTTP_HOST": "interop.test",
                "HTTP_X_A": "1",
                "HTTP_AUTHORIZATION": "Basic eA==",
                "HTTP_PROXY": None,
                "wsgi.url_scheme": "http",
            },
        )
        outside = self.send(self.connect(), "GET", "/other")
        self.assertEqual(outside.status, 404)
        self.assertNotEqual(outside.body, b"not here", "the path is outside the route")

    def test_request_bodies(self):
        connection = self.connect()
        for length in (1, 1000, 65536, 1 << 20, (1 << 20) + 1, 5 << 20):
            body = b"".join(pattern.blocks(length))
            found = self.send(connection, "POST", "/app/echo", body)
            self.assertEqual((found.status, found.fields.get("x-length")), (200, str(length)))
            self.assertEqual(found.digest, hashlib.sha256(body).hexdigest(), length)
        chunks = b"5\r\nhello\r\n6\r\n world\r\n0\r\n\r\n"
        found = self.send(connection, "PUT", "/app/echo", chunks, "Transfer-Encoding: chunked\r\n")
        self.assertEqual((found.status, found.body), (200, b"hello world"))
        self.assertEqual((found.fields["x-length"], found.fields["x-method"]), ("11", "PUT"))

    def test_responses(self):
        connection = self.connect()
        expected = b"".join(bytes([65 + number % 26]) * 1000 for number in range(5000))
        for _ in range(3):
            long = self.send(connection, "GET", "/app/long")
            self.assertEqual((long.status, long.length), (200, len(expected)))
            self.assertEqual(long.digest, hashlib.sha256(expected).hexdigest())
        # The application sends a body to HEAD too; the connection goes on after the header.
        for _ in range(2):
            head = self.send(connection, "HEAD", "/app/none")
            self.assertEqual((head.status, head.fields["content-length"]), (404, "8"))
            self.assertEqual(self.send(connection, "GET", "/app/none").body, b"not here")
        self.assertEqual(self.send(connection, "HEAD", "/app/long").status, 200)
        found = self.send(connection, "GET", "/app/cookies")
        self.assertEqual((found.status, found.fields["location"]), (302, "/app/"))
        error = self.send(connection, "GET", "/app/error")
        self.assertEqual((error.status, error.body), (500, b"no database"))
        self.assertEqual(error.fields["x-error"], "yes")
        # uWSGI sends nothing after an exception.
        self.assertEqual(self.send(connection, "GET", "/app/broken").status, 502)
        self.assertEqual(self.send(connection, "GET", "/app/none").status, 404, "it goes on")

    def test_many_clients(self):
        connections = [self.connect() for _ in range(20)]
        for number, connection in enumerate(connections):
            body = f"client {number}"
            connection.send(
                f"POST /app/echo HTTP/1.1\r\nHost: a\r\nContent-Length: {len(body)}\r\n\r\n{body}"
                .encode()
            )
        for number, connection in enumerate(connections):
            self.assertEqual(connection.read_response().body, f"client {number}".encode())
