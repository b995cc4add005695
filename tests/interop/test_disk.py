"""The disk tier: stored objects outlive the process, and a failing disk affects only itself."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys

from support import PROJECT
from support.case import COMMAND_SECONDS_MAX
from support.millrace import Millrace, program
from support.namespace import mounted
from support.ports import free_port
from support.scripted import Response
from support.shop import ShopCase

HOUR = "max-age=3600"
LONG = bytes(range(256)) * 4096


class Disk(ShopCase):
    def setUp(self):
        super().setUp()
        self.disk = self.folder / "disk"

    def start(self, *options, disks=None, size="64M", **how):
        """Starts a reverse proxy with disks, before the same origin each time."""
        words = []
        for disk in disks or [self.disk]:
            words += ["--disk", f"{disk}:{size}"]
        self.admin_path.unlink(missing_ok=True)
        proxy = self.boost(
            self.shop.url, *words, "--memory", "256M", "--workers", "2",
            "--admin", f"unix:{self.admin_path}", *options, **how,
        )
        self.wait_until("the disk is recovered", lambda: not self.stat("disk_recovering"))
        return proxy

    def kill(self, proxy):
        """Kills the process by SIGKILL."""
        os.kill(proxy.process.pid, signal.SIGKILL)
        proxy.process.wait()

    def get(self, proxy, path, *arguments):
        """Makes one request. Returns the status, Cache-Status and the body."""
        status, fields, body = self.curl(proxy, path, "--header", "Host: shop", *arguments)
        return status, fields.get("cache-status", ""), body

    def wait_for_line(self, proxy, start):
        """Waits until millrace prints a line that begins with `start`."""
        printed = lambda: any(line.startswith(start) for line in proxy.lines)
        self.wait_until(f"a line {start}", printed)

    def stat(self, name):
        return json.loads(self.cache("stat", "--json"))[name]

    def fill(self, proxy, bodies, **fields):
        """Requests the objects and waits until they are on a disk."""
        before = self.stat("disk_stored")
        for path, body in bodies.items():
            self.responses[path] = Response(body, Cache_Control=HOUR, **fields)
            self.assertEqual(self.get(proxy, path)[2], body)
        self.wait_until(
            "the responses are on disk", lambda: self.stat("disk_stored") >= before + len(bodies)
        )

    def assert_from_disk(self, proxy, path, body):
        requests_before = self.shop.count(path)
        status, output, got = self.get(proxy, path)
        self.assertEqual((status, got == body), (200, True), f"{path}: {len(got)} bytes")
        self.assertIn("hit", output)
        self.assertIn("detail=disk", output)
        self.assertEqual(self.shop.count(path), requests_before, "the origin received a request")
        self.assertIn("hit", self.get(proxy, path)[1])
        self.assertNotIn("detail=disk", self.get(proxy, path)[1], "now it is in memory")

    def test_stored_responses_outlive_orderly_ends_and_kills(self):
        bodies = {"/a": b"one", "/empty": b"", "/long": LONG}
        proxy = self.start()
        self.fill(proxy, bodies, ETag='"1"')
        self.assertEqual(oct(self.disk.stat().st_mode & 0o7777), "0o700")
        for end in (lambda: self.kill(proxy), lambda: self.assertEqual(proxy.stop(), 0)):
            end()
            proxy = self.start()
            for path, body in bodies.items():
                self.assert_from_disk(proxy, path, body)
        status, _, body = self.get(proxy, "/long", "--range", "1000-1999")
        self.assertEqual((status, body), (206, LONG[1000:2000]))
        self.kill(proxy)
        proxy = self.start()
        # The first request after a start is a range.
        status, output, body = self.get(proxy, "/long", "--range", "5-9")
        self.assertEqual((status, body), (206, LONG[5:10]))
        self.assertIn("detail=disk", output)
        self.assertEqual(self.get(proxy, "/a", "--head")[0], 200)
        status, _, _ = self.get(proxy, "/a", "--header", 'If-None-Match: "1"')
        self.assertEqual(status, 304)
        self.assertEqual(sum(map(self.shop.count, bodies)), len(bodies))

    def run_file(self, text):
        """Starts a process with this configuration and the disk."""
        self.admin_path.unlink(missing_ok=True)
        file = self.folder / "millrace.toml"
        head = f'disk = "{self.disk}:64M"\nmemory = "256M"\nworkers = 2\n'
        head += f'admin = "unix:{self.admin_path}"\n'
        file.write_text(head + text)
        proxy = self.millrace("run", file)
        self.wait_until("the disk is recovered", lambda: not self.stat("disk_recovering"))
        return proxy

    def test_stored_responses_outlive_a_new_listen_address(self):
        proxy = self.start()
        self.fill(proxy, {"/a": b"one"})
        self.assertEqual(proxy.stop(), 0)
        route = f"[[boost.route]]\norigins = '{self.shop.url}'\n"
        proxy = self.run_file(f"[[boost]]\nlisten = '127.0.0.2:0'\n{route}")
        self.assert_from_disk(proxy, "/a", b"one")
        self.assertEqual([line for line in proxy.lines if "stored responses" in line], [])

    def test_a_start_reports_stored_responses_without_a_service(self):
        named = "[[boost]]\nname = '{}'\nlisten = '127.0.0.1:0'\n[[boost.route]]\norigins = '{}'\n"
        proxy = self.run_file(named.format("shop", self.shop.url))
        self.fill(proxy, {"/a": b"one", "/b": b"two", "/c": LONG})
        self.kill(proxy)
        proxy = self.run_file(named.format("store", self.shop.url))
        output = "millrace: up to 3 stored responses on disk match no service"
        self.wait_for_line(proxy, output)
        self.fill(proxy, {"/a": b"one"})
        self.assertEqual(self.shop.count("/a"), 2, "it is not found under the new name")
        self.assertEqual(proxy.stop(), 0)
        proxy = self.run_file(named.format("shop", self.shop.url))
        self.assert_from_disk(proxy, "/a", b"one")
        output = "millrace: up to 1 stored response on disk matches no service"
        self.wait_for_line(proxy, output)

    def test_operators_list_and_purge_responses_on_disk(self):
        paths = ("/a", "/b", "/c/1", "/c/2", "/tagged", "/left")
        proxy = self.start()
        self.fill(proxy, {path: path.encode() for path in paths if path != "/tagged"})
        self.fill(proxy, {"/tagged": b"tagged"}, Surrogate_Key="red blue")
        self.kill(proxy)
        proxy = self.start()
        listed = self.cached()
        self.assertEqual({it["url"] for it in listed}, {f"http://shop{path}" for path in paths})
        self.assertEqual({it["tier"] for it in listed}, {"disk"})
        self.assertIn("in disk", self.cache("show", "http://shop/a"))
        output = self.cache("purge", "http://shop/a")
        self.assertIn("purged: 0 in memory; matching responses on disks are not used again", output)
        self.cache("purge", "--prefix", "http://shop/c/")
        self.cache("purge", "--tag", "red", "--soft")
        self.kill(proxy)
        proxy = self.start()
        for path in ("/a", "/c/1", "/c/2"):
            self.assertIn("fwd=uri-miss", self.get(proxy, path)[1], path)
        self.assertIn("fwd=stale", self.get(proxy, "/tagged")[1])
        self.assert_from_disk(proxy, "/b", b"/b")
        self.cache("purge", "--all")
        self.kill(proxy)
        proxy = self.start()
        self.assertIn("fwd=uri-miss", self.get(proxy, "/left")[1])

    def test_validations_and_invalidations_outlive_the_process(self):
        proxy = self.start()
        for path in ("/a", "/b"):
            self.responses[path] = Response(b"old", ETag='"1"', Cache_Control="no-cache")
            self.get(proxy, path)
        self.wait_until("the responses are on disk", lambda: self.stat("disk_stored") == 2)
        self.responses["/a"] = Response(b"old", ETag='"1"', Cache_Control=HOUR)
        self.assertIn("fwd-status=304", self.get(proxy, "/a")[1])
        self.fill(proxy, {"/form": b"before"})
        self.responses["/form"] = Response(b"after", Cache_Control=HOUR)
        self.get(proxy, "/form", "--data", "x=1")
        self.assertEqual(proxy.stop(), 0)
        proxy = self.start()
        self.assert_from_disk(proxy, "/a", b"old")
        self.assertIn("fwd=stale", self.get(proxy, "/b")[1])
        self.assertEqual(self.get(proxy, "/form")[2], b"after")

    def test_a_flipped_byte_is_a_miss(self):
        proxy = self.start()
        self.fill(proxy, {"/a": b"a" * 5000, "/b": b"b" * 5000, "/long": LONG})
        self.kill(proxy)
        segment = next(self.disk.glob("segment-*"))
        content = bytearray(segment.read_bytes())
        content[content.index(b"a" * 5000) + 2500] ^= 1
        # The damage is not in the first part, which may have been sent before the damage is found.
        content[content.index(LONG) + len(LONG) - 100] ^= 1
        segment.write_bytes(content)
        proxy = self.start()
        _, output, body = self.get(proxy, "/a")
        self.assertEqual((body, "fwd=uri-miss" in output), (b"a" * 5000, True), output)
        self.assert_from_disk(proxy, "/b", b"b" * 5000)
        # The damage is found at the start, before the request, or while the response is sent, which
        # is then cut. All received bytes are right in each case.
        with socket.create_connection(proxy.address, 60) as client:
            client.sendall(b"GET /long HTTP/1.1\r\nHost: shop\r\nConnection: close\r\n\r\n")
            _, _, body = client.makefile("rb").read().partition(b"\r\n\r\n")
        self.assertTrue(LONG.startswith(body), "wrong bytes")
        self.assertEqual(self.get(proxy, "/long")[2], LONG)
        proxy.stop()

    @mounted
    def test_a_full_file_system_stores_less_and_serves_all(self):
        """The disk has a configured size of 1 GB on a file system of 24 MB."""
        full = self.folder / "full"
        full.mkdir()
        mount = ("mount", "-t", "tmpfs", "-o", "size=24m,mode=700", "tmpfs", str(full))
        subprocess.run(mount, check=True)
        self.addCleanup(subprocess.run, ("umount", "--lazy", str(full)), check=False)
        disk = full / "disk"
        proxy = self.start(disks=[disk], size="1G")
        for number in range(60):
            path = f"/{number}"
            body = bytes([number]) * (1 << 20)
            self.responses[path] = Response(body, Cache_Control=HOUR)
            self.assertEqual(self.get(proxy, path)[::2], (200, body))
        self.wait_until("the disk is full", lambda: self.stat("disk_full") > 0)
        self.assertEqual(self.get(proxy, "/59")[0], 200)
        self.kill(proxy)
        proxy = self.start(disks=[disk], size="1G")
        for number in range(60):
            body = self.get(proxy, f"/{number}")[2]
            self.assertEqual(body, bytes([number]) * (1 << 20))

    def test_stored_responses_are_spread_over_disks(self):
        disks = [self.folder / "one", self.folder / "two"]
        proxy = self.start(disks=disks)
        bodies = {f"/{number}": bytes([number]) * 9000 for number in range(40)}
        self.fill(proxy, bodies)
        self.assertEqual(proxy.stop(), 0)
        for disk in disks:
            bytes_of = sum(file.stat().st_size for file in disk.glob("segment-*"))
            self.assertGreater(bytes_of, 5 * 9000)
        proxy = self.start(disks=disks)
        for path, body in bodies.items():
            self.assert_from_disk(proxy, path, body)
        self.assertEqual(proxy.stop(), 0)
        proxy = self.start(disks=disks[:1])
        found = sum("detail=disk" in self.get(proxy, path)[1] for path in bodies)
        self.assertTrue(0 < found < len(bodies))
        self.assertEqual(proxy.stop(), 0)
        # The other disk was absent in between, so its objects may be outdated.
        proxy = self.start(disks=disks)
        self.assertTrue(any("its responses were dropped" in line for line in proxy.lines))

    def test_an_unsafe_disk_folder_is_refused_with_the_reason(self):
        other = self.folder / "other"
        other.mkdir(mode=0o700)
        link = self.folder / "link"
        link.symlink_to(other)
        if os.getuid() == 0:
            os.lchown(link, 12345, 12345)
        output = f"disk {link}: {link} is a symbolic link that root does not own (expected:"
        self.refused(link, output, 2)
        other.chmod(0o750)
        self.refused(other, f"disk {other}: {other} is accessible to other users (mode 750)", 2)
        if os.getuid() == 0:
            other.chmod(0o700)
            os.chown(other, 12345, 12345)
            self.refused(other, f"--disk {other}: owned by user 12345")
        self.start()
        self.refused(self.disk, f"--disk {self.disk}: in use by another process")

    def test_a_disk_folder_may_be_a_link_that_root_owns(self):
        """systemd creates such a link for CacheDirectory= of a unit with DynamicUser=."""
        if os.getuid() != 0:
            self.skipTest("only root makes links of root's")
        self.folder.chmod(0o777)
        private = self.folder / "private"
        private.mkdir(mode=0o700)
        os.chown(private, 12345, 12345)
        self.disk.symlink_to("private")
        copy = shutil.copy(program(), self.folder / "millrace")

        def become_ordinary():
            os.setgroups([])
            os.setgid(12345)
            os.setuid(12345)

        how = {"before": become_ordinary, "binary": copy}
        proxy = self.start(**how)
        self.fill(proxy, {"/a": b"one"})
        self.assertEqual(proxy.stop(), 0)
        self.assert_from_disk(self.start(**how), "/a", b"one")

    def refused(self, disk, output, status=1):
        self.admin_path.unlink(missing_ok=True)
        words = ("boost", "--origin", self.shop.url, "--listen", "127.0.0.1:0")
        done = subprocess.run(
            [program(), *words, "--disk", f"{disk}:64M"], stdin=subprocess.DEVNULL,
            capture_output=True, text=True, timeout=COMMAND_SECONDS_MAX, check=False,
        )
        self.assertEqual(done.returncode, status, done.stderr)
        self.assertIn(output, done.stderr)

    def test_a_successor_gets_the_disk_when_the_old_process_drains(self):
        """The successor serves from the origin until it has the disk. Objects purged later stay
        purged."""
        listen = ("--listen", f"127.0.0.1:{free_port()}")
        words = ("boost", "--origin", self.shop.url, *listen)
        more = ("--disk", f"{self.disk}:64M", "--admin", f"unix:{self.admin_path}")
        old = Millrace(*words, *more)
        self.addCleanup(self._end, old)
        self.fill(old, {"/a": b"one", "/b": b"two"})
        new = Millrace(*words, *more, "--upgrade")
        self.addCleanup(self._end, new)
        self.wait_until("the old process ends", lambda: old.process.poll() is not None)
        self.assertEqual(old.wait(), 0)
        self.wait_until("the disk is open", lambda: self.stat("disk_objects") >= 2)
        self.assert_from_disk(new, "/a", b"one")
        self.cache("purge", "http://shop/b")
        self.kill(new)
        self.admin_path.unlink(missing_ok=True)
        new = Millrace(*words, *more)
        self.addCleanup(self._end, new)
        self.assertIn("fwd=uri-miss", self.get(new, "/b")[1])

    def test_no_byte_is_wrong_after_kills_under_load(self):
        """A short run of `scripts/disk-kill`, which `make soak` runs with 200 kills."""
        script = PROJECT / "scripts" / "disk-kill"
        environment = {**os.environ, "MILLRACE": str(program()), "COUNT": "5"}
        done = subprocess.run(
            [sys.executable, str(script)], env=environment, stdin=subprocess.DEVNULL,
            capture_output=True, text=True, timeout=COMMAND_SECONDS_MAX, check=False,
        )
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertRegex(done.stdout, r"\b0 wrong")
