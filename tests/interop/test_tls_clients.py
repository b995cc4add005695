"""curl, openssl, gnutls-cli, Python and Node at a tls:// listener: versions, ciphers, groups,
resumption, and certificates chosen by name."""

import json
import re
import ssl
import subprocess

from support import pattern
from support.secure import NAME, SecureCase

# The names of groups as options of openssl, and as it prints them.
GROUPS = {"X25519": "X25519", "P-256": "prime256v1"}
REQUEST = f"GET /bytes/5 HTTP/1.1\r\nHost: {NAME}\r\nConnection: close\r\n\r\n".encode()
NODE = """
const [port, ca, minVersion, maxVersion] = process.argv.slice(1);
const options = { port, host: "127.0.0.1", servername: "interop.test", minVersion, maxVersion,
    ca: require("fs").readFileSync(ca), path: "/bytes/100000",
    headers: { host: "interop.test" } };
require("https").get(options, (response) => {
    const hash = require("crypto").createHash("sha256");
    const version = response.socket.getProtocol();
    response.on("data", (piece) => hash.update(piece));
    response.on("end", () => console.log(version, hash.digest("hex")));
}).on("error", (error) => { console.error(error); process.exit(1); });
"""


def digest(length):
    """Returns the hash of the body of `/bytes/LENGTH`."""
    whole = pattern.hashlib.sha256()
    for block in pattern.blocks(length):
        whole.update(block)
    return whole.hexdigest()


