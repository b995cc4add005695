"""curl and wget through `millrace forward`: methods, versions, ranges, uploads, tunnels and
refusals."""

import hashlib
import json
import re

from support import pattern, tls
from support.case import InteropCase

MEGABYTE = 1 << 20


class Curl(InteropCase):
    programs = ("curl",)

    def curl(self, proxy, *arguments, **how):
        """Runs curl with the proxy. HTTP error statuses are no failures."""
        common = ["--silent", "--show-error", "--noproxy", "", "--proxy", proxy.url]
        return self.run_client("curl", *common, *arguments, **how)

    def status(self, proxy, *arguments):
        """Makes a request and returns its (status, body)."""
        body = self.folder / "body"
        body.write_bytes(b"")
        done = self.curl(proxy, "--output", body, "--write-out", "%{http_code}", *arguments)
        return int(done.stdout), body.read_bytes()

    def test_downloads_of_every_size(self):
        """0 bytes to 100 MB on one connection, each with the hash of its file."""
        sizes = [0, 1, 4095, 65536, MEGABYTE, 10 * MEGABYTE, 100_000_000]
        hashes = {size: pattern.write(self.site / str(size), size) for size in sizes}
        nginx, proxy = self.nginx(), self.forward()
        got = self.folder / "got"
        urls = []
        for size in sizes:
            urls += [f"{nginx.url}/{size}", "--output", got / str(size)]
        done = self.curl(
            proxy, "--create-dirs", *urls, "--write-out", "%{num_connects} %{http_code}\n"
        )
        self.assertEqual(done.stdout.decode().split("\n")[:7], ["1 200"] + ["0 200"] * 6)
        self.assertEqual({size: pattern.of_file(got / str(size)) for size in sizes}, hashes)
        self.assert_all_through_the_proxy(nginx, len(sizes))

    def test_http_1_0(self):
        digest = pattern.write(self.site / "file", 5 * MEGABYTE)
        nginx, proxy = self.nginx(), self.forward()
        self.curl(proxy, "--http1.0", f"{nginx.url}/file", "--output", self.folder / "got")
        self.assertEqual(pattern.of_file(self.folder / "got"), digest)
        self.assert_all_through_the_proxy(nginx, 1)

    def test_head_has_no_body(self):
        pattern.write(self.site / "file", 12345)
        nginx, proxy = self.nginx(), self.forward()
        done = self.curl(proxy, "--head", f"{nginx.url}/file")
        self.assertRegex(done.stdout.decode(), r"(?s)^HTTP/1\.1 200 .*Content-Length: 12345\r\n")

    def test_ranges_and_conditions(self):
        pattern.write(self.site / "file", MEGABYTE)
        data = (self.site / "file").read_bytes()
        nginx, proxy = self.nginx(), self.forward()
        url = f"{nginx.url}/file"
        self.assertEqual(self.status(proxy, "--range", "100-4999", url), (206, data[100:5000]))
        self.assertEqual(self.status(proxy, "--range", "-10", url), (206, data[-10:]))
        self.assertEqual(self.status(proxy, "--range", "2000000-", url)[0], 416)
        done = self.curl(proxy, "--head", url)
        tag = re.search(rb'(?i)etag: ("[^"]+")', done.stdout)[1].decode()
        self.assertEqual(self.status(proxy, "--header", f"If-None-Match: {tag}", url), (304, b""))

    def test_compressed_responses_are_chunked(self):
        text = b"a line of text that compresses well\n" * 50_000
        (self.site / "page.json").write_bytes(text)
        nginx, proxy = self.nginx(location="gzip on;"), self.forward()
        done = self.curl(
            proxy, "--compressed", "--dump-header", self.folder / "head", f"{nginx.url}/page.json"
        )
        self.assertEqual(hashlib.sha256(done.stdout).digest(), hashlib.sha256(text).digest())
        self.assertIn("gzip", (self.folder / "head").read_text())

    def upload(self, proxy, origin, *arguments, **how):
        """Returns the origin's report of an upload."""
        return json.loads(self.curl(proxy, *arguments, f"{origin.url}/upload", **how).stdout)

    def test_expect_100_continue(self):
        """The origin's 100 response reaches curl, which waits for it, and then the body reaches the
        origin."""
        digest = pattern.write(self.folder / "body", 3 * MEGABYTE)
        origin, proxy = self.origin(), self.forward()
        done = self.curl(
            proxy, "--verbose", "--header", "Expect: 100-continue", "--expect100-timeout", "100",
            "--data-binary", f"@{self.folder / 'body'}", f"{origin.url}/upload",
        )
        got = json.loads(done.stdout)
        self.assertEqual((got["method"], got["sha256"]), ("POST", digest))
        self.assertRegex(done.stderr.decode(errors="replace"), r"HTTP/1\.1 100 ")

    def test_chunked_upload(self):
        """curl uploads its standard input, whose length is unknown."""
        digest = pattern.write(self.folder / "body", 7 * MEGABYTE)
        origin, proxy = self.origin(), self.forward()
        with open(self.folder / "body", "rb") as body:
            got = self.upload(proxy, origin, "--upload-file", "-", stdin=body)
        self.assertEqual((got["method"], got["sha256"]), ("PUT", digest))
        self.assertEqual(got["fields"].get("transfer-encoding", "").lower(), "chunked")
        self.assertNotIn("content-length", got["fields"])

    def test_large_upload(self):
        digest = pattern.write(self.folder / "body", 100_000_000)
        origin, proxy = self.origin(), self.forward()
        got = self.upload(proxy, origin, "--upload-file", self.folder / "body")
        self.assertEqual((got["length"], got["sha256"]), (100_000_000, digest))

    def test_every_method(self):
        origin, proxy = self.origin(), self.forward()
        for method in ("GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"):
            got = self.upload(proxy, origin, "--request", method, "--data", "a=b")
            self.assertEqual((got["method"], got["length"]), (method, 3))
            self.assertIn("via", got["fields"])
            self.assertNotIn("proxy-connection", got["fields"])

    def test_https_by_connect(self):
        """curl opens TLS to the origin through the tunnel."""
        authority, certificate = tls.certificate(self.folder)
        digest = pattern.write(self.site / "file", 20 * MEGABYTE)
        nginx, proxy = self.nginx(certificate=certificate), self.forward()
        for number in range(2):
            self.curl(
                proxy, "--cacert", authority, f"{nginx.url}/file",
                "--output", self.folder / f"got-{number}",
            )
            self.assertEqual(pattern.of_file(self.folder / f"got-{number}"), digest)
        # The proxy cannot add Via inside TLS.
        self.assertEqual([r["via"] for r in nginx.requests(2)], ["-"] * 2)

    def test_plain_http_in_a_tunnel(self):
        """The proxy does not interpret the bytes of a tunnel."""
        origin, proxy = self.origin(), self.forward()
        digest = pattern.write(self.folder / "body", 2 * MEGABYTE)
        got = self.upload(
            proxy, origin, "--proxytunnel", "--data-binary", f"@{self.folder / 'body'}"
        )
        self.assertEqual(got["sha256"], digest)
        self.assertNotIn("via", got["fields"])

    def test_an_ipv6_origin(self):
        try:
            nginx = self.nginx(host="::1")
        except OSError as problem:
            self.skipTest(f"unsupported: this machine has no IPv6 loopback ({problem})")
        digest = pattern.write(self.site / "file", MEGABYTE)
        proxy = self.forward()
        self.curl(proxy, "--globoff", f"{nginx.url}/file", "--output", self.folder / "got")
        self.assertEqual(pattern.of_file(self.folder / "got"), digest)

    def test_refusals_say_why(self):
        """A closed port, the proxy itself and the metadata address are refused with a status and a
        text."""
        proxy = self.forward()
        closed = self.origin()
        closed.stop()
        status, body = self.status(proxy, f"{closed.url}/")
        self.assertEqual((status, bool(body.strip())), (502, True), body)
        status, body = self.status(proxy, f"{proxy.url}/")
        self.assertEqual((status, bool(body.strip())), (403, True), body)
        status, body = self.status(proxy, "http://169.254.169.254/latest/meta-data/")
        self.assertEqual((status, bool(body.strip())), (403, True), body)


