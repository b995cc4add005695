"""The interfaces of operators: draining, access logs, metrics, health."""

import json
import pathlib
import re
import signal
import socket
import struct
import subprocess
import threading

from support import pattern, system_calls, wire
from support.case import InteropCase
from support.millrace import program
from support.scripted import Response, Scripted

MEGABYTE = 1 << 20

COMMON = re.compile(
    r'^(?P<client>\S+) \S+ \S+ \[\d\d/[A-Z][a-z]{2}/\d{4}:\d\d:\d\d:\d\d [+-]\d{4}\] '
    r'"(?P<method>[A-Z]+) (?P<target>\S+) HTTP/1\.[01]" (?P<status>\d{3}) (?P<bytes>\d+|-)'
)
COMBINED = re.compile(COMMON.pattern + r' "(?P<referer>[^"]*)" "(?P<agent>[^"]*)"')


class Draining(InteropCase):
    def refused(self, address):
        """Whether a new connection is refused."""
        try:
            socket.create_connection(address, 10).close()
        except ConnectionRefusedError:
            return True
        return False

    def test_sigterm_lets_downloads_end(self):
        """A download in progress completes, new connections are refused, idle ones are closed, and
        the exit status is 0."""
        length = 64 * MEGABYTE
        digest = pattern.write(self.site / "file", length)
        pattern.write(self.site / "small", 100)
        proxy = self.boost(self.nginx().url)
        idle = wire.Connection(proxy.address)
        idle.get("/small")
        self.assertEqual(idle.read_response().status, 200)
        busy = wire.Connection(proxy.address)
        self.addCleanup(busy.close)
        busy.get("/file")
        self.assertEqual(busy.head()[1], 200)
        proxy.terminate()
        self.wait_until("new connections are refused", lambda: self.refused(proxy.address))
        self.assertEqual(idle.socket.recv(100), b"", "the idle connection is closed")
        self.assertIsNone(proxy.process.poll(), "it ended before the download")
        sink = pattern.hashlib.sha256()
        busy.exactly(length, sink.update)
        self.assertEqual(sink.hexdigest(), digest)
        self.assertEqual(proxy.wait(), 0)
        idle.close()

    def test_sigterm_without_work_ends_at_once(self):
        proxy = self.boost(self.origin().url)
        proxy.terminate()
        self.assertEqual(proxy.wait(), 0)

    def test_sigterm_lets_uploads_end(self):
        """A request whose body has not arrived completely is served too."""
        origin = self.origin()
        proxy = self.boost(origin.url)
        client = wire.Connection(proxy.address)
        self.addCleanup(client.close)
        head = b"POST /upload HTTP/1.1\r\nHost: interop.test\r\nContent-Length: 10\r\n\r\n"
        client.send(head + b"12345")
        self.wait_until("the request is at the origin", lambda: origin.seen)
        proxy.terminate()
        self.wait_until("new connections are refused", lambda: self.refused(proxy.address))
        client.send(b"67890")
        response = client.read_response()
        self.assertEqual((response.status, json.loads(response.body)["length"]), (200, 10))
        self.assertEqual(proxy.wait(), 0)


