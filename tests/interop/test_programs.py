"""Programs that hand over their responses without a copy: all forms of responses, bodies of all
sizes, restarts, programs that end or break the protocol, and the examples for C and Python."""

import concurrent.futures
import contextlib
import os
import signal
import socket
import ssl
import subprocess
import sys
import time

from support import copy_free, pattern, wire
from support.case import PROJECT, InteropCase
from support.copy_free import COPIED, SEALED

TEXT = b"Content-Type: text/plain\n"


class Case(InteropCase):
    def setUp(self):
        super().setUp()
        self.folder.chmod(0o755)
        self.path = self.folder / "program"

    def program(self, respond, **documents):
        started = copy_free.Program(self.path, respond, documents)
        self.addCleanup(started.stop)
        return started

    def start(self, options="", limits="", top="workers = 1", route="/app/"):
        config = self.folder / "millrace.toml"
        config.write_text(
            f'{top}\n[[serve]]\nlisten = "127.0.0.1:0"\n[[serve.route]]\npath = "{route}"\n'
            f'program = "unix:{self.path}"\n{options}\n[limits]\n{limits}\n'
        )
        return self.millrace("run", config)

    def request(self, proxy, method="GET", target="/app/", fields="", body=b""):
        connection = wire.Connection(proxy.address)
        with contextlib.closing(connection.socket):
            head = f"{method} {target} HTTP/1.1\r\nHost: interop.test\r\nConnection: close\r\n"
            if body:
                head += f"Content-Length: {len(body)}\r\n"
            connection.send((head + fields + "\r\n").encode() + body)
            return connection.read_response(method=method, keep=1 << 23)


