"""Certificates by ACME from pebble: both challenges, rejected nonces, an authority or a millrace
that ends at each step, renewal under load, hand-over, and the state folder."""

import base64
import contextlib
import json
import os
import pathlib
import random
import re
import shutil
import signal
import socket
import ssl
import subprocess
import threading
import urllib.error
import urllib.request
from concurrent.futures import Future, ThreadPoolExecutor

from support import tls
from support.acme_editor import AcmeEditor
from support.case import InteropCase
from support.millrace import program
from support.pebble import Pebble
from support.ports import free_port
from support.relay import Relay

NAME = "acme.interop.test"
# The requests of an order, and a few more.
STEPS = 16
# Each request fails before the authority has it, and after.
CASES = [(number, late) for number in range(1, STEPS) for late in (False, True)]
# How often millrace is killed; `make soak` kills it more often.
KILLS = int(os.environ.get("KILLS", 5))


class AcmeCase(InteropCase):
    def setUp(self):
        super().setUp()
        self.folder.chmod(0o755)
        self.upstream = self.origin()

    def pebble(self, name="pebble", **how):
        folder = self.folder / name
        folder.mkdir()
        started = Pebble(folder, **how)
        self.addCleanup(started.stop)
        return started

    def editor(self, pebble, edit):
        """Returns the directory of pebble with edited responses."""
        editor = AcmeEditor(pebble, edit)
        self.addCleanup(editor.stop)
        return editor.directory

    def words(self, pebble, *options, http="off", retry=100, names=(NAME,), directory=None,
              user="root", ca=None):
        """Returns the command line of a reverse proxy whose certificate comes from pebble."""
        names = [word for name in names for word in ("--server-name", name)]
        # Pebble chooses any profile for an order without one.
        if "--acme-profile" not in options:
            options = ("--acme-profile", "default", *options)
        return [
            *["boost", "--origin", self.upstream.url, "--user", user, *names],
            *["--listen", f"tls://127.0.0.1:{pebble.tls_port}", "--acme", "admin@interop.test"],
            *["--acme-dir", pebble.folder / "acme", "--acme-ca", ca or pebble.ca],
            *["--acme-directory", directory or pebble.directory, "--acme-http", http],
            *["--limit", f"acme_retry_ms={retry}", *options],
        ]

    def start(self, pebble, *options, **how):
        return self.millrace(*self.words(pebble, *options, **how))

    def write(self, config, pebble, http="off", *process):
        """Writes a configuration file with the options of `words`, and more of the process."""
        lines = [
            *['user = "root"', *process, "[boost]", f'listen = "tls://127.0.0.1:{pebble.tls_port}"'],
            *[f'server-name = "{NAME}"', 'acme = "admin@interop.test"', f'acme-http = "{http}"'],
            *[f'acme-directory = "{pebble.directory}"', f'acme-ca = "{pebble.ca}"'],
            *[f'acme-dir = "{pebble.folder / "acme"}"', 'acme-profile = "default"'],
            *["[[boost.route]]", f'origins = "{self.upstream.url}"'],
        ]
        config.write_text("\n".join(lines) + "\n")

    def write_without_acme(self, config, pebble, *process):
        """Writes such a file with a certificate of another authority."""
        self.write(config, pebble, "off", *process)
        chain, key = tls.Authority(self.folder).issue(f"DNS:{NAME}")
        key.chmod(0o600)
        lines = config.read_text().splitlines()
        lines = [line for line in lines if not line.startswith(("acme", "server"))]
        at = lines.index("[boost]") + 1
        lines[at:at] = [f'certificate = "{chain}"', f'key = "{key}"']
        config.write_text("\n".join(lines))

    def certificate(self, pebble, name=NAME, trusted=None):
        """Returns the certificate that a new client gets, as DER; None if there is none. `trusted`
        has the roots to verify it by."""
        context = ssl.create_default_context(cadata=trusted)
        if not trusted:
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        try:
            with socket.create_connection(("127.0.0.1", pebble.tls_port), 30) as stream:
                with context.wrap_socket(stream, server_hostname=name) as client:
                    return client.getpeercert(binary_form=True)
        except ssl.SSLCertVerificationError:
            raise
        except OSError:
            return None

    def await_certificate(self, proxy, pebble, other_than=None):
        """Waits until clients get a certificate of pebble, and returns it."""
        found = []

        def arrived():
            found[:] = [self.certificate(pebble)]
            return found[0] not in (None, other_than)

        try:
            self.wait_until("a certificate", arrived)
        except AssertionError:
            raise AssertionError("\n".join(proxy.lines[-8:]))
        return found[0]

    def state(self, pebble, ending):
        """Returns the only file of the state folder with this ending."""
        (found,) = (pebble.folder / "acme").glob(f"*{ending}")
        return found


