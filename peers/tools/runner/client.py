"""The clients: single requests by Python, and loads by pbload, wrk and h2load."""
import hashlib
import http.client
import json
import re
import ssl
import subprocess
import threading

from runner.settings import BIN, PORT

LOAD_SECONDS_MAX = 40  # after which a load is killed, so that it does not keep the lock


class Failed(Exception):
    """A measurement did not succeed; another try may."""


class Wrong(Exception):
    """A peer did something wrong, and measuring it again would not make it right."""


def fetch(spec, base):
    """Makes one request. Returns the status, length, SHA-256 and header fields."""
    port = base + spec.offset
    if spec.tls:
        connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=20,
                                                 context=ssl._create_unverified_context())
    else:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    path = f"http://{spec.absolute}{spec.path}" if spec.absolute else spec.path
    if spec.tunnel:
        host, origin_port = spec.tunnel.split(":")
        connection.set_tunnel(host, int(origin_port))
    host = spec.absolute or spec.tunnel or "bench.test"
    connection.request("GET", path, headers={"Host": host})
    response = connection.getresponse()
    body = response.read()
    connection.close()
    digest = hashlib.sha256(body).hexdigest()
    return response.status, len(body), digest, dict(response.getheaders())


def from_origin(path, timeout=20):
    """Returns the body that the origin sends for a path."""
    connection = http.client.HTTPConnection("127.0.0.1", PORT, timeout=timeout)
    connection.request("GET", path)
    body = connection.getresponse().read()
    connection.close()
    return body


def origin_requests():
    """Returns how many requests the origin has served, and the sum of their targets' hashes."""
    count, hashes = from_origin("/stat", 5).split()
    return int(count), int(hashes)


def load_command(spec, base, *more):
    """Returns the command line of pbload for a case."""
    command = [BIN + "/pbload", "-p", str(base + spec.offset), "-u", spec.path, *spec.flags, *more]
    if not spec.has_mixed_sizes:
        command += ["-n", str(spec.length())]
    if spec.closes:
        command += ["-k"]
    if spec.absolute:
        command += ["-x", spec.absolute]
    if spec.tunnel:
        command += ["-T", spec.tunnel]
    return command


def tls_command(spec, base, options):
    """Returns the command line of wrk or h2load for a case over TLS, and its requests (h2load)."""
    url = f"https://127.0.0.1:{base + spec.offset}{spec.path}"
    if spec.tls == "hs":
        seconds = max(1, int(options.secs + 0.5))
        return ["wrk", "-t1", f"-c{min(options.conns, 32)}", f"-d{seconds}s", "-H",
                "Connection: close", url], 0
    count = int(20000 * options.secs)
    version = ["--h1"] if spec.tls == "h1" else []
    return ["h2load", "-n", str(count), "-c", str(options.conns), "-m", "1", "-t", "1", *version,
            url], count


def tls_row(spec, output, count):
    """Returns what wrk or h2load printed as the start of a result line, or None if it failed."""
    row = {"errors": 0, "bytes": 0, "p50_us": 0, "p99_us": 0}
    if spec.tls == "hs":
        done = re.search(r"(\d+) requests in ([\d.]+)s", output)
        if not done or re.search(r"Non-2xx|Socket errors: connect [1-9]", output):
            return None
        requests, seconds = int(done[1]), float(done[2])
        return row | {"requests": requests, "seconds": seconds, "rps": requests / seconds}
    done = re.search(r"finished in ([\d.]+)(m?s), ([\d.]+) req/s", output)
    succeeded = re.search(r"(\d+) succeeded", output)
    if not done or int(succeeded[1]) != count:
        return None
    row["requests"] = count
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
    """A pbload that holds its connections and makes requests in phases.

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
