"""An origin with functions that nginx lacks: it hashes uploads, counts sent bytes, stops reading on
demand, and runs the HTTP backend of git."""

import hashlib
import http.server
import json
import os
import subprocess
import threading

from . import pattern
from .server import LocalServer


class Handler(http.server.BaseHTTPRequestHandler):
    """HTTP/1.1 with persistent connections; the paths are the methods below."""

    protocol_version = "HTTP/1.1"
    timeout = 300

    def log_message(self, *_):
        """Logs nothing; the requests are in `Origin.seen`."""

    def body(self):
        """Yields the request's body in pieces, according to its framing."""
        if "chunked" in self.headers.get("Transfer-Encoding", "").lower():
            while size := int(self.rfile.readline().split(b";")[0], 16):
                yield self.rfile.read(size)
                self.rfile.readline()
            while self.rfile.readline().strip():
                pass
            return
        left = int(self.headers.get("Content-Length") or 0)
        while left:
            piece = self.rfile.read(min(left, 1 << 20))
            if not piece:
                raise EOFError("the request's body ended early")
            left -= len(piece)
            yield piece

    def respond(self, status, body, content_type="application/json"):
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _dispatch(self):
        self.server.seen.append((self.command, self.path, dict(self.headers.items())))
        if self.path.startswith("/git/"):
            self._git()
        elif self.path.startswith("/bytes/"):
            self._bytes(int(self.path.rpartition("/")[2]))
        elif self.path == "/unread":
            self._unread()
        else:
            self._upload()

    do_GET = do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = do_OPTIONS = _dispatch

    def _upload(self):
        """Any other path: responds with a JSON report of the received request."""
        digest, length, beginning = hashlib.sha256(), 0, b""
        for piece in self.body():
            digest.update(piece)
            length += len(piece)
            beginning = (beginning + piece)[:65536]
        self.server.bodies.append(beginning)
        self.respond(
            200,
            json.dumps(
                {
                    "method": self.command,
                    "length": length,
                    "sha256": digest.hexdigest(),
                    "fields": {name.lower(): value for name, value in self.headers.items()},
                    "version": self.request_version,
                }
            ).encode(),
        )

    def _bytes(self, length):
        """`/bytes/N`: sends N bytes of pattern, and counts the bytes that the kernel accepts."""
        self.send_response(200)
        self.send_header("Content-Length", str(length))
        self.end_headers()
        for block in pattern.blocks(length):
            view = memoryview(block)
            while view:
                taken = self.connection.send(view)
                self.server.sent_bytes += taken
                view = view[taken:]

    def _unread(self):
        """`/unread`: reads nothing of the body until `Origin.read_on` is set."""
        self.server.reading.clear()
        self.server.reading.wait(300)
        self._upload()

    def _git(self):
        """`/git/...`: runs the CGI program of git. Its response has no length, so it ends with the
        connection."""
        path, _, query = self.path[len("/git") :].partition("?")
        environment = {
            "PATH": os.environ["PATH"],
            "GIT_PROJECT_ROOT": str(self.server.repositories),
            "GIT_HTTP_EXPORT_ALL": "1",
            "REMOTE_USER": "interop",
            "REMOTE_ADDR": "127.0.0.1",
            "PATH_INFO": path,
            "QUERY_STRING": query,
            "REQUEST_METHOD": self.command,
            "CONTENT_TYPE": self.headers.get("Content-Type", ""),
            "HTTP_CONTENT_ENCODING": self.headers.get("Content-Encoding", ""),
            "GIT_PROTOCOL": self.headers.get("Git-Protocol", ""),
            "HOME": str(self.server.repositories),
        }
        done = subprocess.run(
            ["git", "http-backend"], input=b"".join(self.body()), env=environment,
            stdout=subprocess.PIPE, check=True,
        )
        head, _, body = done.stdout.partition(b"\r\n\r\n")
        fields = dict(line.split(": ", 1) for line in head.decode().split("\r\n"))
        self.send_response(int(fields.pop("Status", "200").split()[0]))
        for name, value in fields.items():
            self.send_header(name, value)
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body)


class Origin(LocalServer):
    """An origin on its own threads. `seen` lists the (method, target, fields) of each request,
    `bodies` the first 64 KiB of each upload. `sent_bytes` counts the bytes that `/bytes/N` sent."""

    def __init__(self, repositories=None):
        self.seen, self.bodies, self.sent_bytes = [], [], 0
        self.repositories = repositories
        self.reading = threading.Event()
        super().__init__(Handler)

    @property
    def port(self):
        return self.server_port

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}"

    def read_on(self):
        """Lets `/unread` read."""
        self.reading.set()

    def stop(self):
        self.shutdown()
        self.server_close()