class Responses(Case):
    programs = ("curl",)

    def test_the_request(self):
        names = ("REQUEST_METHOD SCRIPT_NAME PATH_INFO QUERY_STRING REQUEST_URI HTTP_A HTTP_PROXY "
                 "CONTENT_LENGTH CONTENT_TYPE SERVER_NAME REMOTE_ADDR GATEWAY_INTERFACE").split()
        self.program(lambda request: (
            TEXT + b"\n",
            (COPIED, b"|".join(request[name] or b"-" for name in names)),
            (SEALED, request.body),
        ))
        fields = "A: 1\r\nA: 2\r\nProxy: x\r\nContent-Type: t/x\r\n"
        found = self.request(self.start(), "POST", "/app/%20x?q=1", fields, b"a body")
        self.assertEqual(found.status, 200)
        self.assertEqual(
            found.body,
            b"POST|/app|/ x|q=1|/app/%20x?q=1|1, 2|-|6|t/x|interop.test|127.0.0.1|CGI/1.1a body",
        )
        self.assertEqual(found.fields["content-type"], "text/plain")

    def test_forms_of_headers(self):
        forms = {
            "status": (b"Status: 404 Not There\nA: b\n\n", 404, b"body"),
            "redirect": (b"Location: http://a/b\n\n", 302, b"body"),
            "local": (b"Location: /app/status\n\n", 404, b"body"),
            "none": (b"Status: 204\n\n", 204, b""),
            "length": (TEXT + b"Content-Length: 4\n\n", 200, b"body"),
            "cr": (b"A: b\r\n\r\n", 200, b"body"),
        }
        self.program(lambda request: (
            forms[request["PATH_INFO"][1:].decode()][0], (SEALED, b"bo"), (COPIED, b"dy")
        ))
        proxy = self.start()
        for name, (_, status, body) in forms.items():
            found = self.request(proxy, target=f"/app/{name}")
            self.assertEqual((found.status, found.body), (status, body), name)
        head = self.request(proxy, "HEAD", "/app/status")
        self.assertEqual((head.status, head.fields["content-length"]), (404, "4"))

    def test_headers_that_are_malformed(self):
        for header in (b"", b"no field\n\n", b"A: b", b"A: b\n", b"Status: 99\n\n",
                       b"Content-Length: 9\n\n", b"Content-Length: 3\n\n", b"Status: 101\n\n",
                       b"A\0: b\n\n", b"A: " + b"b" * 200_000 + b"\n\n"):
            program = copy_free.Program(self.path, lambda _: (header, (SEALED, b"body")))
            with contextlib.ExitStack() as after:
                after.callback(program.stop)
                proxy = self.start()
                self.assertEqual(self.request(proxy).status, 502, header[:20])
                self._end(proxy)
                # The connection, which carries all requests, goes on.
                self.assertEqual([of for of in proxy.lines if "disconnected" in of], [])

    def test_bodies_of_all_sizes(self):
        sizes = (1, 100, 16_383, 16_384, 65_536, 100_000, 524_288, 3_000_000)
        contents = {f"kept{size}": os.urandom(size) for size in sizes}

        def respond(request):
            kind, size = request["PATH_INFO"][1:].decode().split("/")
            if kind == "kept":
                return (TEXT + b"\n", f"kept{size}")
            return (TEXT + b"\n", (kind, contents[f"kept{size}"]))

        self.program(respond, **contents)
        proxy = self.start()
        for _ in range(3):
            connection = wire.Connection(proxy.address)
            with contextlib.closing(connection.socket):
                for size in sizes:
                    for kind in ("kept", SEALED, COPIED):
                        connection.get(f"/app/{kind}/{size}")
                        response = connection.read_response(keep=1 << 22)
                        self.assertTrue(response.body == contents[f"kept{size}"], f"{kind} {size}")

    def test_a_body_of_many_parts(self):
        pieces = [(SEALED if at % 3 else COPIED, bytes([at]) * (at * 97)) for at in range(1, 150)]
        self.program(lambda _: (TEXT + b"\n", *pieces))
        expected = b"".join(content for _, content in pieces)
        proxy = self.start()
        self.assertTrue(self.request(proxy).body == expected)

    def test_request_bodies(self):
        self.program(lambda request: (TEXT + b"\n", (SEALED, request.body)))
        proxy = self.start('upload-buffer = "8M"')
        for length in ((2 << 20) - 1, 2 << 20, (2 << 20) + 1, 8 << 20):
            body = os.urandom(length)
            self.assertTrue(self.request(proxy, "POST", body=body).body == body, length)
        proxy = self.start('upload-buffer = "300K"')
        for length in (1, 20_000, 300 << 10):
            body = os.urandom(length)
            self.assertTrue(self.request(proxy, "POST", body=body).body == body, length)
        self.assertEqual(self.request(proxy, "POST", body=bytes((300 << 10) + 1)).status, 413)
        url = f"{proxy.url}/app/"
        for length, status in ((200_000, b"200"), (400_000, b"413")):
            (self.folder / "body").write_bytes(bytes(length))
            command = ("curl", "-s", "-o", "/dev/null", "-w", "%{http_code}", "-H",
                       "Transfer-Encoding: chunked", "--data-binary", f"@{self.folder}/body", url)
            self.assertEqual(self.run_client(*command).stdout, status)

    def test_a_body_is_received_into_the_pool_of_the_program(self):
        self.program(lambda request: (TEXT + b"\n", (SEALED, request.body)))
        admin = self.folder / "admin.sock"
        proxy = self.start('upload-buffer = "1M"', top=f'workers = 1\nadmin = "unix:{admin}"')
        body = os.urandom(400_000)
        size = f"{len(body):x}\r\n".encode()
        for fields, before, after, buffered in (
            (f"Content-Length: {len(body)}", b"", b"", range(40_000)),
            # Its length is not known before it was received.
            ("Transfer-Encoding: chunked", size, b"\r\n0\r\n\r\n", range(300_000, 1 << 20)),
        ):
            connection = wire.Connection(proxy.address)
            with contextlib.closing(connection.socket):
                connection.send(f"POST /app/ HTTP/1.1\r\nHost: a\r\n{fields}\r\n\r\n".encode())
                connection.send(before + body[:300_000])
                self.wait_until("bytes are read", lambda: not wire.unread_bytes(connection.socket))
                self.assertIn(self.buffered_bytes(admin), buffered, fields)
                connection.send(body[300_000:] + after)
                self.assertTrue(connection.read_response().body == body, fields)

    def buffered_bytes(self, admin):
        command = ("curl", "-sf", "--unix-socket", admin, "http://localhost/metrics")
        lines = self.run_client(*command).stdout.decode().splitlines()
        return sum(int(line.split()[-1]) for line in lines
                   if line.startswith("millrace_buffered_bytes"))

    def test_compression_and_tls(self):
        content = b"the same words again and again. " * 10_000
        self.program(lambda _: (TEXT + b"\n", "document"), document=content)
        certificate, key = self.folder / "c.pem", self.folder / "k.pem"
        subprocess.run(
            ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256",
             "-nodes", "-keyout", key, "-out", certificate, "-subj", "/CN=localhost"],
            check=True, capture_output=True,
        )
        config = self.folder / "millrace.toml"
        config.write_text(
            f'user = "root"\n[[serve]]\nlisten = ["127.0.0.1:0", "tls://127.0.0.1:0"]\n'
            f'certificate = "{certificate}"\nkey = "{key}"\n[[serve.route]]\npath = "/"\n'
            f'program = "unix:{self.path}"\ncompress = "on"\n'
        )
        proxy = self.millrace("run", config)
        self.wait_until("both addresses", lambda: len(proxy.addresses) == 2)
        plain, secured = proxy.addresses
        for extra in ((), ("--compressed",)):
            for url in (f"http://{plain}/", f"https://{secured}/"):
                found = self.run_client("curl", "-skf", *extra, url).stdout
                self.assertTrue(found == content, f"{url} {extra}")

    def test_many_requests_at_a_time(self):
        self.program(lambda request: (
            TEXT + b"\n", (COPIED, request["QUERY_STRING"]), "document"
        ), document=bytes(50_000))
        proxy = self.start(top="workers = 2")

        def client(number):
            connection = wire.Connection(proxy.address)
            with contextlib.closing(connection.socket):
                for at in range(50):
                    query = f"{number}-{at}"
                    connection.get(f"/app/?{query}")
                    found = connection.read_response().body
                    self.assertTrue(found == query.encode() + bytes(50_000), query)
            return 1

        with concurrent.futures.ThreadPoolExecutor(40) as threads:
            self.assertEqual(sum(threads.map(client, range(80))), 80)

    def test_pipelined_requests(self):
        self.program(lambda request: (TEXT + b"\n", (COPIED, request["QUERY_STRING"])))
        connection = wire.Connection(self.start().address)
        with contextlib.closing(connection.socket):
            one = "GET /app/?{} HTTP/1.1\r\nHost: a\r\n\r\n"
            connection.send("".join(one.format(at) for at in range(20)).encode())
            for at in range(20):
                self.assertEqual(connection.read_response().body, str(at).encode())


