"""The clients: single requests by Python, and loads by pbload, pbtls-load and h2load."""
import gzip
import hashlib
import http.client
import json
import os
import random
import re
import ssl
import subprocess
import threading

from runner.cases import TEXTS
from runner.settings import BIN, CA, CERT, FILES, PORT, SERVER_NAME, SIZES, TLS_PORT

LOAD_SECONDS_MAX = 40  # after which a load is killed, so that it does not keep the lock


class Failed(Exception):
    """A measurement did not succeed; another try may."""


class Wrong(Exception):
    """A peer did something wrong, and measuring it again would not make it right."""


def fetch(spec, base):
    """Makes one request. Returns the status, length, SHA-256 and header fields."""
    status, body, headers = fetch_body(spec, base)
    return status, len(body), hashlib.sha256(body).hexdigest(), headers


def fetch_body(spec, base):
    """Makes one request. Returns the status, body and header fields."""
    port = base + spec.offset
    if spec.tls:
        connection = secure_connection(port, 20)
    else:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    path = f"http://{spec.absolute}{spec.path}" if spec.absolute else spec.path
    if spec.tunnel:
        host, origin_port = spec.tunnel.split(":")
        connection.set_tunnel(host, int(origin_port))
    host = spec.absolute or spec.tunnel or SERVER_NAME
    more = dict(field.split(": ", 1) for field in spec.fields)
    connection.request("GET", path, headers={"Host": host} | more)
    response = connection.getresponse()
    body = response.read()
    connection.close()
    return response.status, body, dict(response.getheaders())


class NamedConnection(http.client.HTTPSConnection):
    """A connection to 127.0.0.1 that names the server as the load does."""

    def connect(self):
        http.client.HTTPConnection.connect(self)
        self.sock = self._context.wrap_socket(self.sock, server_hostname=SERVER_NAME)


def secure_connection(port, timeout):
    """Returns a connection over TLS that verifies the certificate."""
    return NamedConnection("127.0.0.1", port, timeout=timeout,
                           context=ssl.create_default_context(cafile=CA))


def from_origin(path, timeout=20, tls=False):
    """Returns the body that the origin sends for a path, over TLS the other origin."""
    if tls:
        connection = secure_connection(TLS_PORT, timeout)
    else:
        connection = http.client.HTTPConnection("127.0.0.1", PORT, timeout=timeout)
    connection.request("GET", path)
    body = connection.getresponse().read()
    connection.close()
    return body


def write_files():
    """Writes the static files, with the bodies that the origin sends, and texts."""
    for size, count in SIZES.items():
        if count <= SIZES["1m"]:
            write_file(f"{FILES}/c/{size}", from_origin("/n/" + size))
    for size in ("1k", "8k", "64k", "1m"):
        body = text(SIZES[size])
        for folder in TEXTS.values():
            write_file(f"{FILES}/{folder}/{size}.txt", body)
        packed = gzip.compress(body, 6, mtime=0)
        write_file(f"{FILES}/{TEXTS['precompressed-text']}/{size}.txt.gz", packed)


def write_file(path, body):
    """Writes a file, unless it has this content: servers distrust files that just changed."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    if os.path.exists(path):
        with open(path, "rb") as file:
            if file.read() == body:
                return
    with open(path, "wb") as file:
        file.write(body)


def text(count):
    """Returns this many bytes of made-up text, which gzip makes about three times shorter."""
    draw = random.Random(1)
    words = ["".join(draw.choices("abcdefghijklmnopqrstuvwxyz", k=draw.randint(2, 9)))
             for _ in range(3000)]
    lines, have = [], 0
    while have < count:
        line = " ".join(words[int(len(words) * draw.random() ** 3)] for _ in range(12)) + ".\n"
        lines.append(line)
        have += len(line)
    return "".join(lines)[:count].encode()


def origin_requests(tls=False):
    """Returns how many requests the origin has served, and the sum of their targets' hashes."""
    count, hashes = from_origin("/stat", 5, tls).split()
    return int(count), int(hashes)


def load_command(spec, base, *more):
    """Returns the command line of pbload or pbtls-load for a case."""
    tool = [BIN + "/pbtls-load", "-a", CERT] if spec.tls else [BIN + "/pbload"]
    command = [*tool, "-p", str(base + spec.offset), "-u", spec.path, *spec.flags, *more]
    if not spec.has_mixed_sizes:
        command += ["-n", str(spec.length())]
    for each in spec.fields:
        command += ["-H", each]
    if spec.closes:
        command += ["-k"]
    if spec.absolute:
        command += ["-x", spec.absolute]
    if spec.tunnel:
        command += ["-T", spec.tunnel]
    return command


def h2_command(spec, base, options):
    """Returns the command line of h2load for a case over HTTP/2, and its requests."""
    url = f"https://127.0.0.1:{base + spec.offset}{spec.path}"
    count = int(20000 * options.secs)
    return ["h2load", "-n", str(count), "-c", str(options.conns), "-m", "1", "-t", "1", url], count


def h2_row(output, count):
    """Returns what h2load printed as the start of a result line, or None if it failed."""
    row = {"errors": 0, "bytes": 0, "p50_us": 0, "p99_us": 0, "total": count}
    done = re.search(r"finished in ([\d.]+)(m?s), ([\d.]+) req/s", output)
    succeeded = re.search(r"(\d+) succeeded", output)
    if not done or int(succeeded[1]) != count:
        return None
    row["seconds"] = float(done[1]) / (1000 if done[2] == "ms" else 1)
    row["rps"] = float(done[3])
    for key, label in (("proto", "Application protocol"), ("cipher", "Cipher")):
        found = re.search(label + r": (\S+)", output)
        row[key] = found and found[1]
    return row


def start_load(command):
    """Starts a load in a session of its own, as the peers are started.

    The scheduler divides a core among sessions. In the session of its caller, the load would get
    more time than the peer. It would then send all its requests before it gets a response, and a
    proxy that handles them together takes half as much CPU time.
    """
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, bufsize=1,
                            start_new_session=True)


class Load:
    """A pbload or pbtls-load that holds its connections and makes requests in phases.

    It prints a line with "warm" to standard error when it is ready for a phase, reads the rate and
    the seconds from standard input, and prints a JSON object after the phase.
    """

    def __init__(self, command, seconds_max=LOAD_SECONDS_MAX):
        self.popen = start_load(command)
        self.guard = threading.Timer(seconds_max, self.popen.kill)
        self.guard.start()

    def wait_ready(self):
        line = self.popen.stderr.readline()
        if "warm" not in line:
            raise Failed(f"{line} {self.popen.stderr.read()}")

    def phase(self, rate, seconds, requests=0):
        """Makes requests for this long, at a rate or (0) in a closed loop, and at most this many
        (0: any number, the only one that pbtls-load takes). Returns the counts."""
        limits = f" 0 0 0 {requests}" * (requests > 0)
        self.popen.stdin.write(f"{rate} {seconds}{limits}\n")
        self.popen.stdin.flush()
        return json.loads(self.popen.stdout.readline())

    def finish(self):
        """Ends the input of the load, which ends it."""
        self.guard.cancel()
        self.popen.stdin.close()
        self.popen.wait()

    def kill(self):
        """Ends the load in any case. Has no effect after `finish`."""
        self.guard.cancel()
        if self.popen.poll() is None:
            self.popen.kill()
            self.popen.wait()
