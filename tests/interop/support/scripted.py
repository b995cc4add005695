"""An origin whose responses a test defines by path. It counts requests, and can hold responses back
until the test releases them."""

import http.server
import threading

from .server import LocalServer


class Response:
    """Status, fields and body of a response. A held response waits for `Scripted.go` before its
    header, a halved one after half of its body. If `If-None-Match` is the ETag, the response is a
    304. The value of a field with several lines is a list."""

    def __init__(self, body=b"", status=200, held=False, halved=False, **fields):
        self.body, self.status, self.held, self.halved = body, status, held, halved
        self.fields = {name.replace("_", "-"): value for name, value in fields.items()}


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = 300

    def log_message(self, *_):
        """Logs nothing; the requests are in `Scripted.seen`."""

    def _dispatch(self):
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.server.note(self.command, self.path, dict(self.headers.items()))
        response = self.server.responses.get(self.path) or Response(status=404)
        if response.held:
            self.server.gate.wait(300)
        etag = response.fields.get("ETag")
        is_same = etag and self.headers.get("If-None-Match") == etag
        body = b"" if is_same else response.body
        self.send_response(304 if is_same else response.status)
        for name, values in response.fields.items():
            for value in [values] if isinstance(values, str) else values:
                self.send_header(name, value)
        if not is_same:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "HEAD":
            return
        if response.halved:
            half = len(body) // 2
            self.wfile.write(body[:half])
            self.server.gate.wait(300)
            body = body[half:]
        self.wfile.write(body)

    do_GET = do_HEAD = do_POST = _dispatch


class Scripted(LocalServer):
    """An origin on its own threads. `responses` maps targets to `Response`s."""

    def __init__(self):
        self.responses, self.seen = {}, []
        self.gate, self._changed = threading.Event(), threading.Lock()
        super().__init__(Handler)

    def note(self, *request):
        with self._changed:
            self.seen.append(request)

    def count(self, path):
        """Returns the number of requests for a path."""
        with self._changed:
            return sum(target == path for _, target, _ in self.seen)

    def go(self):
        """Releases the held responses."""
        self.gate.set()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_port}"

    def stop(self):
        self.go()
        self.shutdown()
        self.server_close()
