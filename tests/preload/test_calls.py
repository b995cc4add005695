"""Each script in calls/ must print the same with and without the preload."""

import pathlib
import subprocess
import sys
import unittest

from preloaded import BACKEND, LINE, PROGRAMS, SECONDS_MAX, PreloadCase

SCRIPTS = pathlib.Path(__file__).resolve().parent / "calls"


class Calls(PreloadCase):
    def compare(self, name):
        script = [sys.executable, SCRIPTS / f"{name}.py"]
        plain, _ = self.run_one(*script)
        preload = [PROGRAMS / "uselect", "run", "--stats", *self.options, "--"]
        loaded, stderr = self.run_one(*preload, *script)
        self.assertEqual(loaded, plain)
        lines = LINE.findall(stderr)
        self.assertTrue(any(line[4] == f"backend {BACKEND}" for line in lines), stderr)

    def run_one(self, *command):
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=SECONDS_MAX, stdin=subprocess.DEVNULL
        )
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done.stdout.splitlines(), done.stderr


def add(name):
    setattr(Calls, f"test_{name}", lambda self: self.compare(name))


for script in sorted(SCRIPTS.glob("*.py")):
    if not script.name.startswith("_"):
        add(script.stem)

if __name__ == "__main__":
    unittest.main()
