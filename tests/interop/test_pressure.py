"""Stalled and slow clients, and too few descriptors: memory stays bounded, and good clients are
served."""

import resource
import selectors
import threading
import time

from support import pattern, wire
from support.case import INSPECTABLE, InteropCase

MEGABYTE = 1 << 20
GIGABYTE = 1 << 30


class Stalls(InteropCase):
    """A stalled peer and a body of 1 GB cost less than 1 MB of memory."""

    measures = True
    GROWTH_BYTES_MAX = MEGABYTE

    def setUp(self):
        super().setUp()
        self.slow = self.origin()
        self.proxy = self.boost(self.slow.url, *INSPECTABLE)

    def warm_up(self):
        """Makes a download and an upload, so that pools and libraries have allocated their
        memory."""
        self.assertEqual(wire.get(self.proxy.address, f"/bytes/{64 * MEGABYTE}").status, 200)
        client = self.uploader("/upload", 64 * MEGABYTE)
        for block in pattern.blocks(64 * MEGABYTE):
            client.send(block)
        self.assertEqual(client.read_response().status, 200)
        client.close()
        return self.settled(self.proxy.rss_bytes)

    def uploader(self, target, length):
        """Returns a connection on which a request header with this Content-Length was sent."""
        client = wire.Connection(self.proxy.address)
        head = f"POST {target} HTTP/1.1\r\nHost: interop.test\r\nContent-Length: {length}\r\n\r\n"
        client.send(head.encode())
        return client

    def test_a_client_that_reads_nothing(self):
        """The origin stalls once the buffers of the kernel are full. When the client then reads, it
        receives every byte."""
        before = self.warm_up()
        sent_before = self.slow.sent_bytes
        client = wire.Connection(self.proxy.address)
        self.addCleanup(client.close)
        client.get(f"/bytes/{GIGABYTE}")
        sent = self.settled(lambda: self.slow.sent_bytes) - sent_before
        growth = self.proxy.rss_bytes() - before
        print(f"     stalled download: origin sent {sent} bytes, memory grew by {growth}")
        self.assertGreater(sent, 0)
        self.assertLess(sent, 128 * MEGABYTE, "nothing holds the origin back")
        self.assertLess(growth, self.GROWTH_BYTES_MAX)
        response = client.read_response(keep=0)
        self.assertEqual(response.length, GIGABYTE)
        after = self.proxy.rss_bytes() - before
        self.assertLess(after, self.GROWTH_BYTES_MAX, "memory after the whole body")

    def test_an_origin_that_reads_nothing(self):
        """A client that uploads 1 GB stalls until the origin reads."""
        before = self.warm_up()
        client = self.uploader("/unread", GIGABYTE)
        self.addCleanup(client.close)
        taken = 0

        def send():
            nonlocal taken
            for block in pattern.blocks(GIGABYTE):
                client.send(block)
                taken += len(block)

        sender = threading.Thread(target=send, daemon=True)
        sender.start()
        self.settled(lambda: taken)
        growth = self.proxy.rss_bytes() - before
        print(f"     stalled upload: client sent {taken} bytes, memory grew by {growth}")
        self.assertLess(taken, 128 * MEGABYTE, "nothing holds the client back")
        self.assertLess(growth, self.GROWTH_BYTES_MAX)
        self.slow.read_on()
        response = client.read_response()
        sender.join()
        self.assertEqual(response.status, 200)
        self.assertIn(str(GIGABYTE).encode(), response.body)


