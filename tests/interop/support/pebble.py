"""Pebble, the ACME authority for tests, with a DNS server that resolves every name to 127.0.0.1."""

import atexit
import fcntl
import json
import os
import pathlib
import re
import shutil
import socket
import ssl
import struct
import subprocess
import tempfile
import threading
import time
import unittest
import urllib.request

from . import PROJECT, tls
from .ports import free_port
from .server import Listener

# The version, and the checksum database of Go, decide what is built.
VERSION = "v2.10.1"
GO_LEAST = (1, 24)
MODULE = f"github.com/letsencrypt/pebble/v2/cmd/pebble@{VERSION}"


def program():
    """Returns the path of pebble, which is built from its Go module on first use."""
    target = pathlib.Path(os.environ.get("CARGO_TARGET_DIR") or PROJECT / "target")
    folder = target / f"pebble-{VERSION}"
    path = folder / "pebble"
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.exists():
            go = shutil.which("go")
            if not go:
                raise FileNotFoundError("go is missing: run scripts/setup test")
            version = subprocess.check_output([go, "env", "GOVERSION"], text=True).strip()
            if tuple(map(int, re.findall(r"\d+", version)[:2])) < GO_LEAST:
                raise unittest.SkipTest(f"pebble needs Go 1.24, and {version} is installed")
            environment = dict(os.environ, GOBIN=str(folder), CGO_ENABLED="0")
            subprocess.run([go, "install", MODULE], env=environment, check=True)
    return path


def directory_certificate(lock=threading.Lock(), made=[]):
    """Returns the files (authority, certificate, key) of all directories: openssl takes longer than
    pebble to start."""
    with lock:
        if not made:
            folder = pathlib.Path(tempfile.mkdtemp(prefix="millrace-pebble-"))
            atexit.register(shutil.rmtree, folder)
            folder.chmod(0o755)
            authority = tls.Authority(folder, "directory")
            made.extend((authority.path, *authority.issue("IP:127.0.0.1", "DNS:localhost")))
    return made


class NameServer(Listener):
    """Responds to each query for an IPv4 address with 127.0.0.1, and others with nothing. Pebble sends
    its queries over TCP."""

    def serve(self, client):
        with client.makefile("rb") as queries:
            while len(length := queries.read(2)) == 2:
                query = queries.read(int.from_bytes(length, "big"))
                end = query.index(b"\0", 12) + 5
                question = query[12:end]
                is_address = question[-4:] == b"\0\1\0\1"
                answer = b"\xc0\x0c\0\1\0\1\0\0\0\0\0\4\x7f\0\0\1" if is_address else b""
                head = query[:2] + struct.pack(">5H", 0x8580, 1, int(is_address), 0, 0)
                message = head + question + answer
                client.sendall(len(message).to_bytes(2, "big") + message)


class Pebble:
    """An authority that validates names at two ports of 127.0.0.1. It can be killed and started
    again at the same addresses; it then knows no account and no order."""

    def __init__(self, folder, *, validity=7_776_000, bad_nonces=0, external=None):
        self.folder = folder / "pebble"
        self.folder.mkdir()
        self.ca, certificate, key = directory_certificate()
        self.names = NameServer()
        self.tls_port, self.http_port = free_port(), free_port()
        self.port, management = free_port(), free_port()
        self.directory = f"https://127.0.0.1:{self.port}/dir"
        self.management = f"https://127.0.0.1:{management}"
        self.context = ssl.create_default_context(cafile=self.ca)
        self.external, self.log, self.process = external, self.folder / "log", None
        settings = {
            "listenAddress": f"127.0.0.1:{self.port}",
            "managementListenAddress": f"127.0.0.1:{management}",
            "certificate": str(certificate),
            "privateKey": str(key),
            "httpPort": self.http_port,
            "tlsPort": self.tls_port,
            "externalAccountBindingRequired": bool(external),
            "externalAccountMACKeys": dict([external] if external else []),
            "retryAfter": {"authz": 0, "order": 0},
            "keyAlgorithm": "ecdsa",
            "profiles": {
                "default": {"description": "default", "validityPeriod": validity},
                "short": {"description": "short", "validityPeriod": 3600},
            },
        }
        self.config = self.folder / "pebble.json"
        self.config.write_text(json.dumps({"pebble": settings}))
        self.bad_nonces = bad_nonces
        # A relay may start pebble again while a test ends.
        self._lock, self._has_ended = threading.Lock(), False
        self.start()

    def options(self):
        """Returns the options of millrace for this authority."""
        return ["--acme-directory", self.directory, "--acme-ca", self.ca]

    def start(self):
        """Starts pebble and waits until it serves the directory, unless the test has ended."""
        environment = dict(
            os.environ, PEBBLE_VA_NOSLEEP="1", PEBBLE_WFE_NONCEREJECT=str(self.bad_nonces),
            PEBBLE_AUTHZREUSE="0",
        )
        command = [program(), "-config", self.config, "-dnsserver", "%s:%d" % self.names.address]
        with self._lock, open(self.log, "ab") as log:
            if self._has_ended:
                return None
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment
            )
        end = time.monotonic() + 60
        while True:
            try:
                return self.get(self.directory)
            except OSError:
                if self._has_ended:
                    return None
                if time.monotonic() > end or self.process.poll() is not None:
                    self.stop()
                    raise RuntimeError(f"pebble does not start: {self.text()[-500:]}")
                time.sleep(0.02)

    def kill(self):
        """Kills pebble."""
        self.process.kill()
        self.process.wait()

    def stop(self):
        """Kills pebble, which cannot be started again."""
        with self._lock:
            self._has_ended = True
        self.kill()
        self.names.stop()

    def get(self, url):
        with urllib.request.urlopen(url, timeout=10, context=self.context) as response:
            return response.read()

    def root(self):
        """Returns the root of the issued certificates, as PEM. Each start creates another one."""
        return self.get(f"{self.management}/roots/0").decode()

    def text(self):
        return self.log.read_text(errors="replace")

    def count(self, pattern):
        """Returns how often a pattern is in the log."""
        return len(re.findall(pattern, self.text()))
