"""FastCGI: scripts of php-fpm in a served folder, one application for all paths, and programs that
die, lie and stall."""

import contextlib
import hashlib
import json
import os
import subprocess
import time

from support import fastcgi, pattern, php, wire
from support.case import InteropCase


class Php(InteropCase):
    def setUp(self):
        super().setUp()
        self.assertTrue(php.program(), "php-fpm is missing: run scripts/setup test")
        self.folder.chmod(0o755)
        self.fpm = php.PhpFpm(self.folder)
        self.addCleanup(self.fpm.stop)

    def script(self, name, text):
        path = self.site / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"<?php\n{text}")

    def start(self, *options):
        return self.serve("--fastcgi", self.fpm.address, *options)

    def request(self, proxy, request, body=b""):
        connection = wire.Connection(proxy.address)
        with contextlib.closing(connection.socket):
            head = f"{request}\r\nHost: interop.test:81\r\nConnection: close\r\n"
            if body and "Transfer-Encoding" not in request:
                head += f"Content-Length: {len(body)}\r\n"
            connection.send(head.encode() + b"\r\n" + body)
            return connection.read_response()

    def get(self, proxy, target, extra=""):
        return self.request(proxy, f"GET {target} HTTP/1.1{extra}")

    def test_environment(self):
        names = (
            "SCRIPT_NAME PATH_INFO SCRIPT_FILENAME DOCUMENT_ROOT REQUEST_URI QUERY_STRING "
            "REQUEST_METHOD SERVER_NAME SERVER_PROTOCOL GATEWAY_INTERFACE REMOTE_ADDR "
            "HTTP_HOST HTTP_AUTHORIZATION HTTP_PROXY HTTP_A_B"
        ).split()
        variables = ", ".join(f"'{name}' => $_SERVER['{name}'] ?? null" for name in names)
        self.script("sub/env.php", f"echo json_encode([{variables}]);")
        fields = "\r\nAuthorization: Basic eA==\r\nProxy: evil\r\nA_B: no"
        found = self.get(self.start(), "/sub/env.php/more/%20x?a=b", fields)
        self.assertEqual(found.status, 200, found.body)
        self.assertEqual(
            json.loads(found.body),
            {
                "SCRIPT_NAME": "/sub/env.php",
                "PATH_INFO": "/more/ x",
                "SCRIPT_FILENAME": f"{self.site}/sub/env.php",
                "DOCUMENT_ROOT": str(self.site),
                "REQUEST_URI": "/sub/env.php/more/%20x?a=b",
                "QUERY_STRING": "a=b",
                "REQUEST_METHOD": "GET",
                "SERVER_NAME": "interop.test",
                "SERVER_PROTOCOL": "HTTP/1.1",
                "GATEWAY_INTERFACE": "CGI/1.1",
                "REMOTE_ADDR": "127.0.0.1",
                "HTTP_HOST": "interop.test:81",
                "HTTP_AUTHORIZATION": "Basic eA==",
                "HTTP_PROXY": None,
                "HTTP_A_B": None,
            },
        )

    def test_a_relative_folder(self):
        self.script("a.php", "echo $_SERVER['SCRIPT_FILENAME'], ' ', $_SERVER['DOCUMENT_ROOT'];")
        words = ("serve", "site", "--listen", "127.0.0.1:0", "--fastcgi", self.fpm.address)
        proxy = self.millrace(*words, before=lambda: os.chdir(self.folder))
        found = self.get(proxy, "/a.php").body.decode()
        self.assertEqual(found, f"{self.site}/a.php {self.site}")

    def test_responses(self):
        self.script("status.php", "http_response_code(418); header('X-A: b'); echo 'tea';")
        self.script("move.php", "header('Location: /other');")
        self.script("length.php", "header('Content-Length: 5'); echo 'hello';")
        self.script("empty.php", "http_response_code(204);")
        self.script("long.php", "for ($i = 0; $i < 3000; $i++) echo str_repeat(chr(65 + $i % 26), 1000);")
        self.script("die.php", "echo 'begun'; flush(); posix_kill(getmypid(), 9);")
        self.script("fatal.php", "nothing();")
        proxy = self.start()
        status = self.get(proxy, "/status.php")
        self.assertEqual((status.status, status.fields["x-a"], status.body), (418, "b", b"tea"))
        self.assertEqual(self.get(proxy, "/move.php").status, 302)
        length = self.get(proxy, "/length.php")
        self.assertEqual((length.fields["content-length"], length.body), ("5", b"hello"))
        self.assertEqual(self.get(proxy, "/empty.php").status, 204)
        expected = b"".join(bytes([65 + number % 26]) * 1000 for number in range(3000))
        for _ in range(20):
            long = self.get(proxy, "/long.php")
            self.assertEqual(long.digest, hashlib.sha256(expected).hexdigest())
        self.assertEqual(self.get(proxy, "/fatal.php").status, 500)
        self.wait_until(
            "the error of the script is reported",
            lambda: any("nothing" in line for line in proxy.lines),
        )

    def test_request_bodies(self):
        self.script("hash.php", "echo hash('sha256', file_get_contents('php://input'));")
        proxy = self.start()
        for length in (1, 1000, 65535, 65536, 200_000, 1 << 20, (1 << 20) + 1, 5 << 20):
            body = b"".join(pattern.blocks(length))
            found = self.request(proxy, "POST /hash.php HTTP/1.1", body)
            expected = hashlib.sha256(body).hexdigest().encode()
            self.assertEqual((found.status, found.body), (200, expected), length)
        chunks = b"5\r\nhello\r\n6\r\n world\r\n0\r\n\r\n"
        request = "POST /hash.php HTTP/1.1\r\nTransfer-Encoding: chunked"
        found = self.request(proxy, request, chunks)
        self.assertEqual(found.body, hashlib.sha256(b"hello world").hexdigest().encode())
        long = b"10000\r\n" + b"a" * 65536 + b"\r\n"
        self.assertEqual(self.request(proxy, request, long * 17 + b"0\r\n\r\n").status, 413)

    def test_more_connections_than_processes(self):
        """A process of php-fpm serves one connection until its end. An idle connection must not
        keep the process from a request on another connection."""
        self.script("slow.php", "usleep(20000); echo $_SERVER['QUERY_STRING'];")
        proxy = self.start("--workers", "3", "--limit", "first_byte_ms=20s")
        for attempt in range(4):
            connections = [wire.Connection(proxy.address) for _ in range(16)]
            for _ in range(3):
                for number, connection in enumerate(connections):
                    connection.get(f"/slow.php?{number}")
                for number, connection in enumerate(connections):
                    found = connection.read_response()
                    self.assertEqual((found.status, found.body), (200, b"%d" % number), attempt)
            for connection in connections:
                connection.close()

    def test_one_process_for_several_workers(self):
        """Each worker has connections of its own, and the process serves only one of them."""
        folder = self.folder / "one"
        folder.mkdir()
        fpm = php.PhpFpm(folder, children=1)
        self.addCleanup(fpm.stop)
        self.script("a.php", "echo 'ok';")
        limit = ("--limit", "first_byte_ms=20s")
        proxy = self.serve("--fastcgi", fpm.address, "--workers", "4", *limit)
        for attempt in range(24):
            found = self.get(proxy, "/a.php")
            self.assertEqual((found.status, found.body), (200, b"ok"), attempt)

    def test_files_and_front_controller(self):
        self.script("index.php", "echo 'app ', $_SERVER['REQUEST_URI'];")
        (self.site / "a.css").write_text("css")
        (self.site / "a.php~").write_text("<?php source")
        proxy = self.start("--index", "index.php", "--fallback", "/index.php")
        self.assertEqual(self.get(proxy, "/").body, b"app /")
        self.assertEqual(self.get(proxy, "/some/page?x=1").body, b"app /some/page?x=1")
        self.assertEqual(self.get(proxy, "/a.css").body, b"css")
        self.assertNotIn(b"source", self.get(proxy, "/a.php~").body)
        post = self.request(proxy, "POST /a.css HTTP/1.1", b"x")
        self.assertEqual(post.status, 405)
        proxy = self.start()
        self.assertEqual(self.get(proxy, "/none.php").status, 404)
        self.assertEqual(self.get(proxy, "/a.css/x.php").status, 404)