class Crowds(InteropCase):
    """Many clients at once, all in this process, which therefore needs descriptors for them."""

    LORIS = 1000
    STALLED = 1000

    def need_descriptors(self, count):
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        if hard != resource.RLIM_INFINITY and hard < count:
            self.skipTest(f"unsupported: the hard limit of {hard} descriptors is below {count}")

    def drip(self, crowd, stop):
        """Sends a header section of each slow client one byte at a time until the test ends."""
        line = b"GET / HTTP/1.1\r\nHost: interop.test\r\nX-Slow: " + b"y" * 100_000
        position = 0
        while not stop.wait(0.05):
            for client in crowd:
                try:
                    client.socket.send(line[position : position + 1])
                except OSError:
                    pass  # The proxy may close a slow client.
            position += 1

    def test_good_clients_are_served_beside_slow_and_stalled_ones(self):
        """1,000 clients send a header section byte by byte, and 1,000 request a large body and read
        nothing. 8 good clients make 4,000 requests meanwhile without an error."""
        self.need_descriptors(8000)
        digest = pattern.write(self.site / "small", 20_000)
        pattern.write(self.site / "large", 64 * MEGABYTE)
        # A long send timeout, so that stalled clients are connected to the end even on a busy
        # machine.
        proxy = self.boost(self.nginx().url, "--limit", "send_ms=30m")
        crowd, stop = [], threading.Event()
        self.addCleanup(lambda: [client.close() for client in crowd])
        for _ in range(self.LORIS):
            crowd.append(wire.Connection(proxy.address))
        dripping = threading.Thread(target=self.drip, args=(list(crowd), stop))
        dripping.start()
        self.addCleanup(dripping.join)
        self.addCleanup(stop.set)
        for _ in range(self.STALLED):
            # Small segments and a small buffer bound the bytes that wait for a thousand clients.
            client = wire.Connection(proxy.address, receive_buffer=4096, segment=1460)
            client.get("/large")
            crowd.append(client)
        errors, good = self.good_clients(proxy, digest, clients=8, requests=500)
        self.assertEqual((errors, good), ([], 4000))
        # The stalled clients are still connected, so the others were not served by closing them.
        stalled = sum(self.is_open(client) for client in crowd[self.LORIS :])
        self.assertEqual(stalled, self.STALLED)

    @staticmethod
    def is_open(client):
        """Returns whether the connection is open. Discards received bytes."""
        client.socket.setblocking(False)
        try:
            return client.socket.recv(1024) != b""
        except BlockingIOError:
            return True
        except OSError:
            return False

    def good_clients(self, proxy, digest, clients, requests):
        """Makes half of the requests on persistent connections and half on new ones. Returns the
        errors and the number of good responses."""
        errors, good = [], []

        def one(number):
            try:
                persistent = wire.Connection(proxy.address)
                for _ in range(requests // 2):
                    persistent.get("/small")
                    for response in (persistent.read_response(), wire.get(proxy.address, "/small")):
                        if (response.status, response.digest) != (200, digest):
                            raise ValueError(f"status {response.status}, {response.length} bytes")
                        good.append(number)
                persistent.close()
            except (OSError, ValueError, EOFError) as problem:
                errors.append(f"client {number}: {problem!r}")

        threads = [threading.Thread(target=one, args=(number,)) for number in range(clients)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return errors, len(good)

    def test_few_descriptors_many_clients(self):
        """2,000 keep-alive clients and 512 descriptors: idle connections go first, so every client
        gets its response; one line reports it; afterwards the proxy works as before."""
        self.need_descriptors(4096)
        digest = pattern.write(self.site / "small", 20_000)
        proxy = self.boost(self.nginx().url, *INSPECTABLE, descriptors_max=512)
        # The proxy accepts no client before each has sent its request. A client that is accepted
        # and sends nothing for a second may be closed, and this process may take longer than that.
        proxy.pause()
        clients = [wire.Connection(proxy.address) for _ in range(2000)]
        self.addCleanup(lambda: [client.close() for client in clients])
        for client in clients:
            client.get("/small")
        proxy.resume()
        served, failed = self.collect(clients, digest)
        output = [line for line in proxy.lines if "accepting pauses" in line]
        print(f"     512 descriptors: {served} of 2000 clients served; log: {output}")
        self.assertEqual(proxy.process.poll(), None, "it ended")
        self.assertEqual(failed, [])
        self.assertEqual(served, 2000)
        self.assertEqual(len(output), 1, "it says so once")
        for client in clients:
            client.close()
        # Until then the proxy is short of descriptors, and may close the next idle connection.
        self.wait_until("the clients are closed", lambda: proxy.descriptors() < 256)
        errors, good = self.good_clients(proxy, digest, clients=4, requests=50)
        self.assertEqual((errors, good), ([], 200))

    def collect(self, clients, digest):
        """Reads the responses in the order of their arrival and leaves the connections open.
        Returns the number of right ones, and all other events."""
        served, failed = 0, []
        waiting = selectors.DefaultSelector()
        for client in clients:
            waiting.register(client.socket, selectors.EVENT_READ, client)
        end = time.monotonic() + 180
        while waiting.get_map() and time.monotonic() < end:
            for key, _ in waiting.select(1):
                waiting.unregister(key.fileobj)
                try:
                    response = key.data.read_response(keep=0)
                    if (response.status, response.digest) == (200, digest):
                        served += 1
                    else:
                        failed.append(f"status {response.status}, {response.length} bytes")
                except (OSError, EOFError) as problem:
                    failed.append(repr(problem)[:200])
        return served, failed[:10]
