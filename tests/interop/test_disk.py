"""The disk tier: stored objects outlive the process, and a failing disk affects nothing else. curl
is the client, and `millrace cache` the operator."""

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
from support.scripted import Response
from support.shop import ShopCase

HOUR = "max-age=3600"
LONG = bytes(range(256)) * 4096


class Disk(ShopCase):
    def setUp(self):
        super().setUp()
        self.disk = self.folder / "disk"

    def start(self, *options, disks=None, size="64M", **how):
        """Starts a reverse proxy with disks; the site is the same in each."""
        words = []
        for disk in disks or [self.disk]:
            words += ["--disk", f"{disk}:{size}"]
        self.door.unlink(missing_ok=True)
        proxy = self.boost(
            self.shop.url, *words, "--memory", "256M", "--workers", "2",
            "--admin", f"unix:{self.door}", *options, **how,
        )
        self.wait_until("what is stored is found", lambda: not self.stat("disk_recovering"))
        return proxy

    def kill(self, proxy):
        """kill -9: it gets to do nothing more."""
        os.kill(proxy.process.pid, signal.SIGKILL)
        proxy.process.wait()

    def get(self, proxy, path, *arguments):
        """One request for the site: status, Cache-Status, the body."""
        status, fields, body = self.ask(proxy, path, "--header", "Host: shop", *arguments)
        return status, fields.get("cache-status", ""), body

    def stat(self, name):
        return json.loads(self.cache("stat", "--json"))[name]

    def fill(self, proxy, bodies, **fields):
        """Requests the objects and waits until they are on a disk."""
        before = self.stat("disk_stored")
        for path, body in bodies.items():
            self.responses[path] = Response(body, Cache_Control=HOUR, **fields)
            self.assertEqual(self.get(proxy, path)[2], body)
        self.wait_until(
            "they are written", lambda: self.stat("disk_stored") >= before + len(bodies)
        )

    def assert_from_disk(self, proxy, path, body):
        asked = self.shop.count(path)
        status, output, got = self.get(proxy, path)
        self.assertEqual((status, got == body), (200, True), f"{path}: {len(got)} bytes")
        self.assertIn("hit", output)
        self.assertIn("detail=disk", output)
        self.assertEqual(self.shop.count(path), asked, "the origin was asked")
        self.assertIn("hit", self.get(proxy, path)[1])
        self.assertNotIn("detail=disk", self.get(proxy, path)[1], "now it is in memory")

    def test_what_is_stored_outlives_the_process_however_it_ends(self):
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
        # As the first request for it after a start.
        status, output, body = self.get(proxy, "/long", "--range", "5-9")
        self.assertEqual((status, body), (206, LONG[5:10]))
        self.assertIn("detail=disk", output)
        self.assertEqual(self.get(proxy, "/a", "--head")[0], 200)
        status, _, _ = self.get(proxy, "/a", "--header", 'If-None-Match: "1"')
        self.assertEqual(status, 304)
        self.assertEqual(sum(map(self.shop.count, bodies)), len(bodies))

    def run_file(self, text):
        """A process that runs this file, on the disk."""
        self.door.unlink(missing_ok=True)
        file = self.folder / "millrace.toml"
        head = f'disk = "{self.disk}:64M"\nmemory = "256M"\nworkers = 2\nadmin = "unix:{self.door}"\n'
        file.write_text(head + text)
        proxy = self.millrace("run", file)
        self.wait_until("what is stored is found", lambda: not self.stat("disk_recovering"))
        return proxy

    def test_another_listen_address_keeps_what_is_stored(self):
        proxy = self.start()
        self.fill(proxy, {"/a": b"one"})
        self.assertEqual(proxy.stop(), 0)
        route = f"[[boost.route]]\norigins = '{self.shop.url}'\n"
        proxy = self.run_file(f"[[boost]]\nlisten = '127.0.0.2:0'\n{route}")
        self.assert_from_disk(proxy, "/a", b"one")
        self.assertEqual([line for line in proxy.lines if "stored responses" in line], [])

    def test_a_start_says_how_many_stored_responses_match_no_service(self):
        named = "[[boost]]\nname = '{}'\nlisten = '127.0.0.1:0'\n[[boost.route]]\norigins = '{}'\n"
        proxy = self.run_file(named.format("shop", self.shop.url))
        self.fill(proxy, {"/a": b"one", "/b": b"two", "/c": LONG})
        self.kill(proxy)
        proxy = self.run_file(named.format("store", self.shop.url))
        output = "millrace: up to 3 stored responses on disk match no service"
        self.wait_until("it says so", lambda: any(line.startswith(output) for line in proxy.lines))
        self.fill(proxy, {"/a": b"one"})
        self.assertEqual(self.shop.count("/a"), 2, "it is not found under the new name")
        self.assertEqual(proxy.stop(), 0)
        proxy = self.run_file(named.format("shop", self.shop.url))
        self.assert_from_disk(proxy, "/a", b"one")
        output = "millrace: up to 1 stored response on disk matches no service"
        self.wait_until("it says so", lambda: any(line.startswith(output) for line in proxy.lines))

    def test_operators_see_and_purge_what_only_a_disk_has(self):
        paths = ("/a", "/b", "/c/1", "/c/2", "/tagged", "/left")
        proxy = self.start()
        self.fill(proxy, {path: path.encode() for path in paths if path != "/tagged"})
        self.fill(proxy, {"/tagged": b"tagged"}, Surrogate_Key="red blue")
        self.kill(proxy)
        proxy = self.start()
        listed = self.cached()
        self.assertEqual({it["url"] for it in listed}, {f"http://shop{path}" for path in paths})
        self.assertEqual({it["place"] for it in listed}, {"disk"})
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

    def test_what_a_304_says_and_what_is_made_invalid_outlives_the_process(self):
        proxy = self.start()
        for path in ("/a", "/b"):
            self.responses[path] = Response(b"old", ETag='"1"', Cache_Control="no-cache")
            self.get(proxy, path)
        self.wait_until("they are written", lambda: self.stat("disk_stored") == 2)
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
        # Not in the first part of it: that was sent when the damage is found.
        content[content.index(LONG) + len(LONG) - 100] ^= 1
        segment.write_bytes(content)
        proxy = self.start()
        _, output, body = self.get(proxy, "/a")
        self.assertEqual((body, "fwd=uri-miss" in output), (b"a" * 5000, True), output)
        self.assert_from_disk(proxy, "/b", b"b" * 5000)
        # The damage was found at the start, or before the request, or cut the response. All
        # received bytes are right.
        with socket.create_connection(proxy.address, 60) as client:
            client.sendall(b"GET /long HTTP/1.1\r\nHost: shop\r\nConnection: close\r\n\r\n")
            _, _, body = client.makefile("rb").read().partition(b"\r\n\r\n")
        self.assertTrue(LONG.startswith(body), "wrong bytes")
        self.assertEqual(self.get(proxy, "/long")[2], LONG)
        proxy.stop()

    @mounted
    def test_a_full_file_system_stores_less_and_serves_all(self):
        """A file system of 24 MB, of which the disk was promised 1 GB."""
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

    def test_several_disks_share_what_is_stored(self):
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
        # The other disk missed that, so its objects may be outdated.
        proxy = self.start(disks=disks)
        self.assertTrue(any("its responses were dropped" in line for line in proxy.lines))

    def test_a_folder_that_is_not_as_it_has_to_be_is_refused_in_words(self):
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

    def test_a_folder_may_be_reached_by_a_link_of_roots(self):
        """As systemd lays out the CacheDirectory= of a unit with DynamicUser=."""
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
        self.door.unlink(missing_ok=True)
        words = ("boost", "--origin", self.shop.url, "--listen", "127.0.0.1:0")
        done = subprocess.run(
            [program(), *words, "--disk", f"{disk}:64M"], stdin=subprocess.DEVNULL,
            capture_output=True, text=True, timeout=COMMAND_SECONDS_MAX, check=False,
        )
        self.assertEqual(done.returncode, status, done.stderr)
        self.assertIn(output, done.stderr)

    def test_a_successor_gets_the_disk_when_the_old_process_drains(self):
        """It serves at once, from the origin. Objects purged meanwhile stay purged."""
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        words = ("boost", "--origin", self.shop.url, "--listen", f"127.0.0.1:{port}")
        more = ("--disk", f"{self.disk}:64M", "--admin", f"unix:{self.door}")
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
        self.door.unlink(missing_ok=True)
        new = Millrace(*words, *more)
        self.addCleanup(self._end, new)
        self.assertIn("fwd=uri-miss", self.get(new, "/b")[1])

    def test_no_byte_is_wrong_after_any_of_some_kills_under_load(self):
        """A few of the 200 of `make soak`."""
        script = PROJECT / "scripts" / "disk-kill"
        environment = {**os.environ, "MILLRACE": str(program()), "COUNT": "5"}
        done = subprocess.run(
            [sys.executable, str(script)], env=environment, stdin=subprocess.DEVNULL,
            capture_output=True, text=True, timeout=COMMAND_SECONDS_MAX, check=False,
        )
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertIn("0 wrong", done.stdout)
