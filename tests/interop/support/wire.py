"""A plain HTTP client on a socket. It reads responses by their framing and, unlike libraries,
repairs no faults."""

import hashlib
import socket

TIMEOUT_SECONDS = 120


def unread_bytes(client):
    """Returns how many bytes of an IPv4 connection the server has not read: those that the client's
    kernel has not sent, and those that the server's kernel has received."""
    ports = [client.getsockname()[1], client.getpeername()[1]]
    with open("/proc/net/tcp") as table:
        rows = [line.split() for line in table.readlines()[1:]]
    found = {tuple(int(row[at].split(":")[1], 16) for at in (1, 2)): row[4] for row in rows}
    sent, received = found[tuple(ports)], found[tuple(reversed(ports))]
    return int(sent.split(":")[0], 16) + int(received.split(":")[1], 16)


class Response:
    """A response: status, fields (names in lower case; the last one of a name counts), length and
    hash of the body."""

    def __init__(self, version, status, fields, length, digest, body):
        self.version, self.status, self.fields = version, status, fields
        self.length, self.digest, self.body = length, digest, body


class Connection:
    """A TCP connection to `address` (host, port)."""

    def __init__(self, address, *, receive_buffer=None, segment=None):
        family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        self.socket = socket.socket(family)
        if receive_buffer:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        if segment:
            self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, segment)
        self.socket.settimeout(TIMEOUT_SECONDS)
        self.socket.connect(address)
        self.held = b""

    def send(self, data):
        self.socket.sendall(data)

    def get(self, target, host="interop.test", extra=""):
        """Sends a GET."""
        self.send(f"GET {target} HTTP/1.1\r\nHost: {host}\r\n{extra}\r\n".encode())

    def _more(self):
        data = self.socket.recv(1 << 20)
        if not data:
            raise EOFError(f"the connection ended after {self.held[:200]!r}")
        self.held += data

    def line(self):
        """Reads one line and returns it without CR LF."""
        while b"\r\n" not in self.held:
            self._more()
        line, self.held = self.held.split(b"\r\n", 1)
        return line

    def exactly(self, length, sink):
        """Reads exactly `length` bytes and passes them to `sink` in pieces."""
        while length:
            if not self.held:
                self._more()
            piece, self.held = self.held[:length], self.held[length:]
            length -= len(piece)
            sink(piece)

    def head(self):
        """Returns the version, status and fields of a response."""
        version, status = self.line().split(b" ", 2)[:2]
        fields = {}
        while line := self.line():
            name, value = line.decode("latin-1").split(":", 1)
            fields[name.lower()] = value.strip()
        return version.decode(), int(status), fields

    def read_response(self, *, method="GET", keep=1 << 20):
        """Reads one final response and skips interim ones. All bytes of the body are counted and
        hashed, and up to `keep` of them are returned."""
        version, status, fields = self.head()
        while 100 <= status < 200 and status != 101:
            version, status, fields = self.head()
        digest, pieces, length = hashlib.sha256(), [], 0

        def sink(piece):
            nonlocal length
            digest.update(piece)
            if length < keep:
                pieces.append(piece)
            length += len(piece)

        if method == "HEAD" or status in (101, 204, 304):
            pass
        elif "chunked" in fields.get("transfer-encoding", ""):
            self._chunks(sink)
        elif "content-length" in fields:
            self.exactly(int(fields["content-length"]), sink)
        else:
            self._until_close(sink)
        body = b"".join(pieces)[:keep]
        return Response(version, status, fields, length, digest.hexdigest(), body)

    def _chunks(self, sink):
        while size := int(self.line().split(b";")[0], 16):
            self.exactly(size, sink)
            if self.line():
                raise ValueError("bytes after the chunk's end")
        while self.line():
            pass

    def _until_close(self, sink):
        sink(self.held)
        self.held = b""
        while data := self.socket.recv(1 << 20):
            sink(data)

    def close(self):
        self.socket.close()


def get(address, target, *, host="interop.test", **how):
    """Makes one GET request on a new connection."""
    connection = Connection(address)
    try:
        connection.get(target, host, extra="Connection: close\r\n")
        return connection.read_response(**how)
    finally:
        connection.close()
