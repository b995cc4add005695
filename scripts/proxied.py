"""Transfers through a proxy: an origin and a client, which compare every byte."""

import copy
import random
import socket
import socketserver
import struct
import threading
import time

# The length is prime, so a part that is doubled or missing changes all bytes after it.
_NOISE = random.Random(6).randbytes(1_000_003) * 6
BYTES_MAX = 4 << 20
READ_BYTES = 1 << 16
PAUSES_MAX = 20
KINDS = ("length", "length", "chunked", "close", "upload", "upload chunked", "tunnel", "tunnel")
DOWNLOADS, UPLOADS = ("length", "chunked", "close"), ("upload", "upload chunked")


class Failed(Exception):
    """A transfer went wrong."""


class Cut(Exception):
    """This side reset its connection, as the transfer specifies."""


class Transfer:
    """A transfer that is determined by a seed and a number: `down` bytes from the origin, `up`
    bytes to it. The side `cut_by` resets its connection at `cut_at` bytes, and then sets
    `was_cut`."""

    def __init__(self, seed, number, kinds=KINDS):
        dice = random.Random(f"{seed} {number}")
        self.number, self.kind = number, dice.choice(kinds)
        self.down = _some_bytes(dice) if self.kind not in UPLOADS else 0
        self.up = _some_bytes(dice) if self.kind in (*UPLOADS, "tunnel") else 0
        self.piece_bytes = int(2 ** dice.uniform(4, 18))
        self.pause_seconds = dice.choice((0, 0, 0, dice.uniform(0.001, 0.03)))
        self.is_read_slowly = dice.random() < 0.5
        self.cut_by = dice.choice((None, None, None, None, None, None, "client", "origin"))
        self.cut_at = dice.randrange(max(self.down, self.up) + 1)
        self.was_cut = False

    def __str__(self):
        cut = f", cut by the {self.cut_by} at {self.cut_at}" if self.cut_by else ""
        return f"{self.number} ({self.kind}, {self.down} down, {self.up} up{cut})"

    def can_come_again(self):
        """Returns whether a client can repeat the transfer, because its origin does not cut it."""
        return self.kind in DOWNLOADS and self.cut_by != "origin"

    def again(self):
        """Returns the same transfer for a client that does not cut it."""
        again = copy.copy(self)
        again.cut_by, again.was_cut = None, False
        return again

    def noise(self, is_up, start, end):
        at = (2 * self.number + is_up) * 7919 % 1_000_003
        return memoryview(_NOISE)[at + start : at + end]

    def relayed(self, is_up, start, end):
        """Returns the bytes that the receiver must get: those that were sent."""
        return self.noise(is_up, start, end)

    def pieces(self, length):
        """Returns the ends of the parts in which `length` bytes are sent."""
        count_max = PAUSES_MAX if self.pause_seconds else 500
        return [*range(self.piece_bytes, length, self.piece_bytes)][:count_max] + [length]

    def cut(self, peer):
        """Resets the connection. Bytes that were sent before may be lost."""
        self.was_cut = True
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        # Wakes a thread that waits for this socket; close(2) alone does not.
        peer.shutdown(socket.SHUT_RD)
        peer.close()
        raise Cut


def _some_bytes(dice):
    return int(2 ** dice.uniform(0, 22)) if dice.random() < 0.9 else dice.randrange(BYTES_MAX)


