"""Servers on loopback, for origins that the tests write themselves."""

import http.server
import socket
import threading

# A peer that sends nothing for this time has failed.
SECONDS_MAX = 120


class LocalServer(http.server.ThreadingHTTPServer):
    """A server on its own threads, at a port that the kernel chooses."""

    daemon_threads = True
    request_queue_size = 1024

    def __init__(self, handler):
        super().__init__(("127.0.0.1", 0), handler)
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def server_bind(self):
        """Binds without a lookup of the host name, unlike the method of the library."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = self.server_address

    def handle_error(self, request, client_address):
        """Connections that end early are part of the tests."""


class Listener:
    """A server that calls `serve` for each connection, on a separate thread."""

    def __init__(self):
        self.socket = socket.create_server(("127.0.0.1", 0), backlog=1024)
        self.address = self.socket.getsockname()
        self._acceptor = threading.Thread(target=self._accept, daemon=True)
        self._acceptor.start()

    def _accept(self):
        while True:
            try:
                connection, _ = self.socket.accept()
            except OSError:
                return
            connection.settimeout(SECONDS_MAX)
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection):
        try:
            self.serve(connection)
        except OSError:
            pass
        finally:
            connection.close()

    @property
    def port(self):
        return self.address[1]

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}"

    def stop(self):
        """Ends the thread before it closes the socket: accept(2) in another thread would keep the
        socket listening, and another socket may get its descriptor."""
        self.socket.shutdown(socket.SHUT_RDWR)
        self._acceptor.join()
        self.socket.close()