class Programs(InteropCase):
    def start(self, respond, *options, path="/app/"):
        self.program = fastcgi.Program(respond)
        self.addCleanup(self.program.stop)
        config = self.folder / "millrace.toml"
        config.write_text(
            f'[[boost]]\nlisten = "127.0.0.1:0"\n[[boost.route]]\npath = "{path}"\n'
            f'fastcgi = "127.0.0.1:{self.program.port}"\n'
            f"[limits]\n{options[0] if options else ''}\n"
        )
        return self.millrace("run", config)

    def get(self, proxy, target="/app/x%20y?q"):
        return wire.get(proxy.address, target)

    def test_one_application(self):
        proxy = self.start(lambda *_: fastcgi.output(b"A: b\r\n\r\nbody"))
        connection = wire.Connection(proxy.address)
        with contextlib.closing(connection.socket):
            for _ in range(3):
                connection.get("/app/x%20y?q")
                self.assertEqual(connection.read_response().body, b"body")
        environment = self.program.environments[0]
        self.assertEqual(environment["SCRIPT_NAME"], "/app")
        self.assertEqual(environment["PATH_INFO"], "/x y")
        self.assertEqual(self.program.connections, 1, "the connection is kept")
        extra = "X.Auth.User: a\r\nX_Auth_User: b\r\nX-Auth-User: c\r\n"
        connection = wire.Connection(proxy.address)
        with contextlib.closing(connection.socket):
            connection.get("/%61pp/x", extra=extra)
            self.assertEqual(connection.read_response().status, 200)
        environment = self.program.environments[-1]
        self.assertEqual(environment["PATH_INFO"], "/x")
        names = [name for name in environment if "AUTH" in name]
        self.assertEqual(names, ["HTTP_X_AUTH_USER"])
        self.assertEqual(environment["HTTP_X_AUTH_USER"], "c")

    def test_a_route_that_ends_within_a_segment(self):
        proxy = self.start(lambda *_: fastcgi.output(b"A: b\r\n\r\nbody"), path="/app")
        self.assertEqual(self.get(proxy, "/application/x").body, b"body")
        environment = self.program.environments[-1]
        self.assertEqual(environment["SCRIPT_NAME"], "")
        self.assertEqual(environment["PATH_INFO"], "/application/x")

    def test_programs_that_misbehave(self):
        header = fastcgi.record(fastcgi.STDOUT, b"A: b\r\n\r\nbegun")
        cases = {
            "closes at once": (None, 502),
            "garbage": (b"HTTP/1.1 200 OK\r\n\r\n", 502),
            "another version": (b"\2" + fastcgi.output(b"\n")[1:], 502),
            "another id": (fastcgi.record(fastcgi.STDOUT, b"\n", request=7), 502),
            "no header": (fastcgi.output(b""), 502),
            "no field": (fastcgi.output(b"no field\n\n"), 502),
            "a bad status": (fastcgi.output(b"Status: 99\n\n"), 502),
            "overloaded": (fastcgi.end(2), 502),
            "padding": (
                fastcgi.record(fastcgi.STDOUT, b"A: b\n\nok", padding=255) + fastcgi.end(),
                200,
            ),
            "a length without content": (
                fastcgi.output(b"Status: 204 No Content\nContent-Length: 0\n\n"),
                204,
            ),
            "standard error": (
                fastcgi.record(fastcgi.STDERR, b"x" * 60000) * 20 + fastcgi.output(b"\nok"),
                200,
            ),
        }
        for name, (records, status) in cases.items():
            with self.subTest(name):
                proxy = self.start(lambda *_, records=records: records)
                self.assertEqual(self.get(proxy).status, status)
        cut = {
            "cut in the body": header,
            "shorter than announced": fastcgi.output(b"Content-Length: 9\n\nshort"),
        }
        for name, records in cut.items():
            with self.subTest(name):

                def respond(_, __, connection, records=records):
                    connection.sendall(records)

                proxy = self.start(respond)
                with self.assertRaises((EOFError, ConnectionResetError)):
                    self.get(proxy)

    def test_standard_error_is_logged_with_its_request(self):
        def respond(environment, *_):
            name = environment["PATH_INFO"].encode()
            late = fastcgi.record(fastcgi.STDERR, b"late " + name)
            field = b"Cache-Control: max-age=60" if b"stored" in name else b"A: b"
            return fastcgi.record(fastcgi.STDOUT, field + b"\n\nok") + late + fastcgi.end()

        proxy = self.start(respond)
        connection = wire.Connection(proxy.address)
        with contextlib.closing(connection.socket):
            for name in ("one", "stored", "two"):
                connection.get(f"/app/{name}")
                self.assertEqual(connection.read_response().body, b"ok")
                line = f"the program of /app/{name} wrote: late /{name}"
                self.wait_until(
                    "it is logged",
                    lambda line=line: any(line in logged for logged in proxy.lines),
                )

    def test_paths_that_no_program_gets(self):
        proxy = self.start(lambda *_: fastcgi.output(b"A: b\n\nok"))
        for path, status in {
            "/app/a%00b": 400,
            "/app/a%2f..%2fb": 400,
            "/app/a%5c..": 400,
            "/app/a%2fb": 200,
            "/app/a..b": 200,
        }.items():
            self.assertEqual(self.get(proxy, path).status, status, path)
        paths = [it["PATH_INFO"] for it in self.program.environments]
        self.assertEqual(paths, ["/a/b", "/a..b"])

    def test_a_request_without_host(self):
        proxy = self.start(lambda *_: fastcgi.output(b"A: b\n\nok"))
        connection = wire.Connection(proxy.address)
        with contextlib.closing(connection.socket):
            connection.send(b"GET /app/ HTTP/1.0\r\n\r\n")
            self.assertEqual(connection.read_response().status, 200)
        self.assertEqual(self.program.environments[0]["SERVER_NAME"], "127.0.0.1")

    def test_a_malformed_response_is_not_requested_again(self):
        for name, records in (("no field", fastcgi.output(b"no field\n\n")),
                              ("no header", fastcgi.output(b"")),
                              ("overloaded", fastcgi.end(2))):
            with self.subTest(name):
                def respond(environment, *_, records=records):
                    is_first = environment["PATH_INFO"] == "/first"
                    return fastcgi.output(b"A: b\n\n") if is_first else records

                proxy = self.start(respond)
                connection = wire.Connection(proxy.address)
                with contextlib.closing(connection.socket):
                    connection.get("/app/first")
                    self.assertEqual(connection.read_response().status, 200)
                    connection.send(b"DELETE /app/second HTTP/1.1\r\nHost: a\r\n\r\n")
                    self.assertEqual(connection.read_response().status, 502)
                self.assertEqual(self.program.connections, 1)
                paths = [it["PATH_INFO"] for it in self.program.environments]
                self.assertEqual(paths, ["/first", "/second"])
                proxy.stop()

    def test_a_program_that_keeps_no_connection(self):
        """It closes each connection, as uWSGI does, but only when the next request has arrived. A
        request that cannot be sent again is not lost by that."""
        used = []

        def respond(_, body, connection):
            if connection in used:
                return None
            used.append(connection)
            return fastcgi.output(b"A: b\r\n\r\n" + body)

        proxy = self.start(respond)
        connection = wire.Connection(proxy.address)
        with contextlib.closing(connection.socket):
            for number in range(5):
                body = str(number).encode()
                head = b"POST /app/x HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\n"
                connection.send(head + body)
                response = connection.read_response()
                self.assertEqual((response.status, response.body), (200, body))
                connection.get("/app/x")
                self.assertEqual(connection.read_response().status, 200)

    def test_a_program_that_has_kept_a_connection(self):
        """Then requests that cannot be sent again take kept connections, too."""
        proxy = self.start(lambda *_: fastcgi.output(b"A: b\r\n\r\n"))
        connection = wire.Connection(proxy.address)
        with contextlib.closing(connection.socket):
            for request in (b"GET", b"GET", b"POST", b"POST"):
                connection.send(request + b" /app/x HTTP/1.1\r\nHost: a\r\n\r\n")
                self.assertEqual(connection.read_response().status, 200)
        self.assertEqual(self.program.connections, 1)

    def test_a_program_that_never_responds(self):
        def respond(*_):
            time.sleep(3)

        proxy = self.start(respond, "first_byte_ms = 200")
        self.assertEqual(self.get(proxy).status, 504)


