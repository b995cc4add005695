"""Clients over TLS that read nothing until millrace has sent them everything: the announced end of
the stream (close_notify) follows, although the socket's send buffer had no space for it."""

import json

from support import pattern
from support.secure import NAME, SecureCase
from support.server import Listener


def content(length):
    """Returns the body of `length` bytes."""
    return b"".join(pattern.blocks(length))


class UntilClose(Listener):
    """An origin whose bodies end with their connections. The path is the length of the body."""

    def serve(self, connection):
        data = b""
        while b"\r\n\r\n" not in data:
            data += connection.recv(65536)
        length = int(data.split(b" ")[1][1:])
        connection.sendall(b"HTTP/1.0 200 OK\r\n\r\n" + content(length))


class FullBuffers(SecureCase):
    def setUp(self):
        super().setUp()
        self.log = self.folder / "log"
        self.log.touch()
        self.source = UntilClose()
        self.addCleanup(self.source.stop)

    def sent_max(self):
        """Returns the length of the longest body that the kernel has taken."""
        lines = self.log.read_text().splitlines()
        return max((int(json.loads(line)["target"][1:]) for line in lines), default=0)

    def request(self, proxy, lengths):
        """Requests bodies of these lengths, each on its connection. Returns the clients, which have
        small buffers and read nothing, once no further body is sent."""
        clients = {}
        for length in lengths:
            client = clients[length] = self.connect(proxy, receive_buffer=2048, segment=536)
            client.send(f"GET /{length} HTTP/1.0\r\nHost: {NAME}\r\n\r\n".encode())
        self.settled(self.sent_max)
        return clients

    def test_the_end_of_a_body_until_close(self):
        """The lengths approach the one that fills the buffers. The announced end has 24 bytes."""
        proxy = self.secure_boost(
            self.source.url, "--access-log", self.log, "--log-format", "json",
            "--limit", "linger_ms=0",
        )
        for step, last in ((10_000, 400_000), (1000, 10_000), (100, 1000)):
            length = self.sent_max()
            self.request(proxy, range(length + step, length + last, step))
        length = self.sent_max()
        clients = self.request(proxy, range(max(length - 200, 0), length + 1200, 8))
        for length, client in clients.items():
            with self.subTest(length=length):
                self.assertTrue(client.read_response().body == content(length))
