"""Responses with faults, an origin that sends them, and a client that checks the response of a
proxy. `peers/behaviour` uses them with other proxies too."""

import collections
import re
import socket

from .server import Listener

TIMEOUT_SECONDS = 30

# If `passes` is true, the client receives the response in the strict form. Otherwise it receives
# 502, or, if the fault is in the body, a response that is visibly cut. `method` is that of the
# request.
Case = collections.namedtuple("Case", "name section response passes method", defaults=("GET",))

BODY = b"ok"


def _response(*fields, status="200 OK", end="\r\n", body=BODY, before=""):
    lines = [f"HTTP/1.1 {status}", *fields, ""]
    return (before + "".join(line + end for line in lines)).encode() + body


def _bare(*fields, **how):
    return _response(*fields, end="\n", **how)


LENGTH = "Content-Length: 2"
CHUNKED = "Transfer-Encoding: chunked"
CHUNKS = b"2\r\nok\r\n0\r\n\r\n"

CASES = [
    Case("each line ends in LF", "RFC 9112 section 2.2", _bare("X-A: 1", LENGTH), True),
    Case("the same, with chunks", "RFC 9112 section 2.2", _bare(CHUNKED, body=CHUNKS), True),
    Case("the same, until close", "RFC 9112 section 2.2", _bare("X-A: 1"), True),
    Case("the same, to HEAD", "RFC 9112 section 2.2", _bare(LENGTH, body=b""), True, "HEAD"),
    Case("the same, status 204", "RFC 9112 section 2.2",
         _bare("X-A: 1", status="204 No Content", body=b""), True),
    Case("the same, status 304", "RFC 9112 section 2.2",
         _bare('ETag: "a"', status="304 Not Modified", body=b""), True),
    Case("CR LF, but LF after the status line", "RFC 9112 section 2.2",
         b"HTTP/1.1 200 OK\nX-A: 1\r\nContent-Length: 2\r\n\r\nok", False),
    Case("CR LF, but LF after a field line", "RFC 9112 section 2.2",
         b"HTTP/1.1 200 OK\r\nX-A: 1\nContent-Length: 2\r\n\r\nok", False),
    Case("CR LF, but LF as the empty line", "RFC 9112 section 2.2",
         b"HTTP/1.1 200 OK\r\nX-A: 1\r\nContent-Length: 2\r\n\nok", False),
    Case("LF, but CR LF as the empty line", "RFC 9112 section 2.2",
         b"HTTP/1.1 200 OK\nX-A: 1\nContent-Length: 2\n\r\nok", False),
    Case("CR LF, and a response injected in LF", "RFC 9112 section 2.2",
         b"HTTP/1.1 200 OK\r\nX-A: 1\n\nHTTP/1.1 200 OK\nContent-Length: 2\n\nok", False),
    Case("each line ends in CR", "RFC 9112 section 2.2",
         b"HTTP/1.1 200 OK\rX-A: 1\rContent-Length: 2\r\rok", False),
    Case("CR inside a value", "RFC 9112 section 2.2",
         _response("X-A: 1\rX-B: 2", LENGTH), False),
    Case("103 in CR LF, then 200 in LF", "RFC 9112 section 2.2",
         _bare(LENGTH, before="HTTP/1.1 103 Early Hints\r\nX-A: 1\r\n\r\n"), True),
    Case("103 in LF, then 200 in CR LF", "RFC 9112 section 2.2",
         _response(LENGTH, before="HTTP/1.1 103 Early Hints\nX-A: 1\n\n"), True),
    Case("chunks whose lines end in LF", "RFC 9112 section 7.1",
         _response(CHUNKED, body=b"2\nok\n0\n\n"), False),
    Case("trailers that end in LF", "RFC 9112 section 7.1.2",
         _response(CHUNKED, body=b"2\r\nok\r\n0\r\nX-T: 1\n\n"), False),
    Case("a space before a colon", "RFC 9112 section 5.1", _response("X-A : 1", LENGTH), True),
    Case("a tab before a colon", "RFC 9112 section 5.1", _response("X-A\t: 1", LENGTH), True),
    Case("the same in LF, to HEAD", "RFC 9112 section 5.1",
         _bare("X-A : 1", LENGTH, body=b""), True, "HEAD"),
    Case("a space before the colon of Content-Length", "RFC 9112 section 5.1",
         _response("Content-Length : 2"), False),
    Case("a space before the colon of Transfer-Encoding", "RFC 9112 section 5.1",
         _response("Transfer-Encoding : chunked", body=CHUNKS), False),
    Case("a space before the colon of Connection", "RFC 9112 section 5.1",
         _response("Connection : close", LENGTH), False),
    Case("a space before the colon of a trailer", "RFC 9112 section 5.1",
         _response(CHUNKED, body=b"2\r\nok\r\n0\r\nX-T : 1\r\n\r\n"), False),
    Case("a space inside a name", "RFC 9112 section 5.1", _response("X A: 1", LENGTH), False),
    Case("a value folded by a space", "RFC 9112 section 5.2",
         _response("X-A: 1\r\n 2", LENGTH), True),
    Case("a value folded by a tab, twice", "RFC 9112 section 5.2",
         _response("X-A: 1\r\n\t2\r\n\t3", LENGTH), True),
    Case("a value that begins in a fold", "RFC 9112 section 5.2",
         _response("X-A:\r\n 1", LENGTH), True),
    Case("a folded value, status 304", "RFC 9112 section 5.2",
         _response("X-A: 1\r\n 2", status="304 Not Modified", body=b""), True),
    Case("a fold without text", "RFC 9112 section 5.2",
         _response("X-A: 1\r\n ", LENGTH), False),
    Case("a fold before the first field", "RFC 9112 section 2.2",
         _response(" X-A: 1", LENGTH), False),
    Case("a folded Content-Length", "RFC 9112 section 5.2",
         _response("Content-Length:\r\n 2"), False),
    Case("a folded Transfer-Encoding", "RFC 9112 section 5.2",
         _response("Transfer-Encoding:\r\n chunked", body=CHUNKS), False),
    Case("a folded Connection", "RFC 9112 section 5.2",
         _response("Connection: x,\r\n close", LENGTH), False),
    Case("Content-Length twice, equal", "RFC 9112 section 6.3", _response(LENGTH, LENGTH), True),
    Case("the same, to HEAD", "RFC 9112 section 6.3",
         _response(LENGTH, LENGTH, body=b""), True, "HEAD"),
    Case("a list of equal Content-Lengths", "RFC 9112 section 6.3",
         _response("Content-Length: 2, 2"), True),
    Case("Content-Length twice, different", "RFC 9112 section 6.3",
         _response(LENGTH, "Content-Length: 3"), False),
    Case("a list of different Content-Lengths", "RFC 9112 section 6.3",
         _response("Content-Length: 2, 3"), False),
    Case("a list of 2 and 02", "RFC 9112 section 6.3", _response("Content-Length: 2, 02"), False),
    Case("Content-Length and Transfer-Encoding", "RFC 9112 section 6.3",
         _response(LENGTH, CHUNKED, body=CHUNKS), False),
    Case("250 fields", "RFC 9110 section 5.4",
         _response(*(f"X-{number}: 1" for number in range(249)), LENGTH), True),
    Case("1,000 fields", "RFC 9110 section 5.4",
         _response(*(f"X-{number}: 1" for number in range(999)), LENGTH), True),
    Case("1,001 fields", "RFC 9110 section 5.4",
         _response(*(f"X-{number}: 1" for number in range(1000)), LENGTH), False),
    Case("a status line without reason and space", "RFC 9112 section 4",
         b"HTTP/1.1 200\r\nContent-Length: 2\r\n\r\nok", True),
    Case("no colon in a field line", "RFC 9112 section 5", _response("X-A", LENGTH), False),
    Case("NUL in a value", "RFC 9110 section 5.5", _response("X-A: 1\0", LENGTH), False),
]

