"""FastCGI programs that misbehave: each connection gets the records that a test chooses."""

import struct

from .server import Listener

BEGIN, ABORT, END, PARAMS, STDIN, STDOUT, STDERR = range(1, 8)


def record(kind, content=b"", *, request=1, padding=0):
    """Returns one record."""
    header = struct.pack(">BBHHBB", 1, kind, request, len(content), padding, 0)
    return header + content + b"\0" * padding


def end(status=0):
    """Returns END_REQUEST with this status of the protocol."""
    return record(END, struct.pack(">IB3x", 0, status))


def output(text, size=8000):
    """Returns the records of a whole response with this output."""
    pieces = [text[at : at + size] for at in range(0, len(text), size)]
    return b"".join(record(STDOUT, piece) for piece in pieces) + record(STDOUT) + end()


class Program(Listener):
    """A FastCGI server. `respond(environment, body, connection)` returns the records to send;
    `None` closes the connection."""

    def __init__(self, respond):
        self.respond, self.environments, self.bodies, self.connections = respond, [], [], 0
        super().__init__()

    def serve(self, connection):
        self.connections += 1
        held = b""
        params, body = b"", b""
        while True:
            while len(held) < 8:
                data = connection.recv(65536)
                if not data:
                    return
                held += data
            _, kind, _, length, padding, _ = struct.unpack(">BBHHBB", held[:8])
            while len(held) < 8 + length + padding:
                data = connection.recv(65536)
                if not data:
                    return
                held += data
            content, held = held[8 : 8 + length], held[8 + length + padding :]
            if kind == PARAMS:
                params += content
            elif kind == STDIN and content:
                body += content
            elif kind == STDIN:
                self.environments.append(parse(params))
                self.bodies.append(body)
                records = self.respond(self.environments[-1], body, connection)
                params, body = b"", b""
                if records is None:
                    return
                connection.sendall(records)


def parse(params):
    """Returns the environment in PARAMS."""
    found, at = {}, 0

    def length():
        nonlocal at
        first = params[at]
        if first < 128:
            at += 1
            return first
        at += 4
        return struct.unpack(">I", params[at - 4 : at])[0] & 0x7FFFFFFF

    while at < len(params):
        name, value = length(), length()
        found[params[at : at + name].decode()] = params[at + name : at + name + value].decode()
        at += name + value
    return found
