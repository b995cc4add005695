"""An origin of one large object, which supports conditions and ranges and counts its bytes."""

import email.utils
import http.server
import re
import threading
import time

from .server import SECONDS_MAX, LocalServer

MB = 1 << 20
LENGTH = 30 * MB
DATE = email.utils.formatdate(1_700_000_000, usegmt=True)
VALIDATORS = {
    "strong": {"ETag": '"film"'},
    "weak": {"ETag": 'W/"film"'},
    "date": {"Last-Modified": DATE},
    "none": {},
}


def noise(first, last):
    """Returns the bytes of the film from `first` to `last`, both included."""
    block = bytes(range(251))
    whole = block * ((last - first) // 251 + 2)
    start = first % 251
    return whole[start : start + last - first + 1]


class Handler(http.server.BaseHTTPRequestHandler):
    """Handles conditions and ranges like Flask's `send_file`."""

    protocol_version = "HTTP/1.1"
    timeout = 300
    disable_nagle_algorithm = True

    def log_message(self, *_):
        """Logs nothing; the requests are in `Film.seen`."""

    def do_GET(self):
        film = self.server
        film.note(self.command, dict(self.headers.items()))
        try:
            self._respond(film)
        finally:
            film.ended()

    do_HEAD = do_GET

    def _respond(self, film):
        if self.path == "/":
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.send_header("Content-Length", str(len(film.page)))
            self.end_headers()
            return self.wfile.write(film.page)
        fields = film.paths.get(self.path, film.fields)
        is_same = any(
            value and self.headers.get(name) == value
            for name, value in (("If-None-Match", fields.get("ETag")),
                                ("If-Modified-Since", fields.get("Last-Modified")))
        )
        requested = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        first, last, status = 0, film.length - 1, 200
        if is_same:
            status = 304
        elif requested and film.has_ranges and self.command == "GET":
            first, last, status = int(requested[1]), int(requested[2] or last), 206
        self.send_response(status)
        for name, value in fields.items():
            self.send_header(name, value)
        if film.has_ranges:
            self.send_header("Accept-Ranges", "bytes")
        if status == 206:
            self.send_header("Content-Range", f"bytes {first}-{last}/{film.length}")
        if status != 304:
            self.send_header("Content-Length", str(last - first + 1))
        self.end_headers()
        if is_same or self.command == "HEAD":
            return
        while first <= last:
            if status == 200 and first >= film.held_from:
                film.gate.wait(300)
            end = min(first + 65535, last)
            head = film.head[first : end + 1]
            self.wfile.write(head + noise(first + len(head), end))
            film.count(end - first + 1)
            first = end + 1


class Film(LocalServer):
    """An origin that serves the same film at each path, and `page` at `/`. The film begins with
    `head`. `paths` has the response fields of paths that differ from `fields`. Responses of the
    whole film pause at the byte `held_from` until `gate` is set."""

    def __init__(
        self, control, *, length=LENGTH, has_ranges=True, held_from=LENGTH, **fields
    ):
        self.fields = {"Cache-Control": control, "Content-Type": "video/mp4", **fields}
        self.length, self.has_ranges, self.held_from = length, has_ranges, held_from
        self.paths, self.page, self.head = {}, b"", b""
        self.gate, self._lock = threading.Event(), threading.Lock()
        self.seen, self._sent, self._open = [], 0, 0
        super().__init__(Handler)

    def note(self, method, fields):
        with self._lock:
            self.seen.append((method, {name.lower(): value for name, value in fields.items()}))
            self._open += 1

    def count(self, length):
        with self._lock:
            self._sent += length

    def ended(self):
        with self._lock:
            self._open -= 1

    def sent(self):
        """Returns the body bytes that the kernel accepted, once all responses have ended."""
        end = time.monotonic() + SECONDS_MAX
        while self._open:
            if time.monotonic() > end:
                raise TimeoutError(f"{self._open} responses do not end")
            time.sleep(0.002)
        return self._sent

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_port}"

    def ranges(self):
        """Returns the requested ranges; `None` is the whole object."""
        with self._lock:
            return [fields.get("range") for method, fields in self.seen if method == "GET"]

    def stop(self):
        self.gate.set()
        self.shutdown()
        self.server_close()