class Clients(SecureCase):
    programs = ("curl", "openssl", "gnutls-cli", "node")

    def curl(self, proxy, *options, name=NAME):
        """Fetches 100,000 bytes. Returns curl's exit status and what it printed about TLS."""
        port, body = proxy.address[1], self.folder / "body"
        done = subprocess.run(
            ["curl", "--silent", "--show-error", "--verbose", "--noproxy", "*",
             "--cacert", self.authority.path, "--resolve", f"{name}:{port}:127.0.0.1",
             "--output", body, *options, f"https://{name}:{port}/bytes/100000"],
            capture_output=True, text=True, env=self.environment(), timeout=120,
        )
        if done.returncode == 0:
            self.assertEqual(pattern.of_file(body), digest(100_000))
        return done.returncode, done.stderr

    def test_curl_with_each_version_and_cipher(self):
        proxy = self.secure_boost(self.origin().url)
        for options, expected in [
            ([], "TLSv1.3 / TLS_AES_128_GCM_SHA256"),
            (["--tls-max", "1.2"], "TLSv1.2 / ECDHE-ECDSA-AES128-GCM-SHA256"),
            (["--tlsv1.3"], "TLSv1.3 / TLS_AES_128_GCM_SHA256"),
            (["--tls13-ciphers", "TLS_AES_256_GCM_SHA384"], "/ TLS_AES_256_GCM_SHA384"),
            (["--tls13-ciphers", "TLS_CHACHA20_POLY1305_SHA256"], "TLS_CHACHA20_POLY1305_SHA256"),
            *((["--tls-max", "1.2", "--ciphers", cipher], f"TLSv1.2 / {cipher}") for cipher in (
                "ECDHE-ECDSA-AES128-GCM-SHA256",
                "ECDHE-ECDSA-AES256-GCM-SHA384",
                "ECDHE-ECDSA-CHACHA20-POLY1305",
            )),
        ]:
            with self.subTest(options=options):
                status, shown = self.curl(proxy, *options)
                self.assertEqual(status, 0, shown)
                self.assertRegex(shown, "SSL connection using .*" + re.escape(expected))

    def test_old_versions_and_ciphers_are_refused(self):
        """35 is curl's status for a failed handshake. The alert has its cause."""
        proxy = self.secure_boost(self.origin().url)
        for options, alert in [
            (["--tls-max", "1.1", "--tlsv1", "--ciphers", "DEFAULT@SECLEVEL=0"],
             "alert handshake failure"),
            (["--tls-max", "1.2", "--ciphers", "ECDHE-ECDSA-AES128-SHA256"],
             "alert handshake failure"),
            (["--tls-max", "1.2", "--ciphers", "ECDHE-RSA-AES128-GCM-SHA256"],
             "alert handshake failure"),
        ]:
            with self.subTest(options=options):
                status, shown = self.curl(proxy, *options)
                self.assertEqual(status, 35, shown)
                self.assertIn(alert, shown)

    def test_versions_are_an_option(self):
        for versions, refused in (("1.3", "--tls-max 1.2"), ("1.2", "--tlsv1.3")):
            with self.subTest(versions=versions):
                proxy = self.secure_boost(self.origin().url, "--tls-versions", versions)
                self.assertEqual(self.curl(proxy)[0], 0)
                self.assertEqual(self.curl(proxy, *refused.split())[0], 35)

    def test_openssl_with_each_group(self):
        groups = dict(GROUPS)
        listed = subprocess.run(
            ["openssl", "list", "-tls-groups"], capture_output=True, text=True
        ).stdout
        if "X25519MLKEM768" in listed:
            groups["X25519MLKEM768"] = "X25519MLKEM768"
        proxy = self.secure_boost(self.origin().url)
        for version in ("-tls1_2", "-tls1_3"):
            for group, shown in groups.items():
                if (version, group) == ("-tls1_2", "X25519MLKEM768"):
                    continue
                with self.subTest(version=version, group=group):
                    # In TLS 1.2 openssl lists the curve of the certificate among the groups.
                    is_listed = version == "-tls1_3" or group == "P-256"
                    offered = group if is_listed else f"{group}:P-256"
                    status, output = self.s_client(
                        proxy, version, "-groups", offered, "-ign_eof", request=REQUEST
                    )
                    self.assertEqual(status, 0, output)
                    self.assertRegex(output, rf"Server Temp Key:.*{shown}|group: {shown}")
                    self.assertIn("HTTP/1.1 200 ", output)
        status, output = self.s_client(proxy, "-tls1_3", "-groups", "P-384", request=REQUEST)
        self.assertEqual(status, 1, output)
        self.assertIn("alert handshake failure", output)

    def test_gnutls(self):
        proxy = self.secure_boost(self.origin().url)
        for version in ("1.2", "1.3"):
            with self.subTest(version=version):
                done = self.run_client(
                    *["gnutls-cli", "--x509cafile", self.authority.path, "--sni-hostname", NAME],
                    *["--verify-hostname", NAME, "--port", proxy.address[1]],
                    *["--priority", f"NORMAL:-VERS-ALL:+VERS-TLS{version}", "127.0.0.1"],
                    stdin=self.file(REQUEST),
                )
                output = done.stdout.decode()
                self.assertIn(f"(TLS{version}-X.509)-(ECDHE-", output)
                self.assertIn("HTTP/1.1 200 ", output)

    def file(self, data):
        """Returns an open file with these bytes."""
        path = self.folder / "input"
        path.write_bytes(data)
        opened = open(path, "rb")
        self.addCleanup(opened.close)
        return opened

    def test_node(self):
        proxy = self.secure_boost(self.origin().url)
        for version in ("TLSv1.2", "TLSv1.3"):
            with self.subTest(version=version):
                done = self.run_client(
                    "node", "-e", NODE, proxy.address[1], self.authority.path, version, version
                )
                self.assertEqual(done.stdout.decode().split(), [version, digest(100_000)])

    def test_python_with_each_version(self):
        log = self.folder / "log"
        proxy = self.secure_boost(
            self.origin().url, "--access-log", log, "--log-format", "json"
        )
        self.context.set_alpn_protocols(["h2", "http/1.1"])
        for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
            self.context.minimum_version = self.context.maximum_version = version
            client = self.connect(proxy)
            self.assertEqual(client.tls.selected_alpn_protocol(), "http/1.1")
            for length in (5, 100_000):
                client.get(f"/bytes/{length}")
                self.assertEqual(client.read_response().digest, digest(length))
            client.close()
        self.assertEqual(proxy.stop(), 0)
        records = [json.loads(line) for line in log.read_text().splitlines()]
        records.sort(key=lambda record: record["tls_version"])
        names = ("tls_version", "cipher", "sni", "alpn", "resumed", "status")
        old = ["TLSv1.2", "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256"]
        new = ["TLSv1.3", "TLS_AES_128_GCM_SHA256"]
        rest = [NAME, "http/1.1", False, 200]
        self.assertEqual(
            [[record[name] for name in names] for record in records],
            [old + rest] * 2 + [new + rest] * 2,
        )


