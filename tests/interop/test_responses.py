"""Responses and targets with faults of real origins and clients. The client receives the strict
form or 502, the origin receives an encoded target, and nothing ambiguous is cached."""


from support import PROJECT, faulty, wire
from support.case import InteropCase


class Responses(InteropCase):
    def setUp(self):
        super().setUp()
        self.source = faulty.Origin()
        self.addCleanup(self.source.stop)

    def judge(self, proxy, prefix=b""):
        """Requests each case twice, so that a stored response is detected."""
        for number, case in enumerate(faulty.CASES):
            for _ in range(2):
                with self.subTest(case=case.name):
                    target = prefix + b"/%d" % number
                    received = faulty.fetch(proxy.address, target, method=case.method)
                    found = faulty.outcome(received, case)
                    expected = ["passed"] if case.passes else ["502", "cut"]
                    self.assertIn(found, expected)
                    self.assertTrue(received.is_strict)
                    ages = received.values(b"age")
                    self.assertEqual(ages, [], "it came from the cache")
        # The proxy still works after all cases.
        self.assertEqual(faulty.fetch(proxy.address, prefix + b"/").status, 200)

    def test_a_reverse_proxy_rewrites_or_refuses(self):
        self.judge(self.boost(self.source.url))

    def test_a_forward_proxy_rewrites_or_refuses(self):
        self.judge(self.forward("--allow-target", "127.0.0.0/8"), self.source.url.encode())

    def test_a_health_check_accepts_what_clients_receive(self):
        """A check accepts lines that end in LF, and refuses NUL in a value."""
        names = [case.name for case in faulty.CASES]
        paths = [f"/{names.index(name)}" for name in ("each line ends in LF", "NUL in a value")]
        for path, word in zip(paths, (None, "fails")):
            limits = ("--limit", "check_interval_ms=100", "--limit", "check_fails=2")
            proxy = self.boost(self.source.url, "--no-cache", "--check", path, *limits)
            output = lambda: [line for line in proxy.lines if "health check" in line]
            if word:
                self.wait_until("it fails", lambda: any(word in line for line in output()))
            else:
                self.wait_until("checks", lambda: self.source.targets.count(path.encode()) >= 5)
                self.assertEqual(output(), [])

    def test_requests_with_the_same_faults_are_refused(self):
        proxy = self.boost(self.source.url, "--no-cache")
        host = b"Host: interop.test"
        lengths = b"Content-Length: 2\r\n" * 2
        many = b"".join(b"X-%d: 1\r\n" % number for number in range(250))
        for request, status in (
            (b"GET /q HTTP/1.1\n" + host + b"\n\n", 400),
            (b"GET /q HTTP/1.1\r\n" + host + b"\n\r\n", 400),
            (b"GET /q HTTP/1.1\r\n" + host + b"\r\nX-A : 1\r\n\r\n", 400),
            (b"GET /q HTTP/1.1\r\n" + host + b"\r\nX-A: 1\r\n 2\r\n\r\n", 400),
            (b"POST /q HTTP/1.1\r\n" + host + b"\r\n" + lengths + b"\r\nok", 400),
            (b"POST /q HTTP/1.1\r\n" + host + b"\r\nContent-Length: 2, 2\r\n\r\nok", 400),
            (b"GET /q HTTP/1.1\r\n" + host + b"\r\n" + many + b"\r\n", 431),
        ):
            with self.subTest(request=request[:60]):
                client = wire.Connection(proxy.address)
                self.addCleanup(client.close)
                client.send(request)
                self.assertEqual(client.read_response().status, status)
        self.assertNotIn(b"/q", self.source.targets)

    def test_the_published_table_agrees_with_the_cases(self):
        """docs/measuring/behaviour.md has a row for each case, in this order, written by
        peers/behaviour."""
        text = (PROJECT / "docs" / "measuring" / "behaviour.md").read_text()
        lines = text.split("<!-- responses -->")[1].strip().splitlines()
        rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]
        cases = [[case.name, case.section] for case in faulty.CASES]
        self.assertEqual([row[:2] for row in rows], cases)
        for row, case in zip(rows, faulty.CASES):
            self.assertIn(row[2], ["passed"] if case.passes else ["502", "cut"], case.name)


class Targets(InteropCase):
    def setUp(self):
        super().setUp()
        self.source = faulty.Origin()
        self.addCleanup(self.source.stop)

    def test_raw_bytes_are_encoded(self):
        log = self.folder / "access.log"
        options = ("--access-log", log)
        boost, forward = self.boost(self.source.url, *options), self.forward()
        for raw, encoded in faulty.TARGETS:
            self.assertEqual(faulty.fetch(boost.address, raw).status, 200)
            absolute = self.source.url.encode() + raw
            self.assertEqual(faulty.fetch(forward.address, absolute).status, 200)
            self.assertEqual(self.source.targets[-2:], [encoded, encoded])
        self.wait_until(
            "all records",
            lambda: all(encoded in log.read_bytes() for _, encoded in faulty.TARGETS),
        )
        for raw, _ in faulty.TARGETS:
            self.assertNotIn(raw, log.read_bytes())

    def test_hosts_with_raw_bytes_are_refused(self):
        proxy = self.forward()
        for request in (
            b"GET http://\xc3\xbc.test/ HTTP/1.1\r\nHost: a.test\r\n\r\n",
            b"GET http://a.test/ HTTP/1.1\r\nHost: \xc3\xbc.test\r\n\r\n",
            b"CONNECT \xc3\xbc.test:443 HTTP/1.1\r\nHost: a.test:443\r\n\r\n",
            b"GET http://a.test/\xc3\xbc\x7f HTTP/1.1\r\nHost: a.test\r\n\r\n",
        ):
            client = wire.Connection(proxy.address)
            self.addCleanup(client.close)
            client.send(request)
            self.assertEqual(client.read_response().status, 400)

    def test_the_encoded_form_is_limited(self):
        proxy = self.boost(self.source.url, "--limit", "target_bytes=1000")
        for raw, status in ((b"/" + b"\xfc" * 333, 200), (b"/" + b"\xfc" * 334, 414)):
            self.assertEqual(faulty.fetch(proxy.address, raw).status, status)

    def test_the_key_and_the_routes_have_the_encoded_form(self):
        """A raw target has the cache key and the route of the encoded one."""
        other = faulty.Origin()
        self.addCleanup(other.stop)
        file = self.folder / "millrace.toml"
        file.write_text(f"""
[[boost]]
listen = ["127.0.0.1:0"]
[[boost.route]]
path = "/%C3%BC/"
origins = ["{other.url}"]
[[boost.route]]
origins = ["{self.source.url}"]
cache-ttl = "override 60s"
""")
        proxy = self.millrace("run", file)
        for target in (b"/%C3%BC/x", b"/\xc3\xbc/x"):
            self.assertEqual(faulty.fetch(proxy.address, target).status, 200)
        self.assertEqual((other.targets, self.source.targets), ([b"/%C3%BC/x"] * 2, []))
        for target in (b"/a%C3%BC", b"/a\xc3\xbc"):
            self.assertEqual(faulty.fetch(proxy.address, target).status, 200)
        self.assertEqual(self.source.targets, [b"/a%C3%BC"])
