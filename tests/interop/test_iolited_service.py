"""iolited works under the restrictions of its unit in examples/systemd."""

import contextlib
import mmap
import os
import pathlib
import re
import shutil
import socket
import stat
import struct
import subprocess
import sys
import tempfile
import unittest

from support import PROJECT, system_calls

UNIT = PROJECT / "examples" / "systemd" / "iolited.service"
SECONDS_MAX = 30
# Other users than the one of the test; no system has accounts with these numbers.
USER, CLIENT_USER = 54321, 54322
BYTES = bytes(range(256)) * 400


# A client that knows the daemon by its default path only. It reads a file, which is its standard
# input, by the library whose path is its first argument. Then it writes the number of bytes and the
# inodes of the memory files that it has mapped.
CLIENT = """
import ctypes, re, sys
library = ctypes.CDLL(sys.argv[1])
aggregate = ctypes.c_void_p()
library.iol_read.restype = ctypes.c_ssize_t
library.iol_read.argtypes = [ctypes.c_int, ctypes.c_size_t, ctypes.POINTER(ctypes.c_void_p)]
count = library.iol_read(0, 1 << 20, ctypes.byref(aggregate))
print(count, *re.findall(r"([0-9]+) +/memfd:", open("/proc/self/maps").read()))
"""


def built(name):
    """Returns the path of a file in the build of this tree."""
    target = os.environ.get("CARGO_TARGET_DIR") or PROJECT / "target"
    path = pathlib.Path(target, "debug", name)
    if not os.access(path, os.X_OK):
        raise FileNotFoundError(f"{path}: build it (cargo build -p iolited -p iolite-c)")
    return path


def files_of(process):
    """Returns the inodes of the files that a process has open."""
    inodes = set()
    for entry in os.scandir(f"/proc/{process.pid}/fd"):
        # One may be closed meanwhile.
        with contextlib.suppress(FileNotFoundError):
            inodes.add(entry.stat().st_ino)
    return inodes


