"""`millrace boost` before nginx and before a WebSocket server."""

import os
import random
import subprocess
import threading

from support import pattern, websocket, wire
from support.case import InteropCase

GIGABYTE = 1 << 30
MESSAGES = 1000


class Files(InteropCase):
    def test_a_gigabyte(self):
        """The body is hashed while it is read, and is not stored."""
        digest = pattern.write(self.site / "file", GIGABYTE)
        proxy = self.boost(self.nginx().url)
        response = wire.get(proxy.address, "/file", keep=0)
        self.assertEqual((response.status, response.length), (200, GIGABYTE))
        self.assertEqual(response.digest, digest)

    def test_every_size_around_the_buffers(self):
        """Bodies that end just before, at and just after powers of two, on one connection."""
        sizes = sorted({0, *((1 << bit) + off for bit in range(21) for off in (-1, 0, 1))})
        hashes = {size: pattern.write(self.site / str(size), size, seed=size) for size in sizes}
        proxy = self.boost(self.nginx().url)
        client = wire.Connection(proxy.address)
        self.addCleanup(client.close)
        for size in sizes:
            client.get(f"/{size}")
            response = client.read_response(keep=0)
            got = (response.status, response.length, response.digest)
            self.assertEqual(got, (200, size, hashes[size]))

    def test_ranges(self):
        pattern.write(self.site / "file", 1 << 20)
        data = (self.site / "file").read_bytes()
        proxy = self.boost(self.nginx().url)
        client = wire.Connection(proxy.address)
        self.addCleanup(client.close)
        for first, last in ((0, 0), (1, 4096), (65535, 65536), (500_000, (1 << 20) - 1)):
            client.get("/file", extra=f"Range: bytes={first}-{last}\r\n")
            response = client.read_response()
            self.assertEqual((response.status, response.body), (206, data[first : last + 1]))
            self.assertEqual(response.fields["content-range"], f"bytes {first}-{last}/{1 << 20}")

    def test_head_leaves_the_connection_usable(self):
        digest = pattern.write(self.site / "file", 300_000)
        proxy = self.boost(self.nginx().url)
        client = wire.Connection(proxy.address)
        self.addCleanup(client.close)
        for _ in range(3):
            client.send(b"HEAD /file HTTP/1.1\r\nHost: interop.test\r\n\r\n")
            response = client.read_response(method="HEAD")
            self.assertEqual((response.status, response.fields["content-length"]), (200, "300000"))
            client.get("/file")
            self.assertEqual(client.read_response().digest, digest)

    def test_pipelined_requests_get_responses_in_order(self):
        """300 requests in one write; small and large bodies, ranges and refusals of the origin."""
        hashes = [
            pattern.write(self.site / str(number), 1 + 997 * number, seed=number)
            for number in range(300)
        ]
        proxy = self.boost(self.nginx().url)
        client = wire.Connection(proxy.address)
        self.addCleanup(client.close)
        lines = [
            f"GET /{number if number % 10 else 'missing'} HTTP/1.1\r\nHost: interop.test\r\n\r\n"
            for number in range(300)
        ]
        writer = threading.Thread(target=client.send, args=("".join(lines).encode(),))
        writer.start()
        for number in range(300):
            response = client.read_response(keep=0)
            if number % 10:
                self.assertEqual((response.status, response.digest), (200, hashes[number]))
            else:
                self.assertEqual(response.status, 404)
        writer.join()

    def test_origin_connections_are_kept(self):
        """400 requests on 4 client connections use few connections to the origin."""
        pattern.write(self.site / "file", 10_000)
        nginx = self.nginx()
        # Without --no-cache, the cache would serve the file once it has a heuristic lifetime.
        proxy = self.boost(nginx.url, "--no-cache")
        for _ in range(4):
            client = wire.Connection(proxy.address)
            for _ in range(100):
                client.get("/file")
                self.assertEqual(client.read_response().status, 200)
            client.close()
        seen = nginx.requests(400)
        self.assertEqual(len(seen), 400)
        self.assertLessEqual(len({request["connection"] for request in seen}), os.cpu_count() + 4)
        self.assertEqual({request["host"] for request in seen}, {"interop.test"})


