"""The base of all interop tests: a scratch folder, programs that must be there, and an end for
everything that a test started."""

import os
import pathlib
import shutil
import subprocess
import tempfile
import time
import unittest

from . import PROJECT
from .millrace import Millrace, program
from .nginx import Nginx
from .origin import Origin

COMMAND_SECONDS_MAX = 300
# Options of a millrace whose memory or descriptors a test looks at, which its own user may not.
LOOKED_INTO = () if os.getuid() == 0 else ("--sandbox", "off")


class InteropCase(unittest.TestCase):
    """`programs` names what the tests of the class need beside millrace and nginx. A missing one
    is a failure: `scripts/setup test` installs them all."""

    programs = ()
    maxDiff = 2000

    def setUp(self):
        for needed in self.programs:
            self.assertTrue(shutil.which(needed), f"{needed} is missing: run scripts/setup test")
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="millrace-interop-"))
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        self.site = self.folder / "site"
        self.site.mkdir()

    def millrace(self, *arguments, **how):
        """A running millrace that must end with status 0 and without a panic."""
        started = Millrace(*arguments, **how)
        self.addCleanup(self._end, started)
        return started

    def _end(self, started):
        if started.process.returncode is None:
            self.assertEqual(started.stop(), 0, f"exit status; it said: {started.lines[-5:]}")
        output = [line for line in started.lines if "panic" in line]
        self.assertEqual(output, [], "millrace panicked")

    def forward(self, *options, **how):
        """A forward proxy on a port of its own."""
        return self.millrace("forward", "--listen", "127.0.0.1:0", *options, **how)

    def boost(self, origin, *options, **how):
        """Starts a reverse proxy before `origin` (a URL) on a port of its own."""
        listen = ("--listen", "127.0.0.1:0")
        return self.millrace("boost", "--origin", origin, *listen, *options, **how)

    def nginx(self, **how):
        """nginx over `self.site`."""
        started = Nginx(self.folder, self.site, **how)
        self.addCleanup(started.stop)
        return started

    def origin(self, **how):
        """The tests' own origin."""
        started = Origin(**how)
        self.addCleanup(started.stop)
        return started

    def environment(self, **more):
        """Returns a client's environment without the user's proxies, mirrors and settings."""
        kept = ("PATH", "PYENV_ROOT", "PYENV_VERSION", "RUSTUP_HOME", "RUSTUP_TOOLCHAIN")
        environment = {name: os.environ[name] for name in kept if name in os.environ}
        home = self.folder / "home"
        home.mkdir(exist_ok=True)
        environment.update(HOME=str(home), LANG="C.UTF-8", LC_ALL="C.UTF-8", **more)
        return environment

    def run_client(self, *command, environment=None, **how):
        """Runs a client program to its end; a failure shows what it said."""
        done = subprocess.run(
            list(map(str, command)),
            env=environment or self.environment(),
            stdin=how.pop("stdin", subprocess.DEVNULL),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            timeout=COMMAND_SECONDS_MAX,
            **how,
        )
        output = (done.stdout[-1500:] + b"\n" + done.stderr[-1500:]).decode(errors="replace")
        self.assertEqual(done.returncode, 0, f"{command[0]} failed: {output}")
        return done

    def run_script(self, name, *options):
        """Runs one of `scripts` that build what they need, with the program under test. The
        builds run before, without a deadline, as they may take many minutes on a busy machine."""
        command = [str(PROJECT / "scripts" / name), "--profile", "debug"]
        environment = dict(os.environ, MILLRACE=str(program()))
        subprocess.run([*command, "--build"], env=environment, check=True)
        return self.run_client(*command, *options, environment=environment)

    def assert_all_through_the_proxy(self, origin, at_least):
        """Each request that nginx saw came by way of a proxy, and there were enough of them."""
        requests = origin.requests()
        direct = [request for request in requests if request["via"] in ("-", "")]
        self.assertEqual(direct, [], "requests that did not come through the proxy")
        self.assertGreaterEqual(len(requests), at_least)

    def wait_until(self, what, condition, seconds=120):
        """Waits for a condition; the time only bounds a failure."""
        end = time.monotonic() + seconds
        while not condition():
            self.assertLess(time.monotonic(), end, f"never happened: {what}")
            time.sleep(0.02)

    def settled(self, value, quiet_seconds=1.5):
        """Returns the value once it has not changed for a while."""
        last, since = value(), time.monotonic()
        while time.monotonic() - since < quiet_seconds:
            time.sleep(0.05)
            if (now := value()) != last:
                last, since = now, time.monotonic()
        return last
