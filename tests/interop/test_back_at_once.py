"""The script that measures how soon a service serves again after a panic or a kill."""

import os

from support.case import InteropCase


class BackAtOnce(InteropCase):
    programs = ("runsv",)

    def test_a_short_run_of_back_at_once(self):
        """A short run of `scripts/back-at-once`. The time of recovery is not checked here."""
        done = self.run_script(
            *("back-at-once", "--times", "1", "--rate", "200", "--websockets", "20"),
            *("--seconds", "3", "--within", "60", "--engine", os.environ.get("ENGINE", "auto")),
        )
        rows = [line.split()[0] for line in done.stdout.decode().splitlines()[2:]]
        self.assertEqual(
            rows, ["panic-alone", "panic", "panic-too-many", "kill", "kill-held"], done.stdout
        )
