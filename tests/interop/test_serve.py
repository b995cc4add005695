"""Files of a folder by `millrace serve`: bodies of all sizes, conditions, ranges, changes, links,
hidden files, listings, encoded forms and an origin behind the folder."""

import contextlib
import gzip
import itertools
import json
import os
import pathlib
import socket
import threading
import time

from support import pattern, wire
from support.case import InteropCase

# How often files and folders are changed under load; `make soak` has more.
CHANGES = int(os.environ.get("CHANGES", "1000"))
LENGTHS = (0, 1, 8 << 10, 64 << 10, (64 << 10) + 1, 1 << 20, (4 << 20) + 1, 20 << 20)


class Case(InteropCase):
    def write(self, name, content):
        path = self.site / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        return path

    def get(self, proxy, target, extra="", **how):
        """Makes a GET request on a connection of its own."""
        connection = wire.Connection(proxy.address)
        with contextlib.closing(connection.socket):
            connection.get(target, extra=f"Connection: close\r\n{extra}")
            return connection.read_response(**how)

    def assert_status(self, proxy, expected):
        found = {target: self.get(proxy, target).status for target in expected}
        self.assertEqual(found, expected)


class Files(Case):
    programs = ("curl",)

    def test_bodies_of_all_sizes(self):
        digests = {}
        for length in LENGTHS:
            digests[length] = pattern.write(self.site / f"{length}.bin", length, seed=length + 1)
        old = time.time() - 100
        for path in self.site.iterdir():
            os.utime(path, (old, old))
        # Files that were changed just now are sent from the file, later ones from memory.
        proxy = self.serve()
        for attempt in range(3):
            connection = wire.Connection(proxy.address)
            with contextlib.closing(connection.socket):
                for length, digest in digests.items():
                    connection.get(f"/{length}.bin")
                    response = connection.read_response()
                    found = (response.status, response.length, response.digest)
                    self.assertEqual(found, (200, length, digest), f"attempt {attempt}")
            time.sleep(1.2)

    def test_conditions_and_ranges(self):
        self.write("a.txt", bytes(range(256)) * 400)
        proxy = self.serve()
        url = f"{proxy.url}/a.txt"
        whole = self.get(proxy, "/a.txt")
        self.assertEqual(whole.fields["content-type"], "text/plain; charset=utf-8")
        time.sleep(1.2)
        etag = self.get(proxy, "/a.txt").fields["etag"]
        self.assertTrue(etag.startswith('"'), "strong, because the file was left alone")
        for extra, status in (
            (f"If-None-Match: {etag}\r\n", 304),
            ('If-None-Match: "other"\r\n', 200),
            (f"If-Modified-Since: {whole.fields['last-modified']}\r\n", 304),
            ("If-Modified-Since: Thu, 01 Jan 1970 00:00:10 GMT\r\n", 200),
        ):
            self.assertEqual(self.get(proxy, "/a.txt", extra).status, status, extra)
        part = self.run_client("curl", "-sf", "-r", "100-199", url).stdout
        self.assertEqual(part, whole.body[100:200])
        last = self.run_client("curl", "-sf", "-r", "-10", url).stdout
        self.assertEqual(last, whole.body[-10:])
        parts = self.run_client("curl", "-sf", "-r", "0-9,50-59", url).stdout
        self.assertIn(whole.body[:10], parts)
        self.assertIn(whole.body[50:60], parts)
        self.assertEqual(self.get(proxy, "/a.txt", "Range: bytes=999999-\r\n").status, 416)
        old = self.get(proxy, "/a.txt", 'Range: bytes=0-9\r\nIf-Range: "old"\r\n')
        self.assertEqual((old.status, old.length), (200, whole.length))

    def test_without_a_modification_time_if_modified_since_is_ignored(self):
        os.utime(self.write("a.txt", b"text"), (0, 0))
        proxy = self.serve("--listing")
        since = "If-Modified-Since: Fri, 31 Dec 9999 23:59:59 GMT\r\n"
        for target in ("/a.txt", "/"):
            response = self.get(proxy, target, since)
            self.assertEqual((response.status, "last-modified" in response.fields), (200, False))
        os.utime(self.site / "a.txt", (10, 10))
        dated = lambda: self.get(proxy, "/a.txt", since).status
        self.wait_until("the file has a time", lambda: dated() == 304)

    def test_methods(self):
        self.write("a.txt", b"text")
        proxy = self.serve()
        connection = wire.Connection(proxy.address)
        with contextlib.closing(connection.socket):
            for method, status in (("HEAD", 200), ("OPTIONS", 200), ("POST", 405), ("PUT", 405)):
                connection.send(
                    f"{method} /a.txt HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n".encode()
                )
                response = connection.read_response(method=method)
                self.assertEqual(response.status, status, method)
                if method != "HEAD":
                    self.assertEqual(response.fields["allow"], "GET, HEAD, OPTIONS")
                else:
                    self.assertEqual(response.fields["content-length"], "4")

    def test_names(self):
        self.write("dir/index.html", b"index")
        self.write("a b/\u00e9?.txt", b"name")
        self.write(".secret", b"no")
        self.write(".well-known/x", b"yes")
        self.write("a.php", b"<?php source")
        self.write("a.php.bak", b"<?php source")
        self.write("notes.key", b"no")
        proxy = self.serve("--hide", "*.key")
        self.assert_status(
            proxy,
            {
                "/dir/": 200,
                "/dir": 301,
                "/dir/index.html": 200,
                "/dir/index.html/": 404,
                "/a%20b/%c3%a9%3f.txt": 200,
                "/none": 404,
                "/.secret": 404,
                "/.well-known/x": 200,
                "/a.php": 404,
                "/a.php.bak": 404,
                "/notes.key": 404,
                "/": 404,
                "/a%2f..%2fb": 400,
                "/a%5cb": 400,
                "/%00": 400,
                "/../../etc/passwd": 404,
                "/%2e%2e/%2e%2e/etc/passwd": 404,
                "/..%2f..%2fetc/passwd": 400,
            },
        )
        redirect = self.get(proxy, "/dir?a=b")
        self.assertEqual(redirect.fields["location"], "dir/?a=b")

    def test_a_listing(self):
        for name, length in (("big", 3000), ("small", 1), ("<script>", 5)):
            self.write(f"dir/{name}", b"x" * length)
        self.write("dir/.hidden", b"")
        (self.site / "dir/sub").mkdir()
        self.assert_status(self.serve(), {"/dir/": 404})
        proxy = self.serve("--listing")
        page = self.get(proxy, "/dir/?sort=size&order=desc").body.decode()
        self.assertLess(page.index("sub/"), page.index("big"))
        self.assertLess(page.index("big"), page.index("small"))
        self.assertIn("&lt;script&gt;", page)
        self.assertNotIn("<script>", page)
        self.assertNotIn("hidden", page)
        self.assertEqual(self.get(proxy, "/dir").fields["location"], "dir/")
        # A script might respond to POST.
        proxy = self.serve("--listing", "--fastcgi", "127.0.0.1:1")
        connection = wire.Connection(proxy.address)
        with contextlib.closing(connection.socket):
            connection.send(b"POST /dir/ HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n")
            self.assertEqual(connection.read_response().status, 405)
        self.assertEqual(self.get(proxy, "/dir/").status, 200)

    def test_encoded_forms(self):
        text = b"text " * 1000
        self.write("a.css", text)
        self.write("a.css.gz", gzip.compress(text))
        proxy = self.serve()
        plain = self.get(proxy, "/a.css")
        self.assertEqual((plain.body, plain.fields["vary"]), (text, "Accept-Encoding"))
        coded = self.get(proxy, "/a.css", "Accept-Encoding: br;q=0.9, gzip\r\n")
        self.assertEqual(gzip.decompress(coded.body), text)
        self.assertEqual(coded.fields["content-encoding"], "gzip")
        self.assertTrue(coded.fields["content-type"].startswith("text/css"))
        self.assertNotEqual(coded.fields["etag"], plain.fields["etag"])
        proxy = self.serve("--precompressed=off", "--compress=off")
        off = self.get(proxy, "/a.css", "Accept-Encoding: gzip\r\n")
        self.assertEqual((off.body, "vary" in off.fields), (text, False))

    def test_hidden_indexes_and_encoded_forms(self):
        text = b"text " * 1000
        self.write("index.html", b"index")
        self.write("a.css", text)
        self.write("a.css.gz", gzip.compress(b"form"))
        hidden = ("--hide", "index.html", "--hide", "*.gz", "--compress=off")
        proxy = self.serve(*hidden)
        self.assertEqual(self.get(proxy, "/").status, 404)
        coded = self.get(proxy, "/a.css", "Accept-Encoding: gzip\r\n")
        self.assertEqual((coded.body, "content-encoding" in coded.fields), (text, False))
        listing = self.get(self.serve(*hidden, "--listing"), "/")
        self.assertEqual(listing.status, 200)
        self.assertIn(b"a.css", listing.body)
        self.assertNotIn(b"a.css.gz", listing.body)
        other = self.serve("--index", "index.html", "--index", "a.css", *hidden)
        self.assertEqual(self.get(other, "/").body, text)

    def test_compression(self):
        text = b"".join(b"line %d of a text\n" % number for number in range(20_000))
        noise = os.urandom(5000)
        old = time.time() - 100
        for name, content in (("a.css", text), ("a.png", text), ("a.txt", noise), ("s.css", b"s")):
            os.utime(self.write(name, content), (old, old))
        proxy = self.serve()
        time.sleep(1.2)
        plain = self.get(proxy, "/a.css")
        self.assertEqual(plain.body, text)
        for coding in ("gzip", "br", "zstd"):
            wanted = f"Accept-Encoding: {coding}\r\n"
            first, second = self.get(proxy, "/a.css", wanted), self.get(proxy, "/a.css", wanted)
            for response in (first, second):
                self.assertEqual(response.fields["content-encoding"], coding)
                self.assertEqual(response.fields["vary"], "Accept-Encoding")
                self.assertLess(response.length, len(text) // 3)
            self.assertEqual(first.body, second.body)
            etag = second.fields["etag"]
            self.assertNotEqual(etag, plain.fields["etag"])
            condition = f"If-None-Match: {etag}\r\n"
            self.assertEqual(self.get(proxy, "/a.css", wanted + condition).status, 304)
            if coding != "zstd":
                decoded = self.run_client(
                    "curl", "-sf", "--compressed", "-H", f"Accept-Encoding: {coding}",
                    f"{proxy.url}/a.css",
                ).stdout
                self.assertEqual(decoded, text)
        for name, content in (("a.png", text), ("a.txt", noise), ("s.css", b"s")):
            response = self.get(proxy, f"/{name}", "Accept-Encoding: gzip, br\r\n")
            self.assertEqual((response.body, "content-encoding" in response.fields),
                             (content, False), name)

    def test_fallback_and_try_files(self):
        self.write("index.html", b"app")
        self.write("about.html", b"about")
        proxy = self.serve("--fallback", "/index.html")
        self.assertEqual(self.get(proxy, "/some/path").body, b"app")
        proxy = self.serve("--try-files", "{path}", "--try-files", "{path}.html")
        self.assertEqual(self.get(proxy, "/about").body, b"about")
        self.assertEqual(self.get(proxy, "/some/path").status, 404)

    def test_an_origin_behind_the_folder(self):
        self.write("here.txt", b"from the folder")
        origin = self.origin()
        proxy = self.serve("--origin", origin.url)
        self.assertEqual(self.get(proxy, "/here.txt").body, b"from the folder")
        self.assertEqual(self.get(proxy, "/bytes/5").length, 5)
        seen = len(origin.seen)
        self.get(proxy, "/here.txt", "Authorization: Basic eA==\r\n")
        self.assertEqual(len(origin.seen), seen + 1, "the origin may serve a user otherwise")


class Log(Case):
    def test_the_log_names_the_file(self):
        self.write("dir/index.html", b"index")
        log = self.folder / "log"
        proxy = self.serve("--access-log", log, "--log-format", "json", "--sandbox", "off")
        for target in ("/dir/", "/none"):
            self.get(proxy, target)
        lines = lambda: log.read_text().splitlines() if log.exists() else []
        self.wait_until("both records", lambda: len(lines()) == 2)
        # Records of different workers are in any order.
        records = sorted(map(json.loads, lines()), key=lambda record: record["target"])
        found, missing = records
        self.assertEqual((found["file"], found["cache"]), (f"{self.site}/dir/index.html", "file"))
        self.assertEqual((missing["reason"], "file" in missing), ("file-missing", False))


class Changes(Case):
    def until(self, proxy, target, body):
        """Waits until a request gets this body."""
        self.wait_until(f"{target} is {body[:20]}", lambda: self.get(proxy, target).body == body)

    def test_changed_files_are_seen(self):
        path = self.write("a.txt", b"one")
        proxy = self.serve("--file-check", "0s")
        self.until(proxy, "/a.txt", b"one")
        self.write("new", b"two")
        (self.site / "new").rename(path)
        self.until(proxy, "/a.txt", b"two")
        path.write_bytes(b"three")
        self.until(proxy, "/a.txt", b"three")
        path.unlink()
        self.wait_until("it is gone", lambda: self.get(proxy, "/a.txt").status == 404)
        self.write("a.txt", b"four")
        self.until(proxy, "/a.txt", b"four")

    def test_each_response_is_one_version_of_a_replaced_file(self):
        bodies = [bytes([65 + number]) * 200_000 for number in range(4)]
        self.write("a.bin", bodies[0])
        proxy = self.serve("--file-check", "0s")
        stop, changed = threading.Event(), 0

        def replace():
            nonlocal changed
            while not stop.is_set():
                changed += 1
                self.write("next", bodies[changed % 4])
                (self.site / "next").rename(self.site / "a.bin")

        writer = threading.Thread(target=replace)
        writer.start()
        try:
            for requests in itertools.count():
                if requests >= 500 and changed >= CHANGES:
                    break
                self.assertIn(self.get(proxy, "/a.bin").body, bodies)
        finally:
            stop.set()
            writer.join()

    def test_a_truncated_file_ends_the_connection(self):
        path = self.site / "long.bin"
        pattern.write(path, 64 << 20)
        proxy = self.serve("--file-check", "0s")
        connection = wire.Connection(proxy.address, receive_buffer=4096)
        with contextlib.closing(connection.socket):
            connection.get("/long.bin")
            _, status, fields = connection.head()
            self.assertEqual((status, fields["content-length"]), (200, str(64 << 20)))
            os.truncate(path, 1 << 20)
            received = len(connection.held)
            with contextlib.suppress(ConnectionResetError):
                while data := connection.socket.recv(1 << 20):
                    received += len(data)
        self.assertLess(received, 64 << 20)
        self.assertEqual(self.get(proxy, "/long.bin").length, 1 << 20)

    def test_truncated_files_are_never_padded(self):
        path, length = self.site / "a.bin", 8 << 20
        proxy = self.serve("--file-check", "0s")
        cut = 0
        for _ in range(CHANGES // 10):
            path.write_bytes(b"x" * length)
            connection = wire.Connection(proxy.address, receive_buffer=4096)
            with contextlib.closing(connection.socket):
                connection.get("/a.bin")
                _, status, fields = connection.head()
                self.assertEqual((status, fields["content-length"]), (200, str(length)))
                os.truncate(path, 1000)
                received = bytearray(connection.held)
                with contextlib.suppress(ConnectionResetError):
                    while data := connection.socket.recv(1 << 20):
                        received += data
            self.assertEqual(received.count(b"x"), len(received), "bytes that the file never had")
            cut += len(received) < length
        self.assertGreater(cut, CHANGES // 20)
        self.assertEqual(self.get(proxy, "/a.bin").length, 1000)


class Places(Case):
    def setUp(self):
        super().setUp()
        self.outside = self.folder / "outside"
        self.outside.mkdir()
        (self.outside / "secret").write_bytes(b"outside")

    def test_links(self):
        self.write("a.txt", b"a")
        (self.site / "relative").symlink_to("a.txt")
        (self.site / "absolute").symlink_to(self.site / "a.txt")
        (self.site / "secret").symlink_to(self.outside / "secret")
        (self.site / "up").symlink_to("../outside/secret")
        (self.site / "loop").symlink_to("loop")
        self.write("app.php", b"source")
        (self.site / "page.html").symlink_to("app.php")
        self.assertEqual(self.get(self.serve(), "/page.html").status, 404, "a program")
        found = {"/relative": 200, "/secret": 403, "/up": 403, "/loop": 403}
        self.assert_status(self.serve(), found)
        self.assert_status(self.serve("--symlinks", "none"), {**found, "/relative": 403})
        granted = self.serve("--allow-path", self.outside)
        self.assertEqual(self.get(granted, "/secret").body, b"outside")

    def test_links_to_hidden_names(self):
        for name in (".env", ".well-known/a", "d/.git/config", "secret.key", "k.css", "b/a"):
            self.write(name, name.encode())
        (self.outside / ".git").mkdir()
        (self.outside / ".git" / "config").write_bytes(b"config")
        version = "..2026_11_21_10_16_00.1234"
        self.write(f"{version}/index.html", b"version")
        for link, target in (
            ("env-link", ".env"),
            ("cfg-link", "d/.git/config"),
            ("d/gitlink", ".git"),
            ("k.css.br", "secret.key"),
            ("known", ".well-known/a"),
            ("b-link", "b"),
            ("config", self.outside / ".git" / "config"),
            ("git", self.outside / ".git"),
            ("secret", self.outside / "secret"),
            ("..data", version),
            ("index.html", "..data/index.html"),
        ):
            (self.site / link).symlink_to(target)
        options = ("--hide", "*.key", "--listing", "--allow-path", self.outside)
        proxy = self.serve(*options)
        self.assert_status(
            proxy,
            {
                "/env-link": 404,
                "/cfg-link": 404,
                "/d/gitlink": 404,
                "/d/gitlink/": 404,
                "/d/gitlink/config": 404,
                "/config": 404,
                "/git/config": 404,
                "/known": 200,
                "/b-link": 301,
                "/b-link/a": 200,
                "/secret": 200,
            },
        )
        form = self.get(proxy, "/k.css", "Accept-Encoding: br\r\n")
        self.assertEqual((form.body, "content-encoding" in form.fields), (b"k.css", False))
        self.assertEqual(self.get(proxy, "/").body, b"version", "as in a volume of Kubernetes")
        page = self.get(self.serve(*options, "--index", "none"), "/").body
        for name in (b"env-link", b"cfg-link", b"k.css.br", b"git", b"config"):
            self.assertNotIn(b'"%s' % name, page)
        for name in (b"known", b"b-link", b"secret", b"index.html"):
            self.assertIn(b'"%s' % name, page)

    def test_special_files(self):
        os.mkfifo(self.site / "fifo")
        with contextlib.closing(socket.socket(socket.AF_UNIX)) as listener:
            listener.bind(str(self.site / "socket"))
            closed = self.write("closed", b"")
            closed.chmod(0)
            expected = {"/fifo": 403, "/socket": 403}
            self.assert_status(self.serve(), expected)

    def test_no_byte_from_outside_while_a_folder_is_swapped(self):
        self.write("real/secret", b"inside")
        swap = self.site / "swap"
        (self.site / "link").symlink_to(self.outside)
        stop, swaps = threading.Event(), 0

        def exchange():
            nonlocal swaps
            while not stop.is_set():
                swaps += 2
                for other in ("real", "link"):
                    with contextlib.suppress(OSError):
                        (self.site / other).rename(swap)
                        time.sleep(0)
                        swap.rename(self.site / other)

        proxy = self.serve("--file-check", "0s")
        swapper = threading.Thread(target=exchange)
        swapper.start()
        bodies = set()
        try:
            for requests in itertools.count():
                if requests >= 2000 and swaps >= CHANGES:
                    break
                bodies.add(self.get(proxy, "/swap/secret").body)
        finally:
            stop.set()
            swapper.join()
        self.assertNotIn(b"outside", bodies)
        self.assertIn(b"inside", bodies, "the folder was seen at its place")

    def test_open_files_are_bounded(self):
        for number in range(300):
            with open(self.site / str(number), "wb") as file:
                file.truncate(5 << 20)
        proxy = self.serve("--limit", "open_files=64", "--workers", "1", "--sandbox", "off")
        for number in range(300):
            self.assertEqual(self.get(proxy, f"/{number}").length, 5 << 20)
        links = pathlib.Path(f"/proc/{proxy.process.pid}/fd").iterdir()
        open_files = 0
        for link in links:
            with contextlib.suppress(OSError):
                open_files += os.readlink(link).startswith(str(self.site) + "/")
        self.assertLessEqual(open_files, 64)
