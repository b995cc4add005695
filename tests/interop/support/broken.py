"""Origins that end responses early, and clients that check the bytes that reached them.

`CutOrigin` serves bodies that end before their framing does. `EarlyTarget` responds before it has
read the request, and closes. A test expects only bytes that the proxy's kernel acknowledged before
the end."""

import array
import concurrent.futures
import dataclasses
import fcntl
import random
import re
import socket
import ssl
import struct
import termios
import threading
import time

from . import pattern
from .server import SECONDS_MAX, Listener

# Number of concurrent connections.
AT_ONCE = 16
# Bytes of each upload. The target reads only the first bytes.
UPLOADS = (2_000, 60_000, 400_000)
# A queue that has not changed for this long counts as stalled.
QUIET_SECONDS = 0.3
NOISE = next(pattern.blocks(pattern.BLOCK, seed=7))


def each(items, function):
    """Returns the results of `function` for each item. At most AT_ONCE calls run at a time."""
    with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
        return list(pool.map(function, items))


@dataclasses.dataclass
class Cut:
    """A body that its origin cuts. `framing` is length, chunked or close; `how` is fin or reset.
    The origin sends `sent` bytes after the header section. If `malformed` is true, an invalid chunk
    follows."""

    number: int
    framing: str
    how: str
    sent: int
    chunk: int
    stored: bool
    malformed: bool

    @staticmethod
    def drawn(number, draw):
        """Returns a random cut. `draw` is a `random.Random`."""
        framing = draw.choice(("length", "length", "chunked", "chunked", "close"))
        return Cut(
            number,
            framing,
            # A body until close ends with the stream, so only a reset can cut it.
            "reset" if framing == "close" else draw.choice(("fin", "reset")),
            draw.choice((draw.randrange(1, 300), draw.randrange(1, 9000), draw.randrange(120_000))),
            draw.choice((7, 1000, 16_384, 100_000)),
            draw.random() < 0.5,
            framing == "chunked" and draw.random() < 0.2,
        )

    @property
    def target(self):
        return f"/{self.number}"

    def header(self):
        length = {"length": "Content-Length: 1048576\r\n", "close": ""}
        framing = length.get(self.framing, "Transfer-Encoding: chunked\r\n")
        stored = "max-age=600" if self.stored else "no-store"
        return f"HTTP/1.1 200 OK\r\n{framing}Cache-Control: {stored}\r\n\r\n".encode()

    def coded(self):
        """Returns the bytes after the header section."""
        if self.framing != "chunked":
            return NOISE[: self.sent]
        # Only chunks of which at least one byte is sent.
        chunks = (NOISE[at : at + self.chunk] for at in range(0, self.sent, self.chunk))
        whole = b"".join(b"%x\r\n%s\r\n" % (len(data), data) for data in chunks)
        return whole + b"xyz\r\n" if self.malformed else whole[: self.sent]

    def payload(self, coded_bytes):
        """Returns the number of payload bytes in the first `coded_bytes` bytes of `coded`."""
        if self.framing != "chunked":
            return coded_bytes
        return len(payload_of(self.coded()[:coded_bytes])[0])


def payload_of(coded):
    """Decodes chunks that may be cut. Returns the payload, and whether the last chunk arrived."""
    payload, at = b"", 0
    while (end := coded.find(b"\r\n", at)) >= 0:
        if not re.fullmatch(rb"[0-9a-fA-F]+", coded[at:end]):
            break
        size = int(coded[at:end], 16)
        if size == 0:
            return payload, coded[end:].startswith(b"\r\n\r\n")
        payload += coded[end + 2 : end + 2 + size]
        at = end + 2 + size + 2
    return payload, False


def acknowledged(connection, sent):
    """Returns how many of `sent` bytes the peer's kernel has acknowledged, once the number no
    longer changes."""
    left = array.array("i", [0])
    before, since = -1, time.monotonic()
    while time.monotonic() - since < QUIET_SECONDS:
        fcntl.ioctl(connection, termios.TIOCOUTQ, left)
        if left[0] == 0:
            break
        if left[0] != before:
            before, since = left[0], time.monotonic()
        time.sleep(0.002)
    return sent - left[0]


def end(connection, how):
    """Closes a connection by FIN, or by RST if `how` is reset."""
    if how == "reset":
        linger = struct.pack("ii", 1, 0)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    connection.close()


EMPTY_RESPONSE = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


class CutOrigin(Listener):
    """An origin that serves each cut at its target, and an empty response at other targets."""

    def __init__(self, cuts):
        self.cuts = {cut.target: cut for cut in cuts}
        self._got = {cut.target: 0 for cut in cuts}
        self._over = {cut.target: threading.Event() for cut in cuts}
        super().__init__()

    def serve(self, connection):
        head = header_of(connection)
        cut = self.cuts.get(head.split(b" ")[1].decode())
        if not cut:
            return connection.sendall(EMPTY_RESPONSE)
        header, coded = cut.header(), cut.coded()
        connection.sendall(header + coded)
        taken = acknowledged(connection, len(header) + len(coded))
        end(connection, cut.how)
        got = len(header + coded) if cut.how == "fin" else taken
        self._got[cut.target] = cut.payload(max(0, got - len(header)))
        self._over[cut.target].set()

    def broken(self, cut):
        """Waits until the origin has ended this response. Returns the acknowledged payload
        bytes."""
        if not self._over[cut.target].wait(SECONDS_MAX):
            raise TimeoutError(f"{cut} was never requested")
        return self._got[cut.target]