class Wget(InteropCase):
    programs = ("wget",)

    def wget(self, proxy, *arguments):
        """Runs wget with the proxy, in a separate folder."""
        got = self.folder / "got"
        got.mkdir(exist_ok=True)
        options = ["--no-config", "--no-verbose", "--tries=1", "-e", "use_proxy=yes"]
        proxies = ["-e", f"http_proxy={proxy.url}", "-e", f"https_proxy={proxy.url}"]
        self.run_client("wget", *options, *proxies, "-e", "no_proxy=", *arguments, cwd=got)
        return got

    def test_downloads(self):
        digest = pattern.write(self.site / "file", 10 * MEGABYTE)
        nginx, proxy = self.nginx(), self.forward()
        got = self.wget(proxy, f"{nginx.url}/file")
        self.assertEqual(pattern.of_file(got / "file"), digest)
        self.assert_all_through_the_proxy(nginx, 1)

    def test_resumes(self):
        """The second half is a range request."""
        digest = pattern.write(self.site / "file", 2 * MEGABYTE)
        nginx, proxy = self.nginx(), self.forward()
        (self.folder / "got").mkdir()
        half = (self.site / "file").read_bytes()[:MEGABYTE]
        (self.folder / "got" / "file").write_bytes(half)
        got = self.wget(proxy, "--continue", f"{nginx.url}/file")
        self.assertEqual(pattern.of_file(got / "file"), digest)
        self.assertEqual([request["status"] for request in nginx.requests(1)], ["206"])

    def test_mirrors_a_site(self):
        hashes = {}
        for number in range(30):
            hashes[f"page-{number}"] = pattern.write(
                self.site / f"page-{number}", 1000 * number + 1, seed=number
            )
        links = "".join(f'<a href="page-{number}">page</a>' for number in range(30))
        (self.site / "index.html").write_text(f"<!DOCTYPE html><html><body>{links}</body></html>")
        nginx, proxy = self.nginx(), self.forward()
        got = self.wget(
            proxy, "--recursive", "--no-host-directories", f"{nginx.url}/index.html"
        )
        self.assertEqual({name: pattern.of_file(got / name) for name in hashes}, hashes)
        self.assert_all_through_the_proxy(nginx, 31)

    def test_https_by_connect(self):
        authority, certificate = tls.certificate(self.folder)
        digest = pattern.write(self.site / "file", 5 * MEGABYTE)
        nginx, proxy = self.nginx(certificate=certificate), self.forward()
        got = self.wget(proxy, f"--ca-certificate={authority}", f"{nginx.url}/file")
        self.assertEqual(pattern.of_file(got / "file"), digest)

    def test_posts_a_file(self):
        digest = pattern.write(self.folder / "body", MEGABYTE)
        origin, proxy = self.origin(), self.forward()
        got = self.wget(
            proxy, f"--post-file={self.folder / 'body'}", "--output-document=report",
            f"{origin.url}/upload",
        )
        self.assertEqual(json.loads((got / "report").read_text())["sha256"], digest)
