"""An HTTP server on loopback, for origins that the tests write themselves."""

import http.server
import socket
import threading


class LocalServer(http.server.ThreadingHTTPServer):
    """Runs on threads of its own, at a port that the kernel picks."""

    daemon_threads = True
    request_queue_size = 1024

    def __init__(self, handler):
        super().__init__(("127.0.0.1", 0), handler)
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def server_bind(self):
        """Without the lookup of its own name, which the library's version makes."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = self.server_address

    def handle_error(self, request, client_address):
        """Connections that end early are part of the tests."""
