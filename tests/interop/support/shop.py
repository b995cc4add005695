"""The base class of cache tests: a scripted origin, curl as the client, and `millrace cache` for
the operator."""

import json
import subprocess

from .case import COMMAND_SECONDS_MAX, InteropCase
from .millrace import program
from .scripted import Scripted


class ShopCase(InteropCase):
    """`responses` maps paths to the origin's responses. `admin_path` is the path of the admin
    socket."""

    programs = ("curl",)

    def setUp(self):
        super().setUp()
        self.shop = Scripted()
        self.addCleanup(self.shop.stop)
        self.responses = self.shop.responses
        self.admin_path = self.folder / "admin.sock"

    def curl(self, proxy, path, *arguments):
        """Makes one request by curl. Returns the status, the fields (names in lower case) and the
        body."""
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
        """Runs `millrace cache` with the admin address `admin` (default: `admin_path`). Returns its
        output, or its error if `fails` is true. `fails` may be the expected status."""
        command = [program(), "cache", *words, "--admin", admin or f"unix:{self.admin_path}"]
        done = subprocess.run(
            list(map(str, command)), stdin=subprocess.DEVNULL, capture_output=True,
            text=True, timeout=COMMAND_SECONDS_MAX, check=False,
        )
        self.assertEqual(done.returncode, int(fails), done.stderr)
        return done.stderr if fails else done.stdout

    def cached(self):
        """Returns the objects that `millrace cache list --json` prints."""
        return json.loads(self.cache("list", "--json"))["objects"]
