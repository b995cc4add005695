"""What `uselect run` says: of what it cannot have, and of how waits were answered."""

import socket
import subprocess
import unittest

from preloaded import BACKEND, PROGRAMS, SECONDS_MAX, PreloadCase

NOBODY = 65534


class Absent(PreloadCase):
    """A backend that is named and cannot be had is an error before the program runs."""

    def refused(self, *options, programs=PROGRAMS, **how):
        command = [programs / "uselect", "run", "--backend", "bpf", *options, "true"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS_MAX, **how)
        self.assertEqual((done.returncode, done.stdout), (1, ""))
        return done.stderr

    def test_no_daemon(self):
        path = self.folder / "nobody.sock"
        said = f"uselect: the backend that was asked for: uselectd is not running at {path}\n"
        self.assertEqual(self.refused("--socket", path), said)
        with socket.socket(socket.AF_UNIX) as left:
            left.bind(str(path))
        self.assertEqual(self.refused("--socket", path), said)

    @unittest.skipUnless(BACKEND == "bpf", "about uselectd")
    def test_another_user(self):
        programs = self.programs_for_all()
        said = self.refused(*self.options, programs=programs, user=NOBODY, group=NOBODY)
        self.assertIn("uselectd does not serve this user (--allow-user of uselectd(8))", said)


if __name__ == "__main__":
    unittest.main()
