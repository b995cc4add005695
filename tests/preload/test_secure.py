"""Programs that gain privileges when they are executed, on a machine whose loader preloads the
library into each program (/etc/ld.so.preload). They must ignore the environment variables of the
library.

The machine's /etc is not changed: each program runs in its own mount namespace with another /etc.
"""

import ctypes
import os
import pathlib
import shutil
import subprocess
import tempfile
import unittest

from preloaded import PROGRAMS, SECONDS_MAX

NOBODY = 65534
LIBRARY = "libuselect_preload.so"
CLONE_NEWNS = 0x20000
MS_BIND, MS_REC, MS_PRIVATE = 0x1000, 0x4000, 0x40000
ST_NOSUID = 2
# `struct vfs_cap_data` of linux/capability.h: VFS_CAP_REVISION_2 with the effective bit, and
# CAP_NET_BIND_SERVICE permitted.
CAPABILITY = b"".join(word.to_bytes(4, "little") for word in (0x02000001, 1 << 10, 0, 0, 0))
# Each kind of privilege, and how a file gets it.
PRIVILEGES = {
    "set-user-ID": lambda path: path.chmod(0o4755),
    "set-group-ID": lambda path: path.chmod(0o2755),
    "file capability": lambda path: os.setxattr(path, "security.capability", CAPABILITY),
}


def call(result):
    if result != 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))


def enter(etc):
    """Gives this process, between fork and exec, another /etc and another user."""
    libc = ctypes.CDLL(None, use_errno=True)
    call(libc.unshare(CLONE_NEWNS))
    call(libc.mount(None, b"/", None, MS_REC | MS_PRIVATE, None))
    call(libc.mount(os.fsencode(etc), b"/etc", None, MS_BIND, None))
    os.setgroups([])
    os.setgid(NOBODY)
    os.setuid(NOBODY)


@unittest.skipUnless(os.geteuid() == 0, "needs root for files with privileges, and for /etc")
class Secure(unittest.TestCase):
    def setUp(self):
        # A separate directory, because every user may read it.
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="uselect-secure-"))
        self.addCleanup(shutil.rmtree, self.folder)
        self.folder.chmod(0o755)
        if os.statvfs(self.folder).f_flag & ST_NOSUID:
            self.skipTest(f"{self.folder} is mounted with nosuid")
        library = self.folder / LIBRARY
        shutil.copy(PROGRAMS / LIBRARY, library)
        self.etc = self.folder / "etc"
        self.etc.mkdir()
        (self.etc / "ld.so.preload").write_text(f"{library}\n")
        shutil.copy("/etc/ld.so.cache", self.etc)
        # Any user may create the file here.
        self.stats = self.folder / "stats"
        self.stats.mkdir()
        self.stats.chmod(0o777)

    def runs(self, name, make_privileged):
        """Runs a copy of cat as another user, which prints its own mappings. Returns whether the
        library created the statistics file."""
        program = self.folder / name.replace(" ", "-")
        shutil.copy(shutil.which("cat"), program)
        os.chown(program, 0, 0)
        program.chmod(0o755)
        make_privileged(program)
        path = self.stats / "lines"
        path.unlink(missing_ok=True)
        done = subprocess.run(
            [program, "/proc/self/maps"],
            capture_output=True,
            text=True,
            timeout=SECONDS_MAX,
            env={"USELECT_STATS": str(path), "USELECT_BACKEND": "calls"},
            preexec_fn=lambda: enter(self.etc),
        )
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertIn(LIBRARY, done.stdout, "the library is preloaded")
        return path.exists()

    def test_a_program_without_privileges_opens_the_statistics_file(self):
        self.assertTrue(self.runs("plain", lambda path: None))

    def test_a_program_with_privileges_does_not(self):
        for name, make_privileged in PRIVILEGES.items():
            with self.subTest(name):
                self.assertFalse(self.runs(name, make_privileged), "it opened the statistics file")
