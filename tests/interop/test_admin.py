"""The admin address: permissions to read and to change, over TCP and Unix sockets."""

import re
import socket
import stat

from support import wire
from support.case import InteropCase

TOKEN = "correct-horse-battery-staple"


class UnixConnection(wire.Connection):
    """The plain client, connected to a Unix socket."""

    def __init__(self, path):
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(wire.TIMEOUT_SECONDS)
        self.socket.connect(str(path))
        self.held = b""


def send_request(connection, method, path, host, *fields):
    """Makes one request. Returns the status, the fields and the body."""
    head = [f"{method} {path} HTTP/1.1", f"Host: {host}", *fields, "", ""]
    try:
        connection.send("\r\n".join(head).encode())
        response = connection.read_response()
        return response.status, response.fields, response.body.decode()
    finally:
        connection.close()


class Admin(InteropCase):
    def start(self, *options):
        self.admin_path = self.folder / "admin.sock"
        proxy = self.boost(
            self.origin().url, "--admin", "127.0.0.1:0", "--admin", f"unix:{self.admin_path}",
            *options,
        )
        output = re.compile(r"^millrace: admin at 127\.0\.0\.1:(\d+)$")
        self.port = int(next(filter(None, map(output.match, proxy.lines)))[1])
        return proxy

    def with_token(self, *options):
        file = self.folder / "token"
        file.touch(0o600)
        file.write_text(TOKEN + "\n")
        return self.start("--admin-token-file", file, *options)

    def tcp(self, method, path, *fields, host=None):
        connection = wire.Connection(("127.0.0.1", self.port))
        return send_request(connection, method, path, host or f"127.0.0.1:{self.port}", *fields)

    def unix(self, method, path, *fields):
        return send_request(UnixConnection(self.admin_path), method, path, "millrace", *fields)

    def test_a_change_over_tcp_needs_the_token(self):
        """A change is refused if no token is configured, if the request has none, and if it is
        wrong."""
        proxy = self.start()
        status, _, body = self.tcp("POST", "/drain", f"Authorization: Bearer {TOKEN}")
        self.assertEqual(status, 403)
        self.assertIn("admin-token-file", body)
        self.assertEqual(proxy.stop(), 0)
        proxy = self.with_token()
        status, fields, _ = self.tcp("POST", "/drain")
        self.assertEqual((status, fields["www-authenticate"][:7]), (401, "Bearer "))
        for wrong in (TOKEN[:-1], TOKEN + "x", TOKEN.upper(), ""):
            self.assertEqual(self.tcp("POST", "/drain", f"Authorization: Bearer {wrong}")[0], 401)
        self.assertEqual(self.tcp("GET", "/healthz")[2], "ok\n")
        self.assertEqual(self.tcp("POST", "/drain", f"Authorization: Bearer {TOKEN}")[0], 202)
        self.assertEqual(proxy.wait(), 0)
        self.assertFalse(self.admin_path.exists(), "the socket's file is removed at the end")

    def test_pages_of_other_sites_are_refused(self):
        """A foreign host name (DNS rebinding) is refused. Requests of another site's page are
        refused too, even with the token."""
        self.with_token("--admin-name", "metrics.example")
        token = f"Authorization: Bearer {TOKEN}"
        for host in (f"evil.example:{self.port}", "127.0.0.1:1", "localhost.evil.example"):
            self.assertEqual(self.tcp("GET", "/config", host=host)[0], 421, host)
            self.assertEqual(self.tcp("POST", "/drain", token, host=host)[0], 421, host)
        for fields in ("Origin: http://evil.example", "Origin: null", "Sec-Fetch-Site: same-site"):
            self.assertEqual(self.tcp("POST", "/drain", token, fields)[0], 403, fields)
        for host in (f"localhost:{self.port}", "metrics.example", "Metrics.Example:9000"):
            self.assertEqual(self.tcp("GET", "/healthz", host=host)[2], "ok\n", host)

    def test_a_unix_socket_needs_no_token(self):
        log = self.folder / "access.log"
        proxy = self.start("--access-log", log)
        self.assertEqual(stat.S_IMODE(self.admin_path.stat().st_mode), 0o600)
        self.assertIn("millrace_connections_accepted_total", self.unix("GET", "/metrics")[2])
        self.assertEqual(wire.get(proxy.address, "/one").status, 200)
        self.wait_until("the record is written", lambda: "/one" in log.read_text())
        log.rename(self.folder / "access.log.1")
        self.assertEqual(self.unix("POST", "/log/reopen")[0], 200)
        self.wait_until("the log is there again", log.exists)
        self.assertEqual(self.unix("POST", "/drain")[0], 202)
        self.assertEqual(proxy.wait(), 0)
        self.assertFalse(self.admin_path.exists())

    def test_other_hosts_and_methods_are_refused(self):
        self.start()
        self.assertEqual(self.tcp("GET", "/")[0], 404)
        self.assertEqual(self.tcp("GET", "/drain")[1]["allow"], "POST")
        self.assertEqual(self.tcp("DELETE", "/metrics")[1]["allow"], "GET, HEAD")
        self.assertEqual(self.unix("POST", "/drain", "Content-Length: 4")[0], 413)
        self.assertEqual(self.tcp("GET", "/healthz", "Host: other")[0], 400)

    def test_the_configuration_holds_no_token(self):
        self.with_token()
        config = self.tcp("GET", "/config")[2]
        self.assertIn("admin-token-file", config)
        self.assertNotIn(TOKEN, config)

    def test_hostile_requests_are_refused_and_the_connection_is_closed(self):
        """Bodies in any framing, tokens in the target, repeated fields and pipelined requests are
        refused."""
        self.with_token()
        host = f"127.0.0.1:{self.port}"
        with_token = f"/drain?token={TOKEN}&access_token={TOKEN}"
        self.assertEqual(self.tcp("POST", with_token)[0], 401)
        token = f"Authorization: Bearer {TOKEN}"
        repeated = (token, "Authorization: Bearer x", f"Host: {host}")
        for fields in ((token, field) for field in repeated):
            self.assertEqual(self.tcp("POST", "/drain", *fields)[0], 400, fields)
        for framing in ("Transfer-Encoding: chunked", "Content-Length: 5", "Content-Length: 0, 5"):
            connection = wire.Connection(("127.0.0.1", self.port))
            behind = f"POST /drain HTTP/1.1\r\nHost: {host}\r\n{token}\r\n\r\n"
            first = f"POST /reload HTTP/1.1\r\nHost: {host}\r\n{token}\r\n{framing}\r\n\r\n"
            connection.send((first + "0\r\n\r\n" + behind).encode())
            self.assertEqual(connection.read_response().status, 413, framing)
            with self.assertRaises(EOFError):
                connection.line()
            connection.close()
        pipelined = wire.Connection(("127.0.0.1", self.port))
        get = f"GET /healthz HTTP/1.1\r\nHost: {host}\r\n\r\n"
        pipelined.send((get + behind).encode())
        self.assertEqual(pipelined.read_response().body, b"ok\n")
        with self.assertRaises(EOFError):
            pipelined.line()
        pipelined.close()
        self.assertEqual(self.tcp("GET", "/healthz")[2], "ok\n")

    def test_silent_clients_do_not_block_others(self):
        """Connections that send half a header section do not block other requests."""
        proxy = self.start()
        silent = []
        for number in range(100):
            silent.append(wire.Connection(("127.0.0.1", self.port)))
            self.addCleanup(silent[-1].close)
            silent[-1].send(b"GET /healthz HTTP/1.1\r\n")
            if number % 10 == 9:
                self.assertEqual(self.unix("GET", "/healthz")[2], "ok\n")
        # At once, or when the threads of earlier connections have ended; not only at the deadline.
        self.wait_until("a response arrives", self.responds_over_tcp)
        self.assertEqual(proxy.stop(), 0)

    def responds_over_tcp(self):
        try:
            return self.tcp("GET", "/healthz")[2] == "ok\n"
        except (EOFError, ConnectionError):
            return False
