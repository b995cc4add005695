"""RLIMIT_MEMLOCK of an unprivileged user limits the rings of all workers together. If the limit is
too low, all workers of a start or an upgrade fall back to epoll."""

import os
import platform
import resource
import shutil
import subprocess

from support import wire
from support.case import InteropCase
from support.millrace import program

LIMIT_BYTES = 8 << 20
# No other process has this user id, so none uses up a part of the limit.
USER = 61000 + os.getpid() % 1000
# From this version on, the kernel counts the memory of rings against the limit.
COUNTS_SINCE = (6, 14)


def confined():
    """Becomes an unprivileged user with systemd's default limit."""
    resource.setrlimit(resource.RLIMIT_MEMLOCK, (LIMIT_BYTES, LIMIT_BYTES))
    os.setgroups([])
    os.setgid(USER)
    os.setuid(USER)


class LockedMemory(InteropCase):
    measures = True

    def setUp(self):
        super().setUp()
        if os.getuid() != 0:
            self.skipTest("only root can become a user that has no other process")
        if tuple(map(int, platform.release().split("-")[0].split(".")[:2])) < COUNTS_SINCE:
            self.skipTest("before Linux 6.14 rings are not counted against RLIMIT_MEMLOCK")
        self.folder.chmod(0o755)
        self.own = self.folder / "own"
        self.own.mkdir()
        # Only root may have access to the folder of the program under test.
        self.copy = shutil.copy(program(), self.folder / "millrace")
        os.chown(self.own, USER, USER)
        self.words = ("boost", "--origin", self.origin().url, "--listen", f"unix:{self.own}/http")
        self.words += ("--listen", "127.0.0.1:0", "--admin", f"unix:{self.own}/admin")

    def start(self, *options):
        return self.millrace(*self.words, *options, before=confined, binary=self.copy)

    def refused(self, *options):
        """Returns the stderr of a start that fails."""
        command = [self.copy, *self.words, *options]
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60,
            preexec_fn=confined,
        )
        self.assertEqual(done.returncode, 1, done.stderr)
        return done.stderr

    def assert_falls_back(self, proxy, workers):
        """Checks that millrace serves on epoll, and that one line names the limit and the
        remedy."""
        (line,) = [line for line in proxy.lines if "io_uring" in line]
        self.assertRegex(
            line,
            f"engine epoll .*the io_uring rings of {workers} workers .*"
            "RLIMIT_MEMLOCK: 8.0 MB for all processes of the user.*LimitMEMLOCK= .*ulimit -l",
        )
        self.assertEqual(wire.get(self.tcp(proxy), "/small").status, 200)

    @staticmethod
    def tcp(proxy):
        (address,) = [address for address in proxy.addresses if not address.startswith("unix:")]
        host, _, port = address.rpartition(":")
        return host, int(port)

    def test_64_workers_start(self):
        proxy = self.start("--workers", "64", "--engine", "auto")
        self.wait_until("it listens", lambda: len(proxy.addresses) == 2)
        self.assert_falls_back(proxy, 64)
        self.assertEqual(proxy.stop(), 0)
        line = self.refused("--workers", "64", "--engine", "uring")
        self.assertRegex(line, "^millrace: --engine uring: .*RLIMIT_MEMLOCK: 8.0 MB .*ulimit -l")

    def test_32_workers_upgrade(self):
        old = self.start("--workers", "32", "--engine", "uring")
        self.wait_until("it listens", lambda: len(old.addresses) == 2)
        line = self.refused("--workers", "32", "--engine", "uring", "--upgrade")
        self.assertIn("RLIMIT_MEMLOCK", line)
        self.assertEqual(wire.get(self.tcp(old), "/small").status, 200)
        new = self.start("--workers", "32", "--engine", "auto", "--upgrade")
        self.wait_until("it listens", lambda: len(new.addresses) == 2)
        self.assertEqual(old.wait(), 0, old.lines)
        self.assert_falls_back(new, 32)
