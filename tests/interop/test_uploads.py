"""Long request bodies for programs: received into files without names in the folder of a disk,
bounded, and sent when they are whole. A full disk concerns only its own request."""

import contextlib
import hashlib
import os
import socket
import struct
import subprocess
import threading
import time

from support import fastcgi, pattern, wire
from support.case import InteropCase
from support.namespace import mounted


class Uploads(InteropCase):
    def setUp(self):
        super().setUp()
        self.disk = self.folder / "disk"
        self.program = fastcgi.Program(self.respond)
        self.addCleanup(self.program.stop)

    def respond(self, environment, body, _):
        length = environment.get("CONTENT_LENGTH", "")
        digest = hashlib.sha256(body).hexdigest()
        return fastcgi.output(f"Content-Type: text/plain\n\n{length} {digest}".encode())

    def start(self, limits="", disk=None, more="", **how):
        config = self.folder / "millrace.toml"
        config.write_text(
            f'disk = ["{disk or self.disk}:64M"]\nmemory = "256M"\nworkers = 1\n{more}\n'
            '[[boost]]\nlisten = "127.0.0.1:0"\n[[boost.route]]\n'
            f'fastcgi = "127.0.0.1:{self.program.port}"\n'
            f"[limits]\n{limits}\n"
        )
        self.folder.chmod(0o755)
        return self.millrace("run", config, **how)

    def begin(self, proxy, length=None, extra=""):
        """Sends the header of a POST; without a length, of a chunked one."""
        connection = wire.Connection(proxy.address)
        self.addCleanup(connection.socket.close)
        framing = "Transfer-Encoding: chunked" if length is None else f"Content-Length: {length}"
        connection.send(f"POST /a HTTP/1.1\r\nHost: a\r\n{framing}\r\n{extra}\r\n".encode())
        return connection

    def post(self, proxy, body, chunk=None):
        """Sends a body, in chunks of this size if one is given. Returns the response."""
        connection = self.begin(proxy, None if chunk else len(body))
        if chunk:
            pieces = [body[at : at + chunk] for at in range(0, len(body), chunk)]
            body = b"".join(b"%x\r\n%s\r\n" % (len(it), it) for it in pieces) + b"0\r\n\r\n"

        def send():
            # A refused body is not read to its end.
            with contextlib.suppress(OSError):
                connection.send(body)

        sender = threading.Thread(target=send)
        sender.start()
        try:
            return connection.read_response()
        finally:
            connection.socket.close()
            sender.join()

    def check(self, proxy, length, chunk=None):
        body = b"".join(pattern.blocks(length))
        found = self.post(proxy, body, chunk)
        expected = f"{length} {hashlib.sha256(body).hexdigest()}"
        self.assertEqual((found.status, found.body.decode()), (200, expected), (length, chunk))

    def names(self):
        return sorted(path.name for path in self.disk.iterdir())

    def open_uploads(self, proxy):
        """Returns the sizes of the open files without names in the folder of the disk."""
        sizes = []
        folder = f"/proc/{proxy.process.pid}/fd"
        for fd in os.listdir(folder):
            with contextlib.suppress(FileNotFoundError):
                target = os.readlink(f"{folder}/{fd}")
                if target.startswith(f"{self.disk}/") and target.endswith("(deleted)"):
                    sizes.append(os.stat(f"{folder}/{fd}").st_size)
        return sizes


