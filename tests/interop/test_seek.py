"""Ranges of objects that need validation at each use, as seeking players request them. The origin
receives each requested range, and sends few bytes more than that."""

import collections
import concurrent.futures
import itertools
import os
import signal
import struct
import subprocess

from support import wire
from support.case import InteropCase
from support.chromium import FLAGS
from support.film import LENGTH, MB, VALIDATORS, Film, noise
from support.ports import free_port

# Length of an object that fits the default cache as a whole.
SHORT = 4 * MB
# The positions to which a player seeks, and the bytes that it reads at each.
SEEKS = [place * MB for place in (0, 20, 5, 28, 12, 5, 25, 1, 17, 20)]
READ = 300_000
PLACES = [place * 100_000 for place in (0, 20, 5, 28, 12, 35, 41)]
# Bytes that two more socket buffers may hold when a client closes during a range. All ranges
# together have 167 MB.
SURPLUS = 6 * MB
# For a browser an origin sends 35 to 90 MB, with or without a proxy. For a proxy that fetches the
# whole object at each of seven positions it sends 210 MB.
BROWSED = 4 * LENGTH


# Three minutes of sound. The browser seeks to these seconds, and then sends a report.
SECONDS = [150, 30, 120, 60, 170, 10, 90]
PLAYER = """<!DOCTYPE html><html><body><script>
const film = new Audio();
const event = (name) => new Promise((done, failed) => {
  film.addEventListener(name, done, {once: true});
  film.addEventListener("error", () => failed(film.error.message), {once: true});
});
(async () => {
  let report = "it played";
  try {
    const ready = event("loadedmetadata");
    film.src = "film";
    await ready;
    for (const place of %s) {
      const seeked = event("seeked");
      film.currentTime = place;
      await seeked;
    }
  } catch (error) {
    report = String(error);
  }
  await fetch("%s", {method: "POST", mode: "no-cors", body: report});
})();
</script></body></html>
"""


def wave(length):
    """Returns the header of a WAV file of `length` bytes: 16 bits, two channels, 44,100 samples per
    second."""
    kind = struct.pack("<4sIHHIIHH", b"fmt ", 16, 1, 2, 44_100, 176_400, 4, 16)
    return (struct.pack("<4sI4s", b"RIFF", length - 8, b"WAVE") + kind
            + struct.pack("<4sI", b"data", length - 44))


LIGHTTPD = """
server.modules = ("mod_accesslog", "mod_setenv")
server.bind = "127.0.0.1"
server.port = {port}
server.document-root = "{root}"
accesslog.filename = "{folder}/access.log"
accesslog.format = "%q %O"
setenv.add-response-header = ("Cache-Control" => "no-cache")
"""


class Lighttpd:
    """A lighttpd that serves `root`."""

    def __init__(self, folder, root):
        self.folder, self.port = folder / "lighttpd", free_port()
        self.folder.mkdir()
        configuration = self.folder / "lighttpd.conf"
        configuration.write_text(LIGHTTPD.format(port=self.port, root=root, folder=self.folder))
        self.process = subprocess.Popen(
            ["/usr/sbin/lighttpd", "-D", "-f", configuration], stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}"

    def is_listening(self):
        try:
            wire.Connection(("127.0.0.1", self.port)).close()
        except OSError:
            return False
        return True

    def stop(self):
        """Ends lighttpd, which then writes its log."""
        self.process.terminate()
        self.process.wait(30)

    def requests(self):
        """Returns the received queries with the sent bytes, once lighttpd has ended."""
        return [line.split(" ") for line in (self.folder / "access.log").read_text().splitlines()]