class Ends(Case):
    def test_a_program_that_is_not_there_and_comes(self):
        proxy = self.start()
        self.assertEqual(self.request(proxy).status, 502)
        for word in (b"one", b"two", b"three"):
            program = copy_free.Program(self.path, lambda _: (TEXT + b"\n", (SEALED, word)))
            with contextlib.ExitStack() as after:
                after.callback(program.stop)
                for _ in range(3):
                    self.assertEqual(self.request(proxy).body, word)
                program.stop(signal.SIGKILL)
            self.assertEqual(self.request(proxy).status, 502)

    def test_a_program_that_ends_before_it_responds(self):
        def respond(request):
            if request["QUERY_STRING"] == b"end":
                os._exit(0)
            return (TEXT + b"\n", (SEALED, b"body"))

        proxy = self.start()
        for first in ("", "end"):
            program = copy_free.Program(self.path, respond)
            with contextlib.ExitStack() as after:
                after.callback(program.stop)
                if not first:
                    self.assertEqual(self.request(proxy).status, 200)
                self.assertEqual(self.request(proxy, target="/app/?end").status, 502)
        self.assertEqual(self.request(proxy).status, 502)

    def test_a_request_that_is_sent_again(self):
        def respond(request):
            if request["QUERY_STRING"] == b"end":
                os._exit(0)
            return (TEXT + b"\n", (SEALED, b"first"))

        self.program(respond)
        proxy = self.start(limits="first_byte_ms = 500")
        self.assertEqual(self.request(proxy).body, b"first")
        self.path.unlink()
        self.program(lambda _: (TEXT + b"\n", (SEALED, b"second")))
        self.assertEqual(self.request(proxy, target="/app/?end").body, b"second")
        # The deadline of the first attempt ends nothing.
        time.sleep(1)
        self.assertEqual(self.request(proxy).body, b"second")

    def test_a_program_that_takes_too_long(self):
        self.program(lambda request: (
            time.sleep(2 if request["QUERY_STRING"] == b"slow" else 0) or TEXT + b"\n",
            (COPIED, request["QUERY_STRING"]),
        ))
        proxy = self.start(limits="first_byte_ms = 500")
        self.assertEqual(self.request(proxy, target="/app/?slow").status, 504)
        # The late response is not that of another request.
        time.sleep(2)
        for at in range(10):
            found = self.request(proxy, target=f"/app/?{at}")
            self.assertEqual((found.status, found.body), (200, str(at).encode()))

    def test_clients_that_leave(self):
        self.program(lambda request: (
            time.sleep(0.01) or TEXT + b"\n", (SEALED, request["QUERY_STRING"] * 30_000)
        ))
        proxy = self.start()
        for at in range(30):
            connection = wire.Connection(proxy.address)
            connection.get(f"/app/?{at:03}")
            if at % 3 == 0:
                connection.exactly(10, lambda _: None)
            connection.socket.close()
        found = self.request(proxy, target="/app/?end")
        self.assertTrue(found.body == b"end" * 30_000)

    def test_slow_clients_do_not_fill_the_memory(self):
        length = 1 << 20
        self.program(lambda request: (TEXT + b"\n", (SEALED, os.urandom(8) + bytes(length))))
        proxy = self.start(limits="program_memory_bytes = 67108864\nfirst_byte_ms = 60000")
        slow = []
        for _ in range(100):
            connection = wire.Connection(proxy.address, receive_buffer=4096)
            connection.get("/app/")
            slow.append(connection)
        time.sleep(1)
        for connection in slow:
            with contextlib.closing(connection.socket):
                self.assertEqual(connection.read_response().length, length + 8)
        self.assertEqual(self.request(proxy).status, 200)

    def test_a_reload_keeps_the_connection(self):
        self.program(lambda _: (TEXT + b"\n", (SEALED, b"body")))
        proxy = self.start()
        self.assertEqual(self.request(proxy).body, b"body")
        config = self.folder / "millrace.toml"
        config.write_text(config.read_text().replace("/app/", "/other/"))
        proxy.process.send_signal(signal.SIGHUP)
        other = lambda: self.request(proxy, target="/other/").status
        self.wait_until("the new route", lambda: other() == 200)

    def test_programs_that_break_the_protocol(self):
        hello = (16).to_bytes(8, "little") + bytes(24)
        reference = (1 | 1 << 8).to_bytes(8, "little") + bytes(24)
        for packets, reason in (
            ([b"x"], "a frame that is not valid"),
            ([hello], "a packet with a wrong number of descriptors"),
            ([reference], "a frame that is not valid"),
        ):
            with contextlib.ExitStack() as after:
                listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                after.callback(listener.close)
                after.callback(lambda: self.path.unlink())
                listener.bind(str(self.path))
                self.path.chmod(0o666)
                listener.listen()
                proxy = self.start()
                with concurrent.futures.ThreadPoolExecutor(1) as threads:
                    response = threads.submit(self.request, proxy)
                    program, _ = listener.accept()
                    after.callback(program.close)
                    for packet in packets:
                        program.send(packet)
                    self.assertEqual(response.result().status, 502)
                line_of = f"was disconnected: the other process sent {reason}"
                self.wait_until(reason, lambda: any(line_of in line for line in proxy.lines))

    def test_a_socket_of_another_kind(self):
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.addCleanup(listener.close)
        listener.bind(str(self.path))
        listener.listen()
        self.path.chmod(0o666)
        self.assertEqual(self.request(self.start()).status, 502)