class Wire:
    """One end of a connection that is used for transfers. `side` is client or origin."""

    def __init__(self, peer, side):
        self.peer, self.side, self.held = peer, side, b""

    def begin(self, transfer):
        self.transfer, self.read, self.pauses = transfer, 0, 0
        self.is_cutter = transfer.cut_by == self.side

    def send(self, is_chunked=False):
        """Sends this side's bytes."""
        transfer, sent = self.transfer, 0
        is_up = self.side == "client"
        for end in transfer.pieces(transfer.up if is_up else transfer.down):
            if is_chunked and end > sent:
                self.peer.sendall(b"%x\r\n" % (end - sent))
            if self.is_cutter and end > transfer.cut_at:
                self.peer.sendall(transfer.noise(is_up, sent, max(sent, transfer.cut_at)))
                transfer.cut(self.peer)
            self.peer.sendall(transfer.noise(is_up, sent, end))
            if is_chunked and end > sent:
                self.peer.sendall(b"\r\n")
            sent = end
            if transfer.pause_seconds and not transfer.is_read_slowly:
                time.sleep(transfer.pause_seconds)
        if is_chunked:
            self.peer.sendall(b"0\r\n\r\n")

    def receive(self):
        """Returns the next bytes, or b"" at the end."""
        transfer = getattr(self, "transfer", None)
        if transfer and transfer.is_read_slowly and self.pauses < PAUSES_MAX:
            self.pauses += 1
            time.sleep(transfer.pause_seconds)
        part, self.held = self.held or self.peer.recv(READ_BYTES), b""
        return part

    def line(self):
        line = b""
        while b"\n" not in line:
            part = self.receive()
            if not part:
                raise EOFError("no line, but the end")
            line += part
        line, _, self.held = line.partition(b"\n")
        return line.strip().decode()

    def head(self):
        lines = [self.line()]
        while lines[-1]:
            lines.append(self.line())
        return lines

    def compare(self, length=None):
        """Reads the other side's bytes: `length` of them, or all until the end."""
        transfer, is_up = self.transfer, self.side == "origin"
        end = None if length is None else self.read + length
        while self.read != end:
            part = self.receive()
            if not part:
                if length is None:
                    return
                raise EOFError(f"the end after {self.read} bytes")
            if end is not None:
                part, self.held = part[: end - self.read], part[end - self.read :]
            if part != transfer.relayed(is_up, self.read, self.read + len(part)):
                raise Failed(f"wrong bytes {self._wrong(is_up, part)}")
            self.read += len(part)
            if self.is_cutter and self.read > transfer.cut_at:
                transfer.cut(self.peer)

    def _wrong(self, is_up, part):
        """Returns the offset of the first wrong byte, and which other bytes arrived instead."""
        want = self.transfer.relayed(is_up, self.read, self.read + len(part))
        at = next(at for at, pair in enumerate(zip(part, want)) if pair[0] != pair[1])
        length = self.transfer.up if is_up else self.transfer.down
        all_of_it = bytes(self.transfer.relayed(is_up, 0, length))
        found = all_of_it.find(part[at : at + 24]) if at + 24 <= len(part) else -1
        instead = f", instead come those from {found} on" if found >= 0 else ""
        return f"from {self.read + at} on{instead}"

    def compare_chunks(self):
        while length := int(self.line().partition(";")[0], 16):
            self.compare(length)
            if self.line():
                raise Failed("no line end behind a chunk")
        if self.line():
            raise Failed("trailers that were not sent")

    def ended(self):
        """Checks at the end of the other side's bytes that all of them were received."""
        length = self.transfer.up if self.side == "origin" else self.transfer.down
        if self.read != length:
            raise Failed(f"{self.read} bytes look like all {length}")

    def exchange(self):
        """Sends and receives at once, and closes each direction when it is done, as in a tunnel."""
        broken = []
        sender = threading.Thread(target=self._send_and_close, args=(broken,))
        sender.start()
        try:
            self.compare()
        finally:
            sender.join()
        # The kernel reports a reset once. If the sender got it, the reader saw only an end.
        for error in broken:
            raise error
        self.ended()

    def _send_and_close(self, broken):
        try:
            self.send()
            self.peer.shutdown(socket.SHUT_WR)
        except (Cut, OSError) as error:
            broken.append(error)


class Origin(socketserver.ThreadingTCPServer):
    """An origin that performs the transfer that each request names."""

    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 128

    def __init__(self, address):
        super().__init__((address, 0), _Handler)
        self.transfers, self.wrong = {}, []
        threading.Thread(target=self.serve_forever, daemon=True).start()


