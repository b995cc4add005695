"""A relay before a server that fails or calls a function at one of its connections."""

import socket
import threading


class Relay(threading.Thread):
    """Passes connections on to a port of 127.0.0.1. At connection `number` (from 1) it calls `act`
    and closes the connection: before any byte, or with `late` when the client has sent its request,
    so that the server has received it and the client gets no response."""

    def __init__(self, port, number=0, act=lambda: None, late=False):
        super().__init__(daemon=True)
        self.target, self.number, self.act, self.late = port, number, act, late
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.port, self.count = self.socket.getsockname()[1], 0
        self.start()

    def run(self):
        while True:
            try:
                client, _ = self.socket.accept()
            except OSError:
                return
            self.count += 1
            how = self._fail if self.count == self.number else self._pass
            threading.Thread(target=how, args=(client,), daemon=True).start()

    def _fail(self, client):
        if self.late:
            self._pass(client, chunks_max=2)
        self.act()
        client.close()

    def _pass(self, client, chunks_max=None):
        try:
            server = socket.create_connection(("127.0.0.1", self.target), 30)
        except OSError:
            return client.close()
        back = threading.Thread(target=self._copy, args=(server, client), daemon=True)
        back.start()
        self._copy(client, server, chunks_max)
        if chunks_max:
            # The server may respond now; the client must not see it.
            client.shutdown(socket.SHUT_RDWR)
        back.join()
        server.close()
        if not chunks_max:
            client.close()

    @staticmethod
    def _copy(source, sink, chunks_max=None):
        """Copies until the end. The client's chunks are the ClientHello, then the rest of the
        handshake with the request."""
        count = 0
        try:
            while count != chunks_max and (data := source.recv(1 << 16)):
                sink.sendall(data)
                count += 1
            if not chunks_max:
                sink.shutdown(socket.SHUT_WR)
        except OSError:
            pass

    def stop(self):
        self.socket.shutdown(socket.SHUT_RDWR)
        self.socket.close()
