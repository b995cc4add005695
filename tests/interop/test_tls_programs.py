"""Go, Node, Java, gnutls-cli, curl, Python and websockets at a tls:// listener: each version and
group, resumption, large bodies, WebSockets."""

import functools
import hashlib
import json
import pathlib
import re
import ssl
import subprocess

from support import pattern, websocket
from support.secure import NAME, SecureCase

CLIENTS = pathlib.Path(__file__).parent / "support" / "clients"
VERSIONS = ("1.2", "1.3")
GROUPS = ("X25519", "P-256")
LENGTH = 20_000_000
# Java compiles its cipher while it runs.
JAVA_LENGTH = 3_000_000
REQUEST = f"GET /bytes/5 HTTP/1.1\r\nHost: {NAME}\r\nConnection: close\r\n\r\n".encode()


@functools.cache
def digest(length):
    """Returns the hash of the body of `/bytes/LENGTH`."""
    whole = hashlib.sha256()
    for block in pattern.blocks(length):
        whole.update(block)
    return whole.hexdigest()


class Logged(SecureCase):
    """A reverse proxy with an access log."""

    def setUp(self):
        super().setUp()
        self.log = self.folder / "log"
        self.proxy = self.secure_boost(
            self.origin().url, "--access-log", self.log, "--log-format", "json",
            # The records of one worker are in the order of time.
            "--workers", "1",
        )
        self.port = self.proxy.address[1]

    def records(self):
        """Ends the proxy and returns the records of its log in the order of their requests."""
        self.assertEqual(self.proxy.stop(), 0)
        return [json.loads(line) for line in self.log.read_text().splitlines()]


class Programs(Logged):
    """Programs of `support/clients`: two connections that share a cache of sessions, with a
    download and an upload each."""

    def check(self, done, versions, resumed=("false", "true"), length=LENGTH):
        """Checks the lines of a program: two connections of each version."""
        lines = [line.split(" ", 3) for line in done.stdout.decode().splitlines()]
        expected = [
            [f"TLSv{version}", each, digest(length)] for version in versions for each in resumed
        ]
        self.assertEqual([line[:3] for line in lines], expected)
        for *_, report in lines:
            self.assertEqual(json.loads(report)["sha256"], digest(length))


class Go(Programs):
    programs = ("go",)

    def setUp(self):
        super().setUp()
        self.program = self.folder / "client"
        cache = subprocess.run(["go", "env", "GOCACHE"], capture_output=True, text=True).stdout
        environment = self.environment(GOCACHE=cache.strip(), GOTOOLCHAIN="local", GOPROXY="off")
        build = ["go", "build", "-o", self.program, CLIENTS / "client.go"]
        self.run_client(*build, environment=environment)
        shown = self.run_client("go", "version", environment=environment).stdout.decode()
        self.version = tuple(map(int, re.search(r"go(\d+)\.(\d+)", shown).groups()))

    def test_each_version_and_group(self):
        """A handshake with another group than the one offered is impossible."""
        pairs = [(version, group) for version in VERSIONS for group in GROUPS]
        if self.version >= (1, 24):
            pairs.append(("1.3", "X25519MLKEM768"))
        for version, group in pairs:
            with self.subTest(version=version, group=group):
                done = self.run_client(
                    self.program, self.port, self.authority.path, NAME, version, group, LENGTH
                )
                self.check(done, [version])


class Node(Programs):
    programs = ("node",)

    def test_each_version_and_group(self):
        for version in VERSIONS:
            for group in GROUPS:
                with self.subTest(version=version, group=group):
                    done = self.run_client(
                        "node", CLIENTS / "client.js", self.port, self.authority.path, NAME,
                        version, group, LENGTH,
                    )
                    self.check(done, [version])


class Java(Programs):
    programs = ("java",)

    def test_each_version_and_group(self):
        hosts = self.folder / "hosts"
        hosts.write_text(f"127.0.0.1 {NAME}\n")
        for group in ("x25519", "secp256r1"):
            with self.subTest(group=group):
                done = self.run_client(
                    "java", f"-Djdk.net.hosts.file={hosts}", f"-Djdk.tls.namedGroups={group}",
                    CLIENTS / "Client.java", self.port, self.authority.path, NAME, JAVA_LENGTH,
                    *VERSIONS,
                )
                self.check(done, VERSIONS, resumed=("-", "-"), length=JAVA_LENGTH)
        resumed = [record["resumed"] for record in self.records()]
        self.assertEqual(resumed, [False, False, True, True] * 4)


class Curl(Logged):
    programs = ("curl",)

    def curl(self, *options):
        """Runs curl, and returns (standard output, what it says about TLS)."""
        done = self.run_client(
            "curl", "--silent", "--show-error", "--verbose", "--noproxy", "*",
            "--cacert", self.authority.path, "--resolve", f"{NAME}:{self.port}:127.0.0.1", *options,
        )
        return done.stdout, done.stderr.decode(errors="replace")

    def test_each_version_and_group(self):
        """Two connections of one process. The second one resumes the session of the first one, but
        not in TLS 1.2, in which curl does not request the tickets that millrace needs for it."""
        url = f"https://{NAME}:{self.port}/bytes/5"
        for version in VERSIONS:
            for group in GROUPS:
                with self.subTest(version=version, group=group):
                    # In TLS 1.2 the curve of the certificate has to be among the groups.
                    offered = "X25519:P-256" if (version, group) == ("1.2", "X25519") else group
                    got, shown = self.curl(
                        "--tls-max", version, f"--tlsv{version}", "--curves", offered,
                        "--header", "Connection: close", url, url,
                    )
                    self.assertEqual(got, b"".join(pattern.blocks(5)) * 2)
                    self.assertEqual(shown.count(f"SSL connection using TLSv{version}"), 2)
        resumed = [record["resumed"] for record in self.records()]
        self.assertEqual(resumed, [False] * 4 + [False, True] * 2)

    def test_large_bodies(self):
        """100 MB in each direction on one connection."""
        body, url = self.folder / "body", f"https://{NAME}:{self.port}"
        length = 100_000_000
        for version in VERSIONS:
            with self.subTest(version=version):
                self.curl("--tls-max", version, f"{url}/bytes/{length}", "--output", body)
                self.assertEqual(pattern.of_file(body), digest(length))
                got, _ = self.curl("--tls-max", version, "--upload-file", body, f"{url}/upload")
                self.assertEqual(json.loads(got)["sha256"], digest(length))


