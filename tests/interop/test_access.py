"""Proxy authentication, and PROXY headers as servers receive them."""

import base64
import hashlib
import json
import signal
import socket
import subprocess
import threading

from support import pattern, tls
from support.case import InteropCase
from support.ports import free_port

TOKEN = "token-of-the-build-machine-0123456789"


class ProxyAuthentication(InteropCase):
    programs = ("curl", "openssl", "htpasswd")

    def users(self):
        """Writes a file of users with htpasswd and openssl."""
        bcrypt = self.run_client("htpasswd", "-nbB", "alice", "p:ss w\u00f6rd").stdout
        sha512 = self.run_client("openssl", "passwd", "-6", "bob's secret").stdout
        digest = hashlib.sha256(TOKEN.encode()).hexdigest().encode()
        path = self.folder / "users"
        path.write_bytes(b"# users\n\n" + bcrypt + b"bob:" + sha512 + b"build:token:" + digest)
        path.chmod(0o640)
        return path

    def proxy(self, *options):
        return self.forward("--auth-file", self.users(), *options)

    def curl(self, proxy, *arguments, **how):
        common = ["--silent", "--show-error", "--noproxy", "", "--proxy", proxy.url]
        return self.run_client("curl", *common, *arguments, **how)

    def fields(self, proxy, origin, *arguments):
        """Returns the request fields that the origin received."""
        done = self.curl(proxy, *arguments, "--data", "a=b", f"{origin.url}/upload")
        return json.loads(done.stdout)["fields"]

    def test_passwords_of_both_kinds_and_tokens(self):
        origin, proxy = self.origin(), self.proxy()
        for how in (
            ["--proxy-user", "alice:p:ss w\u00f6rd"],
            ["--proxy-user", "bob:bob's secret"],
            ["--proxy-user", f"build:{TOKEN}"],
            ["--proxy-header", f"Proxy-Authorization: Bearer {TOKEN}"],
            # curl first sends a request without credentials, and repeats it on the same connection.
            ["--proxy-anyauth", "--proxy-user", "alice:p:ss w\u00f6rd"],
        ):
            with self.subTest(how=how[0]):
                fields = self.fields(proxy, origin, *how)
                self.assertIn("via", fields)
                self.assertNotIn("proxy-authorization", fields)

    def test_wrong_credentials_get_407(self):
        origin, proxy = self.origin(), self.proxy("--auth-realm", "Our proxy")
        for how in (
            [],
            ["--proxy-user", "alice:wrong"],
            ["--proxy-user", "mallory:p:ss w\u00f6rd"],
            ["--proxy-user", f"alice:{TOKEN}"],
            ["--proxy-header", "Proxy-Authorization: Bearer guess"],
            ["--proxy-header", "Proxy-Authorization: Negotiate abc"],
        ):
            done = self.curl(
                proxy, *how, "--dump-header", "-", "--write-out", "%{http_code}", f"{origin.url}/x"
            )
            head = done.stdout.decode()
            self.assertTrue(head.endswith("407"), (how, head))
            basic = 'Proxy-Authenticate: Basic realm="Our proxy", charset="UTF-8"'
            self.assertIn(basic, head)
            self.assertIn('Proxy-Authenticate: Bearer realm="Our proxy"', head)
            self.assertNotIn("Connection: close", head)

    def test_tunnels(self):
        authority, certificate = tls.certificate(self.folder)
        digest = pattern.write(self.site / "file", 3_000_000)
        nginx, proxy = self.nginx(certificate=certificate), self.proxy()
        url = f"https://localhost:{nginx.port}/file"
        trusted = ["--cacert", authority, "--output", self.folder / "got"]
        self.curl(proxy, *trusted, "--proxy-user", "bob:bob's secret", url)
        self.assertEqual(pattern.of_file(self.folder / "got"), digest)
        self.curl(proxy, *trusted, "--proxy-anyauth", "--proxy-user", "bob:bob's secret", url)
        done = subprocess.run(
            ["curl", "--silent", "--noproxy", "", "--proxy", proxy.url, "--write-out",
             "%{http_connect}", *map(str, trusted), url],
            env=self.environment(), stdout=subprocess.PIPE, check=False, timeout=60,
        )
        self.assertEqual((done.returncode, done.stdout), (56, b"407"))

    def test_password_guesses_do_not_block_other_users(self):
        """One address sends more guesses than are compared at a time. A user at another address is
        served."""
        origin, proxy = self.origin(), self.proxy("--limit", "auth_ms=60s")
        begun = threading.Barrier(33)
        sockets = [socket.create_connection(proxy.address) for _ in range(32)]
        self.addCleanup(lambda: [one.close() for one in sockets])

        def guess(index, connection):
            guess = base64.b64encode(f"alice:guess {index}".encode()).decode()
            connection.sendall(
                f"GET {origin.url}/x HTTP/1.1\r\nHost: x\r\n"
                f"Proxy-Authorization: Basic {guess}\r\n\r\n".encode()
            )
            begun.wait()

        for index, connection in enumerate(sockets):
            threading.Thread(target=guess, args=(index, connection), daemon=True).start()
        begun.wait()
        fields = self.fields(
            proxy, origin, "--interface", "127.0.0.2", "--proxy-user", "bob:bob's secret"
        )
        self.assertIn("via", fields)
        statuses = {connection.recv(12)[9:] for connection in sockets}
        self.assertLessEqual(statuses, {b"407", b"503"})
        self.assertIn(b"407", statuses)

    def test_users_are_logged_and_secrets_are_not(self):
        origin = self.origin()
        forms = {"common": " - bob [", "combined": " - bob [", "json": '"user":"bob"'}
        for form, user in forms.items():
            log = self.folder / f"{form}.log"
            logs = ("--access-log", log, "--log-format", form)
            proxy = self.proxy(*logs, "--admin", "127.0.0.1:0")
            admin = next(line for line in proxy.lines if "admin at" in line).split()[-1]
            secrets = ["--header", "Cookie: c=t0p", "--header", "Authorization: Bearer t0p"]
            self.fields(proxy, origin, *secrets, "--proxy-user", "bob:bob's secret")
            self.curl(proxy, *secrets, "--proxy-user", "t0p:t0p", f"{origin.url}/x")
            output = b""
            for target in ("http://me:t0p@127.0.0.1/x", "http://t0p@/"):
                with socket.create_connection(proxy.address) as connection:
                    connection.sendall(
                        f"GET {target} HTTP/1.1\r\nHost: me:t0p@x\r\nReferer: {target}\r\n"
                        "Cookie: c=t0p\r\nProxy-Authorization: Basic Ym9iOmJvYidzIHNlY3JldA==\r\n"
                        "\r\n".encode()
                    )
                    connection.settimeout(30)
                    output += connection.recv(65536)
            self.assertIn(b" 400 ", output)
            pages = b"".join(
                self.run_client("curl", "--silent", f"http://{admin}/{page}").stdout
                for page in ("config", "metrics")
            )
            self.assertEqual(proxy.stop(), 0)
            text = log.read_text()
            self.assertIn(user, text)
            self.assertEqual(len(text.splitlines()), 4, text)
            for place, shown in (("log", text.encode()), ("responses", output), ("admin", pages),
                                 ("errors", "\n".join(proxy.lines).encode())):
                for secret in (b"t0p", b"secret", b"Ym9i", b"$2y$", b"$6$"):
                    self.assertNotIn(secret, shown, place)

    def test_a_reload_applies_a_valid_file_of_users_only(self):
        origin, users = self.origin(), self.users()
        configuration = self.folder / "millrace.toml"
        configuration.write_text(f'[[forward]]\nlisten = "127.0.0.1:0"\nauth-file = "{users}"\n')
        proxy = self.millrace("run", configuration)

        def reload(output):
            proxy.process.send_signal(signal.SIGHUP)
            self.wait_until(output, lambda: any(output in line for line in proxy.lines))

        def status(password):
            user = ["--proxy-user", f"bob:{password}", "--output", self.folder / "got"]
            done = self.curl(proxy, *user, "--write-out", "%{http_code}", f"{origin.url}/upload")
            return done.stdout.decode()

        self.assertEqual((status("bob's secret"), status("another")), ("200", "407"))
        users.write_bytes(b"bob:" + self.run_client("openssl", "passwd", "-6", "another").stdout)
        reload("configuration 2")
        self.assertEqual((status("bob's secret"), status("another")), ("407", "200"))
        users.write_text("bob:plain\n")
        reload(f"{users}:1: ")
        self.assertEqual((status("bob's secret"), status("another")), ("407", "200"))

    def test_an_error_in_the_file_of_users_has_its_line(self):
        users = self.users()
        program = self.forward().process.args[0]
        for change, output in (
            (lambda: users.chmod(0o666), "is writable by other users"),
            (lambda: users.write_text("alice:plain\n"),
             f"{users}:1: is not a hash of bcrypt or SHA-512 crypt"),
            (users.unlink, "No such file"),
        ):
            change()
            done = subprocess.run(
                [program, "forward", "--auth-file", users], capture_output=True, text=True,
                check=False, timeout=60,
            )
            self.assertEqual(done.returncode, 2)
            self.assertIn(output, done.stderr)
            self.assertEqual(len(done.stderr.splitlines()), 1)
            self.assertNotIn("plain", done.stderr)
            users.exists() and users.chmod(0o600)