class Orders(AcmeCase):
    def test_a_certificate_by_tls_alpn_01(self):
        pebble = self.pebble()
        proxy = self.start(pebble, names=(NAME, "b." + NAME))
        first = self.await_certificate(proxy, pebble)
        for name in (NAME, "b." + NAME):
            self.assertEqual(self.certificate(pebble, name, pebble.root()), first)
        self.assertEqual(pebble.count("Issued certificate"), 1)
        for file in (pebble.folder / "acme").iterdir():
            self.assertEqual(file.stat().st_mode & 0o777, 0o600, file)
        # The next start uses the stored certificate, and needs no authority.
        self.assertEqual(proxy.stop(), 0)
        pebble.kill()
        proxy = self.start(pebble, names=(NAME, "b." + NAME))
        self.assertEqual(self.certificate(pebble), first)
        # Clients of an authority by acme-ca know its root.
        self.assertEqual([line for line in proxy.lines if "no authority" in line], [])

    def test_a_certificate_by_http_01_and_redirects(self):
        pebble = self.pebble()
        # The authority connects to the former port, so tls-alpn-01 fails.
        pebble.tls_port = free_port()
        proxy = self.start(pebble, http=f"127.0.0.1:{pebble.http_port}")
        self.assertIsNone(self.certificate(pebble))
        self.await_certificate(proxy, pebble)
        url = f"http://127.0.0.1:{pebble.http_port}/a?b"

        class NoRedirect(urllib.request.HTTPRedirectHandler):
            def redirect_request(self, *_):
                return None

        with self.assertRaises(urllib.error.HTTPError) as refused:
            urllib.request.build_opener(NoRedirect).open(url, timeout=30)
        refused.exception.close()
        self.assertEqual(refused.exception.code, 301)
        location = refused.exception.headers["Location"]
        self.assertEqual(location, f"https://127.0.0.1:{pebble.tls_port}/a?b")

    def test_idle_connections_keep_no_other_one_out(self):
        pebble = self.pebble()
        proxy = self.start(pebble, http=f"127.0.0.1:{pebble.http_port}")
        self.await_certificate(proxy, pebble)
        address = ("127.0.0.1", pebble.http_port)
        with contextlib.ExitStack() as stack:
            opened = [stack.enter_context(socket.create_connection(address, 30)) for _ in range(60)]
            # The first one is not evicted: there is a place for each.
            for client in (opened[-1], opened[0]):
                client.sendall(b"GET http://a.test/b HTTP/1.1\r\nHost: c\r\n\r\n")
                self.assertIn(b"Location: https://a.test:", client.recv(1000))

    def test_half_of_the_nonces_are_rejected(self):
        pebble = self.pebble(bad_nonces=50)
        self.await_certificate(self.start(pebble), pebble)
        self.assertEqual(pebble.count("Added order"), 1)

    def test_an_external_account_and_a_profile(self):
        secret = base64.urlsafe_b64encode(random.randbytes(32)).decode().rstrip("=")
        pebble = self.pebble(external=("kid-1", secret))
        file = self.folder / "eab"
        file.write_text(f"kid-1 {secret}\n")
        file.chmod(0o600)
        proxy = self.start(pebble, "--acme-eab", file, "--acme-profile", "short")
        der = self.await_certificate(proxy, pebble)
        self.assertEqual(pebble.count("Successful newAccount Binding"), 1)
        (self.folder / "short.pem").write_text(ssl.DER_cert_to_PEM_cert(der))
        # The profile is valid for an hour.
        check = ["x509", "-noout", "-in", self.folder / "short.pem", "-checkend"]
        tls.openssl(*check, "60")
        with self.assertRaises(RuntimeError):
            tls.openssl(*check, "7200")

    def test_a_port_in_use_is_one_line(self):
        pebble = self.pebble()
        with socket.create_server(("127.0.0.1", pebble.http_port)):
            config = self.folder / "millrace.toml"
            admin = f'admin = "unix:{self.folder}/admin.sock"'
            self.write(config, pebble, f"127.0.0.1:{pebble.http_port}", admin)
            proxy = self.millrace("run", config)
            self.await_certificate(proxy, pebble)
            # The configuration with the certificate tries again, and the test order waits for it.
            self.run_client(program(), "check", "--acme", config)
            self.assertEqual(proxy.stop(), 0)
        (line,) = [line for line in proxy.lines if "acme-http" in line]
        self.assertIn("address already in use; only tls-alpn-01 remains", line)

    def test_an_authority_that_cannot_be_reached_is_named(self):
        pebble = self.pebble()
        ca = tls.Authority(self.folder).issue("DNS:other.test")[0]
        proxy = self.start(pebble, ca=ca, retry=3_600_000)
        self.wait_until("a failure", lambda: any("failed" in line for line in proxy.lines))
        (line,) = [line for line in proxy.lines if "failed" in line]
        issuer = "no trusted authority has issued its certificate (expected: --acme-ca FILE for"
        self.assertIn(f"account failed: cannot reach {pebble.directory}: {issuer}", line)
        self.assertEqual(proxy.stop(), 0)
        pebble.kill()
        proxy = self.start(pebble, retry=3_600_000)
        self.wait_until("a failure", lambda: any("failed" in line for line in proxy.lines))
        (line,) = [line for line in proxy.lines if "failed" in line]
        refused = f"account failed: cannot reach {pebble.directory}: Connection refused"
        self.assertIn(refused, line)

    def test_a_replaced_authority_is_trusted(self):
        """acme-ca has another authority at first. The files are watched."""
        pebble, ca = self.pebble(), self.folder / "replaced.pem"
        shutil.copy(tls.Authority(self.folder).path, ca)
        proxy = self.start(pebble, "--limit", "certificate_check_ms=100", ca=ca)
        self.wait_until("a failure", lambda: any("cannot reach" in line for line in proxy.lines))
        self.assertIsNone(self.certificate(pebble))
        shutil.copy(pebble.ca, ca)
        self.await_certificate(proxy, pebble)

    def test_the_start_prints_the_address_and_the_order(self):
        pebble = self.pebble()
        address = f"127.0.0.1:{pebble.http_port}"
        proxy = self.start(pebble, http=address)
        self.await_certificate(proxy, pebble)
        prefix = "millrace: acme: received"
        self.wait_until("the line", lambda: any(prefix in line for line in proxy.lines))
        lines = [line for line in proxy.lines if "acme" in line and "acme-dir" not in line]
        self.assertIn(f"millrace: acme-http at {address}", lines)
        order = f"millrace: acme: ordering a certificate for {NAME}; handshakes fail until then"
        self.assertEqual(lines.count(order), 1, lines)
        date = r"[A-Z][a-z]{2}, \d\d [A-Z][a-z]{2} \d{4} \d\d:\d\d:\d\d GMT"
        self.assertRegex(lines[-1], f"{prefix} the certificate for {NAME}, valid until {date}$")
        # The next start has the certificate, and orders none.
        self.assertEqual(proxy.stop(), 0)
        again = self.start(pebble)
        self.assertIsNotNone(self.certificate(pebble))
        self.assertFalse([line for line in again.lines if "ordering" in line])

    def test_a_folder_that_cannot_be_created(self):
        pebble = self.pebble()
        words = self.words(pebble, "--acme-dir", "/proc/none/acme")
        at = words.index("--acme-dir")
        del words[at : at + 2]
        done = subprocess.run(
            [program(), *map(str, words)], capture_output=True, text=True, timeout=60
        )
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertRegex(
            done.stderr.splitlines()[-1],
            "acme-dir /proc/none/acme: cannot be created: .* "
            r"\(expected: --acme-dir DIR that this user may write\)$",
        )

    def test_without_a_place_for_its_file_nothing_is_created(self):
        pebble = self.pebble()
        folder = pebble.folder / "acme"
        proxy = self.start(pebble)
        self.await_certificate(proxy, pebble)
        self.assertEqual(proxy.stop(), 0)
        (account,) = folder.glob("account@*.json")
        (certificate,) = folder.glob("*.pem")
        for file, created in ((certificate, "Added order"), (account, "There are now .* accounts")):
            file.unlink()
            before = pebble.count(created)
            self.assertGreater(before, 0)
            blocked = file.with_suffix(".order.json") if file == certificate else file
            (folder / f"{blocked.name}.new").mkdir()
            proxy = self.start(pebble)
            failed = "state failed"
            self.wait_until("failures", lambda: sum(failed in line for line in proxy.lines) >= 3)
            self.assertEqual(pebble.count(created), before)
            self.assertEqual(proxy.stop(), 0)

    def test_an_order_whose_certificate_is_refused_ends(self):
        pebble = self.pebble()
        other = tls.Authority(self.folder).issue(f"DNS:{NAME}")[0].read_bytes()
        fetched = []

        def edit(path, status, fields, body):
            if not path.startswith("/certZ/"):
                return status, fields, body
            fetched.append(path)
            return status, fields, other if len(fetched) < 3 else body

        proxy = self.start(pebble, directory=self.editor(pebble, edit))
        self.await_certificate(proxy, pebble)
        # Each failure is followed by an order of its own.
        self.assertEqual((len(set(fetched)), pebble.count("Added order")), (3, 3))
        failures = [line for line in proxy.lines if "install failed: the ordered" in line]
        self.assertEqual(len(failures), 2, proxy.lines)

    def test_an_error_has_the_status_of_its_response(self):
        """The authority forgets the first order after its challenges began. A problem needs no
        status, and some errors have no problem."""
        problem = b'{"type": "urn:ietf:params:acme:error:unauthorized", "detail": "gone"}'
        for status, body in ((403, problem), (404, problem), (404, b"<html>")):
            with self.subTest(status=status, body=body):
                pebble, seen = self.pebble(f"pebble-{status}-{len(body)}"), []

                def edit(path, *parts, status=status, body=body, seen=seen):
                    if path.startswith("/my-order/"):
                        seen.append(path)
                        if path == seen[0]:
                            return status, parts[1], body
                    return parts

                proxy = self.start(pebble, directory=self.editor(pebble, edit))
                self.await_certificate(proxy, pebble)
                self.assertEqual(pebble.count("Added order"), 2)
                self.assertEqual(proxy.stop(), 0)

    def test_a_failure_is_one_line_and_a_wait(self):
        pebble = self.pebble()
        pebble.kill()
        proxy = self.start(pebble, retry=3_600_000)
        self.wait_until("a failure", lambda: any("failed" in line for line in proxy.lines))
        lines = [line for line in proxy.lines if "failed" in line]
        self.assertEqual(len(lines), 1)
        expected = f"acme: certificate for {NAME}: account failed: .*; next attempt in [0-9]{{4}} s"
        self.assertRegex(lines[0], expected)
        self.assertIn("account failed", self.state(pebble, ".failure").read_text())