class _Handler(socketserver.BaseRequestHandler):
    def handle(self):
        wire = Wire(self.request, "origin")
        try:
            while self.serve(wire):
                pass
        except (EOFError, OSError, Failed, Cut) as error:
            transfer = getattr(wire, "transfer", None)
            is_between = transfer is None
            if not is_between and (isinstance(error, Failed) or not transfer.was_cut):
                failure = f"{type(error).__name__} {error} after {wire.read} bytes"
                self.server.wrong.append(f"{transfer}: origin: {failure}")

    def serve(self, wire):
        wire.transfer = None
        method, number, *_ = wire.line().split()
        transfer = self.server.transfers[int(number.strip("/"))]
        wire.begin(transfer)
        if method == "TUNNEL":
            wire.exchange()
            return False
        fields = wire.head()
        if method == "POST":
            if any(field.lower().startswith("transfer-encoding:") for field in fields):
                wire.compare_chunks()
            else:
                wire.compare(transfer.up)
            wire.ended()
        framing = {"close": "Connection: close", "chunked": "Transfer-Encoding: chunked"}
        framing = framing.get(transfer.kind, f"Content-Length: {transfer.down}")
        # The proxy under test may have a cache, so the response may be stored.
        framing += "\r\nCache-Control: max-age=3600" if method == "GET" else ""
        self.request.sendall(f"HTTP/1.1 200 OK\r\n{framing}\r\n\r\n".encode())
        wire.send(transfer.kind == "chunked")
        return transfer.kind != "close"


class Client:
    """A client of the proxy with persistent connections. Used by one thread, which decides the
    namespace. With packet loss it `may_miss_cuts`: a RST behind lost bytes causes a challenge ACK
    (RFC 5961 section 3.2), which may be lost too."""

    def __init__(self, proxy, origin, hang_seconds, may_miss_cuts):
        self.proxy, self.origin, self.hang_seconds = proxy, origin, hang_seconds
        self.may_miss_cuts, self.wire = may_miss_cuts, None

    def play(self, transfer):
        """Performs a transfer. Raises Failed if it went wrong."""
        if self.wire is None:
            self.wire = Wire(socket.create_connection(self.proxy, self.hang_seconds), "client")
        wire = self.wire
        wire.begin(transfer)
        is_kept = False
        try:
            is_kept = self._exchange(wire, transfer)
        except Cut:
            pass
        except TimeoutError:
            if not (transfer.was_cut and self.may_miss_cuts):
                raise Failed(f"nothing for {self.hang_seconds} s after {wire.read} bytes") from None
        except (EOFError, OSError) as error:
            if not transfer.was_cut:
                raise Failed(f"{type(error).__name__} {error} after {wire.read} bytes") from None
        finally:
            if not is_kept:
                self.close()

    def close(self):
        if self.wire:
            self.wire.peer.close()
        self.wire = None

    def _exchange(self, wire, transfer):
        """Performs a transfer. Returns whether the connection can be reused."""
        peer, place = wire.peer, "%s:%d" % self.origin
        if transfer.kind == "tunnel":
            peer.sendall(f"CONNECT {place} HTTP/1.1\r\nHost: {place}\r\n\r\n".encode())
            self._expect_ok(wire.head())
            peer.sendall(f"TUNNEL {transfer.number}\r\n".encode())
            wire.exchange()
            return False
        self._send_request(wire, transfer, place)
        fields = [field.lower() for field in self._expect_ok(wire.head())]
        if "transfer-encoding: chunked" in fields:
            wire.compare_chunks()
        elif any(field.startswith("content-length:") for field in fields):
            wire.compare(transfer.down)
        else:
            wire.compare()
        wire.ended()
        return transfer.kind != "close" and "connection: close" not in fields

    def _send_request(self, wire, transfer, place):
        method = "POST" if transfer.kind in UPLOADS else "GET"
        is_chunked = transfer.kind == "upload chunked"
        framing = {"upload": f"Content-Length: {transfer.up}\r\n"}
        framing = framing.get(transfer.kind, "Transfer-Encoding: chunked\r\n" if is_chunked else "")
        line = f"{method} http://{place}/{transfer.number} HTTP/1.1\r\nHost: {place}\r\n"
        wire.peer.sendall(f"{line}{framing}\r\n".encode())
        if method == "POST":
            wire.send(is_chunked)

    def _expect_ok(self, lines):
        if " 200 " not in lines[0] + " ":
            raise EOFError(lines[0])
        return lines[1:]