PARTS = ("addr", "port", "server_addr", "server_port")
SEEN = "|".join(f"$proxy_protocol_{part}" for part in PARTS)

HAPROXY = """
global
  maxconn 100
defaults
  mode http
  timeout client 60s
  timeout server 60s
  timeout connect 60s
frontend seen
  bind 127.0.0.1:{port} accept-proxy
  http-request return status 200 content-type text/plain lf-string "{seen}"
"""


class ProxyProtocolOut(InteropCase):
    """nginx and HAProxy report the addresses of the PROXY header."""

    programs = ("haproxy",)

    def fetch(self, proxy, times=2):
        """Makes requests on one connection. Returns the client's own address, and each (status,
        body)."""
        with socket.create_connection(proxy.address) as client:
            file = client.makefile("rb")
            seen = []
            for _ in range(times):
                client.sendall(b"GET / HTTP/1.1\r\nHost: a.test\r\n\r\n")
                status, length = file.readline(), 0
                while (line := file.readline().strip()):
                    if line.lower().startswith(b"content-length:"):
                        length = int(line.split(b":")[1])
                seen.append((status.split()[1], file.read(length).decode().strip()))
            return client.getsockname(), seen

    def check(self, url, version, more=""):
        proxy = self.boost(url, "--send-proxy", version, "--workers", "2")
        host, port = proxy.address
        for _ in range(3):
            (own, own_port), seen = self.fetch(proxy)
            self.assertEqual(seen, [(b"200", f"{own}|{own_port}|{host}|{port}{more}")] * 2)

    def test_nginx(self):
        nginx = self.nginx(location=f'return 200 "{SEEN}";', listen_more="proxy_protocol")
        for version in ("v1", "v2"):
            self.check(nginx.url, version)

    def test_haproxy(self):
        port = free_port()
        configuration = self.folder / "haproxy.cfg"
        fetches = ("src", "src_port", "dst", "dst_port", "fc_rcvd_proxy")
        seen = "|".join(f"%[{fetch}]" for fetch in fetches)
        configuration.write_text(HAPROXY.format(port=port, seen=seen))
        haproxy = subprocess.Popen(
            ["haproxy", "-db", "-f", configuration], stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )
        self.addCleanup(haproxy.wait)
        self.addCleanup(haproxy.terminate)

        def listens():
            self.assertIsNone(haproxy.poll(), "haproxy has ended")
            with socket.socket() as probe:
                return probe.connect_ex(("127.0.0.1", port)) == 0

        self.wait_until("haproxy listens", listens)
        for version in ("v1", "v2"):
            self.check(f"http://127.0.0.1:{port}", version, "|1")

    def test_a_wildcard_listener_reports_the_address_of_the_connection(self):
        nginx = self.nginx(location=f'return 200 "{SEEN}";', listen_more="proxy_protocol")
        proxy = self.millrace(
            "boost", "--listen", "0.0.0.0:0", "--origin", nginx.url, "--send-proxy", "v2"
        )
        port = proxy.address[1]
        with socket.create_connection(("127.0.0.3", port)) as client:
            client.sendall(b"GET / HTTP/1.1\r\nHost: a.test\r\nConnection: close\r\n\r\n")
            response = client.makefile("rb").read().decode()
            self.assertTrue(response.endswith(f"|127.0.0.3|{port}"), response)