class Examples(Case):
    programs = ("cc",)

    def start_example(self, *command):
        libraries = copy_free.link_library(self.folder)
        environment = dict(os.environ, LD_LIBRARY_PATH=str(libraries))
        process = subprocess.Popen([*command, self.path, "100000"], env=environment)
        self.addCleanup(process.wait)
        self.addCleanup(process.terminate)
        self.wait_until("the program listens", self.path.exists)

    def assert_serves(self):
        proxy = self.serve_program()
        for target, body in (("/", b"a" * 100_000), ("/other", b"a" * 100_000)):
            self.assertTrue(self.request(proxy, target=target).body == body)
        first, second = (self.request(proxy, target="/new").body for _ in range(2))
        self.assertEqual((len(first), len(second)), (100_000, 100_000))
        self.assertNotEqual(first, second)
        echo = self.request(proxy, "POST", "/echo", body=b"hello")
        self.assertEqual(echo.body, b"hello")

    def serve_program(self):
        options = ("--listen", "127.0.0.1:0", "--program", f"unix:{self.path}")
        return self.millrace("boost", *options)

    def test_c(self):
        program = self.folder / "example"
        libraries = copy_free.link_library(self.folder)
        subprocess.run(
            ["cc", "-Wall", "-Wextra", "-Werror", PROJECT / "examples/iolite/program.c", "-o",
             program, f"-I{PROJECT}/crates/iolite/iolite-c/include", f"-L{libraries}", "-liolite"],
            check=True,
        )
        for link in libraries.glob("libiolite*"):
            link.unlink()
        self.start_example(program)
        self.assert_serves()

    def test_python(self):
        self.start_example(sys.executable, PROJECT / "examples/iolite/program.py")
        self.assert_serves()