class Weights(InteropCase):
    """An origin that is listed three times has the weight 3, as for a canary."""

    def setUp(self):
        super().setUp()
        self.origins = [self.origin(), self.origin()]
        stable, canary = (origin.url for origin in self.origins)
        self.listed = ",".join([stable, stable, stable, canary])

    def counts(self):
        return [len(origin.seen) for origin in self.origins]

    def test_the_origin_gets_three_of_four_requests(self):
        proxy = self.boost(self.listed, "--workers", "1", "--no-cache")
        client = wire.Connection(proxy.address)
        self.addCleanup(client.close)
        for _ in range(20):
            client.get("/page")
            self.assertEqual(client.read_response().status, 200)
        self.assertEqual(self.counts(), [15, 5], "the client is not bound to one origin")
        for _ in range(20):
            self.assertEqual(wire.get(proxy.address, "/page").status, 200)
        self.assertEqual(self.counts(), [30, 10])

    def test_the_shares_hold_with_several_workers(self):
        """Each worker uses the origins in turn."""
        proxy = self.boost(self.listed, "--workers", "2", "--no-cache")
        for _ in range(40):
            self.assertEqual(wire.get(proxy.address, "/page").status, 200)
        of_stable, of_canary = self.counts()
        self.assertEqual(of_stable + of_canary, 40)
        self.assertIn(of_canary, (9, 10))

    def test_hits_reach_no_origin(self):
        proxy = self.boost(self.listed, "--cache-ttl", "override 1m")
        for _ in range(8):
            self.assertEqual(wire.get(proxy.address, "/page").status, 200)
        self.assertEqual(sum(self.counts()), 1)


class WebSockets(InteropCase):
    def setUp(self):
        super().setUp()
        self.echo = websocket.EchoOrigin()
        self.addCleanup(self.echo.stop)
        self.proxy = self.boost(self.echo.url)

    def test_a_thousand_messages(self):
        """Messages of 0 bytes to 1 MB in seeded order. Many are in flight at once, and each is
        echoed in order."""
        draw = random.Random(20)
        sizes = [draw.choice((0, 1, 125, 126, 1000, 65535, 65536)) for _ in range(MESSAGES - 20)]
        sizes += [1 << 20] * 20
        draw.shuffle(sizes)
        noise = draw.randbytes(1 << 20)
        frames = websocket.connect(self.proxy.address)

        def send():
            for number, size in enumerate(sizes):
                message = (number.to_bytes(8, "big") + noise)[:size]
                frames.send(websocket.BINARY, message)
            frames.send(websocket.CLOSE, b"\x03\xe8")

        sender = threading.Thread(target=send)
        sender.start()
        for number, size in enumerate(sizes):
            opcode, message = frames.receive()
            self.assertEqual(opcode, websocket.BINARY)
            if message != (number.to_bytes(8, "big") + noise)[:size]:
                self.fail(f"message {number} of {size} bytes came back changed")
        self.assertEqual(frames.receive(), (websocket.CLOSE, b"\x03\xe8"))
        sender.join()
        self.assertEqual(frames.reader.read(), b"", "bytes after the last frame")

    def test_both_sides_idle_then_talk(self):
        """Pings and single small frames, one at a time."""
        frames = websocket.connect(self.proxy.address)
        for number in range(50):
            frames.send(websocket.PING, str(number).encode())
            self.assertEqual(frames.receive(), (websocket.PONG, str(number).encode()))
        frames.send(websocket.CLOSE, b"")
        self.assertEqual(frames.receive()[0], websocket.CLOSE)

    def test_debians_websockets_client(self):
        """python3-websockets as an independent client, without and with compression."""
        script = (
            "import asyncio, sys, websockets\n"
            "async def main():\n"
            "    for compression in (None, 'deflate'):\n"
            "        async with websockets.connect(sys.argv[1], max_size=None,\n"
            "                                      compression=compression) as ws:\n"
            "            for size in (0, 5, 70000, 1 << 20):\n"
            "                await ws.send('x' * size)\n"
            "                assert await ws.recv() == 'x' * size\n"
            "asyncio.run(main())\n"
        )
        python = "/usr/bin/python3"
        found = subprocess.run([python, "-c", "import websockets"], capture_output=True)
        self.assertEqual(found.returncode, 0, "python3-websockets is missing: scripts/setup test")
        host, port = self.proxy.address
        self.run_client(python, "-c", script, f"ws://{host}:{port}/echo")