class TestOrders(AcmeCase):
    """`millrace check --acme`."""

    def setUp(self):
        super().setUp()
        self.config, self.admin = self.folder / "millrace.toml", self.folder / "admin.sock"

    def configure(self, pebble, http="off"):
        self.write(self.config, pebble, http, f'admin = "unix:{self.admin}"')

    def check(self):
        """Returns the exit status and the lines of standard output and standard error."""
        command = [program(), "check", "--acme", self.config]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)
        return done.returncode, done.stdout.splitlines(), done.stderr.splitlines()

    def label(self, pebble):
        return f"acme: test order of {NAME} from {pebble.directory}: "

    def files(self, pebble):
        return {file: file.read_bytes() for file in (pebble.folder / "acme").glob("*")}

    def test_the_running_process_orders(self):
        pebble = self.pebble()
        self.configure(pebble)
        proxy = self.millrace("run", self.config)
        certificate, files = self.await_certificate(proxy, pebble), self.files(pebble)
        expected = [self.label(pebble) + "issued by tls-alpn-01"]
        self.assertEqual(self.check(), (0, expected, []))
        self.assertEqual(pebble.count("Issued certificate"), 2)
        self.assertEqual(self.files(pebble), files)
        self.assertEqual(self.certificate(pebble), certificate)
        pebble.kill()
        status, output, (line,) = self.check()
        self.assertEqual((status, output), (1, []))
        self.assertIn(self.label(pebble) + "account failed: ", line)
        self.assertEqual(self.certificate(pebble), certificate)

    def test_a_running_process_without_acme_is_reported(self):
        pebble = self.pebble()
        self.write_without_acme(self.config, pebble, f'admin = "unix:{self.admin}"')
        self.millrace("run", self.config)
        self.configure(pebble)
        expected = ["millrace: the running configuration orders no certificate"]
        self.assertEqual(self.check(), (1, [], expected))

    def test_a_running_process_with_other_settings_is_reported(self):
        pebble = self.pebble()
        self.configure(pebble)
        proxy = self.millrace("run", self.config)
        self.await_certificate(proxy, pebble)
        self.config.write_text(self.config.read_text().replace(NAME, "b." + NAME))
        expected = (
            "millrace: the running process orders other certificates than this file (expected: the"
            " same, by a reload)"
        )
        self.assertEqual(self.check(), (1, [], [expected]))
        self.assertEqual(pebble.count("Issued certificate"), 1)

    def test_a_test_order_waits_for_a_reload(self):
        """The reload waits for an address in use, for two seconds at most."""
        pebble, name = self.pebble(), "b." + NAME
        self.configure(pebble)
        proxy = self.millrace("run", self.config)
        self.await_certificate(proxy, pebble)
        label = self.label(pebble)
        self.assertEqual(self.check(), (0, [label + "issued by tls-alpn-01"], []))
        with socket.create_server(("127.0.0.1", pebble.http_port)):
            self.configure(pebble, f"127.0.0.1:{pebble.http_port}")
            self.config.write_text(self.config.read_text().replace(NAME, name))
            proxy.process.send_signal(signal.SIGHUP)
            line = "millrace: configuration 3 is in force"
            self.wait_until("the reload", lambda: line in proxy.lines)
            expected = label.replace(NAME, name) + "issued by tls-alpn-01"
            self.assertEqual(self.check(), (0, [expected], []))

    def test_an_order_that_the_authority_forgot_is_not_in_progress(self):
        pebble, seen = self.pebble(), []

        def edit(path, status, fields, body):
            seen.append(path)
            # The first order is forgotten after its challenges began, and there is no other one.
            is_second = path == "/order-plz" and seen.count(path) > 1
            if is_second or path.startswith("/my-order/"):
                kind = "urn:ietf:params:acme:error:unauthorized"
                problem = {"type": kind, "detail": path, "status": 403}
                return 403, fields, json.dumps(problem).encode()
            return status, fields, body

        self.write(self.config, pebble, "off", f'admin = "unix:{self.admin}"')
        text = self.config.read_text().replace(pebble.directory, self.editor(pebble, edit))
        self.config.write_text(text + "[limits]\nacme_retry_ms = 100\n")
        proxy = self.millrace("run", self.config)
        expected = "order failed: API error: /order-plz"
        self.wait_until("a failure", lambda: any(expected in line for line in proxy.lines))
        self.assertTrue([path for path in seen if path.startswith("/chalZ/")])
        status, output, (line,) = self.check()
        self.assertEqual((status, output), (1, []))
        self.assertIn(expected, line)

    def test_without_a_process_it_listens_itself(self):
        pebble = self.pebble()
        self.configure(pebble)
        expected = [self.label(pebble) + "issued by tls-alpn-01"]
        self.assertEqual(self.check(), (0, expected, []))
        self.assertEqual(self.files(pebble), {})
        # The authority connects to the former port, so only http-01 works.
        pebble.tls_port = free_port()
        self.configure(pebble, http=f"127.0.0.1:{pebble.http_port}")
        status, (line,), errors = self.check()
        self.assertEqual((status, errors), (0, []))
        self.assertIn("issued by http-01, but tls-alpn-01 failed: ", line)
        self.configure(pebble)
        status, output, (line,) = self.check()
        self.assertEqual((status, output), (1, []))
        self.assertIn(self.label(pebble) + "tls-alpn-01 failed: ", line)

    def test_each_obstacle_is_one_line(self):
        pebble = self.pebble()
        self.configure(pebble)
        with socket.create_server(("127.0.0.1", pebble.tls_port)):
            status, output, lines = self.check()
        expected = f"cannot listen on 127.0.0.1:{pebble.tls_port}: address already in use ("
        self.assertEqual((status, output, len(lines)), (1, [], 1))
        self.assertIn(expected, lines[0])
        self.config.write_text(f'[boost]\n[[boost.route]]\norigins = "{self.upstream.url}"\n')
        status, output, (line,) = self.check()
        self.assertEqual((status, output), (2, []))
        self.assertIn("--acme: the configuration orders no certificate (expected: ", line)


