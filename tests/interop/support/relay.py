"""A relay before a server that fails or calls a function at one of its connections."""

import contextlib
import itertools
import socket
import threading

from .server import Listener


class Relay(Listener):
    """Passes connections on to a port of 127.0.0.1. At connection `number` (from 1) it calls `act`
    and closes the connection: before any byte, or with `late` when the client has sent its request,
    so that the server has received it and the client gets no response."""

    def __init__(self, port, number=0, act=lambda: None, late=False):
        self.target, self.number, self.act, self.late = port, number, act, late
        self._numbers = itertools.count(1)
        super().__init__()

    def serve(self, client):
        if next(self._numbers) == self.number:
            self._fail(client)
        else:
            self._pass(client)

    def _fail(self, client):
        if self.late:
            self._pass(client, is_cut=True)
        self.act()

    def _pass(self, client, is_cut=False):
        """Passes a connection on. With `is_cut` the client gets no response."""
        server = socket.create_connection(("127.0.0.1", self.target), 30)
        back = threading.Thread(target=self._copy, args=(server, client), daemon=True)
        back.start()
        with contextlib.suppress(OSError):
            if is_cut:
                self._copy_request(client, server)
                client.shutdown(socket.SHUT_RDWR)
            else:
                self._copy(client, server)
        back.join()
        server.close()

    @staticmethod
    def _copy(source, sink):
        """Copies until the end, which a reset is as well."""
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                sink.sendall(data)
        with contextlib.suppress(OSError):
            sink.shutdown(socket.SHUT_WR)

    @staticmethod
    def _copy_request(client, server):
        """Copies records of TLS 1.3 until the second encrypted one, which contains the request; the
        first one ends the handshake."""
        encrypted = 0
        with client.makefile("rb") as records:
            while encrypted < 2 and len(head := records.read(5)) == 5:
                encrypted += head[0] == 23
                server.sendall(head + records.read(int.from_bytes(head[3:], "big")))
