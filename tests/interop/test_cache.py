"""The cache before a scripted origin, with curl as the client and `millrace cache` for the
operator."""

import email
import email.policy
import json
import re
import time

from support import wire
from support.scripted import Response, Handler
from support.shop import ShopCase

TOKEN = "correct-horse-battery-staple"
MINUTE = "max-age=60"


class Cache(ShopCase):
    def setUp(self):
        super().setUp()
        token = self.folder / "token"
        token.touch(0o600)
        token.write_text(TOKEN + "\n")
        self.token = token
        self.proxy = self.boost(
            self.shop.url, "--admin", f"unix:{self.admin_path}", "--admin", "127.0.0.1:0",
            "--admin-token-file", token, "--workers", "2",
        )
        output = re.compile(r"^millrace: admin at (127\.0\.0\.1:\d+)$")
        self.tcp = next(filter(None, map(output.match, self.proxy.lines)))[1]

    def get(self, path, *arguments):
        return self.curl(self.proxy, path, *arguments)

    def body(self, path, *arguments):
        status, _, body = self.get(path, *arguments)
        self.assertEqual(status, 200)
        return body

    def stored_paths(self):
        """Returns the paths of the stored responses."""
        return sorted(it["url"].removeprefix(self.proxy.url) for it in self.cached())

    def fill(self, *paths, **fields):
        for path in paths:
            self.responses[path] = Response(path.encode(), Cache_Control=MINUTE, **fields)
            self.body(path)

    def test_a_second_request_is_a_hit(self):
        self.responses["/a"] = Response(b"one", Cache_Control=MINUTE)
        status, fields, body = self.get("/a")
        self.assertEqual((status, body), (200, b"one"))
        self.assertIn("fwd=uri-miss; stored", fields["cache-status"])
        self.responses["/a"] = Response(b"two", Cache_Control=MINUTE)
        status, fields, body = self.get("/a")
        self.assertEqual((status, body), (200, b"one"))
        self.assertIn("hit", fields["cache-status"])
        self.assertIn("age", fields)
        self.assertEqual(self.shop.count("/a"), 1)

    def test_via_of_a_hit_is_that_of_the_miss(self):
        """Via has the version with which the stored response was received, also after a
        validation."""
        tag = {"ETag": '"1"'}
        for version in "1.0", "1.1":
            before, Handler.protocol_version = Handler.protocol_version, f"HTTP/{version}"
            self.addCleanup(setattr, Handler, "protocol_version", before)
            self.responses[f"/{version}"] = Response(b"one", Cache_Control=MINUTE, **tag)
            output = [self.get(f"/{version}")[1] for _ in range(2)]
            output.append(self.get(f"/{version}", "--header", "Cache-Control: no-cache")[1])
            output.append(self.get(f"/{version}")[1])
            self.assertIn("fwd-status=304", output[2]["cache-status"])
            self.assertIn("hit", output[3]["cache-status"])
            self.assertTrue(output[0]["via"].startswith(f"{version} millrace-"), output[0])
            self.assertEqual({fields["via"] for fields in output}, {output[0]["via"]})

    def test_private_responses_are_not_shared(self):
        """Not stored: private, no-store, a response to a request with credentials, and a response
        that sets a cookie and has no lifetime."""
        self.responses["/private"] = Response(b"mine", Cache_Control="private, max-age=60")
        self.responses["/no-store"] = Response(b"mine", Cache_Control="no-store")
        self.responses["/credentials"] = Response(b"mine", Cache_Control=MINUTE)
        self.responses["/cookie"] = Response(b"mine", Set_Cookie="session=1")
        for path in ("/private", "/no-store", "/credentials", "/cookie"):
            who = ("--user", "a:b") if path == "/credentials" else ()
            for count in (1, 2):
                _, fields, _ = self.get(path, *who)
                self.assertNotIn("hit", fields["cache-status"], path)
                self.assertEqual(self.shop.count(path), count, path)
        self.assertEqual(self.stored_paths(), [])

    def test_conditions_and_ranges_are_served_from_stored_responses(self):
        noise = bytes(range(256)) * 400
        self.responses["/a"] = Response(noise, Cache_Control=MINUTE, ETag='"1"')
        self.assertEqual(self.body("/a"), noise)
        status, fields, body = self.get("/a", "--header", 'If-None-Match: "1"')
        self.assertEqual((status, fields["etag"], body), (304, '"1"', b""))
        status, fields, body = self.get("/a", "--range", "1000-1999")
        self.assertEqual((status, body), (206, noise[1000:2000]))
        self.assertEqual(fields["content-range"], f"bytes 1000-1999/{len(noise)}")
        self.assertEqual(self.get("/a", "--range", "999999-")[0], 416)
        status, fields, _ = self.get("/a", "--head")
        self.assertEqual((status, fields["content-length"]), (200, str(len(noise))))
        self.assertEqual(self.shop.count("/a"), 1)

    def test_several_ranges_are_one_response(self):
        """RFC 9110 section 14.6: each part with its range, from one stored response."""
        noise = bytes(range(256)) * 40
        self.responses["/a"] = Response(noise, Cache_Control=MINUTE, Content_Type="text/x-noise")
        self.assertEqual(self.body("/a"), noise)
        status, fields, body = self.get("/a", "--range", "0-9,5000-5099,-7")
        self.assertEqual(status, 206)
        head = f"Content-Type: {fields['content-type']}\r\n\r\n".encode()
        parts = email.message_from_bytes(head + body, policy=email.policy.HTTP).get_payload()
        places = [part["Content-Range"] for part in parts]
        end = len(noise)
        wanted = [(0, 9), (5000, 5099), (end - 7, end - 1)]
        self.assertEqual(places, [f"bytes {first}-{last}/{end}" for first, last in wanted])
        self.assertEqual({part["Content-Type"] for part in parts}, {"text/x-noise"})
        boundary = fields["content-type"].split("boundary=")[1].encode()
        for first, last in wanted:
            self.assertIn(b"\r\n\r\n" + noise[first : last + 1] + b"\r\n--" + boundary, body)
        self.assertEqual(self.shop.count("/a"), 1)

    def test_the_first_member_of_age_counts(self):
        """RFC 9111 section 5.1: the first member applies, also with several lines, and values that
        are no numbers are ignored. The same holds for 304 responses and responses to HEAD."""
        for number, (age, is_fresh) in enumerate([
            ("5, 9000", True), (["5", "9000"], True), ("0, 0", True), ("abc", True),
            ("-9000", True),
            (["abc", "9000"], True), ("9000;a=b", True), ("9000.0", True),
            ("9000, 0", False), (["9000", "0"], False), (", 9000", False),
        ]):
            path = f"/{number}"
            self.responses[path] = Response(
                b"one", Cache_Control="max-age=600", ETag='"1"', Age=age)
            with self.subTest(age=age):
                requests = [(), (), ("--header", "Cache-Control: no-cache"), (),
                        ("--head", "--header", "Cache-Control: no-cache"), ()]
                for arguments in requests:
                    _, fields, body = self.get(path, *arguments)
                    self.assertTrue("--head" in arguments or body == b"one", body)
                self.assertEqual("hit" in fields["cache-status"], is_fresh, fields)
                self.assertEqual(self.shop.count(path), 3 if is_fresh else 6)

    def test_a_targeted_field_of_the_wrong_type_allows_nothing(self):
        """RFC 9213: max-age is an Integer, also in 304 responses and those to HEAD."""
        for number, (value, control, request_count) in enumerate([
            ("max-age=600", "no-store", 1), ('max-age="600"', "no-store", 2),
            ("max-age=600.0", "no-store", 2), ("max-age", "no-store", 2),
            ('public, s-maxage="600"', "no-store", 2), ("max-age=600, public=1", "no-store", 2),
            ('max-age=600, private="a"', "no-store", 1), ('max-age="0"', "max-age=600", 1),
            ('max-age="600", private', "max-age=600", 2), ("max-age=600 600", "no-store", 2),
            ('x="600", max-age=600', "no-store", 1),
        ]):
            path = f"/{number}"
            self.responses[path] = Response(
                b"one", Cache_Control=control, ETag='"1"', CDN_Cache_Control=value
            )
            for _ in range(2):
                self.assertEqual(self.body(path), b"one")
            self.assertEqual(self.shop.count(path), request_count, value)
        fields = {"Cache_Control": "no-store", "CDN_Cache_Control": 'max-age="600"'}
        for path, how in ("/304", ()), ("/head", ("--head",)):
            self.fill(path, ETag='"1"')
            self.responses[path] = Response(b"two", ETag='"1"', **fields)
            self.get(path, *how, "--header", "Cache-Control: no-cache")
            self.responses[path] = Response(b"two", ETag='"2"', Cache_Control=MINUTE)
            self.assertEqual(self.body(path), b"two", path)

    def test_an_operators_lifetime_overrides_the_origins(self):
        """The operator's lifetime applies whether or not the origin sets one, but never to
        no-store."""
        proxy = self.boost(
            self.shop.url, "--cache-ttl", "override 1h", "--cache-ttl", "503 default 1m",
        )
        self.responses["/old"] = Response(b"a", Cache_Control="max-age=0")
        self.responses["/silent"] = Response(b"b")
        self.responses["/no-store"] = Response(b"c", Cache_Control="no-store")
        self.responses["/busy"] = Response(b"d", status=503)
        self.responses["/broken"] = Response(b"e", status=500)
        self.proxy = proxy
        for path, request_count in [("/old", 1), ("/silent", 1), ("/no-store", 2), ("/busy", 1),
                            ("/broken", 2)]:
            for _ in range(2):
                self.get(path)
            self.assertEqual(self.shop.count(path), request_count, path)

    def test_concurrent_requests_collapse_to_one_fetch(self):
        self.responses["/a"] = Response(b"a" * 300_000, held=True, Cache_Control=MINUTE)
        clients = [wire.Connection(self.proxy.address) for _ in range(40)]
        for client in clients:
            self.addCleanup(client.close)
            client.get("/a")
        waiting = re.compile(r'^millrace_cache_collapsed_total\{worker="\d"\} (\d+)$', re.M)

        def collapsed():
            connection = wire.Connection(self.tcp_address())
            connection.get("/metrics", self.tcp)
            page = connection.read_response().body.decode()
            connection.close()
            return sum(map(int, waiting.findall(page)))

        self.wait_until("all others wait", lambda: collapsed() >= len(clients) - 1)
        self.shop.go()
        responses = [client.read_response() for client in clients]
        self.assertEqual({(it.status, it.length) for it in responses}, {(200, 300_000)})
        self.assertEqual(len({it.digest for it in responses}), 1)
        self.assertEqual(self.shop.count("/a"), 1)

    def tcp_address(self):
        host, _, port = self.tcp.rpartition(":")
        return host, int(port)

    def test_a_stale_response_is_served_while_it_is_validated(self):
        control = "max-age=1, stale-while-revalidate=600"
        self.responses["/a"] = Response(b"old", Cache_Control=control)
        self.assertEqual(self.body("/a"), b"old")
        self.responses["/a"] = Response(b"new", held=True, Cache_Control=MINUTE)
        # The response is a hit until it is stale.
        self.wait_until("the origin receives the request", self.is_revalidated)
        self.assertEqual(self.body("/a"), b"old", "the client does not wait for the origin")
        self.shop.go()
        self.wait_until("the new response is stored", lambda: self.body("/a") == b"new")

    def is_revalidated(self):
        self.assertEqual(self.body("/a"), b"old")
        time.sleep(0.1)
        return self.shop.count("/a") == 2

    def test_purges_by_url_prefix_tag_and_group(self):
        base = self.proxy.url
        self.fill("/a/1", "/a/2", "/ab", Surrogate_Key="x common")
        self.fill("/b/1", "/b/2", Cache_Tag="y, common", Cache_Groups='"g"')
        self.fill("/%C3%BC/1", Surrogate_Key="common")
        everything = ["/%C3%BC/1", "/a/1", "/a/2", "/ab", "/b/1", "/b/2"]
        self.assertEqual(self.stored_paths(), everything)
        for words, gone in [
            ((f"{base}/a/1",), ["/a/1"]),
            (("--prefix", f"{base}/a/"), ["/a/1", "/a/2"]),
            ((f"{base}/ü/1",), ["/%C3%BC/1"]),
            (("--prefix", f"{base}/ü"), ["/%C3%BC/1"]),
            (("--tag", "x"), ["/a/1", "/a/2", "/ab"]),
            (("--tag", "common"), everything),
            (("--group", "g", "--site", base), ["/b/1", "/b/2"]),
            (("--group", "g", "--site", "http://other.example"), []),
            (("--all",), everything),
        ]:
            if gone:
                self.assertEqual(self.cache("purge", *words), f"purged: {len(gone)}\n", words)
            else:
                output = self.cache("purge", *words, fails=3)
                self.assertEqual(output, "millrace: cache purge: no stored response matched\n")
            left = [path for path in everything if path not in gone]
            self.assertEqual(self.stored_paths(), left, words)
            for path in gone:
                before = self.shop.count(path)
                self.assertEqual(self.body(path), path.encode())
                self.assertEqual(self.shop.count(path), before + 1)
        self.assertEqual(self.stored_paths(), everything)

    def test_a_softly_purged_response_is_validated(self):
        self.fill("/a", ETag='"1"')
        self.assertEqual(self.cache("purge", "--all", "--soft"), "made stale: 1\n")
        self.assertEqual(self.stored_paths(), ["/a"])
        _, fields, body = self.get("/a")
        self.assertEqual(body, b"/a")
        self.assertIn("fwd=stale; fwd-status=304", fields["cache-status"])
        self.assertIn("hit", self.get("/a")[1]["cache-status"])

    def test_a_purge_applies_to_a_response_that_is_being_fetched(self):
        self.responses["/a"] = Response(b"a", held=True, Cache_Control=MINUTE, ETag='"1"')
        client = wire.Connection(self.proxy.address)
        self.addCleanup(client.close)
        client.get("/a", host=self.proxy.addresses[0])
        self.wait_until("the origin receives the request", lambda: self.shop.count("/a") == 1)
        self.cache("purge", f"{self.proxy.url}/a", fails=3)
        self.shop.go()
        self.assertEqual(client.read_response().body, b"a")
        self.assertIn("fwd=stale", self.get("/a")[1]["cache-status"])
        self.assertEqual(self.shop.count("/a"), 2)

    def test_a_request_makes_a_group_invalid(self):
        """RFC 9875 section 3, for the site of the request alone."""
        self.fill("/a", "/b", ETag='"1"', Cache_Groups='"g"')
        self.fill("/c", ETag='"1"', Cache_Groups='"h"')
        self.responses["/order"] = Response(b"done", Cache_Group_Invalidation='"g"')
        self.assertEqual(self.body("/order", "--data", "x"), b"done")
        for path, is_hit in (("/a", False), ("/b", False), ("/c", True)):
            status = self.get(path)[1]["cache-status"]
            self.assertEqual("fwd=" not in status, is_hit, f"{path}: {status}")

    def test_operators_list_and_inspect_stored_responses(self):
        self.fill("/a", "/b", X_Shown="yes")
        listed = self.cache("list")
        self.assertRegex(listed, rf"(?m)^200 +2 bytes +fresh +\d+ s  memory  {self.proxy.url}/a ")
        self.assertEqual(len(self.cache("list", f"{self.proxy.url}/a").splitlines()), 2)
        self.assertIn("more", self.cache("list", "--limit", "1"))
        shown = self.cache("show", f"{self.proxy.url}/a")
        self.assertIn("X-Shown: yes", shown)
        shown = json.loads(self.cache("show", f"{self.proxy.url}/b", "--json"))["objects"][0]
        self.assertEqual((shown["status"], shown["bytes"], shown["state"]), (200, 2, "fresh"))
        self.assertIn("no stored response", self.cache("show", "http://a/", fails=True))
        self.assertRegex(self.cache("stat"), r"(?m)^objects +2 ")
        stat = json.loads(self.cache("stat", "--json"))
        self.assertEqual(stat["objects"], 2)
        self.assertGreater(stat["memory_bytes"], stat["memory_live_bytes"])

    def test_urls_and_purges_over_tcp_need_the_token(self):
        self.fill("/a")
        self.assertRegex(self.cache("stat", admin=self.tcp), r"(?m)^objects +1 ")
        for words in (("purge", "--all"), ("list",), ("show", f"{self.proxy.url}/a")):
            output = self.cache(*words, admin=self.tcp, fails=True)
            self.assertIn("missing Authorization", output, words)
        self.assertEqual(self.stored_paths(), ["/a"])
        self.assertIn("/a", self.cache("list", "--token-file", self.token, admin=self.tcp))
        output = self.cache("purge", "--all", "--token-file", self.token, admin=self.tcp)
        self.assertEqual(output, "purged: 1\n")
        output = self.cache("list", admin="127.0.0.1:1", fails=True)
        self.assertRegex(output, r"cannot reach .* \(start the process with --admin 127.0.0.1:1,")