class AccessLog(InteropCase):
    def records(self, log_format):
        """The log's lines after one good request, one missing page and one HEAD."""
        pattern.write(self.site / "file", 12345)
        log = self.folder / "access.log"
        proxy = self.boost(self.nginx().url, "--access-log", log, "--log-format", log_format)
        client = wire.Connection(proxy.address)
        self.addCleanup(client.close)
        client.get("/file?a=1", extra="Referer: http://r.test/\r\nUser-Agent: probe/1 \"x\"\r\n")
        self.assertEqual(client.read_response().status, 200)
        client.get("/missing")
        self.assertEqual(client.read_response().status, 404)
        client.send(b"HEAD /file HTTP/1.1\r\nHost: interop.test\r\n\r\n")
        self.assertEqual(client.read_response(method="HEAD").status, 200)
        self.assertEqual(proxy.stop(), 0)
        lines = log.read_text().splitlines()
        self.assertEqual(len(lines), 3, lines)
        return lines

    def check(self, found):
        """The three records as (method, target, status)."""
        seen = [(r["method"], r["target"], int(r["status"])) for r in found]
        wanted = [("GET", "/file?a=1", 200), ("GET", "/missing", 404), ("HEAD", "/file", 200)]
        self.assertEqual(seen, wanted)

    def test_common(self):
        lines = self.records("common")
        found = [COMMON.fullmatch(line) for line in lines]
        self.assertTrue(all(found), lines)
        self.check([match.groupdict() for match in found])
        self.assertEqual((found[0]["client"], found[0]["bytes"]), ("127.0.0.1", "12345"))

    def test_combined(self):
        lines = self.records("combined")
        found = [COMMON.match(line) for line in lines]
        self.assertTrue(all(found), lines)
        self.check([match.groupdict() for match in found])
        self.assertIn("http://r.test/", lines[0])
        # A quote in a field must not end the field in the log.
        self.assertNotIn('"probe/1 "x""', lines[0])
        self.assertTrue(COMBINED.fullmatch(lines[1]), lines[1])

    def test_json(self):
        records = [json.loads(line) for line in self.records("json")]
        self.check(records)
        self.assertTrue(any(value == 'probe/1 "x"' for value in records[0].values()), records[0])
        self.assertEqual(set(records[0]), set(records[1]), "the same keys in every record")

    def test_a_tunnel_is_recorded(self):
        log = self.folder / "access.log"
        origin = self.origin()
        proxy = self.forward("--access-log", log, "--log-format", "json")
        client = wire.Connection(proxy.address)
        target = f"127.0.0.1:{origin.port}"
        client.send(f"CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n".encode())
        self.assertEqual(client.head()[1], 200)
        client.get("/inside", extra="Connection: close\r\n")
        self.assertEqual(client.read_response().status, 200)
        client.close()
        self.assertEqual(proxy.stop(), 0)
        (record,) = map(json.loads, log.read_text().splitlines())
        self.assertEqual((record["method"], record["target"]), ("CONNECT", target))


    def recorded(self, *origins, count=1, path="/file"):
        """Returns the records of requests to these origins, each on its own connection."""
        log = self.folder / "access.log"
        log.unlink(missing_ok=True)
        proxy = self.boost(
            ",".join(origins), "--access-log", log, "--log-format", "json", "--workers", "1",
        )
        for _ in range(count):
            wire.get(proxy.address, path)
        self.assertEqual(proxy.stop(), 0)
        records = [json.loads(line) for line in log.read_text().splitlines()]
        self.assertEqual(len(records), count)
        return records

    def refusing(self):
        """Returns the address of a port that refuses connections and stays reserved."""
        bound = socket.socket()
        self.addCleanup(bound.close)
        bound.bind(("127.0.0.1", 0))
        return "127.0.0.1:%d" % bound.getsockname()[1]

    def test_the_origin_that_refused_is_named(self):
        refusing, gone = self.refusing(), f"unix:{self.folder / 'gone'}"
        (record,) = self.recorded(f"http://{refusing}")
        self.assertEqual((record["status"], record["reason"]), (502, "connect-failed"))
        self.assertEqual(record["origin"], refusing)
        (record,) = self.recorded(gone)
        self.assertEqual((record["status"], record["origin"]), (502, gone))
        (record,) = self.recorded("http://no-such-name.invalid:81")
        self.assertEqual(record["status"] // 100, 5)
        self.assertEqual(record["origin"], "no-such-name.invalid:81")
        # Both origins refuse; the log names the origin of the last attempt.
        both = {refusing, self.refusing()}
        records = self.recorded(*(f"http://{one}" for one in sorted(both)), count=2)
        self.assertEqual({record["origin"] for record in records}, both)
        # One that refuses and one that responds.
        shop = Scripted()
        self.addCleanup(shop.stop)
        records = self.recorded(f"http://{refusing}", shop.url, count=2)
        self.assertEqual([record["status"] for record in records], [404, 404])
        self.assertEqual({record["origin"] for record in records}, {shop.url[len("http://") :]})

    def test_a_response_from_the_cache_takes_time_and_names_no_origin(self):
        shop = Scripted()
        self.addCleanup(shop.stop)
        shop.responses["/file"] = Response(b"one", Cache_Control="max-age=600")
        records = self.recorded(shop.url, count=5)
        hits = [record for record in records if record["cache"] == "hit"]
        self.assertEqual(len(hits), 4)
        for record in hits:
            self.assertGreater(record["duration_ms"], 0)
            self.assertIsNone(record["origin"])

    def states(self, proxy):
        """Returns the states of all threads (proc_pid_stat(5))."""
        tasks = pathlib.Path(f"/proc/{proxy.process.pid}/task").glob("*/stat")
        return {task.read_text().rsplit(")", 1)[1].split()[0] for task in tasks}

    def test_bytes_that_a_reset_client_never_received_are_not_logged(self):
        """The rest of the body and the client's reset arrive while millrace is stopped. It then
        sends to a connection that accepts no bytes."""
        for splice in "never", "always":
            log = self.folder / f"{splice}.log"
            listener = socket.create_server(("127.0.0.1", 0))
            self.addCleanup(listener.close)
            proxy = self.boost(
                "http://127.0.0.1:%d" % listener.getsockname()[1],
                *("--splice", splice, "--no-cache", "--access-log", log, "--log-format", "json"),
            )
            client = wire.Connection(proxy.address)
            client.get("/file")
            origin = listener.accept()[0]
            origin.recv(1 << 16)
            origin.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 10000000\r\n\r\n" + bytes(100))
            client.head()
            client.exactly(100, lambda piece: None)
            proxy.process.send_signal(signal.SIGSTOP)
            self.wait_until("all threads are stopped", lambda: self.states(proxy) == {"T"})
            origin.sendall(bytes(60_000))
            client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            client.close()
            proxy.process.send_signal(signal.SIGCONT)
            self.wait_until("it is recorded", lambda: log.exists() and log.read_text())
            origin.close()
            (record,) = map(json.loads, log.read_text().splitlines())
            self.assertEqual((splice, record["bytes_to_client"]), (splice, 100), record)
            self.assertEqual(proxy.stop(), 0)


class Admin(InteropCase):
    def setUp(self):
        super().setUp()
        pattern.write(self.site / "file", 1000)
        self.proxy = self.boost(self.nginx().url, "--admin", "127.0.0.1:0")
        self.admin = self.admin_of(self.proxy)

    def admin_of(self, proxy):
        """Returns the admin address that the process reported."""
        output = re.compile(r"^millrace: admin at 127\.0\.0\.1:(\d+)$")

        def found():
            return next(filter(None, map(output.match, proxy.lines)), None)

        self.wait_until("the admin address is reported", found)
        return "127.0.0.1", int(found()[1])

    def page(self, target):
        """Returns the admin address's response, which depends on the Host."""
        return wire.get(self.admin, target, host=f"127.0.0.1:{self.admin[1]}")

    def sum_of(self, name):
        """Returns a metric summed over its labels. Checks that the page is well-formed."""
        response = self.page("/metrics")
        self.assertEqual(response.status, 200)
        total = 0
        for line in response.body.decode().splitlines():
            if line.startswith("#"):
                continue
            row = re.fullmatch(r'(\w+)(?:\{\w+="[^"]*"(?:,\w+="[^"]*")*\})? (-?[0-9.e+]+)', line)
            self.assertTrue(row, line)
            self.assertTrue(row[1].startswith(("millrace_", "process_")), line)
            if row[1] == name:
                total += float(row[2])
        return total

    def test_metrics_count_requests(self):
        for _ in range(7):
            self.assertEqual(wire.get(self.proxy.address, "/file").status, 200)
        self.wait_until(
            "seven exchanges are counted", lambda: self.sum_of("millrace_exchanges_total") == 7
        )
        self.assertEqual(self.sum_of("millrace_downloaded_bytes_total"), 7000)
        self.assertEqual(self.sum_of("millrace_exchanges_open"), 0)

    def test_health_follows_draining(self):
        """The status is 200 until SIGTERM, and then 503 while requests are in progress."""
        self.assertEqual(self.page("/healthz").status, 200)
        pattern.write(self.site / "large", 64 * MEGABYTE)
        busy = wire.Connection(self.proxy.address)
        busy.get("/large")
        self.assertEqual(busy.head()[1], 200)
        self.proxy.terminate()
        self.wait_until(
            "health says draining", lambda: self.page("/healthz").status == 503
        )
        busy.close()
        self.assertEqual(self.proxy.wait(), 0)

    def test_the_admin_address_is_no_origin(self):
        """A forward proxy refuses its own admin address as a target."""
        proxy = self.forward("--admin", "127.0.0.1:0")
        _, port = self.admin_of(proxy)
        response = wire.get(proxy.address, f"http://127.0.0.1:{port}/metrics")
        self.assertEqual(response.status, 403)


class Outages(InteropCase):
    """The reports about an origin that does not respond: stderr and metrics."""

    def setUp(self):
        super().setUp()
        self.admin_path = self.folder / "admin.sock"
        self.bound = socket.socket()
        self.addCleanup(self.bound.close)
        self.bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.bound.bind(("127.0.0.1", 0))
        self.name = "http://127.0.0.1:%d" % self.bound.getsockname()[1]

    def start(self, *options):
        options = ("--admin", f"unix:{self.admin_path}", "--no-cache", *options)
        return self.boost(self.name, *options)

    def samples(self):
        """Returns the values of the metrics page by name and labels."""
        connection = wire.Connection.__new__(wire.Connection)
        connection.socket, connection.held = socket.socket(socket.AF_UNIX), b""
        connection.socket.connect(str(self.admin_path))
        connection.get("/metrics", host="millrace")
        lines = connection.read_response().body.decode().splitlines()
        connection.close()
        return dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))

    def output(self, proxy):
        """The lines about the origin."""
        begin = f"millrace: origin {self.name}: "
        return [line[len(begin) :] for line in proxy.lines if line.startswith(begin)]

    def serve(self):
        """Lets the origin respond once to each connection, until the test ends."""
        self.status = b"200 OK"
        self.bound.listen(100)

        def run():
            while True:
                try:
                    connection, _ = self.bound.accept()
                except OSError:
                    return
                with connection:
                    connection.recv(1 << 16)
                    head = b"HTTP/1.1 " + self.status + b"\r\nContent-Length: 2\r\n\r\n"
                    connection.sendall(head + b"ok")
        thread = threading.Thread(target=run, daemon=True)
        thread.start()

        def stop():
            self.bound.shutdown(socket.SHUT_RDWR)
            thread.join(60)
        self.addCleanup(stop)

    def test_an_outage_and_its_end_are_logged_once(self):
        proxy = self.start("--limit", "eject_failures=0")
        for _ in range(8):
            self.assertEqual(wire.get(proxy.address, "/").status, 502)
        self.wait_until("the outage is logged", lambda: self.output(proxy))
        self.assertRegex(self.output(proxy)[0], r"^no connection; \d+ attempts? failed")
        self.serve()
        self.assertEqual(wire.get(proxy.address, "/").status, 200)
        self.wait_until("its end is logged", lambda: len(self.output(proxy)) > 1)
        self.assertRegex(self.output(proxy)[1],
                         r"^responding again after \d+ s; 8 attempts failed$")
        self.assertEqual(proxy.stop(), 0)
        self.assertEqual(len(self.output(proxy)), 2, proxy.lines)

    def test_the_targets_of_a_forward_proxy_are_counted_and_not_logged(self):
        proxy = self.forward("--admin", f"unix:{self.admin_path}")
        for _ in range(3):
            self.assertEqual(wire.get(proxy.address, self.name + "/").status, 502)
        # A request is counted when it has ended. The client may have its response earlier.
        count = 'millrace_requests_total{service="forward",code="502"}'
        self.wait_until("all are counted", lambda: self.samples().get(count) == "3")
        own = self.samples()['millrace_responses_generated_total{reason="connect-failed"}']
        self.assertEqual(own, "3")
        self.assertEqual(proxy.stop(), 0)
        self.assertEqual([line for line in proxy.lines if "refused" in line], [])

    def test_metrics_count_by_status_reason_and_origin(self):
        proxy = self.start("--limit", "eject_failures=0")
        own = 'millrace_responses_generated_total{reason="%s"}'
        service = 'millrace_requests_total{service="boost",code="%s"}'
        of_origin = 'millrace_origin_%s{origin="' + self.name + '"}'
        samples = self.samples()
        self.assertEqual(samples[of_origin % "requests_total"], "0")
        self.assertEqual(samples[of_origin % "ejected"], "0", "from the start")
        for _ in range(3):
            self.assertEqual(wire.get(proxy.address, "/").status, 502)
        self.serve()
        for _ in range(2):
            self.assertEqual(wire.get(proxy.address, "/").status, 200)
        self.status = b"503 Service Unavailable"
        self.assertEqual(wire.get(proxy.address, "/").status, 503)
        self.assertEqual(wire.get(proxy.address, "bad").status, 400)
        expected = {service % code: count for code, count in
                    ((200, "2"), (400, "1"), (502, "3"), (503, "1"))}
        expected[of_origin % "requests_in_flight"] = "0"
        self.wait_until("all are counted", lambda: expected.items() <= self.samples().items())
        samples = self.samples()
        self.assertEqual(samples[own % "connect-failed"], "3")
        self.assertEqual(samples[own % "malformed-target"], "1")
        self.assertGreaterEqual(int(samples[of_origin % "requests_total"]), 6)
        self.assertEqual(samples[of_origin % "connect_errors_total"], "3")
        self.assertEqual(samples[of_origin % "responses_5xx_total"], "1")
        self.assertEqual(samples[of_origin % "response_errors_total"], "0")

    def test_metrics_count_an_origin_that_closes_or_hangs(self):
        proxy = self.start("--limit", "eject_failures=0", "--limit", "first_byte_ms=200")
        self.bound.listen(100)
        held = []

        def run():
            # The first connection ends before a response, the second one never responds.
            for ends in (True, False):
                connection, _ = self.bound.accept()
                held.append(connection)
                connection.recv(1 << 16)
                if ends:
                    connection.close()
        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        statuses = [wire.get(proxy.address, "/").status for _ in range(2)]
        self.assertEqual(statuses, [502, 504])
        thread.join(60)
        held[1].close()
        of_origin = 'millrace_origin_%s_errors_total{origin="' + self.name + '"}'
        samples = self.samples()
        self.assertEqual(samples[of_origin % "response"], "2")
        self.assertEqual(samples[of_origin % "connect"], "0")


class Engines(InteropCase):
    """A kernel or a sandbox may refuse io_uring. That is reported, and `auto` continues without
    it."""

    CALLS = (system_calls.IO_URING_SETUP, system_calls.IO_URING_ENTER)

    def start(self, engine, call):
        """Starts millrace without this system call. The process ends with the test."""
        process = subprocess.Popen(
            [program(), "boost", "--origin", "http://127.0.0.1:9", "--listen", "127.0.0.1:0"]
            + ["--engine", engine],
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=lambda: system_calls.without(call),
        )
        self.addCleanup(process.stderr.close)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        return process

    def test_auto_reports_why_it_uses_epoll(self):
        for call in self.CALLS:
            process = self.start("auto", call)
            output = ""
            for line in process.stderr:
                output += line
                if "listening on" in line:
                    break
            self.assertRegex(output, "engine epoll.*io_uring")
            self.assertIn("listening on", output)

    def test_uring_that_is_refused_is_an_error(self):
        for call in self.CALLS:
            process = self.start("uring", call)
            output = process.stderr.read()
            self.assertNotEqual(process.wait(30), 0)
            self.assertEqual(len(output.splitlines()), 1, output)
            self.assertIn("--engine uring", output)
            self.assertIn("io_uring", output)