class Stored(Uploads):
    def test_bodies_of_all_lengths(self):
        proxy = self.start()
        for length in ((1 << 20) - 1, 1 << 20, (1 << 20) + 1, 5_000_000, 12 << 20):
            self.check(proxy, length)
            self.check(proxy, length, chunk=100_000)
        self.check(proxy, 2_000_000, chunk=700)
        self.wait_until("the files are closed", lambda: not self.open_uploads(proxy))

    def test_other_engines(self):
        for engine in ("epoll", "select"):
            proxy = self.start(more=f'engine = "{engine}"')
            self.check(proxy, 5_000_000)
            self.check(proxy, 5_000_000, chunk=65_536)
            proxy.stop()

    def test_the_program_waits_for_no_client(self):
        proxy = self.start()
        names = self.names()
        body = b"".join(pattern.blocks(3_000_000))
        slow = self.begin(proxy, len(body))
        slow.send(body[:-1])
        self.wait_until("bytes are in a file", lambda: sum(self.open_uploads(proxy)) > 2_000_000)
        self.assertEqual(self.names(), names, "the file has no name")
        self.assertEqual(self.program.connections, 0)
        self.check(proxy, 2_000_000)
        slow.send(body[-1:])
        self.assertEqual(slow.read_response().status, 200)
        # The connection serves the next request.
        slow.get("/b")
        self.assertEqual(slow.read_response().status, 200)

    def test_malformed_chunks(self):
        proxy = self.start()
        connection = self.begin(proxy)
        connection.send(b"5\r\nhello\r\nZZ")
        self.assertEqual(connection.read_response().status, 400)

    def test_expectations(self):
        proxy = self.start()
        body = b"".join(pattern.blocks(2_000_000))
        connection = self.begin(proxy, len(body), extra="Expect: 100-continue\r\n")
        self.assertEqual(connection.head()[1], 100)
        connection.send(body)
        found = connection.read_response()
        self.assertTrue(found.body.endswith(hashlib.sha256(body).hexdigest().encode()))

    def test_a_body_beyond_the_limit(self):
        proxy = self.start("upload_file_bytes = 2000000")
        self.check(proxy, 2_000_000)
        self.check(proxy, 2_000_000, chunk=50_000)
        # It is sent while it arrives.
        self.check(proxy, 5_000_000)
        body = b"x" * 2_000_001
        self.assertEqual(self.post(proxy, body, chunk=50_000).status, 413)
        self.wait_until("the file is closed", lambda: not self.open_uploads(proxy))

    def test_all_bodies_together(self):
        proxy = self.start("upload_disk_bytes = 4000000")
        kept = self.begin(proxy, 3_000_000)
        kept.send(b"x" * 2_900_000)
        self.wait_until("bytes are in a file", lambda: sum(self.open_uploads(proxy)) > 2_000_000)
        found = self.post(proxy, b"x" * 2_500_000)
        self.assertEqual((found.status, found.fields["connection"]), (507, "close"))
        self.check(proxy, 1 << 20)
        kept.send(b"x" * 100_000)
        self.assertEqual(kept.read_response().status, 200)
        self.check(proxy, 3_500_000)

    def test_a_client_that_leaves(self):
        proxy = self.start("upload_disk_bytes = 4000000")
        for resets in (False, True):
            connection = self.begin(proxy, 3_900_000)
            connection.send(b"x" * 3_800_000)
            self.wait_until("bytes are in a file", lambda: sum(self.open_uploads(proxy)) > 3 << 20)
            if resets:
                linger = struct.pack("ii", 1, 0)
                connection.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            connection.socket.close()
            self.wait_until("the file is closed", lambda: not self.open_uploads(proxy))
        self.check(proxy, 3_900_000)
        self.assertEqual(self.program.connections, 1)

    def test_a_slow_client(self):
        proxy = self.start("body_ms = 300")
        connection = self.begin(proxy, 3_000_000)
        connection.send(b"x" * 2_000_000)
        self.assertEqual(connection.read_response().status, 408)

    def test_a_program_that_does_not_read(self):
        begun = threading.Event()

        def deaf(connection):
            begun.set()
            time.sleep(0.5)
            connection.sendall(fastcgi.output(b"Content-Type: a/b\n\nearly"))

        class Deaf(fastcgi.Program):
            def serve(self, connection):
                self.connections += 1
                deaf(connection)
                while connection.recv(65536):
                    pass

        self.program = Deaf(None)
        self.addCleanup(self.program.stop)
        proxy = self.start()
        found = self.post(proxy, b"x" * (20 << 20))
        self.assertEqual((found.status, found.body), (200, b"early"))
        self.wait_until("the file is closed", lambda: not self.open_uploads(proxy))

    @mounted
    def test_a_full_disk(self):
        full = self.folder / "full"
        full.mkdir()
        mount = ("mount", "-t", "tmpfs", "-o", "size=24m,mode=755", "tmpfs", str(full))
        subprocess.run(mount, check=True)
        self.addCleanup(subprocess.run, ("umount", "--lazy", str(full)), check=False)
        proxy = self.start(disk=full / "disk")
        self.assertEqual(self.post(proxy, b"x" * (40 << 20)).status, 507)
        self.check(proxy, 5_000_000)
        self.check(proxy, 1000)
        self.assertEqual(self.post(proxy, b"x" * (40 << 20), chunk=100_000).status, 507)
        self.check(proxy, 5_000_000, chunk=100_000)


class WithoutDisk(Uploads):
    def test_a_long_body_is_sent_while_it_arrives(self):
        config = self.folder / "millrace.toml"
        config.write_text(
            '[[boost]]\nlisten = "127.0.0.1:0"\n[[boost.route]]\n'
            f'fastcgi = "127.0.0.1:{self.program.port}"\n'
        )
        proxy = self.millrace("run", config)
        self.check(proxy, 5_000_000)
        self.check(proxy, 1 << 20, chunk=100_000)
        self.assertEqual(self.post(proxy, b"x" * 2_000_000, chunk=100_000).status, 413)
        body = b"".join(pattern.blocks(3_000_000))
        connection = self.begin(proxy, len(body), extra="Expect: 100-continue\r\n")
        self.assertEqual(connection.head()[1], 100)
        connection.send(body)
        found = connection.read_response()
        self.assertTrue(found.body.endswith(hashlib.sha256(body).hexdigest().encode()))