class Owners(AcmeCase):
    """A state folder that belongs to another user."""

    def test_a_folder_of_another_user_is_refused(self):
        if os.getuid() != 0:
            self.skipTest("only root can give folders away")
        pebble, config = self.pebble(), self.folder / "millrace.toml"
        folder = pebble.folder / "acme"
        folder.mkdir(mode=0o700)
        os.chown(folder, 12345, 12346)
        self.write(config, pebble)
        expected = (
            f"millrace: acme-dir {folder} belongs to 12345, and millrace runs as root: no certificate"
            f" can be renewed (expected: chown -R root {folder}, or --user 12345:12346 with"
            " keys that it may read)"
        )
        for command in (["run"], ["check"], ["check", "--acme"]):
            done = subprocess.run(
                [program(), *command, config], capture_output=True, text=True, timeout=60
            )
            self.assertEqual(done.returncode, 1, (command, done.stderr))
            self.assertEqual(done.stderr.splitlines()[-1], expected, command)
        os.chown(folder, 0, 0)
        done = subprocess.run([program(), "check", config], capture_output=True, timeout=60)
        self.assertEqual(done.returncode, 0, done.stderr)


class Reloads(AcmeCase):
    def setUp(self):
        super().setUp()
        self.config = self.folder / "millrace.toml"

    def reload(self, proxy, *expected):
        """Reloads, and waits until each of these texts is in a new line."""
        before = len(proxy.lines)
        proxy.process.send_signal(signal.SIGHUP)

        def has_all():
            lines = proxy.lines[before:]
            return all(any(text in line for line in lines) for text in expected)

        try:
            self.wait_until("the lines", has_all)
        except AssertionError:
            raise AssertionError((expected, proxy.lines[before:]))

    def test_acme_http_is_opened_and_closed(self):
        pebble = self.pebble()
        ports = (pebble.http_port, free_port())
        first, second = (f"127.0.0.1:{port}" for port in ports)

        def served():
            """Returns which of the ports are open, and redirect."""
            found = []
            for port in ports:
                try:
                    with socket.create_connection(("127.0.0.1", port), 30) as client:
                        client.sendall(b"GET http://a.test/b HTTP/1.1\r\nHost: c\r\n\r\n")
                        found.append(client.recv(1000).startswith(b"HTTP/1.1 301 "))
                except ConnectionRefusedError:
                    found.append(False)
            return found

        self.write(self.config, pebble, first)
        proxy = self.millrace("run", self.config)
        certificate = self.await_certificate(proxy, pebble)
        self.assertEqual(served(), [True, False])
        self.write(self.config, pebble, second)
        self.reload(proxy, f"acme-http at {second}", f"acme-http no longer at {first}")
        self.assertEqual(served(), [False, True])
        self.write(self.config, pebble)
        self.reload(proxy, f"acme-http no longer at {second}")
        self.assertEqual(served(), [False, False])
        with socket.create_server(("127.0.0.1", ports[1])):
            self.write(self.config, pebble, second)
            self.reload(proxy, f"{second}: address already in use; only tls-alpn-01 remains")
        self.reload(proxy, f"acme-http at {second}")
        self.write(self.config, pebble, first)
        self.reload(proxy, f"acme-http at {first}")
        self.assertEqual(served(), [True, False])
        self.assertEqual(self.certificate(pebble), certificate)
        self.write_without_acme(self.config, pebble)
        self.reload(proxy, f"acme-http no longer at {first}")
        self.assertEqual(served(), [False, False])

    def test_a_low_port_needs_a_restart(self):
        unprivileged = "net.ipv4.ip_unprivileged_port_start"
        start = pathlib.Path("/proc/sys", *unprivileged.split(".")).read_text()
        if int(start) <= 81:
            self.skipTest(f"{unprivileged} = {start.strip()} lets any user listen at port 81")
        pebble = self.pebble()
        self.write(self.config, pebble)
        proxy = self.millrace("run", self.config)
        self.write(self.config, pebble, "127.0.0.1:81")
        low = "ports below 1024 need CAP_NET_BIND_SERVICE"
        until = "only tls-alpn-01 remains until a restart or an upgrade"
        self.reload(proxy, f"cannot listen on 127.0.0.1:81: not permitted ({low}); {until}")

    def test_the_first_acme_creates_its_folder(self):
        pebble, off = self.pebble(), 'sandbox = "off"'
        self.write_without_acme(self.config, pebble, off)
        proxy = self.millrace("run", self.config)
        first = self.certificate(pebble)
        self.write(self.config, pebble, "off", off)
        good = self.config.read_text()
        self.config.write_text(good.replace(str(pebble.folder / "acme"), "/proc/none/acme"))
        self.reload(proxy, "reload refused: acme-dir /proc/none/acme: cannot be created: ")
        self.config.write_text(good)
        self.reload(proxy, "configuration 2 is in force")
        self.await_certificate(proxy, pebble, other_than=first)
        self.assertEqual((pebble.folder / "acme").stat().st_mode & 0o777, 0o700)

    def test_the_first_acme_in_a_sandbox_is_refused(self):
        pebble = self.pebble()
        reads = f'sandbox-folder = "{pebble.ca.parent}"'
        self.write_without_acme(self.config, pebble, reads)
        proxy = self.millrace("run", self.config)
        self.write(self.config, pebble, "off", reads)
        calls = "the sandbox of the process does not include the system calls for acme"
        self.reload(proxy, f"reload refused: {calls} (restart or upgrade to use it)")
        self.assertFalse((pebble.folder / "acme").exists())


    def test_a_port_moves_between_listen_and_acme_http(self):
        """A worker has the socket of a removed listener for a tenth of a second or more. That of
        acme-http is closed after the reload."""
        pebble = self.pebble()
        secure, plain = f"tls://127.0.0.1:{pebble.tls_port}", f"127.0.0.1:{pebble.http_port}"

        def write(http="off", listen=f'"{secure}"'):
            self.write(self.config, pebble, http)
            text = self.config.read_text()
            self.config.write_text(text.replace(f'"{secure}"', listen))

        both = f'["{secure}", "{plain}"]'
        write(listen=both)
        proxy = self.millrace("run", self.config)
        self.await_certificate(proxy, pebble)
        write(plain)
        self.reload(proxy, f"no longer listening on {plain}", f"acme-http at {plain}")
        write(listen=both)
        used = f"reload refused: cannot listen on {plain}: address already in use"
        self.reload(proxy, f"{used}; acme-http {plain} has this port")
        write()
        self.reload(proxy, "is in force")
        write(listen=both)
        self.reload(proxy, f"listening on {plain}")
        self.wait_until(
            "the line", lambda: f"millrace: acme-http no longer at {plain}" in proxy.lines
        )


