"""Requests pipelined to nginx, once all connections to it are in use."""

import concurrent.futures
import hashlib
import http.client
import re

from support import pattern
from support.case import InteropCase

LENGTHS = [0, 1, 300, 5_000, 40_000, 200_000]
REQUESTS = 600
CLIENTS = 24


class Pipelining(InteropCase):
    programs = ("nginx",)

    def metric(self, name):
        """Returns the sum of a metric over its labels."""
        connection = http.client.HTTPConnection(*self.admin)
        connection.request("GET", "/metrics")
        text = connection.getresponse().read().decode()
        connection.close()
        return sum(float(value) for value in re.findall(rf"^{name}(?:{{.*}})? (\S+)$", text, re.M))

    def start(self, origin, *options):
        proxy = self.boost(
            origin, "--origin-pipelining", "8", "--limit", "origin_connections=2", "--check",
            "/page", "--admin", "127.0.0.1:0", "--cache", "off", *options,
        )
        output = re.compile(r"^millrace: admin at 127\.0\.0\.1:(\d+)$")
        self.wait_until("the admin server", lambda: any(map(output.match, proxy.lines)))
        port = next(filter(None, map(output.match, proxy.lines)))[1]
        self.admin = ("127.0.0.1", int(port))
        self.wait_until(
            "the origin is tested", lambda: self.metric("millrace_origin_pipelining") == 1
        )
        return proxy

    def load(self, proxy, paths):
        """Requests each path by one of many clients, and checks the bodies."""

        def client(mine):
            connection = http.client.HTTPConnection(*proxy.address, timeout=60)
            for path, digest in mine:
                connection.request("GET", path)
                response = connection.getresponse()
                self.assertEqual(response.status, 200)
                self.assertEqual(hashlib.sha256(response.read()).hexdigest(), digest)
            connection.close()

        with concurrent.futures.ThreadPoolExecutor(CLIENTS) as pool:
            for done in [pool.submit(client, paths[at::CLIENTS]) for at in range(CLIENTS)]:
                done.result(120)

    def test_nginx(self):
        nginx = self.nginx()
        paths = []
        for length in LENGTHS:
            body = b"".join(pattern.blocks(length))
            (self.site / f"{length}").write_bytes(body)
            paths.append((f"/{length}", hashlib.sha256(body).hexdigest()))
        (self.site / "page").write_text("page")
        proxy = self.start(nginx.url)

        def was_pipelined():
            self.load(proxy, paths * (REQUESTS // len(paths)))
            return self.metric("millrace_origin_requests_pipelined_total") > 0

        # Whether both connections are in use at a time depends on the machine.
        self.wait_until("requests are pipelined", was_pipelined)
        self.assertEqual(self.metric("millrace_origin_pipelines_ended_total"), 0)