class Sources(InteropCase):
    """The text of scripts with an extension of their own."""

    def setUp(self):
        super().setUp()
        self.folder.chmod(0o755)
        for name in ("s.tpl", "s.tpl.bak", "s.tpl~", "s.tpl.gz", "s.txt"):
            (self.site / name).write_bytes(b"source")
        (self.site / "link.txt").symlink_to("s.tpl")
        self.program = fastcgi.Program(self.respond)
        self.addCleanup(self.program.stop)
        self.address = f"127.0.0.1:{self.program.port}"

    def respond(self, environment, *_):
        name = environment.get("QUERY_STRING")
        field = f"X-Sendfile: {self.site}/{name}" if name else "A: b"
        return fastcgi.output(f"{field}\r\n\r\nran".encode())

    def assert_responses(self, proxy, expected):
        get = lambda target: wire.get(proxy.address, target)
        found = {target: (get(target).status, get(target).body) for target in expected}
        missing = [target for target, body in expected.items() if body is None]
        for target in missing:
            self.assertEqual(found[target][0], 404, target)
            self.assertNotIn(b"source", found[target][1], target)
        for target in expected.keys() - set(missing):
            self.assertEqual(found[target], (200, expected[target]), target)

    def test_copies_are_not_sent(self):
        proxy = self.serve("--fastcgi", self.address, "--extensions", ".tpl")
        self.assert_responses(
            proxy,
            {
                "/s.tpl": b"ran",
                "/s.tpl/info": b"ran",
                "/s.tpl.bak": None,
                "/s.tpl~": None,
                "/s.tpl.gz": None,
                "/link.txt": None,
                "/s.txt": b"source",
                "/q.tpl" * 1300: None,
            },
        )

    def test_other_routes_do_not_send_them(self):
        config = self.folder / "millrace.toml"
        config.write_text(
            f'''
[[serve]]
listen = "127.0.0.1:0"
folder = "{self.site}"
fastcgi = "{self.address}"
extensions = ".tpl"
[[serve.route]]
path = "/all/"
folder = "{self.folder}"
program-extensions = []
[[serve.route]]
path = "/app/"
fastcgi = "{self.address}"
sendfile-path = "{self.site}"
'''
        )
        self.assert_responses(
            self.millrace("run", config),
            {
                "/s.tpl": b"ran",
                f"/all/{self.site.name}/s.tpl": None,
                f"/all/{self.site.name}/s.tpl~": None,
                f"/all/{self.site.name}/s.txt": b"source",
                "/app/?s.tpl": None,
                "/app/?s.tpl.bak": None,
                "/app/?link.txt": None,
                "/app/?s.txt": b"source",
            },
        )


class Fcgiwrap(InteropCase):
    programs = ("fcgiwrap",)

    def test_scripts_of_another_extension(self):
        script = self.site / "a.cgi"
        head = "printf 'Status: 201\\r\\n\\r\\n%s %s' \"$PATH_INFO\" \"$QUERY_STRING\""
        script.write_text(f"#!/bin/sh\n{head}\ncat\n")
        script.chmod(0o755)
        self.folder.chmod(0o755)
        path = self.folder / "wrap.sock"
        address = f"unix:{path}"
        wrap = subprocess.Popen(
            ["fcgiwrap", "-s", address], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self.addCleanup(wrap.wait)
        self.addCleanup(wrap.terminate)
        self.wait_until("it listens", path.exists)
        path.chmod(0o666)
        proxy = self.serve("--fastcgi", address, "--extensions", ".cgi")
        connection = wire.Connection(proxy.address)
        with contextlib.closing(connection.socket):
            for _ in range(2):
                connection.send(
                    b"POST /a.cgi/more?q HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\nbody"
                )
                response = connection.read_response()
                self.assertEqual((response.status, response.body), (201, b"/more qbody"))