def confined(*command):
    """Executes a command under the system call filters of the unit."""
    write, execute = mmap.PROT_WRITE, mmap.PROT_EXEC
    both = write | execute
    unit = UNIT.read_text()
    families = re.search(r"^RestrictAddressFamilies=(.*)$", unit, re.MULTILINE)[1].split()
    families = [getattr(socket, family) for family in families]
    system_calls.only(
        system_calls.of_unit(unit),
        {
            # RestrictAddressFamilies=, MemoryDenyWriteExecute=
            "socket": [system_calls.Bits(0, 2**32 - 1, family) for family in families],
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
        copy.write_text(self.unit.replace("/usr/sbin/iolited", str(built("iolited"))))
        command = ["systemd-analyze", "verify", "--man=no", copy]
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS_MAX)
        wrong = [line for line in done.stderr.splitlines() if "iolited" in line]
        self.assertEqual((done.returncode, wrong), (0, []), done.stderr)

    def _daemon(self):
        """Starts iolited as the unit does, in a mount namespace with a /run of its own."""
        options = re.search(r"^ExecStart=(.*)$", self.unit, re.MULTILINE)[1].split()
        self.assertEqual(options, ["/usr/sbin/iolited"])
        lines = ("CapabilityBoundingSet=", "NoNewPrivileges=yes", "RuntimeDirectory=iolited")
        for line in lines:
            self.assertIn(f"\n{line}\n", self.unit)
        copy = shutil.copy(built("iolited"), self.folder / "iolited")
        here = pathlib.Path(__file__).resolve()
        code = f"import sys; sys.path[:0] = {sys.path!r}; import {here.stem}; "
        code += f"{here.stem}.confined(*sys.argv[1:])"
        folder = f"mount -t tmpfs none /run; install -d -o {USER} -g {USER} /run/iolited; "
        command = ["unshare", "--mount", "sh", "-ec", folder + 'exec "$@"', "sh", "setpriv"]
        command += ["--no-new-privs", "--inh-caps=-all", "--bounding-set=-all"]
        command += [f"--reuid={USER}", f"--regid={USER}", "--clear-groups"]
        command += [sys.executable, "-Bc", code, copy, "--cache-memory", "auto"]
        return self._started(command)

    def _started(self, command):
        """Starts iolited at its default path. Returns it with the path as this process sees it."""
        daemon = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        self.addCleanup(daemon.stderr.close)
        self.addCleanup(daemon.wait, SECONDS_MAX)
        self.addCleanup(daemon.kill)
        path = "/run/iolited/iolited.sock"
        self.assertEqual(daemon.stderr.readline(), f"iolited: listening on unix:{path}\n")
        return daemon, pathlib.Path(f"/proc/{daemon.pid}/root{path}")

    def _client(self, path):
        client = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.addCleanup(client.close)
        client.settimeout(SECONDS_MAX)
        client.connect(str(path))
        # Response::Ready (crates/iolite/iolite/src/service/message.rs).
        self.assertEqual(client.recv(100), struct.pack("<4sII", b"IOL\x01", 1002, 0))
        return client

    def _pair(self, client, end, kind):
        """Returns the channel that the daemon gives to one end of a connection."""
        # Request::Pair, then Response::Paired.
        request = struct.pack("<4sIQQ", b"IOL\x01", kind, 0, 0)
        socket.send_fds(client, [request], [end.fileno()])
        response, channel, _, _ = socket.recv_fds(client, 4096, 10)
        self.assertEqual((response, len(channel)), (struct.pack("<4sII", b"IOL\x01", 1001, 0), 1))
        channel = socket.socket(fileno=channel[0])
        self.addCleanup(channel.close)
        channel.settimeout(SECONDS_MAX)
        return channel

    @unittest.skipUnless(os.geteuid() == 0, "only root gives up privileges as systemd does")
    def test_the_daemon_works_under_the_unit(self):
        """It serves a file that only the client may open, and pairs the ends of a Unix socket."""
        daemon, path = self._daemon()
        status = pathlib.Path(f"/proc/{daemon.pid}/status").read_text()
        zero = "0" * 16
        for line in (f"CapEff:\t{zero}", f"CapBnd:\t{zero}", "NoNewPrivs:\t1", "Seccomp:\t2"):
            self.assertIn(f"{line}\n", status)
        file = self.folder / "file"
        file.write_bytes(BYTES)
        file.chmod(0o600)
        client = self._client(path)
        with file.open() as opened:
            # Request::Read
            request = struct.pack("<4sIQQ", b"IOL\x01", 1, 0, 1 << 40)
            socket.send_fds(client, [request], [opened.fileno()])
        response, memory, _, _ = socket.recv_fds(client, 4096, 10)
        self.assertEqual((response[:8], len(memory)), (b"IOL\x01\0\0\0\0", 1))
        with open(memory[0], "rb") as received:
            self.assertEqual(received.read(), BYTES)

        other = self._client(path)
        to, end = socket.socketpair()
        with to, end:
            reads, writes = 3, 4
            receiver = self._pair(client, end, reads)
            self._pair(other, to, writes).send(b"paired")
            self.assertEqual(receiver.recv(100), b"paired")
        daemon.terminate()
        self.assertEqual(daemon.wait(SECONDS_MAX), 0)

    @unittest.skipUnless(os.geteuid() == 0, "only root gives up privileges as systemd does")
    def test_programs_find_and_trust_the_daemon(self):
        """A program of another user gets the daemon's memory, without a setting of its own. If
        another user could have put the socket there, it reads the file itself."""
        daemon, path = self._daemon()
        library = shutil.copy(built("libiolite_c.so"), self.folder / "libiolite.so")
        command = ["nsenter", f"--mount=/proc/{daemon.pid}/ns/mnt", "setpriv"]
        command += [f"--reuid={CLIENT_USER}", f"--regid={CLIENT_USER}", "--clear-groups"]
        command += [sys.executable, "-c", CLIENT, library]
        file = self.folder / "file"
        file.write_bytes(BYTES)

        def read():
            environment = {"PATH": os.environ["PATH"]}
            with file.open() as opened:
                done = subprocess.run(
                    command,
                    stdin=opened,
                    capture_output=True,
                    text=True,
                    env=environment,
                    timeout=SECONDS_MAX,
                )
            count, *mapped = [int(number) for number in done.stdout.split()]
            self.assertEqual(count, len(BYTES))
            return mapped, done.stderr

        mapped, message = read()
        self.assertEqual((len(mapped), message), (1, ""))
        self.assertIn(mapped[0], files_of(daemon))

        os.chown(path.parent, 0, 0)
        mapped, message = read()
        self.assertEqual(mapped, [])
        self.assertIn(f"it belongs to user {USER}", message)

    @unittest.skipUnless(os.geteuid() == 0, "only root has a /run of its own")
    def test_the_daemon_creates_its_folder(self):
        """Without systemd, the folder of the default path may be missing."""
        run = 'umask 077; mount -t tmpfs none /run; exec "$@"'
        command = ["unshare", "--mount", "sh", "-ec", run, "sh", built("iolited")]
        daemon, path = self._started(command)
        self.assertEqual(stat.S_IMODE(path.parent.stat().st_mode), 0o755)
        daemon.terminate()
        self.assertEqual(daemon.wait(SECONDS_MAX), 0)


if __name__ == "__main__":
    unittest.main()
