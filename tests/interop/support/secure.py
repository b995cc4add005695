"""Clients over TLS whose records a test can cut, hold back or damage, and the millrace that serves
them."""

import socket
import ssl
import subprocess

from . import tls, wire
from .case import InteropCase

NAME = "interop.test"


class Connection(wire.Connection):
    """A TLS connection over a socket. Sealed bytes are collected in memory, and `pieces`, if set,
    cuts it into the pieces that are sent. `saved` resumes the session of another connection."""

    def __init__(
        self, address, context, *, name=NAME, pieces=None, saved=None, before=b"", **buffers
    ):
        super().__init__(address, **buffers)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.received, self.sealed, self.pieces = ssl.MemoryBIO(), ssl.MemoryBIO(), pieces
        self.tls = context.wrap_bio(
            self.received, self.sealed, server_hostname=name, session=saved
        )
        if before:
            self.socket.sendall(before)
        self._until_done(self.tls.do_handshake)

    def _until_done(self, call, *arguments):
        """Calls a method of the TLS object, with more received bytes as long as it needs them."""
        while True:
            try:
                result = call(*arguments)
                self.flush()
                return result
            except ssl.SSLWantReadError:
                self.flush()
                data = self.socket.recv(1 << 18)
                if data:
                    self.received.write(data)
                else:
                    self.received.write_eof()

    def flush(self):
        """Sends the sealed bytes."""
        if data := self.sealed.read():
            for piece in self.pieces(data) if self.pieces else [data]:
                self.socket.sendall(piece)

    def seal(self, data):
        """Returns the records of `data`, which the caller sends."""
        view = memoryview(data)
        while view:
            view = view[self.tls.write(view) :]
        return self.sealed.read()

    def send(self, data):
        view = memoryview(data)
        while view:
            view = view[self._until_done(self.tls.write, view[: 1 << 18]) :]

    def receive(self):
        """Returns plaintext; nothing after close_notify. An end without it is an `SSLEOFError`."""
        try:
            return self._until_done(self.tls.read, 1 << 18)
        except ssl.SSLZeroReturnError:
            return b""

    def _more(self):
        data = self.receive()
        if not data:
            raise EOFError(f"the connection ended after {self.held[:200]!r}")
        self.held += data

    def _until_close(self, sink):
        sink(self.held)
        self.held = b""
        while data := self.receive():
            sink(data)

    def announce_end(self):
        """Sends close_notify, and keeps the socket open."""
        try:
            self.tls.unwrap()
        except ssl.SSLWantReadError:
            pass
        self.flush()

    def end(self):
        """Sends FIN without close_notify."""
        self.socket.shutdown(socket.SHUT_WR)

    def reset(self):
        """Resets the connection."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        self.socket.close()


def one_byte_each(data):
    """Cuts bytes into pieces of one byte."""
    return (data[index : index + 1] for index in range(len(data)))


class SecureCase(InteropCase):
    """Tests with certificates for `NAME`, which `self.context` trusts."""

    def setUp(self):
        super().setUp()
        self.authority = tls.Authority(self.folder)
        self.pair = self.authority.issue(f"DNS:{NAME}", "DNS:localhost", "IP:127.0.0.1")
        self.context = ssl.create_default_context(cafile=self.authority.path)

    def options(self, *pairs):
        """Returns the options of a listener with certificates; `self.pair` if there are none."""
        words = ["--listen", "tls://127.0.0.1:0"]
        for certificate, key in pairs or [self.pair]:
            words += ["--certificate", certificate, "--key", key]
        return words

    def secure_boost(self, origin, *options, pairs=()):
        """Starts a reverse proxy with TLS on a free port."""
        return self.millrace("boost", "--origin", origin, *self.options(*pairs), *options)

    def secure_forward(self, *options):
        """Starts a forward proxy with TLS on a free port."""
        return self.millrace("forward", *self.options(), *options)

    def connect(self, proxy, **how):
        """Opens a TLS connection."""
        connection = Connection(proxy.address, how.pop("context", self.context), **how)
        self.addCleanup(connection.close)
        return connection

    def raw(self, proxy, data=b""):
        """Opens a TCP connection and sends bytes."""
        stream = socket.create_connection(proxy.address, wire.TIMEOUT_SECONDS)
        self.addCleanup(stream.close)
        stream.sendall(data)
        return stream

    def s_client(self, proxy, *options, request=b"", name=NAME):
        """Runs openssl s_client with a request. Returns (exit status, output)."""
        done = subprocess.run(
            ["openssl", "s_client", "-connect", "%s:%d" % proxy.address, "-servername", name,
             "-CAfile", self.authority.path, "-verify_return_error", *map(str, options)],
            input=request, capture_output=True, timeout=120, env=self.environment(),
        )
        return done.returncode, (done.stdout + done.stderr).decode(errors="replace")


def everything(stream):
    """Returns what a socket receives until the end of the stream, and whether that is a reset."""
    data = b""
    try:
        while piece := stream.recv(1 << 16):
            data += piece
    except ConnectionResetError:
        return data, True
    return data, False
