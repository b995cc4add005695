"""iolited works under the restrictions of its unit in examples/systemd."""

import mmap
import os
import pathlib
import re
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import unittest

from support import PROJECT, system_calls

UNIT = PROJECT / "examples" / "systemd" / "iolited.service"
SECONDS_MAX = 30
# Another user than the one of the test; no system has an account with this number.
USER = 54321
BYTES = bytes(range(256)) * 400


def program():
    """Returns the path of iolited in the build of this tree."""
    target = os.environ.get("CARGO_TARGET_DIR") or PROJECT / "target"
    path = pathlib.Path(target, "debug", "iolited")
    if not os.access(path, os.X_OK):
        raise FileNotFoundError(f"{path}: build it (cargo build -p iolited)")
    return path


def confined(*command):
    """Executes a command under the system call filters of the unit."""
    write, execute = mmap.PROT_WRITE, mmap.PROT_EXEC
    both = write | execute
    system_calls.only(
        system_calls.of_unit(UNIT.read_text()),
        {
            # RestrictAddressFamilies=, MemoryDenyWriteExecute=
            "socket": [system_calls.Bits(0, 2**32 - 1, socket.AF_UNIX)],
            "mmap": [system_calls.Bits(2, both, bits) for bits in (0, write, execute)],
            "mprotect": [system_calls.Bits(2, execute, 0)],
        },
    )
    os.execv(command[0], command)


class Unit(unittest.TestCase):
    def setUp(self):
        if not shutil.which("systemd-analyze"):
            self.skipTest("systemd is not installed")
        # iolited shares files of tmpfs, and not those of containers.
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="iolited-", dir="/dev/shm"))
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        self.folder.chmod(0o755)
        self.unit = UNIT.read_text()

    def test_systemd_accepts_the_unit(self):
        copy = self.folder / "iolited.service"
        copy.write_text(self.unit.replace("/usr/sbin/iolited", str(program())))
        command = ["systemd-analyze", "verify", "--man=no", copy]
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS_MAX)
        wrong = [line for line in done.stderr.splitlines() if "iolited" in line]
        self.assertEqual((done.returncode, wrong), (0, []), done.stderr)

    def _daemon(self):
        """Starts iolited as the unit does, but with a socket and a size of its own."""
        options = re.search(r"^ExecStart=(.*)$", self.unit, re.MULTILINE)[1].split()
        self.assertEqual(options[0], "/usr/sbin/iolited")
        for line in ("CapabilityBoundingSet=", "NoNewPrivileges=yes", "PrivateNetwork=yes"):
            self.assertIn(f"\n{line}\n", self.unit)
        run = self.folder / "run"
        run.mkdir()
        os.chown(run, USER, USER)
        path = run / "iolited.sock"
        copy = shutil.copy(program(), self.folder / "iolited")
        here = pathlib.Path(__file__).resolve()
        code = f"import sys; sys.path[:0] = {sys.path!r}; import {here.stem}; "
        code += f"{here.stem}.confined(*sys.argv[1:])"
        command = ["unshare", "--net", "setpriv", "--no-new-privs", "--inh-caps=-all"]
        command += ["--bounding-set=-all", f"--reuid={USER}", f"--regid={USER}", "--clear-groups"]
        command += [sys.executable, "-Bc", code, copy, "--socket", path, "--cache-memory", "auto"]
        daemon = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        self.addCleanup(daemon.stderr.close)
        self.addCleanup(daemon.wait, SECONDS_MAX)
        self.addCleanup(daemon.kill)
        self.assertEqual(daemon.stderr.readline(), f"iolited: listening on unix:{path}\n")
        return daemon, path

    @unittest.skipUnless(os.geteuid() == 0, "only root gives up privileges as systemd does")
    def test_the_daemon_works_under_the_unit(self):
        """It serves a file that only the client may open."""
        daemon, path = self._daemon()
        status = pathlib.Path(f"/proc/{daemon.pid}/status").read_text()
        zero = "0" * 16
        for line in (f"CapEff:\t{zero}", f"CapBnd:\t{zero}", "NoNewPrivs:\t1", "Seccomp:\t2"):
            self.assertIn(f"{line}\n", status)
        file = self.folder / "file"
        file.write_bytes(BYTES)
        file.chmod(0o600)
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as client, file.open() as opened:
            client.settimeout(SECONDS_MAX)
            client.connect(str(path))
            # Response::Ready, then Request::Read (crates/iolite/iolite/src/service/message.rs).
            self.assertEqual(client.recv(100), struct.pack("<4sII", b"IOL\x01", 1002, 0))
            request = struct.pack("<4sIQQ", b"IOL\x01", 1, 0, 1 << 40)
            socket.send_fds(client, [request], [opened.fileno()])
            response, memory, _, _ = socket.recv_fds(client, 4096, 10)
            self.assertEqual((response[:8], len(memory)), (b"IOL\x01\0\0\0\0", 1))
            with open(memory[0], "rb") as received:
                self.assertEqual(received.read(), BYTES)
        daemon.terminate()
        self.assertEqual(daemon.wait(SECONDS_MAX), 0)
        self.assertFalse(path.exists())


if __name__ == "__main__":
    unittest.main()
