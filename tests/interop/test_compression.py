"""Responses of origins that millrace compresses for clients: while they pass, and once for all from
the cache. curl decodes them."""

import gzip
import http.client
import http.server
import random
import threading
import zlib

from support.case import InteropCase

PAGE = b"".join(b"<p>Paragraph %d of a page of text.</p>\n" % number for number in range(3000))


def own_page(path):
    """Returns a page that no other path has. Half of its length remains when it is compressed."""
    return random.Random(path).randbytes(30_000).hex().encode()


class Handler(http.server.BaseHTTPRequestHandler):
    """Sends PAGE, which may be stored. For other paths, sends a piece, and a second one when the
    client has the first."""

    protocol_version = "HTTP/1.1"

    def do_GET(self):
        if self.headers.get("If-None-Match"):
            self.send_response(304)
            self.send_header("ETag", '"page"')
            self.end_headers()
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.send_header("ETag", '"page"')
        if self.path.startswith("/stored"):
            page = own_page(self.path) if "?" in self.path else PAGE
            self.send_header("Cache-Control", "max-age=600")
            self.send_header("Content-Length", str(len(page)))
            self.end_headers()
            self.wfile.write(page)
            return
        self.send_header("Cache-Control", "no-store")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self.send_chunk(b"the first piece")
        if self.server.has_first.wait(60):
            self.send_chunk(b" and the second")
        self.wfile.write(b"0\r\n\r\n")

    def send_chunk(self, payload):
        self.wfile.write(b"%x\r\n%s\r\n" % (len(payload), payload))
        self.wfile.flush()

    def log_message(self, *_):
        pass


class Compression(InteropCase):
    def setUp(self):
        super().setUp()
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.has_first = threading.Event()
        threading.Thread(target=self.server.serve_forever).start()
        self.addCleanup(self.server.server_close)
        self.addCleanup(self.server.shutdown)
        self.addCleanup(self.server.has_first.set)
        origin = f"http://127.0.0.1:{self.server.server_port}"
        self.proxy = self.boost(origin, "--compress", "on")

    def get(self, path, **fields):
        connection = http.client.HTTPConnection(*self.proxy.address, timeout=60)
        self.addCleanup(connection.close)
        fields = {name.replace("_", "-"): value for name, value in fields.items()}
        connection.request("GET", path, headers=fields)
        return connection.getresponse()

    def test_a_piece_is_not_held_back(self):
        response = self.get("/pieces", Accept_Encoding="gzip")
        self.assertEqual(response.getheader("Content-Encoding"), "gzip")
        self.assertEqual(response.getheader("ETag"), 'W/"page"')
        decoder, text = zlib.decompressobj(zlib.MAX_WBITS | 16), b""
        while len(text) < len(b"the first piece"):
            text += decoder.decompress(response.read1())
        self.assertEqual(text, b"the first piece")
        self.server.has_first.set()
        text += decoder.decompress(response.read())
        self.assertTrue(decoder.eof)
        self.assertEqual(text, b"the first piece and the second")

    def test_a_request_that_forbids_it(self):
        self.server.has_first.set()
        for path in ("/pieces", "/stored"):
            for control, coding in (("max-age=9, no-transform", None), ("max-age=9", "gzip")):
                response = self.get(path, Accept_Encoding="gzip", Cache_Control=control)
                self.assertEqual(response.getheader("Content-Encoding"), coding, path)
                response.read()

    def test_a_304_fits_the_compressed_response(self):
        # With a cache, the whole response would be fetched.
        origin = f"http://127.0.0.1:{self.server.server_port}"
        self.proxy = self.boost(origin, "--compress", "on", "--no-cache")
        response = self.get("/pieces", Accept_Encoding="gzip", If_None_Match='W/"page"')
        self.assertEqual((response.status, response.getheader("ETag")), (304, 'W/"page"'))
        self.assertEqual(response.getheader("Vary"), "Accept-Encoding")
        response = self.get("/pieces", If_None_Match='"page"')
        self.assertEqual((response.status, response.getheader("ETag")), (304, '"page"'))

    def test_evicted_forms_free_their_memory(self):
        origin = f"http://127.0.0.1:{self.server.server_port}"
        options = ("--compress", "on", "--cache-memory", "4M", "--workers", "1")
        self.proxy = self.boost(origin, *options)
        connection = http.client.HTTPConnection(*self.proxy.address, timeout=60)
        self.addCleanup(connection.close)

        def get(number):
            path = f"/stored?{number}"
            connection.request("GET", path, headers={"Accept-Encoding": "gzip"})
            response = connection.getresponse()
            self.assertEqual(gzip.decompress(response.read()), own_page(path))
            return response.getheader("Age") is not None

        # Far more than the memory holds, each stored and then compressed.
        for number in range(160):
            get(number)
            get(number)
        for number in range(160, 170):
            get(number)
        self.assertEqual([get(number) for number in range(165, 170)], [True] * 5)

    def test_a_stored_response_is_compressed_once(self):
        for coding in ("br", "zstd", "gzip"):
            kept = f'"page-{coding}"'

            def is_kept():
                response = self.get("/stored", Accept_Encoding=coding)
                body = response.read()
                if response.getheader("Content-Encoding") == "gzip":
                    self.assertEqual(gzip.decompress(body), PAGE)
                return response.getheader("ETag") == kept

            self.wait_until(f"the form for {coding} is kept", is_kept)
            response = self.get("/stored", Accept_Encoding=coding)
            body = response.read()
            self.assertEqual(response.getheader("Content-Encoding"), coding)
            self.assertEqual(response.getheader("Content-Length"), str(len(body)))
            self.assertEqual(response.getheader("Vary"), "Accept-Encoding")
            self.assertLess(len(body), len(PAGE) / 4)
            again = self.get("/stored", Accept_Encoding=coding)
            self.assertEqual(again.read(), body, "the same bytes")
            same = self.get("/stored", Accept_Encoding=coding, If_None_Match=kept)
            self.assertEqual(same.status, 304)
        plain = self.get("/stored")
        self.assertEqual((plain.read(), plain.getheader("ETag")), (PAGE, '"page"'))

    def test_curl_decodes_each_form(self):
        for _ in range(8):
            done = self.run_client("curl", "-sS", "--compressed", f"{self.proxy.url}/stored")
            self.assertEqual(done.stdout, PAGE)