class Gnutls(Logged):
    programs = ("gnutls-cli",)

    def gnutls(self, version, group, *options):
        """Requests five bytes and returns the output."""
        request = self.folder / "request"
        request.write_bytes(REQUEST)
        with open(request, "rb") as opened:
            done = self.run_client(
                "gnutls-cli", "--x509cafile", self.authority.path, "--sni-hostname", NAME,
                "--verify-hostname", NAME, "--port", self.port, *options, "--priority",
                f"NORMAL:-VERS-ALL:+VERS-TLS{version}:-GROUP-ALL:+GROUP-{group}", "127.0.0.1",
                stdin=opened,
            )
        return done.stdout.decode(errors="replace")

    def test_each_version_and_group(self):
        for version in VERSIONS:
            for group in ("X25519", "SECP256R1"):
                with self.subTest(version=version, group=group):
                    output = self.gnutls(version, group)
                    self.assertIn(f"(TLS{version}-X.509)-(ECDHE-{group})-", output)
                    self.assertIn("HTTP/1.1 200 ", output)

    def test_resumption(self):
        """The client connects twice. The request is on the second connection."""
        for version in VERSIONS:
            with self.subTest(version=version):
                output = self.gnutls(version, "X25519", "--resume", "--waitresumption")
                self.assertIn("*** This is a resumed session", output)
                self.assertIn("HTTP/1.1 200 ", output)
        self.assertEqual([record["resumed"] for record in self.records()], [True, True])


class Python(Logged):
    def test_each_version_and_group(self):
        """The second connection of each context resumes the session of the first."""
        versions = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}
        for version in VERSIONS:
            for group in ("X25519", "prime256v1"):
                if (version, group) == ("1.2", "X25519"):
                    # OpenSSL would also need the curve of the certificate, and ssl offers one.
                    continue
                context = ssl.create_default_context(cafile=self.authority.path)
                context.minimum_version = context.maximum_version = versions[version]
                context.set_ecdh_curve(group)
                saved = None
                for is_second in (False, True):
                    with self.subTest(version=version, group=group, is_second=is_second):
                        client = self.connect(self.proxy, context=context, saved=saved)
                        client.get(f"/bytes/{LENGTH}")
                        self.assertEqual(client.read_response().digest, digest(LENGTH))
                        self.assertEqual(client.tls.version(), f"TLSv{version}")
                        self.assertEqual(client.tls.session_reused, is_second)
                        saved = client.tls.session
                        client.close()


class WebSockets(SecureCase):
    def test_debians_websockets_client(self):
        """python3-websockets over each version, without and with compression."""
        script = (
            "import asyncio, ssl, sys, websockets\n"
            "async def main(url, authority, name, version):\n"
            "    context = ssl.create_default_context(cafile=authority)\n"
            "    context.minimum_version = context.maximum_version = ssl.TLSVersion[version]\n"
            "    for compression in (None, 'deflate'):\n"
            "        async with websockets.connect(url, ssl=context, server_hostname=name,\n"
            "                                      max_size=None, compression=compression) as ws:\n"
            "            for size in (0, 5, 16384, 70000, 1 << 20):\n"
            "                await ws.send('x' * size)\n"
            "                assert await ws.recv() == 'x' * size\n"
            "        assert ws.close_code == 1000\n"
            "asyncio.run(main(*sys.argv[1:]))\n"
        )
        echo = websocket.EchoOrigin()
        self.addCleanup(echo.stop)
        proxy = self.secure_boost(echo.url)
        host, port = proxy.address
        for version in ("TLSv1_2", "TLSv1_3"):
            with self.subTest(version=version):
                self.run_client(
                    "/usr/bin/python3", "-c", script, f"wss://{host}:{port}/echo",
                    self.authority.path, NAME, version,
                )


class Forward(SecureCase):
    programs = ("curl",)

    def test_curl_by_a_proxy_with_tls(self):
        """Downloads and uploads by absolute-form requests, and by TLS in a tunnel in TLS."""
        origin, body = self.origin(), self.folder / "body"
        inner = self.secure_boost(origin.url)
        for version in VERSIONS:
            proxy = self.secure_forward("--tls-versions", version)
            for url in (origin.url, f"https://localhost:{inner.address[1]}"):
                with self.subTest(version=version, url=url):
                    common = [
                        "curl", "--silent", "--show-error", "--noproxy", "", "--proxy-cacert",
                        self.authority.path, "--proxy", f"https://localhost:{proxy.address[1]}",
                        "--cacert", self.authority.path,
                    ]
                    self.run_client(*common, f"{url}/bytes/{LENGTH}", "--output", body)
                    self.assertEqual(pattern.of_file(body), digest(LENGTH))
                    done = self.run_client(*common, "--upload-file", body, f"{url}/upload")
                    self.assertEqual(json.loads(done.stdout)["sha256"], digest(LENGTH))
        for _, _, fields in origin.seen:
            self.assertIn("Via", fields)