class Seek(InteropCase):
    programs = ("chromium",)

    def film(self, *arguments, **fields):
        film = Film(*arguments, **fields)
        self.addCleanup(film.stop)
        return film

    def ways(self, origin, *options):
        """Returns the ways to the origin: for each, an address and the prefix of the request
        target."""
        boost, forward = self.boost(origin, *options), self.forward(*options)
        return {"boost": (boost.address, ""), "forward": (forward.address, origin)}

    def part(self, way, path, first, last, extra=""):
        address, before = way
        connection = wire.Connection(address)
        try:
            connection.get(before + path, extra=f"Range: bytes={first}-{last}\r\n{extra}")
            return connection.read_response()
        finally:
            connection.close()

    def assert_part(self, way, path, first, last, extra="", length=LENGTH):
        response = self.part(way, path, first, last, extra)
        self.assertEqual(response.status, 206, response.fields)
        self.assertEqual(response.fields["content-range"], f"bytes {first}-{last}/{length}")
        self.assertEqual(response.body, noise(first, last))
        return response

    def test_a_range_costs_no_more_than_that_range(self):
        """Each range reaches the origin as the client requested it, whatever is stored."""
        ranges = [(0, 99), (5_000_000, 5_000_099), (5_000_000, 5_000_099), (5_000_010, 5_000_019),
                  (0, 99), (100, 100_099), (LENGTH - 10, LENGTH - 1)]
        sent = [f"bytes={first}-{last}" for first, last in ranges]
        film = self.film("no-cache")
        for kind, fields in VALIDATORS.items():
            for control in ("no-cache", "max-age=0"):
                film.paths[f"/{kind}/{control}"] = {"Cache-Control": control, **fields}
        for limit in ([], ["--limit", "object_bytes=1000000"]):
            for name, way in self.ways(film.url, *limit).items():
                for path in film.paths:
                    with self.subTest(path=path, limit=limit, way=name):
                        ranges_before, before = len(film.ranges()), film.sent()
                        for first, last in ranges:
                            self.assert_part(way, path, first, last)
                        self.assertEqual(film.ranges()[ranges_before:], sent)
                        most = sum(last - first + 1 for first, last in ranges)
                        # Stored ranges are validated and not sent again.
                        again = 0 if "none" in path else 110
                        self.assertEqual(film.sent() - before, most - again)

    def test_a_head_and_conditions_between_ranges(self):
        film = self.film("no-cache", **VALIDATORS["weak"])
        for name, way in self.ways(film.url).items():
            with self.subTest(way=name):
                address, before = way
                self.assert_part(way, "/film", 10, 19)
                connection = wire.Connection(address)
                line = f"HEAD {before}/film HTTP/1.1\r\n"
                connection.send(f"{line}Host: interop.test\r\n\r\n".encode())
                head = connection.read_response(method="HEAD")
                self.assertEqual(head.fields["content-length"], str(LENGTH))
                connection.close()
                same = self.part(way, "/film", 10, 19, 'If-None-Match: W/"film"\r\n')
                self.assertEqual((same.status, same.fields["etag"]), (304, 'W/"film"'))
                film.fields["ETag"] = 'W/"other"'
                other = self.assert_part(way, "/film", 10, 19)
                self.assertEqual(other.fields["etag"], 'W/"other"')
                # The new range is validated from now on.
                sent = film.sent()
                self.assert_part(way, "/film", 12, 13)
                self.assertEqual(film.sent(), sent)
                film.fields["ETag"] = 'W/"film"'

    def assert_short(self, way, first):
        """A hundred bytes of a short film."""
        return self.assert_part(way, "/film", first, first + 99, length=SHORT)

    def test_parts_of_a_whole_that_is_stored(self):
        film = self.film("no-cache", length=SHORT, **VALIDATORS["weak"])
        for name, way in self.ways(film.url).items():
            with self.subTest(way=name):
                address, before = way
                whole = wire.Connection(address)
                whole.get(f"{before}/film")
                self.assertEqual(whole.read_response().length, SHORT)
                whole.close()
                sent, ranges_before = film.sent(), len(film.ranges())
                for first in PLACES:
                    self.assert_short(way, first)
                self.assertEqual(film.sent(), sent)
                ranges = [f"bytes={first}-{first + 99}" for first in PLACES]
                self.assertEqual(film.ranges()[ranges_before:], ranges)

    def test_a_part_of_a_response_that_ignores_the_range(self):
        film = self.film("no-cache", length=SHORT, has_ranges=False, **VALIDATORS["strong"])
        for name, way in self.ways(film.url).items():
            with self.subTest(way=name):
                for first in PLACES:
                    self.assert_short(way, first)

    def test_a_range_does_not_wait_for_the_whole(self):
        """While a client downloads the whole object from a slow origin, other clients receive their
        ranges."""
        control = "max-age=600"
        film = self.film(control, length=SHORT, held_from=MB // 2, **VALIDATORS["strong"])
        for name, way in self.ways(film.url).items():
            with self.subTest(way=name):
                address, before = way
                film.gate.clear()
                whole = wire.Connection(address)
                whole.get(f"{before}/film")
                self.assertIn("stored", whole.head()[2]["cache-status"])
                whole.exactly(MB // 4, lambda piece: None)
                ranges_before = len(film.ranges())
                with concurrent.futures.ThreadPoolExecutor(len(PLACES)) as clients:
                    parts = list(clients.map(lambda first: self.assert_short(way, first), PLACES))
                self.assertIn("hit", parts[0].fields["cache-status"])
                self.assertIn("fwd=partial", parts[-1].fields["cache-status"])
                self.assertNotIn(None, film.ranges()[ranges_before:])
                film.gate.set()
                whole.exactly(SHORT - MB // 4, lambda piece: None)
                whole.close()
                # The client may have its last bytes before the cache. A range that no client has
                # received yet is a hit only of the whole.
                unread = itertools.count(PLACES[-1] + 100, 100)
                self.wait_until(
                    "the whole is stored",
                    lambda: "hit" in self.assert_short(way, next(unread)).fields["cache-status"],
                )

    def test_a_stale_part_is_refreshed_by_its_range(self):
        control = "max-age=60, stale-while-revalidate=600"
        film = self.film(control, Age="100", **VALIDATORS["weak"])
        for name, way in self.ways(film.url).items():
            with self.subTest(way=name):
                ranges_before = len(film.ranges())
                self.assert_part(way, "/film", 5, 9)
                stale = self.assert_part(way, "/film", 5, 9)
                self.assertIn("hit; ttl=-", stale.fields["cache-status"])
                self.wait_until("a refresh", lambda: len(film.ranges()) > ranges_before + 1)
                self.assertEqual(film.ranges()[ranges_before:], ["bytes=5-9"] * 2)
                self.assertEqual(film.seen[-1][1]["if-none-match"], 'W/"film"')

    def seek(self, way, path="/film"):
        """Reads some bytes at each position, and closes the connection each time."""
        address, before = way
        for first in SEEKS:
            connection = wire.Connection(address, receive_buffer=128 * 1024)
            connection.get(before + path, extra=f"Range: bytes={first}-\r\n")
            _, status, fields = connection.head()
            place = f"bytes {first}-{LENGTH - 1}/{LENGTH}"
            self.assertEqual((status, fields["content-range"]), (206, place))
            connection.exactly(READ, lambda piece: None)
            connection.close()

    def assert_cheap(self, sent):
        """Checks `sent`: the bytes that the origin sent for all seeks, by way."""
        most = sent["direct"] + SURPLUS * len(SEEKS)
        for name, count in sent.items():
            self.assertLessEqual(count, most, sent)

    def test_a_player_seeks_before_a_python_server(self):
        film = self.film("no-cache", **VALIDATORS["strong"])
        ways = {"direct": (film.server_address, ""), **self.ways(film.url)}
        sent = {}
        for name, way in ways.items():
            before = film.sent()
            self.seek(way)
            sent[name] = film.sent() - before
        self.assert_cheap(sent)

    def seek_files(self, origin):
        """Seeks in a file of an origin on three ways. The query names the way."""
        (self.site / "film").write_bytes(noise(0, LENGTH - 1))
        ways = {"direct": (("127.0.0.1", origin.port), ""), **self.ways(origin.url)}
        for name, way in ways.items():
            self.seek(way, f"/film?{name}")

    def assert_cheap_files(self, requests):
        """Checks `requests`: pairs of a target or query, and the bytes that the origin sent."""
        sent = collections.Counter()
        for target, count in requests:
            sent[target.rpartition("?")[2]] += int(count)
        self.assertEqual(sent.keys(), {"direct", "boost", "forward"})
        self.assert_cheap(sent)

    def test_a_player_seeks_before_nginx(self):
        nginx = self.nginx(location="add_header Cache-Control no-cache;")
        self.seek_files(nginx)
        self.wait_until("the log", lambda: len(nginx.requests()) == 3 * len(SEEKS))
        requests = [(request["target"], request["sent"]) for request in nginx.requests()]
        self.assert_cheap_files(requests)

    def test_a_player_seeks_before_lighttpd(self):
        origin = Lighttpd(self.folder, self.site)
        self.addCleanup(origin.stop)
        self.wait_until("lighttpd", origin.is_listening)
        self.seek_files(origin)
        origin.stop()
        self.assert_cheap_files(origin.requests())

    def browse(self, name, url, *flags):
        """Starts a browser in its own session. Returns the function that ends it."""
        output = open(self.folder / f"chromium-{name}.log", "wb")
        profile = f"--user-data-dir={self.folder / f'profile-{name}'}"
        browser = subprocess.Popen(
            ["chromium", *FLAGS, *flags, profile, url], stdin=subprocess.DEVNULL,
            stdout=output, stderr=output, env=self.environment(), start_new_session=True,
        )

        def end():
            if browser.poll() is None:
                os.killpg(browser.pid, signal.SIGKILL)
                browser.wait(30)

        self.addCleanup(end)
        return end

    def test_chromium_seeks(self):
        """Two browsers at once, each with its own film."""
        reports = self.origin()
        films = [self.film("no-cache", **VALIDATORS["strong"]) for _ in range(2)]
        for film in films:
            film.fields["Content-Type"] = "audio/wav"
            film.head = wave(LENGTH)
            film.page = (PLAYER % (SECONDS, f"{reports.url}/report")).encode()
        boost, forward = self.boost(films[0].url), self.forward()
        ends = [
            self.browse("boost", f"{boost.url}/"),
            self.browse("forward", f"{films[1].url}/", f"--proxy-server={forward.url}"),
        ]
        self.wait_until("the reports", lambda: len(reports.bodies) == len(films), 180)
        for end in ends:
            end()
        self.assertEqual(set(reports.bodies), {b"it played"})
        sent = [film.sent() for film in films]
        self.assertLess(max(sent), BROWSED, sent)