class Names(SecureCase):
    """The certificate is chosen by the name that the client asks for."""

    def setUp(self):
        super().setUp()
        issue = self.authority.issue
        self.exact = issue("DNS:a.interop.test")
        self.wildcard = issue("DNS:*.interop.test")
        self.rsa = issue(f"DNS:{NAME}", kind="rsa")
        self.context.check_hostname = False

    def subject(self, proxy, name, *options):
        """Returns the common name and the type of the key that a client of a name gets."""
        status, output = self.s_client(proxy, *options, name=name, request=b"Q")
        self.assertEqual(status, 0, output)
        found = re.search(r"subject=CN = (\S+)", output)
        kind = re.search(r"Peer signature type: (\S+)", output)
        return found[1], kind[1]

    def test_an_exact_name_precedes_a_wildcard(self):
        pairs = [self.pair, self.wildcard, self.exact]
        proxy = self.secure_boost(self.origin().url, pairs=pairs)
        for name, expected in [
            ("a.interop.test", "a.interop.test"),
            ("A.Interop.Test", "a.interop.test"),
            ("b.interop.test", "*.interop.test"),
            (NAME, NAME),
            # A wildcard stands for one label.
            ("b.a.interop.test", NAME),
            ("other.test", NAME),
        ]:
            with self.subTest(name=name):
                self.assertEqual(self.subject(proxy, name)[0], expected)

    def test_signature_algorithms_choose_between_certificates_of_a_name(self):
        for pairs in ([self.pair, self.rsa], [self.rsa, self.pair]):
            proxy = self.secure_boost(self.origin().url, pairs=pairs)
            ecdsa, rsa = ("-sigalgs", "ECDSA+SHA256"), ("-sigalgs", "RSA-PSS+SHA256:RSA+SHA256")
            for name in (NAME, "other.test"):
                self.assertEqual(self.subject(proxy, name, *ecdsa)[1], "ECDSA")
                self.assertEqual(self.subject(proxy, name, *rsa)[1], "RSA-PSS")
            first = "RSA-PSS" if pairs[0] is self.rsa else "ECDSA"
            self.assertEqual(self.subject(proxy, NAME)[1], first)
            # The suites of TLS 1.2 name the algorithm of the certificate.
            for cipher in ("ECDHE-ECDSA-AES128-GCM-SHA256", "ECDHE-RSA-AES128-GCM-SHA256"):
                with self.subTest(first=first, cipher=cipher):
                    kind = self.subject(proxy, NAME, "-tls1_2", "-cipher", cipher)[1]
                    self.assertEqual(kind.partition("-")[0], cipher.split("-")[1])

    def test_unknown_names(self):
        log = self.folder / "log"
        options = ["--access-log", log, "--log-format", "json", "--workers", "1"]
        proxy = self.secure_boost(self.origin().url, *options, "--unknown-name", "refuse")
        for name in ("other.test", "a.interop.test", None):
            with self.assertRaisesRegex(ssl.SSLError, "UNRECOGNIZED_NAME"):
                self.connect(proxy, name=name)
        self.connect(proxy).close()
        self.assertEqual(proxy.stop(), 0)
        records = [json.loads(line) for line in log.read_text().splitlines()]
        self.assertEqual(
            [(record["reason"], record["sni"]) for record in records],
            [("tls-unknown-name", "other.test"), ("tls-unknown-name", "a.interop.test"),
             ("tls-unknown-name", None)],
        )

    def test_without_a_name_the_first_certificate_is_used(self):
        proxy = self.secure_boost(self.origin().url, pairs=[self.exact, self.pair])
        client = self.connect(proxy, name=None)
        names = client.tls.getpeercert()["subjectAltName"]
        self.assertEqual(names, (("DNS", "a.interop.test"),))


class Resumption(SecureCase):
    def test_openssl_offers_its_session_again(self):
        """Each version. The log says whether the session was resumed, as openssl does."""
        log = self.folder / "log"
        options = ["--workers", "1", "--access-log", log, "--log-format", "json"]
        proxy = self.secure_boost(self.origin().url, *options)
        resumed = []
        for version in ("-tls1_2", "-tls1_3"):
            saved = self.folder / f"session{version}"
            for file in ("-sess_out", "-sess_in"):
                if file == "-sess_in" and not saved.exists():
                    continue
                status, output = self.s_client(
                    proxy, version, "-ign_eof", file, saved, request=REQUEST
                )
                self.assertEqual(status, 0, output)
                self.assertRegex(output, "(New|Reused), TLSv1")
                resumed.append("Reused, TLSv1" in output)
                self.assertIn("HTTP/1.1 200 ", output)
        self.assertEqual(proxy.stop(), 0)
        records = [json.loads(line) for line in log.read_text().splitlines()]
        self.assertEqual([record["resumed"] for record in records], resumed)

    def test_a_session_that_the_server_does_not_know(self):
        """The session of one millrace at another one, with another certificate."""
        first = self.secure_boost(self.origin().url)
        client = self.connect(first)
        client.get("/bytes/5")
        client.read_response()
        saved = client.tls.session
        second = self.secure_boost(
            self.origin().url, pairs=[self.authority.issue(f"DNS:{NAME}")]
        )
        client = self.connect(second, saved=saved)
        self.assertFalse(client.tls.session_reused)
        client.get("/bytes/5")
        self.assertEqual(client.read_response().status, 200)
