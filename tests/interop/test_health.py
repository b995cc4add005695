"""Active health checks: an nginx that stops receives no requests until it runs again."""

import re
import signal

from support import pattern, wire
from support.case import InteropCase


class HealthChecks(InteropCase):
    def setUp(self):
        super().setUp()
        pattern.write(self.site / "up", 2)
        pattern.write(self.site / "file", 1000)
        self.origins = [self.nginx(), self.nginx()]
        self.proxy = self.boost(
            ",".join(origin.url for origin in self.origins),
            *("--check", "/up", "--check-status", "200", "--workers", "2"),
            *("--limit", "check_interval_ms=100", "--limit", "check_fails=2"),
            # Only checks matter here: no origin is ejected and no request is retried, so that
            # each request to the origin that is down would be visible.
            *("--limit", "eject_failures=0", "--limit", "retries=0"),
            *("--admin", "127.0.0.1:0", "--no-cache"),
        )
        output = re.compile(r"^millrace: admin at 127\.0\.0\.1:(\d+)$")
        found = [output.match(line) for line in self.proxy.lines]
        (port,) = [match[1] for match in found if match]
        self.admin = ("127.0.0.1", int(port))

    def fails(self, origin):
        """Returns the metric of the origin's check."""
        response = wire.get(self.admin, "/metrics", host="%s:%d" % self.admin)
        self.assertEqual(response.status, 200)
        line = re.compile(
            rf'^millrace_origin_check_fails{{origin="{origin.url}",check="/up"}} ([01])$', re.M
        )
        (value,) = line.findall(response.body.decode())
        return value == "1"

    def checks(self, origin):
        return [request for request in origin.requests() if request["target"] == "/up"]

    def files(self, origin):
        return [request for request in origin.requests() if request["target"] == "/file"]

    def is_reported(self, origin, word):
        start = f"millrace: health check of {origin.url} /up {word}"
        return any(line.startswith(start) for line in self.proxy.lines)

    def fetch_files(self, times):
        """Makes requests on new connections, so that both workers serve some of them."""
        return [wire.get(self.proxy.address, "/file").status for _ in range(times)]

    def test_a_stopped_origin_receives_no_requests_until_it_runs(self):
        first, second = self.origins
        for origin in self.origins:
            self.wait_until("it was checked", lambda: self.checks(origin))
            check = self.checks(origin)[0]
            host = f"127.0.0.1:{origin.port}"
            self.assertEqual((check["status"], check["host"]), ("200", host))
            self.assertFalse(self.fails(origin))
        first.stop()
        self.wait_until("its check fails", lambda: self.fails(first))
        self.assertEqual(self.fetch_files(20), [200] * 20)
        self.assertFalse(self.fails(second))
        self.wait_until("it is reported", lambda: self.is_reported(first, "fails: "))
        self.assertFalse(self.is_reported(first, "passes"))
        first.start()
        self.addCleanup(first.stop)
        self.wait_until("its check passes", lambda: not self.fails(first))
        self.wait_until("it is reported", lambda: self.is_reported(first, "passes"))
        self.assertFalse(self.is_reported(second, ""))
        before = len(self.files(first))
        self.assertEqual(self.fetch_files(20), [200] * 20)
        self.assertGreater(len(self.files(first)), before)

    def test_another_status_fails_the_check(self):
        first, second = self.origins
        self.wait_until("it was checked", lambda: self.checks(second))
        (self.site / "up").unlink()
        for origin in self.origins:
            self.wait_until("its check fails", lambda: self.fails(origin))
        # If no origin is healthy, all of them are used.
        self.assertEqual(self.fetch_files(4), [200] * 4)
        self.wait_until("both serve", lambda: self.files(first) and self.files(second))


class ProxyHeaders(InteropCase):
    def test_a_check_begins_with_the_header_that_its_origin_expects(self):
        pattern.write(self.site / "up", 2)
        for version in ("v1", "v2"):
            nginx = self.nginx(listen_more="proxy_protocol")
            self.boost(nginx.url, "--check", "/up", "--send-proxy", version)
            self.wait_until("it was checked", nginx.requests)
            check = nginx.requests(1)[0]
            self.assertEqual((check["target"], check["status"]), ("/up", "200"))


class Reloads(InteropCase):
    def test_a_reload_adds_and_removes_checks(self):
        origin = self.origin()
        file = self.folder / "millrace.toml"

        def write(more):
            file.write_text(
                f'admin = "127.0.0.1:0"\n[limits]\ncheck_interval_ms = 100\n'
                f'[[boost]]\nlisten = "127.0.0.1:0"\n'
                f'[[boost.route]]\norigins = "{origin.url}"\n{more}'
            )

        def checks(path):
            return sum(request[1] == path for request in origin.seen)

        write("")
        proxy = self.millrace("run", file)
        for path in ("/first", "/second"):
            write(f'check = "{path}"\n')
            proxy.process.send_signal(signal.SIGHUP)
            self.wait_until("the check is made", lambda: checks(path) > 1)
        # A check of the first path may still be in flight when the first check of the second path
        # begins.
        first = self.settled(lambda: checks("/first"), quiet_seconds=0.5)
        second = checks("/second")
        self.wait_until("more checks are made", lambda: checks("/second") > second + 2)
        self.assertEqual(checks("/first"), first)