class Failures(AcmeCase):
    def with_each(self, cases, run):
        """Runs cases at the same time, each with a pebble of its own."""
        with ThreadPoolExecutor(16) as pool:
            for done in [pool.submit(run, *case) for case in cases]:
                done.result()

    def interrupted(self, label, number, late, is_killed):
        """Orders a certificate while request `number` fails."""
        pebble = self.pebble(f"{label}-{number}")

        def act():
            if is_killed:
                pebble.kill()
                pebble.start()

        relay = Relay(pebble.port, number, act, late)
        self.addCleanup(relay.stop)
        proxy = self.start(pebble, directory=f"https://127.0.0.1:{relay.port}/dir")
        self.await_certificate(proxy, pebble)
        self.assertEqual(proxy.stop(), 0)
        return pebble

    def test_an_authority_that_is_killed_at_each_step(self):
        def run(number, late):
            # It has forgotten the account and the order.
            pebble = self.interrupted(f"killed-{late}", number, late, is_killed=True)
            self.assertLessEqual(pebble.count("Added order"), 2)

        self.with_each(CASES, run)

    def test_an_authority_that_cannot_be_reached_at_each_step(self):
        orders = []

        def run(number, late):
            pebble = self.interrupted(f"cut-{late}", number, late, is_killed=False)
            orders.append(pebble.count("Added order"))

        self.with_each(CASES, run)
        # Only the request that creates the order can be lost in such a way that it is repeated.
        self.assertEqual(sorted(orders)[:-1], [1] * (len(orders) - 1))
        self.assertLessEqual(max(orders), 2)

    def test_a_millrace_that_is_killed_at_any_moment(self):
        seed = random.randrange(1 << 32)
        print(f"seed {seed}")
        chosen = random.Random(seed)

        def run(index, number, late):
            pebble, started = self.pebble(f"kill-{index}"), Future()
            relay = Relay(pebble.port, number, lambda: started.result().kill(), late)
            self.addCleanup(relay.stop)
            directory = f"https://127.0.0.1:{relay.port}/dir"
            first = self.start(pebble, directory=directory)
            started.set_result(first)
            if number <= 9:
                self.wait_until("the kill", lambda: first.process.poll() is not None)
            first.kill()
            again = self.start(pebble, directory=directory)
            self.await_certificate(again, pebble)
            self.assertLessEqual(pebble.count("Added order"), 2)
            json.loads(self.state(pebble, ".json").read_text())
            self.assertEqual(again.stop(), 0)

        cases = [(i, chosen.randint(1, STEPS - 1), chosen.random() < 0.5) for i in range(KILLS)]
        self.with_each(cases, run)


