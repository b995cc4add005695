"""Shared by the tests of the cache: an origin of their own behind millrace, curl as the client, and
`millrace cache` as the operator."""

import json
import subprocess

from .case import COMMAND_SECONDS_MAX, InteropCase
from .millrace import program
from .scripted import Scripted


class ShopCase(InteropCase):
    """`answers` are the origin's by path. `door` is where `cache` asks: the admin socket of the
    millrace that a test starts."""

    programs = ("curl",)

    def setUp(self):
        super().setUp()
        self.shop = Scripted()
        self.addCleanup(self.shop.stop)
        self.responses = self.shop.responses
        self.door = self.folder / "admin.sock"

    def ask(self, proxy, path, *arguments):
        """One request by curl: status, the fields (names in lower case), the body."""
        body = self.folder / "body"
        done = self.run_client(
            "curl", "--silent", "--show-error", "--max-time", "120", "--dump-header", "-",
            "--output", body, *arguments, f"{proxy.url}{path}",
        )
        lines = done.stdout.decode("latin-1").split("\r\n")
        fields = dict(line.split(": ", 1) for line in lines[1:] if ": " in line)
        content = body.read_bytes() if body.exists() else b""
        body.unlink(missing_ok=True)
        return int(lines[0].split()[1]), {k.lower(): v for k, v in fields.items()}, content

    def cache(self, *words, admin=None, fails=False):
        """`millrace cache` at the door, or another address; gives what it printed, or where it has
        to fail what it said. `fails` may be the status that is expected."""
        command = [program(), "cache", *words, "--admin", admin or f"unix:{self.door}"]
        done = subprocess.run(
            list(map(str, command)), stdin=subprocess.DEVNULL, capture_output=True,
            text=True, timeout=COMMAND_SECONDS_MAX, check=False,
        )
        self.assertEqual(done.returncode, int(fails), done.stderr)
        return done.stderr if fails else done.stdout

    def cached(self):
        """Returns the objects that `millrace cache list --json` prints."""
        return json.loads(self.cache("list", "--json"))["objects"]