# Targets of a client, and the targets that the origin then receives from millrace.
TARGETS = [
    (b"/\xc3\xbc", b"/%C3%BC"),
    (b"/\xfc?a=\xff", b"/%FC?a=%FF"),
]


class Origin(Listener):
    """Sends response N to a request whose target begins with /N, then closes. The default responses
    are those of `CASES`. `targets` lists the received targets."""

    def __init__(self, responses=None):
        self.responses = responses or [case.response for case in CASES]
        self.targets = []
        super().__init__()

    def serve(self, connection):
        request = b""
        while b"\r\n\r\n" not in request:
            data = connection.recv(65536)
            if not data:
                return
            request += data
        target = request.split(b" ")[1]
        self.targets.append(target)
        number = re.match(rb"/(\d+)", target)
        connection.sendall(self.responses[int(number[1])] if number else _response(LENGTH))
        connection.shutdown(socket.SHUT_WR)
        while connection.recv(65536):
            pass


class Received:
    """The result of one request at the client. `status`: that of the final response; None if there
    is none. `is_whole`, `is_other`: whether the body is complete, or another one. `is_strict`:
    whether all headers are in the strict form."""

    def __init__(self, data, method):
        self.status, self.fields, self.is_strict, self.is_whole = None, [], True, False
        self.is_other = False
        self.body = data
        while match := re.match(rb"HTTP/1\.[01] (\d{3})[^\r\n]*\r?\n", self.body):
            end = re.search(rb"\r?\n\r?\n", self.body)
            if not end:
                return
            header, self.body = self.body[: end.end()], self.body[end.end() :]
            self.status = int(match[1])
            line = rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+:[ \t]*[^\x00-\x08\x0a-\x1f\x7f]*\r\n"
            strict = rb"HTTP/1\.[01] \d{3} [^\x00-\x08\x0a-\x1f\x7f]*\r\n(" + line + rb")*\r\n"
            self.is_strict &= bool(re.fullmatch(strict, header))
            lines = header.replace(b"\r\n", b"\n").split(b"\n")[1:-2]
            self.fields = [tuple(map(bytes.strip, line.partition(b":")[::2])) for line in lines]
            if self.status >= 200:
                break
        if self.status is None:
            return
        lengths = self.values(b"content-length")
        self.is_strict &= len(lengths) <= 1 and (not lengths or lengths[0].isdigit())
        if method == "HEAD" or self.status in (204, 304):
            self.is_whole = not self.body
        elif b"chunked" in b",".join(self.values(b"transfer-encoding")).lower():
            content, is_whole = unchunked(self.body)
            self.is_whole = is_whole and content == BODY
            self.is_other = not BODY.startswith(content)
        else:
            of_length = lengths and lengths[0].isdigit() and int(lengths[0]) == len(self.body)
            self.is_whole = self.body == BODY and (bool(of_length) or not lengths)
            self.is_other = not BODY.startswith(self.body)

    def values(self, name):
        return [value for field, value in self.fields if field.lower() == name]