class Renewals(AcmeCase):
    def test_renewals_under_load_lose_no_request(self):
        pebble = self.pebble(validity=8)
        proxy = self.start(pebble)
        self.await_certificate(proxy, pebble)
        ends, seen, counts = threading.Event(), set(), [0] * 4
        context = ssl._create_unverified_context()
        failures = []

        def load(index):
            while not ends.is_set():
                try:
                    with socket.create_connection(("127.0.0.1", pebble.tls_port), 30) as stream:
                        with context.wrap_socket(stream, server_hostname=NAME) as client:
                            seen.add(client.getpeercert(binary_form=True))
                            client.sendall(b"GET / HTTP/1.1\r\nHost: %s\r\n\r\n" % NAME.encode())
                            status = client.recv(12)
                            if status != b"HTTP/1.1 200":
                                failures.append(status)
                    counts[index] += 1
                except OSError as error:
                    failures.append(repr(error))

        threads = [threading.Thread(target=load, args=(index,)) for index in range(len(counts))]
        for thread in threads:
            thread.start()
        try:
            self.wait_until("two renewals", lambda: len(seen) >= 3 or failures)
        finally:
            ends.set()
            for thread in threads:
                thread.join()
        self.assertEqual(failures, [])
        self.assertGreater(min(counts), 10)

    def test_a_renewal_after_root_was_given_up(self):
        if os.getuid() != 0:
            self.skipTest("only root has privileges to drop")
        pebble = self.pebble(validity=8)
        proxy = self.start(pebble, user="12345:12346")
        first = self.await_certificate(proxy, pebble)
        self.await_certificate(proxy, pebble, other_than=first)
        for path in (pebble.folder / "acme", self.state(pebble, ".pem")):
            self.assertEqual((path.stat().st_uid, path.stat().st_gid), (12345, 12346), path)

    def test_renewal_information_needs_no_retry_after(self):
        pebble, queried = self.pebble(validity=8), []

        def edit(path, status, fields, body):
            if "/renewalInfo/" in path:
                queried.append(path)
                fields = {name: fields[name] for name in fields if name.lower() != "retry-after"}
            return status, fields, body

        proxy = self.start(pebble, directory=self.editor(pebble, edit))
        first = self.await_certificate(proxy, pebble)
        self.await_certificate(proxy, pebble, other_than=first)
        self.assertTrue(queried)
        self.assertEqual([line for line in proxy.lines if "cannot ask" in line], [])

    def test_doctor_reports_expiry_and_the_last_failure(self):
        pebble = self.pebble()
        proxy = self.start(pebble)
        self.await_certificate(proxy, pebble)
        self.assertEqual(proxy.stop(), 0)

        def report():
            pages = []
            for folder, file in ((pebble.folder, []), (self.folder, [config])):
                environment = self.environment(STATE_DIRECTORY=str(folder))
                done = self.run_client(program(), "doctor", *file, environment=environment)
                page = done.stdout.decode()
                pages.append(
                    re.findall(r"^(\w+) +certificate +(.*)\n(?: {24}(.*)\n)?", page, re.M)
                )
            self.assertEqual(pages[0], pages[1])
            return pages[0]

        config = self.folder / "millrace.toml"
        self.write(config, pebble)
        self.assertEqual(report(), [("ok", f"{NAME}: expires in 89 days", "")])
        # A renewal that is due fails.
        pebble.kill()
        (found,) = (pebble.folder / "acme").glob("*.pem")
        found.unlink()
        proxy = self.start(pebble, retry=3_600_000)
        self.wait_until("a failure", lambda: any("failed" in line for line in proxy.lines))
        ((mark, value, failure),) = report()
        self.assertEqual((mark, value), ("note", "MISSING"))
        self.assertIn(f"certificate for {NAME}: account failed: ", failure)

    def test_a_successor_continues_the_orders(self):
        pebble = self.pebble(validity=8)
        admin = ("--admin", f"unix:{self.folder}/admin.sock")
        first = self.start(pebble, *admin)
        last = self.await_certificate(first, pebble)
        second = self.start(pebble, *admin, "--upgrade")
        self.assertEqual(first.wait(), 0)
        self.assertIsNotNone(self.certificate(pebble))
        self.await_certificate(second, pebble, other_than=last)

    def test_a_process_that_hands_over_begins_no_challenge(self):
        pebble, reached, go = self.pebble(), threading.Event(), threading.Event()
        self.addCleanup(go.set)

        def edit(path, *parts):
            if path.startswith("/authZ/"):
                reached.set()
                go.wait(60)
            return parts

        plain = free_port()
        options = ("--listen", f"127.0.0.1:{plain}", "--admin", f"unix:{self.folder}/admin.sock")
        directory = self.editor(pebble, edit)
        first = self.start(pebble, *options, directory=directory)
        self.assertTrue(reached.wait(60))
        # A request in progress keeps the process alive.
        with socket.create_connection(("127.0.0.1", plain), 30) as client:
            head = f"POST /unread HTTP/1.1\r\nHost: {NAME}\r\nContent-Length: 1\r\n\r\n"
            client.sendall(head.encode())
            self.wait_until("the request", lambda: self.upstream.seen)
            second = self.start(pebble, *options, "--upgrade", directory=directory)
            go.set()
            self.await_certificate(second, pebble)
            client.sendall(b"a")
            self.upstream.read_on()
            self.assertIn(b"HTTP/1.1 ", client.recv(100))
        self.assertEqual(first.wait(), 0)
        # The authority would have found no challenge at the sockets of the successor.
        self.assertEqual(pebble.count("Added order"), 1)

    def test_the_metrics(self):
        pebble = self.pebble()
        admin = self.folder / "admin.sock"
        proxy = self.start(pebble, "--admin", f"unix:{admin}")
        self.await_certificate(proxy, pebble)
        command = ["curl", "-s", "--unix-socket", admin, "http://a/metrics"]
        page = self.run_client(*command).stdout.decode()
        self.assertRegex(page, r'millrace_certificate_expiry_seconds\{service="boost",.*\} \d{10}')
        self.assertIn('millrace_acme_failures_total{step="order"} 0', page)
