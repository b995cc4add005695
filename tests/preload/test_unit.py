"""uselectd works under the restrictions of its unit in examples/systemd."""

import mmap
import os
import pathlib
import re
import shutil
import socket
import subprocess
import sys
import unittest

from preloaded import BACKEND, LINE, PROGRAMS, SECONDS_MAX, PreloadCase
from support import PROJECT, system_calls
from test_run import NOBODY, WAITS

UNIT = PROJECT / "examples" / "systemd" / "uselectd.service"
# The mounts of ProtectSystem=strict, ProtectKernelTunables= and ProtectControlGroups=, with a
# directory in place of the writable /run. The unit's other mount options hide files that the daemon
# never opens.
MOUNTS = """
mount --make-rprivate /
mount --bind "$0" "$0"
mount --bind /proc/sys /proc/sys
for at in $(cut -d " " -f 5 /proc/self/mountinfo); do
    case "$at" in
    "$0" | /proc | /dev | /dev/*) ;;
    *) mount -o remount,bind,ro "$at" ;;
    esac
done
for at in / /proc/sys /sys /sys/fs/cgroup; do
    if [ -w "$at" ]; then exit 1; fi
done
exec "$@"
"""


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


@unittest.skipUnless(BACKEND == "bpf", "about uselectd")
class Unit(PreloadCase):
    def _daemon(self):
        """Starts uselectd with the unit's command line, except for the paths and the users."""
        if not shutil.which("systemd-analyze"):
            self.skipTest("systemd is not installed")
        # Skips with the reason if the daemon cannot run even without the unit.
        super()._daemon("unconfined.sock")
        unit = dict(re.findall(r"^(\w+)=(.*)$", UNIT.read_text(), re.MULTILINE))
        program, *options = unit["ExecStart"].split()
        self.assertEqual(program, "/usr/sbin/uselectd")
        names = unit["CapabilityBoundingSet"].lower().replace("cap_", "+").split()
        self.assertEqual(unit["NoNewPrivileges"], "yes")
        self.folder.chmod(0o755)
        path = self.folder / "uselectd.sock"
        # The daemon replaces a stale socket.
        with socket.socket(socket.AF_UNIX) as left:
            left.bind(str(path))
        here = pathlib.Path(__file__).resolve()
        code = f"import sys; sys.path[:0] = {sys.path!r}; import {here.stem}; "
        code += f"{here.stem}.confined(*sys.argv[1:])"
        command = ["unshare", "--mount", "sh", "-ec", MOUNTS, self.folder]
        command += ["setpriv", "--no-new-privs", "--inh-caps=-all"]
        command += [f"--bounding-set={','.join(['-all', *names])}"]
        command += [sys.executable, "-Bc", code, PROGRAMS / "uselectd", *options]
        command += ["--socket", path, "--allow-user", str(NOBODY)]
        daemon = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        self.addCleanup(self._end_daemon, daemon)
        self.assertEqual(daemon.stderr.readline(), f"uselectd: listening on unix:{path}\n")
        status = pathlib.Path(f"/proc/{daemon.pid}/status").read_text()
        capabilities = f"{1 << 12 | 1 << 38 | 1 << 39:016x}"
        lines = (f"CapEff:\t{capabilities}", f"CapBnd:\t{capabilities}")
        for line in (*lines, "NoNewPrivs:\t1", "Seccomp:\t2"):
            self.assertIn(f"{line}\n", status)
        self.daemon = daemon
        return ["--socket", path]

    def test_the_daemon_works_under_the_unit(self):
        """It loads its programs and serves a process of another user, in its cgroup."""
        programs = self.programs_for_all()
        command = [programs / "uselect", "run", "--backend", "bpf", "--stats", *self.options, "--"]
        script = WAITS + "for _ in range(100): wait()"
        for _ in range(2):
            done = subprocess.run(
                [*command, "/usr/bin/env", "python3", "-c", script],
                env={**os.environ, "PATH": "/usr/local/bin:/usr/bin:/bin"},
                capture_output=True,
                text=True,
                timeout=SECONDS_MAX,
                user=NOBODY,
                group=NOBODY,
            )
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual(LINE.match(done.stderr)[5], "backend bpf")
        self.daemon.terminate()
        self.assertEqual(self.daemon.wait(SECONDS_MAX), 0)
        self.assertFalse((self.folder / "uselectd.sock").exists())


if __name__ == "__main__":
    unittest.main()
