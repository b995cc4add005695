"""The programs behind the peers: behind FastCGI an echo on libfcgi, and php-fpm with one script; and
the echo as a copy-free program on libiolite. Each peer has one of its own, so that idle connections
of another peer occupy none of its threads."""
import glob
import json
import os
import shutil
import socket
import struct
import time

from runner.client import from_origin
from runner.process import Process
from runner.settings import BIN, PROGRAMS, SCRIPTS, WORK

# The web server may open a connection for a client's next request before it has read the end of
# the response to the last one.
CONNECTIONS_EACH = 2
START_SECONDS_MAX = 20
PHP_CONF = """\
[global]
error_log = {folder}/php.log
daemonize = no
[www]
listen = {folder}/php.sock
listen.mode = 0666
listen.backlog = 1024
{user}pm = static
pm.max_children = {children}
pm.status_path = /status
pm.status_listen = {folder}/status.sock
"""
# Types and identifiers of FastCGI records.
BEGIN_REQUEST, END_REQUEST, PARAMS, STDIN, STDOUT = 1, 3, 4, 5, 6
RESPONDER = b"\0\1\0\0\0\0\0\0"


class Counting:
    """A program that counts its requests in a file."""

    def __init__(self, peer, kind, command, *more):
        folder = new_folder(peer, kind)
        self.address = folder + "/echo.sock"
        self.counts = folder + "/counts"
        words = [f"{BIN}/{command}", self.address, *more, self.counts]
        self.process = Process(f"{peer}-{kind}", words, core=1)

    def requests(self):
        """Returns how many requests it has served, and the sum of their targets' hashes."""
        with open(self.counts, "rb") as file:
            return struct.unpack("QQ", file.read())


class Echo(Counting):
    """A program on libfcgi with threads, each for one connection: tools/pbfcgi.c."""

    def __init__(self, peer, connections):
        super().__init__(peer, "echo", "pbfcgi", str(CONNECTIONS_EACH * connections))
        wait_for(self)


class CopyFree(Counting):
    """A program on libiolite with one thread: tools/pbprogram.c."""

    def __init__(self, peer, connections):
        super().__init__(peer, "copy-free", "pbprogram")
        wait_for(self, socket.SOCK_SEQPACKET)


class Php:
    """A php-fpm with a fixed number of processes, each for one connection."""

    def __init__(self, peer, connections):
        found = php_fpm()
        if not found:
            raise SystemExit("run-case: php-fpm is missing (expected: the Debian package php-fpm)")
        folder = new_folder(peer, "php")
        self.address, self.status = folder + "/php.sock", folder + "/status.sock"
        user = "user = www-data\ngroup = www-data\n" * (os.getuid() == 0)
        with open(folder + "/php-fpm.conf", "w") as file:
            file.write(PHP_CONF.format(folder=folder, user=user,
                                       children=CONNECTIONS_EACH * connections))
        self.process = Process(f"{peer}-php", [found, "-n", "-d", "zend_extension=opcache", "-y",
                                               folder + "/php-fpm.conf"], core=1)
        wait_for(self)

    def requests(self):
        """Returns how many requests it has served, and None, as it has no hashes."""
        last = None
        # A process changes its state and the count one after the other.
        while (found := self.count()) != last:
            last = found
            time.sleep(0.02)
        return found, None

    def count(self):
        """Returns the requests. php-fpm counts one of a persistent connection when it begins to
        wait for it."""
        found = json.loads(request(self.status, "/status", "full&json"))
        waiting = sum(each["state"] == "Reading headers" for each in found["processes"])
        return found["accepted conn"] - waiting


KINDS = {"echo": Echo, "php": Php, "copy-free": CopyFree}


def php_fpm():
    """Returns the path of php-fpm, whose name has a version in Debian, or None."""
    found = sorted(glob.glob("/usr/sbin/php-fpm[0-9]*"))
    return found[-1] if found else shutil.which("php-fpm")


def write_script():
    """Writes the PHP script, which prints the first 1024 bytes of the origin's stream."""
    os.makedirs(SCRIPTS, exist_ok=True)
    text = "".join(f"\\x{byte:02x}" for byte in from_origin("/n/1k"))
    with open(SCRIPTS + "/1k.php", "w") as file:
        file.write("<?php\nheader('Content-Type: application/octet-stream');\n"
                   "header('Content-Length: 1024');\nheader('Cache-Control: no-store');\n"
                   f"header_remove('X-Powered-By');\necho \"{text}\";\n")


def new_folder(peer, kind):
    """Returns an empty folder for the sockets, which every user can reach."""
    folder = f"{PROGRAMS}/{peer}-{kind}"
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder)
    return folder


def wait_for(program, kind=socket.SOCK_STREAM):
    """Waits until a program listens on its socket."""
    end = time.monotonic() + START_SECONDS_MAX
    while time.monotonic() < end:
        with socket.socket(socket.AF_UNIX, kind) as probe:
            if probe.connect_ex(program.address) == 0:
                return
        time.sleep(0.05)
    raise SystemExit(f"run-case: {program.process.name} does not start; see "
                     f"{WORK}/{program.process.name}.log")


def record(kind, content):
    """Returns a FastCGI record of request 1."""
    return struct.pack(">BBHHBx", 1, kind, 1, len(content), 0) + content


def request(address, path, query):
    """Makes a GET request by FastCGI over a new connection. Returns the body."""
    words = {"SCRIPT_NAME": path, "SCRIPT_FILENAME": path, "QUERY_STRING": query,
             "REQUEST_METHOD": "GET", "REQUEST_URI": f"{path}?{query}"}
    pairs = b"".join(bytes((len(name), len(value))) + name.encode() + value.encode()
                     for name, value in words.items())
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(10)
        connection.connect(address)
        connection.sendall(record(BEGIN_REQUEST, RESPONDER) + record(PARAMS, pairs)
                           + record(PARAMS, b"") + record(STDIN, b""))
        with connection.makefile("rb") as file:
            return read_body(file)


def read_body(file):
    """Reads records until the end of the request. Returns the body of the response."""
    found = b""
    while True:
        _, kind, _, length, padding = struct.unpack(">BBHHBx", file.read(8))
        content = file.read(length + padding)[:length]
        if kind == STDOUT:
            found += content
        elif kind == END_REQUEST:
            return found.partition(b"\r\n\r\n")[2]
