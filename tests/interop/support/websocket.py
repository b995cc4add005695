"""A client and a server of RFC 6455 without extensions."""

import base64
import hashlib
import http.server
import os
import socket
import threading

GUID = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
TEXT, BINARY, CLOSE, PING, PONG = 1, 2, 8, 9, 10


def accept_of(key):
    """Returns the value of Sec-WebSocket-Accept for a key (RFC 6455 section 4.2.2)."""
    return base64.b64encode(hashlib.sha1((key + GUID).encode()).digest()).decode()


def masked(payload, mask):
    """Returns the payload combined with the mask. The function is its own inverse."""
    if not payload:
        return payload
    repeated = (mask * (len(payload) // 4 + 1))[: len(payload)]
    number = int.from_bytes(payload, "big") ^ int.from_bytes(repeated, "big")
    return number.to_bytes(len(payload), "big")


class Frames:
    """Frames over a stream socket. A client masks what it sends, a server does not."""

    def __init__(self, stream, *, client):
        self.stream, self.client = stream, client
        self.reader = stream.makefile("rb", 1 << 16)
        self.opcode, self.fragments = None, []

    def send(self, opcode, payload):
        length = len(payload)
        bit = 0x80 if self.client else 0
        if length < 126:
            head = bytes([0x80 | opcode, bit | length])
        elif length < 1 << 16:
            head = bytes([0x80 | opcode, bit | 126]) + length.to_bytes(2, "big")
        else:
            head = bytes([0x80 | opcode, bit | 127]) + length.to_bytes(8, "big")
        if self.client:
            mask = os.urandom(4)
            head, payload = head + mask, masked(payload, mask)
        self.stream.sendall(head + payload)

    def receive(self):
        """Returns the (opcode, payload) of the next control frame or complete message."""
        while True:
            is_last, opcode, payload = self._frame()
            if opcode >= CLOSE:
                return opcode, payload
            if opcode:
                self.opcode, self.fragments = opcode, []
            self.fragments.append(payload)
            if is_last:
                return self.opcode, b"".join(self.fragments)

    def _frame(self):
        """Returns (whether it ends its message, opcode, payload) of the next frame."""
        first, second = self._exactly(2)
        length = second & 0x7F
        if length > 125:
            length = int.from_bytes(self._exactly(2 if length == 126 else 8), "big")
        mask = self._exactly(4) if second & 0x80 else None
        payload = self._exactly(length)
        return first & 0x80, first & 0x0F, masked(payload, mask) if mask else payload

    def _exactly(self, length):
        data = self.reader.read(length)
        if len(data) != length:
            raise EOFError("the stream ended inside a frame")
        return data


def connect(address, target="/echo", host="interop.test"):
    """Opens a WebSocket, checks Sec-WebSocket-Accept, and returns the frames."""
    return open_on(socket.create_connection(address, 120), target, host)


def open_on(stream, target="/echo", host="interop.test"):
    """Like `connect`, on a connection that is open already."""
    key = base64.b64encode(os.urandom(16)).decode()
    request = (
        f"GET {target} HTTP/1.1\r\nHost: {host}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        f"Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n\r\n"
    )
    stream.sendall(request.encode())
    frames = Frames(stream, client=True)
    status = frames.reader.readline()
    fields = {}
    while (line := frames.reader.readline().strip()) :
        name, value = line.decode().split(":", 1)
        fields[name.lower()] = value.strip()
    if b" 101 " not in status or fields.get("sec-websocket-accept") != accept_of(key):
        raise ConnectionError(f"no WebSocket: {status!r} {fields}")
    return frames


class EchoHandler(http.server.BaseHTTPRequestHandler):
    """Switches to WebSocket and echoes each message."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        """Logs nothing."""

    def do_GET(self):
        self.close_connection = True
        if self.headers.get("Upgrade", "").lower() != "websocket":
            self.send_error(426)
            return
        self.send_response_only(101)
        self.send_header("Upgrade", "websocket")
        self.send_header("Connection", "Upgrade")
        self.send_header("Sec-WebSocket-Accept", accept_of(self.headers["Sec-WebSocket-Key"]))
        self.end_headers()
        frames = Frames(self.connection, client=False)
        frames.reader = self.rfile
        opcode = None
        while opcode != CLOSE:
            opcode, payload = frames.receive()
            frames.send(PONG if opcode == PING else opcode, payload)


class EchoOrigin(http.server.ThreadingHTTPServer):
    """A WebSocket echo server on its own threads."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), EchoHandler)
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def handle_error(self, request, client_address):
        """Connections that end early are part of the tests."""

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_port}"

    def stop(self):
        self.shutdown()
        self.server_close()
