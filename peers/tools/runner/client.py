"""The clients: single requests by Python, and loads by pbload, pbtls-load and h2load."""
import hashlib
import http.client
import json
import re
import ssl
import subprocess
import threading

from runner.settings import BIN, CA, CERT, FILES, PORT, SERVER_NAME, TLS_PORT

LOAD_SECONDS_MAX = 40  # after which a load is killed, so that it does not keep the lock


class Failed(Exception):
    """A measurement did not succeed; another try may."""


class Wrong(Exception):
    """A peer did something wrong, and measuring it again would not make it right."""


def fetch(spec, base):
    """Makes one request. Returns the status, length, SHA-256 and header fields."""
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
    connection.request("GET", path, headers={"Host": host})
    response = connection.getresponse()
    body = response.read()
    connection.close()
    digest = hashlib.sha256(body).hexdigest()
    return response.status, len(body), digest, dict(response.getheaders())


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
    """Writes the static files, with the bodies that the origin sends."""
    for size in ("1k", "8k", "64k", "1m"):
        with open(f"{FILES}/c/{size}", "wb") as file:
            file.write(from_origin("/n/" + size))


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

    def phase(self, rate, seconds):
        """Makes requests for this long, at a rate or (0) in a closed loop. Returns the counts."""
        self.popen.stdin.write(f"{rate} {seconds}\n")
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
