"""Files from the memory of iolited: every form of response, changes, ends of iolited, and limits."""

import os
import pathlib
import shutil
import signal
import subprocess
import tempfile
import threading

from support import pattern
from support.case import InteropCase
from support.millrace import program
from support.secure import SecureCase

LENGTHS = {"small": 20_000, "medium": 40_000, "long": 5_000_000}


def content(length, seed=1):
    return b"".join(pattern.blocks(length, seed))


class Daemon:
    """A running iolited."""

    def __init__(self, socket, *options):
        command = [pathlib.Path(program()).with_name("iolited"), "--socket", socket, *options]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        assert self.process.stderr.readline().startswith("iolited: listening")

    def memory(self):
        """Returns the number of files with bytes that it has."""
        folder = pathlib.Path(f"/proc/{self.process.pid}/fd")
        links = [os.readlink(entry) for entry in folder.iterdir() if entry.is_symlink()]
        return sum(link.startswith("/memfd:") for link in links)

    def end(self):
        self.process.kill()
        self.process.wait()
        self.process.stderr.close()


class Case(InteropCase):
    programs = ("curl",)

    def setUp(self):
        super().setUp()
        # Containers often have an overlay file system, which iolited does not share.
        self.site = pathlib.Path(tempfile.mkdtemp(prefix="millrace-interop-", dir="/dev/shm"))
        self.addCleanup(shutil.rmtree, self.site)
        self.site.chmod(0o755)
        self.socket = self.folder / "iolited.sock"
        for name, length in LENGTHS.items():
            self.write(name, content(length))

    def write(self, name, new_content):
        """Replaces a file, as `mv` does."""
        new = self.site / ".new"
        new.write_bytes(new_content)
        new.replace(self.site / name)

    def daemon(self, *options):
        started = Daemon(self.socket, *options)
        self.addCleanup(started.end)
        return started

    def start(self, *options):
        return self.serve("--iolited", self.socket, "--file-check", "0s", *options)

    def get(self, proxy, name, *options):
        url = "http://%s:%d/%s" % (*proxy.address, name)
        return self.run_client("curl", "-sS", *options, url).stdout

    def assert_served(self, proxy):
        for name in LENGTHS:
            self.assertEqual(self.get(proxy, name), (self.site / name).read_bytes(), name)

    def wait_for_memory(self, daemon, proxy, files):
        """Sends requests until iolited has this many memory files: until then, the files are too
        new to be kept."""

        def has_memory():
            self.assert_served(proxy)
            return daemon.memory() == files

        self.wait_until(f"{files} memory files", has_memory)


class Files(Case):
    def test_each_form_of_response(self):
        daemon = self.daemon()
        proxy = self.start()
        # Three of the long file. Short files are not shared.
        self.wait_for_memory(daemon, proxy, 4)
        for name in ("medium", "long"):
            whole = (self.site / name).read_bytes()
            last = len(whole) - 1
            for first, end in ((0, 0), (30_000, 39_999), (1, last), (last, last)):
                part = self.get(proxy, name, "--range", f"{first}-{end}")
                self.assertEqual(part, whole[first:end + 1])
            parts = self.get(proxy, name, "--range", "5-9,20000-39000")
            self.assertIn(whole[5:10], parts)
            self.assertIn(whole[20_000:39_001], parts)
            head = self.get(proxy, name, "--head").decode()
            self.assertIn(f"content-length: {len(whole)}\r\n", head.lower())
        self.assertEqual(daemon.memory(), 4)

    def test_a_changed_file_is_a_new_one(self):
        daemon = self.daemon()
        proxy = self.start()
        self.wait_for_memory(daemon, proxy, 4)
        for number in range(20):
            changed = content(LENGTHS["medium"] + number, number)
            if number % 2:
                self.write("medium", changed)
            else:
                (self.site / "medium").write_bytes(changed)
            self.assert_served(proxy)
        (self.site / "medium").unlink()
        status = self.get(proxy, "medium", "-o", "/dev/null", "-w", "%{http_code}")
        self.assertEqual(status, b"404")

    def test_clients_are_served_while_iolited_ends_and_begins(self):
        daemon = self.daemon()
        proxy = self.start()
        self.wait_for_memory(daemon, proxy, 4)
        is_over = threading.Event()
        failures = []

        def load():
            try:
                while not is_over.is_set():
                    self.assert_served(proxy)
            except Exception as error:
                failures.append(error)

        threads = [threading.Thread(target=load) for _ in range(3)]
        for thread in threads:
            thread.start()
        for _ in range(3):
            daemon.end()
            self.write("medium", content(LENGTHS["medium"], 3))
            self.socket.unlink()
            daemon = self.daemon()
            self.wait_until("its memory", lambda: daemon.memory() > 0)
        is_over.set()
        for thread in threads:
            thread.join()
        self.assertEqual(failures, [])
        lost = [line for line in proxy.lines if line.startswith("iolite: files are copied")]
        self.assertEqual(len(lost), 1, lost)

    def test_without_iolited(self):
        proxy = self.start()
        self.assert_served(proxy)
        # One that stops in the middle.
        daemon = self.daemon()
        os.kill(daemon.process.pid, signal.SIGSTOP)
        self.assert_served(proxy)

    def test_more_files_than_iolited_keeps(self):
        self.daemon("--cache-memory", "16M")
        proxy = self.start()
        contents = {f"file{number}": content(3_000_000, number) for number in range(12)}
        for name, whole in contents.items():
            self.write(name, whole)
        for _ in range(4):
            for name, whole in contents.items():
                self.assertEqual(self.get(proxy, name), whole)

    def test_compressed_files_and_their_originals(self):
        daemon = self.daemon()
        text = b"".join(b"line %d of some text\n" % number for number in range(20_000))
        self.write("text.css", text)
        proxy = self.start("--compress", "files")
        self.wait_for_memory(daemon, proxy, 4)

        def is_compressed():
            coded = self.get(proxy, "text.css", "-H", "Accept-Encoding: gzip")
            return coded[:2] == b"\x1f\x8b"

        self.wait_until("the compressed form", is_compressed)
        for _ in range(3):
            self.assertEqual(self.get(proxy, "text.css", "--compressed"), text)
            self.assertEqual(self.get(proxy, "text.css"), text)


class Secured(SecureCase, Case):
    def test_over_tls(self):
        daemon = self.daemon()
        proxy = self.millrace("serve", self.site, *self.options(), "--iolited", self.socket)

        def has_memory():
            for name in LENGTHS:
                url = "https://127.0.0.1:%d/%s" % (proxy.address[1], name)
                done = self.run_client("curl", "-sS", "--cacert", self.authority.path, url)
                self.assertEqual(done.stdout, (self.site / name).read_bytes())
            return daemon.memory() == 4

        self.wait_until("memory files", has_memory)
