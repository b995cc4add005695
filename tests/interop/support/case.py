"""The base class of all interop tests: a scratch folder, a check for required programs, and the end
of every process that a test started."""

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
EXAMPLE_LISTEN = "0.0.0.0:8080"  # default port: the tests replace it
# Options for tests that read the memory or descriptors of millrace. Its sandbox hides them from its
# own user.
INSPECTABLE = () if os.getuid() == 0 else ("--sandbox", "off")


class InteropCase(unittest.TestCase):
    """`programs` names the programs that the tests of the class need besides millrace and nginx. A
    missing program is a failure; `scripts/setup test` installs all of them."""

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
        """Starts millrace, which must end with status 0 and without a panic."""
        started = Millrace(*arguments, **how)
        self.addCleanup(self._end, started)
        return started

    def _end(self, started):
        if started.process.returncode is None:
            self.assertEqual(started.stop(), 0, f"exit status; output: {started.lines[-5:]}")
        output = [line for line in started.lines if "panic" in line]
        self.assertEqual(output, [], "millrace panicked")

    def forward(self, *options, **how):
        """Starts a forward proxy on a free port."""
        return self.millrace("forward", "--listen", "127.0.0.1:0", *options, **how)

    def boost(self, origin, *options, **how):
        """Starts a reverse proxy on a free port. `origin` is the URL of its origin."""
        listen = ("--listen", "127.0.0.1:0")
        return self.millrace("boost", "--origin", origin, *listen, *options, **how)

    def serve(self, *options, **how):
        """Starts a server of `self.site` on a free port."""
        # The user to which millrace changes has to find the folder.
        self.folder.chmod(0o755)
        return self.millrace("serve", self.site, "--listen", "127.0.0.1:0", *options, **how)

    def example(self, name, replaced):
        """Starts millrace with a file of `examples`, in which these texts are replaced. `self.log`
        is its access log. Paths and addresses are all that a user should have to change."""
        text = (PROJECT / "examples" / name).read_text()
        for old, new in {EXAMPLE_LISTEN: "127.0.0.1:0", **replaced}.items():
            self.assertIn(old, text)
            text = text.replace(old, str(new))
        self.folder.chmod(0o755)
        self.log, config = self.folder / "log", self.folder / "millrace.toml"
        config.write_text(f'access-log = "{self.log}"\nlog-format = "json"\n{text}')
        return self.millrace("run", config)

    def nginx(self, **how):
        """Starts nginx, which serves `self.site`."""
        started = Nginx(self.folder, self.site, **how)
        self.addCleanup(started.stop)
        return started

    def origin(self, **how):
        """Starts an `Origin`."""
        started = Origin(**how)
        self.addCleanup(started.stop)
        return started

    def environment(self, **more):
        """Returns a client's environment without the user's proxies, mirrors and settings."""
        names = ("PATH", "PYENV_ROOT", "PYENV_VERSION", "RUSTUP_HOME", "RUSTUP_TOOLCHAIN")
        environment = {name: os.environ[name] for name in names if name in os.environ}
        home = self.folder / "home"
        home.mkdir(exist_ok=True)
        environment.update(HOME=str(home), LANG="C.UTF-8", LC_ALL="C.UTF-8", **more)
        return environment

    def run_client(self, *command, environment=None, **how):
        """Runs a client program to its end. A failure shows its output."""
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
        """Runs a program of `scripts` with the program under test. Its `--build` runs first,
        without a deadline, because a build may take many minutes on a busy machine."""
        command = [str(PROJECT / "scripts" / name), "--profile", "debug"]
        environment = dict(os.environ, MILLRACE=str(program()))
        subprocess.run([*command, "--build"], env=environment, check=True)
        return self.run_client(*command, *options, environment=environment)

    def assert_all_through_the_proxy(self, origin, at_least):
        """Checks that nginx received at least `at_least` requests, all of them with Via."""
        requests = origin.requests(at_least)
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
