"""Helpers of the scripts that run millrace under load: builds, started programs, addresses."""

import json
import os
import pathlib
import queue
import re
import subprocess
import sys
import threading
import time

PROJECT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(PROJECT / "tests" / "interop"))
from support.ports import free_port  # noqa: E402


def free_address():
    """Returns an address that stays free until this process ends, also between two starts of a
    program. With port 0 the kernel would choose another one at each start."""
    return f"127.0.0.1:{free_port()}"


class Programs:
    """The builds of this project: `millrace` (or the program that MILLRACE names), the `load`, and
    `asserting`, a millrace with debug assertions. `profile` is release or debug."""

    def __init__(self, profile):
        self.target = pathlib.Path(os.environ.get("CARGO_TARGET_DIR") or PROJECT / "target")
        self.named, self.profile = os.environ.get("MILLRACE"), profile
        self.millrace = self.named or self.target / profile / "millrace"
        self.load = self.target / profile / "load"
        self.asserting = self.target / "debug" / "millrace"
        if profile == "debug":
            self.asserting = self.millrace

    def build(self, asserting=False, load=True):
        """Builds the programs, `asserting` and `load` only on request. The program that MILLRACE
        names is never built, as it may be in use."""
        if load:
            self._cargo("-p", "millrace-tests", "--bin", "load")
        if not self.named:
            self._cargo("-p", "millrace")
        if asserting and self.asserting != self.millrace:
            self._cargo("-p", "millrace", profile="debug")

    def build_test(self, package, name):
        """Builds an integration test and returns its program."""
        profile = ["--release"] if self.profile == "release" else []
        words = ["cargo", "test", "--quiet", *profile, "--no-run", "--message-format=json"]
        words += ["-p", package, "--test", name]
        done = subprocess.run(words, cwd=PROJECT, check=True, stdout=subprocess.PIPE, text=True)
        built = [json.loads(line) for line in done.stdout.splitlines()]
        return next(each["executable"] for each in built if each.get("executable"))

    def _cargo(self, *words, profile=None):
        profile = profile or self.profile
        options = [] if profile == "debug" else ["--profile", profile]
        subprocess.run(["cargo", "build", "--quiet", *options, *words], cwd=PROJECT, check=True)


def add_build_options(add):
    """Adds the build options of a script. `add` is the add_argument of its parser."""
    add("--profile", default="release", choices=("release", "debug"), help="which build (release)")
    add("--build", action="store_true", help="only build what is needed: nothing is measured")


class Process:
    """A started program. `output` has the lines that `wait_for` and `rest` returned or skipped."""

    def __init__(self, *words, stream, **how):
        how[stream] = subprocess.PIPE
        self.process = subprocess.Popen(
            [str(word) for word in words], stdin=subprocess.DEVNULL, text=True, **how
        )
        self.lines, self.output = queue.Queue(), []
        self.reader = threading.Thread(target=self._read, args=(getattr(self.process, stream),))
        self.reader.daemon = True
        self.reader.start()

    def _read(self, pipe):
        for line in pipe:
            self.lines.put((time.time(), line.rstrip("\n")))
        self.lines.put((time.time(), None))

    def wait_for(self, pattern, seconds=60):
        """Returns the time and text of the next line that contains `pattern`, a regular
        expression."""
        end = time.monotonic() + seconds
        while True:
            try:
                at, line = self.lines.get(timeout=max(0, end - time.monotonic()))
            except queue.Empty:
                raise SystemExit(f"no line with {pattern!r}; last: {self.output[-5:]}") from None
            if line is None:
                raise SystemExit(f"ended without a line with {pattern!r}; last: {self.output[-5:]}")
            self.output.append(line)
            if re.search(pattern, line):
                return at, line

    def rest(self, seconds):
        """Waits for the end. Returns the status and the lines that were not read before, with
        times."""
        status = self.process.wait(seconds)
        self.reader.join(seconds)
        lines = []
        while not self.lines.empty():
            at, line = self.lines.get()
            if line is not None:
                lines.append((at, line))
                self.output.append(line)
        return status, lines

    def kill(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