def header_of(connection):
    """Reads and returns the bytes up to the empty line."""
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        byte = connection.recv(1)
        if not byte:
            raise ConnectionError(f"the stream ended in a header: {head!r}")
        head += byte
    return head


def all_of(connection):
    """Reads until the stream ends or fails. Returns the bytes, and "end" or the name of the
    error."""
    parts = []
    while True:
        try:
            data = connection.recv(1 << 16)
        except (ConnectionError, ssl.SSLError) as error:
            return b"".join(parts), type(error).__name__
        if not data:
            return b"".join(parts), "end"
        parts.append(data)


def fetch_cut(address, origin, cut, is_late, version="1.1", *, pause=0, may_reset=False):
    """Requests a cut body. Returns a message if the client received wrong bytes or a wrong end,
    otherwise None. If `is_late` is true, the client starts to read `pause` seconds after the origin
    ended the response. If `may_reset` is true, a reset is accepted too where the framing shows the
    cut."""
    with socket.create_connection(address, SECONDS_MAX) as client:
        line = f"GET {cut.target} HTTP/{version}\r\n"
        fields = f"Host: {address[0]}:{address[1]}\r\nConnection: close\r\n\r\n"
        client.sendall(f"{line}{fields}".encode())
        if is_late:
            origin.broken(cut)
            time.sleep(pause)
        got, how = all_of(client)
    expected = origin.broken(cut)
    header, _, body = got.partition(b"\r\n\r\n")
    is_chunked = b"chunked" in header.lower()
    has_length = b"content-length" in header.lower()
    payload, is_whole = payload_of(body) if is_chunked else (body, False)
    if not header.startswith(b"HTTP/1.1 200"):
        # The proxy delivered nothing of the response, so it may send an error response instead.
        is_fine = expected == 0 or (cut.malformed and header.startswith(b"HTTP/1.1 502"))
        return None if is_fine else f"{cut}: {header[:60]} {how} instead of {expected} bytes"
    if payload != NOISE[: len(payload)] or len(payload) < expected:
        return f"{cut}: {len(payload)} of {expected} bytes, {how}"
    if is_whole or (how == "end" and not is_chunked and not has_length):
        return f"{cut}: it looks whole, {how}"
    if how != "end" and (is_chunked or has_length) and not may_reset:
        return f"{cut}: {how}, though the framing shows the cut"
    return None


EARLY = b"HTTP/1.1 413 Content Too Large\r\nContent-Length: 4000\r\n\r\n" + b"early" * 800


class EarlyTarget(Listener):
    """A server that reads at most 1,000 bytes, responds, and closes with the rest unread. With a
    TLS context it does this inside TLS. If `upgrades` is true, it first switches protocols."""

    def __init__(self, upgrades=False, tls=None):
        self.upgrades, self.tls = upgrades, tls
        super().__init__()

    def serve(self, connection):
        # Bytes that the kernel holds back would be dropped by the reset of the close.
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self.upgrades:
            header_of(connection)
            connection.sendall(SWITCHED)
        if self.tls:
            # A client without a certificate gets an alert, which the handshake raises here.
            connection = self.tls.wrap_socket(connection, server_side=True)
        connection.recv(1000)
        connection.sendall(EARLY)
        connection.close()


SWITCHED = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: Upgrade\r\n\r\n"


def upload_early(address, opening, upload_bytes, tls=None, waits=False):
    """Opens a tunnel by the request `opening`, uploads, and reads. An empty `opening` means that
    the connection is a tunnel already. Returns the received bytes and how the stream ended. If
    `waits` is true, reading starts after the upload has ended or failed."""
    with socket.create_connection(address, SECONDS_MAX) as client:
        if opening:
            client.sendall(opening)
            header = header_of(client)
            if header.split(b" ")[1] not in (b"200", b"101"):
                raise ConnectionError(f"no tunnel: {header!r}")
        if tls:
            client = tls.wrap_socket(client, server_hostname="localhost")
        writer = threading.Thread(target=_write, args=(client, upload_bytes), daemon=True)
        writer.start()
        if waits or tls:
            # A TLS connection of OpenSSL must not be used by two threads at a time.
            writer.join(SECONDS_MAX)
        result = all_of(client)
        writer.join(SECONDS_MAX)
        client.close()
        return result


def _write(connection, upload_bytes):
    try:
        connection.sendall(NOISE[:upload_bytes])
    except OSError:
        pass


def lost_early(address, opening, count, tls=None):
    """Returns a message for each of `count` uploads that did not receive the early response."""

    def upload(number):
        size, waits = UPLOADS[number % len(UPLOADS)], number % 2 == 0
        got, how = upload_early(address, opening, size, tls, waits)
        return None if got == EARLY else f"{size}: {len(got)} bytes, {how}"

    return [lost for lost in each(range(count), upload) if lost]


def connect(target):
    """Returns the CONNECT request that opens a tunnel to a port."""
    return f"CONNECT 127.0.0.1:{target} HTTP/1.1\r\nHost: 127.0.0.1:{target}\r\n\r\n".encode()


UPGRADE = b"GET /up HTTP/1.1\r\nHost: a.test\r\nUpgrade: x\r\nConnection: Upgrade\r\n\r\n"


def draws(count, seed):
    """Returns `count` generators of random numbers, each with its own seed."""
    return [random.Random(f"{seed}.{number}") for number in range(count)]
