"""A network namespace with addresses, system-wide settings and counters of its own, or a mount
namespace, for one test. The test runs again inside, as a process of its own."""

import functools
import os
import pathlib
import re
import subprocess
import sys

from . import PROJECT

INSIDE = "MILLRACE_TEST_NAMESPACE"
RUN = PROJECT / "tests" / "interop" / "run"


def isolated(test):
    """Runs a test method in a network namespace that has only a loopback device. If this user may
    not create one, the test is skipped with a message."""
    return _inside(test, ("--net",), 'ip link set lo up && exec "$@"')


def mounted(test):
    """Runs a test method in a mount namespace of its own, whose mounts end with it."""
    return _inside(test, ("--mount",), 'exec "$@"')


def _inside(test, what, steps):
    @functools.wraps(test)
    def method(self):
        if os.environ.get(INSIDE):
            return test(self)
        unshare = ("unshare", "--map-root-user", *what)
        probe = subprocess.run([*unshare, "true"], capture_output=True, text=True)
        if probe.returncode:
            self.skipTest(f"no namespaces here: {probe.stderr.strip()}")
        environment = {**os.environ, INSIDE: "1"}
        module, measures = type(self).__module__, getattr(self, "measures", False)
        this_test = ["--module", module, os.devnull, str(measures), self.id()]
        command = [*unshare, "sh", "-ec", steps, "sh", sys.executable, str(RUN), *this_test]
        done = subprocess.run(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=300,
        )
        self.assertEqual(done.returncode, 0, f"inside:\n{done.stdout}")
        if skipped := re.search(r"^skip: (.*): \S+ \(", done.stdout, re.MULTILINE):
            self.skipTest(skipped[1])

    return method


def set_system(name, value):
    """Sets a sysctl of the namespace, `name` with slashes."""
    (pathlib.Path("/proc/sys") / name).write_text(value)


def add_address(address):
    """Gives the loopback device another address."""
    subprocess.run(["ip", "address", "add", address, "dev", "lo"], check=True)


def counted(name):
    """Returns a counter of the extended TCP statistics, such as DelayedACKs."""
    lines = [line.split() for line in open("/proc/self/net/netstat") if line.startswith("TcpExt:")]
    return int(dict(zip(*lines))[name])
