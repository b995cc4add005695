"""An HTTPS server before pebble that edits its responses."""

import http.server
import ssl
import urllib.error
import urllib.request

from .pebble import directory_certificate
from .server import LocalServer


class AcmeEditor(LocalServer):
    """Passes requests on to a directory. `edit` gets the path and the parts of each response (status,
    fields, body) and returns those that the client gets. Stop it by `stop`."""

    def __init__(self, pebble, edit):
        super().__init__(Handler)
        self.pebble, self.edit = pebble, edit
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*directory_certificate()[1:])
        self.socket = context.wrap_socket(
            self.socket, server_side=True, do_handshake_on_connect=False
        )
        self.directory = f"https://127.0.0.1:{self.server_port}/dir"

    def stop(self):
        self.shutdown()
        self.server_close()


class Handler(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        pebble = self.server.pebble
        url = f"https://127.0.0.1:{pebble.port}{self.path}"
        # Pebble makes its URLs from the field Host.
        names = ("Host", "Content-Type", "User-Agent")
        fields = {name: self.headers[name] for name in names if name in self.headers}
        request = urllib.request.Request(url, body or None, fields, method=self.command)
        try:
            response = urllib.request.urlopen(request, timeout=30, context=pebble.context)
        except urllib.error.HTTPError as error:
            response = error
        with response:
            parts = response.status, dict(response.headers), response.read()
        status, fields, body = self.server.edit(self.path, *parts)
        self.send_response_only(status)
        for name, value in fields.items():
            if name.lower() not in ("content-length", "transfer-encoding", "connection"):
                self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_GET = do_HEAD = do_POST

    def log_message(self, *_):
        """Logs nothing."""