def unchunked(data):
    """Returns the content of chunks, and whether the chunks and trailers are complete and in the
    strict form."""
    content = b""
    while match := re.match(rb"([0-9A-Fa-f]+)\r\n", data):
        size, data = int(match[1], 16), data[match.end() :]
        if size == 0:
            trailers = rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+:[^\x00-\x08\x0a-\x1f\x7f]*\r\n)*\r\n"
            return content, bool(re.fullmatch(trailers, data))
        content += data[:size]
        if data[size : size + 2] != b"\r\n":
            break
        data = data[size + 2 :]
    return content, False


def fetch(address, target, *, method="GET", host="interop.test"):
    """Makes one request on a connection of its own and returns the result."""
    with socket.create_connection(address, TIMEOUT_SECONDS) as connection:
        head = f" HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode()
        connection.sendall(method.encode() + b" " + target + head)
        data = b""
        try:
            while piece := connection.recv(65536):
                data += piece
        except OSError:
            pass
    return Received(data, method)


def outcome(received, case):
    """Returns in one or two words how a proxy handled a case."""
    expected = int(re.findall(rb"HTTP/1.1 (\d{3})", case.response)[-1])
    if received.status is None:
        return "closed"
    if received.status != expected:
        return str(received.status)
    if not received.is_whole:
        return "other body" if received.is_other else "cut"
    return "passed" if received.is_strict else "not strict"
