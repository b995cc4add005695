"""An object that many clients download at once is in physical memory once, in the slab. FIGURES=1
prints the tables of docs/measuring/memory.md."""

import hashlib
import http.client
import os
import threading

from support.case import INSPECTABLE
from support.copies import PART, Copies, Memory, marked
from support.scripted import Response
from support.shop import ShopCase

MB = 1 << 20
CLIENTS = 20
# The allowance besides one copy: a buffer for each connection, and slab blocks that are allocated
# in advance.
BESIDE_MAX = 8 * MB
READ_BYTES = 256 << 10


class Download(threading.Thread):
    """A client on a thread. `began` is set when the first bytes of the body arrive."""

    def __init__(self, address, path):
        super().__init__(daemon=True)
        self.address, self.path = address, path
        self.began, self.hash, self.failure = threading.Event(), None, None
        self.start()

    def run(self):
        digest, buffer = hashlib.sha256(), memoryview(bytearray(READ_BYTES))
        try:
            connection = http.client.HTTPConnection(*self.address, timeout=300)
            connection.request("GET", self.path)
            response = connection.getresponse()
            while length := response.readinto(buffer):
                digest.update(buffer[:length])
                self.began.set()
            connection.close()
            self.hash = digest.hexdigest()
        except (OSError, http.client.HTTPException) as failure:
            self.failure = failure
        self.began.set()


class OneCopy(ShopCase):
    measures = True

    def setUp(self):
        super().setUp()
        # Only objects below 1/32 of the cache are stored at the first request.
        self.proxy = self.boost(
            self.shop.url, "--memory", "8G", "--cache-memory", "4G", "--workers", "2",
            *INSPECTABLE,
        )
        self.pid = self.proxy.process.pid

    def offer(self, length, *paths, **how):
        self.content, self.name = marked(length, seed=len(paths))
        self.digest = hashlib.sha256(self.content).hexdigest()
        for path in paths:
            self.responses[path] = Response(self.content, Cache_Control="max-age=600", **how)

    def download(self, *paths):
        return [Download(self.proxy.address, path) for path in paths]

    def finish(self, downloads):
        for download in downloads:
            download.join(300)
            self.assertEqual((download.failure, download.hash), (None, self.digest))

    def look(self, what):
        """Returns the memory and the copies once the slab's files no longer change."""
        self.settled(lambda: Memory(self.pid).files, quiet_seconds=0.3)
        memory = Memory(self.pid)
        copies = Copies(self.pid, self.name, len(self.content) // PART)
        if os.environ.get("FIGURES"):
            found = f"{copies.present / MB:.1f} | {copies.second / MB:.2f} | {copies.frames}"
            print(f"| {what} | {memory.line()} | {copies.least} to {copies.most} | {found} |")
        return memory, copies

    def assert_one_copy(self, copies, length):
        """Checks that `length` bytes are present, and that few bytes are there twice or outside the
        slab."""
        self.assertGreaterEqual(copies.present, length - BESIDE_MAX)
        self.assertLess(copies.second, MB)
        self.assertLess(copies.outside, MB)

    def test_many_clients_share_one_copy(self):
        length = 100 * MB
        self.offer(length, "/film", halved=True)
        before, _ = self.look("before")
        first = self.download(*["/film"] * CLIENTS)
        for download in first:
            self.assertTrue(download.began.wait(120))
        # All downloads are in progress, and the origin has sent half of the body.
        during, copies = self.look(f"half, {CLIENTS} clients")
        self.assert_one_copy(copies, length // 2)
        self.assertLess(during.rest_pss - before.rest_pss, BESIDE_MAX)
        self.shop.go()
        self.finish(first)
        self.look(f"after {CLIENTS} clients")
        self.finish(self.download(*["/film"] * CLIENTS))
        after, copies = self.look(f"after {CLIENTS} more")
        self.assert_one_copy(copies, length)
        self.assertEqual(copies.least, 1)
        for grown in (after.files - before.files, after.slab_pss - before.slab_pss):
            self.assertLess(grown, length + BESIDE_MAX)
        self.assertLess(after.rest_pss - before.rest_pss, BESIDE_MAX)
        self.assertEqual(self.shop.count("/film"), 1)

    def test_more_copies_would_be_seen(self):
        """The same measurement finds as many copies as there are URLs."""
        length, paths = 8 * MB, [f"/film/{number}" for number in range(5)]
        self.offer(length, *paths)
        before, _ = self.look("before")
        self.finish(self.download(*paths))
        after, copies = self.look(f"{len(paths)} URLs")
        self.assertEqual((copies.present, copies.least), (length, len(paths)))
        self.assertGreaterEqual(copies.second, (len(paths) - 1) * length)
        self.assertGreater(after.files - before.files, (len(paths) - 2) * length)
        with self.assertRaises(AssertionError):
            self.assert_one_copy(copies, length)
